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
            let message = format!(
                "device {device} is suspended, and all I/O to it waits: an LVM command is at work in the group, hangs, \
                 or was killed; if none runs, run dmsetup resume {device}"
            );
            findings.error(&format!("volume group {group}"), message);
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
        Ok(free) if free.0 == 0 => findings.warn(what, "has no room for another volume"),
        Ok(free) => findings.ok(what, format!("has room for a volume of {free}")),
        Err(refusal) => findings.error(what, refusal.to_string()),
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

fn check_pool(inventory: &Inventory, pool: &VolumePath, findings: &mut Findings) {
    if inventory.volume(pool).is_some_and(|volume| volume.is_pool() && volume.attribute(8) != 'z') {
        let message = format!(
            "it does not zero what it gives: no new volume for block access is made in it, and those that are there show \
             what was there before; run lvchange --zero y {pool}, which holds for what it gives from then on"
        );
        findings.warn(&format!("thin pool {pool}"), message);
    }
}

fn check_group(group: &Group, findings: &mut Findings) {
    let what = format!("volume group {}", group.name);
    let (size, free) = group.metadata;
    // LVM writes new metadata beside the old.
    let left = format!("its metadata area has {free} of {} left", Bytes(size.0 / 2));
    if free.0 * 5 < size.0 / 2 {
        findings.warn(&what, format!("{left}: it limits the number of volumes"));
    } else {
        findings.ok(&what, left);
    }
    for volume in group.volumes.values() {
        let facts = Facts::of(volume);
        if let Some(owner) = &facts.temporary {
            let message = format!(
                "{} was left by a copy for {owner}: it goes when that volume is removed",
                volume.name
            );
            findings.warn(&what, message);
        }
        if facts.is_ours() && volume.attribute(10) == 'k' {
            let message =
                format!("{} is skipped when the host activates volumes: run lvchange -kn on it", volume.name);
            findings.warn(&what, message);
        }
    }
}
