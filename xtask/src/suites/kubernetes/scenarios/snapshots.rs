//! Snapshots and clones.

use anyhow::{Result, ensure};
use lab_protocol::disk::GIB;
use serde_json::json;

use super::{READ, WRITE, capacity_of, filesystem, lv_of};
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    ("t29_t30_t31_a_snapshot_is_restored_also_larger", t29_t30_t31_a_snapshot_is_restored_also_larger),
    ("t32_t33_a_clone_outlives_its_source", t32_t33_a_clone_outlives_its_source),
];

fn t29_t30_t31_a_snapshot_is_restored_also_larger(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t29", "", |stage| {
        stage.claim("origin", "thin", "1023Mi")?;
        stage.start_pod("origin", "origin", None)?;
        let then = stage.run_in("origin", WRITE)?;
        stage.snapshot("moment", "origin", "lvms")?;
        stage.await_snapshot("moment")?;
        stage.run_in("origin", WRITE)?;
        for (name, size, given) in [("same", "1Gi", "1Gi"), ("larger", "2047Mi", "2Gi")] {
            stage.restore(name, "moment", "thin", size)?;
            stage.start_pod(name, name, None)?;
            ensure!(capacity_of(stage, name)? == given, "{name} has {}", capacity_of(stage, name)?);
            ensure!(stage.run_in(name, READ)? == then, "{name} is not what was at that moment");
            let (group, _, pool) = lv_of(stage, name)?;
            ensure!(group == "thin1" && pool == "pool0", "{name} is in {group} {pool}");
        }
        ensure!(filesystem(stage, "larger")? > 2 * GIB / 10 * 9, "it has {}", filesystem(stage, "larger")?);
        stage.remove_pod("origin")?;
        stage.kubectl(&["delete", "pvc", "origin", "--wait=false"])?;
        stage.kubectl(&["delete", "volumesnapshot", "moment", "--wait=false"])?;
        cluster.wait_for("source and snapshot to be gone", || {
            let left =
                stage.kubectl(&["get", "pvc/origin", "volumesnapshot/moment", "--ignore-not-found"])?;
            Ok(left.is_empty())
        })?;
        ensure!(stage.run_in("same", READ)? == then, "what was restored has gone with its source");
        Ok(())
    })
}

fn t32_t33_a_clone_outlives_its_source(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t32", "", |stage| {
        for class in ["thin", "thick"] {
            let (origin, copy) = (format!("{class}-origin"), format!("{class}-copy"));
            stage.claim(&origin, class, "1023Mi")?;
            stage.start_pod(&origin, &origin, None)?;
            let written = stage.run_in(&origin, WRITE)?;
            let source = json!({"kind": "PersistentVolumeClaim", "name": origin});
            stage.apply_claim(&copy, class, "1023Mi", &source)?;
            stage.start_pod(&copy, &copy, None)?;
            ensure!(stage.run_in(&copy, READ)? == written, "{class}: the copy is another");
            stage.remove_pod(&origin)?;
            stage.kubectl(&["delete", "pvc", &origin, "--wait=false"])?;
            cluster.wait_for("the source to be gone", || {
                Ok(stage.kubectl(&["get", "pvc", &origin, "--ignore-not-found"])?.is_empty())
            })?;
            ensure!(stage.run_in(&copy, READ)? == written, "{class}: the copy has gone with its source");
        }
        Ok(())
    })
}
