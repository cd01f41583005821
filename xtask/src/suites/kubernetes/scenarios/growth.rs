//! Volumes grow.

use anyhow::{Result, ensure};
use lab_protocol::disk::GIB;

use super::{READ, WRITE, await_capacity, filesystem, volume_of};
use crate::cluster::Cluster;
use crate::deployed::NAMESPACE;
use crate::suites::cluster::Case;
use crate::suites::kubernetes::LVMS;
use crate::suites::stage::on_a_stage;

pub(super) const CASES: &[Case] = &[
    Case::One("t20_filesystems_grow_online_and_offline", t20_filesystems_grow_online_and_offline),
    Case::One("t21_a_block_volume_grows", t21_a_block_volume_grows),
];

fn t20_filesystems_grow_online_and_offline(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "t20", "", |stage| {
        let mut written = Vec::new();
        for class in ["thick", "thick-btrfs"] {
            let (user, later) = (format!("{class}-user"), format!("{class}-later"));
            stage.claim(class, class, "1Gi")?;
            stage.start_pod(&user, class, None)?;
            let sum = stage.run_in(&user, WRITE)?;
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
            written.push((class, later, sum));
        }
        let restart = || {
            let pods = ["delete", "pods", "--selector=app.kubernetes.io/component=node"];
            cluster.kubectl(["--namespace", NAMESPACE].iter().chain(&pods))
        };
        // Whoever has to do it comes later.
        restart()?;
        for (class, ..) in &written {
            stage.grow(class, "4Gi")?;
        }
        for (class, pod, sum) in &written {
            await_capacity(stage, class, "4Gi")?;
            let size = filesystem(stage, pod)?;
            ensure!(size > 4 * GIB / 10 * 9, "after a restart of lvms {class} has {size}");
            ensure!(stage.run_in(pod, READ)? == *sum, "{class} has lost its data");
        }
        // While lvms was away the kubelet may have told, of a pod, that it knows no such driver.
        let failures = [
            "get",
            "events",
            "--field-selector=reason=VolumeResizeFailed,involvedObject.kind=PersistentVolumeClaim",
            "--output=jsonpath={.items[*].message}",
        ];
        let failures = stage.kubectl(&failures)?;
        ensure!(failures.is_empty(), "growth is told to have failed: {failures}");
        for (class, ..) in &written {
            stage.grow(class, "100Gi")?;
        }
        for (class, ..) in &written {
            stage.await_event(class, "VolumeResizeFailed", "failed")?;
        }
        // A request that can be fulfilled ends it, by another process, too.
        restart()?;
        for (class, ..) in &written {
            stage.grow(class, "5Gi")?;
        }
        for (class, ..) in &written {
            await_capacity(stage, class, "5Gi")?;
        }
        Ok(())
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
