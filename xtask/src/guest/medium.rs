//! A disk of the lab: what it looks like, and where its bytes are.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use lab_protocol::disk::{Cut, Disk, Fault};

use super::store::Store;

/// A disk of the lab. It outlives the guests it is plugged into, and can be in several at a time.
pub(crate) struct Medium {
    /// What it looks like; the serial number is set.
    pub(crate) disk: Disk,
    pub(crate) store: Store,
    path: PathBuf,
}

impl Medium {
    /// A blank disk.
    pub(crate) fn create(directory: &Path, mut disk: Disk) -> Result<Medium> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        if disk.serial.is_empty() {
            disk.serial = format!("lab{number:04}");
        }
        if disk.serial.len() > 20
            || !disk.serial.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            bail!("{:?} is no serial number: use up to 20 letters, digits and hyphens", disk.serial);
        }
        if ![512, 4096].contains(&disk.sector)
            || !disk.size.is_multiple_of(disk.sector.into())
            || disk.size == 0
        {
            bail!(
                "a disk of {} bytes with sectors of {}: use 512 or 4096, and whole sectors",
                disk.size,
                disk.sector
            );
        }
        let path = directory.join(format!("disk-{number}.img"));
        let file = File::options().create_new(true).read(true).write(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        file.set_len(disk.size)?;
        let store = Store::new(file, disk.faults)?;
        Ok(Medium { disk, store, path })
    }

    /// From now on this is wrong with the disk, for this guest.
    pub(crate) fn set_fault(&self, guest: &str, fault: Fault) -> Result<()> {
        if !self.disk.faults {
            bail!("disk {} cannot be broken: ask for a disk with faults", self.disk.serial);
        }
        self.store.set_fault(guest, fault);
        Ok(())
    }

    /// What happens to the disk when a guest's power goes.
    pub(crate) fn after(&self, cut: Cut, guest: &str) -> Result<()> {
        match cut {
            Cut::LoseUnflushed => self.store.lose_unflushed(guest),
            Cut::Kill => self.store.keep_unflushed(guest)?,
        }
        Ok(())
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_protocol::disk::MIB;

    #[test]
    fn a_wrong_disk_is_refused_with_what_to_do() {
        let refuse = |disk: Disk| Medium::create(&std::env::temp_dir(), disk).err().unwrap().to_string();
        assert!(refuse(Disk::new(MIB).serial("a b")).contains("letters, digits and hyphens"));
        assert!(refuse(Disk::new(MIB).serial("123456789012345678901")).contains("up to 20"));
        assert!(refuse(Disk::new(1000)).contains("whole sectors"));
        assert!(refuse(Disk { sector: 1024, ..Disk::new(MIB) }).contains("512 or 4096"));
    }
}
