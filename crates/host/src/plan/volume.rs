//! Volumes: made, copied, grown, removed.

mod growth;
mod removal;
mod snapshot;
mod source;
mod synchronising;

pub use growth::grow;
pub use removal::{remove, remove_with};
pub use snapshot::{extend_store, is_half_made, may_overflow, snapshot};
pub(crate) use source::has_former_bytes;
use source::{Source, does_not_zero, leftover, zeroes};
pub use source::{has_leftover, is_for_block};
use synchronising::unless_synchronising;

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

/// The next step to the wished volume.
pub fn create(situation: Situation<'_>, wish: &Wish<'_>) -> Result<Next, Refusal> {
    unless_synchronising(situation, next_to(situation, wish)?)
}

fn next_to(situation: Situation<'_>, wish: &Wish<'_>) -> Result<Next, Refusal> {
    let group = situation.group(wish.class)?;
    let present = group.volumes.get(&wish.name);
    // Of what is copied the source is nobody's concern any more: it may have grown, or be gone.
    let source = match &wish.source {
        Some(path) if present.is_none_or(|present| Facts::of(present).copying.is_some()) => {
            Some(Source::find(situation, path, wish)?)
        }
        Some(_) | None => None,
    };
    if let Some(path) = leftover(situation, wish, source.as_ref()) {
        return done_by(Change::remove(path));
    }
    let extents = wish.shape().round_up(wish.size.in_extents(group.extent));
    let size = extents.bytes(group.extent);
    match present {
        None => begin(situation, wish, group, source.as_ref(), extents),
        Some(volume) => go_on(wish, group, volume, source.as_ref(), size),
    }
}

fn begin(
    situation: Situation<'_>,
    wish: &Wish<'_>,
    group: &Group,
    source: Option<&Source<'_>>,
    extents: Extents,
) -> Result<Next, Refusal> {
    let size = extents.bytes(group.extent);
    // What a copy reads it also writes.
    let read = source.map_or(Bytes::ZERO, |source| source.length(&wish.name));
    if wish.size < read {
        return give_up(wish, source, Refusal::SmallerThanSource { source_size: read, wanted: wish.size });
    }
    if let Some(source) = source.filter(|source| wish.facts.block && source.has_former_bytes()) {
        let reason = "it was made for a filesystem and never zeroed, and as a block device its copy would show what was \
                      there before: ask for a copy with a filesystem";
        return Err(Refusal::BadSource { path: source.path.clone(), reason });
    }
    let written = if source.is_some_and(|source| source.instant) { Bytes::ZERO } else { read };
    if let Some(pool) = wish.class.pool()
        && wish.facts.block
        && size > written
        && !zeroes(group, pool)
    {
        return Err(does_not_zero(group, pool));
    }
    if let Some(limit) = wish.limit.filter(|limit| size > *limit) {
        return Err(Refusal::AboveLimit { size, limit });
    }
    let free = match situation.largest(wish.class, &wish.options) {
        Ok(free) => free,
        Err(full @ Refusal::PoolFull { .. }) => return give_up(wish, source, full),
        Err(refusal) => return Err(refusal),
    };
    let store = source.map_or(Extents::ZERO, |source| source.store_to_come(&wish.name));
    let is_beside = wish.is_thick() && source.is_some_and(|source| source.group.name == group.name);
    let wanted = if is_beside { size + store.bytes(group.extent) } else { size };
    if wanted > free {
        return give_up(wish, source, Refusal::NoSpace { place: place(wish.class), free, wanted });
    }
    if let Some(source) = source.filter(|source| !is_beside && store > source.group.to_be_had()) {
        let bytes = |extents: Extents| extents.bytes(source.group.extent);
        return Err(Refusal::NoSpace {
            place: format!("volume group {}, in which the copy needs a snapshot,", source.group.name),
            free: bytes(source.group.to_be_had()),
            wanted: bytes(store),
        });
    }
    let path = wish.path();
    let mut facts = wish.facts.clone();
    if let Some(source) = source {
        facts.former = source.has_former_bytes();
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
        facts.zeroing = (read < size).then_some(read);
    }
    let (options, tags) = (wish.options.clone(), facts.tags());
    done_by(match &wish.class.kind {
        ClassKind::Thick => {
            let options = Shape::explicit(options);
            Change::CreateThick { path, extents, options, tags, on: Vec::new() }
        }
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
        // Of a moment that is lost, bytes would stay wherever the next one has zeros, which are not written.
        if source.is_lost(&wish.name) {
            return done_by(Change::remove(path));
        }
        if let Some(change) = source.make_readable(&wish.name) {
            return done_by(change);
        }
        if !volume.active {
            return done_by(Change::Activate { path });
        }
        let (from, length) = (source.reading(&wish.name), source.length(&wish.name));
        let dirty = !is_new_space_zero(wish, group);
        return do_next(Step::Copy { from, to: path, length, dirty, then: copied });
    }
    if let Some(step) = zero_rest(&path, volume, &facts) {
        return do_next(step);
    }
    Ok(Next::Done)
}

/// The snapshot for the copy is given up with it. It may be what has taken the room: where a volume lies on several disks,
/// one extent of a snapshot costs it more than one.
fn give_up(wish: &Wish<'_>, source: Option<&Source<'_>>, refusal: Refusal) -> Result<Next, Refusal> {
    match source.and_then(|source| source.snapshot_for(&wish.name)) {
        Some(path) => do_next(Step::GiveUp(Change::remove(path), refusal)),
        None => Err(refusal),
    }
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

/// Whether this version knows all that is to be known of a volume: what a newer one made it does not change, show or copy.
pub(crate) fn changeable(path: &VolumePath, facts: &Facts) -> Result<(), Refusal> {
    match facts.newer_format {
        Some(format) => Err(Refusal::Newer { path: path.clone(), format }),
        None => Ok(()),
    }
}

/// Whether what a new volume was given holds zeros: a pool may have been made without zeroing.
fn is_new_space_zero(wish: &Wish<'_>, group: &Group) -> bool {
    wish.class.pool().is_some_and(|pool| zeroes(group, pool))
}

/// Whether a volume that is there is the wished one.
fn same(wish: &Wish<'_>, volume: &Volume, facts: &Facts, size: Bytes) -> Result<(), Refusal> {
    let another = |difference: String| Err(Refusal::Another { path: wish.path(), difference });
    let fits = match (&volume.kind, &wish.class.kind) {
        (Kind::Thick(_), ClassKind::Thick) => true,
        // Somebody has put a cache before it since.
        (Kind::Other(_), ClassKind::Thick) => volume.is_volume(),
        (Kind::Thin { pool, .. }, ClassKind::Thin { pool: wished, .. }) => pool == wished,
        _ => false,
    };
    if !fits || facts.snapshot {
        return another("it is of another class or kind".to_owned());
    }
    if let Kind::Thick(layout) = &volume.kind
        && Shape::of_layout(layout) != wish.shape()
    {
        return another(format!("it is {} on {} disks", layout.segment, layout.stripes));
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

#[cfg(test)]
mod tests;
