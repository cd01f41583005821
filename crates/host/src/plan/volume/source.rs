//! What a volume is copied from: found, made readable for the copy, and what a given-up copy leaves.

use std::sync::Arc;

use super::snapshot::{is_half_made, store};
use super::{Wish, changeable};
use crate::desired::DeviceClass;
use crate::facts::Facts;
use crate::lvm::inventory::Kind;
use crate::lvm::{Change, Group, Inventory, Volume};
use crate::names::{LvName, VolumePath};
use crate::plan::Refusal;
use crate::plan::capacity::Situation;
use crate::units::{Bytes, Extents};

/// What a snapshot for a copy keeps at once. A read through a snapshot is divided at this size: LVM's own, 4 KiB, would
/// make a copy several times slower.
pub(super) const CHUNK: Bytes = Bytes::kib(64);

/// The snapshot from which a copy for this volume is made.
pub(super) fn temporary(target: &LvName) -> Option<LvName> {
    LvName::parse_new(&format!("lvms-copy-{target}")).ok()
}

/// Whether a volume has bytes that none of its users has written, and that a block device would show: one that was made
/// for a filesystem was never zeroed, unless its pool zeroes what it gives, and a copy has what its source has. What
/// somebody else made is as he made it.
pub(crate) fn has_former_bytes(group: &Group, volume: &Volume) -> bool {
    let facts = Facts::of(volume);
    let for_filesystem = (facts.is_ours() || facts.filesystem.is_some()) && !facts.block;
    let was_zeroed = matches!(&volume.kind, Kind::Thin { pool, .. } if zeroes(group, pool));
    facts.former || for_filesystem && !was_zeroed
}

/// Whether a pool zeroes what it gives.
pub(super) fn zeroes(group: &Group, pool: &LvName) -> bool {
    group.volumes.get(pool).is_some_and(|pool| pool.attribute(8) == 'z')
}

/// Whether new block devices are made of a class.
pub fn is_for_block(inventory: &Inventory, class: &DeviceClass) -> bool {
    let group = inventory.groups.get(&class.group);
    class.pool().is_none_or(|pool| group.is_some_and(|group| zeroes(group, pool)))
}

/// A pool that does not gives nothing to block devices of ours.
pub(super) fn does_not_zero(group: &Group, pool: &LvName) -> Refusal {
    let reason = "it does not zero what it gives, and a block device would show what was there before: run \
                  lvchange --zero y on it";
    Refusal::PoolUnusable { pool: group.path(pool), reason }
}

/// What a volume is copied from.
pub(super) struct Source<'a> {
    pub(super) path: VolumePath,
    pub(super) group: &'a Group,
    pub(super) volume: &'a Volume,
    /// Whether a thin snapshot of it is all that is needed.
    pub(super) instant: bool,
}

impl<'a> Source<'a> {
    pub(super) fn find(
        situation: Situation<'a>,
        path: &VolumePath,
        wish: &Wish<'_>,
    ) -> Result<Source<'a>, Refusal> {
        let missing = || Refusal::NoSource(path.clone());
        let group = situation.inventory.groups.get(&path.group).ok_or_else(missing)?;
        let volume = group.volumes.get(&path.volume).ok_or_else(missing)?;
        let bad = |reason| Refusal::BadSource { path: path.clone(), reason };
        changeable(path, &Facts::of(volume))?;
        if Facts::of(volume).is_unfinished(volume.size) {
            return Err(bad("it is not finished itself"));
        }
        let instant = match &volume.kind {
            Kind::Thin { pool, .. } => group.name == wish.class.group && Some(pool) == wish.class.pool(),
            Kind::Thick(_) | Kind::Cow { .. } => false,
            Kind::Other(segment) => {
                return Err(Refusal::OnlyServes { path: path.clone(), segment: segment.clone() });
            }
            Kind::Pool { .. } => return Err(bad("it is no volume")),
        };
        // A snapshot stands still by itself; anything else is read through one.
        if !instant && !matches!(volume.kind, Kind::Cow { .. }) && temporary(&wish.name).is_none() {
            return Err(bad(
                "the copy's name is too long: one of at most 117 characters leaves room for that of a snapshot",
            ));
        }
        Ok(Source { path: path.clone(), group, volume, instant })
    }

    /// From where bytes are read: a snapshot stands still by itself, anything else through one made for the copy.
    pub(super) fn reading(&self, target: &LvName) -> VolumePath {
        match &self.volume.kind {
            Kind::Cow { .. } => self.path.clone(),
            Kind::Thick(_) | Kind::Thin { .. } | Kind::Pool { .. } | Kind::Other(_) => {
                self.group.path(&temporary(target).unwrap_or_else(|| self.path.volume.clone()))
            }
        }
    }

    /// How much is read: a snapshot keeps the size of its moment, however its origin grows.
    pub(super) fn length(&self, target: &LvName) -> Bytes {
        self.group.volumes.get(&self.reading(target).volume).unwrap_or(self.volume).size
    }

    /// Whether a block device with its bytes would show what was there before.
    pub(super) fn has_former_bytes(&self) -> bool {
        let read = match &self.volume.kind {
            Kind::Cow { origin, .. } => self.group.volumes.get(origin),
            Kind::Thick(_) | Kind::Thin { .. } | Kind::Pool { .. } | Kind::Other(_) => Some(self.volume),
        };
        read.is_none_or(|volume| has_former_bytes(self.group, volume))
    }

    /// The snapshot made for a copy, if it is there.
    pub(super) fn snapshot_for(&self, target: &LvName) -> Option<VolumePath> {
        temporary(target)
            .filter(|name| self.group.volumes.contains_key(name))
            .map(|name| self.group.path(&name))
    }

    /// The extents of its group that a snapshot for the copy will take.
    pub(super) fn store_to_come(&self, target: &LvName) -> Extents {
        let is_thick = matches!(self.volume.kind, Kind::Thick(_));
        if is_thick && self.snapshot_for(target).is_none() {
            return store(self.group, self.volume);
        }
        Extents::ZERO
    }

    /// Whether the moment of which a copy was begun cannot be read any more.
    pub(super) fn is_lost(&self, target: &LvName) -> bool {
        self.group.volumes.get(&self.reading(target).volume).is_none_or(is_useless)
    }

    /// The next step until bytes can be read.
    pub(super) fn make_readable(&self, target: &LvName) -> Option<Change> {
        let path = self.reading(target);
        match self.group.volumes.get(&path.volume) {
            Some(volume) if is_useless(volume) => Some(Change::remove(path)),
            Some(volume) if volume.active => None,
            Some(_) => Some(Change::Activate { path }),
            None => {
                let facts = Facts { temporary: Some(target.clone()), ..Facts::default() };
                let (origin, name, tags) = (self.path.clone(), path.volume, facts.tags());
                Some(match &self.volume.kind {
                    Kind::Thin { .. } => Change::SnapshotThin { origin, name, read_only: true, tags },
                    Kind::Thick(_) | Kind::Cow { .. } | Kind::Pool { .. } | Kind::Other(_) => {
                        let store = store(self.group, self.volume);
                        Change::SnapshotThick { origin, name, store, chunk: Some(CHUNK), tags }
                    }
                })
            }
        }
    }
}

/// Whether a snapshot for a copy has to be made again: it is half made or has overflowed.
fn is_useless(snapshot: &Volume) -> bool {
    Facts::of(snapshot).temporary.is_some() && (is_half_made(snapshot) || snapshot.has_overflowed())
}

/// Whether the snapshot from which a volume was copied is still there: the same call that made the volume removes it.
pub fn has_leftover(inventory: &Inventory, copy: &LvName) -> bool {
    let Some(name) = temporary(copy) else { return false };
    let is_for_it = |left: &Volume| Facts::of(left).temporary.as_ref() == Some(copy);
    inventory.groups.values().any(|group| group.volumes.get(&name).is_some_and(is_for_it))
}

/// A snapshot of ours for a copy that somebody gave up, made for a volume of this name from another source.
pub(super) fn leftover(
    situation: Situation<'_>,
    wish: &Wish<'_>,
    source: Option<&Source<'_>>,
) -> Option<VolumePath> {
    let name = temporary(&wish.name)?;
    let is_of_source = |group: &Group, volume: &Volume| {
        let origin = match &volume.kind {
            Kind::Thin { origin, .. } => origin.as_ref(),
            Kind::Cow { origin, .. } => Some(origin),
            Kind::Thick(_) | Kind::Pool { .. } | Kind::Other(_) => None,
        };
        source.is_some_and(|source| source.path.group == group.name && Some(&source.path.volume) == origin)
    };
    let is_left = |group: &&Arc<Group>| {
        group.volumes.get(&name).is_some_and(|volume| {
            Facts::of(volume).temporary.as_ref() == Some(&wish.name) && !is_of_source(group, volume)
        })
    };
    let found = situation.inventory.groups.values().find(is_left);
    found.map(|group| group.path(&name))
}
