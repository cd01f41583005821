//! Two claims are sent to a node that has room for one.

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
        let failures = ["get", "events", "--field-selector=reason=ProvisioningFailed", "--output=json"];
        let failures: serde_json::Value = serde_json::from_str(&stage.kubectl(&failures)?)?;
        let failures = failures["items"].as_array().context("a list has items")?;
        let told: Vec<_> = failures.iter().map(|event| (&event["count"], &event["message"])).collect();
        ensure!(told.len() == 1 && *told[0].0 == 1, "people are told {told:?}");
        Ok(())
    })
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
