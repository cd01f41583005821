//! Flows: what becomes of volumes, in every way that writes to the API.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Process, published};
use crate::deployed::NAMESPACE;
use crate::suites::books::Books;
use crate::suites::stage::Stage;

/// Every flow, each to its goal, with a process that is killed all the time.
pub(super) fn all(stage: &Stage<'_>, process: &Process<'_>) -> Result<()> {
    whole_life(stage, process)?;
    what_cannot_be_made(stage, process)?;
    what_clients_of_csi_ask(stage, process)?;
    what_others_do(stage, process)
}

/// What becomes of most volumes.
fn whole_life(stage: &Stage<'_>, process: &Process<'_>) -> Result<()> {
    let cluster = stage.cluster;
    cluster.wait_for("what the node has to be published again", || {
        Ok(published(cluster)? == process.published
            && cluster.get(["--namespace", NAMESPACE, "lvmnode", process.node])?["status"]["state"]
                == "Ready")
    })?;

    process.arm("provision")?;
    stage.claim("data", "thin", "1Gi")?;
    stage.start_pod("user", "data", None)?;
    let written = stage.run_in("user", "date > /data/file; sync; sha256sum /data/file")?;

    process.arm("grow")?;
    stage.grow("data", "2Gi")?;
    cluster.wait_for("the claim to have grown", || {
        Ok(stage.get("pvc", "data")?["status"]["capacity"]["storage"] == "2Gi")
    })?;

    process.arm("snapshot")?;
    stage.snapshot("moment", "data", "lvms")?;
    stage.await_snapshot("moment")?;

    process.arm("restore")?;
    stage.restore("restored", "moment", "thin", "2Gi")?;
    stage.start_pod("restored", "restored", None)?;
    ensure!(stage.run_in("restored", "sha256sum /data/file")? == written, "what was restored is another");

    process.arm("clone")?;
    let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    stage.apply_claim("copy", "thin", "2Gi", &source)?;
    stage.start_pod("copy", "copy", None)?;
    ensure!(stage.run_in("copy", "sha256sum /data/file")? == written, "the clone is another");
    Books::await_agreement(cluster, 4)?;

    process.arm("delete-snapshot")?;
    stage.kubectl(&["delete", "volumesnapshot", "moment", "--wait=false"])?;
    Books::await_agreement(cluster, 3)?;

    process.arm("delete")?;
    stage.kubectl(&["delete", "pods,pvc", "--all", "--wait=false"])?;
    Books::await_agreement(cluster, 0)?;

    process.arm("come-back")?;
    let volume = bound(stage, "lost")?;
    let lv = cluster.get(["logicalvolume", &volume])?["status"]["volumeID"].clone();
    cluster.kubectl(["delete", "logicalvolume", &volume, "--wait=false"])?;
    let let_go = r#"{"metadata": {"finalizers": null}}"#;
    cluster.kubectl(["patch", "logicalvolume", &volume, "--type=merge", "--patch", let_go])?;
    cluster.wait_for("the LogicalVolume to come back", || {
        let found = cluster.get(["logicalvolume", &volume])?;
        Ok(found["metadata"]["deletionTimestamp"].is_null() && found["status"]["volumeID"] == lv)
    })?;
    stage.kubectl(&["delete", "pvc", "lost", "--wait=false"])?;
    Books::await_agreement(cluster, 0)?;

    Ok(())
}

/// What is refused, by a node or because nobody has a place for it.
fn what_cannot_be_made(stage: &Stage<'_>, process: &Process<'_>) -> Result<()> {
    let cluster = stage.cluster;
    process.arm("no-room")?;
    stage.claim("huge", "thick", "100Gi")?;
    send(stage, "huge", process.node)?;
    cluster.wait_for(
        "the claim to be given back to the scheduler, and its LogicalVolume to be gone",
        || {
            let left = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
            Ok(stage.get("pvc", "huge")?["metadata"]["annotations"][SELECTED].is_null() && left.is_empty())
        },
    )?;
    stage.kubectl(&["delete", "pvc", "huge", "--wait=false"])?;

    // As much again is more than the pool may promise.
    process.arm("snapshot-refused")?;
    stage.claim("large", "thin", "12Gi")?;
    send(stage, "large", process.node)?;
    stage.await_bound("large")?;
    stage.snapshot("refused", "large", "lvms")?;
    cluster.wait_for("the snapshot to be refused, and its LogicalVolume to be gone", || {
        let why = stage.get("volumesnapshot", "refused")?["status"]["error"]["message"].take();
        let left = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
        ensure!(!why.is_null() && left.lines().count() == 1, "it says {why}, and there are {left}");
        Ok(true)
    })?;
    stage.kubectl(&["delete", "volumesnapshot", "refused", "--wait=false"])?;
    stage.kubectl(&["delete", "pvc", "large", "--wait=false"])?;
    Books::await_agreement(cluster, 0)?;

    process.arm("class-removed")?;
    let class = "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: removed}, provisioner: topolvm.io,
                  volumeBindingMode: WaitForFirstConsumer}";
    cluster.apply(class)?;
    let told = |count: usize| {
        cluster.wait_for(&format!("{count} capacities to be published"), || Ok(published(cluster)? == count))
    };
    told(process.published + 1)?;
    cluster.kubectl(["delete", "storageclass", "removed"])?;
    told(process.published)
}

/// What a client asks of CSI's Controller service; no claim does.
fn what_clients_of_csi_ask(stage: &Stage<'_>, process: &Process<'_>) -> Result<()> {
    let cluster = stage.cluster;
    let ask = |words: &str| process.ask(words, "answered");
    process.arm("csi-create")?;
    let volume = ask("create asked thin 1073741824")?;
    process.arm("csi-grow")?;
    ask(&format!("grow {volume} 2147483648"))?;
    process.arm("csi-snapshot")?;
    let snapshot = ask(&format!("snapshot moment {volume}"))?;
    process.arm("csi-delete")?;
    ask(&format!("delete-snapshot {snapshot}"))?;
    ask(&format!("delete {volume}"))?;
    Books::await_agreement(cluster, 0)?;

    // As much again is more than the pool may promise.
    process.arm("csi-refused")?;
    let large = ask("create large thin 12884901888")?;
    process.ask(&format!("snapshot refused {large}"), "ResourceExhausted")?;
    cluster.wait_for("the LogicalVolume of a snapshot that was refused to be gone", || {
        let left = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
        ensure!(left.lines().count() == 1, "there are {left}");
        Ok(true)
    })?;
    ask(&format!("delete {large}"))?;
    Books::await_agreement(cluster, 0)
}

/// What people and predecessors do to objects, and what nodes leave behind.
fn what_others_do(stage: &Stage<'_>, process: &Process<'_>) -> Result<()> {
    let cluster = stage.cluster;
    let is_gone = |kind: &str, name: &str| {
        cluster.wait_for(&format!("{kind} {name} to be gone"), || {
            Ok(cluster
                .kubectl(["--namespace", NAMESPACE, "get", kind, name, "--ignore-not-found"])?
                .is_empty())
        })
    };
    process.arm("retain")?;
    let volume = bound(stage, "kept")?;
    let policy = |volume: &str, policy: &str, marked: bool| {
        let patch = format!(r#"{{"spec": {{"persistentVolumeReclaimPolicy": "{policy}"}}}}"#);
        cluster.kubectl(["patch", "pv", volume, "--patch", &patch])?;
        cluster.wait_for(&format!("the PersistentVolume to be kept by what {policy} needs"), || {
            let finalizers = cluster.get(["pv", volume])?["metadata"]["finalizers"].to_string();
            Ok(finalizers.contains("external-provisioner.volume.kubernetes.io/finalizer") == marked)
        })
    };
    let released = |volume: &str| {
        cluster.wait_for("the volume to be released", || {
            Ok(cluster.get(["pv", volume])?["status"]["phase"] == "Released")
        })
    };
    policy(&volume, "Retain", false)?;
    policy(&volume, "Delete", true)?;
    policy(&volume, "Retain", false)?;
    stage.kubectl(&["delete", "pvc", "kept", "--wait=false"])?;
    released(&volume)?;
    Books::await_agreement(cluster, 1)?;
    // Nobody has ever used it: it is nobody's data when nothing names it any more.
    process.arm("orphan")?;
    cluster.kubectl(["delete", "pv", &volume, "--wait=false"])?;
    is_gone("pv", &volume)?;
    is_gone("logicalvolume", &volume)?;
    Books::await_agreement(cluster, 0)?;

    process.arm("used-orphan")?;
    let volume = bound(stage, "used")?;
    stage.start_pod("used", "used", None)?;
    stage.remove_pod("used")?;
    policy(&volume, "Retain", false)?;
    stage.kubectl(&["delete", "pvc", "used", "--wait=false"])?;
    released(&volume)?;
    cluster.kubectl(["delete", "pv", &volume, "--wait=false"])?;
    let annotated =
        |mark: &str| Ok(!cluster.get(["logicalvolume", &volume])?["metadata"]["annotations"][mark].is_null());
    cluster.wait_for("its node to be asked about it", || annotated("lvms.io/orphaned"))?;
    // As from a backup of a time when nobody had used it yet.
    cluster.kubectl(["annotate", "logicalvolume", &volume, "lvms.io/unused=then"])?;
    cluster.wait_for("what is not true any more to be taken back", || Ok(!annotated("lvms.io/unused")?))?;
    cluster.kubectl(["delete", "logicalvolume", &volume, "--wait=false"])?;
    Books::await_agreement(cluster, 0)?;

    process.arm("by-hand")?;
    let by_hand = |name: &str, node: &str, finalizers: &[&str]| {
        let object = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": name, "finalizers": finalizers},
            "spec": {"name": name, "nodeName": node, "size": "1Gi", "deviceClass": "thin"},
        });
        cluster.apply(&object.to_string())
    };
    by_hand("by-hand", process.node, &[])?;
    cluster.wait_for("it to be made", || {
        let volume = cluster.get(["logicalvolume", "by-hand"])?;
        Ok(!volume["status"]["volumeID"].is_null() && !volume["metadata"]["finalizers"].is_null())
    })?;
    cluster.kubectl(["delete", "logicalvolume", "by-hand", "--wait=false"])?;
    Books::await_agreement(cluster, 0)?;

    process.arm("old-finalizer")?;
    stage.claim("old", "thin", "1Gi")?;
    let finalizers = r#"{"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "topolvm.io/pvc"]}}"#;
    stage.kubectl(&["patch", "pvc", "old", "--type=merge", "--patch", finalizers])?;
    cluster.wait_for("the old finalizer to be gone", || {
        Ok(!stage.get("pvc", "old")?["metadata"]["finalizers"].to_string().contains("topolvm.io/pvc"))
    })?;
    stage.kubectl(&["delete", "pvc", "old", "--wait=false"])?;

    process.arm("node-left-before")?;
    stage.claim("elsewhere", "thin", "1Gi")?;
    let claim = stage.get("pvc", "elsewhere")?;
    let volume = format!("pvc-{}", claim["metadata"]["uid"].as_str().context("a claim has a uid")?);
    // As it was sent to a node that has left since, and perhaps has an LV for it.
    by_hand(&volume, "nowhere", &["topolvm.io/logicalvolume"])?;
    send(stage, "elsewhere", "nowhere")?;
    is_gone("logicalvolume", &volume)?;
    // What keeps that LV in mind goes when the node is back, which this one never is.
    let kept = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
    let kept: Vec<&str> = kept.lines().collect();
    ensure!(kept.len() == 1 && kept[0].contains("/left-"), "of a node that has left there is {kept:?}");
    let nothing = r#"{"metadata": {"finalizers": null}}"#;
    cluster.kubectl(["patch", kept[0], "--type=merge", "--patch", nothing])?;
    stage.kubectl(&["delete", "pvc", "elsewhere", "--wait=false"])?;

    process.arm("node-leaves")?;
    cluster.apply(
        r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gone", "finalizers": ["topolvm.io/node"]}}"#,
    )?;
    cluster.apply(&format!(
        "{{apiVersion: lvm.topolvm.io/v2alpha1, kind: LVMNode, metadata: {{name: gone, namespace: {NAMESPACE}}}}}"
    ))?;
    let offers =
        r#"{"status": {"deviceClasses": [{"name": "thin", "volumeGroup": "gone", "available": "8Gi"}]}}"#;
    let node = ["--namespace", NAMESPACE, "patch", "lvmnode", "gone"];
    cluster.kubectl(node.iter().chain(&["--subresource=status", "--type=merge", "--patch", offers]))?;
    by_hand("left", "gone", &["topolvm.io/logicalvolume"])?;
    // It waits for the node to make its volume.
    stage.claim("left", "thin", "1Gi")?;
    send(stage, "left", "gone")?;
    let claim = stage.get("pvc", "left")?;
    let volume = format!("pvc-{}", claim["metadata"]["uid"].as_str().context("a claim has a uid")?);
    cluster.wait_for("the claim to be sent to the node", || {
        let sent = ["get", "logicalvolume", &volume, "--ignore-not-found", "--output=name"];
        Ok(!cluster.kubectl(sent)?.is_empty())
    })?;
    cluster.kubectl(["delete", "node", "gone", "--wait=false"])?;
    for (kind, name) in
        [("node", "gone"), ("lvmnode", "gone"), ("logicalvolume", "left"), ("logicalvolume", &volume)]
    {
        is_gone(kind, name)?;
    }
    Books::await_agreement(cluster, 0)?;
    cluster.wait_for("the claim to be gone with its node", || {
        Ok(stage.kubectl(&["get", "pvc", "--output=name"])?.is_empty())
    })
}

/// The node that the scheduler has chosen for a claim.
const SELECTED: &str = "volume.kubernetes.io/selected-node";

/// Sends a claim to a node, as the scheduler does for its first pod.
fn send(stage: &Stage<'_>, claim: &str, node: &str) -> Result<()> {
    stage.kubectl(&["annotate", "pvc", claim, "--overwrite", &format!("{SELECTED}={node}")]).map(drop)
}

/// A claim that waits for no pod, and the name of its volume.
fn bound(stage: &Stage<'_>, claim: &str) -> Result<String> {
    stage.claim(claim, "immediate", "1Gi")?;
    stage.await_bound(claim)?;
    let found = stage.get("pvc", claim)?;
    Ok(found["spec"]["volumeName"].as_str().context("a bound claim has a volume")?.to_owned())
}
