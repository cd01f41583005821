//! What lies beneath a device: a disk that was pulled out and put back is another device, to which nothing leads yet.

use std::collections::BTreeSet;
use std::io;

use super::Linux;
use super::told::{BENEATH_SNAPSHOTS, at_layer};
use crate::dm::{Control, Target};
use crate::lvm::inventory::DeviceNumber;
use crate::names::VolumePath;

impl Linux {
    /// Whether a device leads to a disk that is gone, and cannot do without it.
    pub(crate) fn is_orphaned(&self, name: &str) -> io::Result<bool> {
        is_orphaned(&self.control()?, name)
    }

    /// Whether an image of a RAID volume leads to a disk that is gone.
    pub(crate) fn has_lost_images(&self, volume: &VolumePath) -> io::Result<bool> {
        let control = self.control()?;
        let raid = at_layer(&control, volume, BENEATH_SNAPSHOTS)?;
        Ok(!lost(&control, &raid)?.is_empty())
    }
}

fn is_orphaned(control: &Control, name: &str) -> io::Result<bool> {
    let lost = lost(control, name)?;
    if lost.is_empty() {
        return Ok(false);
    }
    let raid = control.targets(name, "raid")?.iter().find_map(Target::raid);
    let images: Option<BTreeSet<usize>> = lost.iter().map(|name| image(name.as_deref()?)).collect();
    Ok(!raid.zip(images).is_some_and(|(raid, images)| raid.works_without(&images)))
}

/// Devices right beneath one that are gone or orphaned, by their names, which those that are gone do not have.
fn lost(control: &Control, name: &str) -> io::Result<Vec<Option<String>>> {
    let mut lost = Vec::new();
    for number in control.beneath(name)? {
        if leads_nowhere(control, number)? {
            lost.push(number.mapper_name());
        }
    }
    Ok(lost)
}

fn leads_nowhere(control: &Control, number: DeviceNumber) -> io::Result<bool> {
    match number.mapper_name() {
        Some(name) => is_orphaned(control, &name),
        None => Ok(!number.exists()),
    }
}

/// Which image of RAID a device belongs to.
fn image(name: &str) -> Option<usize> {
    let (part, number) = name.rsplit_once('_')?;
    let is_part = part.ends_with("_rimage") || part.ends_with("_rmeta");
    number.parse().ok().filter(|_| is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_known_by_their_names() {
        assert_eq!(image("my--vg-a--b_rimage_0"), Some(0));
        assert_eq!(image("vg-r_rmeta_11"), Some(11));
        for other in ["vg-r", "vg-r_3", "vg-r_rimage_", "vg-pool_tdata"] {
            assert_eq!(image(other), None, "{other}");
        }
    }
}
