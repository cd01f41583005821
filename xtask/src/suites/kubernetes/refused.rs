//! The API refuses what lvms writes, as another product's policy may: people are told where they look.

use anyhow::{Context, Result, ensure};

use super::LVMS;
use super::scenarios::volume_of;
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::stage::{Stage, await_event, on_a_stage};

pub(super) const CASES: &[Case] = &[
    Case::One(
        "what_the_api_refuses_is_told_of_the_object_and_goes_on_later",
        what_the_api_refuses_is_told_of_the_object_and_goes_on_later,
    ),
    Case::One(
        "what_the_api_refuses_a_node_is_told_of_the_logical_volume_and_the_claim",
        what_the_api_refuses_a_node_is_told_of_the_logical_volume_and_the_claim,
    ),
];

const POLICY: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refused}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [''], apiVersions: ['*'], operations: [UPDATE], resources: [persistentvolumeclaims/status]}
    - {apiGroups: [snapshot.storage.k8s.io], apiVersions: ['*'], operations: [UPDATE], resources: [volumesnapshotcontents/status]}
  matchConditions:
  - name: by-lvms
    expression: request.userInfo.username in ['system:serviceaccount:lvms-system:lvms-operator', 'probe']
  validations: [{expression: 'false', message: the lab refuses it}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refused}
spec: {policyName: refused, validationActions: [Deny]}
";

fn what_the_api_refuses_is_told_of_the_object_and_goes_on_later(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "refused", "", |stage| {
        stage.claim("data", "immediate", "1Gi")?;
        stage.await_bound("data")?;
        cluster.apply(POLICY)?;
        let told = is_told(stage);
        cluster.kubectl([
            "delete",
            "validatingadmissionpolicy,validatingadmissionpolicybinding",
            "refused",
        ])?;
        told?;
        cluster.wait_for("the volume to grow", || {
            Ok(volume_of(stage, "data")?["status"]["currentSize"] == "2Gi")
        })?;
        stage.await_snapshot("moment")
    })
}

/// The node cannot say what it has made.
const NODES_POLICY: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refused-to-nodes}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [topolvm.io], apiVersions: ['*'], operations: [UPDATE], resources: [logicalvolumes/status]}
  matchConditions:
  - name: by-a-node
    expression: request.userInfo.username in ['system:serviceaccount:lvms-system:lvms-node', 'probe']
  validations: [{expression: 'false', message: the lab refuses it}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refused-to-nodes}
spec: {policyName: refused-to-nodes, validationActions: [Deny]}
";

fn what_the_api_refuses_a_node_is_told_of_the_logical_volume_and_the_claim(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "refused-to-nodes", "", |stage| {
        stage.claim("before", "immediate", "1Gi")?;
        stage.await_bound("before")?;
        cluster.apply(NODES_POLICY)?;
        let told = is_told_for_a_node(stage);
        cluster.kubectl([
            "delete",
            "validatingadmissionpolicy,validatingadmissionpolicybinding",
            "refused-to-nodes",
        ])?;
        told?;
        stage.await_bound("data")
    })
}

fn is_told_for_a_node(stage: &Stage<'_>) -> Result<()> {
    let cluster = stage.cluster;
    let before = volume_of(stage, "before")?;
    let before = before["metadata"]["name"].as_str().context("a name")?;
    let write = ["patch", "logicalvolume", before, "--subresource=status", "--type=merge"];
    let probe = ["--patch={\"status\":{}}", "--as=probe", "--as-group=system:masters"];
    cluster.wait_for("the policy to be in force", || {
        let refusal = cluster.kubectl(write.iter().chain(&probe)).err().context("not yet")?;
        ensure!(format!("{refusal:#}").contains("the lab refuses it"), "{refusal:#}");
        Ok(true)
    })?;
    stage.claim("data", "immediate", "1Gi")?;
    let claim = stage.get("pvc", "data")?;
    let volume = format!("pvc-{}", claim["metadata"]["uid"].as_str().context("a uid")?);
    await_event(cluster, "default", &volume, "CreationFailed", "the lab refuses it")?;
    stage.await_event("data", "WaitsForNode", &volume)
}

fn is_told(stage: &Stage<'_>) -> Result<()> {
    let cluster = stage.cluster;
    // The API server learns of a policy by its watch. Who may do everything else is refused, too.
    let write = ["patch", "pvc", "data", "--subresource=status", "--type=merge", "--patch={\"status\":{}}"];
    let probe = ["--as=probe", "--as-group=system:masters"];
    cluster.wait_for("the policy to be in force", || {
        let refusal = stage.kubectl(&[&write[..], &probe].concat()).err().context("not yet")?;
        ensure!(format!("{refusal:#}").contains("the lab refuses it"), "{refusal:#}");
        Ok(true)
    })?;
    stage.grow("data", "2Gi")?;
    stage.await_event("data", "VolumeResizeFailed", "the lab refuses it")?;
    stage.snapshot("moment", "data", "lvms")?;
    cluster.wait_for("the content of the snapshot", || {
        Ok(!stage.get("volumesnapshot", "moment")?["status"]["boundVolumeSnapshotContentName"].is_null())
    })?;
    let snapshot = stage.get("volumesnapshot", "moment")?;
    let content = snapshot["status"]["boundVolumeSnapshotContentName"].as_str().context("a content")?;
    await_event(cluster, "default", content, "SnapshotContentCheckandUpdateFailed", "the lab refuses it")
}
