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
    let free = situation.largest(wish.class, &wish.options)?;
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
mod tests {
    use std::sync::Arc;

    use super::source::temporary;
    use super::*;
    use crate::lvm::{Inventory, model};
    use crate::names::VgName;
    use crate::simulated::group;
    use crate::simulated::history::{Class, device_class};

    const GOOD: crate::dm::Pool = crate::dm::Pool {
        data: crate::dm::Fill { used: 0, total: 1000 },
        metadata: crate::dm::Fill { used: 0, total: 1000 },
        state: crate::dm::PoolState::Good,
        needs_check: false,
    };

    fn path(name: &str) -> VolumePath {
        VolumePath { group: VgName::parse("vg").unwrap(), volume: LvName::parse(name).unwrap() }
    }

    fn named(name: &str) -> Facts {
        Facts { name: Some(name.into()), ..Facts::default() }
    }

    fn thick(name: &str, facts: &Facts) -> Change {
        let (options, on) = (Vec::new(), Vec::new());
        Change::CreateThick { path: path(name), extents: Extents(4), options, tags: facts.tags(), on }
    }

    fn thin(name: &str, facts: &Facts) -> Change {
        let (pool, size) = (LvName::parse("pool").unwrap(), Bytes::mib(16));
        Change::CreateThin { path: path(name), pool, size, options: Vec::new(), tags: facts.tags() }
    }

    fn with_pool(attributes: &str) -> Group {
        let mut group = group(&[100]);
        let pool = LvName::parse("pool").unwrap();
        model::apply(&mut group, &thick("pool", &Facts::default())).unwrap();
        let volume = group.volumes.get_mut(&pool).unwrap();
        volume.kind = Kind::Pool { chunk: Bytes::kib(64), metadata: Bytes::mib(4) };
        volume.attributes = attributes.to_owned();
        group
    }

    fn next(mut group: Group, changes: &[Change], class: Class, facts: Facts) -> Result<Next, Refusal> {
        for change in changes {
            model::apply(&mut group, change).unwrap();
        }
        let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
        let situation = Situation { inventory: &inventory, pool: &|_| Some(GOOD), raid: &|_| None };
        let class = device_class(class);
        let wish = Wish {
            name: LvName::parse("copy").unwrap(),
            class: &class,
            options: Vec::new(),
            size: Bytes::mib(16),
            limit: None,
            facts,
            source: Some(path("source")),
        };
        create(situation, &wish)
    }

    #[test]
    fn a_volume_of_another_layout_is_another_one() {
        let layouts: [&[&str]; 7] =
            [&[], &["-i2"], &["-i3"], &["-m1"], &["--type=raid5"], &["--type=raid6"], &["-m1", "-i2"]];
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for (made, wished) in layouts.iter().flat_map(|one| layouts.map(|other| (*one, other))) {
            let mut group = group(&[100; 5]);
            let (options, on, extents) = (words(made), Vec::new(), Extents(12));
            let tags = named("v").tags();
            let change = Change::CreateThick { path: path("v"), extents, options, tags, on };
            model::apply(&mut group, &change).unwrap();
            let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
            let class = device_class(Class::Linear);
            let wish = Wish {
                name: path("v").volume,
                class: &class,
                options: words(wished),
                size: Bytes::mib(48),
                limit: None,
                facts: named("v"),
                source: None,
            };
            let next = create(Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None }, &wish);
            if made == wished {
                assert_eq!(next, Ok(Next::Done), "{made:?}");
            } else {
                assert!(matches!(next, Err(Refusal::Another { .. })), "{made:?} {wished:?}: {next:?}");
            }
        }
    }

    #[test]
    fn a_block_device_is_no_copy_of_what_was_never_zeroed() {
        let block = |name: &str| Facts { block: true, ..named(name) };
        let used = Facts { used: true, filesystem: Some("ext4".into()), ..named("source") };
        let by_others = Facts { used: true, filesystem: Some("ext4".into()), ..Facts::default() };
        let snapshot = |facts: &Facts| {
            let (origin, name) = (path("origin"), LvName::parse("source").unwrap());
            let tags = Facts { snapshot: true, ..named("source") }.tags();
            let store = Extents(4);
            vec![thick("origin", facts), Change::SnapshotThick { origin, name, store, chunk: None, tags }]
        };
        let made = |changes: &[Change], class, facts| next(with_pool("twi-a-tz--"), changes, class, facts);
        let former = Facts { former: true, ..used.clone() };
        for changes in [
            vec![thin("source", &former)],
            vec![thick("source", &named("source"))],
            vec![thick("source", &used)],
            vec![thick("source", &by_others)],
            snapshot(&used),
        ] {
            for class in [Class::Linear, Class::Thin] {
                let refused = made(&changes, class, block("copy"));
                assert!(matches!(refused, Err(Refusal::BadSource { .. })), "{changes:?} {refused:?}");
                assert!(made(&changes, class, named("copy")).is_ok(), "{changes:?}");
            }
        }
        for changes in [
            vec![thick("source", &Facts { used: true, ..block("source") })],
            // Somebody else made it, and has said of nothing what it is for.
            vec![thick("source", &Facts::default())],
            vec![thin("source", &used)],
            snapshot(&block("origin")),
        ] {
            assert!(made(&changes, Class::Linear, block("copy")).is_ok(), "{changes:?}");
        }
    }

    #[test]
    fn copies_of_what_was_never_zeroed_are_known_and_so_are_theirs() {
        let former = |next: Result<Next, Refusal>| {
            let Ok(Next::Do(step)) = next else { panic!("{next:?}") };
            let Step::Change(
                Change::CreateThin { tags, .. }
                | Change::SnapshotThin { tags, .. }
                | Change::CreateThick { tags, .. },
            ) = *step
            else {
                panic!("{step:?}")
            };
            tags.iter().any(|tag| tag.as_str() == "lvms.io/former")
        };
        let made =
            |changes: &[Change]| former(next(with_pool("twi-a-tz--"), changes, Class::Thin, named("copy")));
        let readable = Change::SnapshotThick {
            origin: path("source"),
            name: temporary(&path("copy").volume).unwrap(),
            store: Extents(4),
            chunk: None,
            tags: Facts { temporary: Some(path("copy").volume), ..Facts::default() }.tags(),
        };
        let block = Facts { block: true, ..named("source") };
        assert!(made(&[thick("source", &named("source")), readable.clone()]));
        assert!(!made(&[thick("source", &block), readable]));
        assert!(made(&[thin("source", &Facts { former: true, ..named("source") })]));
        assert!(!made(&[thin("source", &named("source"))]));
    }

    #[test]
    fn a_pool_that_does_not_zero_gives_no_block_device_what_nobody_has_written() {
        let block = |name: &str| Facts { block: true, ..named(name) };
        let made = |attributes: &str, source: &Change, facts| {
            next(with_pool(attributes), std::slice::from_ref(source), Class::Thin, facts)
        };
        let (zeroes, does_not) = ("twi-aotz--", "twi-aot---");
        let (in_pool, of_filesystem) = (thin("source", &block("source")), thin("source", &named("source")));
        let refused = made(does_not, &in_pool, block("copy"));
        assert!(matches!(refused, Err(Refusal::PoolUnusable { .. })), "{refused:?}");
        let refused = made(does_not, &of_filesystem, block("copy"));
        assert!(matches!(refused, Err(Refusal::BadSource { .. })), "{refused:?}");
        for (attributes, source, facts) in [
            (zeroes, &in_pool, block("copy")),
            (zeroes, &of_filesystem, block("copy")),
            (does_not, &of_filesystem, named("copy")),
            // Every byte is written.
            (does_not, &thick("source", &block("source")), block("copy")),
            // TopoLVM's own are as they are.
            (does_not, &thin("source", &Facts::default()), named("copy")),
        ] {
            let made = made(attributes, source, facts);
            assert!(made.is_ok(), "{attributes} {source:?} {made:?}");
        }
        let grown = |attributes: &str, facts: &Facts| {
            let mut group = with_pool(attributes);
            model::apply(&mut group, &thin("v", facts)).unwrap();
            let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
            let situation = Situation { inventory: &inventory, pool: &|_| Some(GOOD), raid: &|_| None };
            grow(situation, &device_class(Class::Thin), &path("v"), Bytes::mib(32), false)
        };
        assert!(matches!(grown(does_not, &block("v")), Err(Refusal::PoolUnusable { .. })));
        for (attributes, facts) in
            [(zeroes, block("v")), (does_not, named("v")), (does_not, Facts::default())]
        {
            assert!(matches!(grown(attributes, &facts), Ok(Next::Do(_))), "{attributes} {facts:?}");
        }
    }

    #[test]
    fn what_is_alive_is_not_copied_under_a_name_that_leaves_none_for_a_snapshot() {
        let source = thick("source", &named("source"));
        for (length, fits) in [(117, true), (118, false)] {
            let mut group = group(&[100]);
            model::apply(&mut group, &source).unwrap();
            let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
            let class = device_class(Class::Linear);
            let wish = Wish {
                name: LvName::parse(&"n".repeat(length)).unwrap(),
                class: &class,
                options: Vec::new(),
                size: Bytes::mib(16),
                limit: None,
                facts: named("copy"),
                source: Some(path("source")),
            };
            let next = create(Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None }, &wish);
            assert_eq!(next.is_ok(), fits, "{next:?}");
            assert!(fits || matches!(next, Err(Refusal::BadSource { .. })));
        }
    }

    #[test]
    fn a_given_up_snapshot_of_another_source_goes_first_and_one_that_is_not_ours_stays() {
        for (facts, goes) in [
            (Facts { temporary: Some(path("copy").volume), ..Facts::default() }, true),
            (Facts { temporary: Some(path("another").volume), ..Facts::default() }, false),
            (Facts::default(), false),
        ] {
            let (name, tags) = (temporary(&path("copy").volume).unwrap(), facts.tags());
            let removal = Next::Do(Box::new(Step::Change(Change::remove(path(name.as_str())))));
            let snapshot =
                Change::SnapshotThick { origin: path("other"), name, store: Extents(4), chunk: None, tags };
            let changes = [thick("source", &named("source")), thick("other", &named("other")), snapshot];
            let next = next(group(&[100]), &changes, Class::Linear, named("copy"));
            assert_eq!(next.is_ok_and(|next| next == removal), goes, "{facts:?}");
        }
    }

    #[test]
    fn a_copy_is_not_finished_while_its_snapshot_is_there() {
        for (tags, expected) in [
            (Facts { temporary: Some(path("copy").volume), ..Facts::default() }.tags(), true),
            (Vec::new(), false),
        ] {
            let mut group = group(&[100]);
            let name = temporary(&path("copy").volume).unwrap();
            let snapshot =
                Change::SnapshotThick { origin: path("source"), name, store: Extents(4), chunk: None, tags };
            for change in [thick("source", &named("source")), snapshot, thick("copy", &named("copy"))] {
                model::apply(&mut group, &change).unwrap();
            }
            let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
            assert_eq!(has_leftover(&inventory, &path("copy").volume), expected);
            assert!(!has_leftover(&inventory, &path("source").volume));
        }
    }

    #[test]
    fn a_copy_goes_on_though_its_source_has_grown_meanwhile() {
        let temporary = temporary(&path("copy").volume).unwrap();
        let readable = Change::SnapshotThick {
            origin: path("source"),
            name: temporary.clone(),
            store: Extents(4),
            chunk: None,
            tags: Facts { temporary: Some(path("copy").volume), ..Facts::default() }.tags(),
        };
        let block = |name: &str| Facts { block: true, ..named(name) };
        let begun = [thick("source", &block("source")), readable];
        let copying = Facts { copying: Some("vg/source".into()), ..block("copy") };
        // Of 16 MiB each; then the source has more, or is gone.
        let next = |copy: Option<&Facts>, source: Option<u64>, wanted: u64| {
            let mut group = with_pool("twi-aotz--");
            let copy = copy.map(|facts| thick("copy", facts));
            for change in begun.iter().chain(&copy) {
                model::apply(&mut group, change).unwrap();
            }
            match source {
                Some(size) => {
                    group.volumes.get_mut(&path("source").volume).unwrap().size = Bytes::mib(size);
                }
                None => drop(group.volumes.remove(&path("source").volume)),
            }
            let inventory = Inventory { groups: [(group.name.clone(), Arc::new(group))].into() };
            let class = device_class(Class::Linear);
            let wish = Wish {
                name: path("copy").volume,
                class: &class,
                options: Vec::new(),
                size: Bytes::mib(wanted),
                limit: None,
                facts: block("copy"),
                source: Some(path("source")),
            };
            match create(Situation { inventory: &inventory, pool: &|_| Some(GOOD), raid: &|_| None }, &wish) {
                Ok(Next::Do(step)) => *step,
                other => panic!("{other:?}"),
            }
        };
        for size in [16, 20, 32] {
            let begins = next(None, Some(size), 24);
            let Step::Change(Change::CreateThick { tags, .. }) = &begins else { panic!("{begins:?}") };
            let zeroing = format!("lvms.io/zeroing={}", Bytes::mib(16).0);
            assert!(tags.iter().any(|tag| tag.as_str() == zeroing), "{size}: {tags:?}");
            let copies = next(Some(&copying), Some(size), 16);
            assert!(
                matches!(copies, Step::Copy { length, .. } if length == Bytes::mib(16)),
                "{size}: {copies:?}"
            );
        }
        for source in [Some(16), Some(32), None] {
            let ends = next(Some(&block("copy")), source, 16);
            let removal = Change::remove(path(temporary.as_str()));
            assert_eq!(ends, Step::Change(removal), "{source:?}");
        }
        // Nothing is left of what is refused.
        let refused = next(None, Some(16), 12);
        assert!(matches!(refused, Step::GiveUp(_, Refusal::SmallerThanSource { .. })), "{refused:?}");
    }

    #[test]
    fn zeros_are_written_into_what_may_hold_something_else() {
        let source = thick("source", &named("source"));
        let copying = Facts { copying: Some("vg/source".into()), ..named("copy") };
        let snapshot = Change::SnapshotThick {
            origin: path("source"),
            name: temporary(&path("copy").volume).unwrap(),
            store: Extents(4),
            chunk: None,
            tags: Facts { temporary: Some(path("copy").volume), ..Facts::default() }.tags(),
        };
        for (attributes, class, expected) in [
            ("twi-aotz--", Class::Thin, false),
            ("twi-aot---", Class::Thin, true),
            ("twi-aotz--", Class::Linear, true),
        ] {
            let copy = match class {
                Class::Thin => thin("copy", &copying),
                Class::Linear
                | Class::Striped
                | Class::Mirrored
                | Class::Parity
                | Class::DoubleParity
                | Class::MirroredStripes => thick("copy", &copying),
            };
            let changes = [source.clone(), snapshot.clone(), copy];
            let Ok(Next::Do(step)) = next(with_pool(attributes), &changes, class, named("copy")) else {
                panic!("nothing is copied")
            };
            assert!(matches!(*step, Step::Copy { dirty, .. } if dirty == expected), "{attributes} {step:?}");
        }
    }
}
