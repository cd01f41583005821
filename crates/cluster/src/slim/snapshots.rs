//! Objects of the snapshot API, which a cluster may not have.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use lvms_api::Quantity;
use serde::Deserialize;

use super::or_default;
kind!(
    VolumeSnapshot,
    "VolumeSnapshot",
    "snapshot.storage.k8s.io",
    "v1",
    "volumesnapshots",
    NamespaceResourceScope
);
kind!(
    SnapshotContent,
    "VolumeSnapshotContent",
    "snapshot.storage.k8s.io",
    "v1",
    "volumesnapshotcontents",
    ClusterResourceScope
);

/// A VolumeSnapshot: what a person asks for and sees.
#[derive(Debug, Clone, Deserialize)]
pub struct VolumeSnapshot {
    /// Its name, its uid, its marks.
    pub metadata: ObjectMeta,
    /// How it is.
    #[serde(default, deserialize_with = "or_default")]
    pub status: SnapshotStatus,
}

/// How a snapshot is.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The content that it is bound to.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Whether it can be restored.
    pub ready_to_use: Option<bool>,
    /// The least size of a volume that it can be restored to.
    pub restore_size: Option<Quantity>,
}

/// A VolumeSnapshotContent: what the driver makes.
#[derive(Debug, Clone, Deserialize)]
pub struct SnapshotContent {
    /// Its name, its uid, its marks.
    pub metadata: ObjectMeta,
    /// What shall be.
    pub spec: ContentSpec,
    /// What is.
    pub status: Option<ContentStatus>,
}

impl SnapshotContent {
    /// Whether it can be restored.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }
}

/// What a VolumeSnapshotContent shall be.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentSpec {
    /// Whose.
    pub driver: String,
    /// `Delete` or `Retain`.
    #[serde(default, deserialize_with = "or_default")]
    pub deletion_policy: String,
    /// Of what, or which.
    #[serde(default, deserialize_with = "or_default")]
    pub source: ContentSource,
    /// The VolumeSnapshot that it is bound to, or shall be.
    pub volume_snapshot_ref: SnapshotReference,
    /// Its class.
    pub volume_snapshot_class_name: Option<String>,
    /// `Filesystem` or `Block`, of the volume.
    pub source_volume_mode: Option<String>,
}

/// Of which volume a content is a snapshot, or which snapshot it is.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// Of this volume.
    pub volume_handle: Option<String>,
    /// This one, which was there before.
    pub snapshot_handle: Option<String>,
}

/// A VolumeSnapshot that something is bound to.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct SnapshotReference {
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

/// What a VolumeSnapshotContent is.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct ContentStatus {
    /// What the driver calls it.
    pub snapshot_handle: Option<String>,
    /// Whether it can be restored.
    pub ready_to_use: Option<bool>,
    /// The least size of a volume that it can be restored to, in bytes.
    pub restore_size: Option<i64>,
    /// What is wrong.
    pub error: Option<ContentError>,
}

/// What is wrong with a snapshot.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct ContentError {
    /// For people.
    pub message: Option<String>,
}
