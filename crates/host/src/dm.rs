//! Device-mapper, asked in this process: how full a pool or a snapshot is, how RAID is, who is suspended.
//!
//! lvm2 would be asked the same by a process that takes some ten milliseconds and a lock; this is one system call.

mod status;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, ioctl, opcode};

pub use self::status::{Cow, Fill, Pool, PoolState, Raid};
use crate::lvm::inventory::DeviceNumber;

/// Device-mapper's control device.
#[derive(Debug)]
pub struct Control {
    file: File,
}

/// One mapping of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `linear`, `thin-pool`, `raid`, …
    pub kind: String,
    /// Its length in sectors of 512 bytes.
    pub sectors: u64,
    /// Its state, in the target's own words.
    pub status: String,
}

/// A device and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: DeviceNumber,
    /// Who it is, in words of who made it: LVM's begin with `LVM-`.
    pub uuid: String,
    /// How many have it open.
    pub open: u32,
    /// Whether all I/O to it waits.
    pub suspended: bool,
    /// Whether it maps anything.
    pub has_targets: bool,
}

const LIST_DEVICES: u8 = 2;
const DEV_REMOVE: u8 = 4;
const DEV_SUSPEND: u8 = 6;
const DEV_STATUS: u8 = 7;
const TABLE_CLEAR: u8 = 10;
const TABLE_DEPS: u8 = 11;
const TABLE_STATUS: u8 = 12;
const DEV_ARM_POLL: u8 = 16;

const SUSPENDED: u32 = 1 << 1;
/// The mappings are told, and not their states.
const STATUS_TABLE: u32 = 1 << 4;
const BUFFER_FULL: u32 = 1 << 8;
/// The status of a pool is told as it is, without writing anything out first.
const NO_FLUSH: u32 = 1 << 11;

impl Control {
    /// Opens it.
    pub fn open() -> io::Result<Control> {
        Ok(Control { file: File::options().read(true).write(true).open("/dev/mapper/control")? })
    }

    /// The device of this name, if there is one. Asks nothing of what it maps, and waits for nothing.
    pub fn device(&self, name: &str) -> io::Result<Option<Device>> {
        let Some(answer) = self.call(DEV_STATUS, name, 0)? else { return Ok(None) };
        Ok(Some(Device {
            number: device_number(answer.long(Header::DEVICE)),
            uuid: text(answer.0.get(Header::UUID..Header::UUID_END).unwrap_or_default()),
            open: answer.word(Header::OPEN),
            suspended: answer.word(Header::FLAGS) & SUSPENDED != 0,
            has_targets: answer.word(Header::TARGETS) > 0,
        }))
    }

    /// What a device maps, each with its state, if it maps anything of this kind. No other kind is asked: a thin pool, and
    /// what lies in one, may wait for the pool's disks.
    pub fn targets(&self, name: &str, kind: &str) -> io::Result<Vec<Target>> {
        let look = |flags| -> io::Result<Vec<Target>> {
            let answer = self.call(TABLE_STATUS, name, flags)?;
            Ok(answer.map(|answer| targets(answer.data(), answer.word(Header::TARGETS))).unwrap_or_default())
        };
        let is_there = look(STATUS_TABLE)?.iter().any(|target| target.kind == kind);
        if is_there { look(NO_FLUSH) } else { Ok(Vec::new()) }
    }

    /// From now on there is something to read here, for whoever polls, as soon as something happens to a device: a pool
    /// is out of room, a disk of RAID fails or is in sync again, a snapshot is lost.
    pub fn arm(&self) -> io::Result<()> {
        self.call(DEV_ARM_POLL, "", 0)?;
        Ok(())
    }

    /// The devices on which the device of this name lies.
    pub fn beneath(&self, name: &str) -> io::Result<Vec<DeviceNumber>> {
        let answer = self.call(TABLE_DEPS, name, 0)?;
        Ok(answer.map(|answer| numbers(answer.data())).unwrap_or_default())
    }

    /// Lets I/O to a device wait. A filesystem on it is written out before, and its journal is empty.
    pub(crate) fn suspend_device(&self, name: &str) -> io::Result<()> {
        self.call(DEV_SUSPEND, name, SUSPENDED)?;
        Ok(())
    }

    /// Lets I/O to a suspended device go on.
    pub(crate) fn resume_device(&self, name: &str) -> io::Result<()> {
        // "Suspend" without the flag that asks for it means resume.
        self.call(DEV_SUSPEND, name, 0)?;
        Ok(())
    }

    /// Throws away mappings that were loaded and are not in force yet.
    pub(crate) fn clear_table(&self, name: &str) -> io::Result<()> {
        self.call(TABLE_CLEAR, name, 0)?;
        Ok(())
    }

    /// Removes a device that nobody has open.
    pub(crate) fn remove_device(&self, name: &str) -> io::Result<()> {
        self.call(DEV_REMOVE, name, 0)?;
        Ok(())
    }

    /// The names of all devices.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let answer = self.call(LIST_DEVICES, "", 0)?;
        Ok(answer.map(|answer| names(answer.data())).unwrap_or_default())
    }

    /// `None` if there is no such device. The buffer grows until the answer fits.
    fn call(&self, command: u8, name: &str, flags: u32) -> io::Result<Option<Message>> {
        let mut size = 4096;
        loop {
            let mut message = Message::new(size, name, flags)?;
            // SAFETY: the message is a `struct dm_ioctl` whose `data_size` is the length of its own buffer; the kernel
            // reads and writes within it.
            #[expect(unsafe_code)]
            let done = unsafe { ioctl(self.file.as_fd(), Call { command, message: &mut message }) };
            match done {
                Ok(()) if message.word(Header::FLAGS) & BUFFER_FULL != 0 => size *= 4,
                Ok(()) => return Ok(Some(message)),
                Err(Errno::NXIO) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Offsets in the kernel's `struct dm_ioctl`.
struct Header;

impl Header {
    const VERSION: usize = 0;
    const DATA_SIZE: usize = 12;
    const DATA_START: usize = 16;
    const TARGETS: usize = 20;
    const OPEN: usize = 24;
    const FLAGS: usize = 28;
    const DEVICE: usize = 40;
    const NAME: usize = 48;
    const NAME_SIZE: usize = 128;
    const UUID: usize = 176;
    const UUID_END: usize = 305;
    const SIZE: usize = 312;
}

struct Message(Vec<u8>);

impl Message {
    fn new(size: usize, name: &str, flags: u32) -> io::Result<Message> {
        if name.len() >= Header::NAME_SIZE || name.contains('\0') {
            return Err(io::Error::other(format!("{name:?} is no name of a device-mapper device")));
        }
        let mut message = Message(vec![0; size]);
        // Any minor version: the kernel only refuses a larger major one.
        message.set(Header::VERSION, 4);
        message.set(Header::DATA_SIZE, u32::try_from(size).map_err(io::Error::other)?);
        message.set(Header::DATA_START, 312);
        message.set(Header::FLAGS, flags);
        message.0[Header::NAME..Header::NAME + name.len()].copy_from_slice(name.as_bytes());
        Ok(message)
    }

    fn set(&mut self, offset: usize, value: u32) {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn word(&self, offset: usize) -> u32 {
        word(&self.0, offset).unwrap_or_default()
    }

    fn long(&self, offset: usize) -> u64 {
        long(&self.0, offset).unwrap_or_default()
    }

    fn data(&self) -> &[u8] {
        let start = usize::try_from(self.word(Header::DATA_START)).unwrap_or(usize::MAX);
        self.0.get(start..).unwrap_or_default()
    }
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset.checked_add(8)?)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// As the kernel packs it: twelve bits of major number above eight of the minor, the rest of the minor above both.
fn device_number(packed: u64) -> DeviceNumber {
    let packed = u32::try_from(packed & u64::from(u32::MAX)).unwrap_or_default();
    DeviceNumber { major: (packed >> 8) & 0xfff, minor: (packed & 0xff) | ((packed >> 12) & 0xfff00) }
}

/// Each mapping is a header of 40 bytes (start, length, status, offset of the next, kind) and its words.
fn targets(data: &[u8], count: u32) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut position = 0;
    for _ in 0..count {
        let Some(target) = data.get(position..) else { break };
        let (Some(sectors), Some(next), Some(kind), Some(words)) =
            (long(target, 8), word(target, 20), target.get(24..40), target.get(40..))
        else {
            break;
        };
        targets.push(Target { kind: text(kind), sectors, status: text(words) });
        position = usize::try_from(next).unwrap_or(usize::MAX);
    }
    targets
}

/// Each entry: number (8), offset of the next entry from this one (4), the name.
fn names(data: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = data;
    while let (Some(number), Some(next), Some(name)) = (long(rest, 0), word(rest, 8), rest.get(12..)) {
        if number == 0 {
            break;
        }
        names.push(text(name));
        let next = usize::try_from(next).unwrap_or_default();
        if next == 0 {
            break;
        }
        rest = rest.get(next..).unwrap_or_default();
    }
    names
}

/// A count, four bytes of nothing, and so many numbers.
fn numbers(data: &[u8]) -> Vec<DeviceNumber> {
    let count = word(data, 0).and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
    (0..count)
        .map_while(|position| long(data, position.checked_mul(8)?.checked_add(8)?))
        .map(device_number)
        .collect()
}

struct Call<'a> {
    command: u8,
    message: &'a mut Message,
}

// SAFETY: the opcode is that of device-mapper's `_IOWR(0xfd, command, struct dm_ioctl)`, and the pointer leads to a
// buffer that begins with this structure, lives as long as the call, and is not read while the kernel writes it.
#[expect(unsafe_code)]
unsafe impl Ioctl for Call<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::from_components(ioctl::Direction::ReadWrite, 0xfd, self.command, Header::SIZE)
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        self.message.0.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut rustix::ffi::c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn device_numbers_are_unpacked_as_the_kernel_packs_them() {
        assert_eq!(device_number(0xfd03), DeviceNumber { major: 253, minor: 3 });
        assert_eq!(device_number(0x0010_fd2c), DeviceNumber { major: 253, minor: 0x12c });
    }

    proptest! {
        #[test]
        fn whatever_the_kernel_sends_nothing_panics(data in proptest::collection::vec(any::<u8>(), 0..300), count in 0u32..9) {
            let _ = (targets(&data, count), names(&data), numbers(&data));
        }
    }
}
