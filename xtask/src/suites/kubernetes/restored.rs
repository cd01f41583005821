//! What was lost and comes back: a node that is reinstalled, and objects from an old backup. No byte is lost with them.

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::LVMS;
use super::protection::{has_lv, made_for};
use super::scenarios::await_capacity;
use crate::cluster::{Cluster, PATIENCE};
use crate::deployed::{self, NAMESPACE};
use crate::suites::cluster::Case;
use crate::suites::stage::{READ, Stage, WRITE, await_event, on_a_stage};

pub(super) const CASES: &[Case] = &[
    Case::One(
        "a_volume_deleted_while_its_logical_volume_is_missing_leaves_nothing",
        a_volume_deleted_while_its_logical_volume_is_missing_leaves_nothing,
    ),
    Case::One("no_byte_is_lost_when_a_node_is_reinstalled", no_byte_is_lost_when_a_node_is_reinstalled),
    Case::One(
        "no_byte_is_lost_when_objects_are_restored_from_an_old_backup",
        no_byte_is_lost_when_objects_are_restored_from_an_old_backup,
    ),
    Case::One(
        "no_byte_is_lost_when_a_volume_is_restored_with_the_uid_of_a_claim_that_is_gone",
        no_byte_is_lost_when_a_volume_is_restored_with_the_uid_of_a_claim_that_is_gone,
    ),
    Case::One(
        "snapshots_whose_logical_volumes_are_gone_or_from_a_backup_are_what_they_were",
        snapshots_whose_logical_volumes_are_gone_or_from_a_backup_are_what_they_were,
    ),
    Case::One(
        "a_snapshot_deleted_while_its_logical_volume_is_missing_leaves_nothing",
        a_snapshot_deleted_while_its_logical_volume_is_missing_leaves_nothing,
    ),
];

/// A snapshot of a volume that has other data by now.
pub(super) struct Moment {
    /// The VolumeSnapshot.
    name: String,
    class: String,
    pub(super) content: String,
    /// The LogicalVolume.
    pub(super) volume: String,
    pub(super) id: String,
    pub(super) node: String,
    written: String,
}

impl Moment {
    /// Takes a snapshot of a new volume of a class.
    pub(super) fn take(stage: &Stage<'_>, class: &str) -> Result<Moment> {
        let (origin, name) = (format!("{class}-origin"), format!("{class}-moment"));
        stage.claim(&origin, class, "1Gi")?;
        stage.start_pod(&origin, &origin, None)?;
        let written = stage.run_in(&origin, WRITE)?;
        stage.snapshot(&name, &origin, "lvms")?;
        stage.await_snapshot(&name)?;
        stage.run_in(&origin, WRITE)?;
        stage.remove_pod(&origin)?;
        let snapshot = stage.get("volumesnapshot", &name)?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a text is missing");
        let volume = format!("snapshot-{}", text(&snapshot["metadata"]["uid"])?);
        let logical = stage.cluster.get(["logicalvolume", &volume])?;
        Ok(Moment {
            content: text(&snapshot["status"]["boundVolumeSnapshotContentName"])?,
            id: text(&logical["status"]["volumeID"])?,
            node: text(&logical["spec"]["nodeName"])?,
            class: class.to_owned(),
            name,
            volume,
            written,
        })
    }

    /// Waits until there is a LogicalVolume for the same LV, and looks whether a copy has the data of that time.
    pub(super) fn is_as_it_was(&self, stage: &Stage<'_>) -> Result<()> {
        let cluster = stage.cluster;
        cluster.wait_for(&format!("the LogicalVolume of {} to be about the same LV", self.name), || {
            let logical = cluster.get(["logicalvolume", &self.volume])?;
            ensure!(logical["status"]["volumeID"] == self.id.as_str(), "it is {logical}");
            Ok(true)
        })?;
        ensure!(has_lv(cluster, &self.node, &self.id)?, "{} has lost its data", self.name);
        let copy = format!("{}-copy", self.class);
        stage.restore(&copy, &self.name, &self.class, "1Gi")?;
        stage.start_pod(&copy, &copy, None)?;
        ensure!(stage.run_in(&copy, READ)? == self.written, "{copy} has other data");
        stage.remove_pod(&copy)
    }
}

const NO_FINALIZERS: &str = r#"{"metadata": {"finalizers": null}}"#;

/// Lets something happen while lvms does not run.
fn without_lvms(cluster: &Cluster, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let scale = |replicas: usize| -> Result<()> {
        let deployment = ["scale", "deployment", "lvms-single-node", &format!("--replicas={replicas}")];
        cluster.kubectl(["--namespace", NAMESPACE].iter().chain(&deployment))?;
        cluster.wait_for("the pod of lvms to be there, or gone", || {
            let pods = cluster.get(["--namespace", NAMESPACE, "pods"])?;
            Ok(pods["items"].as_array().is_some_and(|pods| pods.len() == replicas))
        })
    };
    let acted = scale(0).and_then(|()| act());
    scale(1)?;
    await_lvms(cluster)?;
    acted
}

fn await_lvms(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().first().context("a node")?;
    cluster.wait_for("the pod of lvms to run", || deployed::pod_on(cluster, node).map(|_| true))?;
    super::await_ready(cluster, &deployed::pod_on(cluster, node)?)
}

/// Deletes an object with all that keeps it.
fn tear_out(cluster: &Cluster, kind: &str, name: &str) -> Result<()> {
    cluster.kubectl(["delete", kind, name, "--wait=false", "--ignore-not-found"])?;
    if !is_gone(cluster, kind, name)? {
        cluster.kubectl(["patch", kind, name, "--type=merge", "--patch", NO_FINALIZERS])?;
    }
    cluster.wait_for(&format!("{kind} {name} to be gone"), || is_gone(cluster, kind, name))
}

fn is_gone(cluster: &Cluster, kind: &str, name: &str) -> Result<bool> {
    Ok(cluster.kubectl(["get", kind, name, "--ignore-not-found", "--output=name"])?.is_empty())
}

fn a_volume_deleted_while_its_logical_volume_is_missing_leaves_nothing(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "missing", "", |stage| {
        stage.claim("data", "immediate", "1Gi")?;
        stage.await_bound("data")?;
        let (volume, id, node) = made_for(stage, "data")?;
        without_lvms(cluster, || {
            tear_out(cluster, "logicalvolume", &volume)?;
            stage.kubectl(&["delete", "pvc", "data", "--wait=false"])?;
            cluster.wait_for("the volume to be released", || {
                Ok(cluster.get(["pv", &volume])?["status"]["phase"] == "Released")
            })?;
            ensure!(has_lv(cluster, &node, &id)?, "the logical volume went with its object");
            Ok(())
        })?;
        cluster.wait_for("the PersistentVolume to be gone", || is_gone(cluster, "pv", &volume))?;
        ensure!(!has_lv(cluster, &node, &id)?, "a logical volume is left that nothing names");
        ensure!(is_gone(cluster, "logicalvolume", &volume)?, "its LogicalVolume is left");
        Ok(())
    })
}

/// What a new installation of the system leaves of a node: its name and its disks. The kubelet comes last.
const REINSTALL: &str = "
pkill -9 -x kubelet; while pgrep -x kubelet; do sleep 0.1; done
for task in $(ctr --namespace k8s.io tasks list --quiet); do
    ctr --namespace k8s.io tasks kill --signal SIGKILL $task || true
done
while pgrep -x lvms; do sleep 0.2; done
for mount in $(awk '$2 ~ \"^/var/lib/kubelet/\" {print $2}' /proc/mounts | sort -r); do umount -l $mount; done
set -e
rm -rf /var/lib/kubelet/* /run/lvms /run/udev/rules.d/*lvms* /etc/lvm/backup/* /etc/lvm/archive/*
vgchange -an && vgchange -ay
sh /etc/kubernetes/start-kubelet
";

fn no_byte_is_lost_when_a_node_is_reinstalled(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().first().context("a node")?;
    on_a_stage(cluster, &LVMS, "reinstalled", "", |stage| {
        stage.claim("used", "thick", "1Gi")?;
        stage.claim("idle", "thin", "1Gi")?;
        for claim in ["used", "idle"] {
            stage.start_pod(claim, claim, None)?;
        }
        let (used, idle) = (stage.run_in("used", WRITE)?, stage.run_in("idle", WRITE)?);
        stage.remove_pod("idle")?;
        let volumes = [made_for(stage, "used")?, made_for(stage, "idle")?];
        node.guest.script(REINSTALL).limit(PATIENCE).run()?;
        // The kubelet starts what was on the node: lvms, and the pod, whose volume has to be published anew.
        await_lvms(cluster)?;
        cluster.wait_for("the pod to have its data again", || {
            let read = stage.run_in("used", READ)?;
            ensure!(read == used, "it has {read}");
            Ok(true)
        })?;
        stage.start_pod("again", "idle", None)?;
        ensure!(stage.run_in("again", READ)? == idle, "the data has changed");
        for (volume, id, _) in &volumes {
            let status = &cluster.get(["logicalvolume", volume])?["status"];
            ensure!(status["volumeID"] == id.as_str() && status["code"].is_null(), "{volume} is {status}");
        }
        stage.grow("used", "2Gi")?;
        await_capacity(stage, "used", "2Gi")?;
        ensure!(stage.run_in("used", READ)? == used, "the data has changed");
        Ok(())
    })
}

/// An object as a backup has it, and as it is put back: without what the API server gives.
fn kept(mut object: Value) -> Value {
    object.as_object_mut().map(|object| object.remove("status"));
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for given in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
            metadata.remove(given);
        }
    }
    object
}

/// The objects of a claim's volume, in the order in which they are put back.
fn backup(stage: &Stage<'_>, claim: &str, volume: &str) -> Result<Vec<Value>> {
    let mut persistent = kept(stage.cluster.get(["pv", volume])?);
    // It is bound to the claim of this name, whichever uid that has.
    let reference = persistent["spec"]["claimRef"].as_object_mut().context("it is bound")?;
    reference.retain(|key, _| ["apiVersion", "kind", "namespace", "name"].contains(&key.as_str()));
    let mut logical = kept(stage.cluster.get(["logicalvolume", volume])?);
    // A key that was good for the former object.
    logical["metadata"]["annotations"]["lvms.io/released"] = json!("2026-01-01T00:00:00Z");
    let mut claim = kept(stage.get("pvc", claim)?);
    if let Some(annotations) = claim["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|key, _| !key.starts_with("pv.kubernetes.io/"));
    }
    Ok(vec![logical, persistent, claim])
}

fn no_byte_is_lost_when_objects_are_restored_from_an_old_backup(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "backup", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let (volume, id, node) = made_for(stage, "data")?;
        let objects = backup(stage, "data", &volume)?;
        let uid = cluster.get(["logicalvolume", &volume])?["metadata"]["uid"].clone();
        // What comes later is not in the backup.
        stage.grow("data", "2Gi")?;
        await_capacity(stage, "data", "2Gi")?;
        let written = stage.run_in("user", WRITE)?;
        stage.remove_pod("user")?;
        without_lvms(cluster, || {
            stage.kubectl(&["delete", "pvc", "data", "--wait=false"])?;
            tear_out(cluster, "logicalvolume", &volume)?;
            tear_out(cluster, "pv", &volume)?;
            cluster.wait_for("the claim to be gone", || {
                Ok(stage.kubectl(&["get", "pvc", "data", "--ignore-not-found"])?.is_empty())
            })?;
            objects.iter().try_for_each(|object| cluster.apply(&object.to_string()))
        })?;
        cluster.wait_for("the LogicalVolume to be about the same logical volume", || {
            let logical = cluster.get(["logicalvolume", &volume])?;
            let status = &logical["status"];
            ensure!(status["volumeID"] == id.as_str() && status["currentSize"] == "2Gi", "it is {logical}");
            ensure!(logical["metadata"]["uid"] != uid, "it is the former object");
            Ok(true)
        })?;
        stage.await_bound("data")?;
        stage.start_pod("again", "data", None)?;
        ensure!(stage.run_in("again", READ)? == written, "the data has changed");
        // The size in the backup was smaller, and nothing shrinks.
        stage.grow("data", "3Gi")?;
        await_capacity(stage, "data", "3Gi")?;
        ensure!(stage.run_in("again", READ)? == written, "the data has changed");
        ensure!(has_lv(cluster, &node, &id)?, "the data is in another logical volume");
        // When the claim is gone, all space must be free: that of a logical volume made in between, too.
        Ok(())
    })
}

fn no_byte_is_lost_when_a_volume_is_restored_with_the_uid_of_a_claim_that_is_gone(
    cluster: &Cluster,
) -> Result<()> {
    on_a_stage(cluster, &LVMS, "former-uid", "", |stage| {
        for (name, is_missing) in [("there", false), ("missing", true)] {
            stage.claim(name, "thick", "1Gi")?;
            stage.start_pod(name, name, None)?;
            let (volume, id, node) = made_for(stage, name)?;
            let written = stage.run_in(name, WRITE)?;
            stage.remove_pod(name)?;
            let former = stage.get("pvc", name)?["metadata"]["uid"].clone();
            let [logical, mut persistent, claim]: [Value; 3] =
                backup(stage, name, &volume)?.try_into().map_err(|_| anyhow!("three objects"))?;
            persistent["spec"]["claimRef"]["uid"] = former;
            without_lvms(cluster, || {
                stage.kubectl(&["delete", "pvc", name, "--wait=false"])?;
                tear_out(cluster, "logicalvolume", &volume)?;
                tear_out(cluster, "pv", &volume)?;
                cluster.wait_for("the claim to be gone", || {
                    Ok(stage.kubectl(&["get", "pvc", name, "--ignore-not-found"])?.is_empty())
                })?;
                if !is_missing {
                    cluster.apply(&logical.to_string())?;
                }
                cluster.apply(&claim.to_string())?;
                cluster.apply(&persistent.to_string())?;
                cluster.wait_for("the volume to count as released", || {
                    Ok(cluster.get(["pv", &volume])?["status"]["phase"] == "Released")
                })
            })?;
            await_event(cluster, "default", &volume, "VolumeFailedDelete", &format!("/{name} names"))?;
            ensure!(has_lv(cluster, &node, &id)?, "the logical volume went though a claim names it");
            // The remedy that the event tells.
            let uid = &stage.get("pvc", name)?["metadata"]["uid"];
            let remedy = json!({"spec": {"claimRef": {"uid": uid}}}).to_string();
            cluster.kubectl(["patch", "pv", &volume, "--type=merge", "--patch", &remedy])?;
            stage.await_bound(name)?;
            stage.start_pod(name, name, None)?;
            ensure!(stage.run_in(name, READ)? == written, "the data of {name} has changed");
            stage.remove_pod(name)?;
        }
        Ok(())
    })
}

fn snapshots_whose_logical_volumes_are_gone_or_from_a_backup_are_what_they_were(
    cluster: &Cluster,
) -> Result<()> {
    on_a_stage(cluster, &LVMS, "moments", "", |stage| {
        let (gone, kept_in_backup) = (Moment::take(stage, "thick")?, Moment::take(stage, "thin")?);
        let object = kept(cluster.get(["logicalvolume", &kept_in_backup.volume])?);
        without_lvms(cluster, || {
            // Where the origin is not any more says only what was written down.
            stage.kubectl(&["delete", "pvc", "thin-origin", "--wait=false"])?;
            tear_out(cluster, "logicalvolume", &gone.volume)?;
            tear_out(cluster, "logicalvolume", &kept_in_backup.volume)?;
            cluster.apply(&object.to_string())
        })?;
        gone.is_as_it_was(stage)?;
        await_event(cluster, "default", &gone.content, "LogicalVolumeRestored", &gone.id)?;
        kept_in_backup.is_as_it_was(stage)
        // When the namespace is gone, all space must be free: that of a snapshot taken in between, too.
    })
}

fn a_snapshot_deleted_while_its_logical_volume_is_missing_leaves_nothing(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "moment-missing", "", |stage| {
        for moment in [Moment::take(stage, "thick")?, Moment::take(stage, "thin")?] {
            without_lvms(cluster, || {
                tear_out(cluster, "logicalvolume", &moment.volume)?;
                stage.kubectl(&["delete", "volumesnapshot", &moment.name, "--wait=false"])?;
                ensure!(has_lv(cluster, &moment.node, &moment.id)?, "the snapshot went with its object");
                Ok(())
            })?;
            let content = &moment.content;
            cluster.wait_for(&format!("{content} to be gone"), || {
                is_gone(cluster, "volumesnapshotcontent", content)
            })?;
            ensure!(!has_lv(cluster, &moment.node, &moment.id)?, "a snapshot is left that nothing names");
        }
        Ok(())
    })
}
