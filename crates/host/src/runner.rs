//! The one place from which the host is changed: processes, mounts, devices.
//!
//! [`Runner`] is what the engine for volumes needs of a host. [`Linux`] is this host; [`crate::simulated`] is one made
//! of numbers, on which thousands of histories run without a disk. A test reads the sources of this crate and fails if
//! an effect happens elsewhere.

mod archive;
mod attach;
mod claim;
mod crash;
mod device;
mod following;
mod group_lock;
mod linux;
mod memory;
mod mounts;
mod process;
mod reading;
mod shield;
mod spawn;
mod surroundings;

use std::io;
use std::path::PathBuf;

use crate::dm::{Cow, Pool, Raid};
use crate::lvm::metadata::Version;
use crate::lvm::{Change, Failure, Inventory};
use crate::names::{VgName, VolumePath};
use crate::units::Bytes;

pub use claim::Claim;
pub use following::Following;
pub use group_lock::AtWork;
pub use linux::{Linux, Options};
pub use memory::share_one_heap;
pub(crate) use mounts::is_not_mounted;
pub use mounts::{Amounts, ProbeError, Usage};
#[cfg(test)]
pub(crate) use process::Processes;
pub use process::{Finished, Intent, ProcessError, Program};

/// How far a long work has come: bytes done, of all.
pub type Progress<'a> = &'a (dyn Fn(Bytes, Bytes) + Sync);

/// How the device of a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceState {
    /// There is none: the volume is inactive.
    Absent,
    /// It leads to a disk that is gone, though that may be back as another device.
    Orphaned,
    /// It can be used.
    Ready,
}

/// By whom a volume is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nobody has its device open, or may at any time.
    None,
    /// A filesystem on it is mounted.
    Mounted,
    /// Somebody has its device open, or may: it is published.
    Open,
}

/// A host on which volumes can be made.
pub trait Runner: Send + Sync + 'static {
    /// What is there: all groups, or one of them.
    fn inventory(&self, group: Option<&VgName>) -> Result<Inventory, Failure>;

    /// The sequence number of a group as it is on disk now, and which text has it; `None` if it cannot be seen without
    /// asking LVM.
    fn sequence_number(&self, group: &crate::lvm::Group) -> Option<Version>;

    /// The identities of a group's disks that are gone or cannot be read.
    fn unreadable(&self, group: &crate::lvm::Group) -> Vec<String>;

    /// Disks of a group that were asked for its sequence number and do not answer.
    fn silent(&self, group: &crate::lvm::Group) -> Vec<String>;

    /// Makes one change.
    fn change(&self, change: &Change) -> Result<(), Failure>;

    /// Makes sure that the disks of a group keep what they were given: lvm2 writes its metadata and does not ask for it.
    fn keep(&self, group: &crate::lvm::Group) -> io::Result<()>;

    /// How a thin pool is; `None` while it is inactive.
    fn pool(&self, pool: &VolumePath) -> io::Result<Option<Pool>>;

    /// How a copy-on-write snapshot is; `None` while it is inactive.
    fn cow(&self, snapshot: &VolumePath) -> io::Result<Option<Cow>>;

    /// How the images of a RAID volume are; `None` while it is inactive.
    fn raid(&self, volume: &VolumePath) -> io::Result<Option<Raid>>;

    /// How the device of a volume is. LVM does not tell of it in the group's metadata.
    fn device_state(&self, volume: &VolumePath) -> io::Result<DeviceState>;

    /// By whom a volume is used.
    fn used(&self, volume: &VolumePath) -> io::Result<Use>;

    /// Where a volume is published. LVM does not see that a device node is bound somewhere: nobody may have it open.
    fn published(&self, volume: &VolumePath) -> io::Result<Option<PathBuf>>;

    /// Suspended devices of a group.
    fn suspended(&self, group: &VgName) -> io::Result<Vec<String>>;

    /// The command that changes a group now, whoever started it.
    fn at_work(&self, group: &VgName) -> io::Result<Option<AtWork>>;

    /// Lets suspended devices of a group go on as they had been, and returns the volumes to be refreshed; none while an LVM
    /// command works in the group, whoever started it: what it suspends it resumes.
    fn recover(&self, group: &VgName) -> io::Result<Vec<VolumePath>>;

    /// Writes zeros from one place of an active volume to another.
    fn zero(&self, volume: &VolumePath, from: Bytes, to: Bytes, progress: Progress<'_>) -> io::Result<()>;

    /// Copies the first bytes of one active volume to another. Zeros are written only where `dirty` says that the
    /// target may hold something else.
    fn copy(
        &self,
        from: &VolumePath,
        to: &VolumePath,
        length: Bytes,
        dirty: bool,
        progress: Progress<'_>,
    ) -> io::Result<()>;
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// What changes a host. Written so that this file does not name them.
    fn effects() -> Vec<String> {
        let calls = [
            "Command::new",
            "mount::mount",
            "mount::unmount",
            "mount_bind",
            "mount_remount",
            "move_mount",
            "fallocate",
        ];
        calls
            .iter()
            .map(|call| format!("{call}("))
            .chain(
                ["ioctl(", "suspend_device(", "resume_device(", "clear_table(", "remove_device("]
                    .map(str::to_owned),
            )
            // Whoever imports them calls them by other names.
            .chain(
                ["rustix::mount", "libc::syscall", "libc::mount", "libc::umount", "kill_process"]
                    .map(str::to_owned),
            )
            .collect()
    }

    fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// The sources of all that runs on a host.
    fn all_sources() -> Vec<PathBuf> {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = Vec::new();
        for entry in fs::read_dir(crates).unwrap() {
            sources(&entry.unwrap().path().join("src"), &mut files);
        }
        files
    }

    /// Without its tests. What else is for tests alone may stand anywhere, and more that is not behind it.
    fn code(path: &Path) -> String {
        fs::read_to_string(path).unwrap().split("#[cfg(test)]\nmod tests").next().unwrap().to_owned()
    }

    #[test]
    fn nothing_shrinks_and_nothing_is_repaired_without_a_persons_request() {
        let never = [
            "lvresize",
            "lvreduce",
            "vgreduce",
            "vgck",
            "vgimportclone",
            "lvconvert",
            "vgcfgrestore",
            "pvresize",
        ];
        let codes: Vec<String> = all_sources().iter().map(|path| code(path)).collect();
        for command in never {
            let word = format!("\"{command}\"");
            assert!(!codes.iter().any(|code| code.contains(&word)), "{command} is run somewhere");
        }
        assert!(codes.iter().any(|code| code.contains("\"lvextend\"")), "the search finds nothing");
    }

    #[test]
    fn the_host_is_changed_from_one_place_only() {
        let files = all_sources();
        let one_place = |path: &&PathBuf| !path.to_string_lossy().contains("host/src/runner");
        let (mut seen, effects) = (0, effects());
        for path in files.iter().filter(one_place) {
            let code = code(path);
            seen += 1;
            let may = |effect: &str| match effect {
                // Device-mapper is asked by ioctl; what changes a device by it is defined there, and called nowhere else.
                "ioctl(" | "suspend_device(" | "resume_device(" | "clear_table(" | "remove_device(" => {
                    path.ends_with("host/src/dm.rs")
                }
                // A build for tests ends itself.
                "kill_process" => path.ends_with("cluster/src/crash.rs"),
                _ => false,
            };
            for effect in effects.iter().filter(|effect| !may(effect)) {
                assert!(!code.contains(effect), "{} has {effect}", path.display());
            }
        }
        assert!(seen > 5, "only {seen} files were read");
        let runner =
            files.iter().filter(|path| !one_place(path)).map(|path| fs::read_to_string(path).unwrap());
        assert!(runner.collect::<String>().contains("Command::new("), "the search finds nothing");
    }
}
