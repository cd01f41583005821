//! LVs of ours that no LogicalVolume names: of a node that had left, or whose objects were taken away by hand. They are kept,
//! and told.

use std::collections::BTreeSet;

use lvms_api::lvm_node::Unnamed;
use lvms_api::{LogicalVolume, Quantity};
use lvms_cluster::Store;
use lvms_host::desired::Desired;
use lvms_host::lvm::inventory::Inventory;
use lvms_host::names::VgName;
use lvms_host::units::Bytes;

use crate::known;

/// The LVs that LogicalVolumes name, or are going to; `None` as long as not all of those are known.
pub fn named(objects: &Store<LogicalVolume>) -> Option<BTreeSet<String>> {
    objects.is_complete().then(|| objects.all().iter().map(|object| object.lv().to_owned()).collect())
}

/// What of ours in a group is not among these; `None` if there is nothing.
pub fn unnamed(
    desired: &Desired,
    inventory: &Inventory,
    group: &VgName,
    named: &BTreeSet<String>,
) -> Option<Unnamed> {
    let ours = known::all(desired, inventory).filter(|found| found.path.group == *group);
    let sizes: Vec<Bytes> = ours
        .filter(|found| !named.contains(found.path.volume.as_str()))
        .map(|found| found.volume.size)
        .collect();
    let size = sizes.iter().fold(0_u64, |all, size| all.saturating_add(size.0));
    (!sizes.is_empty()).then(|| Unnamed { count: sizes.len() as u64, size: Quantity::of(size) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_host::desired::{ClassKind, DeviceClass};
    use lvms_host::lvm::inventory::{Kind, Volume};
    use lvms_host::names::LvName;
    use lvms_host::simulated;

    const TOPOLVMS: &str = "0b0a3b3e-6b8c-4c3f-9d55-1c1f4b1f2a10";

    #[test]
    fn what_no_logical_volume_names_is_counted_if_it_is_ours() {
        let mut group = simulated::group(&[10]);
        for (name, tags) in [
            (TOPOLVMS, vec![]),
            ("tagged", vec!["lvms.io/name=pvc-1".to_owned()]),
            ("administrators", vec![]),
            ("for-a-while", vec!["lvms.io/name=x".to_owned(), "lvms.io/temporary=tagged".to_owned()]),
        ] {
            let name = LvName::parse(name).unwrap();
            let volume = Volume {
                name: name.clone(),
                uuid: String::new(),
                kind: Kind::Thin { pool: LvName::parse("pool").unwrap(), origin: None },
                size: Bytes::mib(8),
                tags,
                attributes: "Vwi---tz--".to_owned(),
                active: false,
                areas: Vec::new(),
            };
            group.volumes.insert(name, volume);
        }
        let vg = group.name.clone();
        let class = DeviceClass {
            name: "thin".into(),
            group: vg.clone(),
            default: true,
            spare: Bytes::default(),
            kind: ClassKind::Thick,
            stripe: 0,
            stripe_size: None,
            options: Vec::new(),
        };
        let desired = Desired { classes: vec![class], ..Desired::default() };
        let inventory = Inventory::of(group);
        let told = |named: &[&str]| {
            let named = named.iter().map(|name| (*name).to_owned()).collect();
            unnamed(&desired, &inventory, &vg, &named)
        };
        assert_eq!(told(&[]), Some(Unnamed { count: 2, size: Quantity::of(16 << 20) }));
        assert_eq!(told(&["tagged"]), Some(Unnamed { count: 1, size: Quantity::of(8 << 20) }));
        assert_eq!(told(&["tagged", TOPOLVMS]), None);
    }

    #[test]
    fn nothing_is_said_while_not_all_logical_volumes_are_known() {
        assert_eq!(named(&Store::default()), None);
    }
}
