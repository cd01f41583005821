//! What a disk's bytes are kept on: a sparse file, with a server before it if it shall be breakable.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use lab_protocol::disk::{Cut, Disk, Fault};
use serde_json::{Value, json};

use super::nbd::Server;

/// A disk of the lab. It outlives the guests it is plugged into, and can be in several at a time.
pub(crate) struct Medium {
    /// What it looks like; the serial number is set.
    pub(crate) disk: Disk,
    path: PathBuf,
    socket: PathBuf,
    server: Option<Server>,
}

impl Medium {
    /// A blank disk. `directory` is relative, so that the socket's path is short wherever the checkout lies.
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
        let socket = directory.join(format!("disk-{number}.sock"));
        let file = File::options().create_new(true).read(true).write(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        file.set_len(disk.size)?;
        let server = if disk.faults { Some(Server::start(file, &socket)?) } else { None };
        Ok(Medium { disk, path, socket, server })
    }

    /// From now on this is wrong with the disk, for this guest.
    pub(crate) fn set_fault(&self, guest: &str, fault: Fault) -> Result<()> {
        let Some(server) = &self.server else {
            bail!("disk {} cannot be broken: ask for a disk with faults", self.disk.serial)
        };
        server.set_fault(guest, fault);
        Ok(())
    }

    /// What happens to the disk when a guest's power goes.
    pub(crate) fn after(&self, cut: Cut, guest: &str) -> Result<()> {
        match (&self.server, cut) {
            (Some(server), Cut::LoseUnflushed) => server.lose_unflushed(guest),
            (Some(server), Cut::Kill) => server.keep_unflushed(guest)?,
            (None, Cut::Kill | Cut::LoseUnflushed) => {}
        }
        Ok(())
    }

    /// QEMU's side of it.
    pub(crate) fn blockdev(&self, node: &str, guest: &str) -> Value {
        match self.server {
            Some(_) => json!({
                "driver": "nbd", "node-name": node, "export": guest, "discard": "unmap",
                "server": {"type": "unix", "path": self.socket},
            }),
            None => json!({
                "driver": "raw", "node-name": node, "discard": "unmap",
                "file": {"driver": "file", "filename": self.path, "locking": "off", "discard": "unmap"},
            }),
        }
    }

    /// The guest's side of it.
    pub(crate) fn device(&self, node: &str) -> Value {
        json!({
            "driver": "scsi-hd", "bus": "scsi.0", "id": format!("{node}-device"), "drive": node,
            "serial": self.disk.serial, "device_id": self.disk.serial, "share-rw": true, "write-cache": "on",
            "logical_block_size": self.disk.sector, "physical_block_size": 4096,
            "rotation_rate": if self.disk.rotational { 7200 } else { 1 },
        })
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.socket);
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
