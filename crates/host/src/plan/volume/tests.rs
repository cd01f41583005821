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

/// From which `copy` is made of `source`.
fn snapshot_for_copy() -> Change {
    let (origin, name) = (path("source"), temporary(&path("copy").volume).unwrap());
    let tags = Facts { temporary: Some(path("copy").volume), ..Facts::default() }.tags();
    Change::SnapshotThick { origin, name, store: Extents(4), chunk: None, tags }
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

fn next(group: Group, changes: &[Change], class: Class, facts: Facts) -> Result<Next, Refusal> {
    next_in(GOOD, group, changes, class, facts)
}

fn next_in(
    pool: crate::dm::Pool,
    mut group: Group,
    changes: &[Change],
    class: Class,
    facts: Facts,
) -> Result<Next, Refusal> {
    for change in changes {
        model::apply(&mut group, change).unwrap();
    }
    let inventory = Inventory::of(group);
    let situation = Situation { inventory: &inventory, pool: &|_| Some(pool), raid: &|_| None };
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
        let inventory = Inventory::of(group);
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
    let readable = snapshot_for_copy();
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
        let inventory = Inventory::of(group);
        let situation = Situation { inventory: &inventory, pool: &|_| Some(GOOD), raid: &|_| None };
        grow(situation, &device_class(Class::Thin), &path("v"), Bytes::mib(32), crate::runner::Use::None)
    };
    assert!(matches!(grown(does_not, &block("v")), Err(Refusal::PoolUnusable { .. })));
    for (attributes, facts) in [(zeroes, block("v")), (does_not, named("v")), (does_not, Facts::default())] {
        assert!(matches!(grown(attributes, &facts), Ok(Next::Do(_))), "{attributes} {facts:?}");
    }
}

#[test]
fn what_is_alive_is_not_copied_under_a_name_that_leaves_none_for_a_snapshot() {
    let source = thick("source", &named("source"));
    for (length, fits) in [(117, true), (118, false)] {
        let mut group = group(&[100]);
        model::apply(&mut group, &source).unwrap();
        let inventory = Inventory::of(group);
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
        let inventory = Inventory::of(group);
        assert_eq!(has_leftover(&inventory, &path("copy").volume), expected);
        assert!(!has_leftover(&inventory, &path("source").volume));
    }
}

#[test]
fn a_copy_goes_on_though_its_source_has_grown_meanwhile() {
    let temporary = temporary(&path("copy").volume).unwrap();
    let readable = snapshot_for_copy();
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
        let inventory = Inventory::of(group);
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
fn the_snapshot_for_a_copy_goes_when_its_pool_has_become_full() {
    let full = crate::dm::Pool { data: crate::dm::Fill { used: 950, total: 1000 }, ..GOOD };
    let changes = [thick("source", &named("source")), snapshot_for_copy()];
    let begin = |changes| next_in(full, with_pool("twi-aotz--"), changes, Class::Thin, named("copy"));
    let Ok(Next::Do(step)) = begin(&changes) else { panic!("it stays") };
    assert!(matches!(*step, Step::GiveUp(_, Refusal::PoolFull { .. })), "{step:?}");
    assert!(matches!(begin(&changes[..1]), Err(Refusal::PoolFull { .. })));
}

#[test]
fn zeros_are_written_into_what_may_hold_something_else() {
    let source = thick("source", &named("source"));
    let copying = Facts { copying: Some("vg/source".into()), ..named("copy") };
    let snapshot = snapshot_for_copy();
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
