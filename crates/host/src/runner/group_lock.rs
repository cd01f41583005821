//! LVM's own lock of a volume group: whoever holds it may have devices suspended, and is going to resume them.
//! The kernel tells who that is.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::names::VgName;

/// The lock, held until it is dropped. No LVM command changes the group meanwhile.
#[derive(Debug)]
pub(super) struct GroupLock {
    path: PathBuf,
    file: File,
}

impl GroupLock {
    /// Takes it, unless somebody has it. `directory` is LVM's `global/locking_dir`.
    pub(super) fn try_take(directory: &Path, group: &VgName) -> io::Result<Option<GroupLock>> {
        fs::create_dir_all(directory)?;
        let path = path(directory, group);
        loop {
            let file = File::options().create(true).append(true).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // Whoever gives it back removes the file: what was locked may be nobody's any more.
            if is_at(&file, &path) {
                return Ok(Some(GroupLock { path, file }));
            }
        }
    }
}

impl Drop for GroupLock {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A command that holds the lock.
#[derive(Debug)]
pub struct AtWork {
    /// The number of its process.
    pub pid: u32,
    /// Its words.
    pub program: String,
    ended: OwnedFd,
}

impl AtWork {
    /// The one that has a group's lock for itself.
    pub(super) fn find(directory: &Path, group: &VgName) -> io::Result<Option<AtWork>> {
        let Ok(file) = fs::metadata(path(directory, group)) else { return Ok(None) };
        let Some(pid) = holder(&fs::read_to_string("/proc/locks")?, &file) else { return Ok(None) };
        let (Ok(ended), Ok(words)) =
            (pidfd_open(pid, PidfdFlags::empty()), fs::read(format!("/proc/{pid}/cmdline")))
        else {
            return Ok(None);
        };
        let words = String::from_utf8_lossy(&words).trim_end_matches('\0').replace('\0', " ");
        Ok(Some(AtWork { pid: pid.as_raw_nonzero().get().unsigned_abs(), program: words, ended }))
    }

    /// Waits for its end, however long that takes.
    pub(crate) fn await_end(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.ended, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Who has a file locked for itself, in lines like `1: FLOCK  ADVISORY  WRITE 77 00:1a:1234 0 EOF`; an arrow stands
/// before those who wait.
fn holder(locks: &str, file: &fs::Metadata) -> Option<Pid> {
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", file.ino());
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, "WRITE", pid, at, ..] if at == place => Pid::from_raw(pid.parse().ok()?),
            _ => None,
        }
    })
}

fn path(directory: &Path, group: &VgName) -> PathBuf {
    directory.join(format!("V_{group}"))
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((&file.metadata(), &fs::metadata(path)), (Ok(ours), Ok(there)) if identity(ours) == identity(there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_locked_once_and_its_file_goes_with_the_lock() {
        let directory = std::env::temp_dir().join(format!("lvms-group-lock-{}", std::process::id()));
        let (vg, other) = (VgName::parse("vg").unwrap(), VgName::parse("other").unwrap());
        let held = GroupLock::try_take(&directory, &vg).unwrap();
        assert!(held.is_some());
        assert!(GroupLock::try_take(&directory, &vg).unwrap().is_none());
        let us = AtWork::find(&directory, &vg).unwrap().unwrap();
        assert_eq!(us.pid, std::process::id());
        assert!(us.program.contains("lvms_host"), "{}", us.program);
        assert!(GroupLock::try_take(&directory, &other).unwrap().is_some());
        drop(held);
        assert!(!directory.join("V_vg").exists());
        assert!(AtWork::find(&directory, &vg).unwrap().is_none());
        assert!(GroupLock::try_take(&directory, &vg).unwrap().is_some());
        fs::remove_dir_all(directory).unwrap();
    }
}
