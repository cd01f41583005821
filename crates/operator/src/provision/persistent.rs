//! The PersistentVolume for a LogicalVolume, as external-provisioner makes it for TopoLVM.

use lvms_api::names::kubernetes::{DELETION_SECRET, PROVISIONED_BY, PROVISIONER_IDENTITY, VOLUME_FINALIZER};
use lvms_api::{Personality, Quantity};
use lvms_cluster::slim::{Claim, StorageClass};
use serde_json::{Value, json};

/// What it is made from.
pub(super) struct Persistent<'a> {
    /// For which driver.
    pub(super) personality: Personality,
    /// The claim that it is for.
    pub(super) claim: &'a Claim,
    /// The class of the claim.
    pub(super) class: &'a StorageClass,
    /// Its name.
    pub(super) name: &'a str,
    /// What the driver calls it.
    pub(super) handle: &'a str,
    /// How large it is.
    pub(super) size: u64,
    /// The node that has it.
    pub(super) node: &'a str,
    /// Its filesystem; empty if the class does not say.
    pub(super) filesystem: &'a str,
    /// Which leader made it.
    pub(super) identity: &'a str,
}

impl Persistent<'_> {
    /// All of it.
    pub(super) fn object(&self) -> Value {
        let metadata = &self.claim.metadata;
        let block = self.claim.is_block();
        let mut csi = json!({
            "driver": self.personality.driver(),
            "volumeHandle": self.handle,
            "volumeAttributes": { PROVISIONER_IDENTITY: self.identity },
        });
        if !block && !self.filesystem.is_empty() {
            csi["fsType"] = json!(self.filesystem);
        }
        let mut spec = json!({
            "storageClassName": self.class.name(),
            "accessModes": self.claim.spec.access_modes,
            "volumeMode": self.claim.spec.volume_mode.as_deref().unwrap_or("Filesystem"),
            "capacity": { "storage": Quantity::of(self.size) },
            "persistentVolumeReclaimPolicy": self.class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": metadata.namespace, "name": metadata.name,
                "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            },
            "csi": csi,
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{
                "matchExpressions": [{
                    "key": self.personality.topology_key(), "operator": "In", "values": [self.node],
                }],
            }] } },
        });
        if !self.class.mount_options.is_empty() {
            spec["mountOptions"] = json!(self.class.mount_options);
        }
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": self.name,
                "annotations": {
                    PROVISIONED_BY: self.personality.driver(),
                    DELETION_SECRET[0]: "", DELETION_SECRET[1]: "",
                },
                "finalizers": [VOLUME_FINALIZER],
            },
            "spec": spec,
        })
    }
}

/// Which leader made a volume, in external-provisioner's words.
pub fn identity(personality: Personality) -> String {
    let milliseconds = jiff::Timestamp::now().as_millisecond();
    let number = uuid::Uuid::new_v4().as_u128() % 10_000;
    format!("{milliseconds}-{number}-{}", personality.driver())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_external_provisioner_makes_it() {
        let claim: Claim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "u1", "resourceVersion": "7"},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"},
        }))
        .unwrap();
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": "fast"}, "provisioner": "topolvm.io", "mountOptions": ["debug"],
            "reclaimPolicy": "Retain",
        }))
        .unwrap();
        let persistent = Persistent {
            personality: Personality::Topolvm,
            claim: &claim,
            class: &class,
            name: "pvc-u1",
            handle: "lv-uid",
            size: 1 << 30,
            node: "n1",
            filesystem: "xfs",
            identity: "1-2-topolvm.io",
        };
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-u1",
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": "topolvm.io",
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": "ns", "name": "data", "uid": "u1", "resourceVersion": "7",
                },
                "csi": {
                    "driver": "topolvm.io", "volumeHandle": "lv-uid", "fsType": "xfs",
                    "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1-2-topolvm.io"},
                },
                "mountOptions": ["debug"],
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.topolvm.io/node", "operator": "In", "values": ["n1"]},
                ]}]}},
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "fast",
                "volumeMode": "Filesystem",
            },
        });
        assert_eq!(persistent.object(), expected);
    }
}
