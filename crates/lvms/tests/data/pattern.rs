//! Bytes that tell whose they are and where they belong, so that none can be taken for others.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use lab_test::Result;
use rustix::fs::OFlags;

/// Written and compared at once.
const PIECE: usize = 1 << 20;

/// Each of these begins with its own place.
const SECTOR: usize = 512;

/// What a stretch holds.
pub(crate) struct Pattern {
    owner: String,
    sector: [u8; SECTOR],
}

impl Pattern {
    /// The pattern of a volume, one of several.
    pub(crate) fn of(owner: &str, letter: char) -> Pattern {
        let owner = format!("{owner} {letter}");
        // FNV-1a, and then xorshift.
        let mut state = owner.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut sector = [0; SECTOR];
        for word in sector.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        Pattern { owner, sector }
    }

    fn fill(&self, offset: u64, bytes: &mut [u8]) {
        for (number, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            sector.copy_from_slice(&self.sector[..sector.len()]);
            let place = offset + (number * SECTOR) as u64;
            sector[..8].copy_from_slice(&place.to_le_bytes());
        }
    }
}

/// Bytes of a file or of a block device.
pub(crate) struct Stretch {
    pub(crate) path: PathBuf,
    /// The first, a multiple of 512.
    pub(crate) from: u64,
    /// The one after the last, a multiple of 512.
    pub(crate) to: u64,
}

impl Stretch {
    /// Writes a pattern and waits until the disk has it.
    pub(crate) fn write(&self, pattern: &Pattern) -> Result {
        let file = File::options().write(true).create(true).truncate(false).open(&self.path)?;
        self.pieces(|at, bytes| {
            pattern.fill(at, bytes);
            Ok(file.write_all_at(bytes, at)?)
        })?;
        file.sync_all()?;
        // The name of a new file, too.
        Ok(File::open(self.path.parent().ok_or("no directory")?)?.sync_all()?)
    }

    /// Hands bytes to the disk and does not ask it to keep them.
    pub(crate) fn write_unflushed(&self) -> Result {
        let direct = i32::try_from(OFlags::DIRECT.bits())?;
        let file =
            File::options().write(true).create(true).truncate(false).custom_flags(direct).open(&self.path)?;
        let memory = vec![0x55; 2 * UNFLUSHED];
        let begin = memory.as_ptr().align_offset(UNFLUSHED);
        Ok(file.write_all_at(&memory[begin..begin + UNFLUSHED], self.from)?)
    }

    /// Compares every byte with a pattern.
    pub(crate) fn holds(&self, pattern: &Pattern) -> Result {
        self.compare(&pattern.owner, |at, bytes| pattern.fill(at, bytes))
    }

    /// Every byte is zero.
    pub(crate) fn is_zero(&self) -> Result {
        self.compare("zeros", |_, bytes| bytes.fill(0))
    }

    fn compare(&self, what: &str, expect: impl Fn(u64, &mut [u8])) -> Result {
        let file = File::open(&self.path)?;
        let mut found = vec![0; PIECE];
        self.pieces(|at, expected| {
            let found = &mut found[..expected.len()];
            file.read_exact_at(found, at)?;
            expect(at, expected);
            if found == expected {
                return Ok(());
            }
            let wrong = found.iter().zip(expected.iter()).position(|(found, expected)| found != expected);
            let wrong = wrong.unwrap_or_default();
            let (place, found) = (at + wrong as u64, &found[wrong..found.len().min(wrong + 16)]);
            Err(format!("{} has not {what} at {place}, but {found:02x?}", self.path.display()).into())
        })
    }

    fn pieces(&self, mut act: impl FnMut(u64, &mut [u8]) -> Result) -> Result {
        let mut piece = vec![0; PIECE];
        let mut at = self.from;
        while at < self.to {
            let length = usize::try_from(self.to - at)?.min(PIECE);
            act(at, &mut piece[..length])?;
            at += length as u64;
        }
        Ok(())
    }
}

/// So much is left in the disk's cache, with this alignment.
pub(crate) const UNFLUSHED: usize = 64 << 10;
