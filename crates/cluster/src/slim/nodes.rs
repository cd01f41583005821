//! Nodes, and what runs on them.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use super::{Anything, or_default};
kind!(Node, "Node", "", "v1", "nodes", ClusterResourceScope);
kind!(CsiNode, "CSINode", "storage.k8s.io", "v1", "csinodes", ClusterResourceScope);
kind!(Pod, "Pod", "", "v1", "pods", NamespaceResourceScope);

/// A Node.
#[derive(Debug, Clone, Deserialize)]
pub struct Node {
    /// Its name, its labels, its annotations.
    pub metadata: ObjectMeta,
    /// What shall be.
    #[serde(default, deserialize_with = "or_default")]
    pub spec: NodeSpec,
}

/// What shall be with a node.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct NodeSpec {
    /// That no new pods shall be on it.
    #[serde(default, deserialize_with = "or_default")]
    pub unschedulable: bool,
    /// What keeps pods from it.
    #[serde(default, deserialize_with = "or_default")]
    pub taints: Vec<Taint>,
}

/// What keeps pods from a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Taint {
    /// What is wrong.
    #[serde(default, deserialize_with = "or_default")]
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[serde(default, deserialize_with = "or_default")]
    pub effect: String,
}

impl Node {
    /// Whether Kubernetes believes that its kubelet does its work.
    pub fn answers(&self) -> bool {
        let away = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"];
        let keeps_off =
            |taint: &Taint| taint.effect != "PreferNoSchedule" && away.contains(&taint.key.as_str());
        !self.spec.taints.iter().any(keeps_off)
    }
}

/// A Pod, as far as its volumes go.
#[derive(Debug, Clone, Deserialize)]
pub struct Pod {
    /// Its name.
    pub metadata: ObjectMeta,
    /// What it consists of.
    #[serde(default, deserialize_with = "or_default")]
    pub spec: PodSpec,
}

/// What a pod consists of.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct PodSpec {
    /// Its volumes.
    #[serde(default, deserialize_with = "or_default")]
    pub volumes: Vec<PodVolume>,
}

/// A volume of a pod.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodVolume {
    /// What the pod calls it.
    pub name: String,
    /// The claim that it is of.
    pub persistent_volume_claim: Option<PodClaim>,
    /// That it has a claim of its own, which lives as long as the pod.
    pub ephemeral: Option<Anything>,
}

/// The claim of a pod's volume.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodClaim {
    /// Its name.
    pub claim_name: String,
}

impl Pod {
    /// Whether it uses a claim.
    pub fn uses(&self, claim: &str) -> bool {
        let pod = self.metadata.name.as_deref().unwrap_or_default();
        self.spec.volumes.iter().any(|volume| {
            let named = volume.persistent_volume_claim.as_ref().is_some_and(|of| of.claim_name == claim);
            named || (volume.ephemeral.is_some() && claim == format!("{pod}-{}", volume.name))
        })
    }
}

/// An Event, of which nothing is read.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Its name.
    pub metadata: ObjectMeta,
}

/// The drivers that the kubelet of a node knows.
#[derive(Debug, Clone, Deserialize)]
pub struct CsiNode {
    /// Named after the node.
    pub metadata: ObjectMeta,
    /// What the kubelet has written.
    #[serde(default, deserialize_with = "or_default")]
    pub spec: CsiNodeSpec,
}

/// What the kubelet has written.
#[derive(Debug, Clone, Deserialize, Default)]
pub struct CsiNodeSpec {
    /// One for each driver.
    #[serde(default, deserialize_with = "or_default")]
    pub drivers: Vec<NodeDriver>,
}

/// A driver that a kubelet knows.
#[derive(Debug, Clone, Deserialize)]
pub struct NodeDriver {
    /// Its name.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_uses_its_claims_and_those_that_live_with_it() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {"volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
                {"name": "c", "emptyDir": {}},
            ]},
        }))
        .unwrap();
        assert!(pod.uses("data") && pod.uses("p-b") && !pod.uses("p-c") && !pod.uses("p-a"));
    }
}
