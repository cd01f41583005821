//! `lvms single-node`: one process for a whole cluster.

use anyhow::{Context, Result, ensure};

use super::LVMS;
use crate::cluster::Cluster;
use crate::deployed::{self, CONTROLLER_SOCKET, NODE_SOCKET};
use crate::suites::cluster::Case;
use crate::suites::sanity::{Target, sanity};
use crate::suites::stage::{on_a_stage, returning_all_space};

pub(super) const CASES: &[Case] = &[
    ("one_process_serves_a_whole_cluster", one_process_serves_a_whole_cluster),
    (
        "t39_csi_sanity_passes_on_thick_volumes_of_a_cluster",
        t39_csi_sanity_passes_on_thick_volumes_of_a_cluster,
    ),
    (
        "t39_csi_sanity_passes_on_thin_volumes_of_a_cluster",
        t39_csi_sanity_passes_on_thin_volumes_of_a_cluster,
    ),
];

fn one_process_serves_a_whole_cluster(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "single", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let written = stage.run_in("user", "date > /data/now; sync; sha256sum /data/now")?;
        // The process is killed and comes back; the pod does not notice, and what is asked for then is done.
        let pod = deployed::pod_on(cluster, cluster.nodes().first().context("a node")?)?;
        let namespace = ["--namespace", deployed::NAMESPACE];
        cluster.kubectl(namespace.iter().chain(&["delete", "pod", &pod, "--force", "--grace-period=0"]))?;
        stage.grow("data", "2Gi")?;
        cluster.wait_for("the claim to have grown", || {
            Ok(stage.get("pvc", "data")?["status"]["capacity"]["storage"] == "2Gi")
        })?;
        ensure!(stage.run_in("user", "sha256sum /data/now")? == written, "the file has changed");
        Ok(())
    })
}

const TARGET: Target =
    Target { program: "/opt/lab/bin/csi-sanity", socket: NODE_SOCKET, controller: Some(CONTROLLER_SOCKET) };

fn csi_sanity(cluster: &Cluster, class: &str) -> Result<()> {
    let guest = &cluster.nodes().first().context("a node")?.guest;
    returning_all_space(cluster, &LVMS, class, || sanity(guest, &TARGET, class, "mount"))
}

fn t39_csi_sanity_passes_on_thick_volumes_of_a_cluster(cluster: &Cluster) -> Result<()> {
    csi_sanity(cluster, "dc1")
}

fn t39_csi_sanity_passes_on_thin_volumes_of_a_cluster(cluster: &Cluster) -> Result<()> {
    csi_sanity(cluster, "thin")
}
