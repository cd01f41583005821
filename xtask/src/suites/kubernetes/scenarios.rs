//! TopoLVM's end-to-end tests, in their order and with their numbers.

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::{GIB, MIB};
use serde_json::{Value, json};

use super::LVMS;
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::stage::{Stage, on_a_stage};

pub(super) const CASES: &[Case] = &[
    (
        "t01_t02_t03_a_node_that_is_full_of_one_class_takes_pods_of_another_only",
        t01_t02_t03_a_node_that_is_full_of_one_class_takes_pods_of_another_only,
    ),
    ("t09_mount_options_of_the_class_are_used", t09_mount_options_of_the_class_are_used),
    ("t11_data_is_kept_when_its_pod_is_made_again", t11_data_is_kept_when_its_pod_is_made_again),
    (
        "t12_small_claims_get_the_least_that_a_filesystem_needs",
        t12_small_claims_get_the_least_that_a_filesystem_needs,
    ),
    ("t15_a_block_volume_keeps_its_data", t15_a_block_volume_keeps_its_data),
    ("t16_a_small_block_claim_gets_eight_mebibytes", t16_a_small_block_claim_gets_eight_mebibytes),
    ("t22_t24_the_class_decides_the_volume_group", t22_t24_the_class_decides_the_volume_group),
    (
        "t23_an_unknown_device_class_leaves_its_pod_pending",
        t23_an_unknown_device_class_leaves_its_pod_pending,
    ),
    ("t25_options_for_lvcreate_are_used", t25_options_for_lvcreate_are_used),
    ("t26_a_thin_volume_is_in_its_pool", t26_a_thin_volume_is_in_its_pool),
];

/// Fills a file with new random bytes and prints their checksum.
const WRITE: &str = "dd if=/dev/urandom of=/data/bytes bs=1M count=8 && sync && sha256sum /data/bytes";
const READ: &str = "sha256sum /data/bytes";

/// The LogicalVolume of a claim.
fn volume_of(stage: &Stage<'_>, claim: &str) -> Result<Value> {
    let claim = stage.get("pvc", claim)?;
    let name = claim["spec"]["volumeName"].as_str().context("the claim is not bound")?;
    stage.cluster.get(["logicalvolume", name])
}

/// The volume group of a claim's LV and its attributes, as LVM has them on its node.
fn lv_of(stage: &Stage<'_>, claim: &str) -> Result<(String, String, String)> {
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

fn capacity_of(stage: &Stage<'_>, claim: &str) -> Result<String> {
    let claim = stage.get("pvc", claim)?;
    Ok(claim["status"]["capacity"]["storage"].as_str().unwrap_or_default().to_owned())
}

/// Waits for an event about an object whose message contains a text.
fn await_event(stage: &Stage<'_>, object: &str, text: &str) -> Result<()> {
    stage.cluster.wait_for(&format!("an event about {object} that says {text:?}"), || {
        let field = format!("--field-selector=involvedObject.name={object}");
        let events = stage.kubectl(&["get", "events", &field, "--output=jsonpath={.items[*].message}"])?;
        ensure!(events.contains(text), "it says {events}");
        Ok(true)
    })
}

fn t01_t02_t03_a_node_that_is_full_of_one_class_takes_pods_of_another_only(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[0].name;
    on_a_stage(cluster, &LVMS, "t01", "", |stage| {
        stage.claim("all", "thick", "19Gi")?;
        stage.start_pod("all", "all", Some(node))?;
        stage.claim("more", "thick", "19Gi")?;
        stage.make_pod("more", "more", Some(node))?;
        await_event(stage, "more", "did not have enough free storage")?;
        stage.claim("other", "dc2", "1Gi")?;
        stage.start_pod("other", "other", Some(node))
    })
}

fn t09_mount_options_of_the_class_are_used(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t09", "", |stage| {
        stage.claim("data", "mount-option", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let mounts = stage.run_in("user", "cat /proc/mounts")?;
        let data = mounts.lines().find(|line| line.contains(" /data ")).context("/data is not mounted")?;
        ensure!(data.contains(" ext4 ") && data.contains("debug"), "{data}");
        Ok(())
    })
}

fn t11_data_is_kept_when_its_pod_is_made_again(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t11", "", |stage| {
        for class in ["thick", "thick-btrfs"] {
            let names = [class, &format!("{class}-writer"), &format!("{class}-reader")].map(str::to_owned);
            let [claim, writer, reader] = &names;
            stage.claim(claim, class, "1023Mi")?;
            stage.start_pod(writer, claim, None)?;
            let written = stage.run_in(writer, WRITE)?;
            ensure!(capacity_of(stage, claim)? == "1Gi", "it has {}", capacity_of(stage, claim)?);
            let volume = volume_of(stage, claim)?;
            ensure!(volume["status"]["currentSize"] == "1Gi", "it is {}", volume["status"]);
            lv_of(stage, claim)?;
            stage.remove_pod(writer)?;
            stage.start_pod(reader, claim, None)?;
            ensure!(stage.run_in(reader, READ)? == written, "{class} has lost its data");
        }
        Ok(())
    })
}

fn t12_small_claims_get_the_least_that_a_filesystem_needs(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t12", "", |stage| {
        for (class, least) in [("thick", "300Mi"), ("thick-btrfs", "200Mi")] {
            stage.claim(class, class, "100Mi")?;
            stage.start_pod(class, class, None)?;
            ensure!(capacity_of(stage, class)? == least, "{class} has {}", capacity_of(stage, class)?);
            stage.run_in(class, WRITE)?;
        }
        Ok(())
    })
}

fn t15_a_block_volume_keeps_its_data(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t15", "", |stage| {
        stage.block_claim("device", "thick", "1023Mi")?;
        stage.start_block_pod("writer", "device")?;
        let copy =
            "dd if=/dev/urandom of=/tmp/bytes bs=1M count=8 && dd if=/tmp/bytes of=/dev/data bs=1M && sync";
        let written = stage.run_in("writer", &format!("{copy} && sha256sum < /tmp/bytes"))?;
        stage.remove_pod("writer")?;
        stage.start_block_pod("reader", "device")?;
        let read = stage.run_in("reader", "dd if=/dev/data bs=1M count=8 | sha256sum")?;
        ensure!(read == written, "written was {written}, read is {read}");
        Ok(())
    })
}

fn t16_a_small_block_claim_gets_eight_mebibytes(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t16", "", |stage| {
        stage.block_claim("device", "thick", "1Mi")?;
        stage.start_block_pod("user", "device")?;
        ensure!(capacity_of(stage, "device")? == "8Mi", "it has {}", capacity_of(stage, "device")?);
        let volume = volume_of(stage, "device")?;
        let node = volume["spec"]["nodeName"].as_str().unwrap_or_default();
        ensure!(stage.taken(&format!("{node} thick1 free"))? == 8 * MIB, "another size was taken");
        Ok(())
    })
}

fn t22_t24_the_class_decides_the_volume_group(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t22", "", |stage| {
        for (class, group) in [("dc2", "thick2"), ("default", "thick1")] {
            stage.claim(class, class, "1Gi")?;
            stage.start_pod(class, class, None)?;
            let (found, _, _) = lv_of(stage, class)?;
            ensure!(found == group, "{class} is in {found}");
        }
        Ok(())
    })
}

fn t23_an_unknown_device_class_leaves_its_pod_pending(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t23", "", |stage| {
        stage.claim("data", "not-found-device", "1Gi")?;
        stage.make_pod("user", "data", None)?;
        await_event(stage, "user", "node(s) did not have enough free storage")
    })
}

fn t25_options_for_lvcreate_are_used(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t25", "", |stage| {
        for class in ["create-option-raid1", "option-class-raid1"] {
            stage.claim(class, class, "1Gi")?;
            cluster.wait_for(&format!("{class} to be bound"), || {
                Ok(stage.get("pvc", class)?["status"]["phase"] == "Bound")
            })?;
            let (_, attributes, _) = lv_of(stage, class)?;
            ensure!(attributes.starts_with('r'), "{class} has {attributes}");
        }
        Ok(())
    })
}

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
