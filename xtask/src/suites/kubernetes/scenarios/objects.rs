//! What others do to objects.

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::{GIB, MIB};
use serde_json::{Value, json};

use super::{capacity_of, volume_of};
use crate::cluster::Cluster;
use crate::deployed::{self, NAMESPACE};
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::parts::Parts;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    Case::Several(
        &["t34_a_size_is_told_as_lvm_has_it", "t36_a_size_written_by_others_is_honoured"],
        a_size_is_told_as_lvm_has_it_and_what_others_write_is_honoured,
    ),
    Case::Several(
        &[
            "t35_a_size_that_was_cleared_while_its_node_was_down_is_told_again",
            "t37_a_size_that_was_changed_while_its_node_was_down_is_made_good",
        ],
        sizes_that_were_changed_while_their_node_was_down_are_made_good,
    ),
    Case::One(
        "t38_a_claim_without_a_class_does_not_keep_its_pod_from_being_made",
        t38_a_claim_without_a_class_does_not_keep_its_pod_from_being_made,
    ),
];

/// How large LVM has made an LV of `dc1`.
fn size_of_lv(cluster: &Cluster, volume: &Value) -> Result<u64> {
    let (node, id) = (&volume["spec"]["nodeName"], &volume["status"]["volumeID"]);
    let lv = [node, id].map(|text| text.as_str().unwrap_or_default());
    let what = format!("{} thick1/{} size", lv[0], lv[1]);
    deployed::space(cluster)?.get(&what).copied().with_context(|| format!("there is no {what}"))
}

fn a_size_is_told_as_lvm_has_it_and_what_others_write_is_honoured(
    cluster: &Cluster,
    parts: &Parts,
) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t34", "", |stage| {
        stage.claim("data", "immediate", "1023Mi")?;
        stage.await_bound("data")?;
        ensure!(capacity_of(stage, "data")? == "1Gi", "it has {}", capacity_of(stage, "data")?);
        let volume = volume_of(stage, "data")?;
        ensure!(volume["status"]["currentSize"] == "1Gi", "it is {}", volume["status"]);
        ensure!(size_of_lv(cluster, &volume)? == GIB, "LVM has {}", size_of_lv(cluster, &volume)?);
        parts.pass("t34");
        let name = volume["metadata"]["name"].as_str().context("a name")?;
        // A size that is no multiple of an extent.
        let patch = r#"{"spec": {"size": "1073745920"}}"#;
        cluster.kubectl(["patch", "logicalvolume", name, "--type=merge", "--patch", patch])?;
        cluster.wait_for("the volume to have grown", || {
            Ok(volume_of(stage, "data")?["status"]["currentSize"] == "1028Mi")
        })?;
        ensure!(size_of_lv(cluster, &volume)? == 1028 * MIB, "LVM has {}", size_of_lv(cluster, &volume)?);
        // What it has is filled in again where it is missing.
        forget_size(cluster, name)?;
        cluster.wait_for("the size to be told again", || {
            Ok(volume_of(stage, "data")?["status"]["currentSize"] == "1028Mi")
        })?;
        parts.pass("t36");
        Ok(())
    })
}

fn t38_a_claim_without_a_class_does_not_keep_its_pod_from_being_made(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t38", "", |stage| {
        stage.claim("data", "", "1Gi")?;
        stage.make_pod("user", "data", None)?;
        ensure!(stage.get("pod", "user")?["kind"] == "Pod");
        Ok(())
    })
}

fn forget_size(cluster: &Cluster, volume: &str) -> Result<()> {
    let patch = ["--type=merge", "--subresource=status", "--patch", r#"{"status": {"currentSize": null}}"#];
    cluster.kubectl(["patch", "logicalvolume", volume].iter().chain(&patch))?;
    Ok(())
}

/// Lets the nodes' part of lvms run nowhere, or on every node again.
fn run_on_nodes(cluster: &Cluster, run: bool) -> Result<()> {
    let selector = if run { Value::Null } else { json!({"lab.lvms.io/nowhere": "true"}) };
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}}).to_string();
    let set =
        ["--namespace", NAMESPACE, "patch", "daemonset", "lvms-node", "--type=merge", "--patch", &patch];
    cluster.kubectl(set)?;
    let nodes = if run { cluster.nodes().len() } else { 0 };
    cluster.wait_for(&format!("lvms to run on {nodes} nodes"), || {
        let set = cluster.get(["--namespace", NAMESPACE, "daemonset", "lvms-node"])?;
        let selector = "--selector=app.kubernetes.io/component=node";
        let pods = cluster.kubectl(["--namespace", NAMESPACE, "get", "pods", selector, "--output=name"])?;
        let observed = set["status"]["observedGeneration"] == set["metadata"]["generation"];
        Ok(observed && set["status"]["numberReady"] == nodes && pods.lines().count() == nodes)
    })
}

fn sizes_that_were_changed_while_their_node_was_down_are_made_good(
    cluster: &Cluster,
    parts: &Parts,
) -> Result<()> {
    let capacities = || -> Result<usize> {
        let listed = ["--namespace", NAMESPACE, "get", "csistoragecapacities", "--output=name"];
        Ok(cluster.kubectl(listed)?.lines().count())
    };
    on_a_stage(cluster, &LVMS, "t35", "", |stage| {
        let published = capacities()?;
        for claim in ["same", "larger"] {
            stage.claim(claim, "immediate", "1Gi")?;
        }
        stage.await_bound("same")?;
        stage.await_bound("larger")?;
        let name_of = |claim: &str| -> Result<String> {
            let volume = volume_of(stage, claim)?;
            Ok(volume["metadata"]["name"].as_str().context("a name")?.to_owned())
        };
        let (same, larger) = (name_of("same")?, name_of("larger")?);
        run_on_nodes(cluster, false)?;
        let edited = || -> Result<()> {
            forget_size(cluster, &same)?;
            forget_size(cluster, &larger)?;
            let patch = r#"{"spec": {"size": "2047Mi"}}"#;
            cluster.kubectl(["patch", "logicalvolume", &larger, "--type=merge", "--patch", patch])?;
            for claim in ["same", "larger"] {
                let told = &volume_of(stage, claim)?["status"]["currentSize"];
                ensure!(told.is_null(), "nobody is there, and yet {told} is told");
            }
            Ok(())
        };
        let edited = edited();
        run_on_nodes(cluster, true)?;
        edited?;
        for (claim, size, bytes) in [("same", "1Gi", GIB), ("larger", "2Gi", 2 * GIB)] {
            cluster.wait_for(&format!("{claim} to be told as {size}"), || {
                let status = &volume_of(stage, claim)?["status"];
                ensure!(status["currentSize"] == size, "it is {status}");
                Ok(true)
            })?;
            let made = size_of_lv(cluster, &volume_of(stage, claim)?)?;
            ensure!(made == bytes, "the logical volume of {claim} has {made}");
            if claim == "same" {
                parts.pass("t35");
            }
        }
        cluster.wait_for("all capacity to be published", || {
            let now = capacities()?;
            ensure!(now == published, "there were {published}, there are {now}");
            Ok(true)
        })?;
        parts.pass("t37");
        Ok(())
    })
}
