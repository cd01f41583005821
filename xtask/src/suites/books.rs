//! What LVM has, what LogicalVolumes say, and what volumes and snapshots name: three books that must agree.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::deployed::DRIVER;

/// The ids of volumes and snapshots in each of the books.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Books {
    lvm: BTreeSet<String>,
    logical_volumes: BTreeSet<String>,
    named: BTreeSet<String>,
}

impl Books {
    /// As they are now.
    pub(super) fn read(cluster: &Cluster) -> Result<Books> {
        let lvm = lvs(cluster)?.into_iter().filter(|name| is_id(name)).collect();
        let logical_volumes = ids(cluster, "logicalvolumes", |volume| &volume["status"]["volumeID"])?;
        let mut named = ids(cluster, "persistentvolumes", |volume| {
            let csi = &volume["spec"]["csi"];
            if csi["driver"] == DRIVER { &csi["volumeHandle"] } else { &Value::Null }
        })?;
        named.extend(ids(cluster, "volumesnapshotcontents", |content| &content["status"]["snapshotHandle"])?);
        Ok(Books { lvm, logical_volumes, named })
    }

    /// Waits until they agree, and say that so many volumes and snapshots are there.
    pub(super) fn await_agreement(cluster: &Cluster, count: usize) -> Result<()> {
        cluster.wait_for(&format!("{count} volumes and snapshots in all books"), || {
            let books = Books::read(cluster)?;
            let agree = books.lvm == books.logical_volumes && books.lvm == books.named;
            ensure!(agree && books.lvm.len() == count, "{books:?}");
            Ok(true)
        })
    }
}

/// The names of all LVs of all nodes.
pub(super) fn lvs(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for node in cluster.nodes() {
        let names = node.guest.command(["lvs", "--noheadings", "-o", "lv_name"]).run()?.text();
        all.extend(names.split_whitespace().map(str::to_owned));
    }
    Ok(all)
}

/// Whether it is a name that only we give.
fn is_id(name: &str) -> bool {
    let groups: Vec<usize> = name.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && name.chars().all(|letter| letter == '-' || letter.is_ascii_hexdigit())
}

/// What all objects of a kind say.
fn ids(cluster: &Cluster, kind: &str, id: fn(&Value) -> &Value) -> Result<BTreeSet<String>> {
    let list = cluster.get([kind])?;
    let all = list["items"].as_array().context("a list has items")?;
    Ok(all.iter().filter_map(|object| id(object).as_str()).map(str::to_owned).collect())
}

/// No device of any node is suspended: whoever reads from one would wait for ever.
pub(super) fn nothing_is_suspended(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let devices = node.guest.script("dmsetup info -c --noheadings --separator ' ' -o name,suspended");
        let devices = devices.run()?.text();
        ensure!(!devices.contains("Suspended"), "on {}\n{devices}", node.name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_give_are_in_the_books() {
        assert!(is_id("0f8fad5b-d9cb-469f-a165-70867728950e"));
        assert!(!is_id("pool0") && !is_id("0f8fad5b-d9cb-469f-a165-70867728950x"));
    }
}
