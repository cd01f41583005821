//! TopoLVM's end-to-end tests, with their numbers.

mod growth;
mod health;
mod metrics;
mod objects;
mod scheduling;
mod snapshots;
mod thin;
mod volumes;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::suites::cluster::Case;
pub(super) use crate::suites::stage::{READ, WRITE};
use crate::suites::stage::{Stage, filesystem_size};

/// Those about several nodes, or about the pods of lvms on them.
pub(super) fn of_three_nodes() -> Vec<Case> {
    [scheduling::CASES, metrics::CASES, health::CASES, objects::CASES].concat()
}

/// Those for which one node is enough.
pub(super) fn of_one_node() -> Vec<Case> {
    [volumes::CASES, growth::CASES, thin::CASES, snapshots::CASES].concat()
}

/// The LogicalVolume of a claim.
pub(super) fn volume_of(stage: &Stage<'_>, claim: &str) -> Result<Value> {
    let claim = stage.get("pvc", claim)?;
    let name = claim["spec"]["volumeName"].as_str().context("the claim is not bound")?;
    stage.cluster.get(["logicalvolume", name])
}

/// The volume group of a claim's LV and its attributes, as LVM has them on its node.
pub(super) fn lv_of(stage: &Stage<'_>, claim: &str) -> Result<(String, String, String)> {
    let volume = volume_of(stage, claim)?;
    let node = volume["spec"]["nodeName"].as_str().context("no node")?;
    let id = volume["status"]["volumeID"].as_str().context("no volumeID")?;
    let node = stage.cluster.nodes().iter().find(|known| known.name == node).context("an unknown node")?;
    let report = "lvs --noheadings --separator / -o vg_name,lv_attr,pool_lv --select";
    let text = node.guest.script(&format!("{report} lv_name={id}")).run()?.text();
    let mut parts = text.trim().split('/').map(str::to_owned);
    let mut next = || parts.next().with_context(|| format!("lvs printed {text:?}"));
    Ok((next()?, next()?, next()?))
}

/// The id of the LV of a snapshot.
pub(super) fn id_of_snapshot(stage: &Stage<'_>, name: &str) -> Result<String> {
    let snapshot = stage.get("volumesnapshot", name)?;
    let content = snapshot["status"]["boundVolumeSnapshotContentName"].as_str().context("no content")?;
    let content = stage.cluster.get(["volumesnapshotcontent", content])?;
    Ok(content["status"]["snapshotHandle"].as_str().context("no handle")?.to_owned())
}

fn capacity_of(stage: &Stage<'_>, claim: &str) -> Result<String> {
    let claim = stage.get("pvc", claim)?;
    Ok(claim["status"]["capacity"]["storage"].as_str().unwrap_or_default().to_owned())
}

/// Waits until a claim has this size.
pub(super) fn await_capacity(stage: &Stage<'_>, claim: &str, size: &str) -> Result<()> {
    stage.cluster.wait_for(&format!("{claim} to have {size}"), || {
        let given = capacity_of(stage, claim)?;
        ensure!(given == size, "it has {given}");
        Ok(true)
    })
}

/// The size of the filesystem that a pod has at `/data`.
fn filesystem(stage: &Stage<'_>, pod: &str) -> Result<u64> {
    filesystem_size(&stage.run_in(pod, "df -P -k /data")?)
}
