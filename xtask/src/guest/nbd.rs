//! A disk that can be broken: a server of the NBD protocol, to which QEMU connects over a unix socket.
//!
//! Writes stay in memory until they are flushed, as in a disk's volatile cache, so that a power cut can lose them.
//! Each client has a fault of its own: of two guests on one disk, one can lose its path.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lab_protocol::disk::Fault;

/// The unit of the volatile cache. Requests need not be aligned to it.
const BLOCK: u64 = 4096;

/// When the cache holds more blocks than this, it is written back, as a disk may do at any time.
const CACHED_BLOCKS: usize = 32 << 10;

/// A disk being served. Its clients' threads end when they disconnect.
pub(crate) struct Server {
    disk: Arc<BreakableDisk>,
}

struct BreakableDisk {
    file: File,
    size: u64,
    unflushed: Mutex<BTreeMap<u64, Box<[u8]>>>,
    faults: Mutex<HashMap<String, Fault>>,
    /// Notified when a fault changes: a healed disk answers at once what it had delayed.
    changed: Condvar,
}

impl Server {
    /// Serves `file` at `socket` from now on.
    pub(crate) fn start(file: File, socket: &Path) -> io::Result<Server> {
        let size = file.metadata()?.len();
        let disk = Arc::new(BreakableDisk::new(file, size));
        let listener = UnixListener::bind(socket)?;
        let served = Arc::clone(&disk);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let disk = Arc::clone(&served);
                // A client that vanishes in the middle of a request is a guest whose power was cut.
                thread::spawn(move || serve(&disk, client));
            }
        });
        Ok(Server { disk })
    }

    /// From now on this is wrong with the disk, for this client.
    pub(crate) fn set_fault(&self, client: &str, fault: Fault) {
        lock(&self.disk.faults).insert(client.to_owned(), fault);
        self.disk.changed.notify_all();
    }

    /// Writes back what is in the volatile cache.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }

    /// Forgets what is in the volatile cache.
    pub(crate) fn lose_unflushed(&self) {
        lock(&self.disk.unflushed).clear();
    }
}

impl BreakableDisk {
    fn new(file: File, size: u64) -> BreakableDisk {
        let (unflushed, faults, changed) = Default::default();
        BreakableDisk { file, size, unflushed, faults, changed }
    }

    /// What is wrong for this client, after the delay if that is what is wrong.
    fn fault(&self, client: &str) -> Fault {
        let began = Instant::now();
        let mut faults = lock(&self.faults);
        loop {
            let fault = faults.get(client).copied().unwrap_or(Fault::None);
            let Fault::Delay { milliseconds } = fault else { return fault };
            let Some(rest) = Duration::from_millis(milliseconds).checked_sub(began.elapsed()) else {
                return fault;
            };
            faults = self.changed.wait_timeout(faults, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let unflushed = lock(&self.unflushed);
        self.file.read_exact_at(buffer, offset)?;
        let end = offset + buffer.len() as u64;
        for (block, bytes) in unflushed.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let start = block * BLOCK;
            let (from, to) = (start.max(offset), (start + BLOCK).min(end));
            let part = &bytes[index(from - start)..index(to - start)];
            buffer[index(from - offset)..index(to - offset)].copy_from_slice(part);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut unflushed = lock(&self.unflushed);
        let end = offset + data.len() as u64;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let start = block * BLOCK;
            let (from, to) = (start.max(offset), (start + BLOCK).min(end));
            let bytes = match unflushed.entry(block) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let mut bytes = vec![0; index(BLOCK.min(self.size - start))].into_boxed_slice();
                    if to - from < bytes.len() as u64 {
                        self.file.read_exact_at(&mut bytes, start)?;
                    }
                    new.insert(bytes)
                }
            };
            let part = &data[index(from - offset)..index(to - offset)];
            bytes[index(from - start)..index(to - start)].copy_from_slice(part);
        }
        if unflushed.len() > CACHED_BLOCKS { self.write_back(&mut unflushed) } else { Ok(()) }
    }

    fn zero(&self, mut offset: u64, length: u64) -> io::Result<()> {
        const AT_ONCE: u64 = 1 << 20;
        let end = offset + length;
        while offset < end {
            let count = AT_ONCE.min(end - offset);
            self.write(offset, &vec![0; index(count)])?;
            offset += count;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.write_back(&mut lock(&self.unflushed))
    }

    fn write_back(&self, unflushed: &mut BTreeMap<u64, Box<[u8]>>) -> io::Result<()> {
        while let Some((block, bytes)) = unflushed.pop_first() {
            self.file.write_all_at(&bytes, block * BLOCK)?;
        }
        Ok(())
    }
}

/// Numbers of the protocol, as its specification names them.
mod wire {
    pub(super) const MAGIC: &[u8; 8] = b"NBDMAGIC";
    pub(super) const OPTION: &[u8; 8] = b"IHAVEOPT";
    pub(super) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    pub(super) const REQUEST: u32 = 0x2560_9513;
    pub(super) const SIMPLE_REPLY: u32 = 0x6744_6698;
    pub(super) const FIXED_NEWSTYLE_NO_ZEROES: u16 = 3;
    pub(super) const OPTION_ABORT: u32 = 2;
    pub(super) const OPTION_INFO: u32 = 6;
    pub(super) const OPTION_GO: u32 = 7;
    pub(super) const REPLY_ACK: u32 = 1;
    pub(super) const REPLY_INFO: u32 = 3;
    pub(super) const REPLY_UNSUPPORTED: u32 = (1 << 31) + 1;
    /// has flags, flush, force unit access, trim, write zeroes, several connections
    pub(super) const EXPORT_FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256;
    pub(super) const FORCE_UNIT_ACCESS: u16 = 1;
    pub(super) const READ: u16 = 0;
    pub(super) const WRITE: u16 = 1;
    pub(super) const DISCONNECT: u16 = 2;
    pub(super) const FLUSH: u16 = 3;
    pub(super) const TRIM: u16 = 4;
    pub(super) const WRITE_ZEROES: u16 = 6;
    pub(super) const EIO: u32 = 5;
    pub(super) const EINVAL: u32 = 22;
}

fn serve(disk: &BreakableDisk, client: UnixStream) -> io::Result<()> {
    let mut input = BufReader::new(client.try_clone()?);
    let mut output = client;
    let Some(name) = greet(disk, &mut input, &mut output)? else { return Ok(()) };
    loop {
        if u32_from(&mut input)? != wire::REQUEST {
            return Err(io::Error::other("a request without its magic number"));
        }
        let (flags, command) = (u16_from(&mut input)?, u16_from(&mut input)?);
        let (cookie, offset, length) = (u64_from(&mut input)?, u64_from(&mut input)?, u32_from(&mut input)?);
        let mut data = if command == wire::WRITE { bytes_from(&mut input, length)? } else { Vec::new() };
        if command == wire::DISCONNECT {
            return Ok(());
        }
        let fault = disk.fault(&name);
        let request = Request { flags, command, offset, length };
        let code = match request.check(disk.size) {
            Err(code) => code,
            Ok(()) if fault == Fault::Error => wire::EIO,
            Ok(()) => request.perform(disk, fault, &mut data).map_or(wire::EIO, |()| 0),
        };
        let mut reply = Vec::with_capacity(16);
        reply.extend_from_slice(&wire::SIMPLE_REPLY.to_be_bytes());
        reply.extend_from_slice(&code.to_be_bytes());
        reply.extend_from_slice(&cookie.to_be_bytes());
        if command == wire::READ && code == 0 {
            reply.append(&mut data);
        }
        output.write_all(&reply)?;
    }
}

struct Request {
    flags: u16,
    command: u16,
    offset: u64,
    length: u32,
}

impl Request {
    fn check(&self, size: u64) -> Result<(), u32> {
        let known =
            [wire::READ, wire::WRITE, wire::FLUSH, wire::TRIM, wire::WRITE_ZEROES].contains(&self.command);
        let inside = self.offset.checked_add(self.length.into()).is_some_and(|end| end <= size);
        if known && inside { Ok(()) } else { Err(wire::EINVAL) }
    }

    fn perform(&self, disk: &BreakableDisk, fault: Fault, data: &mut Vec<u8>) -> io::Result<()> {
        if self.command == wire::READ {
            data.resize(self.length as usize, 0);
            return disk.read(self.offset, data);
        }
        if fault == Fault::DropWrites {
            return Ok(());
        }
        match self.command {
            wire::WRITE => disk.write(self.offset, data)?,
            wire::WRITE_ZEROES | wire::TRIM => disk.zero(self.offset, self.length.into())?,
            _ => return disk.flush(),
        }
        if self.flags & wire::FORCE_UNIT_ACCESS != 0 { disk.flush() } else { Ok(()) }
    }
}

/// The opening talk. Returns the name by which the client asked for the disk, or `None` if it left.
fn greet(disk: &BreakableDisk, input: &mut impl Read, output: &mut impl Write) -> io::Result<Option<String>> {
    output.write_all(wire::MAGIC)?;
    output.write_all(wire::OPTION)?;
    output.write_all(&wire::FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
    u32_from(input)?;
    loop {
        let mut magic = [0; 8];
        input.read_exact(&mut magic)?;
        let (option, length) = (u32_from(input)?, u32_from(input)?);
        let data = bytes_from(input, length)?;
        let mut reply = |kind: u32, data: &[u8]| -> io::Result<()> {
            let mut bytes = wire::OPTION_REPLY.to_be_bytes().to_vec();
            bytes.extend_from_slice(&option.to_be_bytes());
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
            bytes.extend_from_slice(data);
            output.write_all(&bytes)
        };
        match option {
            wire::OPTION_GO | wire::OPTION_INFO => {
                let mut export = 0u16.to_be_bytes().to_vec();
                export.extend_from_slice(&disk.size.to_be_bytes());
                export.extend_from_slice(&wire::EXPORT_FLAGS.to_be_bytes());
                reply(wire::REPLY_INFO, &export)?;
                reply(wire::REPLY_ACK, &[])?;
                if option == wire::OPTION_GO {
                    let mut rest = data.as_slice();
                    let length = u32_from(&mut rest)?;
                    let name = bytes_from(&mut rest, length)?;
                    return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
                }
            }
            wire::OPTION_ABORT => {
                reply(wire::REPLY_ACK, &[])?;
                return Ok(None);
            }
            _ => reply(wire::REPLY_UNSUPPORTED, &[])?,
        }
    }
}

fn u16_from(input: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    input.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

fn u32_from(input: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn u64_from(input: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

fn bytes_from(input: &mut impl Read, length: u32) -> io::Result<Vec<u8>> {
    const LONGEST: u32 = 64 << 20;
    if length > LONGEST {
        return Err(io::Error::other("a request is too long"));
    }
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// An offset within memory; it is below the length of a request or of a block.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(size: u64) -> BreakableDisk {
        let path = std::env::temp_dir().join(format!("lvms-nbd-{}-{size}", std::process::id()));
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        std::fs::remove_file(path).unwrap();
        BreakableDisk::new(file, size)
    }

    fn read(disk: &BreakableDisk, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![9; length];
        disk.read(offset, &mut buffer).unwrap();
        buffer
    }

    #[test]
    fn a_write_is_read_back_before_and_after_a_flush_also_where_it_is_not_aligned() {
        let disk = disk(20_000);
        let data: Vec<u8> = (0..9000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        disk.write(4000, &data).unwrap();
        assert_eq!(read(&disk, 4000, 9000), data);
        assert_eq!(read(&disk, 3990, 10), [0; 10]);
        disk.flush().unwrap();
        assert_eq!(read(&disk, 4000, 9000), data);
        disk.write(19_990, &[7; 10]).unwrap();
        disk.flush().unwrap();
        assert_eq!(read(&disk, 19_990, 10), [7; 10]);
        assert_eq!(disk.file.metadata().unwrap().len(), 20_000);
    }

    #[test]
    fn what_was_not_flushed_is_lost_and_what_was_flushed_is_not() {
        let disk = disk(16_384);
        disk.write(0, &[1; 100]).unwrap();
        disk.flush().unwrap();
        disk.write(50, &[2; 100]).unwrap();
        lock(&disk.unflushed).clear();
        assert_eq!(read(&disk, 0, 100), [1; 100]);
        assert_eq!(read(&disk, 100, 50), [0; 50]);
    }

    #[test]
    fn dropped_writes_are_acknowledged_and_leave_no_trace() {
        let disk = disk(8192);
        let request = Request { flags: 0, command: wire::WRITE, offset: 0, length: 4 };
        request.perform(&disk, Fault::DropWrites, &mut vec![5; 4]).unwrap();
        assert_eq!(read(&disk, 0, 4), [0; 4]);
        request.perform(&disk, Fault::None, &mut vec![5; 4]).unwrap();
        assert_eq!(read(&disk, 0, 4), [5; 4]);
    }

    #[test]
    fn a_request_beyond_the_end_or_unknown_is_refused() {
        let request = |command, offset, length| Request { flags: 0, command, offset, length };
        assert!(request(wire::READ, 4096, 4096).check(8192).is_ok());
        assert_eq!(request(wire::READ, 4097, 4096).check(8192), Err(wire::EINVAL));
        assert_eq!(request(wire::WRITE, u64::MAX, 1).check(8192), Err(wire::EINVAL));
        assert_eq!(request(99, 0, 0).check(8192), Err(wire::EINVAL));
    }
}
