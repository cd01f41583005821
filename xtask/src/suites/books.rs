//! What LVM has, what LogicalVolumes say, and what volumes and snapshots name: three books that must agree.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::deployed::DRIVER;

/// The ids of volumes and snapshots in each of the books, in order, each as often as it is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Books {
    lvm: Vec<String>,
    logical_volumes: Vec<String>,
    named: Vec<String>,
}

impl Books {
    /// As they are now.
    pub(super) fn read(cluster: &Cluster) -> Result<Books> {
        let mut lvm: Vec<String> = names_of_lvs(cluster)?.into_iter().filter(|name| is_id(name)).collect();
        let list = |kind: &str| cluster.get([kind]);
        let mut logical_volumes = ids(&list("logicalvolumes")?, |volume| &volume["status"]["volumeID"])?;
        let mut volumes = list("persistentvolumes")?;
        if let Some(volumes) = volumes["items"].as_array_mut() {
            volumes.retain(|volume| volume["spec"]["csi"]["driver"] == DRIVER);
        }
        let mut named = ids(&volumes, |volume| &volume["spec"]["csi"]["volumeHandle"])?;
        named.extend(ids(&list("volumesnapshotcontents")?, |content| &content["status"]["snapshotHandle"])?);
        for book in [&mut lvm, &mut logical_volumes, &mut named] {
            book.sort_unstable();
        }
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
    Ok(names_of_lvs(cluster)?.into_iter().collect())
}

fn names_of_lvs(cluster: &Cluster) -> Result<Vec<String>> {
    let mut all = Vec::new();
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

/// What the objects of a list say. One that says nothing is in no other book.
fn ids(list: &Value, id: fn(&Value) -> &Value) -> Result<Vec<String>> {
    let all = list["items"].as_array().context("a list has items")?;
    let said = all.iter().map(|object| match id(object).as_str() {
        Some(id) => id.to_owned(),
        None => format!("nothing, says {} {}", object["kind"], object["metadata"]["name"]),
    });
    Ok(said.collect())
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
    use serde_json::json;

    #[test]
    fn only_names_that_we_give_are_in_the_books() {
        assert!(is_id("0f8fad5b-d9cb-469f-a165-70867728950e"));
        assert!(!is_id("pool0") && !is_id("0f8fad5b-d9cb-469f-a165-70867728950x"));
    }

    #[test]
    fn an_object_without_an_id_and_a_second_one_with_the_same_are_counted() {
        let list = json!({"items": [{"id": "a"}, {"kind": "LogicalVolume", "metadata": {"name": "b"}}, {"id": "a"}]});
        let found = ids(&list, |object| &object["id"]).unwrap();
        assert_eq!(found, ["a", "nothing, says \"LogicalVolume\" \"b\"", "a"]);
    }
}
