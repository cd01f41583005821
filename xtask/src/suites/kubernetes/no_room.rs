//! Two claims are sent to a node that has room for one.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::LVMS;
use crate::cluster::{Cluster, Node};
use crate::deployed;
use crate::suites::cluster::Case;
use crate::suites::stage::{Stage, on_a_stage};

pub(super) const CASES: &[Case] = &[Case::One(
    "of_two_claims_for_the_last_room_of_a_node_one_goes_to_another_at_once",
    of_two_claims_for_the_last_room_of_a_node_one_goes_to_another_at_once,
)];

const CLAIMS: [&str; 2] = ["one", "two"];

fn of_two_claims_for_the_last_room_of_a_node_one_goes_to_another_at_once(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().first().context("a node")?;
    on_a_stage(cluster, &LVMS, "no-room", "", |stage| {
        for claim in CLAIMS {
            stage.claim(claim, "thick", "19Gi")?;
        }
        // The scheduler believes in the room until the node has made the first of them.
        deployed::halt(node)?;
        let sent = CLAIMS.iter().try_for_each(|claim| make_pod(stage, claim, node)).and_then(|()| {
            cluster.wait_for("both claims to be sent to the node", || {
                let claims = stage.kubectl(&["get", "pvc", SELECTED])?;
                ensure!(claims == format!("{0} {0}", node.name), "they are sent to {claims:?}");
                Ok(true)
            })
        });
        deployed::go_on(node)?;
        sent?;
        for claim in CLAIMS {
            stage.await_pod(claim)?;
        }
        let nodes = [stage.node_of("one")?, stage.node_of("two")?];
        ensure!(nodes.iter().filter(|name| **name == node.name).count() == 1, "they are on {nodes:?}");
        // It was not sent to the same node again and again: it was given back when the scheduler knew of the lack.
        for claim in CLAIMS {
            let volume =
                format!("pvc-{}", stage.get("pvc", claim)?["metadata"]["uid"].as_str().context("a uid")?);
            let made = times_made(&volume)?;
            ensure!((1..=4).contains(&made), "the LogicalVolume of {claim} was made {made} times");
        }
        Ok(())
    })
}

/// How often a LogicalVolume of this name was made, as the API tells.
fn times_made(name: &str) -> Result<usize> {
    let log = fs::read_to_string("audit.log")?;
    let lines = log.lines().filter(|line| line.contains(name) && line.contains("\"logicalvolumes\""));
    let requests = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let made = requests.filter(|request| {
        request["verb"] == "create"
            && request["stage"] == "ResponseComplete"
            && request["responseStatus"]["code"] == 201
            && request["objectRef"]["name"] == name
    });
    Ok(made.count())
}

/// Where claims are sent.
const SELECTED: &str =
    "--output=jsonpath={.items[*].metadata.annotations.volume\\.kubernetes\\.io/selected-node}";

/// A pod that would rather be on a node than elsewhere.
fn make_pod(stage: &Stage<'_>, claim: &str, node: &Node) -> Result<()> {
    let here = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}]);
    let rather = json!([{"weight": 100, "preference": {"matchExpressions": here}}]);
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "hostNetwork": true,
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": rather}},
        "containers": [{
            "name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    });
    stage.apply("v1", "Pod", claim, &spec)
}
