//! What others do to objects.

use anyhow::{Context, Result, ensure};

use super::{await_bound, capacity_of, volume_of};
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    ("t34_t36_a_size_written_by_others_is_honoured", t34_t36_a_size_written_by_others_is_honoured),
    (
        "t38_a_claim_without_a_class_does_not_keep_its_pod_from_being_made",
        t38_a_claim_without_a_class_does_not_keep_its_pod_from_being_made,
    ),
];

fn t34_t36_a_size_written_by_others_is_honoured(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t34", "", |stage| {
        stage.claim("data", "immediate", "1023Mi")?;
        await_bound(stage, "data")?;
        ensure!(capacity_of(stage, "data")? == "1Gi", "it has {}", capacity_of(stage, "data")?);
        let volume = volume_of(stage, "data")?;
        ensure!(volume["status"]["currentSize"] == "1Gi", "it is {}", volume["status"]);
        let name = volume["metadata"]["name"].as_str().context("a name")?;
        // A size that is no multiple of an extent.
        let patch = r#"{"spec": {"size": "1073745920"}}"#;
        cluster.kubectl(["patch", "logicalvolume", name, "--type=merge", "--patch", patch])?;
        cluster.wait_for("the volume to have grown", || {
            Ok(volume_of(stage, "data")?["status"]["currentSize"] == "1028Mi")
        })?;
        // What it has is filled in again where it is missing.
        let patch = r#"{"status": {"currentSize": null}}"#;
        cluster.kubectl([
            "patch",
            "logicalvolume",
            name,
            "--subresource=status",
            "--type=merge",
            "--patch",
            patch,
        ])?;
        cluster.wait_for("the size to be told again", || {
            Ok(volume_of(stage, "data")?["status"]["currentSize"] == "1028Mi")
        })
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
