//! A device as it is, and not as the kernel has kept it: what others write past its cache is seen.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// A device that is read past the kernel's cache where possible.
#[derive(Debug)]
pub(crate) struct Direct(File);

impl Direct {
    pub(crate) fn open(path: &Path) -> io::Result<Direct> {
        let open = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
            File::options().read(true).custom_flags(flags).open(path)
        };
        Ok(Direct(open(OFlags::DIRECT).or_else(|_| open(OFlags::empty()))?))
    }

    /// Reads whole blocks into aligned memory, as a direct read wants it.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        const BLOCK: usize = 4096;
        let begin = offset - offset % BLOCK as u64;
        let skip = usize::try_from(offset - begin).map_err(io::Error::other)?;
        let length = (skip + bytes.len()).next_multiple_of(BLOCK);
        let mut memory = vec![0; length + BLOCK];
        let aligned = memory.as_ptr().align_offset(BLOCK);
        let memory = &mut memory[aligned..aligned + length];
        self.0.read_exact_at(memory, begin)?;
        bytes.copy_from_slice(&memory[skip..skip + bytes.len()]);
        Ok(())
    }
}
