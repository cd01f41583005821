//! Others change or delete the definition of LogicalVolumes.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::protection::{has_lv, made_for};
use super::restored::Moment;
use super::scenarios::{READ, WRITE, await_capacity, volume_of};
use super::{LVMS, await_ready};
use crate::cache::Cache;
use crate::cluster::{Cluster, Node};
use crate::deployed::{self, NAMESPACE};
use crate::peers;
use crate::suites::cluster::Case;
use crate::suites::stage::{Stage, await_event, on_a_stage};

pub(super) const CASES: &[Case] = &[Case::One(
    "volumes_live_under_the_definition_of_topolvm_and_under_ours_again",
    volumes_live_under_the_definition_of_topolvm_and_under_ours_again,
)];

/// It is not for a cluster in which others still have to run.
pub(super) const LAST: &[Case] = &[Case::One(
    "no_volume_is_lost_with_the_definition_and_all_come_back_with_it",
    no_volume_is_lost_with_the_definition_and_all_come_back_with_it,
)];

const NAME: &str = "logicalvolumes.topolvm.io";

/// TopoLVM's definition, in the run's directory.
const TOPOLVMS: &str = "topolvm-definition.yaml";

/// Makes TopoLVM's definition ready for the tests.
pub(super) fn prepare(cache: &Cache) -> Result<()> {
    fs::write(TOPOLVMS, peers::topolvm::definition(cache)?).context(TOPOLVMS)
}

fn apply_ours(cluster: &Cluster) -> Result<()> {
    cluster.apply(&fs::read_to_string("definitions.yaml")?)?;
    cluster.kubectl(["wait", "--for=condition=Established", "--timeout=120s", "crd", NAME])?;
    Ok(())
}

/// Whether LogicalVolumes can be selected by their node.
fn can_be_selected(cluster: &Cluster) -> Result<bool> {
    let definition = cluster.get(["crd", NAME])?;
    Ok(definition["spec"]["versions"][0]["selectableFields"] != Value::Null)
}

fn volumes_live_under_the_definition_of_topolvm_and_under_ours_again(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "definition", "", |stage| {
        stage.claim("before", "thick", "1Gi")?;
        stage.start_pod("before", "before", None)?;
        let written = stage.run_in("before", WRITE)?;
        ensure!(can_be_selected(cluster)?, "our definition is not in force");
        cluster.apply(&fs::read_to_string(TOPOLVMS)?)?;
        let lived = (|| {
            ensure!(!can_be_selected(cluster)?, "TopoLVM's definition is not in force");
            // The API server ends watches a moment after the definition has changed.
            for node in cluster.nodes() {
                await_reads_all(cluster, node)?;
            }
            // One that begins under it has never been told of any by its node.
            let of_before = stage.node_of("before")?;
            let node = cluster.nodes().iter().find(|node| node.name == of_before);
            begin_again(cluster, node.context("an unknown node")?)?;
            live(stage, "theirs", "2Gi")
        })();
        let theirs = watches()?.len();
        apply_ours(cluster)?;
        lived?;
        ensure!(can_be_selected(cluster)?, "our definition is not in force again");
        for node in cluster.nodes() {
            cluster.wait_for(&format!("{} to read its own LogicalVolumes only", node.name), || {
                let selected = format!("fieldSelector=spec.nodeName%3D{}&", node.name);
                let since = watches()?.split_off(theirs);
                ensure!(since.iter().any(|uri| uri.contains(&selected)), "asked was {since:?}");
                Ok(true)
            })?;
        }
        live(stage, "ours", "3Gi")?;
        ensure!(stage.run_in("before", READ)? == written, "the data has changed");
        Ok(())
    })
}

/// Waits until a node has said that it reads all LogicalVolumes.
fn await_reads_all(cluster: &Cluster, node: &Node) -> Result<()> {
    let pod = deployed::pod_on(cluster, node)?;
    cluster.wait_for(&format!("{} to read all LogicalVolumes", node.name), || {
        let log = cluster.kubectl(["--namespace", NAMESPACE, "logs", &pod])?;
        Ok(log.contains("cannot be selected by their node"))
    })
}

/// Kills the pod of lvms on a node; the next one has to read all LogicalVolumes from its start.
fn begin_again(cluster: &Cluster, node: &Node) -> Result<()> {
    let pod = deployed::pod_on(cluster, node)?;
    cluster.kubectl(["--namespace", NAMESPACE, "delete", "pod", &pod, "--force", "--grace-period=0"])?;
    cluster.wait_for("a new pod of lvms", || Ok(deployed::pod_on(cluster, node)? != pod))?;
    await_reads_all(cluster, node)?;
    await_ready(cluster, &deployed::pod_on(cluster, node)?)
}

/// The addresses by which LogicalVolumes were watched so far, with success.
fn watches() -> Result<Vec<String>> {
    let log = fs::read_to_string("audit.log")?;
    let lines = log.lines().filter(|line| line.contains("\"watch\"") && line.contains("logicalvolumes"));
    let requests = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let begun = requests.filter(|request| {
        request["verb"] == "watch"
            && request["objectRef"]["resource"] == "logicalvolumes"
            && request["stage"] == "ResponseStarted"
            && request["responseStatus"]["code"] == 200
    });
    Ok(begun.map(|request| format!("{}&", request["requestURI"].as_str().unwrap_or_default())).collect())
}

/// A volume is made, published, grown and deleted, and the one that was there before grows.
fn live(stage: &Stage<'_>, name: &str, size: &str) -> Result<()> {
    stage.claim(name, "thick", "1Gi")?;
    stage.start_pod(name, name, None)?;
    let volume = volume_of(stage, name)?;
    let volume = volume["metadata"]["name"].as_str().context("a name")?;
    for claim in ["before", name] {
        stage.grow(claim, size)?;
    }
    for claim in ["before", name] {
        await_capacity(stage, claim, size)?;
    }
    stage.remove_pod(name)?;
    stage.kubectl(&["delete", "pvc", name, "--wait=false"])?;
    stage.cluster.wait_for(&format!("the volume of {name} to be gone"), || {
        Ok(stage.cluster.kubectl(["get", "logicalvolume", volume, "--ignore-not-found"])?.is_empty())
    })
}

fn no_volume_is_lost_with_the_definition_and_all_come_back_with_it(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "definition", "", |stage| {
        stage.claim("used", "thick", "1Gi")?;
        stage.claim("idle", "immediate", "1Gi")?;
        stage.start_pod("user", "used", None)?;
        stage.await_bound("idle")?;
        let written = stage.run_in("user", WRITE)?;
        let moments = [Moment::take(stage, "thick")?, Moment::take(stage, "thin")?];
        let volumes = [made_for(stage, "used")?, made_for(stage, "idle")?];
        let origins = [made_for(stage, "thick-origin")?, made_for(stage, "thin-origin")?];
        let snapshots =
            moments.each_ref().map(|moment| (moment.volume.clone(), moment.id.clone(), moment.node.clone()));
        let all = [&volumes[..], &origins, &snapshots].concat();
        cluster.kubectl(["delete", "crd", NAME, "--wait=false"])?;
        let deleted = while_it_is_deleted(stage, &all, &written);
        apply_ours(cluster)?;
        deleted?;
        for (volume, id, node) in volumes.iter().chain(&origins) {
            cluster.wait_for(&format!("{volume} to be known again"), || {
                let status = &cluster.get(["logicalvolume", volume])?["status"];
                ensure!(
                    status["volumeID"] == id.as_str() && status["currentSize"] == "1Gi",
                    "it is {status}"
                );
                Ok(true)
            })?;
            ensure!(has_lv(cluster, node, id)?, "{volume} has lost its data");
            await_event(cluster, "default", volume, "LogicalVolumeRestored", id)?;
        }
        stage.await_bound("new")?;
        let made = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
        ensure!(made.lines().count() == 7, "for five claims and two snapshots there are\n{made}");
        for moment in &moments {
            moment.is_as_it_was(stage)?;
            await_event(cluster, "default", &moment.content, "LogicalVolumeRestored", &moment.id)?;
        }
        stage.grow("used", "2Gi")?;
        await_capacity(stage, "used", "2Gi")?;
        ensure!(stage.run_in("user", READ)? == written, "the data has changed");
        // When the namespace is gone, all space must be free again: what was restored is removed like any other.
        Ok(())
    })
}

fn while_it_is_deleted(stage: &Stage<'_>, volumes: &[(String, String, String)], written: &str) -> Result<()> {
    let cluster = stage.cluster;
    for (volume, ..) in volumes {
        let told = "the CustomResourceDefinition is being deleted: logical volumes are not removed with it";
        await_event(cluster, "default", volume, "Retained", told)?;
    }
    stage.claim("new", "immediate", "1Gi")?;
    stage.await_event("new", "ProvisioningFailed", "custom resource definition is terminating")?;
    // Whoever does not want to wait for ever takes the finalizers away.
    for (volume, ..) in volumes {
        let patch = ["--type=merge", "--patch", r#"{"metadata": {"finalizers": null}}"#];
        cluster.kubectl(["patch", "logicalvolume", volume].iter().chain(&patch))?;
    }
    cluster.wait_for("the definition to be gone", || {
        Ok(cluster.kubectl(["get", "crd", NAME, "--ignore-not-found"])?.is_empty())
    })?;
    // Neither is asked for every second, nor is a claim left without a word.
    stage.await_event("new", "ProvisioningFailed", "404")?;
    for (volume, id, node) in volumes {
        ensure!(has_lv(cluster, node, id)?, "{volume} has lost its data");
    }
    ensure!(stage.run_in("user", READ)? == written, "the data has changed");
    // A volume is published without its LogicalVolume, too.
    stage.start_pod("idle", "idle", None)
}
