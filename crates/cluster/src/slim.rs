//! Objects of Kubernetes with the fields that are read, and no others: what is not named here is skipped while
//! decoding and takes no memory. They are never written back whole; changes are patches.

/// Says where the API has a kind.
macro_rules! kind {
    ($type:ident, $kind:literal, $group:literal, $version:literal, $plural:literal, $scope:ident) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = kube::core::$scope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

mod nodes;
mod snapshots;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use lvms_api::Quantity;
use lvms_api::names::kubernetes::STORAGE_CLASS;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Key;

pub use nodes::{
    CsiNode, CsiNodeSpec, Event, Node, NodeDriver, NodeSpec, Pod, PodClaim, PodSpec, PodVolume, Taint,
};
pub use snapshots::{
    ContentError, ContentSource, ContentSpec, ContentStatus, SnapshotContent, SnapshotReference,
    SnapshotStatus, VolumeSnapshot,
};

kind!(Claim, "PersistentVolumeClaim", "", "v1", "persistentvolumeclaims", NamespaceResourceScope);
kind!(PersistentVolume, "PersistentVolume", "", "v1", "persistentvolumes", ClusterResourceScope);
kind!(StorageClass, "StorageClass", "storage.k8s.io", "v1", "storageclasses", ClusterResourceScope);
kind!(Capacity, "CSIStorageCapacity", "storage.k8s.io", "v1", "csistoragecapacities", NamespaceResourceScope);

kind!(Event, "Event", "", "v1", "events", NamespaceResourceScope);
/// A PersistentVolumeClaim.
#[derive(Debug, Clone, Deserialize)]
pub struct Claim {
    /// Its name, its uid, its marks.
    pub metadata: ObjectMeta,
    /// What is claimed.
    #[serde(default, deserialize_with = "or_default")]
    pub spec: ClaimSpec,
    /// What was given.
    #[serde(default, deserialize_with = "or_default")]
    pub status: ClaimStatus,
}

/// What is claimed.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// The volume that it is bound to.
    #[serde(default, deserialize_with = "or_default")]
    pub volume_name: String,
    /// Its class.
    pub storage_class_name: Option<String>,
    /// `ReadWriteOnce` and others.
    #[serde(default, deserialize_with = "or_default")]
    pub access_modes: Vec<String>,
    /// `Filesystem` or `Block`.
    pub volume_mode: Option<String>,
    /// How much.
    #[serde(default, deserialize_with = "or_default")]
    pub resources: Resources,
    /// What its volume shall be a copy of.
    pub data_source: Option<DataSource>,
    /// The same, in the newer field.
    pub data_source_ref: Option<DataSource>,
    /// That only certain volumes are wanted.
    pub selector: Option<Anything>,
    /// A class of attributes that can be changed later.
    pub volume_attributes_class_name: Option<String>,
}

/// That a field is there, whatever is in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Anything {}

/// Requests of a claim.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct Resources {
    /// By the name of what is requested.
    #[serde(default, deserialize_with = "or_default")]
    pub requests: BTreeMap<String, Quantity>,
}

/// What a volume shall be a copy of.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataSource {
    /// The group of its kind; none for Kubernetes' first one.
    pub api_group: Option<String>,
    /// `PersistentVolumeClaim`, `VolumeSnapshot`, or somebody else's.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace, if it is another one than the claim's.
    pub namespace: Option<String>,
}

/// What was given.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClaimStatus {
    /// `Pending`, `Bound`, `Lost`.
    #[serde(default, deserialize_with = "or_default")]
    pub phase: String,
    /// How much.
    #[serde(default, deserialize_with = "or_default")]
    pub capacity: BTreeMap<String, Quantity>,
    /// How much is being given.
    #[serde(default, deserialize_with = "or_default")]
    pub allocated_resources: BTreeMap<String, Quantity>,
    /// How far that is.
    #[serde(default, deserialize_with = "or_default")]
    pub allocated_resource_statuses: BTreeMap<String, String>,
    /// What is going on.
    #[serde(default, deserialize_with = "or_default")]
    pub conditions: Vec<ClaimCondition>,
}

/// Something that is going on with a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimCondition {
    /// What.
    pub r#type: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// When it was looked at last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<String>,
    /// Why, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What claims and volumes call their bytes.
const STORAGE: &str = "storage";

impl Claim {
    /// Its uid.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// How much it requests.
    pub fn requested(&self) -> Option<&Quantity> {
        self.spec.resources.requests.get(STORAGE)
    }

    /// How much it has.
    pub fn given(&self) -> Option<&Quantity> {
        self.status.capacity.get(STORAGE)
    }

    /// The name of its class; the annotation is older and wins.
    pub fn class(&self) -> Option<&str> {
        annotation(&self.metadata, STORAGE_CLASS).or(self.spec.storage_class_name.as_deref())
    }

    /// Whether it wants a device and no filesystem.
    pub fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    /// What its volume shall be a copy of.
    pub fn source(&self) -> Option<&DataSource> {
        self.spec.data_source_ref.as_ref().or(self.spec.data_source.as_ref())
    }
}

/// A PersistentVolume.
#[derive(Debug, Clone, Deserialize)]
pub struct PersistentVolume {
    /// Its name, its uid, its marks.
    pub metadata: ObjectMeta,
    /// What it is.
    #[serde(default, deserialize_with = "or_default")]
    pub spec: VolumeSpec,
    /// How it is.
    #[serde(default, deserialize_with = "or_default")]
    pub status: Phase,
}

/// What a volume is.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// Whose.
    pub csi: Option<CsiSource>,
    /// How large.
    #[serde(default, deserialize_with = "or_default")]
    pub capacity: BTreeMap<String, Quantity>,
    /// `Delete` or `Retain`.
    #[serde(default, deserialize_with = "or_default")]
    pub persistent_volume_reclaim_policy: String,
    /// The claim that it is bound to, or shall be.
    pub claim_ref: Option<ClaimReference>,
    /// `Filesystem` or `Block`.
    pub volume_mode: Option<String>,
    /// Its class.
    #[serde(default, deserialize_with = "or_default")]
    pub storage_class_name: String,
    /// Where it can be used.
    #[serde(default, deserialize_with = "or_default")]
    pub node_affinity: NodeAffinity,
}

/// Where a volume can be used.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct NodeAffinity {
    /// On which nodes.
    #[serde(default, deserialize_with = "or_default")]
    pub required: NodeSelector,
}

/// Some nodes: one of these holds.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// What holds.
    #[serde(default, deserialize_with = "or_default")]
    pub node_selector_terms: Vec<NodeTerm>,
}

/// Some nodes: all of these hold.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeTerm {
    /// What holds.
    #[serde(default, deserialize_with = "or_default")]
    pub match_expressions: Vec<TopologyExpression>,
}

/// The driver of a volume.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiSource {
    /// Its name.
    pub driver: String,
    /// What it calls the volume.
    pub volume_handle: String,
}

/// The claim that a volume is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ClaimReference {
    /// Its namespace.
    #[serde(default, deserialize_with = "or_default")]
    pub namespace: String,
    /// Its name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Its uid.
    #[serde(default, deserialize_with = "or_default")]
    pub uid: String,
}

/// How something is.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct Phase {
    /// In Kubernetes' words.
    #[serde(default, deserialize_with = "or_default")]
    pub phase: String,
}

impl ClaimReference {
    /// Which claim.
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl PersistentVolume {
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// How large it says it is.
    pub fn capacity(&self) -> Option<&Quantity> {
        self.spec.capacity.get(STORAGE)
    }

    /// The node that it is on, by the label that says so.
    pub fn node(&self, label: &str) -> Option<&str> {
        let terms = self.spec.node_affinity.required.node_selector_terms.iter();
        let mut expressions = terms.flat_map(|term| &term.match_expressions);
        expressions.find(|one| one.key == label)?.values.first().map(String::as_str)
    }

    /// What a driver calls it, if it is of that driver.
    pub fn handle(&self, driver: &str) -> Option<&str> {
        self.spec.csi.as_ref().filter(|csi| csi.driver == driver).map(|csi| csi.volume_handle.as_str())
    }
}

/// A StorageClass.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageClass {
    /// Its name, its uid, its marks.
    pub metadata: ObjectMeta,
    /// The driver.
    pub provisioner: String,
    /// What the driver shall know.
    #[serde(default, deserialize_with = "or_default")]
    pub parameters: BTreeMap<String, String>,
    /// `Delete` or `Retain`.
    pub reclaim_policy: Option<String>,
    /// For mount.
    #[serde(default, deserialize_with = "or_default")]
    pub mount_options: Vec<String>,
    /// Whether claims may ask for more later.
    #[serde(default, deserialize_with = "or_default")]
    pub allow_volume_expansion: bool,
    /// `Immediate` or `WaitForFirstConsumer`.
    pub volume_binding_mode: Option<String>,
    /// Where volumes may be.
    #[serde(default, deserialize_with = "or_default")]
    pub allowed_topologies: Vec<TopologyTerm>,
}

/// Where volumes may be: all of these hold.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologyTerm {
    /// What holds.
    #[serde(default, deserialize_with = "or_default")]
    pub match_label_expressions: Vec<TopologyExpression>,
}

/// A label that has one of some values.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TopologyExpression {
    /// The label.
    pub key: String,
    /// The values.
    #[serde(default, deserialize_with = "or_default")]
    pub values: Vec<String>,
}

impl StorageClass {
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether a volume is made only when a pod needs it.
    pub fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }
}

/// A CSIStorageCapacity: what the scheduler believes of a class on a node.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Its name, its labels.
    pub metadata: ObjectMeta,
    /// The class.
    pub storage_class_name: String,
    /// Which nodes.
    pub node_topology: Option<NodeTopology>,
    /// How much there is.
    pub capacity: Option<Quantity>,
    /// How large one volume can be.
    pub maximum_volume_size: Option<Quantity>,
}

/// Labels of the nodes for which a capacity holds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTopology {
    /// All of them.
    #[serde(default, deserialize_with = "or_default")]
    pub match_labels: BTreeMap<String, String>,
}

/// What Go writes for a list or a map without anything in it may be `null`.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The value of an annotation.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The value of a label.
pub fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Whether there is such a finalizer.
pub fn has_finalizer(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|present| present == finalizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_anything_in_it_may_be_null() {
        let node = serde_json::json!({"metadata": {"name": "n"}, "spec": {"drivers": null}});
        let node: CsiNode = serde_json::from_value(node).unwrap();
        assert!(node.spec.drivers.is_empty());
        let claim = serde_json::json!({
            "metadata": {"name": "c"}, "spec": {"accessModes": null, "resources": null}, "status": null,
        });
        assert!(serde_json::from_value::<Claim>(claim).unwrap().requested().is_none());
    }
}
