//! Figures and health, on the ports that are served.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::GIB;

use crate::cluster::{Cluster, Node};
use crate::deployed::{self, NAMESPACE};
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::parts::Parts;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    Case::Several(
        &["t05_volume_groups_have_figures_that_are_true", "t04_volumes_have_figures_at_the_kubelet"],
        volumes_and_volume_groups_have_figures_that_are_true,
    ),
    Case::Several(
        &[
            "t06_each_node_serves_health_and_figures_of_calls",
            "t07_each_operator_serves_health_and_the_leader_figures_of_its_queues",
            "t08_each_node_serves_figures_of_what_it_does_with_lvm",
        ],
        every_pod_serves_figures_and_health,
    ),
];

/// The device classes with their volume groups, and what is spare in these.
const CLASSES: [(&str, &str, u64); 5] = [
    ("dc1", "thick1", GIB),
    ("dc2", "thick2", 0),
    ("create-option-raid1", "raid1-1", 0),
    ("option-class-raid1", "raid1-2", 0),
    ("thin", "thin1", 0),
];

/// What leads to volumes, each with a queue of its own.
const QUEUES: [&str; 10] = [
    "provision",
    "protect",
    "release",
    "reclaim",
    "restore",
    "orphans",
    "resize",
    "snapshot",
    "leftovers",
    "capacity",
];

/// What a pod of lvms serves at a port.
fn served(cluster: &Cluster, pod: &str, port: u16, path: &str) -> Result<String> {
    let url = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{port}/proxy/{path}");
    cluster.kubectl(["get", "--raw", &url])
}

/// The figures of a name, by their labels.
fn figures<'a>(text: &'a str, name: &str) -> Vec<(&'a str, f64)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    let exactly = lines.filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'));
    exactly.filter_map(|(labels, value)| Some((labels, value.parse().ok()?))).collect()
}

/// The one figure of a name whose labels contain something.
fn figure(text: &str, name: &str, label: &str) -> Result<f64> {
    let mut found = figures(text, name).into_iter().filter(|(labels, _)| labels.contains(label));
    let (_, value) = found.next().with_context(|| format!("there is no {name} of {label}"))?;
    ensure!(found.next().is_none(), "there are several {name} of {label}");
    Ok(value)
}

fn volumes_and_volume_groups_have_figures_that_are_true(cluster: &Cluster, parts: &Parts) -> Result<()> {
    let node = &cluster.nodes()[0];
    on_a_stage(cluster, &LVMS, "t04", "", |stage| {
        for class in ["thick", "thin"] {
            stage.claim(class, class, "1Gi")?;
            stage.make_pod(class, class, Some(&node.name))?;
        }
        stage.await_pod("thick")?;
        stage.await_pod("thin")?;
        let space = deployed::space(cluster)?;
        for one in cluster.nodes() {
            let promised = if one.name == node.name { 19 } else { 20 };
            figures_are_true(cluster, one, &space, promised * GIB).with_context(|| one.name.clone())?;
        }
        parts.pass("t05");
        // The kubelet measures once a minute.
        let url = format!("/api/v1/nodes/{}/proxy/metrics", node.name);
        cluster.wait_for("the kubelet to tell how full volumes are", || {
            let text = cluster.kubectl(["get", "--raw", &url])?;
            for claim in ["thick", "thin"] {
                for name in ["kubelet_volume_stats_capacity_bytes", "kubelet_volume_stats_available_bytes"] {
                    let label = format!("namespace=\"t04\",persistentvolumeclaim=\"{claim}\"");
                    let told = figure(&text, name, &label)?;
                    ensure!(told > 0.8 * GIB as f64 && told <= GIB as f64, "{name} of {claim} is {told}");
                }
            }
            Ok(true)
        })?;
        parts.pass("t04");
        Ok(())
    })
}

/// What a node tells is what LVM has, and `promised` of its pool may be promised.
fn figures_are_true(
    cluster: &Cluster,
    node: &Node,
    space: &BTreeMap<String, u64>,
    promised: u64,
) -> Result<()> {
    let text = served(cluster, &deployed::pod_on(cluster, node)?, 8080, "metrics")?;
    for name in ["topolvm_volumegroup_available_bytes", "topolvm_volumegroup_size_bytes"] {
        let series = figures(&text, name);
        ensure!(series.len() == CLASSES.len(), "{name} has {series:?}");
    }
    for (class, group, spare) in CLASSES {
        let free = space[&format!("{} {group} free", node.name)] - spare;
        let label = format!("device_class=\"{class}\"");
        let told = figure(&text, "topolvm_volumegroup_available_bytes", &label)?;
        ensure!(told == free as f64, "of {class} {told} are told, LVM has {free}");
    }
    let size = figure(&text, "topolvm_volumegroup_size_bytes", "\"dc1\"")?;
    ensure!(size == (20 * GIB) as f64, "dc1 has {size}");
    let told = figure(&text, "topolvm_thinpool_overprovisioned_available", "\"thin\"")?;
    ensure!(told == promised as f64, "{told} of the pool may be promised");
    Ok(())
}

fn every_pod_serves_figures_and_health(cluster: &Cluster, parts: &Parts) -> Result<()> {
    for node in cluster.nodes() {
        let pod = deployed::pod_on(cluster, node)?;
        for path in ["healthz", "readyz"] {
            let said = served(cluster, &pod, 8080, path)?;
            ensure!(said == "ok", "{path} of {pod} says {said}");
        }
        let text = served(cluster, &pod, 8080, "metrics")?;
        ensure!(figure(&text, "lvms_configuration_wrong", "")? == 0.0, "{text}");
        // The kubelet has asked who we are.
        let asked = figures(&text, "lvms_csi_call_seconds_count");
        ensure!(asked.iter().any(|(labels, _)| labels.contains("\"NodeGetInfo\"")), "{text}");
    }
    parts.pass("t06");
    let selector = "--selector=app.kubernetes.io/component=operator";
    let pods = cluster.kubectl(["--namespace", NAMESPACE, "get", "pods", selector, "--output=name"])?;
    let mut leaders = 0;
    for pod in pods.lines().filter_map(|pod| pod.strip_prefix("pod/")) {
        for path in ["healthz", "readyz"] {
            let said = served(cluster, pod, 8081, path)?;
            ensure!(said == "ok", "{path} of {pod} says {said}");
        }
        let text = served(cluster, pod, 8080, "metrics")?;
        let leads = figure(&text, "lvms_operator_leads", "")? == 1.0;
        leaders += usize::from(leads);
        for queue in QUEUES.iter().filter(|_| leads) {
            let label = format!("queue=\"{queue}\"");
            for figures in ["queue_waiting", "queue_looks_total", "queue_failures_total"] {
                figure(&text, &format!("lvms_operator_{figures}"), &label)?;
            }
        }
        let looks = figures(&text, "lvms_operator_queue_looks_total");
        ensure!(looks.len() == if leads { QUEUES.len() } else { 0 }, "{pod} has {looks:?}");
    }
    ensure!(leaders == 1, "of {} {leaders} lead", pods.replace('\n', " "));
    parts.pass("t07");
    nodes_count_what_they_do(cluster)?;
    parts.pass("t08");
    Ok(())
}

/// The queue of a node's LogicalVolumes is counted, and each volume group is known to go on.
fn nodes_count_what_they_do(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[0];
    let pod = deployed::pod_on(cluster, node)?;
    let queue = "queue=\"logicalvolume\"";
    let looks = || -> Result<f64> {
        let text = served(cluster, &pod, 8080, "metrics")?;
        for figures in ["queue_waiting", "queue_failures_total"] {
            figure(&text, &format!("lvms_node_{figures}"), queue)?;
        }
        let stuck = figures(&text, "lvms_volumegroup_stuck");
        ensure!(stuck.len() == CLASSES.len() && stuck.iter().all(|(_, stuck)| *stuck == 0.0), "{stuck:?}");
        figure(&text, "lvms_node_queue_looks_total", queue)
    };
    let before = looks()?;
    on_a_stage(cluster, &LVMS, "t08", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", Some(&node.name))?;
        let after = looks()?;
        ensure!(after > before, "a volume was made, and {after} looks are told after {before}");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_whole_name_and_a_label() {
        let text =
            "# HELP free x\nfree{class=\"a\"} 1.5\nfree{class=\"b\"} 2e3\nfree_total{class=\"a\"} 7\nup 1\n";
        assert_eq!(figures(text, "free"), [("{class=\"a\"}", 1.5), ("{class=\"b\"}", 2000.0)]);
        assert_eq!(figure(text, "free", "\"b\"").unwrap(), 2000.0);
        assert_eq!(figure(text, "up", "").unwrap(), 1.0);
        assert!(figure(text, "free", "\"c\"").is_err() && figure(text, "free", "").is_err());
    }
}
