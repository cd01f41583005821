//! Where a disk's bytes are kept: a sparse file, and before it, if the disk shall be breakable, a volatile cache and faults.
//!
//! Writes stay in memory until they are flushed, as in a disk's volatile cache, so that a power cut can lose them.
//! Each guest has a fault of its own: of two guests on one disk, one can lose its path.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lab_protocol::disk::Fault;
use rustix::fs::FallocateFlags;

use super::lock;

/// The unit of the volatile cache. Requests need not be aligned to it.
const BLOCK: u64 = 4096;

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// When the cache holds more blocks than this, it is written back, as a disk may do at any time.
const CACHED_BLOCKS: usize = 32 << 10;

/// The bytes of a disk.
pub(crate) struct Store {
    file: File,
    size: u64,
    /// The volatile cache; none for a disk that cannot be broken.
    unflushed: Option<Mutex<BTreeMap<u64, Unflushed>>>,
    guests: Mutex<HashMap<String, Access>>,
    /// Notified when a fault changes: a healed disk answers at once what it had delayed.
    changed: Condvar,
}

/// A block in the volatile cache.
struct Unflushed {
    bytes: Content,
    /// The last who wrote it; his power cut loses it.
    writer: String,
}

enum Content {
    Zeros,
    Bytes(Box<[u8]>),
}

/// A guest, as far as a disk is concerned.
#[derive(Clone, Copy)]
struct Access {
    fault: Fault,
    /// How often its power was cut: a request from before is not performed afterwards.
    cuts: u32,
}

impl Access {
    const HEALTHY: Access = Access { fault: Fault::None, cuts: 0 };
}

impl Store {
    /// The bytes of this file; `breakable` gives it a volatile cache.
    pub(crate) fn new(file: File, breakable: bool) -> io::Result<Store> {
        let size = file.metadata()?.len();
        let unflushed = breakable.then(Mutex::default);
        Ok(Store { file, size, unflushed, guests: Mutex::default(), changed: Condvar::new() })
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// From now on this is wrong with the disk, for this guest.
    pub(crate) fn set_fault(&self, guest: &str, fault: Fault) {
        self.change(guest, |access| access.fault = fault);
    }

    /// The guest's power was cut; what is in the volatile cache is kept.
    pub(crate) fn keep_unflushed(&self, guest: &str) -> io::Result<()> {
        self.change(guest, |access| access.cuts += 1);
        self.flush()
    }

    /// The guest's power was cut; what it wrote into the volatile cache is lost.
    pub(crate) fn lose_unflushed(&self, guest: &str) {
        self.change(guest, |access| access.cuts += 1);
        if let Some(unflushed) = &self.unflushed {
            lock(unflushed).retain(|_, cached| cached.writer != guest);
        }
    }

    /// How often this guest's power was cut.
    pub(crate) fn cuts(&self, guest: &str) -> u32 {
        self.access(guest).cuts
    }

    /// Whether a request of this guest has to wait.
    pub(crate) fn is_slow(&self, guest: &str) -> bool {
        matches!(self.access(guest).fault, Fault::Delay { .. })
    }

    fn access(&self, guest: &str) -> Access {
        lock(&self.guests).get(guest).copied().unwrap_or(Access::HEALTHY)
    }

    fn change(&self, guest: &str, change: impl FnOnce(&mut Access)) {
        change(lock(&self.guests).entry(guest.to_owned()).or_insert(Access::HEALTHY));
        self.changed.notify_all();
    }

    /// What is wrong for this guest, after the delay if that is what is wrong; `None` if its power was cut since
    /// it had been cut this often.
    pub(crate) fn fault(&self, guest: &str, cuts: u32) -> Option<Fault> {
        let began = Instant::now();
        let mut guests = lock(&self.guests);
        loop {
            let access = guests.get(guest).copied().unwrap_or(Access::HEALTHY);
            if access.cuts != cuts {
                return None;
            }
            let Fault::Delay { milliseconds } = access.fault else { return Some(access.fault) };
            let Some(rest) = Duration::from_millis(milliseconds).checked_sub(began.elapsed()) else {
                return Some(access.fault);
            };
            guests = self.changed.wait_timeout(guests, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reads.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(unflushed) = &self.unflushed else { return self.file.read_exact_at(buffer, offset) };
        let unflushed = lock(unflushed);
        self.file.read_exact_at(buffer, offset)?;
        let end = offset + buffer.len() as u64;
        for (block, cached) in unflushed.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let start = block * BLOCK;
            let (from, to) = (start.max(offset), (start + BLOCK).min(end));
            let into = &mut buffer[index(from - offset)..index(to - offset)];
            match &cached.bytes {
                Content::Zeros => into.fill(0),
                Content::Bytes(bytes) => into.copy_from_slice(&bytes[index(from - start)..index(to - start)]),
            }
        }
        Ok(())
    }

    /// Writes, for this guest.
    pub(crate) fn write(&self, writer: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(unflushed) = &self.unflushed else { return self.file.write_all_at(data, offset) };
        let mut unflushed = lock(unflushed);
        let end = offset + data.len() as u64;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let start = block * BLOCK;
            let (from, to) = (start.max(offset), (start + BLOCK).min(end));
            let mut bytes = vec![0; index(BLOCK.min(self.size - start))].into_boxed_slice();
            match unflushed.remove(&block).map(|cached| cached.bytes) {
                Some(Content::Bytes(known)) => bytes = known,
                Some(Content::Zeros) => {}
                None if to - from < bytes.len() as u64 => self.file.read_exact_at(&mut bytes, start)?,
                None => {}
            }
            let part = &data[index(from - offset)..index(to - offset)];
            bytes[index(from - start)..index(to - start)].copy_from_slice(part);
            unflushed.insert(block, Unflushed { bytes: Content::Bytes(bytes), writer: writer.to_owned() });
        }
        self.write_back_if_full(&mut unflushed)
    }

    /// Zeros, for this guest. Whole blocks become holes in the file.
    pub(crate) fn zero(&self, writer: &str, offset: u64, length: u64) -> io::Result<()> {
        let end = offset + length;
        let Some(unflushed) = &self.unflushed else {
            if length > 0 {
                rustix::fs::fallocate(&self.file, HOLE, offset, length)?;
            }
            return Ok(());
        };
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        if first >= last {
            return self.write(writer, offset, &vec![0; index(length)]);
        }
        self.write(writer, offset, &vec![0; index(first * BLOCK - offset)])?;
        for block in first..last {
            let mut unflushed = lock(unflushed);
            unflushed.insert(block, Unflushed { bytes: Content::Zeros, writer: writer.to_owned() });
            self.write_back_if_full(&mut unflushed)?;
        }
        self.write(writer, last * BLOCK, &vec![0; index(end - last * BLOCK)])
    }

    /// What was written outlives a power cut. Without a volatile cache it does so already: it is this machine that
    /// would have to lose power.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.unflushed.as_ref().map_or(Ok(()), |unflushed| self.write_back(&mut lock(unflushed)))
    }

    fn write_back_if_full(&self, unflushed: &mut BTreeMap<u64, Unflushed>) -> io::Result<()> {
        if unflushed.len() > CACHED_BLOCKS { self.write_back(unflushed) } else { Ok(()) }
    }

    fn write_back(&self, unflushed: &mut BTreeMap<u64, Unflushed>) -> io::Result<()> {
        while let Some((block, cached)) = unflushed.pop_first() {
            match cached.bytes {
                Content::Bytes(bytes) => self.file.write_all_at(&bytes, block * BLOCK)?,
                Content::Zeros => rustix::fs::fallocate(&self.file, HOLE, block * BLOCK, BLOCK)?,
            }
        }
        Ok(())
    }
}

/// An offset within memory; it is below the length of a request or of a block.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn disk(size: u64) -> Store {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lvms-store-{}-{number}", std::process::id()));
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        std::fs::remove_file(path).unwrap();
        Store::new(file, true).unwrap()
    }

    fn read(disk: &Store, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![9; length];
        disk.read(offset, &mut buffer).unwrap();
        buffer
    }

    #[test]
    fn a_write_is_read_back_before_and_after_a_flush_also_where_it_is_not_aligned() {
        let disk = disk(20_000);
        let data: Vec<u8> = (0..9000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        disk.write("a", 4000, &data).unwrap();
        assert_eq!(read(&disk, 4000, 9000), data);
        assert_eq!(read(&disk, 3990, 10), [0; 10]);
        disk.flush().unwrap();
        assert_eq!(read(&disk, 4000, 9000), data);
        disk.write("a", 19_990, &[7; 10]).unwrap();
        disk.flush().unwrap();
        assert_eq!(read(&disk, 19_990, 10), [7; 10]);
        assert_eq!(disk.file.metadata().unwrap().len(), 20_000);
    }

    #[test]
    fn what_was_not_flushed_is_lost_and_what_was_flushed_is_not() {
        let disk = disk(16_384);
        disk.write("a", 0, &[1; 100]).unwrap();
        disk.flush().unwrap();
        disk.write("a", 50, &[2; 100]).unwrap();
        disk.write("b", 8192, &[3; 100]).unwrap();
        disk.lose_unflushed("a");
        assert_eq!(read(&disk, 8192, 100), [3; 100], "what another guest wrote is not lost");
        assert_eq!(read(&disk, 0, 100), [1; 100]);
        assert_eq!(read(&disk, 100, 50), [0; 50]);
    }

    #[test]
    fn zeros_are_read_back_at_once_and_take_no_room_after_a_flush() {
        use std::os::unix::fs::MetadataExt;
        let disk = disk(1 << 20);
        disk.write("a", 0, &vec![1; 1 << 20]).unwrap();
        disk.flush().unwrap();
        disk.zero("a", 100, (1 << 20) - 200).unwrap();
        for _ in 0..2 {
            assert_eq!(read(&disk, 99, 2), [1, 0]);
            assert_eq!(read(&disk, 500_000, 10), [0; 10]);
            assert_eq!(read(&disk, (1 << 20) - 101, 2), [0, 1]);
            disk.flush().unwrap();
        }
        assert!(disk.file.metadata().unwrap().blocks() * 512 < 100_000);
    }

    #[test]
    fn a_request_from_before_a_power_cut_is_not_performed_after_it() {
        let disk = disk(4096);
        assert_eq!(disk.fault("a", 0), Some(Fault::None));
        disk.keep_unflushed("a").unwrap();
        assert_eq!(disk.fault("a", 0), None);
        assert_eq!(disk.fault("a", 1), Some(Fault::None));
        assert_eq!(disk.fault("b", 0), Some(Fault::None));
    }

    #[test]
    fn without_a_cache_a_write_is_in_the_file_at_once_and_zeros_take_no_room() {
        use std::os::unix::fs::MetadataExt;
        let disk = Store::new(disk(1 << 20).file, false).unwrap();
        disk.write("a", 10, &vec![1; 1 << 19]).unwrap();
        disk.lose_unflushed("a");
        assert_eq!(read(&disk, 9, 2), [0, 1]);
        disk.zero("a", 100, 1 << 20 >> 1).unwrap();
        assert_eq!(read(&disk, 99, 2), [1, 0]);
        assert!(disk.file.metadata().unwrap().blocks() * 512 < 100_000);
        assert_eq!(disk.size(), 1 << 20);
    }
}
