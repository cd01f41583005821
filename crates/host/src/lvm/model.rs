//! What a change does to a group, as lvm2 does it, without lvm2.
//!
//! The engine uses it to know what is there after a change of its own without asking again, and the simulated host is
//! made of it. A test runs the same histories on real LVM and compares.

use super::inventory::{Group, Kind, Layout, Volume};
use super::shape::Shape;
use super::{Change, Failure};
use crate::names::{LvName, Tag};
use crate::units::{Bytes, Extents};

/// Makes the change. The sequence number is for the caller to set.
pub fn apply(group: &mut Group, change: &Change) -> Result<(), Failure> {
    match change {
        Change::CreateThick { path, extents, options, tags, .. } => {
            let shape = Shape::of_options(options);
            let extents = shape.round_up(*extents);
            let kind = Kind::Thick(layout(options, shape));
            absent(group, &path.volume)?;
            take(group, shape, extents, true)?;
            insert(group, &path.volume, kind, extents.bytes(group.extent), tags, true);
        }
        Change::CreateThin { path, pool, size, tags, .. } => {
            absent(group, &path.volume)?;
            if !group.volumes.get(pool).is_some_and(Volume::is_pool) {
                return Err(Failure::NotFound(format!(
                    "Pool {pool} not found in Volume group {}.",
                    group.name
                )));
            }
            let kind = Kind::Thin { pool: pool.clone(), origin: None };
            insert(group, &path.volume, kind, size.round_up(group.extent), tags, true);
        }
        Change::SnapshotThin { origin, name, read_only, tags } => {
            absent(group, name)?;
            let source = present(group, &origin.volume)?;
            let Kind::Thin { pool, .. } = &source.kind else {
                return Err(Failure::Unsupported(format!("{origin} is not thin")));
            };
            let kind = Kind::Thin { pool: pool.clone(), origin: Some(origin.volume.clone()) };
            let size = source.size;
            let snapshot = insert(group, name, kind, size, tags, false);
            if *read_only {
                snapshot.attributes = "Vri---tz--".to_owned();
            }
        }
        Change::SnapshotThick { origin, name, store, tags, .. } => {
            absent(group, name)?;
            let source = present(group, &origin.volume)?;
            if !matches!(source.kind, Kind::Thick(_)) {
                return Err(Failure::Unsupported(format!("Snapshots of {origin} are not supported.")));
            }
            let (size, active) = (source.size, source.active);
            take(group, Shape::LINEAR, *store, true)?;
            let kind = Kind::Cow { origin: origin.volume.clone(), store: store.bytes(group.extent) };
            insert(group, name, kind, size, tags, active);
        }
        Change::Extend { path, extents, .. } => extend(group, &path.volume, *extents)?,
        Change::Remove { path, others } => {
            remove(group, &path.volume)?;
            for other in others {
                remove(group, other)?;
            }
        }
        Change::Release { path } => remove(group, &path.volume)?,
        Change::Tag { path, add, remove } => {
            let volume = present_mut(group, &path.volume)?;
            volume.tags.retain(|tag| !remove.iter().any(|gone| gone.as_str() == tag));
            for tag in add.iter().map(Tag::to_string) {
                if !volume.tags.contains(&tag) {
                    volume.tags.push(tag);
                }
            }
        }
        Change::Refresh { path } => drop(present(group, &path.volume)?),
        Change::Activate { path } => set_active(group, &path.volume, true)?,
        Change::Deactivate { path } => set_active(group, &path.volume, false)?,
    }
    Ok(())
}

fn layout(options: &[String], shape: Shape) -> Layout {
    let words = options.join(" ");
    let raid = ["raid10", "raid6", "raid5", "raid4", "raid1", "raid0_meta", "raid0"];
    let raid = raid.into_iter().find(|kind| words.contains(kind));
    let segment = match raid {
        Some(raid) => raid,
        None if shape.metadata > Extents::ZERO && shape.stripes == 1 => "raid1",
        None if shape.metadata > Extents::ZERO => "raid10",
        None if shape.stripes > 1 => "striped",
        None => "linear",
    };
    // Parity counts as copies.
    let copies = match segment {
        "raid1" | "raid10" => shape.disks / shape.stripes,
        _ => shape.disks - shape.stripes + 1,
    };
    Layout { segment: segment.to_owned(), stripes: shape.disks, copies }
}

fn absent(group: &Group, name: &LvName) -> Result<(), Failure> {
    if !group.volumes.contains_key(name) {
        return Ok(());
    }
    let group = &group.name;
    Err(Failure::AlreadyThere(format!(
        "Logical Volume \"{name}\" already exists in volume group \"{group}\""
    )))
}

fn not_found(group: &Group, name: &LvName) -> Failure {
    Failure::NotFound(format!("Failed to find logical volume \"{}/{name}\"", group.name))
}

fn present<'a>(group: &'a Group, name: &LvName) -> Result<&'a Volume, Failure> {
    group.volumes.get(name).ok_or_else(|| not_found(group, name))
}

fn present_mut<'a>(group: &'a mut Group, name: &LvName) -> Result<&'a mut Volume, Failure> {
    if !group.volumes.contains_key(name) {
        return Err(not_found(group, name));
    }
    group.volumes.get_mut(name).ok_or_else(|| Failure::NotFound(name.to_string()))
}

fn insert<'a>(
    group: &'a mut Group,
    name: &LvName,
    kind: Kind,
    size: Bytes,
    tags: &[Tag],
    active: bool,
) -> &'a mut Volume {
    let attributes = match kind {
        Kind::Thick(_) | Kind::Other(_) => "-wi-a-----",
        Kind::Pool { .. } => "twi-a-tz--",
        Kind::Thin { .. } => "Vwi-a-tz--",
        Kind::Cow { .. } => "swi-a-s---",
    };
    let volume = Volume {
        name: name.clone(),
        uuid: String::new(),
        kind,
        size,
        tags: tags.iter().map(Tag::to_string).collect(),
        attributes: attributes.to_owned(),
        active,
        areas: Vec::new(),
    };
    group.volumes.entry(name.clone()).insert_entry(volume).into_mut()
}

fn take(group: &mut Group, shape: Shape, extents: Extents, new: bool) -> Result<(), Failure> {
    let most =
        if new { shape.largest(group, Extents::ZERO) } else { shape.largest_growth(group, Extents::ZERO) };
    if extents > most {
        let (group, free) = (&group.name, group.free.0);
        let said =
            format!("Volume group \"{group}\" has insufficient free space ({free} extents): {}", extents.0);
        return Err(Failure::NoSpace(said));
    }
    let metadata = if new { shape.metadata } else { Extents::ZERO };
    let cost = (shape.per_disk(extents) + metadata) * shape.disks;
    group.free = group.free - cost;
    on_disks(group, shape, cost, |taken, cost| taken + cost);
    Ok(())
}

fn give(group: &mut Group, shape: Shape, cost: Extents) {
    group.free = group.free + cost;
    on_disks(group, shape, cost, |taken, cost| taken - cost);
}

/// Of which disks it took them only lvm2 knows, unless it had to take as many of each.
fn on_disks(group: &mut Group, shape: Shape, cost: Extents, becomes: impl Fn(Extents, Extents) -> Extents) {
    let count = group.disks.len() as u64;
    if count != shape.disks {
        group.placed = false;
        return;
    }
    for disk in &mut group.disks {
        disk.taken = becomes(disk.taken, Extents(cost.0 / count));
    }
}

fn extend(group: &mut Group, name: &LvName, extents: Extents) -> Result<(), Failure> {
    let (extent, volume) = (group.extent, present(group, name)?);
    let (kind, active) = (volume.kind.clone(), volume.active);
    let current = match &kind {
        Kind::Cow { store, .. } => store.in_extents(extent),
        Kind::Thick(_) | Kind::Thin { .. } | Kind::Pool { .. } | Kind::Other(_) => {
            volume.size.in_extents(extent)
        }
    };
    let shape = match &kind {
        Kind::Thick(layout) => Shape::of_layout(layout),
        Kind::Cow { .. } | Kind::Thin { .. } | Kind::Pool { .. } | Kind::Other(_) => Shape::LINEAR,
    };
    let extents = shape.round_up(extents);
    if extents <= current {
        let (wanted, current) = (extents.0, current.0);
        let said =
            format!("New size given ({wanted} extents) not larger than existing size ({current} extents)");
        return Err(Failure::NotLarger(said));
    }
    if active && !group.snapshots_of(name).is_empty() {
        return Err(Failure::Other("Snapshot origin volumes can be resized only while inactive".to_owned()));
    }
    match &kind {
        Kind::Thick(_) | Kind::Cow { .. } => take(group, shape, extents - current, false)?,
        Kind::Thin { .. } => {}
        Kind::Pool { .. } | Kind::Other(_) => {
            return Err(Failure::Unsupported(format!("{name} is not modelled")));
        }
    }
    let size = extents.bytes(extent);
    let volume = present_mut(group, name)?;
    match &mut volume.kind {
        Kind::Cow { store, .. } => *store = size,
        Kind::Thick(_) | Kind::Thin { .. } | Kind::Pool { .. } | Kind::Other(_) => volume.size = size,
    }
    Ok(())
}

fn remove(group: &mut Group, name: &LvName) -> Result<(), Failure> {
    let volume = present(group, name)?.clone();
    // lvm2 takes along what depends on a volume.
    let dependants: Vec<LvName> = group.dependants_of(name).into_iter().cloned().collect();
    for dependant in dependants {
        remove(group, &dependant)?;
    }
    let extents = volume.size.in_extents(group.extent);
    match &volume.kind {
        Kind::Thick(layout) => {
            let shape = Shape::of_layout(layout);
            give(group, shape, shape.cost(extents));
        }
        Kind::Cow { store, .. } => give(group, Shape::LINEAR, store.in_extents(group.extent)),
        Kind::Thin { .. } => {}
        Kind::Pool { .. } | Kind::Other(_) => {
            return Err(Failure::Unsupported(format!("{name} is not modelled")));
        }
    }
    group.volumes.remove(name);
    for other in group.volumes.values_mut() {
        if let Kind::Thin { origin, .. } = &mut other.kind
            && origin.as_ref() == Some(name)
        {
            *origin = None;
        }
    }
    Ok(())
}

/// A copy-on-write snapshot and its origin are active together.
fn set_active(group: &mut Group, name: &LvName, active: bool) -> Result<(), Failure> {
    let origin = match &present(group, name)?.kind {
        Kind::Cow { origin, .. } => origin.clone(),
        Kind::Thick(_) | Kind::Thin { .. } | Kind::Pool { .. } | Kind::Other(_) => name.clone(),
    };
    let together: Vec<LvName> = group.snapshots_of(&origin).into_iter().chain([&origin]).cloned().collect();
    for name in together {
        present_mut(group, &name)?.active = active;
    }
    Ok(())
}

/// By how much a command raises the sequence number of its group, as lvm2 2.03.16 does it. Where another version does
/// otherwise, LVM is asked once more, and nothing is wrong.
pub fn increments(group: &Group, change: &Change) -> u64 {
    match change {
        Change::CreateThick { options, .. } if Shape::of_options(options).metadata == Extents::ZERO => 1,
        Change::CreateThick { .. }
        | Change::CreateThin { .. }
        | Change::SnapshotThin { .. }
        | Change::SnapshotThick { .. } => 2,
        Change::Remove { path, others } => {
            let each = [&path.volume].into_iter().chain(others).map(|name| removal(group, name));
            let (alone, together): (Vec<u64>, Vec<u64>) = each.partition(|raised| *raised > 1);
            // Thick ones go with one write, at the end.
            alone.iter().sum::<u64>() + u64::from(!together.is_empty())
        }
        Change::Release { path } => removal(group, &path.volume),
        Change::Extend { .. } | Change::Tag { .. } => 1,
        Change::Activate { .. } | Change::Refresh { .. } | Change::Deactivate { .. } => 0,
    }
}

fn removal(group: &Group, name: &LvName) -> u64 {
    match group.volumes.get(name).map(|volume| &volume.kind) {
        Some(Kind::Thin { .. } | Kind::Cow { .. }) => 2,
        Some(Kind::Thick(_) | Kind::Pool { .. } | Kind::Other(_)) | None => 1,
    }
}
