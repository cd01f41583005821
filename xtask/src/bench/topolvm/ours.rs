//! lvms by the former name, as its manifests say: as several processes, or as one.

use anyhow::{Context, Result};

use super::SIDES;
use crate::cluster::Cluster;
use crate::{deployed, progress};

/// What it needs before it runs, with classes for both sides.
pub(super) fn install(cluster: &Cluster) -> Result<()> {
    let step = progress::step("installing lvms by the former name");
    deployed::manifests()?;
    cluster.script(
        "lvms crd --use-legacy true | kubectl apply --server-side -f -
         kubectl apply --server-side -f deploy/legacy.yaml
         for part in base operator-access; do
           kubectl apply --server-side -f deploy/$part.yaml
         done
         kubectl --namespace lvms-system patch configmap lvms --type merge \
             --patch '{\"data\": {\"LVMS_LOG\": \"info,lvms_host::runner=debug\"}}'",
    )?;
    for side in SIDES {
        let driver = side.driver();
        for kind in ["thick", "thin"] {
            let class = serde_json::json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": side.class(kind)},
                "provisioner": driver, "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
                "parameters": {"csi.storage.k8s.io/fstype": "ext4", format!("{driver}/device-class"): kind},
            });
            cluster.apply(&class.to_string())?;
        }
        let class = serde_json::json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": side.class("snapshots")}, "driver": driver, "deletionPolicy": "Delete",
        });
        cluster.apply(&class.to_string())?;
    }
    step.done();
    Ok(())
}

/// A part per node, and two processes for the cluster.
pub(super) const ROLES: [&str; 2] = ["daemonset/lvms-node", "deployment/lvms-operator"];

/// The same in one.
pub(super) const SINGLE_NODE: &str = "deployment/lvms-single-node";

/// Runs it like this, when nothing of it runs.
pub(super) fn begin(cluster: &Cluster, sets: &[&str]) -> Result<()> {
    for set in sets {
        let (_, name) = set.split_once("/lvms-").context("a set has a kind and a name")?;
        let begin = format!(
            "kubectl apply --server-side -f deploy/{name}.yaml
             kubectl --namespace lvms-system rollout status {set} --timeout=15m"
        );
        cluster.script(&begin)?;
    }
    Ok(())
}

/// Ends it, and waits until nothing of it runs.
pub(super) fn end(cluster: &Cluster, sets: &[&str]) -> Result<()> {
    let sets = sets.join(" ");
    let end = format!(
        "kubectl --namespace lvms-system delete {sets} --wait
         kubectl --namespace lvms-system wait --for=delete pod --selector app.kubernetes.io/name=lvms --timeout=10m"
    );
    cluster.script(&end).map(drop)
}
