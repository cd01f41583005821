//! How the LV of an object is, as far as the host can be seen.

use lvms_api::LogicalVolume;
use lvms_api::names::ADOPTS;
use lvms_host::desired::Desired;
use lvms_host::lvm::inventory::Inventory;
use lvms_host::names::VgName;
use lvms_host::plan::volume::{has_leftover, is_half_made};

use super::Volumes;
use super::decide::Lv;
use super::taken::taken;
use crate::known::{ambiguous, find_any, has, unknown};

impl Volumes {
    pub(super) fn lv(&self, object: &LogicalVolume) -> Lv {
        let id = object.lv();
        let (inventory, desired) = (self.host.engine.inventory(), self.host.configuration.desired());
        if let Some(found) = find_any(&desired, &inventory, id) {
            return Lv::Present {
                size: found.volume.size,
                // What was copied is told of when nothing is left of the copy.
                finished: !(found.facts.is_unfinished(found.volume.size)
                    || found.facts.snapshot && is_half_made(found.volume)
                    || object.volume_id().is_none() && has_leftover(&inventory, &found.volume.name)),
                awaits_zeros: found.facts.zeroing.is_some_and(|from| from < found.volume.size),
                unused: found.facts.is_ours() && !found.facts.used && !found.facts.block,
            };
        }
        if let Some(told) = ambiguous(&desired, &inventory, id) {
            return Lv::Unknown(told);
        }
        if let Some(group) = has(&inventory, id) {
            let why = format!(
                "it is in volume group {group}, of which no device class of this node is, or is no volume of ours"
            );
            return Lv::Unknown(why);
        }
        let stuck = groups_of(object, &desired).into_iter().find_map(|group| self.host.engine.stuck(group));
        if let Some(stuck) = stuck {
            return Lv::Unknown(stuck.to_string());
        }
        if !is_told(object) {
            if let Some(taken) = taken(&desired, &inventory, object) {
                return taken;
            }
            let class = desired.class(&object.spec.device_class);
            if class.is_some_and(|class| inventory.groups.contains_key(&class.group)) {
                return Lv::Absent;
            }
        }
        missing(object, &desired, &inventory)
    }

    /// That something is missing is believed only after LVM was asked again.
    pub(super) async fn second_look(&self, object: &LogicalVolume) -> Lv {
        let missing = object.clone();
        let looked = self
            .host
            .blocking(move |engine, desired| {
                for group in groups_of(&missing, desired) {
                    engine.look(group).map_err(|error| crate::status::of_volumes(&error))?;
                }
                Ok(())
            })
            .await;
        match looked {
            Ok(()) => self.lv(object),
            Err(error) => Lv::Unknown(error.message),
        }
    }

    /// Where the LV of an object is, or is to be.
    pub(super) fn group_of(&self, object: &LogicalVolume) -> Option<VgName> {
        let (inventory, desired) = (self.host.engine.inventory(), self.host.configuration.desired());
        let found = find_any(&desired, &inventory, object.lv()).map(|found| found.path.group);
        found.or_else(|| Some(desired.class(&object.spec.device_class)?.group.clone()))
    }
}

/// How an LV is that is in no group of a class. One that was made is only known to be gone as long as there is its class:
/// without it, nobody asks whether the group that it was in is there.
fn missing(object: &LogicalVolume, desired: &Desired, inventory: &Inventory) -> Lv {
    let id = object.lv();
    if let Some(error) = unknown(desired, inventory, "volumeID", id) {
        return Lv::Unknown(error.message);
    }
    let class = &object.spec.device_class;
    if object.volume_id().is_some() && !class.is_empty() && desired.class(class).is_none() {
        return Lv::Unknown(format!(
            "device class {class:?} is not in lvmd.yaml any more, and no other one has the logical volume {id}: whether it \
             exists is not known; add the class again, or, if its volume group is gone for good, delete this object and \
             take its finalizer away"
        ));
    }
    Lv::Absent
}

/// Whether somebody may know its LV.
pub(super) fn is_told(object: &LogicalVolume) -> bool {
    object.volume_id().is_some() || object.annotation(ADOPTS).is_some()
}

/// Where the LV of an object may be: of one that was never told of it is where its class is, and nowhere else. What is
/// wrong in other groups does not concern it.
fn groups_of<'a>(object: &LogicalVolume, desired: &'a Desired) -> Vec<&'a VgName> {
    match desired.class(&object.spec.device_class).filter(|_| !is_told(object)) {
        Some(class) => vec![&class.group],
        None => desired.groups().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use lvms_api::Personality;
    use lvms_api::logical_volume::{Spec, Status};

    use super::*;

    fn object(class: &str, id: Option<&str>) -> LogicalVolume {
        let spec = Spec { device_class: class.to_owned(), ..Spec::default() };
        let mut object = LogicalVolume::new(Personality::Topolvm, spec);
        object.status = id.map(|id| Status { volume_id: id.to_owned(), ..Status::default() });
        object
    }

    #[test]
    fn what_was_made_for_a_class_that_is_not_configured_any_more_is_not_known_to_be_gone() {
        let desired = lvms_host::desired::lvmd::read("device-classes: [{name: a, volume-group: vg}]");
        let desired = desired.unwrap().desired;
        let group = lvms_host::simulated::group(&[10]);
        let inventory = Inventory::of(group);
        for (class, id, is_known) in [
            ("a", Some("id"), true),
            ("", Some("id"), true),
            ("gone", None, true),
            ("gone", Some("id"), false),
        ] {
            let lv = missing(&object(class, id), &desired, &inventory);
            assert_eq!(lv == Lv::Absent, is_known, "{class:?} {id:?}: {lv:?}");
            let says =
                matches!(&lv, Lv::Unknown(why) if why.contains("\"gone\"") && why.contains("add the class"));
            assert!(is_known || says, "{lv:?}");
        }
    }

    #[test]
    fn what_nobody_was_told_of_is_looked_for_in_the_group_of_its_class_alone() {
        let text = "device-classes: [{name: a, volume-group: a}, {name: b, volume-group: b, default: true}]";
        let desired = lvms_host::desired::lvmd::read(text).unwrap().desired;
        for (class, id, expected) in [
            ("a", None, vec!["a"]),
            ("b", None, vec!["b"]),
            ("", None, vec!["b"]),
            ("gone", None, vec!["a", "b"]),
            ("a", Some("id"), vec!["a", "b"]),
        ] {
            let object = object(class, id);
            let groups: Vec<&str> = groups_of(&object, &desired).iter().map(|group| group.as_str()).collect();
            assert_eq!(groups, expected, "{class:?} {id:?}");
        }
    }
}
