//! A node leaves the cluster, and comes back with its disks.

use anyhow::{Context, Result, ensure};

use super::LVMS;
use super::protection::{has_lv, made_for};
use crate::cluster::{Cluster, Node};
use crate::deployed::{self, NAMESPACE};
use crate::suites::cluster::Case;
use crate::suites::stage::{READ, Stage, WRITE, await_event, on_a_stage};

pub(super) const CASES: &[Case] = &[
    Case::One(
        "volumes_of_a_node_that_leaves_are_kept_and_told_of_until_it_is_back",
        volumes_of_a_node_that_leaves_are_kept_and_told_of_until_it_is_back,
    ),
    Case::One(
        "a_claim_whose_node_leaves_before_its_volume_is_made_goes_elsewhere",
        a_claim_whose_node_leaves_before_its_volume_is_made_goes_elsewhere,
    ),
    Case::One(
        "claims_of_a_node_that_leaves_are_deleted_where_that_is_asked_for",
        claims_of_a_node_that_leaves_are_deleted_where_that_is_asked_for,
    ),
];

fn volumes_of_a_node_that_leaves_are_kept_and_told_of_until_it_is_back(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().last().context("a node")?;
    on_a_stage(cluster, &LVMS, "departure", "", |stage| {
        for claim in ["kept", "deleted"] {
            stage.claim(claim, "thick", "1Gi")?;
            stage.start_pod(claim, claim, Some(&node.name))?;
        }
        let written = stage.run_in("kept", WRITE)?;
        let volumes = [made_for(stage, "kept")?, made_for(stage, "deleted")?];
        for pod in ["kept", "deleted"] {
            stage.remove_pod(pod)?;
        }
        let left = leave(cluster, node).and_then(|()| while_it_is_away(stage, &volumes));
        come_back(cluster, node)?;
        left?;
        let (_, id, _) = &volumes[1];
        cluster
            .wait_for("what was deleted meanwhile to be gone", || Ok(!has_lv(cluster, &node.name, id)?))?;
        stage.start_pod("again", "kept", None)?;
        ensure!(stage.run_in("again", READ)? == written, "the data has changed");
        Ok(())
    })
}

fn a_claim_whose_node_leaves_before_its_volume_is_made_goes_elsewhere(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().last().context("a node")?;
    on_a_stage(cluster, &LVMS, "departure-early", "", |stage| {
        let other = &cluster.nodes().first().context("a node")?.name;
        stage.claim("early", "thick", "1Gi")?;
        deployed::halt(node)?;
        let sent = stage.make_pod("early", "early", Some(&node.name)).and_then(|()| {
            cluster.wait_for("a LogicalVolume of the node", || {
                let uid = &stage.get("pvc", "early")?["metadata"]["uid"];
                let name = format!("pvc-{}", uid.as_str().context("a claim has a uid")?);
                Ok(cluster.get(["logicalvolume", &name])?["spec"]["nodeName"] == node.name.as_str())
            })
        });
        // Whatever is halted is ended, too.
        let left = sent.and_then(|()| leave(cluster, node)).and_then(|()| {
            stage.await_event("early", "ProvisioningFailed", "has left the cluster before it has made")?;
            // The pod was for this node alone.
            stage.remove_pod("early")?;
            stage.start_pod("elsewhere", "early", Some(other))
        });
        deployed::go_on(node)?;
        come_back(cluster, node)?;
        left?;
        cluster.wait_for("what was left behind to be gone", || {
            let volumes = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
            ensure!(!volumes.contains("/left-"), "there are {volumes}");
            Ok(true)
        })?;
        let (_, _, at) = made_for(stage, "early")?;
        ensure!(at == *other, "the volume is on {at}");
        Ok(())
    })
}

/// TopoLVM's rule. The node's disks may be read by whoever has them, so no logical volume goes with its objects.
fn claims_of_a_node_that_leaves_are_deleted_where_that_is_asked_for(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().last().context("a node")?;
    let right = deployed::manifest_of("node-finalize-delete")?;
    on_a_stage(cluster, &LVMS, "departure-delete", "", |stage| {
        let other = &cluster.nodes().first().context("a node")?.name;
        for (claim, node) in [("going", &node.name), ("staying", other)] {
            stage.claim(claim, "thick", "1Gi")?;
            stage.start_pod(claim, claim, Some(node))?;
        }
        let (volume, id, _) = made_for(stage, "going")?;
        stage.remove_pod("going")?;
        cluster.apply(&right)?;
        let operator = deployed::manifest_of("operator")?;
        operate(cluster, &operator.replace("args: [operator]", "args: [operator, --node-finalize=delete]"))?;
        let left = leave(cluster, node).and_then(|()| {
            cluster.wait_for("claim and volumes of the node to be gone", || {
                let claims = stage.kubectl(&["get", "pvc", "--output=name"])?;
                let names = [format!("pv/{volume}"), format!("logicalvolume/{volume}")];
                let volumes = cluster.kubectl(["get", "--ignore-not-found", &names[0], &names[1]])?;
                ensure!(!claims.contains("going") && volumes.is_empty(), "there are {claims}{volumes}");
                Ok(true)
            })
        });
        operate(cluster, &operator)?;
        cluster.kubectl([
            "delete",
            "clusterrole,clusterrolebinding",
            "lvms-operator-node-finalize-delete",
        ])?;
        come_back(cluster, node)?;
        left?;
        ensure!(stage.get("pvc", "staying")?["status"]["phase"] == "Bound", "another node's claim is gone");
        ensure!(has_lv(cluster, &node.name, &id)?, "the data on the node's disks is gone");
        node.guest.script(&format!("lvremove --yes thick1/{id}")).run()?;
        Ok(())
    })
}

/// Runs the operator as a manifest says.
fn operate(cluster: &Cluster, manifest: &str) -> Result<()> {
    cluster.apply(manifest)?;
    let status = ["rollout", "status", "deployment/lvms-operator", "--timeout=5m"];
    cluster.kubectl(["--namespace", NAMESPACE].iter().chain(&status)).map(drop)
}

/// All that runs on the node ends before its Node goes: the driver would do its work as long as its token is good.
/// TopoLVM's controller has put its finalizer on the Node, and nobody but us is there to take it off.
fn leave(cluster: &Cluster, node: &Node) -> Result<()> {
    let marked = r#"{"metadata": {"finalizers": ["topolvm.io/node"]}}"#;
    cluster.kubectl(["patch", "node", &node.name, "--type=merge", "--patch", marked])?;
    node.guest
        .script("pkill -9 -x kubelet; pkill -9 -x lvms; while pgrep -x kubelet; do sleep 0.1; done")
        .run()?;
    cluster.kubectl(["delete", "node", &node.name, "--wait=false"])?;
    cluster.wait_for("the Node to be gone", || {
        Ok(cluster.kubectl(["get", "node", &node.name, "--ignore-not-found"])?.is_empty())
    })
}

fn come_back(cluster: &Cluster, node: &Node) -> Result<()> {
    node.guest.script("sh /etc/kubernetes/start-kubelet").run()?;
    cluster.wait_for(&format!("{} to be back with its driver", node.name), || {
        let told = cluster.get(["--namespace", NAMESPACE, "lvmnode", &node.name])?;
        Ok(told["status"]["state"] == "Ready" && deployed::is_registered(cluster, &node.name)?)
    })
}

fn while_it_is_away(stage: &Stage<'_>, volumes: &[(String, String, String)]) -> Result<()> {
    let cluster = stage.cluster;
    for (claim, (volume, id, node)) in ["kept", "deleted"].iter().zip(volumes) {
        let told = format!(
            "node {node} has left the cluster: the logical volume {id} on its disks and the claim are kept"
        );
        // One for the LogicalVolume and one for the PersistentVolume, which has the same name.
        await_event(cluster, "default", volume, "NodeGone", &told)?;
        for kind in ["LogicalVolume", "PersistentVolume"] {
            let about = format!("involvedObject.name={volume},involvedObject.kind={kind},reason=NodeGone");
            cluster.wait_for(&format!("an event about {kind} {volume}"), || {
                let events = cluster.get(["events", "--namespace=default", "--field-selector", &about])?;
                Ok(events["items"].as_array().is_some_and(|items| !items.is_empty()))
            })?;
        }
        stage.await_event(claim, "NodeGone", &told)?;
    }
    ensure!(stage.get("pvc", "kept")?["status"]["phase"] == "Bound", "a claim was not kept");
    stage.kubectl(&["delete", "pvc", "deleted", "--wait=false"])?;
    let (volume, id, _) = &volumes[1];
    let told = format!("the logical volume {id} is removed when a node of that name is back");
    await_event(cluster, "default", volume, "NodeGone", &told)?;
    stage.await_event("deleted", "NodeGone", &told)?;
    let nodes = cluster.kubectl(["--namespace", NAMESPACE, "get", "lvmnodes", "--output=name"])?;
    ensure!(!nodes.contains(&volumes[0].2), "a node that has left is still told of: {nodes}");
    Ok(())
}
