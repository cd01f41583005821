//! Volumes that go.

use super::{changeable, done_by, unless_synchronising};
use crate::facts::Facts;
use crate::lvm::Change;
use crate::names::{LvName, VolumePath};
use crate::plan::capacity::Situation;
use crate::plan::{Next, Refusal, Step};

/// So many go with one command, at most: it has to end within the time that one change has.
const MOST: usize = 8;

/// The next step until a volume is gone. What depends on it is never taken along.
pub fn remove(situation: Situation<'_>, path: &VolumePath) -> Result<Next, Refusal> {
    unless_synchronising(situation, next_to_removal(situation, path)?)
}

fn next_to_removal(situation: Situation<'_>, path: &VolumePath) -> Result<Next, Refusal> {
    let group =
        situation.inventory.groups.get(&path.group).ok_or_else(|| Refusal::NoGroup(path.group.clone()))?;
    let Some(volume) = group.volumes.get(&path.volume) else {
        return remove_leftovers(situation, path);
    };
    changeable(path, &Facts::of(volume))?;
    if !volume.is_volume() {
        return Err(Refusal::NotAVolume(path.clone()));
    }
    let (temporary, snapshots): (Vec<&LvName>, Vec<&LvName>) =
        group.dependants_of(&path.volume).into_iter().partition(|name| {
            Facts::of(&group.volumes[*name]).temporary.as_ref().is_some_and(|target| {
                !situation.inventory.groups.values().any(|group| group.volumes.contains_key(target))
            })
        });
    if let Some(left) = temporary.first() {
        return done_by(Change::remove(group.path(left)));
    }
    if !snapshots.is_empty() {
        let snapshots = snapshots.into_iter().cloned().collect();
        return Err(Refusal::HasSnapshots { path: path.clone(), snapshots });
    }
    let copies = copies_of(situation, path);
    if !copies.is_empty() {
        return Err(Refusal::BeingCopied { path: path.clone(), copies });
    }
    done_by(Change::remove(path.clone()))
}

/// Volumes that are being copied from this one, and without it would be finished by nobody. A thick snapshot is not even
/// open until the copy begins, nor after a crash.
fn copies_of(situation: Situation<'_>, path: &VolumePath) -> Vec<VolumePath> {
    let source = Some(path.to_string());
    let groups = situation.inventory.groups.values();
    let all =
        groups.flat_map(|group| group.volumes.values().map(|volume| (group.path(&volume.name), volume)));
    let copies = all.filter(|(copy, volume)| copy != path && Facts::of(volume).copying == source);
    copies.map(|(copy, _)| copy).collect()
}

/// What was made for a volume that is gone goes too.
fn remove_leftovers(situation: Situation<'_>, path: &VolumePath) -> Result<Next, Refusal> {
    for group in situation.inventory.groups.values() {
        let left =
            group.volumes.values().find(|volume| Facts::of(volume).temporary.as_ref() == Some(&path.volume));
        if let Some(left) = left {
            return done_by(Change::remove(group.path(&left.name)));
        }
    }
    Ok(Next::Done)
}

/// Like [`remove`]. Of the others, whose removal is wished as well, those go with the same command that need no other
/// step before.
pub fn remove_with<'a>(
    situation: Situation<'_>,
    path: &VolumePath,
    others: impl IntoIterator<Item = &'a VolumePath>,
) -> Result<Next, Refusal> {
    let next = remove(situation, path)?;
    if !is_removal_of(&next, path) {
        return Ok(next);
    }
    let others = others.into_iter().filter(|other| {
        other.group == path.group
            && *other != path
            && remove(situation, other).is_ok_and(|next| is_removal_of(&next, other))
    });
    let others = others.take(MOST - 1).map(|other| other.volume.clone()).collect();
    done_by(Change::Remove { path: path.clone(), others })
}

fn is_removal_of(next: &Next, path: &VolumePath) -> bool {
    let Next::Do(step) = next else { return false };
    matches!(&**step, Step::Change(Change::Remove { path: removed, .. }) if removed == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lvm::inventory::Kind;
    use crate::lvm::model;
    use crate::lvm::{Group, Inventory};
    use crate::simulated::group;
    use crate::units::Extents;
    use std::sync::Arc;

    fn path(name: &str) -> VolumePath {
        VolumePath { group: group(&[1]).name, volume: LvName::parse(name).unwrap() }
    }

    fn thick(name: &str) -> Change {
        let (options, tags, on) = <(Vec<_>, Vec<_>, Vec<_>)>::default();
        Change::CreateThick { path: path(name), extents: Extents(1), options, tags, on }
    }

    fn next(group: Group, volume: &str, others: &[VolumePath]) -> Result<Next, Refusal> {
        let inventory = Inventory::of(group);
        let situation = Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None };
        remove_with(situation, &path(volume), others)
    }

    /// Which go with a volume.
    fn with(group: Group, volume: &str, others: &[VolumePath]) -> Vec<String> {
        let next = next(group, volume, others).unwrap();
        let Next::Do(step) = next else { panic!("{next:?}") };
        let Step::Change(Change::Remove { path: removed, others }) = *step else { panic!("{step:?}") };
        assert_eq!(removed, path(volume));
        others.iter().map(LvName::to_string).collect()
    }

    #[test]
    fn what_others_depend_on_or_is_not_there_does_not_go_with_a_volume() {
        let mut group = group(&[100]);
        let (name, store) = (path("snapshot").volume, Extents(1));
        let snapshot =
            Change::SnapshotThick { origin: path("origin"), name, store, chunk: None, tags: Vec::new() };
        for change in [thick("a"), thick("b"), thick("origin"), snapshot] {
            model::apply(&mut group, &change).unwrap();
        }
        let elsewhere = VolumePath { group: crate::names::VgName::parse("other").unwrap(), ..path("b") };
        let others = [path("a"), path("b"), path("gone"), path("origin"), path("snapshot"), elsewhere];
        assert_eq!(with(group, "a", &others), ["b", "snapshot"]);
    }

    #[test]
    fn what_reads_from_a_volume_keeps_it_whatever_kind_it_is() {
        let mut group = group(&[100]);
        let (tags, thin) = (Vec::new(), |pool: &str, origin: &str| Kind::Thin {
            pool: path(pool).volume,
            origin: Some(path(origin).volume),
        });
        for (name, kind) in [
            ("origin", None),
            ("alone", None),
            ("thin", Some(thin("pool", "alone-before"))),
            ("reads-thick", Some(thin("pool", "origin"))),
            ("reads-thin", Some(thin("another-pool", "thin"))),
            ("snapshot", Some(thin("pool", "reads-thick"))),
        ] {
            model::apply(&mut group, &thick(name)).unwrap();
            if let Some(kind) = kind {
                group.volumes.get_mut(&path(name).volume).unwrap().kind = kind;
            }
        }
        let (name, store, chunk) = (path("cow").volume, Extents(1), None);
        let cow = Change::SnapshotThick { origin: path("origin"), name, store, chunk, tags };
        model::apply(&mut group, &cow).unwrap();
        for (kept, dependants) in [("origin", vec!["cow", "reads-thick"]), ("thin", vec!["reads-thin"])] {
            let refused = next(group.clone(), kept, &[]).unwrap_err();
            let snapshots = dependants.into_iter().map(|name| path(name).volume).collect();
            assert_eq!(refused, Refusal::HasSnapshots { path: path(kept), snapshots });
        }
        for goes in ["alone", "reads-thick", "reads-thin", "snapshot", "cow"] {
            assert_eq!(with(group.clone(), goes, &[]), [""; 0]);
        }
    }

    #[test]
    fn what_a_copy_is_made_from_stays_until_that_is_finished_or_gone() {
        let (mut here, mut elsewhere) = (group(&[100]), group(&[100]));
        elsewhere.name = crate::names::VgName::parse("other").unwrap();
        let (name, store, chunk, tags) = (path("snapshot").volume, Extents(1), None, Vec::new());
        let snapshot = Change::SnapshotThick { origin: path("origin"), name, store, chunk, tags };
        for change in [thick("origin"), snapshot, thick("copy"), thick("beside")] {
            model::apply(&mut here, &change).unwrap();
        }
        let copy = here.volumes[&path("copy").volume].clone();
        let copying = |of: &str| {
            let facts = Facts { copying: Some(path(of).to_string()), ..Facts::default() };
            let tags = facts.tags().iter().map(ToString::to_string).collect();
            crate::lvm::Volume { tags, ..copy.clone() }
        };
        let next = |here: &Group, elsewhere: &Group, volume: &str, others: &[VolumePath]| {
            let groups = [here, elsewhere].map(|group| (group.name.clone(), Arc::new(group.clone())));
            let inventory = Inventory { groups: groups.into(), ..Inventory::default() };
            remove_with(
                Situation { inventory: &inventory, pool: &|_| None, raid: &|_| None },
                &path(volume),
                others,
            )
        };
        let goes = |next: Result<Next, Refusal>| matches!(next, Ok(Next::Do(_)));
        assert!(goes(next(&here, &elsewhere, "snapshot", &[])), "it is copied");
        let refused = |copies: Vec<VolumePath>| Err(Refusal::BeingCopied { path: path("snapshot"), copies });
        let (mut with_copy, empty) = (here.clone(), elsewhere.clone());
        with_copy.volumes.insert(path("copy").volume, copying("snapshot"));
        elsewhere.volumes.insert(path("copy").volume, copying("snapshot"));
        for (here, elsewhere, copies) in [
            (&with_copy, &empty, vec![path("copy")]),
            (&here, &elsewhere, vec![elsewhere.path(&path("copy").volume)]),
        ] {
            assert_eq!(next(here, elsewhere, "snapshot", &[]), refused(copies));
            // Nor does it go with another.
            let Ok(Next::Do(step)) = next(here, elsewhere, "beside", &[path("snapshot")]) else { panic!() };
            assert_eq!(*step, Step::Change(Change::remove(path("beside"))));
        }
        assert!(goes(next(&with_copy, &elsewhere, "copy", &[])), "who gives a copy up deletes it");
        with_copy.volumes.insert(path("copy").volume, copying("copy"));
        assert!(goes(next(&with_copy, &elsewhere, "copy", &[])), "it keeps itself from nothing");
    }

    #[test]
    fn one_command_has_an_end() {
        let mut group = group(&[100]);
        let names: Vec<String> = (0..20).map(|number| format!("v{number:02}")).collect();
        for name in &names {
            model::apply(&mut group, &thick(name)).unwrap();
        }
        let others: Vec<VolumePath> = names.iter().map(|name| path(name)).collect();
        assert_eq!(with(group, "v05", &others).len(), MOST - 1);
    }
}
