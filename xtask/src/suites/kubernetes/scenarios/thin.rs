//! Volumes in a pool.

use anyhow::{Result, ensure};
use lab_protocol::disk::GIB;
use serde_json::json;

use super::{capacity_of, lv_of, volume_of};
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::parts::Parts;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    Case::One("t26_a_thin_volume_is_in_its_pool", t26_a_thin_volume_is_in_its_pool),
    Case::Several(
        &["t27_a_pool_is_promised_as_often_as_it_may_be", "t28_a_pool_is_not_promised_more_often"],
        a_pool_is_promised_as_often_as_it_may_be,
    ),
];

fn t26_a_thin_volume_is_in_its_pool(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t26", "", |stage| {
        stage.claim("data", "thin", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let (group, attributes, pool) = lv_of(stage, "data")?;
        ensure!(
            group == "thin1" && pool == "pool0" && attributes.starts_with('V'),
            "{group} {attributes} {pool}"
        );
        let told = format!("{} told of thin", stage.node_of("user")?);
        cluster.wait_for("the node to tell what is left", || Ok(stage.taken(&told)? == GIB))?;
        let expected = json!(capacity_of(stage, "data")?);
        ensure!(volume_of(stage, "data")?["status"]["currentSize"] == expected);
        Ok(())
    })
}

fn a_pool_is_promised_as_often_as_it_may_be(cluster: &Cluster, parts: &Parts) -> Result<()> {
    let node = &cluster.nodes()[0].name;
    on_a_stage(cluster, &LVMS, "t27", "", |stage| {
        // 4 GiB, five times.
        for number in 0..5 {
            let name = format!("v{number}");
            stage.claim(&name, "thin", "3Gi")?;
            stage.start_pod(&name, &name, Some(node))?;
        }
        stage.kubectl(&["delete", "pods,persistentvolumeclaims", "--all", "--wait=false"])?;
        let told = format!("{node} told of thin");
        cluster.wait_for("the whole pool to be free again", || Ok(stage.taken(&told)? == 0))?;
        parts.pass("t27");
        stage.claim("large", "thin", "18Gi")?;
        stage.start_pod("large", "large", Some(node))?;
        stage.claim("more", "thin", "5Gi")?;
        stage.make_pod("more", "more", Some(node))?;
        stage.await_event("more", "FailedScheduling", "did not have enough free storage")?;
        ensure!(stage.get("pvc", "more")?["status"]["phase"] == "Pending", "18 and 5 GiB were given of 20");
        parts.pass("t28");
        Ok(())
    })
}
