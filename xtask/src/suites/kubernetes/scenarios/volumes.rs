//! Volumes as pods see them.

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::MIB;
use serde_json::json;

use super::{READ, WRITE, capacity_of, lv_of, volume_of};
use crate::cluster::Cluster;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    Case::One("t09_mount_options_of_the_class_are_used", t09_mount_options_of_the_class_are_used),
    Case::One("t11_data_is_kept_when_its_pod_is_made_again", t11_data_is_kept_when_its_pod_is_made_again),
    Case::One(
        "t12_small_claims_get_the_least_that_a_filesystem_needs",
        t12_small_claims_get_the_least_that_a_filesystem_needs,
    ),
    Case::One(
        "t13_a_generic_ephemeral_volume_lives_as_long_as_its_pod",
        t13_a_generic_ephemeral_volume_lives_as_long_as_its_pod,
    ),
    Case::One("t15_a_block_volume_keeps_its_data", t15_a_block_volume_keeps_its_data),
    Case::One("t16_a_small_block_claim_gets_eight_mebibytes", t16_a_small_block_claim_gets_eight_mebibytes),
    Case::One("t25_options_for_lvcreate_are_used", t25_options_for_lvcreate_are_used),
];

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

fn t25_options_for_lvcreate_are_used(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t25", "", |stage| {
        for class in ["create-option-raid1", "option-class-raid1"] {
            stage.claim(class, class, "1Gi")?;
            stage.await_bound(class)?;
            let (_, attributes, _) = lv_of(stage, class)?;
            ensure!(attributes.starts_with('r'), "{class} has {attributes}");
        }
        Ok(())
    })
}
