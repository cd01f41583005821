//! LVM's own lock of a volume group: whoever holds it may have devices suspended, and is going to resume them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

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
        let path = directory.join(format!("V_{group}"));
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
        assert!(GroupLock::try_take(&directory, &other).unwrap().is_some());
        drop(held);
        assert!(!directory.join("V_vg").exists());
        assert!(GroupLock::try_take(&directory, &vg).unwrap().is_some());
        fs::remove_dir_all(directory).unwrap();
    }
}
