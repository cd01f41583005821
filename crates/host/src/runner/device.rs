//! Bytes of block devices: zeros and copies, past the kernel's cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::sync_channel;

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::Progress;
use crate::units::Bytes;

/// What is read or written at once.
const PIECE: usize = 4 << 20;

/// What is zeroed between two reports of progress.
const STRETCH: u64 = 256 << 20;

/// Alignment that every device's direct I/O is content with.
const ALIGNMENT: usize = 4096;

fn open(path: &Path, write: bool) -> io::Result<File> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    File::options().read(true).write(write).custom_flags(direct).open(path)
}

/// Writes zeros, by the device's own command where it has one.
pub(super) fn zero(path: &Path, from: Bytes, to: Bytes, progress: Progress<'_>) -> io::Result<()> {
    let device = open(path, true)?;
    progress(Bytes::ZERO, to.minus(from));
    let mut at = from.0;
    while at < to.0 {
        let length = (to.0 - at).min(STRETCH);
        zero_range(&device, at, length)?;
        at += length;
        progress(Bytes(at).minus(from), to.minus(from));
    }
    device.sync_data()
}

fn zero_range(device: &File, at: u64, length: u64) -> io::Result<()> {
    Ok(fallocate(device, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, at, length)?)
}

/// A piece of memory whose beginning is aligned.
struct Piece {
    memory: Vec<u8>,
    begin: usize,
    length: usize,
    at: u64,
}

impl Piece {
    fn new() -> Piece {
        let memory = vec![0; PIECE + ALIGNMENT];
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        Piece { memory, begin, length: 0, at: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.length]
    }
}

/// Copies. One thread reads while the other writes.
pub(super) fn copy(
    from: &Path,
    to: &Path,
    length: Bytes,
    dirty: bool,
    progress: Progress<'_>,
) -> io::Result<()> {
    let (source, target) = (open(from, false)?, open(to, true)?);
    progress(Bytes::ZERO, length);
    let (filled, to_write) = sync_channel::<Piece>(1);
    let (emptied, to_fill) = sync_channel::<Piece>(2);
    let _ = emptied.send(Piece::new());
    let _ = emptied.send(Piece::new());
    std::thread::scope(|scope| {
        let reading = std::thread::Builder::new().spawn_scoped(scope, move || -> io::Result<()> {
            let mut at = 0;
            while at < length.0 {
                // The writer has failed, and says why.
                let Ok(mut piece) = to_fill.recv() else { return Ok(()) };
                piece.at = at;
                piece.length =
                    usize::try_from((length.0 - at).min(PIECE as u64)).map_err(io::Error::other)?;
                source
                    .read_exact_at(piece.bytes_mut(), at)
                    .map_err(|error| at_place("reading", from, error))?;
                at += piece.length as u64;
                if filled.send(piece).is_err() {
                    return Ok(());
                }
            }
            Ok(())
        })?;
        let mut written = Ok(());
        while let Ok(piece) = to_write.recv() {
            written = write(&target, &piece, dirty).map_err(|error| at_place("writing", to, error));
            if written.is_err() {
                break;
            }
            progress(Bytes(piece.at + piece.length as u64), length);
            let _ = emptied.send(piece);
        }
        drop((to_write, emptied));
        let read = reading.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")));
        read.and(written)
    })?;
    target.sync_data().map_err(|error| at_place("writing", to, error))
}

/// Says which of two devices it was.
fn at_place(what: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

fn write(target: &File, piece: &Piece, dirty: bool) -> io::Result<()> {
    if !is_zero(piece.bytes()) {
        return target.write_all_at(piece.bytes(), piece.at);
    }
    if dirty { zero_range(target, piece.at, piece.length as u64) } else { Ok(()) }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The size of a block device.
pub(super) fn size(path: &Path) -> io::Result<Bytes> {
    use std::io::{Seek, SeekFrom};
    Ok(Bytes(File::open(path)?.seek(SeekFrom::End(0))?))
}
