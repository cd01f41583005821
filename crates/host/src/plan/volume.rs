//! Volumes: made, copied, grown, snapshotted, removed.

use super::capacity::Situation;
use super::{Next, Refusal, Step};
use crate::desired::{ClassKind, DeviceClass};
use crate::facts::Facts;
use crate::lvm::inventory::Kind;
use crate::lvm::shape::Shape;
use crate::lvm::{Change, Group, Volume};
use crate::names::{LvName, VolumePath};
use crate::units::{Bytes, Extents};

/// A volume that shall be.
#[derive(Debug, Clone)]
pub struct Wish<'a> {
    /// Its name.
    pub name: LvName,
    /// Of what it is made.
    pub class: &'a DeviceClass,
    /// Options for lvcreate.
    pub options: Vec<String>,
    /// At least so large.
    pub size: Bytes,
    /// At most so large, if there is a limit.
    pub limit: Option<Bytes>,
    /// What is to be known of it when it is finished.
    pub facts: Facts,
    /// What it is a copy of.
    pub source: Option<VolumePath>,
}

impl Wish<'_> {
    /// Where it shall be.
    pub fn path(&self) -> VolumePath {
        VolumePath { group: self.class.group.clone(), volume: self.name.clone() }
    }

    fn is_thick(&self) -> bool {
        matches!(self.class.kind, ClassKind::Thick)
    }

    fn shape(&self) -> Shape {
        if self.is_thick() { Shape::of_options(&self.options) } else { Shape::LINEAR }
    }
}

/// The snapshot from which a copy for this volume is made.
fn temporary(target: &LvName) -> Option<LvName> {
    LvName::parse_new(&format!("lvms-copy-{target}")).ok()
}

/// Room that is zeroed before this volume grows into it.
fn room(target: &LvName) -> Option<LvName> {
    LvName::parse_new(&format!("lvms-room-{target}")).ok()
}

/// The next step to the wished volume.
pub fn create(situation: Situation<'_>, wish: &Wish<'_>) -> Result<Next, Refusal> {
    let group = situation.group(wish.class)?;
    let source = match &wish.source {
        Some(path) => Some(Source::find(situation, path, wish)?),
        None => None,
    };
    if let Some(path) = leftover(situation, wish, source.as_ref()) {
        return done_by(Change::Remove { path });
    }
    let extents = wish.shape().round_up(wish.size.in_extents(group.extent));
    let size = extents.bytes(group.extent);
    match group.volumes.get(&wish.name) {
        None => begin(situation, wish, group, source.as_ref(), extents),
        Some(volume) => go_on(wish, group, volume, source.as_ref(), size),
    }
}

/// A snapshot for a copy that somebody gave up, made for a volume of this name from another source.
fn leftover(situation: Situation<'_>, wish: &Wish<'_>, source: Option<&Source<'_>>) -> Option<VolumePath> {
    let name = temporary(&wish.name)?;
    let is_of_source = |group: &Group, volume: &Volume| {
        let origin = match &volume.kind {
            Kind::Thin { origin, .. } => origin.as_ref(),
            Kind::Cow { origin, .. } => Some(origin),
            Kind::Thick(_) | Kind::Pool { .. } | Kind::Other(_) => None,
        };
        source.is_some_and(|source| source.path.group == group.name && Some(&source.path.volume) == origin)
    };
    let found = situation
        .inventory
        .groups
        .values()
        .find(|group| group.volumes.get(&name).is_some_and(|volume| !is_of_source(group, volume)));
    found.map(|group| group.path(&name))
}

/// What a volume is copied from.
struct Source<'a> {
    path: VolumePath,
    group: &'a Group,
    volume: &'a Volume,
    /// Whether a thin snapshot of it is all that is needed.
    instant: bool,
}

impl<'a> Source<'a> {
    fn find(situation: Situation<'a>, path: &VolumePath, wish: &Wish<'_>) -> Result<Source<'a>, Refusal> {
        let missing = || Refusal::NoSource(path.clone());
        let group = situation.inventory.groups.get(&path.group).ok_or_else(missing)?;
        let volume = group.volumes.get(&path.volume).ok_or_else(missing)?;
        let bad = |reason| Refusal::BadSource { path: path.clone(), reason };
        if Facts::of(volume).is_unfinished() {
            return Err(bad("it is not finished itself"));
        }
        let instant = match &volume.kind {
            Kind::Thin { pool, .. } => group.name == wish.class.group && Some(pool) == wish.class.pool(),
            Kind::Thick(_) | Kind::Cow { .. } => false,
            Kind::Pool { .. } | Kind::Other(_) => return Err(bad("it is no volume")),
        };
        if wish.size < volume.size {
            return Err(Refusal::SmallerThanSource { source_size: volume.size, wanted: wish.size });
        }
        Ok(Source { path: path.clone(), group, volume, instant })
    }

    /// From where bytes are read: a snapshot stands still by itself, anything else through one made for the copy.
    fn reading(&self, target: &LvName) -> VolumePath {
        match &self.volume.kind {
            Kind::Cow { .. } => self.path.clone(),
            Kind::Thick(_) | Kind::Thin { .. } | Kind::Pool { .. } | Kind::Other(_) => {
                self.group.path(&temporary(target).unwrap_or_else(|| self.path.volume.clone()))
            }
        }
    }

    /// The snapshot made for a copy, if it is there.
    fn snapshot_for(&self, target: &LvName) -> Option<VolumePath> {
        temporary(target)
            .filter(|name| self.group.volumes.contains_key(name))
            .map(|name| self.group.path(&name))
    }

    /// The extents that a snapshot for the copy will take beside the volume's own.
    fn store_to_come(&self, wish: &Wish<'_>) -> Extents {
        let is_thick = matches!(self.volume.kind, Kind::Thick(_));
        if is_thick
            && self.group.name == wish.class.group
            && self.snapshot_for(&wish.name).is_none()
            && wish.is_thick()
        {
            return store(self.group, self.volume);
        }
        Extents::ZERO
    }

    /// The next step until bytes can be read.
    fn make_readable(&self, target: &LvName) -> Option<Change> {
        let path = self.reading(target);
        match self.group.volumes.get(&path.volume) {
            Some(volume) if volume.active => None,
            Some(_) => Some(Change::Activate { path }),
            None => {
                let facts = Facts { temporary: Some(target.clone()), ..Facts::default() };
                let (origin, name, tags) = (self.path.clone(), path.volume, facts.tags());
                Some(match &self.volume.kind {
                    Kind::Thin { .. } => Change::SnapshotThin { origin, name, read_only: true, tags },
                    Kind::Thick(_) | Kind::Cow { .. } | Kind::Pool { .. } | Kind::Other(_) => {
                        Change::SnapshotThick { origin, name, store: store(self.group, self.volume), tags }
                    }
                })
            }
        }
    }
}

/// The store of a new copy-on-write snapshot: a fifth of its origin, at least 32 MiB, never more than it can use. It
/// is watched and extended before it overflows.
fn store(group: &Group, origin: &Volume) -> Extents {
    let whole = origin.size.in_extents(group.extent);
    let fifth = Bytes(origin.size.0 / 5).max(Bytes::mib(32)).in_extents(group.extent);
    fifth.min(whole).max(Extents(1))
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
    if group.free < Extents(1) {
        let (free, wanted) = (Bytes::ZERO, wanted.bytes(group.extent));
        return Err(Refusal::NoSpace { place: format!("volume group {}", group.name), free, wanted });
    }
    let extents = now.in_extents(group.extent) + wanted.min(group.free);
    done_by(Change::Extend { path: snapshot.clone(), extents, from: Vec::new() })
}

fn begin(
    situation: Situation<'_>,
    wish: &Wish<'_>,
    group: &Group,
    source: Option<&Source<'_>>,
    extents: Extents,
) -> Result<Next, Refusal> {
    let size = extents.bytes(group.extent);
    if let Some(limit) = wish.limit.filter(|limit| size > *limit) {
        return Err(Refusal::AboveLimit { size, limit });
    }
    let free = situation.largest(wish.class, &wish.options)?;
    let store = source.map_or(Extents::ZERO, |source| source.store_to_come(wish));
    let wanted = size + store.bytes(group.extent);
    if wanted > free {
        // The snapshot for the copy is given up with it.
        return match source.and_then(|source| source.snapshot_for(&wish.name)) {
            Some(path) => done_by(Change::Remove { path }),
            None => Err(Refusal::NoSpace { place: place(wish.class), free, wanted }),
        };
    }
    let path = wish.path();
    let mut facts = wish.facts.clone();
    if let Some(source) = source {
        if source.instant {
            if size > source.volume.size {
                facts.copying = Some(source.path.to_string());
            }
            let (origin, name) = (source.path.clone(), wish.name.clone());
            return done_by(Change::SnapshotThin { origin, name, read_only: false, tags: facts.tags() });
        }
        if let Some(change) = source.make_readable(&wish.name) {
            return done_by(change);
        }
        facts.copying = Some(source.path.to_string());
    }
    if wish.is_thick() && facts.block {
        let from = source.map_or(Bytes::ZERO, |source| source.volume.size);
        facts.zeroing = (from < size).then_some(from);
    }
    let (options, tags) = (wish.options.clone(), facts.tags());
    done_by(match &wish.class.kind {
        ClassKind::Thick => Change::CreateThick { path, extents, options, tags },
        ClassKind::Thin { pool, .. } => Change::CreateThin { path, pool: pool.clone(), size, options, tags },
    })
}

fn go_on(
    wish: &Wish<'_>,
    group: &Group,
    volume: &Volume,
    source: Option<&Source<'_>>,
    size: Bytes,
) -> Result<Next, Refusal> {
    let (path, facts) = (wish.path(), Facts::of(volume));
    changeable(&path, &facts)?;
    same(wish, volume, &facts, size)?;
    let finished = |facts: &Facts, now: Facts| {
        let (add, remove) = now.since(facts);
        Change::Tag { path: path.clone(), add, remove }
    };
    if facts.copying.is_some() {
        let Some(source) = source else {
            return Err(Refusal::Another { path, difference: "it is a copy".to_owned() });
        };
        let copied = finished(&facts, Facts { copying: None, ..facts.clone() });
        if source.instant {
            let extents = size.in_extents(group.extent);
            return done_by(if volume.size < size {
                Change::Extend { path, extents, from: Vec::new() }
            } else {
                copied
            });
        }
        if let Some(change) = source.make_readable(&wish.name) {
            return done_by(change);
        }
        if !volume.active {
            return done_by(Change::Activate { path });
        }
        let (from, length) = (source.reading(&wish.name), source.volume.size);
        return do_next(Step::Copy { from, to: path.clone(), length, dirty: wish.is_thick(), then: copied });
    }
    if let Some(step) = zero_rest(&path, volume, &facts) {
        return do_next(step);
    }
    if let Some(source) = source
        && let Some(name) = temporary(&wish.name)
        && source.group.volumes.contains_key(&name)
    {
        return done_by(Change::Remove { path: source.group.path(&name) });
    }
    Ok(Next::Done)
}

fn do_next(step: Step) -> Result<Next, Refusal> {
    Ok(Next::Do(Box::new(step)))
}

fn done_by(change: Change) -> Result<Next, Refusal> {
    do_next(Step::Change(change))
}

fn place(class: &DeviceClass) -> String {
    match &class.kind {
        ClassKind::Thick => format!("volume group {}", class.group),
        ClassKind::Thin { pool, .. } => format!("thin pool {}/{pool}", class.group),
    }
}

fn changeable(path: &VolumePath, facts: &Facts) -> Result<(), Refusal> {
    match facts.newer_format {
        Some(format) => Err(Refusal::Newer { path: path.clone(), format }),
        None => Ok(()),
    }
}

/// Whether a volume that is there is the wished one.
fn same(wish: &Wish<'_>, volume: &Volume, facts: &Facts, size: Bytes) -> Result<(), Refusal> {
    let another = |difference: String| Err(Refusal::Another { path: wish.path(), difference });
    let fits = match (&volume.kind, &wish.class.kind) {
        (Kind::Thick(_), ClassKind::Thick) => true,
        (Kind::Thin { pool, .. }, ClassKind::Thin { pool: wished, .. }) => pool == wished,
        _ => false,
    };
    if !fits || facts.snapshot {
        return another("it is of another class or kind".to_owned());
    }
    if facts.source != wish.facts.source {
        return another("it has another source".to_owned());
    }
    if facts.block != wish.facts.block && facts.is_ours() {
        return another("it was made for another way of access".to_owned());
    }
    let growing = facts.copying.is_some() && volume.size < size;
    let too_large = wish.limit.is_some_and(|limit| volume.size > limit);
    if (volume.size < wish.size && !growing) || too_large {
        return another(format!("it has {}", volume.size));
    }
    Ok(())
}

/// Zeros that were begun and are not finished.
fn zero_rest(path: &VolumePath, volume: &Volume, facts: &Facts) -> Option<Step> {
    let from = facts.zeroing?;
    if !volume.active {
        return Some(Step::Change(Change::Activate { path: path.clone() }));
    }
    let (add, remove) = Facts { zeroing: None, ..facts.clone() }.since(facts);
    let then = Change::Tag { path: path.clone(), add, remove };
    Some(Step::Zero { volume: path.clone(), from, to: volume.size, then })
}

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
        let present = Facts::of(present);
        if !present.snapshot || present.source != facts.source {
            return Err(Refusal::Another { path, difference: "it is not of this source".to_owned() });
        }
        return Ok(Next::Done);
    }
    let volume = group.volumes.get(&source.volume).ok_or_else(|| Refusal::NoSource(source.clone()))?;
    if Facts::of(volume).is_unfinished() {
        return Err(Refusal::BadSource { path: source.clone(), reason: "it is not finished itself" });
    }
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
            done_by(Change::SnapshotThick { origin, name, store, tags })
        }
        Kind::Cow { .. } | Kind::Pool { .. } | Kind::Other(_) => {
            Err(Refusal::BadSource { path: source.clone(), reason: "LVM makes no snapshots of it" })
        }
    }
}

/// The next step until a volume has at least this size. `in_use` is whether somebody has its device open.
pub fn grow(
    situation: Situation<'_>,
    class: &DeviceClass,
    path: &VolumePath,
    size: Bytes,
    in_use: bool,
) -> Result<Next, Refusal> {
    let group = situation.group(class)?;
    let volume = group.volumes.get(&path.volume).ok_or_else(|| Refusal::NoVolume(path.clone()))?;
    let facts = Facts::of(volume);
    changeable(path, &facts)?;
    let layout = match &volume.kind {
        Kind::Thick(layout) => Some(layout),
        Kind::Thin { .. } => None,
        Kind::Cow { .. } | Kind::Pool { .. } | Kind::Other(_) => {
            return Err(Refusal::NotAVolume(path.clone()));
        }
    };
    if let Some(step) = zero_rest(path, volume, &facts) {
        return do_next(step);
    }
    if volume.size >= size {
        return Ok(Next::Done);
    }
    let shape = layout.map_or(Shape::LINEAR, Shape::of_layout);
    let extents = shape.round_up(size.in_extents(group.extent));
    let growth = extents.bytes(group.extent).minus(volume.size);
    let room = room(&path.volume).filter(|_| facts.block && layout.is_some());
    let zeroed = room.as_ref().and_then(|name| group.volumes.get(name));
    if zeroed.is_none() {
        let free = situation.largest_growth(class, shape)?;
        if growth > free {
            return Err(Refusal::NoSpace { place: place(class), free, wanted: growth });
        }
    }
    let snapshots: Vec<LvName> = group.snapshots_of(&path.volume).into_iter().cloned().collect();
    if !snapshots.is_empty() && volume.active {
        if in_use {
            return Err(Refusal::GrowsOnlyUnused { path: path.clone(), snapshots });
        }
        return done_by(Change::Deactivate { path: path.clone() });
    }
    let extend = |from| Change::Extend { path: path.clone(), extents, from };
    match (room, layout) {
        (Some(name), Some(layout)) if in_use => {
            if layout.segment.starts_with("raid") {
                let layout = layout.segment.clone();
                return Err(Refusal::BlockGrowsOnlyUnused { path: path.clone(), layout });
            }
            let room = group.path(&name);
            do_next(match zeroed {
                Some(zeroed) if zeroed.areas.is_empty() => return Ok(Next::Look),
                Some(zeroed) => match zero_rest(&room, zeroed, &Facts::of(zeroed)) {
                    Some(step) => step,
                    None => Step::Swap(Change::Remove { path: room }, extend(zeroed.areas.clone())),
                },
                None => Step::Change(make_room(room, path, growth.in_extents(group.extent), shape)),
            })
        }
        (Some(_), _) => {
            // Marked first: extents that came and were not zeroed must be known after a crash.
            let (add, remove) = Facts { zeroing: Some(volume.size), ..facts.clone() }.since(&facts);
            let mark = Change::Tag { path: path.clone(), add, remove };
            do_next(Step::Swap(mark, extend(Vec::new())))
        }
        (None, _) => done_by(extend(Vec::new())),
    }
}

fn make_room(room: VolumePath, target: &VolumePath, extents: Extents, shape: Shape) -> Change {
    let facts =
        Facts { temporary: Some(target.volume.clone()), zeroing: Some(Bytes::ZERO), ..Facts::default() };
    let options =
        if shape.stripes > 1 { vec!["--stripes".to_owned(), shape.stripes.to_string()] } else { Vec::new() };
    Change::CreateThick { path: room, extents, options, tags: facts.tags() }
}

/// The next step until a volume is gone. What depends on it is never taken along.
pub fn remove(situation: Situation<'_>, path: &VolumePath) -> Result<Next, Refusal> {
    let group =
        situation.inventory.groups.get(&path.group).ok_or_else(|| Refusal::NoGroup(path.group.clone()))?;
    let Some(volume) = group.volumes.get(&path.volume) else {
        return remove_leftovers(situation, path);
    };
    changeable(path, &Facts::of(volume))?;
    if matches!(volume.kind, Kind::Pool { .. } | Kind::Other(_)) {
        return Err(Refusal::NotAVolume(path.clone()));
    }
    let (temporary, snapshots): (Vec<&LvName>, Vec<&LvName>) =
        group.snapshots_of(&path.volume).into_iter().partition(|name| {
            Facts::of(&group.volumes[*name]).temporary.as_ref().is_some_and(|target| {
                !situation.inventory.groups.values().any(|group| group.volumes.contains_key(target))
            })
        });
    if let Some(left) = temporary.first() {
        return done_by(Change::Remove { path: group.path(left) });
    }
    if !snapshots.is_empty() {
        let snapshots = snapshots.into_iter().cloned().collect();
        return Err(Refusal::HasSnapshots { path: path.clone(), snapshots });
    }
    done_by(Change::Remove { path: path.clone() })
}

/// What was made for a volume that is gone goes too.
fn remove_leftovers(situation: Situation<'_>, path: &VolumePath) -> Result<Next, Refusal> {
    for group in situation.inventory.groups.values() {
        let left =
            group.volumes.values().find(|volume| Facts::of(volume).temporary.as_ref() == Some(&path.volume));
        if let Some(left) = left {
            return done_by(Change::Remove { path: group.path(&left.name) });
        }
    }
    Ok(Next::Done)
}
