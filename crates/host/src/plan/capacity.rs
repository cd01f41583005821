//! How much can still be had of a class. What is told to others and what is admitted are the same figure.

use super::Refusal;
use crate::desired::{ClassKind, DeviceClass};
use crate::dm::{Pool, PoolState, Raid};
use crate::lvm::inventory::{Disk, Kind};
use crate::lvm::shape::Shape;
use crate::lvm::{Change, Group, Inventory};
use crate::names::{LvName, VolumePath};
use crate::units::{Bytes, Extents};

/// Above this a pool takes no new volumes, in percent.
const MOST_DATA: f64 = 90.0;
const MOST_METADATA: f64 = 80.0;

/// A volume's text in the group's metadata is smaller than this,
const ROOM_FOR_ONE: Bytes = Bytes::kib(4);
/// and that of the two hidden volumes which RAID has on each disk than this.
const ROOM_FOR_IMAGE: Bytes = Bytes::kib(1);

/// The room in a group's metadata that a new volume of this shape needs.
fn room(shape: Shape) -> Bytes {
    let images = if shape.metadata > Extents::ZERO { shape.disks } else { 0 };
    ROOM_FOR_ONE + Bytes(ROOM_FOR_IMAGE.0.saturating_mul(images))
}

/// By how much a change makes the metadata of its group larger, at most.
pub(crate) fn most_text(group: &Group, change: &Change) -> Bytes {
    match change {
        Change::CreateThick { options, .. } => room(Shape::of_options(options)),
        Change::CreateThin { .. } | Change::SnapshotThin { .. } | Change::SnapshotThick { .. } => {
            ROOM_FOR_ONE
        }
        Change::Extend { path, .. } => match group.volumes.get(&path.volume).map(|volume| &volume.kind) {
            Some(Kind::Thick(layout)) => room(Shape::of_layout(layout)),
            _ => ROOM_FOR_ONE,
        },
        // Each has quotes, a comma and a blank around it, and the first comes with the list.
        Change::Tag { add, .. } if !add.is_empty() => {
            Bytes(add.iter().map(|tag| tag.as_str().len() as u64 + 4).sum()) + Bytes(32)
        }
        Change::Tag { .. }
        | Change::Remove { .. }
        | Change::Release { .. }
        | Change::Activate { .. }
        | Change::Refresh { .. }
        | Change::Deactivate { .. } => Bytes::ZERO,
    }
}

/// Whether all disks of a group are there. A change without one of them would mark it as lost.
pub(crate) fn complete(group: &Group) -> Result<(), Refusal> {
    without(group, |disk| disk.missing)
}

/// Refuses if a group has disks that are like this.
pub(crate) fn without(group: &Group, lost: impl Fn(&Disk) -> bool) -> Result<(), Refusal> {
    let disks: Vec<String> = group.disks.iter().filter(|disk| lost(disk)).map(Disk::told).collect();
    if disks.is_empty() { Ok(()) } else { Err(Refusal::DisksMissing { group: group.name.clone(), disks }) }
}

/// What is there, with the state of pools and of RAID.
#[derive(Clone, Copy)]
pub struct Situation<'a> {
    /// Groups and volumes.
    pub inventory: &'a Inventory,
    /// How a pool is; `None` while it is inactive.
    pub pool: &'a dyn Fn(&VolumePath) -> Option<Pool>,
    /// How the images of a RAID volume are; `None` while it is inactive.
    pub raid: &'a dyn Fn(&VolumePath) -> Option<Raid>,
}

impl<'a> Situation<'a> {
    /// The group of a class.
    pub fn group(&self, class: &DeviceClass) -> Result<&'a Group, Refusal> {
        let group = self.inventory.groups.get(&class.group).map(AsRef::as_ref);
        group.ok_or_else(|| Refusal::NoGroup(class.group.clone()))
    }

    /// The size of the largest new volume that the class admits with these options, or why it admits none.
    pub fn largest(&self, class: &DeviceClass, options: &[String]) -> Result<Bytes, Refusal> {
        let shape = if class.pool().is_none() { Shape::of_options(options) } else { Shape::LINEAR };
        let group = self.usable_group(class, room(shape))?;
        match &class.kind {
            ClassKind::Thick => {
                if let Some(option) = Shape::foreign(options) {
                    return Err(Refusal::ForeignType(option));
                }
                let mut largest = shape.largest(group, class.spare.in_extents(group.extent));
                if Shape::is_contiguous(options) {
                    largest = largest.min(shape.largest_of_runs(group));
                }
                Ok(largest.bytes(group.extent))
            }
            ClassKind::Thin { pool, overprovision_ratio } => {
                self.free_in_pool(group, pool, *overprovision_ratio)
            }
        }
    }

    /// By how much a volume of this shape can grow; thin ones share their pool's promise.
    pub fn largest_growth(&self, class: &DeviceClass, shape: Shape) -> Result<Bytes, Refusal> {
        let group = self.usable_group(class, ROOM_FOR_ONE)?;
        match &class.kind {
            ClassKind::Thick => {
                Ok(shape.largest_growth(group, class.spare.in_extents(group.extent)).bytes(group.extent))
            }
            ClassKind::Thin { pool, overprovision_ratio } => {
                self.free_in_pool(group, pool, *overprovision_ratio)
            }
        }
    }

    /// What is there for a store of old blocks: those of snapshots come out of the same extents.
    pub fn largest_store(&self, class: &DeviceClass) -> Result<Extents, Refusal> {
        let group = self.usable_group(class, ROOM_FOR_ONE)?;
        Ok(group.to_be_had().minus(class.spare.in_extents(group.extent)))
    }

    fn usable_group(&self, class: &DeviceClass, room: Bytes) -> Result<&'a Group, Refusal> {
        let group = self.group(class)?;
        complete(group)?;
        if let Some(reason) = group.is_closed() {
            return Err(Refusal::GroupClosed { group: group.name.clone(), reason });
        }
        if group.metadata.1 < room {
            return Err(Refusal::MetadataFull(group.name.clone()));
        }
        Ok(group)
    }

    fn free_in_pool(&self, group: &Group, pool: &LvName, ratio: f64) -> Result<Bytes, Refusal> {
        let path = group.path(pool);
        let volume = group.volumes.get(pool).filter(|volume| volume.is_pool());
        let volume = volume.ok_or_else(|| Refusal::NoPool(path.clone()))?;
        let state = (self.pool)(&path);
        let unusable = |reason| Refusal::PoolUnusable { pool: path.clone(), reason };
        let state = state.ok_or_else(|| unusable("it is inactive: activate it with lvchange -ay"))?;
        match state.state {
            _ if state.needs_check => {
                return Err(unusable(
                    "its metadata needs a check: deactivate it, extend its metadata if that is full, and run lvconvert --repair",
                ));
            }
            PoolState::Good | PoolState::OutOfData => {}
            PoolState::ReadOnly => {
                return Err(unusable(
                    "it can only be read: see dmesg, extend its metadata or run lvconvert --repair",
                ));
            }
            PoolState::Failed => {
                return Err(unusable(
                    "it has failed: see dmesg, and run lvconvert --repair once its disks are well",
                ));
            }
        }
        let (data, metadata) = (state.data.percent(), state.metadata.percent());
        if data > MOST_DATA || metadata > MOST_METADATA {
            return Err(Refusal::PoolFull { pool: path, data, metadata });
        }
        let promised: Bytes = group
            .volumes
            .values()
            .filter(|volume| matches!(&volume.kind, Kind::Thin { pool: other, .. } if other == pool))
            .map(|volume| volume.size)
            .sum();
        // Exact up to 2^53 bytes times the ratio; beyond, a pool of petabytes is off by some bytes.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let promise = Bytes((volume.size.0 as f64 * ratio).floor() as u64);
        Ok(promise.minus(promised).round_down(group.extent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::group;
    use crate::simulated::history::{Class, device_class};

    #[test]
    fn the_more_disks_a_volume_lies_on_the_more_room_it_needs_in_the_metadata() {
        let admits = |options: &[&str], free: u64| {
            let group = Group { metadata: (Bytes::mib(1), Bytes::kib(free)), ..group(&[100; 5]) };
            let inventory = Inventory::of(group);
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
            match situation.largest(&device_class(Class::Linear), &options) {
                Ok(_) => true,
                Err(refusal) => {
                    assert!(matches!(refusal, Refusal::MetadataFull(_)), "{refusal}");
                    false
                }
            }
        };
        for (options, least) in [(&[][..], 4), (&["-i5"], 4), (&["-m1"], 6), (&["--type=raid6", "-i3"], 9)] {
            assert!(admits(options, least) && !admits(options, least - 1), "{options:?}");
        }
    }

    #[test]
    fn what_makes_something_else_than_a_volume_is_refused_before_anything_is_made() {
        let inventory = Inventory::of(group(&[100]));
        let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
        let refused = situation.largest(&device_class(Class::Linear), &["--type=mirror".to_owned()]);
        assert_eq!(refused, Err(Refusal::ForeignType("--type mirror".to_owned())));
        assert!(situation.largest(&device_class(Class::Linear), &["--type=linear".to_owned()]).is_ok());
    }

    #[test]
    fn a_group_that_is_closed_has_room_for_nothing() {
        for (attributes, is_open) in
            [("wz--n-", true), ("w---n-", true), ("rz--n-", false), ("wzx-n-", false)]
        {
            let group = Group { attributes: attributes.to_owned(), ..group(&[100, 100]) };
            let inventory = Inventory::of(group);
            let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
            let class = device_class(Class::Linear);
            let all = [
                situation.largest(&class, &[]).map(drop),
                situation.largest_growth(&class, Shape::LINEAR).map(drop),
                situation.largest_store(&class).map(drop),
            ];
            for answer in all {
                let is_closed = matches!(answer, Err(Refusal::GroupClosed { .. }));
                assert_eq!((answer.is_ok(), is_closed), (is_open, !is_open), "{attributes}");
            }
        }
    }
}
