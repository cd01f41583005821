//! What TopoLVM could not go on with, were it put back in our place now.

use std::collections::BTreeMap;
use std::fmt;

use kube::api::ListParams;
use kube::{Api, Client};
use lvms_api::logical_volume::READ_WRITE;
use lvms_api::names::{ADOPTS, VOLUME_MODE};
use lvms_api::{LogicalVolume, LvmNode, Personality, Quantity};

/// A LogicalVolume, and what would become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name.
    pub volume: String,
    /// Its node.
    pub node: String,
    /// Why TopoLVM could not go on with it.
    pub trouble: Trouble,
}

/// Why TopoLVM could not go on with something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// It is a snapshot of a thick volume, the one of this name.
    ThickSnapshot(String),
    /// It is a snapshot of the volume of this name, and whether that is thick is not known.
    PerhapsThickSnapshot(String),
    /// Its node does not offer its device class any more.
    NoClass(String),
    /// It is a copy that is not finished.
    Copying,
    /// It is zeroed, or what it has grown by.
    Zeroing,
    /// It was deleted, and is kept because something names it.
    Kept,
    /// It came back: its LV, the one of this name, is not called as TopoLVM expects.
    CameBack(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::ThickSnapshot(source) => write!(
                out,
                "a snapshot of the thick volume {source}: TopoLVM cannot restore it, and removes it with {source}; restore \
                 it to a claim and delete the VolumeSnapshot"
            ),
            Trouble::PerhapsThickSnapshot(source) => write!(
                out,
                "a snapshot of {source}, whose device class was the default when it was made: if lvs shows no pool for it, \
                 TopoLVM cannot restore it, and removes it with {source}; restore it to a claim and delete the \
                 VolumeSnapshot"
            ),
            Trouble::NoClass(class) => {
                let class = if class.is_empty() { "default".to_owned() } else { format!("{class:?}") };
                write!(
                    out,
                    "its node has no device class {class} any more: TopoLVM would not find its logical volume, and could \
                     neither mount nor remove it; add the class to lvmd.yaml again"
                )
            }
            Trouble::Copying => out.write_str(
                "a copy that is not finished: TopoLVM would leave it empty or refuse it; wait until its claim is bound, or \
                 delete the claim",
            ),
            Trouble::Zeroing => out.write_str(
                "it is a block device of which not all is zeroed yet: TopoLVM would give it away with what former volumes \
                 left; wait until its claim is bound, or has grown, or delete the claim",
            ),
            Trouble::Kept => out.write_str(
                "it is deleted, and its data is kept because something names it: TopoLVM removes it at once; take its \
                 finalizer away to keep the logical volume",
            ),
            Trouble::CameBack(lv) => write!(
                out,
                "it was restored for the logical volume {lv}, which was there before: TopoLVM looks for one with this \
                 object's uid, so it can be mounted there but not grown, and its logical volume is left when it is deleted; \
                 clone its claim and delete the claim"
            ),
        }
    }
}

/// What stands in the way in a cluster. LVMNodes are in a namespace of ours.
pub async fn look(
    client: &Client,
    personality: Personality,
    namespace: &str,
) -> Result<Vec<Finding>, kube::Error> {
    let volumes: Api<LogicalVolume> = Api::all_with(client.clone(), &personality);
    let nodes: Api<LvmNode> = Api::namespaced(client.clone(), namespace);
    let every = ListParams::default();
    Ok(findings(&volumes.list(&every).await?.items, &nodes.list(&every).await?.items))
}

/// What stands in the way, by name.
fn findings(volumes: &[LogicalVolume], nodes: &[LvmNode]) -> Vec<Finding> {
    let nodes: BTreeMap<&str, &LvmNode> = nodes.iter().map(|node| (node.name(), node)).collect();
    let status = |volume: &LogicalVolume| nodes.get(volume.spec.node_name.as_str())?.status.as_ref();
    let has_class = |volume: &LogicalVolume| {
        let name = volume.spec.device_class.as_str();
        status(volume).is_none_or(|told| told.device_classes.iter().any(|class| class.is_meant(name)))
    };
    let thick_snapshot = |volume: &LogicalVolume| {
        let (name, source) = (&volume.spec.device_class, volume.spec.source.clone());
        let classes = status(volume).into_iter().flat_map(|told| &told.device_classes);
        // The default may have been another one when it was made.
        let possible = classes.filter(|class| name.is_empty() || class.name == *name);
        let (thin, thick): (Vec<_>, Vec<_>) = possible.partition(|class| !class.thin_pool.is_empty());
        match (thin.is_empty(), thick.is_empty()) {
            (false, true) => None,
            (false, false) => Some(Trouble::PerhapsThickSnapshot(source)),
            (true, _) => Some(Trouble::ThickSnapshot(source)),
        }
    };
    let may_be_thick = |volume: &LogicalVolume| {
        let name = volume.spec.device_class.as_str();
        let mut classes = status(volume).into_iter().flat_map(|told| &told.device_classes);
        classes.any(|class| class.thin_pool.is_empty() && (name.is_empty() || class.name == name))
    };
    let trouble = |volume: &LogicalVolume| {
        // Its node keeps what was used after somebody had said that it was not, though it is released.
        let is_kept = !volume.is_released() || volume.is_unused();
        if volume.is_deleted() && is_kept && volume.volume_id().is_some() {
            Some(Trouble::Kept)
        } else if volume.volume_id().is_some() && !has_class(volume) {
            Some(Trouble::NoClass(volume.spec.device_class.clone()))
        } else if volume.is_snapshot()
            && let Some(trouble) = thick_snapshot(volume)
        {
            Some(trouble)
        } else if volume.spec.access_type == READ_WRITE && volume.volume_id().is_none() {
            Some(Trouble::Copying)
        } else if is_zeroed(volume) && may_be_thick(volume) {
            Some(Trouble::Zeroing)
        } else {
            let lv = volume.volume_id().or(volume.annotation(ADOPTS));
            lv.filter(|lv| *lv != volume.uid()).map(|lv| Trouble::CameBack(lv.to_owned()))
        }
    };
    let mut found: Vec<Finding> = volumes
        .iter()
        .filter_map(|volume| {
            let trouble = trouble(volume)?;
            Some(Finding { volume: volume.name().to_owned(), node: volume.spec.node_name.clone(), trouble })
        })
        .collect();
    found.sort_by(|one, other| one.volume.cmp(&other.volume));
    found
}

/// Whether zeros are written for it now, if it is thick.
fn is_zeroed(volume: &LogicalVolume) -> bool {
    let status = volume.status.clone().unwrap_or_default();
    let (mode, bytes) = (volume.annotation(VOLUME_MODE), |size: &Quantity| size.bytes().unwrap_or_default());
    let is_made = volume.volume_id().is_none() && volume.annotation(ADOPTS).is_none();
    let has = status.current_size.as_ref().map(bytes);
    // What others have made is zeroed before it is a part of the volume.
    let grows = mode == Some("Block") && has.is_some_and(|has| has < bytes(&volume.spec.size));
    status.code == 0 && (is_made && mode != Some("Filesystem") || grows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::names::{ORPHANED, RELEASED, UNUSED};
    use serde_json::{Value, json};

    fn volume(name: &str, class: &str, more: &Value, status: &Value) -> LogicalVolume {
        let mut object = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name, "uid": name},
            "spec": {"name": name, "nodeName": "n1", "size": "1Gi", "deviceClass": class}, "status": status,
        });
        for (key, value) in more.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn node() -> LvmNode {
        let classes = json!([
            {"name": "thick", "volumeGroup": "vg"}, {"name": "thin", "volumeGroup": "vg", "thinPool": "pool", "default": true},
        ]);
        serde_json::from_value(json!({
            "apiVersion": "lvm.topolvm.io/v2alpha1", "kind": "LVMNode", "metadata": {"name": "n1"},
            "status": {"deviceClasses": classes},
        }))
        .unwrap()
    }

    #[test]
    fn what_topolvm_knows_stands_in_no_way() {
        let made = |id: &str| json!({"volumeID": id, "currentSize": "1Gi"});
        let thin = json!({"source": "a", "accessType": "ro"});
        let copied = json!({"source": "a", "accessType": "rw"});
        let volumes = [
            volume("plain", "thick", &json!({}), &made("plain")),
            in_mode("Filesystem", volume("new", "thick", &json!({}), &Value::Null)),
            in_mode("Block", volume("new-thin", "thin", &json!({}), &Value::Null)),
            in_mode("Block", volume("block", "thick", &json!({}), &made("block"))),
            in_mode("Block", volume("refused", "thick", &json!({}), &json!({"code": 8}))),
            volume("thin-snapshot", "thin", &thin, &made("thin-snapshot")),
            volume("copied", "thick", &copied, &made("copied")),
        ];
        assert_eq!(findings(&volumes, &[node()]), []);
    }

    fn in_mode(mode: &str, mut volume: LogicalVolume) -> LogicalVolume {
        volume.metadata.annotations.get_or_insert_default().insert(VOLUME_MODE.to_owned(), mode.to_owned());
        volume
    }

    #[test]
    fn block_devices_that_are_not_all_zeroed_are_listed() {
        let grows = json!({"volumeID": "grows", "currentSize": "512Mi"});
        let volumes = [
            in_mode("Block", volume("grows", "thick", &json!({}), &grows)),
            in_mode("Block", volume("made", "thick", &json!({}), &Value::Null)),
            volume("made-by-hand", "", &json!({}), &Value::Null),
        ];
        let found: Vec<_> = findings(&volumes, &[node()]).into_iter().map(|one| one.trouble).collect();
        assert_eq!(found, [Trouble::Zeroing, Trouble::Zeroing, Trouble::Zeroing]);
    }

    #[test]
    fn what_names_no_class_may_have_been_made_for_a_former_default() {
        let snapshot =
            volume("s", "", &json!({"source": "a", "accessType": "ro"}), &json!({"volumeID": "s"}));
        let found = findings(std::slice::from_ref(&snapshot), &[node()]);
        assert_eq!(found[0].trouble, Trouble::PerhapsThickSnapshot("a".into()));
        let mut thin_alone = node();
        thin_alone.status.as_mut().unwrap().device_classes.retain(|class| class.name == "thin");
        assert_eq!(findings(&[snapshot], &[thin_alone]), []);
    }

    #[test]
    fn what_has_no_class_on_its_node_any_more_is_listed() {
        let made = |id: &str| json!({"volumeID": id, "currentSize": "1Gi"});
        let mut without_default = node();
        let classes = &mut without_default.status.as_mut().unwrap().device_classes;
        classes.iter_mut().for_each(|class| class.default = false);
        let volumes = [
            volume("a-gone", "gone", &json!({}), &made("a-gone")),
            volume("b-default", "", &json!({}), &made("b-default")),
            volume("c-refused", "gone", &json!({}), &json!({"code": 3, "message": "no such class"})),
        ];
        let found: Vec<_> =
            findings(&volumes, &[without_default]).into_iter().map(|one| one.trouble).collect();
        assert_eq!(found, [Trouble::NoClass("gone".into()), Trouble::NoClass(String::new())]);
        assert!(found[0].to_string().contains("device class \"gone\""), "{}", found[0]);
        // Nobody has told what there is.
        assert_eq!(findings(&volumes, &[]), []);
    }

    #[test]
    fn what_came_back_for_an_lv_with_another_name_is_listed() {
        let made = json!({"volumeID": "former", "currentSize": "1Gi"});
        let mut adopts = volume("b-adopts", "thick", &json!({}), &Value::Null);
        adopts.metadata.annotations = Some([(ADOPTS.to_owned(), "former".to_owned())].into());
        let volumes = [volume("a-restored", "thick", &json!({}), &made), adopts];
        let found = findings(&volumes, &[node()]);
        let names: Vec<_> = found.iter().map(|found| found.volume.as_str()).collect();
        assert_eq!(names, ["a-restored", "b-adopts"]);
        for found in found {
            assert_eq!(found.trouble, Trouble::CameBack("former".into()));
            assert!(found.trouble.to_string().contains("clone its claim"), "{}", found.trouble);
        }
    }

    #[test]
    fn thick_snapshots_unfinished_copies_and_what_is_kept_are_listed() {
        let made = json!({"volumeID": "x", "currentSize": "1Gi"});
        let snapshot = json!({"source": "a", "accessType": "ro"});
        let mut kept = volume("c-kept", "thick", &json!({}), &made);
        kept.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        // Released, and then found to be used.
        let mut used = kept.clone();
        used.metadata.name = Some("e-used".to_owned());
        let uid = used.uid().to_owned();
        let unused = format!("{uid}/then");
        let says = [(RELEASED, uid.as_str()), (ORPHANED, "then"), (UNUSED, &unused)];
        used.metadata.annotations =
            Some(says.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect());
        assert!(used.is_released() && used.is_unused());
        let mut elsewhere = volume("d-unknown", "thin", &snapshot, &made);
        elsewhere.spec.node_name = "n2".to_owned();
        let volumes = [
            kept,
            used,
            volume("b-copying", "thin", &json!({"source": "a", "accessType": "rw"}), &Value::Null),
            volume("a-snapshot", "thick", &snapshot, &made),
            // Nobody knows what the class is: it may be thick.
            elsewhere,
        ];
        let found: Vec<_> =
            findings(&volumes, &[node()]).into_iter().map(|found| (found.volume, found.trouble)).collect();
        let expected = [
            ("a-snapshot", Trouble::ThickSnapshot("a".into())),
            ("b-copying", Trouble::Copying),
            ("c-kept", Trouble::Kept),
            ("d-unknown", Trouble::ThickSnapshot("a".into())),
            ("e-used", Trouble::Kept),
        ];
        assert_eq!(found, expected.map(|(name, trouble)| (name.to_owned(), trouble)));
    }
}
