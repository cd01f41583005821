//! RAID whose images are just made to agree.

use crate::dm::Raid;
use crate::lvm::Change;
use crate::lvm::inventory::Kind;
use crate::names::VolumePath;
use crate::plan::capacity::Situation;
use crate::plan::{Next, Refusal, Step};

/// Refuses to remove copy-on-write snapshots of RAID with parity while its images are made to agree: Linux 6.1 may wait for
/// ever then, with the origin suspended.
pub(super) fn unless_synchronising(situation: Situation<'_>, next: Next) -> Result<Next, Refusal> {
    let Next::Do(step) = &next else { return Ok(next) };
    if let Step::Change(Change::Remove { path, others }) | Step::GiveUp(Change::Remove { path, others }, _) =
        &**step
    {
        for volume in [&path.volume].into_iter().chain(others) {
            can_go(situation, &VolumePath { group: path.group.clone(), volume: volume.clone() })?;
        }
    }
    Ok(next)
}

fn can_go(situation: Situation<'_>, path: &VolumePath) -> Result<(), Refusal> {
    let kind = |path: &VolumePath| situation.inventory.volume(path).map(|volume| &volume.kind);
    let Some(Kind::Cow { origin, .. }) = kind(path) else { return Ok(()) };
    let origin = VolumePath { group: path.group.clone(), volume: origin.clone() };
    let Some(Kind::Thick(layout)) = kind(&origin) else { return Ok(()) };
    if !["raid4", "raid5", "raid6"].iter().any(|raid| layout.segment.starts_with(raid)) {
        return Ok(());
    }
    match (situation.raid)(&origin).filter(Raid::is_at_work) {
        Some(raid) => Err(Refusal::Synchronising { path: path.clone(), origin, state: raid.to_string() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dm::Fill;
    use crate::facts::Facts;
    use crate::lvm::{Inventory, model};
    use crate::names::{LvName, VgName};
    use crate::plan::volume::remove_with;
    use crate::simulated::group;
    use crate::units::Extents;

    fn path(name: &str) -> VolumePath {
        VolumePath { group: VgName::parse("vg").unwrap(), volume: LvName::parse(name).unwrap() }
    }

    fn thick(name: &str, options: &[&str]) -> Change {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let (tags, on) = (Vec::new(), Vec::new());
        Change::CreateThick { path: path(name), extents: Extents(12), options, tags, on }
    }

    /// With `origin` of these options and its snapshots.
    fn planned(
        options: &[&str],
        action: Option<&str>,
        plan: impl Fn(Situation<'_>) -> Result<Next, Refusal>,
    ) -> Result<Next, Refusal> {
        let mut group = group(&[100; 5]);
        let snapshot = |name: &str, facts: Facts| {
            let (origin, name, tags) = (path("origin"), path(name).volume, facts.tags());
            Change::SnapshotThick { origin, name, store: Extents(1), chunk: None, tags }
        };
        let left = Facts { temporary: Some(path("gone").volume), ..Facts::default() };
        for change in [
            thick("origin", options),
            thick("alone", &["--type=raid5", "-i2"]),
            thick("plain", &[]),
            snapshot("snapshot", Facts::default()),
            snapshot("lvms-copy-gone", left),
        ] {
            model::apply(&mut group, &change).unwrap();
        }
        let inventory = Inventory::of(group);
        let raid = |_: &VolumePath| {
            let (level, health) = ("raid5_ls".to_owned(), "AAa".to_owned());
            let sync = Fill { used: 12, total: 100 };
            action.map(|action| Raid { level, health, sync, action: action.to_owned() })
        };
        plan(Situation { inventory: &inventory, pool: &|_| None, raid: &raid })
    }

    fn next(options: &[&str], action: Option<&str>, goes: &str, others: &[&str]) -> Result<Next, Refusal> {
        let others: Vec<VolumePath> = others.iter().map(|other| path(other)).collect();
        planned(options, action, |situation| remove_with(situation, &path(goes), &others))
    }

    fn is_refused(next: &Result<Next, Refusal>) -> bool {
        matches!(next, Err(Refusal::Synchronising { origin, .. }) if *origin == path("origin"))
    }

    #[test]
    fn a_snapshot_of_raid_with_parity_stays_while_its_images_are_made_to_agree() {
        for (options, has_parity) in [
            (&["--type=raid4", "-i2"][..], true),
            (&["--type=raid5", "-i2"], true),
            (&["--type=raid6", "-i3"], true),
            (&["--type=raid1", "-m1"], false),
            (&["--type=raid10", "-i2", "-m1"], false),
            (&[], false),
        ] {
            for (action, is_at_work) in
                [(Some("resync"), true), (Some("recover"), true), (Some("idle"), false), (None, false)]
            {
                // Also what a copy has left whose volume is gone, whoever looks for it.
                for goes in ["snapshot", "gone", "lvms-copy-gone"] {
                    let next = next(options, action, goes, &[]);
                    assert_eq!(
                        is_refused(&next),
                        has_parity && is_at_work,
                        "{options:?} {action:?} {next:?}"
                    );
                    assert!(next.is_ok() || is_refused(&next), "{next:?}");
                }
            }
        }
        let told = next(&["--type=raid5", "-i2"], Some("resync"), "snapshot", &[]).unwrap_err();
        assert!(told.to_string().contains("images AAa, resync 12 %"), "{told}");
    }

    #[test]
    fn a_copy_that_is_given_up_waits_for_its_snapshot() {
        for (action, is_at_work) in [("resync", true), ("idle", false)] {
            let next = planned(&["--type=raid5", "-i2"], Some(action), |situation| {
                let refusal = Refusal::NoSource(path("origin"));
                let step = Step::GiveUp(Change::remove(path("lvms-copy-gone")), refusal);
                unless_synchronising(situation, Next::Do(Box::new(step)))
            });
            assert_eq!((is_refused(&next), next.is_ok()), (is_at_work, !is_at_work), "{next:?}");
        }
    }

    #[test]
    fn what_has_no_such_origin_goes_and_does_not_take_such_a_snapshot_along() {
        let parity = ["--type=raid5", "-i2"];
        for goes in ["plain", "alone"] {
            let Ok(Next::Do(step)) = next(&parity, Some("resync"), goes, &["snapshot", "plain"]) else {
                panic!("{goes} stays")
            };
            let Step::Change(Change::Remove { others, .. }) = *step else { panic!("{step:?}") };
            assert!(!others.contains(&path("snapshot").volume), "{others:?}");
        }
    }
}
