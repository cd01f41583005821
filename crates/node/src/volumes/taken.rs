//! A snapshot's object that comes from a backup is about the LV that was taken for the former object.

use lvms_api::LogicalVolume;
use lvms_host::desired::Desired;
use lvms_host::lvm::inventory::Inventory;
use lvms_host::plan::volume::is_half_made;
use uuid::Uuid;

use super::decide::Lv;
use crate::known::{self, Found};

/// The snapshot that was taken for a former object of the same name. Of a name that has a VolumeSnapshot's uid in it there
/// never is another one.
pub(super) fn taken(desired: &Desired, inventory: &Inventory, object: &LogicalVolume) -> Option<Lv> {
    let uid = object.name().strip_prefix("snapshot-").filter(|_| object.is_snapshot())?;
    Uuid::try_parse(uid).ok()?;
    let is_taken = |found: &Found<'_>| {
        let is_of_its_name = found.facts.name.as_deref() == Some(object.name());
        is_of_its_name && found.facts.snapshot && !is_half_made(found.volume)
    };
    let found = known::all(desired, inventory).find(is_taken)?;
    Some(Lv::Taken { id: found.path.volume.to_string(), size: found.volume.size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::Personality;
    use lvms_api::logical_volume::{READ_ONLY, Spec};
    use lvms_host::desired::{ClassKind, DeviceClass};
    use lvms_host::facts::Facts;
    use lvms_host::lvm::inventory::{Kind, Volume};
    use lvms_host::names::LvName;
    use lvms_host::simulated;
    use lvms_host::units::Bytes;

    const NAME: &str = "snapshot-0b0a3b3e-6b8c-4c3f-9d55-1c1f4b1f2a10";

    fn found(of_lv: Facts, object: &str, access: &str) -> Option<Lv> {
        let mut group = simulated::group(&[10]);
        let name = LvName::parse("former").unwrap();
        let kind = Kind::Thin { pool: LvName::parse("pool").unwrap(), origin: None };
        let tags = of_lv.tags().iter().map(ToString::to_string).collect();
        let volume = Volume {
            name: name.clone(),
            uuid: String::new(),
            kind,
            size: Bytes::mib(8),
            tags,
            attributes: "Vri---tz--".to_owned(),
            active: false,
            areas: Vec::new(),
        };
        group.volumes.insert(name, volume);
        let class = DeviceClass {
            name: "thin".into(),
            group: group.name.clone(),
            default: true,
            spare: Bytes::default(),
            kind: ClassKind::Thick,
            stripe: 0,
            stripe_size: None,
            options: Vec::new(),
        };
        let desired = Desired { classes: vec![class], ..Desired::default() };
        let inventory = Inventory::of(group);
        let spec = Spec {
            name: object.into(),
            source: "pvc-0".into(),
            access_type: access.into(),
            ..Spec::default()
        };
        taken(&desired, &inventory, &LogicalVolume::new(Personality::Topolvm, spec))
    }

    #[test]
    fn a_snapshot_is_found_by_the_name_of_the_object_that_it_was_taken_for() {
        let facts = Facts { name: Some(NAME.into()), snapshot: true, ..Facts::default() };
        let it = Some(Lv::Taken { id: "former".into(), size: Bytes::mib(8) });
        assert_eq!(found(facts.clone(), NAME, READ_ONLY), it);
        assert_eq!(found(facts.clone(), NAME, "rw"), None, "a copy is no snapshot");
        assert_eq!(found(Facts { snapshot: false, ..facts.clone() }, NAME, READ_ONLY), None);
        let other = "snapshot-0b0a3b3e-6b8c-4c3f-9d55-1c1f4b1f2a11";
        assert_eq!(found(facts, other, READ_ONLY), None);
        // Whoever gives names may give one again.
        let again = Facts { name: Some("snapshot-x".into()), snapshot: true, ..Facts::default() };
        assert_eq!(found(again, "snapshot-x", READ_ONLY), None);
    }
}
