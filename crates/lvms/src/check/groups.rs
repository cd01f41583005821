//! Volume groups: whether they are there, and what is left of them.

use lvms_host::desired::{ClassKind, Desired, DeviceClass};
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory::{Group, Inventory};
use lvms_host::names::VolumePath;
use lvms_host::plan::capacity::Situation;
use lvms_host::runner::{Linux, Runner};
use lvms_host::units::Bytes;
use lvms_node::known::{options, options_for};

use super::Findings;

pub(super) fn check_suspended(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    for group in desired.iter().flat_map(|desired| desired.groups()) {
        for device in linux.suspended(group).unwrap_or_default() {
            let problem = format!(
                "device {device} is suspended, and all I/O to it waits: an LVM command is at work in the group, hangs, \
                 or was killed"
            );
            let remedy = format!("if none runs, run dmsetup resume {device}");
            findings.error(&format!("volume group {group}"), (problem, remedy));
        }
    }
}

/// Groups and pools of classes, their free space, and the room in the groups' metadata areas.
pub(super) fn check(linux: &Linux, desired: &Desired, inventory: &Inventory, findings: &mut Findings) {
    let pool = |path: &VolumePath| linux.pool(path).ok().flatten();
    let situation = Situation { inventory, pool: &pool, raid: &|_| None };
    let mut check_room = |class: &DeviceClass, what: &str, options: Vec<String>| match situation
        .largest(class, &options_for(class, options))
    {
        Ok(free) if free.0 == 0 => findings.warn(what, ("has no room for another volume", more_room(class))),
        Ok(free) => findings.ok(what, format!("has room for a volume of {free}")),
        Err(refusal) => findings.error(what, refusal),
    };
    for class in &desired.classes {
        let what = format!("class {}", class.name);
        check_room(class, &what, options(class));
        if matches!(class.kind, ClassKind::Thick) {
            for (name, options) in &desired.option_classes {
                check_room(class, &format!("{what} with option class {name}"), options.clone());
            }
        }
    }
    for pool in desired
        .classes
        .iter()
        .filter_map(|class| Some(VolumePath { group: class.group.clone(), volume: class.pool()?.clone() }))
    {
        check_pool(inventory, &pool, findings);
    }
    for group in desired.groups().into_iter().filter_map(|name| inventory.groups.get(name)) {
        check_group(group, findings);
    }
}

fn more_room(class: &DeviceClass) -> String {
    let group = &class.group;
    match class.pool() {
        Some(pool) => {
            format!(
                "remove volumes, extend the pool with lvextend {group}/{pool}, or raise overprovision-ratio"
            )
        }
        None => format!("remove volumes, add a disk with vgextend {group}, or lower spare-gb"),
    }
}

fn check_pool(inventory: &Inventory, pool: &VolumePath, findings: &mut Findings) {
    if inventory.volume(pool).is_some_and(|volume| volume.is_pool() && volume.attribute(8) != 'z') {
        let problem = "it does not zero what it gives: no new volume for block access is made in it, and those that are \
             there show what was there before";
        let remedy = format!("run lvchange --zero y {pool}, which holds for what it gives from then on");
        findings.warn(&format!("thin pool {pool}"), (problem, remedy));
    }
}

fn check_group(group: &Group, findings: &mut Findings) {
    let what = format!("volume group {}", group.name);
    let (size, free) = group.metadata;
    // LVM writes new metadata beside the old.
    let left = format!("its metadata area has {free} of {} left", Bytes(size.0 / 2));
    if free.0 * 5 < size.0 / 2 {
        let remedy = "remove volumes or snapshots, or add a disk with a larger one (vgextend --metadatasize) and set the \
             small ones aside (pvchange --metadataignore y)";
        findings.warn(&what, (format!("{left}, which limits the number of volumes"), remedy));
    } else {
        findings.ok(&what, left);
    }
    for volume in group.volumes.values() {
        let facts = Facts::of(volume);
        if let Some(owner) = &facts.temporary {
            let problem =
                format!("{} serves a copy to {owner} or its growth, or was left by them", volume.name);
            findings.warn(
                &what,
                (problem, format!("it goes when the same call comes again, or {owner} is removed")),
            );
        }
        if facts.is_ours() && volume.attribute(10) == 'k' {
            let path = group.path(&volume.name);
            let problem = format!("{} is skipped when the host activates volumes", volume.name);
            findings.warn(&what, (problem, format!("run lvchange -kn {path}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use lvms_host::simulated;

    use super::*;
    use crate::check::findings::Verdict;

    #[test]
    fn a_metadata_area_that_is_almost_full_is_told_with_what_makes_room() {
        let told = |free| {
            let mut findings = Findings::default();
            let metadata = (Bytes::mib(1), Bytes::kib(free));
            check_group(&Group { metadata, ..simulated::group(&[10]) }, &mut findings);
            let [finding] = findings.all() else { panic!("{:?}", findings.all()) };
            (finding.verdict, finding.message.contains("vgextend --metadatasize"))
        };
        assert_eq!((told(300), told(100)), ((Verdict::Ok, false), (Verdict::Warning, true)));
    }

    #[test]
    fn a_class_that_is_full_is_told_with_what_makes_room_in_it() {
        let text = "device-classes: [{name: a, volume-group: vg}, {name: b, volume-group: vg, type: thin, \
                    thin-pool: {name: p, overprovision-ratio: 1}}]";
        let classes = lvms_host::desired::lvmd::read(text).unwrap().desired.classes;
        let remedies: Vec<String> = classes.iter().map(more_room).collect();
        assert!(remedies[0].contains("vgextend vg") && remedies[0].contains("spare-gb"), "{remedies:?}");
        assert!(remedies[1].contains("lvextend vg/p") && remedies[1].contains("ratio"), "{remedies:?}");
    }
}
