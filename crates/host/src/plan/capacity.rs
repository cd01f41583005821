//! How much can still be had of a class. What is told to others and what is admitted are the same figure.

use super::Refusal;
use crate::desired::{ClassKind, DeviceClass};
use crate::dm::{Pool, PoolState};
use crate::lvm::inventory::{Disk, Kind};
use crate::lvm::shape::Shape;
use crate::lvm::{Group, Inventory};
use crate::names::{LvName, VolumePath};
use crate::units::{Bytes, Extents};

/// Above this a pool takes no new volumes, in percent.
const MOST_DATA: f64 = 90.0;
const MOST_METADATA: f64 = 80.0;

/// A volume's text in the group's metadata is smaller than this.
const ROOM_FOR_ONE: Bytes = Bytes::kib(4);

/// Whether all disks of a group are there. A change without one of them would mark it as lost.
pub(crate) fn complete(group: &Group) -> Result<(), Refusal> {
    without(group, |disk| disk.missing)
}

/// Refuses if a group has disks that are like this.
pub(crate) fn without(group: &Group, lost: impl Fn(&Disk) -> bool) -> Result<(), Refusal> {
    let disks: Vec<String> = group.disks.iter().filter(|disk| lost(disk)).map(Disk::told).collect();
    if disks.is_empty() { Ok(()) } else { Err(Refusal::DisksMissing { group: group.name.clone(), disks }) }
}

/// What is there, with the state of pools.
#[derive(Clone, Copy)]
pub struct Situation<'a> {
    /// Groups and volumes.
    pub inventory: &'a Inventory,
    /// How a pool is; `None` while it is inactive.
    pub pool: &'a dyn Fn(&VolumePath) -> Option<Pool>,
}

impl<'a> Situation<'a> {
    /// The group of a class.
    pub fn group(&self, class: &DeviceClass) -> Result<&'a Group, Refusal> {
        let group = self.inventory.groups.get(&class.group).map(AsRef::as_ref);
        group.ok_or_else(|| Refusal::NoGroup(class.group.clone()))
    }

    /// The size of the largest new volume that the class admits with these options, or why it admits none.
    pub fn largest(&self, class: &DeviceClass, options: &[String]) -> Result<Bytes, Refusal> {
        let group = self.usable_group(class)?;
        match &class.kind {
            ClassKind::Thick => {
                let shape = Shape::of_options(options);
                Ok(shape.largest(group, class.spare.in_extents(group.extent)).bytes(group.extent))
            }
            ClassKind::Thin { pool, overprovision_ratio } => {
                self.free_in_pool(group, pool, *overprovision_ratio)
            }
        }
    }

    /// By how much a volume of this shape can grow; thin ones share their pool's promise.
    pub fn largest_growth(&self, class: &DeviceClass, shape: Shape) -> Result<Bytes, Refusal> {
        let group = self.usable_group(class)?;
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
        let group = self.usable_group(class)?;
        Ok(group.to_be_had().minus(class.spare.in_extents(group.extent)))
    }

    fn usable_group(&self, class: &DeviceClass) -> Result<&'a Group, Refusal> {
        let group = self.group(class)?;
        complete(group)?;
        if let Some(reason) = group.is_closed() {
            return Err(Refusal::GroupClosed { group: group.name.clone(), reason });
        }
        if group.metadata.1 < ROOM_FOR_ONE {
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
    use std::sync::Arc;

    use super::*;
    use crate::simulated::group;
    use crate::simulated::history::{Class, device_class};

    #[test]
    fn a_group_that_is_closed_has_room_for_nothing() {
        for (attributes, is_open) in
            [("wz--n-", true), ("w---n-", true), ("rz--n-", false), ("wzx-n-", false)]
        {
            let group = Group { attributes: attributes.to_owned(), ..group(&[100, 100]) };
            let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
            let situation = Situation { inventory: &inventory, pool: &|_| None };
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
