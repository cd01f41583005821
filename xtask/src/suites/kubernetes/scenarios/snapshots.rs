//! Snapshots and clones.

use anyhow::{Result, ensure};
use lab_protocol::disk::GIB;
use serde_json::json;

use super::{READ, WRITE, capacity_of, filesystem, id_of_snapshot, lv_of};
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::kubernetes::protection::{has_lv, made_for};
use crate::suites::parts::Parts;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    Case::Several(
        &[
            "t29_a_snapshot_is_restored",
            "t30_a_snapshot_is_restored_to_a_larger_volume",
            "t31_what_was_restored_outlives_source_and_snapshot",
        ],
        a_snapshot_is_restored_and_outlived,
    ),
    Case::Several(
        &["t32_a_clone_has_what_its_source_has", "t33_a_clone_outlives_its_source"],
        clones_have_what_their_sources_have_and_outlive_them,
    ),
];

fn a_snapshot_is_restored_and_outlived(cluster: &Cluster, parts: &Parts) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t29", "", |stage| {
        stage.claim("btrfs", "thin-btrfs", "1023Mi")?;
        stage.start_pod("btrfs", "btrfs", None)?;
        let other = stage.run_in("btrfs", WRITE)?;
        stage.snapshot("btrfs", "btrfs", "lvms")?;
        stage.claim("origin", "thin", "1023Mi")?;
        stage.start_pod("origin", "origin", None)?;
        let then = stage.run_in("origin", WRITE)?;
        stage.snapshot("moment", "origin", "lvms")?;
        stage.await_snapshot("moment")?;
        let least = &stage.get("volumesnapshot", "moment")?["status"]["restoreSize"];
        ensure!(*least == capacity_of(stage, "origin")?.as_str(), "the snapshot can be restored to {least}");
        stage.run_in("origin", WRITE)?;
        stage.await_snapshot("btrfs")?;
        let least = &stage.get("volumesnapshot", "btrfs")?["status"]["restoreSize"];
        ensure!(
            *least == capacity_of(stage, "btrfs")?.as_str(),
            "the btrfs snapshot can be restored to {least}"
        );
        stage.restore("btrfs-same", "btrfs", "thin-btrfs", "1Gi")?;
        stage.start_pod("btrfs-same", "btrfs-same", None)?;
        ensure!(stage.run_in("btrfs-same", READ)? == other, "btrfs is not what was at that moment");
        let (group, _, pool) = lv_of(stage, "btrfs-same")?;
        ensure!(group == "thin1" && pool == "pool0", "btrfs-same is in {group} {pool}");
        for (name, size, given, part) in [("same", "1Gi", "1Gi", "t29"), ("larger", "2047Mi", "2Gi", "t30")] {
            stage.restore(name, "moment", "thin", size)?;
            stage.start_pod(name, name, None)?;
            ensure!(capacity_of(stage, name)? == given, "{name} has {}", capacity_of(stage, name)?);
            ensure!(stage.run_in(name, READ)? == then, "{name} is not what was at that moment");
            let (group, _, pool) = lv_of(stage, name)?;
            ensure!(group == "thin1" && pool == "pool0", "{name} is in {group} {pool}");
            if name == "larger" {
                let size = filesystem(stage, name)?;
                ensure!(size > 2 * GIB / 10 * 9, "the filesystem has {size}");
            }
            parts.pass(part);
        }
        let (_, source, node) = made_for(stage, "origin")?;
        let snapshot = id_of_snapshot(stage, "moment")?;
        stage.remove_pod("origin")?;
        stage.kubectl(&["delete", "pvc", "origin", "--wait=false"])?;
        stage.kubectl(&["delete", "volumesnapshot", "moment", "--wait=false"])?;
        cluster.wait_for("source and snapshot to be gone", || {
            Ok(!has_lv(cluster, &node, &source)? && !has_lv(cluster, &node, &snapshot)?)
        })?;
        for name in ["same", "larger"] {
            // A new pod reads from the volume, and not what a mounted one has in memory.
            stage.remove_pod(name)?;
            let again = format!("{name}-again");
            stage.start_pod(&again, name, None)?;
            ensure!(stage.run_in(&again, READ)? == then, "{name} has gone with its source");
        }
        parts.pass("t31");
        Ok(())
    })
}

fn clones_have_what_their_sources_have_and_outlive_them(cluster: &Cluster, parts: &Parts) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t32", "", |stage| {
        let mut clones = Vec::new();
        for (class, place) in [("thin", ("thin1", "pool0")), ("thick", ("thick1", ""))] {
            let (origin, copy) = (format!("{class}-origin"), format!("{class}-copy"));
            stage.claim(&origin, class, "1023Mi")?;
            stage.start_pod(&origin, &origin, None)?;
            let written = stage.run_in(&origin, WRITE)?;
            let source = json!({"kind": "PersistentVolumeClaim", "name": origin});
            stage.apply_claim(&copy, class, "1023Mi", &source)?;
            stage.start_pod(&copy, &copy, None)?;
            ensure!(stage.run_in(&copy, READ)? == written, "{class}: the copy is another");
            let (group, _, pool) = lv_of(stage, &copy)?;
            ensure!((group.as_str(), pool.as_str()) == place, "the copy is in {group} {pool}");
            clones.push((origin, copy, written));
        }
        parts.pass("t32");
        for (origin, copy, written) in clones {
            let (_, source, node) = made_for(stage, &origin)?;
            stage.remove_pod(&origin)?;
            stage.kubectl(&["delete", "pvc", &origin, "--wait=false"])?;
            cluster.wait_for("the source to be gone", || Ok(!has_lv(cluster, &node, &source)?))?;
            stage.remove_pod(&copy)?;
            let again = format!("{copy}-again");
            stage.start_pod(&again, &copy, None)?;
            ensure!(stage.run_in(&again, READ)? == written, "{copy} has gone with its source");
        }
        parts.pass("t33");
        Ok(())
    })
}
