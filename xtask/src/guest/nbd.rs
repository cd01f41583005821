//! A disk that can be broken: a server of the NBD protocol, to which QEMU connects over a unix socket.
//!
//! Writes stay in memory until they are flushed, as in a disk's volatile cache, so that a power cut can lose them.
//! Each client has a fault of its own: of two guests on one disk, one can lose its path.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lab_protocol::disk::Fault;
use rustix::fs::FallocateFlags;

/// The unit of the volatile cache. Requests need not be aligned to it.
const BLOCK: u64 = 4096;

/// When the cache holds more blocks than this, it is written back, as a disk may do at any time.
const CACHED_BLOCKS: usize = 32 << 10;

/// A disk being served, until this is dropped. Its clients' threads end when they disconnect.
pub(crate) struct Server {
    disk: Arc<BreakableDisk>,
    socket: PathBuf,
    ended: Arc<AtomicBool>,
}

struct BreakableDisk {
    file: File,
    size: u64,
    unflushed: Mutex<BTreeMap<u64, Unflushed>>,
    clients: Mutex<HashMap<String, Client>>,
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
struct Client {
    fault: Fault,
    /// How often its power was cut: a request from before is not performed afterwards.
    cuts: u32,
}

impl Server {
    /// Serves `file` at `socket` from now on.
    pub(crate) fn start(file: File, socket: &Path) -> io::Result<Server> {
        let size = file.metadata()?.len();
        let disk = Arc::new(BreakableDisk::new(file, size));
        let listener = UnixListener::bind(socket)?;
        let ended = Arc::new(AtomicBool::new(false));
        let (served, stop) = (Arc::clone(&disk), Arc::clone(&ended));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let disk = Arc::clone(&served);
                // A client that vanishes in the middle of a request is a guest whose power was cut.
                thread::spawn(move || serve(&disk, client));
            }
        });
        Ok(Server { disk, socket: socket.to_owned(), ended })
    }

    /// From now on this is wrong with the disk, for this client.
    pub(crate) fn set_fault(&self, client: &str, fault: Fault) {
        self.disk.change(client, |client| client.fault = fault);
    }

    /// The client's power was cut; what is in the volatile cache is kept.
    pub(crate) fn keep_unflushed(&self, client: &str) -> io::Result<()> {
        self.disk.change(client, |client| client.cuts += 1);
        self.disk.flush()
    }

    /// The client's power was cut; what it wrote into the volatile cache is lost.
    pub(crate) fn lose_unflushed(&self, client: &str) {
        self.disk.change(client, |client| client.cuts += 1);
        self.disk.lose(client);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the listener, which then sees that it is over.
        let _ = UnixStream::connect(&self.socket);
    }
}

impl BreakableDisk {
    fn new(file: File, size: u64) -> BreakableDisk {
        let (unflushed, clients, changed) = Default::default();
        BreakableDisk { file, size, unflushed, clients, changed }
    }

    fn client(&self, name: &str) -> Client {
        lock(&self.clients).get(name).copied().unwrap_or(Client::HEALTHY)
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Client)) {
        change(lock(&self.clients).entry(name.to_owned()).or_insert(Client::HEALTHY));
        self.changed.notify_all();
    }

    /// What is wrong for this client, after the delay if that is what is wrong; `None` if its power was cut since it
    /// connected.
    fn fault(&self, name: &str, cuts: u32) -> Option<Fault> {
        let began = Instant::now();
        let mut clients = lock(&self.clients);
        loop {
            let client = clients.get(name).copied().unwrap_or(Client::HEALTHY);
            if client.cuts != cuts {
                return None;
            }
            let Fault::Delay { milliseconds } = client.fault else { return Some(client.fault) };
            let Some(rest) = Duration::from_millis(milliseconds).checked_sub(began.elapsed()) else {
                return Some(client.fault);
            };
            clients = self.changed.wait_timeout(clients, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let unflushed = lock(&self.unflushed);
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

    fn write(&self, writer: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut unflushed = lock(&self.unflushed);
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

    /// Whole blocks become holes in the file.
    fn zero(&self, writer: &str, offset: u64, length: u64) -> io::Result<()> {
        let end = offset + length;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        if first >= last {
            return self.write(writer, offset, &vec![0; index(length)]);
        }
        self.write(writer, offset, &vec![0; index(first * BLOCK - offset)])?;
        for block in first..last {
            let mut unflushed = lock(&self.unflushed);
            unflushed.insert(block, Unflushed { bytes: Content::Zeros, writer: writer.to_owned() });
            self.write_back_if_full(&mut unflushed)?;
        }
        self.write(writer, last * BLOCK, &vec![0; index(end - last * BLOCK)])
    }

    fn flush(&self) -> io::Result<()> {
        self.write_back(&mut lock(&self.unflushed))
    }

    fn lose(&self, writer: &str) {
        lock(&self.unflushed).retain(|_, cached| cached.writer != writer);
    }

    fn write_back_if_full(&self, unflushed: &mut BTreeMap<u64, Unflushed>) -> io::Result<()> {
        if unflushed.len() > CACHED_BLOCKS { self.write_back(unflushed) } else { Ok(()) }
    }

    fn write_back(&self, unflushed: &mut BTreeMap<u64, Unflushed>) -> io::Result<()> {
        while let Some((block, cached)) = unflushed.pop_first() {
            match cached.bytes {
                Content::Bytes(bytes) => self.file.write_all_at(&bytes, block * BLOCK)?,
                Content::Zeros => {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&self.file, hole, block * BLOCK, BLOCK)?;
                }
            }
        }
        Ok(())
    }
}

impl Client {
    const HEALTHY: Client = Client { fault: Fault::None, cuts: 0 };
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
    let cuts = disk.client(&name).cuts;
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
        let Some(fault) = disk.fault(&name, cuts) else { return Ok(()) };
        let request = Request { flags, command, offset, length };
        let code = match request.check(disk.size) {
            Err(code) => code,
            Ok(()) if fault == Fault::Error => wire::EIO,
            Ok(()) => request.perform(disk, &name, fault, &mut data).map_or(wire::EIO, |()| 0),
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

    fn perform(
        &self,
        disk: &BreakableDisk,
        client: &str,
        fault: Fault,
        data: &mut Vec<u8>,
    ) -> io::Result<()> {
        match self.command {
            wire::READ => {
                data.resize(self.length as usize, 0);
                return disk.read(self.offset, data);
            }
            wire::FLUSH => return disk.flush(),
            _ if fault == Fault::DropWrites => return Ok(()),
            wire::WRITE => disk.write(client, self.offset, data)?,
            _ => disk.zero(client, self.offset, self.length.into())?,
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
        disk.lose("a");
        assert_eq!(read(&disk, 8192, 100), [3; 100], "what another guest wrote is not lost");
        assert_eq!(read(&disk, 0, 100), [1; 100]);
        assert_eq!(read(&disk, 100, 50), [0; 50]);
    }

    #[test]
    fn dropped_writes_are_acknowledged_and_leave_no_trace() {
        let disk = disk(8192);
        let request = Request { flags: 0, command: wire::WRITE, offset: 0, length: 4 };
        request.perform(&disk, "a", Fault::DropWrites, &mut vec![5; 4]).unwrap();
        assert_eq!(read(&disk, 0, 4), [0; 4]);
        request.perform(&disk, "a", Fault::None, &mut vec![5; 4]).unwrap();
        assert_eq!(read(&disk, 0, 4), [5; 4]);
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
        disk.change("a", |client| client.cuts += 1);
        assert_eq!(disk.fault("a", 0), None);
        assert_eq!(disk.fault("a", 1), Some(Fault::None));
        assert_eq!(disk.fault("b", 0), Some(Fault::None));
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
