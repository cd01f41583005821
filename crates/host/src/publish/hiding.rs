//! What is visible at a path is hidden again.

use std::path::Path;

use super::{PublishError, seen, system};
use crate::lvm::inventory::DeviceNumber;
use crate::mount::Mount;
use crate::names::VolumePath;
use crate::runner::{Linux, is_not_mounted};
use crate::volumes::Volumes;

/// Where older TopoLVM made device nodes.
const LEGACY_DEVICES: &str = "/dev/topolvm";

impl Volumes<Linux> {
    /// Hides a volume that is at a path. Nothing there is as good; what is another's stays. Needs neither the volume nor
    /// LVM, and does not touch what is mounted: a dead disk answers nothing.
    pub fn unpublish(&self, volume: &str, target: &Path) -> Result<(), PublishError> {
        let linux = self.runner();
        let is_not_its_own = |found| PublishError::Occupied { target: target.to_owned(), found };
        let mut tried = None;
        loop {
            let mounts = linux.mounts().map_err(system("listing mounts for", target))?;
            let Some(topmost) = seen(linux, &mounts, target)? else { break };
            if let Some(found) = another_mount(volume, topmost) {
                return Err(is_not_its_own(found));
            }
            match linux.unmount(target) {
                // Somebody else may have been quicker, but not twice.
                Err(error) if !is_not_mounted(&error) || tried == Some(topmost.id) => {
                    return Err(system("unmounting", target)(error));
                }
                _ => tried = Some(topmost.id),
            }
        }
        if let Some(number) = linux.node_at(target)
            && let Some(found) = another_device(volume, number)
            && !is_left_behind(linux, target, number)?
        {
            return Err(is_not_its_own(found));
        }
        linux.remove_target(target).map_err(system("removing", target))?;
        let legacy = Path::new(LEGACY_DEVICES).join(volume);
        if legacy.parent() == Some(Path::new(LEGACY_DEVICES)) && linux.node_at(&legacy).is_some() {
            linux.remove_target(&legacy).map_err(system("removing", &legacy))?;
        }
        Ok(())
    }
}

/// Whether a device node is one that an older TopoLVM made: device-mapper deals its numbers anew at each boot, and by now
/// another's device may have this one. Not where the kernel has its own nodes.
fn is_left_behind(linux: &Linux, target: &Path, number: DeviceNumber) -> Result<bool, PublishError> {
    let (mounts, at) = (linux.mounts(), linux.mount_of(target).map_err(system("looking at", target))?);
    let mounts = mounts.map_err(system("listing mounts for", target))?;
    let is_the_kernels = mounts.iter().any(|mount| Some(mount.id) == at && mount.filesystem == "devtmpfs");
    Ok(number.mapper_name().is_some() && !is_the_kernels)
}

/// Whether a device node that is no mount was left by an older TopoLVM before a boot, and shows nobody anything.
pub(super) fn is_stale(linux: &Linux, target: &Path, number: DeviceNumber) -> Result<bool, PublishError> {
    Ok(!number.exists() || is_left_behind(linux, target, number)?)
}

/// What is mounted, if it is certain that it is not this volume.
fn another_mount(volume: &str, mounted: &Mount) -> Option<String> {
    if mounted.device.major > 0 {
        return another_device(volume, mounted.device);
    }
    let told = || format!("{} ({})", mounted.source, mounted.filesystem);
    match mounted.filesystem.as_str() {
        // A device node whose device cannot be asked for.
        "devtmpfs" if mounted.root != Path::new("/") => None,
        // Known by its device, whose node is not there any more.
        "btrfs" => {
            let name = Path::new(&mounted.source).file_name()?.to_str()?;
            (name != volume && !is_of(volume, name)).then(told)
        }
        _ => Some(told()),
    }
}

/// What a device is, if it is certain that it is not this volume's. Of one that is gone nothing is known.
fn another_device(volume: &str, number: DeviceNumber) -> Option<String> {
    match number.mapper_name() {
        Some(name) => (!is_of(volume, &name)).then_some(name),
        None => number.exists().then(|| format!("device {}:{}", number.major, number.minor)),
    }
}

/// Whether device-mapper's name is a volume's of this name, in whichever group.
fn is_of(volume: &str, name: &str) -> bool {
    VolumePath::of_mapper_name(name).is_some_and(|path| path.volume.as_str() == volume)
}
