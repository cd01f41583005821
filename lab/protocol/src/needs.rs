//! What a test needs from the lab, said in the test's own code and read by the lab before it boots a guest.

use serde::{Deserialize, Serialize};

use crate::disk::Disk;

/// How the guest is set up. Tests with equal surroundings share a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Surroundings {
    /// Whether systemd-udevd runs; without it LVM makes its own device nodes.
    pub udev: bool,
    /// Whether dmeventd runs.
    pub dmeventd: bool,
    /// Whether LVM uses a devices file.
    pub devices_file: bool,
}

impl Default for Surroundings {
    fn default() -> Surroundings {
        Surroundings { udev: true, dmeventd: false, devices_file: false }
    }
}

/// What one test needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Needs {
    /// Fresh disks, in this order.
    pub disks: Vec<Disk>,
    /// How the guest is set up.
    pub surroundings: Surroundings,
    /// Whether disks are plugged in or pulled out during the test.
    pub hotplug: bool,
    /// Whether the test cuts the power. It then has a guest of its own.
    pub power_cut: bool,
    /// Whether the test is about the guest itself, or about what its udev does.
    pub guest: bool,
    /// Whether it is left out unless all tests are asked for.
    pub rare: bool,
}

impl Needs {
    /// No disk at all.
    pub fn nothing() -> Needs {
        Needs::default()
    }

    /// `count` disks of `size` bytes.
    pub fn disks(count: usize, size: u64) -> Needs {
        Needs { disks: vec![Disk::new(size); count], ..Needs::default() }
    }

    /// One more disk.
    pub fn disk(mut self, disk: Disk) -> Needs {
        self.disks.push(disk);
        self
    }

    /// Faults can be put under every disk.
    pub fn faults(mut self) -> Needs {
        for disk in &mut self.disks {
            disk.faults = true;
        }
        self
    }

    /// Disks come and go.
    pub fn hotplug(self) -> Needs {
        Needs { hotplug: true, ..self }
    }

    /// The power is cut.
    pub fn power_cut(self) -> Needs {
        Needs { power_cut: true, ..self }
    }

    /// It is about the guest itself, or about what its udev does.
    pub fn guest(self) -> Needs {
        Needs { guest: true, ..self }
    }

    /// It takes long and shows once more what others show: it runs only when all are asked for.
    pub fn rarely(self) -> Needs {
        Needs { rare: true, ..self }
    }

    /// No systemd-udevd in the guest.
    pub fn without_udev(mut self) -> Needs {
        self.surroundings.udev = false;
        self
    }

    /// dmeventd runs in the guest.
    pub fn dmeventd(mut self) -> Needs {
        self.surroundings.dmeventd = true;
        self
    }

    /// LVM in the guest uses a devices file.
    pub fn devices_file(mut self) -> Needs {
        self.surroundings.devices_file = true;
        self
    }

    /// Whether only a guest will do, even where this machine's own kernel may be used.
    pub fn only_a_guest_will_do(&self) -> bool {
        self.guest
            || self.hotplug
            || self.power_cut
            || self.surroundings != Surroundings::default()
            || self.disks.iter().any(|disk| *disk != Disk::new(disk.size))
    }
}

/// One test as its binary lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its name, a sentence with underscores.
    pub name: String,
    /// What it needs.
    pub needs: Needs,
}

/// How one run of one test begins: passed to the test binary as a JSON argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Which test.
    pub name: String,
    /// The disks' serial numbers, in the order of [`Needs::disks`].
    pub serials: Vec<String>,
    /// Paths of the disks; empty in a guest, where the serials tell.
    pub paths: Vec<String>,
    /// How often the guest was booted again since the test began.
    pub boots: u32,
    /// Where the lab listens for [`crate::control`], if it does.
    pub control: Option<String>,
    /// A directory that outlives a power cut, and is empty when the test begins.
    pub state: String,
}
