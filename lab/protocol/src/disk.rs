//! Disks of a guest, faults under them, and ways to cut the power.

use serde::{Deserialize, Serialize};

/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte in bytes.
pub const GIB: u64 = 1 << 30;

/// A disk as the guest shall see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Size in bytes, a multiple of the sector size.
    pub size: u64,
    /// The serial number, by which the guest finds it under `/dev/disk/by-id`. The lab picks one if it is empty.
    #[serde(default)]
    pub serial: String,
    /// Logical sector size: 512 or 4096.
    pub sector: u32,
    /// Whether it says of itself that it has spinning platters.
    pub rotational: bool,
    /// Whether faults can be put under it, and unflushed writes be lost with the power.
    pub faults: bool,
}

impl Disk {
    /// A disk of `size` bytes: sectors of 512 bytes, not rotational, without faults.
    pub fn new(size: u64) -> Disk {
        Disk { size, serial: String::new(), sector: 512, rotational: false, faults: false }
    }

    /// With this serial number.
    pub fn serial(self, serial: &str) -> Disk {
        Disk { serial: serial.to_owned(), ..self }
    }

    /// With sectors of 4096 bytes.
    pub fn sector_4096(self) -> Disk {
        Disk { sector: 4096, ..self }
    }

    /// With spinning platters.
    pub fn rotational(self) -> Disk {
        Disk { rotational: true, ..self }
    }

    /// With faults to be had, and with a write cache that a power cut can lose.
    pub fn with_faults(self) -> Disk {
        Disk { faults: true, ..self }
    }
}

/// The link that udev makes for the disk with this serial number.
pub fn link_by_id(serial: &str) -> String {
    format!("/dev/disk/by-id/scsi-0LVMS_LAB_DISK_{serial}")
}

/// What is wrong with a disk from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Nothing: healed.
    None,
    /// Every read, write and flush fails.
    Error,
    /// Every request takes this much longer.
    Delay {
        /// Milliseconds added to each request.
        milliseconds: u64,
    },
    /// Writes are acknowledged and forgotten.
    DropWrites,
}

/// How the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// The emulator is killed; whatever the guest had handed to a disk is there afterwards.
    Kill,
    /// The emulator is killed, and disks with faults lose what was not flushed.
    LoseUnflushed,
}
