//! Growth, online and offline. A block device never shows what was on its new extents before.

use std::collections::BTreeSet;

use super::source::{does_not_zero, zeroes};
use super::{changeable, do_next, done_by, place, zero_rest};
use crate::desired::DeviceClass;
use crate::facts::Facts;
use crate::lvm::inventory::Kind;
use crate::lvm::shape::Shape;
use crate::lvm::{Change, Volume};
use crate::names::{LvName, VolumePath};
use crate::plan::capacity::Situation;
use crate::plan::{Next, Refusal, Step};
use crate::runner::Use;
use crate::units::{Bytes, Extents};

/// Room that is zeroed before this volume grows into it.
fn room(target: &LvName) -> Option<LvName> {
    LvName::parse_new(&format!("lvms-room-{target}")).ok()
}

/// Whether a volume's user sees each byte of it, as far as is known. One that others made may be a block device, unless a
/// filesystem on it is mounted.
fn may_be_block(facts: &Facts, used: Use) -> bool {
    let is_others = !facts.is_ours() && facts.filesystem.is_none();
    facts.block || is_others && used != Use::Mounted
}

/// The next step until a volume has at least this size.
pub fn grow(
    situation: Situation<'_>,
    class: &DeviceClass,
    path: &VolumePath,
    size: Bytes,
    used: Use,
) -> Result<Next, Refusal> {
    let group = situation.group(class)?;
    let volume = group.volumes.get(&path.volume).ok_or_else(|| Refusal::NoVolume(path.clone()))?;
    let facts = Facts::of(volume);
    changeable(path, &facts)?;
    let layout = match &volume.kind {
        Kind::Thick(layout) => Some(layout),
        Kind::Thin { .. } => None,
        Kind::Other(segment) => {
            return Err(Refusal::OnlyServes { path: path.clone(), segment: segment.clone() });
        }
        Kind::Cow { .. } | Kind::Pool { .. } => return Err(Refusal::NotAVolume(path.clone())),
    };
    if let Some(step) = zero_rest(path, volume, &facts) {
        return do_next(step);
    }
    let (in_use, may_be_block) = (used != Use::None, may_be_block(&facts, used));
    // Of what others made and nobody uses, most is for a filesystem.
    if let Kind::Thin { pool, .. } = &volume.kind
        && (facts.block || in_use && may_be_block)
        && volume.size < size
        && !zeroes(group, pool)
    {
        return Err(does_not_zero(group, pool));
    }
    let shape = layout.map_or(Shape::LINEAR, Shape::of_layout);
    let extents = shape.round_up(size.in_extents(group.extent));
    let growth = extents.bytes(group.extent).minus(volume.size);
    let room = room(&path.volume);
    let zeroed = room.as_ref().and_then(|name| group.volumes.get(name));
    let taken = taken_for(growth.in_extents(group.extent), shape);
    // Somebody has wished another size before.
    if let Some(other) = zeroed.filter(|zeroed| zeroed.size != taken.bytes(group.extent)) {
        return done_by(Change::remove(group.path(&other.name)));
    }
    if volume.size >= size {
        return Ok(Next::Done);
    }
    if zeroed.is_none() {
        let free = situation.largest_growth(class, shape)?;
        if growth > free {
            return Err(Refusal::NoSpace { place: place(class), free, wanted: growth });
        }
    }
    let snapshots: Vec<LvName> = group.snapshots_of(&path.volume).into_iter().cloned().collect();
    // lvm2 grows an origin only while it is inactive, and RAID only while it is active.
    if !snapshots.is_empty() && shape.is_redundant() {
        return Err(Refusal::GrowsOnlyAlone { path: path.clone(), snapshots });
    }
    if !snapshots.is_empty() && volume.active {
        if in_use {
            return Err(Refusal::GrowsOnlyUnused { path: path.clone(), snapshots });
        }
        return done_by(Change::Deactivate { path: path.clone() });
    }
    let extend = |from| Change::Extend { path: path.clone(), extents, from };
    // What was begun is taken, whoever uses the volume now.
    if zeroed.is_none() && !(may_be_block && layout.is_some()) {
        return done_by(extend(Vec::new()));
    }
    // Others who work on what they made do not know our marks: what is zeroed must not be theirs yet.
    let is_beside = zeroed.is_some() || in_use || !facts.is_ours() && !shape.is_redundant();
    match room {
        Some(name) if is_beside => {
            let room = group.path(&name);
            do_next(match zeroed {
                Some(zeroed) if zeroed.areas.is_empty() => return Ok(Next::Look),
                Some(zeroed) => match zero_rest(&room, zeroed, &Facts::of(zeroed)) {
                    Some(step) => step,
                    None => Step::Swap(Change::Release { path: room }, extend(zeroed.areas.clone())),
                },
                None if shape.is_redundant() && volume.areas.is_empty() => return Ok(Next::Look),
                None => {
                    let on = disks_of_images(path, volume, shape)?;
                    Step::Change(make_room(room, path, taken, shape, on))
                }
            })
        }
        None if in_use => Err(Refusal::LongNameGrowsOnlyUnused(path.clone())),
        Some(_) | None => {
            // Marked first: extents that came and were not zeroed must be known after a crash.
            let (add, remove) = Facts { zeroing: Some(volume.size), ..facts.clone() }.since(&facts);
            let mark = Change::Tag { path: path.clone(), add, remove };
            do_next(Step::Swap(mark, extend(Vec::new())))
        }
    }
}

/// Each image of a RAID volume grows on its own disk: two that share one would be lost together.
fn disks_of_images(path: &VolumePath, volume: &Volume, shape: Shape) -> Result<Vec<String>, Refusal> {
    if !shape.is_redundant() {
        return Ok(Vec::new());
    }
    let disks: BTreeSet<&String> = volume.areas.iter().map(|area| &area.place).collect();
    if disks.len() as u64 != shape.disks {
        let (path, disks, images) = (path.clone(), disks.len(), shape.disks);
        return Err(Refusal::BlockGrowsOnlyUnused { path, disks, images });
    }
    Ok(disks.into_iter().cloned().collect())
}

/// As much of each disk as the growth takes, parity and copies included: where all data is zero, these are too.
fn taken_for(growth: Extents, shape: Shape) -> Extents {
    shape.per_disk(growth) * shape.disks
}

fn make_room(
    room: VolumePath,
    target: &VolumePath,
    extents: Extents,
    shape: Shape,
    on: Vec<String>,
) -> Change {
    let facts =
        Facts { temporary: Some(target.volume.clone()), zeroing: Some(Bytes::ZERO), ..Facts::default() };
    let options =
        if shape.disks > 1 { vec!["--stripes".to_owned(), shape.disks.to_string()] } else { Vec::new() };
    Change::CreateThick { path: room, extents, options, tags: facts.tags(), on }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lvm::inventory::{Area, Layout};
    use crate::lvm::{Group, Inventory};
    use crate::names::{Tag, VgName};
    use crate::simulated::group;

    fn path(name: &str) -> VolumePath {
        VolumePath { group: VgName::parse("vg").unwrap(), volume: LvName::parse(name).unwrap() }
    }

    fn lies_on(disks: &[&str]) -> Vec<Area> {
        disks.iter().map(|disk| Area { place: (*disk).to_owned(), first: 5, last: 8 }).collect()
    }

    fn volume(name: &str, layout: (&str, u64, u64), extents: u64, facts: &Facts, on: &[&str]) -> Volume {
        let (segment, stripes, copies) = layout;
        Volume {
            name: LvName::parse(name).unwrap(),
            uuid: String::new(),
            kind: Kind::Thick(Layout { segment: segment.to_owned(), stripes, copies }),
            size: Extents(extents).bytes(Bytes::mib(4)),
            tags: facts.tags().iter().map(Tag::to_string).collect(),
            attributes: "rwi-aor---".to_owned(),
            active: true,
            areas: lies_on(on),
        }
    }

    fn raid(layout: (&str, u64, u64), on: &[&str]) -> Volume {
        let facts = Facts { name: Some("v".into()), block: true, ..Facts::default() };
        volume("v", layout, 6, &facts, on)
    }

    fn grown(volumes: Vec<Volume>, used: Use) -> Result<Next, Refusal> {
        let mut group: Group = group(&[100; 6]);
        group.volumes = volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect();
        let inventory = Inventory::of(group);
        let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
        let class = crate::simulated::history::device_class(crate::simulated::history::Class::Linear);
        grow(situation, &class, &path("v"), Bytes::mib(48), used)
    }

    #[test]
    fn room_for_raid_in_use_is_taken_from_the_disks_of_its_images() {
        for (layout, on, extents) in [
            (("raid1", 2, 2), &["/dev/sdb", "/dev/sde"][..], 12),
            (("raid10", 4, 2), &["/dev/sda", "/dev/sdb", "/dev/sdd", "/dev/sde"], 12),
            (("raid5_ls", 3, 1), &["/dev/sdb", "/dev/sde", "/dev/sdf"], 9),
            (("raid6_zr", 5, 1), &["/dev/sda", "/dev/sdb", "/dev/sdd", "/dev/sde", "/dev/sdf"], 10),
        ] {
            let Ok(Next::Do(step)) = grown(vec![raid(layout, on)], Use::Open) else { panic!("{layout:?}") };
            let Step::Change(change) = *step else { panic!("{step:?}") };
            let Change::CreateThick { extents: taken, on: disks, .. } = &change else { panic!("{change:?}") };
            let on: Vec<String> = on.iter().map(|disk| (*disk).to_owned()).collect();
            assert_eq!((*taken, disks), (Extents(extents), &on), "{layout:?}");
            assert!(change.arguments().ends_with(&on), "{change:?}");
        }
    }

    #[test]
    fn zeroed_room_is_handed_over() {
        let facts = Facts { temporary: Some(LvName::parse("v").unwrap()), ..Facts::default() };
        let room = volume("lvms-room-v", ("striped", 2, 1), 12, &facts, &["/dev/sda", "/dev/sdb"]);
        let next = grown(vec![raid(("raid1", 2, 2), &["/dev/sda", "/dev/sdb"]), room], Use::Open);
        let extend = Change::Extend {
            path: path("v"),
            extents: Extents(12),
            from: lies_on(&["/dev/sda", "/dev/sdb"]),
        };
        let swap = Step::Swap(Change::Release { path: path("lvms-room-v") }, extend);
        assert_eq!(next, Ok(Next::Do(Box::new(swap))));
    }

    #[test]
    fn room_that_was_made_for_another_size_goes_and_the_right_one_is_taken_by_an_unused_volume_too() {
        let facts = Facts { temporary: Some(LvName::parse("v").unwrap()), ..Facts::default() };
        let on = ["/dev/sda", "/dev/sdb"];
        let room = |extents| volume("lvms-room-v", ("striped", 2, 1), extents, &facts, &on);
        let next = |volumes, used| match grown(volumes, used) {
            Ok(Next::Do(step)) => *step,
            other => panic!("{other:?}"),
        };
        let removed = Step::Change(Change::remove(path("lvms-room-v")));
        let small = raid(("raid1", 2, 2), &on);
        for used in [Use::Open, Use::None] {
            assert_eq!(next(vec![small.clone(), room(8)], used), removed);
            let swap = next(vec![small.clone(), room(12)], used);
            assert!(matches!(swap, Step::Swap(Change::Release { .. }, _)), "{swap:?}");
        }
        // Nobody needs it once the volume is large enough.
        let large = Volume { size: Bytes::mib(48), ..small };
        assert_eq!(next(vec![large.clone(), room(12)], Use::None), removed);
        assert_eq!(grown(vec![large], Use::None), Ok(Next::Done));
    }

    #[test]
    fn what_others_made_is_zeroed_where_it_grows_unless_a_filesystem_on_it_is_mounted() {
        let made = |facts: Facts| volume("v", ("linear", 1, 1), 8, &facts, &["/dev/sda"]);
        let filesystem = Facts { filesystem: Some("ext4".into()), ..Facts::default() };
        let ours = Facts { name: Some("v".into()), ..Facts::default() };
        for (facts, used, zeroed) in [
            (Facts::default(), Use::None, true),
            (Facts::default(), Use::Open, true),
            (Facts::default(), Use::Mounted, false),
            (filesystem, Use::Open, false),
            (ours, Use::None, false),
        ] {
            let Ok(Next::Do(step)) = grown(vec![made(facts.clone())], used) else { panic!("{facts:?}") };
            // What others may use at any moment is zeroed before it is theirs.
            let beside = matches!(*step, Step::Change(Change::CreateThick { .. }));
            let as_it_comes = matches!(*step, Step::Change(Change::Extend { .. }));
            assert_eq!((beside, as_it_comes), (zeroed, !zeroed), "{facts:?}, {used:?}: {step:?}");
        }
    }

    #[test]
    fn room_that_was_zeroed_for_others_volume_is_taken_though_a_filesystem_on_it_is_mounted_by_now() {
        let facts = Facts { temporary: Some(LvName::parse("v").unwrap()), ..Facts::default() };
        let room = volume("lvms-room-v", ("linear", 1, 1), 4, &facts, &["/dev/sda"]);
        let small = volume("v", ("linear", 1, 1), 8, &Facts::default(), &["/dev/sda"]);
        let Ok(Next::Do(step)) = grown(vec![small, room], Use::Mounted) else { panic!() };
        assert!(matches!(*step, Step::Swap(Change::Release { .. }, _)), "{step:?}");
    }

    #[test]
    fn a_block_device_whose_name_leaves_no_room_for_another_never_shows_former_bytes() {
        let name = "v".repeat(120);
        let facts = Facts { name: Some(name.clone()), block: true, ..Facts::default() };
        let next = |used| {
            let mut group: Group = group(&[100; 6]);
            let volume = volume(&name, ("linear", 1, 1), 8, &facts, &["/dev/sda"]);
            group.volumes = [(volume.name.clone(), volume)].into();
            let inventory = Inventory::of(group);
            let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
            let class = crate::simulated::history::device_class(crate::simulated::history::Class::Linear);
            grow(situation, &class, &path(&name), Bytes::mib(48), used)
        };
        assert!(
            matches!(next(Use::None), Ok(Next::Do(step)) if matches!(*step, Step::Swap(Change::Tag { .. }, _)))
        );
        assert_eq!(next(Use::Open), Err(Refusal::LongNameGrowsOnlyUnused(path(&name))));
    }

    #[test]
    fn raid_with_snapshots_does_not_grow() {
        let mut snapshot = volume("s", ("linear", 1, 1), 2, &Facts::default(), &["/dev/sdc"]);
        snapshot.kind = Kind::Cow { origin: LvName::parse("v").unwrap(), store: Bytes::mib(8) };
        for used in [Use::Open, Use::None] {
            let refused =
                grown(vec![raid(("raid1", 2, 2), &["/dev/sda", "/dev/sdb"]), snapshot.clone()], used);
            assert!(matches!(refused, Err(Refusal::GrowsOnlyAlone { .. })), "{refused:?}");
        }
    }

    #[test]
    fn images_that_are_not_on_a_disk_each_do_not_grow_in_use() {
        let spread = ["/dev/sda", "/dev/sdb", "/dev/sdc"];
        let refused = grown(vec![raid(("raid1", 2, 2), &spread)], Use::Open);
        assert!(matches!(refused, Err(Refusal::BlockGrowsOnlyUnused { disks: 3, images: 2, .. })));
        let unused = grown(vec![raid(("raid1", 2, 2), &spread)], Use::None);
        assert!(matches!(unused, Ok(Next::Do(step)) if matches!(*step, Step::Swap(Change::Tag { .. }, _))));
        assert_eq!(
            grown(vec![raid(("raid1", 2, 2), &[])], Use::Open),
            Ok(Next::Look),
            "not known where it lies"
        );
    }
}
