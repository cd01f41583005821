//! Snapshots, and the stores in which copy-on-write snapshots keep old blocks.

use super::{changeable, done_by, place, source};
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
            let (free, least) = (situation.largest_store(class)?, store(group, volume));
            if least > free {
                let (free, wanted) = (free.bytes(group.extent), least.bytes(group.extent));
                return Err(Refusal::NoSpace { place: place(class), free, wanted });
            }
            let roomy = roomy_store(group, volume);
            let store = if roomy <= free { roomy } else { least };
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

/// What a snapshot keeps at once if LVM chooses.
const CHUNK: Bytes = Bytes::kib(4);

/// The least store of a new copy-on-write snapshot: a fifth of its origin, at least 32 MiB, never more than it can use. It
/// is watched and extended before it overflows.
pub(super) fn store(group: &Group, origin: &Volume) -> Extents {
    let most = origin.size.in_extents(group.extent) + Extents(1);
    let fifth = Bytes(origin.size.0 / 5).max(Bytes::mib(32)).in_extents(group.extent);
    fifth.min(most)
}

/// The store where there is room: at least so large that nothing writes as much from one look to the next, and for a small
/// origin all that it can ever use.
fn roomy_store(group: &Group, origin: &Volume) -> Extents {
    let unwatched = Bytes::gib(2).in_extents(group.extent);
    store(group, origin).max(unwatched).min(complete_store(group, origin, CHUNK))
}

/// The store that never overflows: each chunk of the origin, areas that tell where they were, and a header. LVM makes
/// none larger.
fn complete_store(group: &Group, origin: &Volume, chunk: Bytes) -> Extents {
    /// What tells where a chunk was.
    const EXCEPTION: u64 = 16;
    let chunks = origin.size.0.div_ceil(chunk.0);
    // The last area is followed by another, though that is empty.
    let areas = chunks / (chunk.0 / EXCEPTION) + 1;
    Bytes((1 + chunks + areas) * chunk.0).in_extents(group.extent)
}

fn complete_store_of(group: &Group, snapshot: &Volume) -> Option<Extents> {
    let Kind::Cow { origin, .. } = &snapshot.kind else { return None };
    let chunk = if Facts::of(snapshot).temporary.is_some() { source::CHUNK } else { CHUNK };
    group.volumes.get(origin).map(|origin| complete_store(group, origin, chunk))
}

/// Whether the store of a snapshot may ever be too small.
pub fn may_overflow(group: &Group, snapshot: &Volume) -> bool {
    let Kind::Cow { store, .. } = &snapshot.kind else { return false };
    complete_store_of(group, snapshot).is_none_or(|complete| store.in_extents(group.extent) < complete)
}

/// The step that extends the store of a snapshot by this, and by as much as a new one has at least, as far as it can use
/// it. What is spare is not spared: a snapshot that overflows is lost.
pub fn extend_store(
    situation: Situation<'_>,
    snapshot: &VolumePath,
    enough: Bytes,
    by: Bytes,
) -> Result<Next, Refusal> {
    let missing = || Refusal::NoVolume(snapshot.clone());
    let group = situation.inventory.groups.get(&snapshot.group).ok_or_else(missing)?;
    let volume = group.volumes.get(&snapshot.volume).ok_or_else(missing)?;
    let Kind::Cow { origin, store: now } = &volume.kind else {
        return Err(Refusal::NotAVolume(snapshot.clone()));
    };
    if *now >= enough || !may_overflow(group, volume) {
        return Ok(Next::Done);
    }
    let origin = group.volumes.get(origin).ok_or_else(missing)?;
    let (now, usable) = (now.in_extents(group.extent), complete_store_of(group, volume).ok_or_else(missing)?);
    let wanted = store(group, origin).max(by.in_extents(group.extent)).min(usable.minus(now));
    let free = group.to_be_had();
    if free < Extents(1) {
        let (free, wanted) = (Bytes::ZERO, wanted.bytes(group.extent));
        return Err(Refusal::NoSpace { place: format!("volume group {}", group.name), free, wanted });
    }
    done_by(Change::Extend { path: snapshot.clone(), extents: now + wanted.min(free), from: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lvm::inventory::Layout;
    use crate::lvm::{Inventory, model};
    use crate::plan::Step;
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
    fn a_store_holds_all_of_a_small_origin_or_what_is_written_between_two_looks_where_there_is_room() {
        for (free, extents, expected) in
            [(200, 50, 51), (100, 50, 10), (3000, 300, 302), (3000, 600, 512), (9000, 3000, 600)]
        {
            let mut group = group(&[free]);
            let source = group.path(&LvName::parse("origin").unwrap());
            let (path, options, tags, on) = (source.clone(), Vec::new(), Vec::new(), Vec::new());
            let change = Change::CreateThick { path, extents: Extents(extents), options, tags, on };
            model::apply(&mut group, &change).unwrap();
            let inventory = Inventory::of(group);
            let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
            let (class, name) = (device_class(Class::Linear), LvName::parse("s").unwrap());
            let next = snapshot(situation, &class, &source, &name, &Facts::default());
            let Ok(Next::Do(step)) = next else { panic!("{next:?}") };
            let Step::Change(Change::SnapshotThick { store, .. }) = *step else { panic!("{step:?}") };
            assert_eq!(store, Extents(expected), "{extents} extents of {free}");
        }
    }

    #[test]
    fn a_store_is_extended_by_what_is_written_and_not_beyond_what_it_can_use() {
        let extended = |store: u64, by: u64, free: u64| {
            let mut group = group(&[101 + store + free]);
            let volume = origin(100);
            let path = group.path(&LvName::parse("s").unwrap());
            group.volumes.insert(volume.name.clone(), volume.clone());
            let kind = Kind::Cow { origin: volume.name.clone(), store: Extents(store).bytes(group.extent) };
            let snapshot = Volume { name: path.volume.clone(), kind, ..volume };
            let overflows = may_overflow(&group, &snapshot);
            group.volumes.insert(path.volume.clone(), snapshot);
            group.free = Extents(free);
            let now = Extents(store).bytes(group.extent);
            let by = Extents(by).bytes(group.extent);
            let inventory = Inventory::of(group);
            let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
            let next = extend_store(situation, &path, now + Bytes(1), by).unwrap();
            let to = if let Next::Do(step) = next {
                let Step::Change(Change::Extend { extents, .. }) = *step else { panic!("{step:?}") };
                Some(extents.0)
            } else {
                None
            };
            (to, overflows)
        };
        assert_eq!(extended(20, 0, 100), (Some(40), true));
        assert_eq!(extended(20, 30, 100), (Some(50), true));
        assert_eq!(extended(20, 30, 7), (Some(27), true));
        assert_eq!(extended(90, 50, 100), (Some(101), true));
        assert_eq!(extended(101, 50, 100), (None, false));
    }

    #[test]
    fn no_snapshot_is_made_of_what_a_newer_version_made() {
        for (tags, is_newer) in [(vec![], false), (vec!["lvms.io/format=2".to_owned()], true)] {
            let mut group = group(&[200]);
            let volume = Volume { tags, ..origin(10) };
            let source = group.path(&volume.name);
            group.volumes.insert(volume.name.clone(), volume);
            let inventory = Inventory::of(group);
            let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
            let (class, name) = (device_class(Class::Linear), LvName::parse("s").unwrap());
            let next = snapshot(situation, &class, &source, &name, &Facts::default());
            assert_eq!(matches!(next, Err(Refusal::Newer { format: 2, .. })), is_newer, "{next:?}");
        }
    }
}
