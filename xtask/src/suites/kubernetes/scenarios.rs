//! TopoLVM's end-to-end tests, in their order and with their numbers.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::{GIB, MIB};
use serde_json::{Value, json};

use super::LVMS;
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::stage::{Stage, filesystem_size, on_a_stage};

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
    (
        "t13_a_generic_ephemeral_volume_lives_as_long_as_its_pod",
        t13_a_generic_ephemeral_volume_lives_as_long_as_its_pod,
    ),
    ("t15_a_block_volume_keeps_its_data", t15_a_block_volume_keeps_its_data),
    ("t16_a_small_block_claim_gets_eight_mebibytes", t16_a_small_block_claim_gets_eight_mebibytes),
    ("t17_t18_immediate_claims_go_where_most_is_free", t17_t18_immediate_claims_go_where_most_is_free),
    ("t20_filesystems_grow_online_and_offline", t20_filesystems_grow_online_and_offline),
    ("t21_a_block_volume_grows", t21_a_block_volume_grows),
    ("t22_t24_the_class_decides_the_volume_group", t22_t24_the_class_decides_the_volume_group),
    (
        "t23_an_unknown_device_class_leaves_its_pod_pending",
        t23_an_unknown_device_class_leaves_its_pod_pending,
    ),
    ("t25_options_for_lvcreate_are_used", t25_options_for_lvcreate_are_used),
    ("t26_a_thin_volume_is_in_its_pool", t26_a_thin_volume_is_in_its_pool),
    ("t27_t28_a_pool_is_promised_as_often_as_it_may_be", t27_t28_a_pool_is_promised_as_often_as_it_may_be),
    ("t29_t30_t31_a_snapshot_is_restored_also_larger", t29_t30_t31_a_snapshot_is_restored_also_larger),
    ("t32_t33_a_clone_outlives_its_source", t32_t33_a_clone_outlives_its_source),
    ("t34_t36_a_size_written_by_others_is_honoured", t34_t36_a_size_written_by_others_is_honoured),
    (
        "t38_a_claim_without_a_class_does_not_keep_its_pod_from_being_made",
        t38_a_claim_without_a_class_does_not_keep_its_pod_from_being_made,
    ),
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
            await_bound(stage, class)?;
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

fn t13_a_generic_ephemeral_volume_lives_as_long_as_its_pod(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t13", "", |stage| {
        let template = json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "thick",
            "resources": {"requests": {"storage": "1Gi"}},
        }});
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}],
        });
        stage.apply("v1", "Pod", "user", &spec)?;
        stage.await_pod("user")?;
        ensure!(stage.get("pvc", "user-data")?["status"]["phase"] == "Bound");
        stage.remove_pod("user")?;
        cluster.wait_for("the claim to be gone", || {
            Ok(stage.kubectl(&["get", "pvc", "--output=name"])?.is_empty())
        })
    })
}

fn t17_t18_immediate_claims_go_where_most_is_free(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t17", "", |stage| {
        let mut nodes = Vec::new();
        for claim in ["one", "two", "three"] {
            stage.claim(claim, "immediate", "1Gi")?;
            await_bound(stage, claim)?;
            let volume = volume_of(stage, claim)?;
            nodes.push(volume["spec"]["nodeName"].as_str().unwrap_or_default().to_owned());
            // What is left there has to be told before the next one can go elsewhere.
            let told = format!("{} told of dc1", nodes.last().context("a node")?);
            cluster.wait_for("the node to tell what is left", || Ok(stage.taken(&told)? == GIB))?;
        }
        let used: BTreeSet<&String> = nodes.iter().collect();
        ensure!(used.len() == 3, "with as much room on each they went to {nodes:?}");
        stage.start_pod("user", "one", None)?;
        ensure!(stage.node_of("user")? == nodes[0], "the pod is on {}", stage.node_of("user")?);
        stage.remove_pod("user")?;
        stage.start_pod("again", "one", None)?;
        ensure!(stage.node_of("again")? == nodes[0], "the pod is on {}", stage.node_of("again")?);
        Ok(())
    })
}

fn t20_filesystems_grow_online_and_offline(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t20", "", |stage| {
        for class in ["thick", "thick-btrfs"] {
            let (user, later) = (format!("{class}-user"), format!("{class}-later"));
            stage.claim(class, class, "1Gi")?;
            stage.start_pod(&user, class, None)?;
            let written = stage.run_in(&user, WRITE)?;
            stage.grow(class, "2Gi")?;
            await_capacity(stage, class, "2Gi")?;
            ensure!(
                filesystem(stage, &user)? > 2 * GIB / 10 * 9,
                "online it has {}",
                filesystem(stage, &user)?
            );
            stage.remove_pod(&user)?;
            stage.grow(class, "3Gi")?;
            cluster.wait_for("the volume to have grown without a pod", || {
                Ok(volume_of(stage, class)?["status"]["currentSize"] == "3Gi")
            })?;
            stage.start_pod(&later, class, None)?;
            await_capacity(stage, class, "3Gi")?;
            ensure!(
                filesystem(stage, &later)? > 3 * GIB / 10 * 9,
                "offline it has {}",
                filesystem(stage, &later)?
            );
            ensure!(stage.run_in(&later, READ)? == written, "{class} has lost its data");
            let events = stage.kubectl(&["get", "events", "--output=jsonpath={.items[*].reason}"])?;
            ensure!(!events.contains("VolumeResizeFailed"), "{events}");
        }
        stage.grow("thick", "100Gi")?;
        cluster.wait_for("an impossible growth to be refused", || {
            let events = stage.kubectl(&["get", "events", "--output=jsonpath={.items[*].reason}"])?;
            Ok(events.contains("VolumeResizeFailed"))
        })?;
        // A request that can be fulfilled ends it.
        stage.grow("thick", "4Gi")?;
        await_capacity(stage, "thick", "4Gi")
    })
}

fn t21_a_block_volume_grows(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t21", "", |stage| {
        stage.block_claim("device", "thick", "1023Mi")?;
        stage.start_block_pod("user", "device")?;
        stage.grow("device", "2047Mi")?;
        await_capacity(stage, "device", "2Gi")?;
        let read = stage.run_in("user", "dd if=/dev/data of=/dev/null bs=1M 2>&1")?;
        ensure!(read.contains("2048+0 records in"), "the pod reads {read}");
        Ok(())
    })
}

fn t27_t28_a_pool_is_promised_as_often_as_it_may_be(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[0].name;
    on_a_stage(cluster, &LVMS, "t27", "", |stage| {
        // 4 GiB, five times.
        for number in 0..5 {
            let name = format!("v{number}");
            stage.claim(&name, "thin", "3Gi")?;
            stage.start_pod(&name, &name, Some(node))?;
        }
        stage.claim("large", "thin", "6Gi")?;
        stage.make_pod("large", "large", Some(node))?;
        await_event(stage, "large", "did not have enough free storage")
    })
}

fn t29_t30_t31_a_snapshot_is_restored_also_larger(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t29", "", |stage| {
        stage.claim("origin", "thin", "1023Mi")?;
        stage.start_pod("origin", "origin", None)?;
        let then = stage.run_in("origin", WRITE)?;
        stage.snapshot("moment", "origin", "lvms")?;
        cluster.wait_for("the snapshot to be ready", || {
            Ok(stage.get("volumesnapshot", "moment")?["status"]["readyToUse"] == true)
        })?;
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

fn await_bound(stage: &Stage<'_>, claim: &str) -> Result<()> {
    stage.cluster.wait_for(&format!("{claim} to be bound"), || {
        Ok(stage.get("pvc", claim)?["status"]["phase"] == "Bound")
    })
}

fn await_capacity(stage: &Stage<'_>, claim: &str, size: &str) -> Result<()> {
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
