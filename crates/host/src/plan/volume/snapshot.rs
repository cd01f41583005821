//! Snapshots, and the stores in which copy-on-write snapshots keep old blocks.

use super::{changeable, done_by, place};
use crate::desired::DeviceClass;
use crate::facts::Facts;
use crate::lvm::inventory::Kind;
use crate::lvm::{Change, Group, Volume};
use crate::names::{LvName, VolumePath};
use crate::plan::capacity::Situation;
use crate::plan::{Next, Refusal};
use crate::units::{Bytes, Extents};

/// The next step to a snapshot of `source` with this name.
pub fn snapshot(
    situation: Situation<'_>,
    class: &DeviceClass,
    source: &VolumePath,
    name: &LvName,
    facts: &Facts,
) -> Result<Next, Refusal> {
    let group = situation.group(class)?;
    let path = group.path(name);
    if let Some(present) = group.volumes.get(name) {
        let known = Facts::of(present);
        if !known.snapshot || known.source != facts.source {
            return Err(Refusal::Another { path, difference: "it is not of this source".to_owned() });
        }
        return if is_half_made(present) { done_by(Change::remove(path)) } else { Ok(Next::Done) };
    }
    let volume = group.volumes.get(&source.volume).ok_or_else(|| Refusal::NoSource(source.clone()))?;
    changeable(source, &Facts::of(volume))?;
    if Facts::of(volume).is_unfinished(volume.size) {
        return Err(Refusal::BadSource { path: source.clone(), reason: "it is not finished itself" });
    }
    let facts = Facts { former: Facts::of(volume).former, ..facts.clone() };
    let (origin, name, tags) = (source.clone(), name.clone(), facts.tags());
    match &volume.kind {
        Kind::Thin { .. } => {
            let free = situation.largest(class, &[])?;
            if volume.size > free {
                return Err(Refusal::NoSpace { place: place(class), free, wanted: volume.size });
            }
            done_by(Change::SnapshotThin { origin, name, read_only: true, tags })
        }
        Kind::Thick(_) => {
            let (free, store) = (situation.largest_store(class)?, store(group, volume));
            if store > free {
                let (free, wanted) = (free.bytes(group.extent), store.bytes(group.extent));
                return Err(Refusal::NoSpace { place: place(class), free, wanted });
            }
            done_by(Change::SnapshotThick { origin, name, store, chunk: None, tags })
        }
        Kind::Other(segment) => Err(Refusal::OnlyServes { path: source.clone(), segment: segment.clone() }),
        Kind::Cow { .. } | Kind::Pool { .. } => {
            Err(Refusal::BadSource { path: source.clone(), reason: "LVM makes no snapshots of it" })
        }
    }
}

/// Whether it is only the store of a snapshot: lvm2 makes that first, as a volume, and may have been killed then.
pub fn is_half_made(snapshot: &Volume) -> bool {
    matches!(snapshot.kind, Kind::Thick(_))
}

/// The store of a new copy-on-write snapshot: a fifth of its origin, at least 32 MiB, never more than it can use: each
/// block, and where it was. It is watched and extended before it overflows.
pub(super) fn store(group: &Group, origin: &Volume) -> Extents {
    let most = origin.size.in_extents(group.extent) + Extents(1);
    let fifth = Bytes(origin.size.0 / 5).max(Bytes::mib(32)).in_extents(group.extent);
    fifth.min(most)
}

/// A store that is so full is extended, in percent.
pub const FULL_ENOUGH: f64 = 70.0;

/// The step that extends the store of a snapshot by as much as it had at first. What is spare is not spared: a snapshot
/// that overflows is lost.
pub fn extend_store(situation: Situation<'_>, snapshot: &VolumePath, enough: Bytes) -> Result<Next, Refusal> {
    let missing = || Refusal::NoVolume(snapshot.clone());
    let group = situation.inventory.groups.get(&snapshot.group).ok_or_else(missing)?;
    let Kind::Cow { origin, store: now } = &group.volumes.get(&snapshot.volume).ok_or_else(missing)?.kind
    else {
        return Err(Refusal::NotAVolume(snapshot.clone()));
    };
    if *now >= enough {
        return Ok(Next::Done);
    }
    let origin = group.volumes.get(origin).ok_or_else(missing)?;
    let wanted = store(group, origin);
    let free = group.to_be_had();
    if free < Extents(1) {
        let (free, wanted) = (Bytes::ZERO, wanted.bytes(group.extent));
        return Err(Refusal::NoSpace { place: format!("volume group {}", group.name), free, wanted });
    }
    let extents = now.in_extents(group.extent) + wanted.min(free);
    done_by(Change::Extend { path: snapshot.clone(), extents, from: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lvm::Inventory;
    use crate::lvm::inventory::Layout;
    use crate::simulated::group;
    use crate::simulated::history::{Class, device_class};

    fn origin(extents: u64) -> Volume {
        Volume {
            name: LvName::parse("origin").unwrap(),
            uuid: String::new(),
            kind: Kind::Thick(Layout { segment: "linear".into(), stripes: 1, copies: 1 }),
            size: Extents(extents).bytes(Bytes::mib(4)),
            tags: Vec::new(),
            attributes: "-wi-a-----".to_owned(),
            active: true,
            areas: Vec::new(),
        }
    }

    #[test]
    fn a_store_has_room_for_every_block_of_a_small_origin_and_for_where_it_was() {
        for (extents, expected) in [(1, 2), (6, 7), (7, 8), (8, 8), (40, 8), (100, 20)] {
            assert_eq!(store(&group(&[200]), &origin(extents)), Extents(expected), "{extents} extents");
        }
    }

    #[test]
    fn no_snapshot_is_made_of_what_a_newer_version_made() {
        for (tags, is_newer) in [(vec![], false), (vec!["lvms.io/format=2".to_owned()], true)] {
            let mut group = group(&[200]);
            let volume = Volume { tags, ..origin(10) };
            let source = group.path(&volume.name);
            group.volumes.insert(volume.name.clone(), volume);
            let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
            let situation = Situation { inventory: &inventory, pool: &|_| None };
            let (class, name) = (device_class(Class::Linear), LvName::parse("s").unwrap());
            let next = snapshot(situation, &class, &source, &name, &Facts::default());
            assert_eq!(matches!(next, Err(Refusal::Newer { format: 2, .. })), is_newer, "{next:?}");
        }
    }
}
