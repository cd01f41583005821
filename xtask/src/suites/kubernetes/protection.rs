//! No byte is lost by what people and programs do to objects, and a node can do nothing to another's.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::LVMS;
use super::by_hand::make_claim;
use crate::cluster::Cluster;
use crate::deployed::{self, NAMESPACE};
use crate::suites::cluster::Case;
use crate::suites::stage::{READ, Stage, WRITE, await_event, on_a_stage};

pub(super) const CASES: &[Case] = &[
    Case::One("a_node_can_change_its_own_objects_only", a_node_can_change_its_own_objects_only),
    Case::One(
        "the_operator_can_change_nothing_of_a_pod_but_one_annotation",
        the_operator_can_change_nothing_of_a_pod_but_one_annotation,
    ),
    Case::One(
        "a_logical_volume_deleted_by_hand_is_kept_while_a_volume_names_it",
        a_logical_volume_deleted_by_hand_is_kept_while_a_volume_names_it,
    ),
    Case::One("data_of_a_retained_volume_is_kept", data_of_a_retained_volume_is_kept),
    Case::One("a_lost_volume_is_told_and_not_made_again", a_lost_volume_is_told_and_not_made_again),
    Case::One(
        "the_source_of_a_copy_stays_until_the_copy_is_there",
        the_source_of_a_copy_stays_until_the_copy_is_there,
    ),
];

/// The name and the id of the LogicalVolume of a claim, and its node.
pub(super) fn made_for(stage: &Stage<'_>, claim: &str) -> Result<(String, String, String)> {
    let claim = stage.get("pvc", claim)?;
    let name = claim["spec"]["volumeName"].as_str().context("the claim is not bound")?;
    let volume = stage.cluster.get(["logicalvolume", name])?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a text is missing");
    Ok((name.to_owned(), text(&volume["status"]["volumeID"])?, text(&volume["spec"]["nodeName"])?))
}

/// Whether LVM has an LV on a node.
pub(super) fn has_lv(cluster: &Cluster, node: &str, id: &str) -> Result<bool> {
    let node = cluster.nodes().iter().find(|known| known.name == node).context("an unknown node")?;
    let found =
        node.guest.script(&format!("lvs --noheadings -o lv_name --select lv_name={id}")).run()?.text();
    Ok(found.contains(id))
}

/// kubectl with the token that the pod of lvms on a node has.
fn as_node(cluster: &Cluster, number: usize, arguments: &[&str]) -> Result<String> {
    let pod = deployed::pod_on(cluster, &cluster.nodes()[number])?;
    let bound = ["--bound-object-kind=Pod", &format!("--bound-object-name={pod}")].map(str::to_owned);
    let create = ["--namespace", NAMESPACE, "create", "token", "lvms-node"].map(str::to_owned);
    let token = cluster.kubectl(create.iter().chain(&bound))?;
    let server = cluster.kubectl(["config", "view", "--output=jsonpath={.clusters[0].cluster.server}"])?;
    std::fs::write("ca.crt", &cluster.authority().certificate)?;
    let way = [
        "--kubeconfig=/dev/null".to_owned(),
        format!("--server={}", server.trim()),
        "--certificate-authority=ca.crt".to_owned(),
        format!("--token={}", token.trim()),
    ];
    cluster.kubectl(way.iter().map(String::as_str).chain(arguments.iter().copied()))
}

/// What a node may not do, and what it must be told.
fn is_refused(cluster: &Cluster, number: usize, arguments: &[&str], why: &str) -> Result<()> {
    refused(as_node(cluster, number, arguments), arguments, why)
}

/// That something was refused, and why.
fn refused(done: Result<String>, arguments: &[&str], why: &str) -> Result<()> {
    match done {
        Ok(_) => bail!("nobody refuses {}", arguments.join(" ")),
        Err(error) => {
            let told = format!("{error:#}");
            ensure!(told.contains(why), "{} is refused with {told}", arguments.join(" "));
            Ok(())
        }
    }
}

fn a_node_can_change_its_own_objects_only(cluster: &Cluster) -> Result<()> {
    let own = &cluster.nodes()[0].name;
    on_a_stage(cluster, &LVMS, "rights", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", Some(own))?;
        let (volume, _, _) = made_for(stage, "data")?;
        let patch = |patch: &str, more: &[&str]| -> Vec<String> {
            let words = ["patch", "logicalvolume", &volume, "--type=merge", "--patch", patch];
            words.iter().chain(more).map(|word| (*word).to_owned()).collect()
        };
        let try_as = |number: usize, words: &[String], why: Option<&str>| -> Result<()> {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match why {
                Some(why) => is_refused(cluster, number, &words, why),
                None => as_node(cluster, number, &words).map(drop),
            }
        };
        let status = patch(r#"{"status": {"message": "hello"}}"#, &["--subresource=status"]);
        try_as(0, &status, None)?;
        try_as(1, &status, Some("may not change the LogicalVolume of node node-0"))?;
        let finalizers = patch(r#"{"metadata": {"finalizers": null}}"#, &[]);
        try_as(1, &finalizers, Some("may not change the LogicalVolume of node node-0"))?;
        let release = patch(r#"{"metadata": {"annotations": {"lvms.io/released": "now"}}}"#, &[]);
        try_as(0, &release, Some("only the leader may write lvms.io/released"))?;
        let adopts = patch(r#"{"metadata": {"annotations": {"lvms.io/adopts": "another"}}}"#, &[]);
        try_as(0, &adopts, Some("only the leader may write lvms.io/adopts"))?;
        let another = patch(r#"{"status": {"volumeID": "another"}}"#, &["--subresource=status"]);
        try_as(0, &another, Some("a node may not say that a LogicalVolume has the LV of another"))?;
        let none = patch(r#"{"status": {"volumeID": null}}"#, &["--subresource=status"]);
        try_as(0, &none, Some("a node may not say that a LogicalVolume has the LV of another"))?;
        let size = patch(r#"{"spec": {"size": "2Gi"}}"#, &[]);
        try_as(0, &size, Some("a node may not change what a LogicalVolume shall be"))?;
        is_refused(cluster, 0, &["delete", "logicalvolume", &volume], "forbidden")?;
        is_refused(cluster, 0, &["get", "secrets", "--all-namespaces"], "forbidden")?;
        let report =
            ["--type=merge", "--subresource=status", "--patch", r#"{"status": {"used": "nothing"}}"#];
        let of = |node: &'static str| -> Vec<&str> {
            ["--namespace", NAMESPACE, "patch", "lvmnode", node].into_iter().chain(report).collect()
        };
        is_refused(cluster, 0, &of("node-1"), "may not write the LVMNode of another")?;
        as_node(cluster, 1, &of("node-1"))?;
        Ok(())
    })
}

fn the_operator_can_change_nothing_of_a_pod_but_one_annotation(cluster: &Cluster) -> Result<()> {
    changes_nothing_of_a_pod_but_one_annotation(cluster, "lvms-operator")
}

/// What the leader's account may do to pods.
pub(super) fn changes_nothing_of_a_pod_but_one_annotation(cluster: &Cluster, account: &str) -> Result<()> {
    // One that it may read, too: kubectl does before it patches.
    let pod = deployed::pod_on(cluster, &cluster.nodes()[0])?;
    let operator = format!("--as=system:serviceaccount:{NAMESPACE}:{account}");
    let patched = |patch: &Value| {
        let patch = patch.to_string();
        let words = ["patch", "pod", &pod, "--type=merge", "--patch", &patch];
        cluster.kubectl(["--namespace", NAMESPACE, &operator].iter().chain(&words))
    };
    patched(&json!({"metadata": {"annotations": {"topolvm.io/last-resizefs-requested-at": "now"}}}))?;
    for (patch, why) in [
        (json!({"metadata": {"annotations": {"lab/other": "x"}}}), "and no other annotation"),
        (json!({"metadata": {"labels": {"lab/other": "x"}}}), "may not change the labels of a pod"),
        (json!({"metadata": {"finalizers": ["lab/other"]}}), "may not change the finalizers of a pod"),
        (json!({"metadata": {"ownerReferences": null}}), "may not say whose a pod is"),
        (json!({"spec": {"activeDeadlineSeconds": 86400}}), "may not change what a pod is"),
    ] {
        refused(patched(&patch), &[&patch.to_string()], why)?;
    }
    Ok(())
}

fn a_logical_volume_deleted_by_hand_is_kept_while_a_volume_names_it(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "by-hand", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let written = stage.run_in("user", WRITE)?;
        let (volume, id, node) = made_for(stage, "data")?;
        cluster.kubectl(["delete", "logicalvolume", &volume, "--wait=false"])?;
        await_event(cluster, "default", &volume, "Retained", "names this volume")?;
        ensure!(has_lv(cluster, &node, &id)?, "the data is gone");
        stage.run_in("user", "sync; echo > /data/still-there")?;
        stage.remove_pod("user")?;
        stage.start_pod("next", "data", None)?;
        ensure!(stage.run_in("next", READ)? == written, "the data has changed");
        Ok(())
    })
}

/// Deletes a claim and its PersistentVolume, whose data is to be retained.
fn forget(stage: &Stage<'_>, claim: &str, volume: &str) -> Result<()> {
    let cluster = stage.cluster;
    let retain = r#"{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}"#;
    cluster.kubectl(["patch", "pv", volume, "--patch", retain])?;
    stage.kubectl(&["delete", "pvc", claim, "--wait=false"])?;
    cluster.wait_for("the volume to be released", || {
        Ok(cluster.get(["pv", volume])?["status"]["phase"] == "Released")
    })?;
    cluster.kubectl(["delete", "pv", volume, "--wait=false"])?;
    cluster.wait_for("the PersistentVolume to be gone", || {
        Ok(cluster.kubectl(["get", "pv", volume, "--ignore-not-found"])?.is_empty())
    })
}

fn data_of_a_retained_volume_is_kept(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "retain", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let written = stage.run_in("user", WRITE)?;
        let (volume, id, node) = made_for(stage, "data")?;
        stage.remove_pod("user")?;
        forget(stage, "data", &volume)?;
        ensure!(has_lv(cluster, &node, &id)?, "the data is gone");
        ensure!(cluster.get(["logicalvolume", &volume])?["status"]["volumeID"] == id.as_str());
        let told = "its data is kept until this object is deleted";
        await_event(cluster, "default", &volume, "Retained", told)?;
        // Whoever wants it back names it by hand.
        make_claim(stage, "again", &id, &node, "Filesystem")?;
        stage.start_pod("again", "again", None)?;
        ensure!(stage.run_in("again", READ)? == written, "the data has changed");
        stage.remove_pod("again")?;
        forget(stage, "again", "again")?;
        // Whoever wants it gone deletes the LogicalVolume, as with TopoLVM.
        cluster.kubectl(["delete", "logicalvolume", &volume, "--wait=false"])?;
        cluster.wait_for("the logical volume to be gone", || Ok(!has_lv(cluster, &node, &id)?))
    })
}

fn a_lost_volume_is_told_and_not_made_again(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "lost", "", |stage| {
        stage.claim("data", "immediate", "1Gi")?;
        stage.await_bound("data")?;
        let (volume, id, node) = made_for(stage, "data")?;
        let guest =
            &cluster.nodes().iter().find(|known| known.name == node).context("an unknown node")?.guest;
        guest.script(&format!("lvremove --yes thick1/{id}")).run()?;
        cluster.wait_for("the loss to be told", || {
            let status = &cluster.get(["logicalvolume", &volume])?["status"];
            ensure!(
                status["message"].as_str().is_some_and(|told| told.starts_with("Lost")),
                "it says {status}"
            );
            Ok(true)
        })?;
        stage.make_pod("user", "data", None)?;
        stage.await_event("user", "FailedMount", &id)?;
        ensure!(!has_lv(cluster, &node, &id)?, "an empty volume was made in its place");
        Ok(())
    })
}

/// What copies are made of, with the finalizers that external-provisioner puts there.
const SOURCES: [(&str, &str, &str); 2] = [
    ("pvc", "source", "provisioner.storage.kubernetes.io/cloning-protection"),
    ("volumesnapshot", "moment", "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"),
];

fn the_source_of_a_copy_stays_until_the_copy_is_there(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "sources", "", |stage| {
        stage.claim("source", "immediate", "300Mi")?;
        stage.start_pod("source", "source", None)?;
        let written = stage.run_in("source", WRITE)?;
        stage.snapshot("moment", "source", "lvms")?;
        stage.await_snapshot("moment")?;
        stage.remove_pod("source")?;
        let (_, _, node) = made_for(stage, "source")?;
        let node = cluster.nodes().iter().find(|known| known.name == node).context("an unknown node")?;
        // Neither copy is begun before its node goes on.
        deployed::halt(node)?;
        let kept = (|| {
            let source = json!({"kind": "PersistentVolumeClaim", "name": "source"});
            stage.apply_claim("copy", "immediate", "300Mi", &source)?;
            stage.restore("restored", "moment", "immediate", "300Mi")?;
            for (kind, name, finalizer) in SOURCES {
                cluster.wait_for(&format!("{name} to be protected"), || {
                    let finalizers = stage.get(kind, name)?["metadata"]["finalizers"].take();
                    let finalizers = finalizers.as_array().context("no finalizers")?;
                    ensure!(finalizers.iter().any(|one| one == finalizer), "{name} has {finalizers:?}");
                    Ok(true)
                })?;
            }
            // The snapshot-controller would look again after a quarter of an hour: its snapshot is deleted later.
            stage.kubectl(&["delete", "pvc", "source", "--wait=false"])?;
            let source = stage.get("pvc", "source")?;
            ensure!(!source["metadata"]["deletionTimestamp"].is_null(), "the source is not deleted");
            Ok(())
        })();
        deployed::go_on(node)?;
        kept?;
        for name in ["copy", "restored"] {
            stage.start_pod(name, name, None)?;
            ensure!(stage.run_in(name, READ)? == written, "{name} is another than its source");
        }
        stage.kubectl(&["delete", "volumesnapshot", "moment", "--wait=false"])?;
        cluster.wait_for("the sources to be gone", || {
            let left =
                stage.kubectl(&["get", "--ignore-not-found", "pvc/source", "volumesnapshot/moment"])?;
            ensure!(left.is_empty(), "there is still {left}");
            Ok(true)
        })
    })
}
