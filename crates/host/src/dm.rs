//! Device-mapper, asked in this process: how full a pool or a snapshot is, how RAID is, who is suspended.
//!
//! lvm2 would be asked the same by a process that takes some ten milliseconds and a lock; this is one system call.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, ioctl, opcode};

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
    pub(crate) fn suspend(&self, name: &str) -> io::Result<()> {
        self.call(DEV_SUSPEND, name, SUSPENDED)?;
        Ok(())
    }

    /// Lets I/O to a suspended device go on.
    pub(crate) fn resume(&self, name: &str) -> io::Result<()> {
        // "Suspend" without the flag that asks for it means resume.
        self.call(DEV_SUSPEND, name, 0)?;
        Ok(())
    }

    /// Throws away mappings that were loaded and are not in force yet.
    pub(crate) fn clear(&self, name: &str) -> io::Result<()> {
        self.call(TABLE_CLEAR, name, 0)?;
        Ok(())
    }

    /// Removes a device that nobody has open.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
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

/// How full something is, in units of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fill {
    /// Taken.
    pub used: u64,
    /// All.
    pub total: u64,
}

impl Fill {
    /// In percent.
    pub fn percent(self) -> f64 {
        if self.total == 0 { 0.0 } else { self.used as f64 * 100.0 / self.total as f64 }
    }

    fn parse(text: &str) -> Option<Fill> {
        let (used, total) = text.split_once('/')?;
        Some(Fill { used: used.parse().ok()?, total: total.parse().ok()? })
    }
}

/// The state of a thin pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// It works.
    Good,
    /// Its data is full: writes that need more wait or fail.
    OutOfData,
    /// It can only be read: its metadata is full or damaged.
    ReadOnly,
    /// It does not work at all.
    Failed,
}

/// What a `thin-pool` target says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Chunks of data.
    pub data: Fill,
    /// Blocks of metadata.
    pub metadata: Fill,
    /// Its state.
    pub state: PoolState,
    /// Whether its metadata must be checked before it is used again.
    pub needs_check: bool,
}

/// What a `snapshot` target says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cow {
    /// Sectors of its store.
    Valid(Fill),
    /// It overflowed or was damaged, and its bytes are lost.
    Invalid,
}

/// What a `raid` target says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raid {
    /// `raid1`, `raid10`, `raid5_ls`, …
    pub level: String,
    /// One letter per image: `A` alive and in sync, `a` alive and not in sync, `D` dead.
    pub health: String,
    /// How much is in sync.
    pub sync: Fill,
    /// `idle`, `resync`, `recover`, …
    pub action: String,
}

impl fmt::Display for Raid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "images {}, {}", self.health, self.action)?;
        if self.is_in_sync() { Ok(()) } else { write!(out, " {:.0} %", self.sync.percent().floor()) }
    }
}

impl Raid {
    /// Whether all images have the same bytes.
    pub fn is_in_sync(&self) -> bool {
        self.sync.used >= self.sync.total
    }

    /// Whether it has lost an image.
    pub fn is_degraded(&self) -> bool {
        self.health.contains('D')
    }

    /// Whether its images are just compared, or made to agree.
    pub fn is_at_work(&self) -> bool {
        self.action != "idle"
    }

    /// Whether it works without these images, and without those that are dead.
    pub fn works_without(&self, lost: &BTreeSet<usize>) -> bool {
        let dead = |(image, health)| health == 'D' || lost.contains(&image);
        let dead: Vec<bool> = self.health.chars().enumerate().map(dead).collect();
        let count = dead.iter().filter(|dead| **dead).count();
        match self.level.as_str() {
            "raid1" => count < dead.len(),
            // As LVM makes it: each image has the one beside it as its copy.
            "raid10" => dead.chunks(2).all(|copies| copies.contains(&false)),
            level if level.starts_with("raid6") => count <= 2,
            level if level.starts_with("raid4") || level.starts_with("raid5") => count <= 1,
            _ => count == 0,
        }
    }
}

impl Target {
    /// The state of a thin pool.
    pub fn pool(&self) -> Option<Pool> {
        if self.kind != "thin-pool" {
            return None;
        }
        let words: Vec<&str> = self.status.split_whitespace().collect();
        if matches!(words.as_slice(), ["Fail" | "Error"]) {
            let none = Fill::default();
            return Some(Pool { data: none, metadata: none, state: PoolState::Failed, needs_check: true });
        }
        let state = match *words.get(4)? {
            "rw" => PoolState::Good,
            "out_of_data_space" => PoolState::OutOfData,
            _ => PoolState::ReadOnly,
        };
        Some(Pool {
            metadata: Fill::parse(words.get(1)?)?,
            data: Fill::parse(words.get(2)?)?,
            state,
            needs_check: words.contains(&"needs_check"),
        })
    }

    /// The state of a copy-on-write snapshot.
    pub fn cow(&self) -> Option<Cow> {
        if self.kind != "snapshot" {
            return None;
        }
        let fill = self.status.split_whitespace().next().and_then(Fill::parse);
        Some(fill.map_or(Cow::Invalid, Cow::Valid))
    }

    /// The state of RAID.
    pub fn raid(&self) -> Option<Raid> {
        if self.kind != "raid" {
            return None;
        }
        let words: Vec<&str> = self.status.split_whitespace().collect();
        Some(Raid {
            level: (*words.first()?).to_owned(),
            health: (*words.get(2)?).to_owned(),
            sync: Fill::parse(words.get(3)?)?,
            action: words.get(4).copied().unwrap_or("idle").to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(kind: &str, status: &str) -> Target {
        Target { kind: kind.into(), sectors: 0, status: status.into() }
    }

    #[test]
    fn a_pool_says_how_full_it_is_and_whether_it_works() {
        let status = "1 12/1024 0/5120 - rw discard_passdown queue_if_no_space - 1024 ";
        let pool = target("thin-pool", status).pool().unwrap();
        assert_eq!(
            (pool.metadata, pool.data),
            (Fill { used: 12, total: 1024 }, Fill { used: 0, total: 5120 })
        );
        assert_eq!((pool.state, pool.needs_check), (PoolState::Good, false));
        let full = "1 12/1024 5120/5120 - out_of_data_space discard_passdown error_if_no_space - 1024 ";
        assert_eq!(target("thin-pool", full).pool().unwrap().state, PoolState::OutOfData);
        let damaged = "1 1024/1024 7/5120 - ro discard_passdown queue_if_no_space needs_check 1024 ";
        let damaged = target("thin-pool", damaged).pool().unwrap();
        assert_eq!((damaged.state, damaged.needs_check), (PoolState::ReadOnly, true));
        assert_eq!(target("thin-pool", "Fail").pool().unwrap().state, PoolState::Failed);
    }

    #[test]
    fn a_snapshot_that_overflowed_is_invalid() {
        assert_eq!(target("snapshot", "16/8192 16").cow(), Some(Cow::Valid(Fill { used: 16, total: 8192 })));
        for status in ["Invalid", "Overflow", "Merge failed"] {
            assert_eq!(target("snapshot", status).cow(), Some(Cow::Invalid));
        }
    }

    #[test]
    fn raid_says_which_images_live() {
        let raid = target("raid", "raid1 2 AD 40960/40960 idle 0 0 -").raid().unwrap();
        assert_eq!((raid.health.as_str(), raid.action.as_str()), ("AD", "idle"));
        assert_eq!((raid.to_string().as_str(), raid.is_at_work()), ("images AD, idle", false));
        let raid = target("raid", "raid1 2 Aa 40959/40960 recover 0 0 -").raid().unwrap();
        assert_eq!((raid.to_string().as_str(), raid.is_in_sync()), ("images Aa, recover 99 %", false));
        assert!(raid.is_at_work());
        assert_eq!(target("linear", "").raid(), None);
    }

    #[test]
    fn raid_works_without_as_many_images_as_its_level_has_to_spare() {
        let works = |status: &str, lost: &[usize]| {
            let raid = target("raid", status).raid().unwrap();
            raid.works_without(&lost.iter().copied().collect())
        };
        assert!(works("raid1 2 AA 8/8 idle 0 0 -", &[0]) && !works("raid1 2 AA 8/8 idle 0 0 -", &[0, 1]));
        assert!(works("raid1 2 DA 8/8 idle 0 0 -", &[0]) && !works("raid1 2 DA 8/8 idle 0 0 -", &[1]));
        assert!(
            works("raid10 4 AAAA 8/8 idle 0 0 -", &[0, 3]) && !works("raid10 4 AAAA 8/8 idle 0 0 -", &[0, 1])
        );
        assert!(
            works("raid5_ls 3 AAA 8/8 idle 0 0 -", &[1]) && !works("raid5_ls 3 ADA 8/8 idle 0 0 -", &[0])
        );
        assert!(
            works("raid6_zr 5 AAAAA 8/8 idle 0 0 -", &[1, 4])
                && !works("raid6_zr 5 DAAAA 8/8 idle 0 0 -", &[1, 4])
        );
        assert!(works("raid0 2 AA 8/8 idle 0 0 -", &[]) && !works("raid0 2 AA 8/8 idle 0 0 -", &[1]));
    }

    #[test]
    fn device_numbers_are_unpacked_as_the_kernel_packs_them() {
        assert_eq!(device_number(0xfd03), DeviceNumber { major: 253, minor: 3 });
        assert_eq!(device_number(0x0010_fd2c), DeviceNumber { major: 253, minor: 0x12c });
    }

    proptest! {
        #[test]
        fn whatever_a_target_says_nothing_panics(status in "\\PC{0,80}", kind in "thin-pool|snapshot|raid") {
            let target = target(&kind, &status);
            let _ = (target.pool(), target.cow(), target.raid());
        }

        #[test]
        fn whatever_the_kernel_sends_nothing_panics(data in proptest::collection::vec(any::<u8>(), 0..300), count in 0u32..9) {
            let _ = (targets(&data, count), names(&data), numbers(&data));
        }
    }
}
