//! How long the lab itself takes.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use super::Entry;
use crate::cluster::programs::Programs;
use crate::cluster::{Cluster, Options};
use crate::guest::{Guest, Spec};
use crate::lab::Lab;

const ROUNDS: usize = 5;

/// A guest's boot to its first command, a node's way to Ready, a pod's to Running.
pub(super) fn run(lab: &Arc<Lab>, programs: &Programs) -> Result<Vec<Entry>> {
    let mut boots = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let guest = Guest::boot(lab, Spec::new("guest"), Vec::new())?;
        guest.command(["true"]).run()?;
        boots.push(began.elapsed().as_secs_f64());
    }
    let began = Instant::now();
    let cluster = Cluster::start(lab, programs, &Options::nodes(1))?;
    let ready = began.elapsed().as_secs_f64();
    let pods = time_pods(&cluster).inspect_err(|_| cluster.collect_logs())?;
    Ok(vec![
        Entry::seconds("guest: power on to first command", &boots, Some(10.0)),
        Entry::seconds("cluster: power on to one node Ready", &[ready], None),
        Entry::seconds("pod: created to Running", &pods, None),
    ])
}

fn time_pods(cluster: &Cluster) -> Result<Vec<f64>> {
    let mut pods = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("pod-{round}");
        let began = Instant::now();
        cluster.kubectl([
            "run",
            &name,
            "--image=lab.lvms.io/busybox:1",
            "--image-pull-policy=Never",
            "--restart=Never",
        ])?;
        cluster.wait_for("the pod to run", || {
            Ok(cluster.get(["pod", &name])?["status"]["phase"] == "Running")
        })?;
        pods.push(began.elapsed().as_secs_f64());
    }
    Ok(pods)
}
