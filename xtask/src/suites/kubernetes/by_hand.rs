//! Objects that people make by hand, and what they ask of a volume beyond a claim and a pod.

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::GIB;
use serde_json::{Value, json};

use super::LVMS;
use super::protection::has_lv;
use super::scenarios::{READ, WRITE, await_capacity, id_of_snapshot};
use crate::cluster::Cluster;
use crate::deployed::DRIVER;
use crate::suites::cluster::Case;
use crate::suites::stage::{Stage, filesystem_size, on_a_stage};

pub(super) const CASES: &[Case] = &[
    Case::One(
        "volumes_made_by_hand_are_published_grown_and_removed",
        volumes_made_by_hand_are_published_grown_and_removed,
    ),
    Case::One(
        "groups_parts_and_read_only_mounts_of_a_volume_work",
        groups_parts_and_read_only_mounts_of_a_volume_work,
    ),
    Case::One("what_is_not_for_us_is_left_alone_and_told", what_is_not_for_us_is_left_alone_and_told),
    Case::One(
        "a_claim_deleted_while_its_volume_is_made_leaves_nothing",
        a_claim_deleted_while_its_volume_is_made_leaves_nothing,
    ),
    Case::One(
        "a_snapshot_that_shall_be_retained_is_kept_and_named_again",
        a_snapshot_that_shall_be_retained_is_kept_and_named_again,
    ),
];

/// Makes an object without a namespace.
fn make(cluster: &Cluster, version: &str, kind: &str, name: &str, more: &Value) -> Result<()> {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    cluster.apply(&object.to_string())
}

/// Makes a LogicalVolume of 1 GiB, without a word of what it is for. Returns the id of its LV.
fn make_volume(cluster: &Cluster, name: &str) -> Result<String> {
    let node = &cluster.nodes().first().context("a node")?.name;
    let more = json!({
        "metadata": {"name": name},
        "spec": {"name": name, "nodeName": node, "size": "1Gi", "deviceClass": "dc1"},
    });
    make(cluster, "topolvm.io/v1", "LogicalVolume", name, &more)?;
    let mut id = String::new();
    cluster.wait_for(&format!("{name} to be made"), || {
        let status = &cluster.get(["logicalvolume", name])?["status"];
        id = status["volumeID"].as_str().unwrap_or_default().to_owned();
        Ok(!id.is_empty() && status["currentSize"] == "1Gi")
    })?;
    Ok(id)
}

/// Makes a PersistentVolume for an LV of a node, and a claim for that.
pub(super) fn make_claim(stage: &Stage<'_>, name: &str, id: &str, node: &str, mode: &str) -> Result<()> {
    let affinity = json!({"matchExpressions": [{"key": "topology.topolvm.io/node", "operator": "In", "values": [node]}]});
    let more = json!({
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "thick",
            "volumeMode": mode, "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": DRIVER, "volumeHandle": id, "fsType": "xfs"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [affinity]}},
        },
    });
    make(stage.cluster, "v1", "PersistentVolume", name, &more)?;
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "thick", "volumeName": name, "volumeMode": mode,
        "resources": {"requests": {"storage": "1Gi"}},
    });
    stage.apply("v1", "PersistentVolumeClaim", name, &claim)
}

fn volumes_made_by_hand_are_published_grown_and_removed(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes().first().context("a node")?.name;
    on_a_stage(cluster, &LVMS, "by-hand", "", |stage| {
        let alone = make_volume(cluster, "by-hand-alone")?;
        let (files, device) =
            (make_volume(cluster, "by-hand-files")?, make_volume(cluster, "by-hand-device")?);
        // What nobody names goes when its object is deleted.
        cluster.kubectl(["delete", "logicalvolume", "by-hand-alone", "--wait=false"])?;
        make_claim(stage, "files", &files, node, "Filesystem")?;
        make_claim(stage, "device", &device, node, "Block")?;
        stage.start_pod("files", "files", None)?;
        stage.start_block_pod("device", "device")?;
        let written = stage.run_in("files", WRITE)?;
        for claim in ["files", "device"] {
            stage.grow(claim, "2Gi")?;
        }
        for claim in ["files", "device"] {
            await_capacity(stage, claim, "2Gi")?;
        }
        let size = filesystem_size(&stage.run_in("files", "df -P -k /data")?)?;
        ensure!(size > 2 * GIB / 10 * 9, "the filesystem has {size}");
        ensure!(stage.run_in("files", READ)? == written, "the data has changed");
        let read = stage.run_in("device", "dd if=/dev/data of=/dev/null bs=1M 2>&1")?;
        ensure!(read.contains("2048+0 records in"), "the pod reads {read}");
        for name in ["files", "device"] {
            stage.remove_pod(name)?;
            stage.kubectl(&["delete", "pvc", name, "--wait=false"])?;
        }
        for id in [alone, files, device] {
            cluster.wait_for("the logical volume to be gone", || Ok(!has_lv(cluster, node, &id)?))?;
        }
        Ok(())
    })
}

fn groups_parts_and_read_only_mounts_of_a_volume_work(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "mounts", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        let pod = |name: &str, mounts: Value, read_only: bool| {
            let spec = json!({
                "terminationGracePeriodSeconds": 1, "hostNetwork": true,
                "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000},
                "containers": [{
                    "name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never",
                    "volumeMounts": mounts,
                }],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}],
            });
            stage.apply("v1", "Pod", name, &spec)?;
            stage.await_pod(name)
        };
        let mounts = json!([
            {"name": "data", "mountPath": "/data"},
            {"name": "data", "mountPath": "/part", "subPath": "part"},
            {"name": "data", "mountPath": "/shown", "readOnly": true},
        ]);
        pod("writer", mounts, false)?;
        stage.run_in("writer", "echo all > /data/all && echo part > /part/file && sync")?;
        let listed = stage.run_in("writer", "ls -ln /data/all")?;
        ensure!(listed.split_whitespace().nth(3) == Some("2000"), "it is not the group's: {listed}");
        let seen = stage.run_in("writer", "cat /shown/part/file && ! touch /shown/all 2>&1")?;
        ensure!(seen.starts_with("part") && seen.contains("Read-only"), "the pod sees {seen}");
        stage.remove_pod("writer")?;
        pod("reader", json!([{"name": "data", "mountPath": "/data"}]), true)?;
        let seen = stage.run_in("reader", "cat /data/all && ! touch /data/all 2>&1")?;
        ensure!(seen.starts_with("all") && seen.contains("Read-only"), "the pod sees {seen}");
        Ok(())
    })
}

fn what_is_not_for_us_is_left_alone_and_told(cluster: &Cluster) -> Result<()> {
    let class = |name: &str, node: &str| {
        let topology =
            json!({"matchLabelExpressions": [{"key": "topology.topolvm.io/node", "values": [node]}]});
        let parameters = json!({"topolvm.io/device-class": "dc1"});
        let more = json!({"provisioner": DRIVER, "parameters": parameters, "allowedTopologies": [topology]});
        make(cluster, "storage.k8s.io/v1", "StorageClass", name, &more)
    };
    let node = &cluster.nodes().first().context("a node")?.name;
    let told = on_a_stage(cluster, &LVMS, "not-ours", "", |stage| {
        class("only-here", node)?;
        class("only-elsewhere", "elsewhere")?;
        let claim = |name: &str, class: &str, more: Value| {
            let mut spec = json!({
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            });
            for (key, value) in more.as_object().into_iter().flatten() {
                spec[key] = value.clone();
            }
            stage.apply("v1", "PersistentVolumeClaim", name, &spec)
        };
        claim("selective", "immediate", json!({"selector": {"matchLabels": {"colour": "red"}}}))?;
        let foreign = json!({"apiGroup": "example.com", "kind": "Image", "name": "disk"});
        claim("populated", "immediate", json!({"dataSourceRef": foreign}))?;
        claim("here", "only-here", json!({}))?;
        claim("elsewhere", "only-elsewhere", json!({}))?;
        let pod = json!({
            "terminationGracePeriodSeconds": 1, "hostNetwork": true,
            "containers": [{
                "name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "csi": {"driver": DRIVER, "fsType": "ext4"}}],
        });
        stage.apply("v1", "Pod", "inline", &pod)?;
        stage.await_event("selective", "ProvisioningFailed", "spec.selector")?;
        stage.await_event("populated", "Provisioning", "an external populator will provision")?;
        stage.await_event("elsewhere", "ProvisioningFailed", "no node that may have the volume")?;
        stage.await_event("inline", "FailedMount", "not supported by driver topolvm.io")?;
        stage.await_bound("here")?;
        for name in ["selective", "populated", "elsewhere"] {
            let phase = &stage.get("pvc", name)?["status"]["phase"];
            ensure!(phase == "Pending", "{name} is {phase}");
        }
        let made = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
        ensure!(made.lines().count() == 1, "for one claim there are\n{made}");
        Ok(())
    });
    cluster.kubectl(["delete", "storageclass", "--ignore-not-found", "only-here", "only-elsewhere"])?;
    told
}

fn a_claim_deleted_while_its_volume_is_made_leaves_nothing(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "deleted-early", "", |stage| {
        // At once, and when the making has begun: a device is zeroed first.
        for name in ["one", "two", "three"] {
            stage.claim(name, "immediate", "1Gi")?;
            stage.kubectl(&["delete", "pvc", name, "--wait=false"])?;
        }
        stage.block_claim("device", "immediate", "10Gi")?;
        let uid = stage.get("pvc", "device")?["metadata"]["uid"].as_str().context("a uid")?.to_owned();
        let volume = format!("pvc-{uid}");
        cluster.wait_for("its volume to be begun", || {
            Ok(!cluster.kubectl(["get", "logicalvolume", &volume, "--ignore-not-found"])?.is_empty())
        })?;
        stage.kubectl(&["delete", "pvc", "device", "--wait=false"])?;
        // That nothing is left is what each test ends with.
        Ok(())
    })
}

fn a_snapshot_that_shall_be_retained_is_kept_and_named_again(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes().first().context("a node")?.name;
    let class = json!({"driver": DRIVER, "deletionPolicy": "Retain"});
    make(cluster, "snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", "retained", &class)?;
    on_a_stage(cluster, &LVMS, "retained", "", |stage| {
        stage.claim("origin", "thin", "1Gi")?;
        stage.start_pod("origin", "origin", None)?;
        let then = stage.run_in("origin", WRITE)?;
        stage.snapshot("kept", "origin", "retained")?;
        stage.await_snapshot("kept")?;
        let id = id_of_snapshot(stage, "kept")?;
        let content =
            stage.get("volumesnapshot", "kept")?["status"]["boundVolumeSnapshotContentName"].clone();
        let content = format!("volumesnapshotcontent/{}", content.as_str().context("no content")?);
        stage.run_in("origin", WRITE)?;
        // Neither the end of the snapshot nor that of its content takes the data along.
        for object in ["volumesnapshot/kept", &content] {
            stage.kubectl(&["delete", object, "--wait=false"])?;
            cluster.wait_for(&format!("{object} to be gone"), || {
                Ok(stage.kubectl(&["get", object, "--ignore-not-found"])?.is_empty())
            })?;
            ensure!(has_lv(cluster, node, &id)?, "the snapshot has gone with {object}");
        }
        name_again(stage, &id)?;
        stage.restore("restored", "again", "thin", "1Gi")?;
        stage.start_pod("restored", "restored", None)?;
        ensure!(stage.run_in("restored", READ)? == then, "it is not what was at that moment");
        // This time it shall go.
        stage.kubectl(&["delete", "volumesnapshot", "again", "--wait=false"])?;
        cluster.wait_for("the snapshot to be gone", || Ok(!has_lv(cluster, node, &id)?))
    })?;
    cluster.kubectl(["delete", "volumesnapshotclass", "retained"])?;
    Ok(())
}

/// Makes a content for a snapshot that is there, and a VolumeSnapshot for it.
fn name_again(stage: &Stage<'_>, id: &str) -> Result<()> {
    let version = "snapshot.storage.k8s.io/v1";
    let spec = json!({
        "deletionPolicy": "Delete", "driver": DRIVER, "source": {"snapshotHandle": id},
        "volumeSnapshotRef": {"name": "again", "namespace": "retained"},
    });
    make(stage.cluster, version, "VolumeSnapshotContent", "again", &json!({"spec": spec}))?;
    let source = json!({"source": {"volumeSnapshotContentName": "again"}});
    stage.apply(version, "VolumeSnapshot", "again", &source)?;
    stage.await_snapshot("again")
}
