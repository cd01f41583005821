//! What takes long is told of while it lasts.

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::Fault;
use serde_json::json;

use super::LVMS;
use super::own_disk::with_a_class_on_a_disk;
use crate::cluster::{Cluster, Node};
use crate::suites::cluster::Case;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[Case::One(
    "how_far_a_copy_is_can_be_seen_on_its_logical_volume",
    how_far_a_copy_is_can_be_seen_on_its_logical_volume,
)];

const SLOW: &str = "slow";

fn how_far_a_copy_is_can_be_seen_on_its_logical_volume(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[2];
    with_a_class_on_a_disk(cluster, node, SLOW, || is_copied(cluster, node))
}

fn is_copied(cluster: &Cluster, node: &Node) -> Result<()> {
    on_a_stage(cluster, &LVMS, "long", "thick1", |stage| {
        stage.block_claim("origin", SLOW, "200Mi")?;
        stage.start_block_pod("user", "origin")?;
        let claim = json!({
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": SLOW,
            "resources": {"requests": {"storage": "200Mi"}},
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "origin"},
        });
        stage.apply("v1", "PersistentVolumeClaim", "copy", &claim)?;
        node.guest.set_fault(SLOW, Fault::Delay { milliseconds: 300 })?;
        stage.make_block_pod("waits", "copy")?;
        let told = || -> Result<Option<String>> {
            let volumes = cluster.get(["logicalvolumes"])?;
            let volumes = volumes["items"].as_array().context("a list has items")?;
            let annotations = |volume: &serde_json::Value, key: &str| {
                volume["metadata"]["annotations"][key].as_str().map(str::to_owned)
            };
            let copy = volumes.iter().find(|volume| {
                annotations(volume, "lvms.io/claim").is_some_and(|claim| claim.ends_with("/copy"))
            });
            Ok(copy.and_then(|copy| annotations(copy, "lvms.io/progress")))
        };
        let seen = cluster.wait_for("the copy to be told of", || {
            let told = told()?;
            ensure!(told.as_deref().is_some_and(|told| told.ends_with(" MiB")), "it is told {told:?}");
            Ok(told.is_some_and(|told| told.starts_with("copy")))
        });
        node.guest.set_fault(SLOW, Fault::None)?;
        seen?;
        stage.await_pod("waits")?;
        cluster.wait_for("nothing to be told any more", || {
            let told = told()?;
            ensure!(told.is_none(), "it is told {told:?}");
            Ok(true)
        })
    })
}
