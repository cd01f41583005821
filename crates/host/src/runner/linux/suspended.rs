//! Devices that a command has suspended and did not resume, and one that we suspend ourselves for a moment.

use std::collections::BTreeSet;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Linux;
use crate::dm::Device;
use crate::names::{LvName, VgName, VolumePath};
use crate::runner::crash;
use crate::runner::group_lock::GroupLock;

/// How long somebody else's command is awaited before a device is suspended.
const PATIENCE: Duration = Duration::from_secs(10);

impl Linux {
    /// Writes out the filesystem on a volume and empties its journal, by what LVM does before a snapshot: its device is
    /// suspended, and goes on at once. If this process is killed between, the next one lets it go on.
    pub(crate) fn write_out(&self, volume: &VolumePath) -> io::Result<()> {
        let (directory, deadline) = (self.locking_directory(), Instant::now() + PATIENCE);
        let _alone = loop {
            match self.on_host(|| GroupLock::try_take(&directory, &volume.group))?? {
                Some(alone) => break alone,
                None if Instant::now() > deadline => {
                    return Err(io::Error::other("an LVM command works in the group"));
                }
                None => sleep(Duration::from_millis(50)),
            }
        };
        let (control, name) = (self.control()?, volume.mapper_name());
        tracing::info!(volume = %volume, "suspends its device for a moment");
        crash::point("suspend", "before");
        control.suspend_device(&name)?;
        crash::point("suspend", "after");
        let resumed = control.resume_device(&name);
        crash::point("resume", "after");
        resumed
    }

    pub(super) fn suspended_devices(&self, group: &VgName) -> io::Result<Vec<String>> {
        let devices = self.devices_of(group)?.into_iter();
        let mut suspended: Vec<String> =
            devices.filter(|(_, device)| device.suspended).map(|(name, _)| name).collect();
        suspended.sort_by_key(|name| std::cmp::Reverse(depth(name)));
        Ok(suspended)
    }

    /// Whether a command that was killed has left something that keeps others waiting or in the way.
    fn is_interrupted(&self, group: &VgName) -> io::Result<bool> {
        let devices = self.devices_of(group)?;
        Ok(devices.iter().any(|(name, device)| device.suspended || is_left_over(name, device)))
    }

    /// Those that LVM made: others may have such a name, too.
    fn devices_of(&self, group: &VgName) -> io::Result<Vec<(String, Device)>> {
        let (control, prefix) = (self.control()?, prefix(group));
        let mut devices = Vec::new();
        for name in control.names()? {
            // Between a group and a volume stands one dash; two belong to the group's name.
            if name.strip_prefix(&prefix).is_none_or(|rest| rest.starts_with('-')) {
                continue;
            }
            if let Some(device) = control.device(&name)?.filter(|device| device.uuid.starts_with("LVM-")) {
                devices.push((name, device));
            }
        }
        Ok(devices)
    }

    /// They go on, and what was left over goes, unless somebody else's command is at work in the group.
    pub(super) fn resume_suspended(&self, group: &VgName) -> io::Result<Vec<VolumePath>> {
        if !self.is_interrupted(group)? {
            return Ok(Vec::new());
        }
        let directory = self.locking_directory();
        let Some(_alone) = self.on_host(|| GroupLock::try_take(&directory, group))?? else {
            tracing::info!(group = %group, "an LVM command works in the group: what it has begun is left to it");
            return Ok(Vec::new());
        };
        let control = self.control()?;
        let suspended = self.suspended_devices(group)?;
        // What was to come is thrown away, and with it what nobody needs then.
        let mut devices: Vec<String> = self.devices_of(group)?.into_iter().map(|(name, _)| name).collect();
        devices.sort_by_key(|name| depth(name));
        for name in &devices {
            mend(name, "clear", || control.clear_table(name));
        }
        // One device that cannot be mended does not hold the others up.
        let now = |name: &str| control.device(name).ok().flatten();
        for name in &devices {
            if now(name).is_some_and(|device| is_left_over(name, &device)) {
                tracing::warn!(device = name, "a device that was left over is removed");
                mend(name, "remove", || control.remove_device(name));
            }
        }
        for name in &suspended {
            if now(name).is_some_and(|device| device.suspended && device.has_targets) {
                tracing::warn!(device = name, "a suspended device goes on");
                mend(name, "resume", || control.resume_device(name));
            }
        }
        let volumes: BTreeSet<LvName> =
            suspended.iter().filter_map(|name| LvName::parse(&volume_of(group, name)?).ok()).collect();
        Ok(volumes.into_iter().map(|volume| VolumePath { group: group.clone(), volume }).collect())
    }
}

fn mend(device: &str, what: &'static str, act: impl FnOnce() -> io::Result<()>) {
    crash::point(what, "before");
    if let Err(error) = act() {
        tracing::error!(device, what, %error, "what a killed command has left cannot be mended");
    }
    crash::point(what, "after");
}

/// Whether a device was never finished, or is the part of a snapshot on which nothing lies: LVM would not find it.
fn is_left_over(name: &str, device: &Device) -> bool {
    let is_part = matches!(layer(name).as_deref(), Some("cow" | "real"));
    !device.has_targets || (is_part && device.open == 0)
}

/// What a device-mapper name begins with, for all devices of a group.
fn prefix(group: &VgName) -> String {
    format!("{}-", group.as_str().replace('-', "--"))
}

/// The volume to which a device of a group belongs, without the layers beneath it.
fn volume_of(group: &VgName, device: &str) -> Option<String> {
    // One dash divides, two are one of a name.
    let name = device.strip_prefix(&prefix(group))?.replace("--", "\0");
    let name = name.split('-').next()?.replace('\0', "-");
    let parts = ["_tdata", "_tmeta", "_rimage_", "_rmeta_"];
    let end = parts.iter().filter_map(|part| name.find(part)).min().unwrap_or(name.len());
    Some(name[..end].to_owned())
}

/// Which layer of its volume a device is, if it is not the volume itself: what stands after a second dash of its own.
fn layer(device: &str) -> Option<String> {
    device.replace("--", "\0").split('-').nth(2).map(str::to_owned)
}

/// How deep a device lies beneath what people use: whoever resumes a pool reads from its parts.
fn depth(name: &str) -> u8 {
    let parts = ["_tdata", "_tmeta", "_rimage_", "_rmeta_"];
    match layer(name).as_deref() {
        Some("cow" | "real") => 2,
        _ if parts.iter().any(|part| name.contains(part)) => 2,
        Some("tpool") => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lvm::inventory::DeviceNumber;

    #[test]
    fn a_device_is_known_by_its_volume_whatever_layer_it_is() {
        let group = VgName::parse("my-vg").unwrap();
        for (device, volume) in [
            ("my--vg-a", Some("a")),
            ("my--vg-a--b-real", Some("a-b")),
            ("my--vg-a--b-cow", Some("a-b")),
            ("my--vg-pool-tpool", Some("pool")),
            ("my--vg-pool_tmeta", Some("pool")),
            ("my--vg-r_rimage_0", Some("r")),
            ("other-a", None),
        ] {
            assert_eq!(volume_of(&group, device).as_deref(), volume, "{device}");
        }
    }

    #[test]
    fn a_volume_with_the_name_of_a_layer_is_nothing_left_over() {
        let idle = |name| {
            let number = DeviceNumber { major: 253, minor: 0 };
            let uuid = String::new();
            is_left_over(name, &Device { number, uuid, open: 0, suspended: false, has_targets: true })
        };
        for layer in ["vg-a-real", "vg-a-cow", "my--vg-a--b-real", "vg--real-a-cow", "vg-a---cow"] {
            assert!(idle(layer), "{layer}");
        }
        for volume in ["vg-a", "vg-x--real", "vg-x--cow", "vg-a--b--cow", "vg--a-real", "vg-pool-tpool"] {
            assert!(!idle(volume), "{volume}");
        }
        assert_eq!(["vg-x--real", "vg-x-real", "vg-p-tpool", "vg-p_tmeta"].map(depth), [0, 2, 1, 2]);
    }
}
