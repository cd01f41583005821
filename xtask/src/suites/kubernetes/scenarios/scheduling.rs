//! Where pods and their volumes go.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use lab_protocol::disk::GIB;
use serde_json::json;

use super::{lv_of, volume_of};
use crate::cluster::Cluster;
use crate::deployed::NAMESPACE;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::parts::Parts;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    Case::Several(
        &[
            "t01_a_pod_gets_all_that_is_free_on_its_node",
            "t02_a_second_pod_is_not_scheduled_where_nothing_is_free",
            "t03_a_pod_of_another_class_is_scheduled_there",
        ],
        a_node_that_is_full_of_one_class_takes_pods_of_another_only,
    ),
    Case::Several(
        &["t17_immediate_claims_go_where_most_is_free", "t18_pods_of_immediate_claims_go_where_these_are"],
        immediate_claims_go_where_most_is_free_and_their_pods_follow,
    ),
    Case::One(
        "t10_a_claim_for_one_pod_keeps_a_second_one_from_being_scheduled",
        t10_a_claim_for_one_pod_keeps_a_second_one_from_being_scheduled,
    ),
    Case::One("t19_pods_go_where_their_volumes_fit", t19_pods_go_where_their_volumes_fit),
    Case::Several(
        &["t22_the_class_decides_the_volume_group", "t24_a_class_without_parameters_is_the_default_one"],
        the_class_decides_the_volume_group,
    ),
    Case::One(
        "t23_an_unknown_device_class_leaves_its_pod_pending",
        t23_an_unknown_device_class_leaves_its_pod_pending,
    ),
];

fn a_node_that_is_full_of_one_class_takes_pods_of_another_only(
    cluster: &Cluster,
    parts: &Parts,
) -> Result<()> {
    let node = &cluster.nodes()[0].name;
    on_a_stage(cluster, &LVMS, "t01", "", |stage| {
        stage.claim("all", "thick", "19Gi")?;
        stage.start_pod("all", "all", Some(node))?;
        parts.pass("t01");
        stage.claim("more", "thick", "19Gi")?;
        stage.make_pod("more", "more", Some(node))?;
        stage.await_event("more", "", "did not have enough free storage")?;
        let pod = stage.get("pod", "more")?;
        let conditions = pod["status"]["conditions"].as_array().context("conditions")?;
        let scheduled =
            conditions.iter().find(|one| one["type"] == "PodScheduled").context("PodScheduled")?;
        ensure!(
            scheduled["status"] == "False" && pod["spec"]["nodeName"].is_null(),
            "the pod is scheduled: {scheduled}"
        );
        parts.pass("t02");
        stage.claim("other", "dc2", "1Gi")?;
        stage.start_pod("other", "other", Some(node))?;
        parts.pass("t03");
        Ok(())
    })
}

fn immediate_claims_go_where_most_is_free_and_their_pods_follow(
    cluster: &Cluster,
    parts: &Parts,
) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t17", "", |stage| {
        let mut nodes = Vec::new();
        for claim in ["one", "two", "three"] {
            stage.claim(claim, "immediate", "1Gi")?;
            stage.await_bound(claim)?;
            let volume = volume_of(stage, claim)?;
            nodes.push(volume["spec"]["nodeName"].as_str().unwrap_or_default().to_owned());
            // What is left there has to be told before the next one can go elsewhere.
            let told = format!("{} told of dc1", nodes.last().context("a node")?);
            cluster.wait_for("the node to tell what is left", || Ok(stage.taken(&told)? == GIB))?;
        }
        let used: BTreeSet<&String> = nodes.iter().collect();
        ensure!(used.len() == 3, "with as much room on each they went to {nodes:?}");
        parts.pass("t17");
        stage.start_pod("user", "one", None)?;
        ensure!(stage.node_of("user")? == nodes[0], "the pod is on {}", stage.node_of("user")?);
        stage.remove_pod("user")?;
        stage.start_pod("again", "one", None)?;
        ensure!(stage.node_of("again")? == nodes[0], "the pod is on {}", stage.node_of("again")?);
        parts.pass("t18");
        Ok(())
    })
}

fn the_class_decides_the_volume_group(cluster: &Cluster, parts: &Parts) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t22", "", |stage| {
        for (class, group, part) in [("dc2", "thick2", "t22"), ("default", "thick1", "t24")] {
            stage.claim(class, class, "1Gi")?;
            stage.start_pod(class, class, None)?;
            let (found, _, _) = lv_of(stage, class)?;
            ensure!(found == group, "{class} is in {found}");
            parts.pass(part);
        }
        Ok(())
    })
}

fn t23_an_unknown_device_class_leaves_its_pod_pending(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t23", "", |stage| {
        stage.claim("data", "not-found-device", "1Gi")?;
        stage.make_pod("user", "data", None)?;
        stage.await_event("user", "", "node(s) did not have enough free storage")
    })
}

fn t10_a_claim_for_one_pod_keeps_a_second_one_from_being_scheduled(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t10", "", |stage| {
        let spec = json!({
            "accessModes": ["ReadWriteOncePod"], "storageClassName": "thick",
            "resources": {"requests": {"storage": "1Gi"}},
        });
        stage.apply("v1", "PersistentVolumeClaim", "data", &spec)?;
        stage.start_pod("first", "data", None)?;
        stage.make_pod("second", "data", None)?;
        // The rest of it is another in each version of Kubernetes.
        stage.await_event("second", "FailedScheduling", "ReadWriteOncePod access mode")?;
        // It is its turn when the first one has gone.
        stage.remove_pod("first")?;
        stage.await_pod("second")
    })
}

/// What the scheduler believes that each node has of class `thick`.
fn known_to_the_scheduler(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let published = cluster.get(["--namespace", NAMESPACE, "csistoragecapacities"])?;
    let published = published["items"].as_array().context("no list of capacities")?;
    let of_class = published.iter().filter(|one| one["storageClassName"] == "thick");
    Ok(of_class.map(|one| (one["nodeTopology"].to_string(), one["capacity"].to_string())).collect())
}

/// With 18, 4 and 4 GiB free.
fn t19_pods_go_where_their_volumes_fit(cluster: &Cluster) -> Result<()> {
    let [big, rest @ ..] = cluster.nodes() else { bail!("a cluster without nodes") };
    on_a_stage(cluster, &LVMS, "t19", "", |stage| {
        let before = known_to_the_scheduler(cluster)?;
        ensure!(before.len() == cluster.nodes().len(), "the scheduler knows of {:?}", before.keys());
        stage.claim(&big.name, "thick", "1Gi")?;
        for node in rest {
            stage.claim(&node.name, "thick", "15Gi")?;
        }
        for node in cluster.nodes() {
            stage.make_pod(&node.name, &node.name, Some(&node.name))?;
        }
        for node in cluster.nodes() {
            stage.await_pod(&node.name)?;
        }
        cluster.wait_for("the scheduler to know what each has taken", || {
            let now = known_to_the_scheduler(cluster)?;
            Ok(before.iter().all(|(node, before)| now.get(node).is_some_and(|now| now != before)))
        })?;
        // The first fits everywhere, and is sent where most is free; the others fit there only.
        for (name, size) in [("three", "3Gi"), ("eight", "8Gi"), ("six", "6Gi")] {
            stage.claim(name, "thick", size)?;
            stage.start_pod(name, name, None)?;
            ensure!(stage.node_of(name)? == big.name, "{name} is on {}", stage.node_of(name)?);
        }
        stage.claim("more", "thick", "8Gi")?;
        stage.make_pod("more", "more", None)?;
        stage.await_event("more", "FailedScheduling", "3 node(s) did not have enough free storage")?;
        ensure!(stage.get("pvc", "more")?["status"]["phase"] == "Pending", "there was room for 8 GiB more");
        Ok(())
    })
}
