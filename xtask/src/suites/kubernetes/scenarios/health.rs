//! A disk fails under a volume that a pod uses.

use anyhow::{Context, Result, ensure};

use super::volume_of;
use crate::cluster::{Cluster, Node};
use crate::deployed;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::kubernetes::own_disk::with_a_class_on_a_disk;
use crate::suites::stage::{await_event, on_a_stage};

pub(super) const CASES: &[Case] = &[Case::One(
    "t14_a_disk_that_fails_is_told_and_what_was_deleted_meanwhile_goes_when_it_is_back",
    t14_a_disk_that_fails_is_told_and_what_was_deleted_meanwhile_goes_when_it_is_back,
)];

/// The disk, its volume group and what is offered of it.
const HEALTH: &str = "health";

/// TopoLVM deletes the volume though its disk is gone, and LVM then believes for ever that the disk is missing. Here
/// nothing is changed in such a group: pod and claim go at once, and the volume when the disk is back.
fn t14_a_disk_that_fails_is_told_and_what_was_deleted_meanwhile_goes_when_it_is_back(
    cluster: &Cluster,
) -> Result<()> {
    let node = &cluster.nodes()[2];
    with_a_class_on_a_disk(cluster, node, HEALTH, || fails_and_comes_back(cluster, node))
}

fn fails_and_comes_back(cluster: &Cluster, node: &Node) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t14", "thick1", |stage| {
        stage.claim("data", HEALTH, "300Mi")?;
        stage.start_pod("user", "data", Some(&node.name))?;
        let volume = volume_of(stage, "data")?;
        let volume = volume["metadata"]["name"].as_str().context("a name")?;
        node.guest.unplug(HEALTH)?;
        stage.await_event("user", "VolumeConditionAbnormal", "of volume group health is missing")?;
        cluster.wait_for("the node to tell it, too", || {
            let told = deployed::told_by(cluster, node)?;
            let groups = told["volumeGroups"].as_array().context("no volume groups")?;
            let group = groups.iter().find(|group| group["name"] == HEALTH).context("no such group")?;
            let message = group["message"].as_str().unwrap_or_default();
            ensure!(told["state"] != "Ready" && message.contains("missing"), "it tells {group}");
            Ok(true)
        })?;
        stage.remove_pod("user")?;
        stage.kubectl(&["delete", "pvc", "data", "--wait=false"])?;
        cluster.wait_for("the claim to be gone", || {
            Ok(stage.kubectl(&["get", "pvc", "data", "--ignore-not-found"])?.is_empty())
        })?;
        await_event(cluster, "default", volume, "RemovalFailed", "until they are back")?;
        node.guest.plug_back(HEALTH)?;
        cluster.wait_for("all of it to be gone", || {
            let (persistent, logical) = (format!("pv/{volume}"), format!("logicalvolume/{volume}"));
            let left = cluster.kubectl(["get", "--ignore-not-found", &persistent, &logical])?;
            ensure!(left.is_empty(), "there is still {left}");
            Ok(true)
        })?;
        let report = format!("vgs --noheadings -o lv_count,vg_missing_pv_count {HEALTH}");
        let left = node.guest.script(&report).run()?.text();
        ensure!(left.split_whitespace().collect::<Vec<_>>() == ["0", "0"], "LVM has {left}");
        Ok(())
    })
}
