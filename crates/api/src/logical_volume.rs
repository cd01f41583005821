//! TopoLVM's object: what shall be on a node, and what is. One per volume and per snapshot, named as the CSI request
//! was (`pvc-<uid>`, `snapshot-<uid>`).

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{Resource, TypeMeta};
use serde::{Deserialize, Deserializer, Serialize};

use crate::names::{ADOPTS, NODE, ORPHANED, RELEASED, UNUSED};
use crate::{Personality, Quantity};

/// A volume or a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogicalVolume {
    /// Kind and version, as they are written.
    #[serde(flatten)]
    pub types: TypeMeta,
    /// Its name, its uid, its marks.
    pub metadata: ObjectMeta,
    /// What shall be. TopoLVM's definition does not ask for it; without one it is no node's.
    #[serde(default)]
    pub spec: Spec,
    /// What is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// The code in the status of a volume whose LV was there and is not any more: gRPC's for lost data.
pub const LOST: i32 = 15;

/// What shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The object's name once more.
    pub name: String,
    /// The node that has it.
    pub node_name: String,
    /// At least so large.
    pub size: Quantity,
    /// The device class; empty for the node's default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device_class: String,
    /// The class of options for lvcreate; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lvcreate_option_class: String,
    /// The name of the LogicalVolume that it is made from; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// `ro` for a snapshot, `rw` for a copy; only with a source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub access_type: String,
}

/// What is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The LV's name and the CSI handle; empty as long as there is none.
    #[serde(rename = "volumeID", default, skip_serializing_if = "String::is_empty")]
    pub volume_id: String,
    /// How the last act ended, as a gRPC code; 0 is well. The API server holds nobody to the format of the definition.
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "any_number")]
    pub code: i32,
    /// What was wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How large the LV is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_size: Option<Quantity>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(code: &i32) -> bool {
    *code == 0
}

/// Any number is read: an object with one that makes no sense is still an object, and others are in the same list.
#[expect(clippy::cast_possible_truncation, reason = "what is too large becomes the largest")]
fn any_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    Ok(f64::deserialize(deserializer)? as i32)
}

/// A snapshot may only be read.
pub const READ_ONLY: &str = "ro";

/// A copy may be written.
pub const READ_WRITE: &str = "rw";

/// How a message begins that tells why an LV could not be removed.
pub const REMOVAL_FAILED: &str = "removal failed: ";

impl LogicalVolume {
    /// A new one, ready to be posted: the node that owns it has nothing to add before it acts.
    pub fn new(personality: Personality, spec: Spec) -> LogicalVolume {
        let (key, value) = crate::names::CREATED_BY;
        LogicalVolume {
            types: TypeMeta {
                api_version: LogicalVolume::api_version(&personality).into_owned(),
                kind: LogicalVolume::kind(&personality).into_owned(),
            },
            metadata: ObjectMeta {
                name: Some(spec.name.clone()),
                finalizers: Some(vec![personality.volume_finalizer()]),
                labels: Some([(key.to_owned(), value.to_owned())].into()),
                annotations: Some([(NODE.to_owned(), spec.node_name.clone())].into()),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its uid, which is the name of the LV that is made for it.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The name of its LV once there is one: the only key by which it is looked up.
    pub fn volume_id(&self) -> Option<&str> {
        self.status.as_ref().map(|status| status.volume_id.as_str()).filter(|id| !id.is_empty())
    }

    /// The name of its LV: as it was told, of one that was there before, or that it is going to have.
    pub fn lv(&self) -> &str {
        self.volume_id().or_else(|| self.annotation(ADOPTS)).unwrap_or(self.uid())
    }

    /// Whether it is a snapshot that somebody asked for.
    pub fn is_snapshot(&self) -> bool {
        self.spec.access_type == READ_ONLY && !self.spec.source.is_empty()
    }

    /// Whether it shall go.
    pub fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether its LV may be removed: nothing in the cluster names it any more.
    pub fn is_released(&self) -> bool {
        !self.uid().is_empty() && self.annotation(RELEASED) == Some(self.uid())
    }

    /// Whether its node has said that nobody has ever used its LV, since nobody wants it.
    pub fn is_unused(&self) -> bool {
        self.vouch().is_some_and(|vouch| self.annotation(UNUSED) == Some(&vouch))
    }

    /// What its node writes if nobody has ever used its LV; `None` as long as somebody wants it.
    pub fn vouch(&self) -> Option<String> {
        let since = self.annotation(ORPHANED)?;
        (!self.uid().is_empty()).then(|| format!("{}/{since}", self.uid()))
    }

    /// Why its node could not remove its LV, if it has said so.
    pub fn removal_failure(&self) -> Option<&str> {
        let status = self.status.as_ref().filter(|status| self.is_deleted() && status.code != 0)?;
        // What was refused before its deletion says something else.
        status.message.strip_prefix(REMOVAL_FAILED)
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it has a finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata.finalizers.iter().flatten().any(|present| present == finalizer)
    }
}

impl Resource for LogicalVolume {
    type DynamicType = Personality;
    type Scope = kube_core::ClusterResourceScope;

    fn kind(_: &Personality) -> Cow<'_, str> {
        "LogicalVolume".into()
    }

    fn group(personality: &Personality) -> Cow<'_, str> {
        personality.driver().into()
    }

    fn version(_: &Personality) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural(_: &Personality) -> Cow<'_, str> {
        "logicalvolumes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_one_has_all_that_its_node_would_add() {
        let spec = Spec {
            name: "pvc-1".into(),
            node_name: "n1".into(),
            size: Quantity::of(1023 << 20),
            device_class: "ssd".into(),
            ..Spec::default()
        };
        let volume = LogicalVolume::new(Personality::Legacy, spec);
        let expected = serde_json::json!({
            "apiVersion": "topolvm.cybozu.com/v1", "kind": "LogicalVolume",
            "metadata": {
                "name": "pvc-1",
                "finalizers": ["topolvm.cybozu.com/logicalvolume"],
                "labels": {"app.kubernetes.io/created-by": "topolvm-controller"},
                "annotations": {"lvms.io/node": "n1"},
            },
            "spec": {"name": "pvc-1", "nodeName": "n1", "size": "1023Mi", "deviceClass": "ssd"},
        });
        assert_eq!(serde_json::to_value(volume).unwrap(), expected);
    }

    #[test]
    fn only_what_was_said_of_its_removal_is_a_failure_of_that() {
        let read = |deleted: bool, message: &str| {
            let object = serde_json::json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
                "metadata": {"name": "x", "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z")},
                "spec": {"name": "x", "nodeName": "n1", "size": 1},
                "status": {"volumeID": "u", "code": 9, "message": message},
            });
            let volume: LogicalVolume = serde_json::from_value(object).unwrap();
            volume.removal_failure().map(str::to_owned)
        };
        assert_eq!(read(true, "removal failed: in use"), Some("in use".to_owned()));
        assert_eq!(read(false, "removal failed: in use"), None);
        assert_eq!(read(true, "too large"), None);
    }

    #[test]
    fn what_was_said_of_an_object_does_not_hold_for_one_restored_from_its_backup() {
        let mut volume = LogicalVolume::new(Personality::Topolvm, Spec::default());
        let said = [(RELEASED, "former"), (ORPHANED, "now"), (UNUSED, "former/now")];
        volume.metadata.annotations =
            Some(said.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert!(!volume.is_released() && !volume.is_unused());
        volume.metadata.uid = Some("present".into());
        assert!(!volume.is_released() && !volume.is_unused());
        volume.metadata.uid = Some("former".into());
        assert!(volume.is_released() && volume.is_unused());
        volume.metadata.annotations = Some([(RELEASED.to_owned(), String::new())].into());
        volume.metadata.uid = None;
        assert!(!volume.is_released(), "nothing is not a uid");
    }

    #[test]
    fn what_was_said_before_somebody_wanted_it_again_says_nothing() {
        let mut volume = LogicalVolume::new(Personality::Topolvm, Spec::default());
        volume.metadata.uid = Some("uid".into());
        let mut with = |orphaned: Option<&str>, unused: &str| {
            let orphaned = orphaned.map(|since| (ORPHANED.to_owned(), since.to_owned()));
            let all = orphaned.into_iter().chain([(UNUSED.to_owned(), unused.to_owned())]);
            volume.metadata.annotations = Some(all.collect());
            volume.is_unused()
        };
        assert!(with(Some("then"), "uid/then"));
        assert!(!with(Some("now"), "uid/then"));
        assert!(!with(None, "uid/then") && !with(None, "uid"));
    }

    #[test]
    fn the_name_of_the_lv_is_the_one_that_was_told_or_adopted_or_the_uid() {
        let mut volume = LogicalVolume::new(Personality::Topolvm, Spec::default());
        volume.metadata.uid = Some("uid".into());
        assert_eq!(volume.lv(), "uid");
        volume.metadata.annotations.get_or_insert_default().insert(ADOPTS.into(), "adopted".into());
        assert_eq!(volume.lv(), "adopted");
        volume.status = Some(Status { volume_id: "told".into(), ..Status::default() });
        assert_eq!(volume.lv(), "told");
    }

    #[test]
    fn objects_of_topolvm_are_read_in_every_state() {
        let read = |status: serde_json::Value| {
            let object = serde_json::json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
                "metadata": {"name": "pvc-1", "uid": "u"},
                "spec": {"name": "pvc-1", "nodeName": "n1", "size": 1_073_741_824},
                "status": status,
            });
            serde_json::from_value::<LogicalVolume>(object).unwrap()
        };
        let settled = read(serde_json::json!({"volumeID": "u", "currentSize": "1Gi"}));
        assert_eq!(settled.volume_id(), Some("u"));
        assert_eq!(settled.spec.size.bytes(), Ok(1 << 30));
        let adopted = read(serde_json::json!({"volumeID": "u"}));
        assert_eq!(adopted.status.unwrap().current_size, None);
        let failed = read(serde_json::json!({"code": 8, "message": "no room"}));
        assert_eq!((failed.volume_id(), failed.status.as_ref().unwrap().code), (None, 8));
        assert_eq!(read(serde_json::Value::Null).volume_id(), None);
    }

    #[test]
    fn a_code_that_is_no_code_can_be_read() {
        let read = |code: serde_json::Value| {
            serde_json::from_value::<Status>(serde_json::json!({ "code": code })).unwrap().code
        };
        assert_eq!(read(serde_json::json!(15)), 15);
        assert_eq!(read(serde_json::json!(3_000_000_000_u64)), i32::MAX);
        assert_eq!(read(serde_json::json!(i64::MIN)), i32::MIN);
        assert_eq!(read(serde_json::json!(1e30)), i32::MAX);
    }

    #[test]
    fn an_object_without_a_spec_is_read_and_is_no_nodes() {
        let object = serde_json::json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "x", "uid": "u"},
        });
        let volume: LogicalVolume = serde_json::from_value(object).unwrap();
        assert_eq!((volume.name(), volume.spec.node_name.as_str()), ("x", ""));
    }
}
