//! What people write wrong is told where they look, changes nothing, and is mended without a restart.

use anyhow::{Context, Result, bail, ensure};
use lab_protocol::disk::GIB;
use serde_json::{Value, json};

use super::LVMS;
use super::protection::{has_lv, made_for};
use super::scenarios::{READ, WRITE, await_capacity, lv_of};
use crate::cluster::{Cluster, Node};
use crate::deployed::{self, CONFIGURATION};
use crate::suites::cluster::Case;
use crate::suites::stage::{await_event, on_a_stage};

pub(super) const CASES: &[Case] = &[
    Case::One(
        "classes_that_ask_for_what_is_not_there_are_told",
        classes_that_ask_for_what_is_not_there_are_told,
    ),
    Case::One("claims_that_cannot_be_fulfilled_are_told_why", claims_that_cannot_be_fulfilled_are_told_why),
    Case::One(
        "a_logical_volume_edited_by_hand_keeps_its_lv_and_tells_what_is_not_done",
        a_logical_volume_edited_by_hand_keeps_its_lv_and_tells_what_is_not_done,
    ),
    Case::One(
        "a_wrong_configuration_is_told_and_the_last_good_one_serves_on",
        a_wrong_configuration_is_told_and_the_last_good_one_serves_on,
    ),
    Case::One(
        "a_volume_group_that_is_gone_is_told_until_it_is_back",
        a_volume_group_that_is_gone_is_told_until_it_is_back,
    ),
];

/// StorageClasses, what they ask for, and what people are told.
const CLASSES: [(&str, &str, &str); 5] = [
    ("wrong-class", "topolvm.io/device-class: nonsense", "offers device class \"nonsense\""),
    (
        "wrong-options",
        "topolvm.io/device-class: dc1, topolvm.io/lvcreate-option-class: nonsense",
        "offers device class \"dc1\" with lvcreate-option-class \"nonsense\"",
    ),
    ("wrong-key", "topolvm.io/devise-class: dc1", "parameters[\"topolvm.io/devise-class\"]"),
    ("wrong-filesystem", "csi.storage.k8s.io/fstype: ntfs", "\"ntfs\""),
    ("wrong-secret", "csi.storage.k8s.io/colour: red", "parameters[\"csi.storage.k8s.io/colour\"]"),
];

/// Of each the second sends no claim to us as long as nothing is published of it: the class itself tells.
const MODES: [&str; 2] = ["Immediate", "WaitForFirstConsumer"];

fn classes_that_ask_for_what_is_not_there_are_told(cluster: &Cluster) -> Result<()> {
    let class = |name: &str, mode: &str, parameters: &str| {
        cluster.apply(&format!(
            "{{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {{name: {name}}}, provisioner: topolvm.io,
              volumeBindingMode: {mode}, parameters: {{{parameters}}}}}"
        ))
    };
    let named = |name: &str, mode: &str| format!("{name}-{}", mode.to_lowercase());
    let node = &cluster.nodes()[0];
    let acted = on_a_stage(cluster, &LVMS, "classes", "", |stage| {
        for (name, parameters, _) in CLASSES {
            for mode in MODES {
                class(&named(name, mode), mode, parameters)?;
            }
            stage.claim(name, &named(name, MODES[0]), "1Gi")?;
        }
        let waiting = named("wrong-class", MODES[1]);
        stage.claim(&waiting, &waiting, "1Gi")?;
        stage.make_pod(&waiting, &waiting, Some(&node.name))?;
        // What is nobody's is left out, as TopoLVM does, and told.
        class("unknown-key", MODES[0], "topolvm.io/device-class: dc1, colour: red")?;
        stage.claim("unknown-key", "unknown-key", "1Gi")?;
        for (name, _, told) in CLASSES {
            stage.await_event(name, "ProvisioningFailed", told)?;
            for mode in MODES {
                await_event(cluster, "default", &named(name, mode), "UnusableClass", told)?;
            }
        }
        stage.await_event("unknown-key", "UnknownParameter", "colour")?;
        stage.await_bound("unknown-key")?;
        // What a node offers from now on can be had, by whoever waits for it.
        let offered = "device-classes:\n- {name: nonsense, volume-group: thick2, spare-gb: 0}";
        let without = CONFIGURATION.replacen("- {name: dc2, volume-group: thick2, spare-gb: 0}\n", "", 1);
        deployed::configure(node, without.replacen("device-classes:", offered, 1))?;
        stage.await_bound("wrong-class")?;
        stage.await_pod(&waiting)?;
        for name in CLASSES.iter().flat_map(|(name, ..)| MODES.map(|mode| named(name, mode))) {
            cluster.kubectl(["delete", "storageclass", &name])?;
        }
        cluster.kubectl(["delete", "storageclass", "unknown-key"])?;
        stage.remove_pod(&waiting)?;
        stage.kubectl(&["delete", "pvc", "--all", "--wait=false"])?;
        cluster.wait_for("the volumes of that class to be gone", || {
            Ok(node.guest.script("vgs --noheadings -o lv_count thick2").run()?.text().trim() == "0")
        })?;
        deployed::configure(node, CONFIGURATION)?;
        await_configuration(cluster, node, None)
    });
    deployed::configure(node, CONFIGURATION)?;
    acted
}

fn claims_that_cannot_be_fulfilled_are_told_why(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "claims", "", |stage| {
        let claim = |name: &str, mode: &str, size: &str, more: Value| {
            let mut spec = json!({
                "accessModes": [mode], "storageClassName": "immediate", "resources": {"requests": {"storage": size}},
            });
            for (key, value) in more.as_object().into_iter().flatten() {
                spec[key] = value.clone();
            }
            stage.apply("v1", "PersistentVolumeClaim", name, &spec)
        };
        claim("huge", "ReadWriteOnce", "100Ti", json!({}))?;
        claim("shared", "ReadWriteMany", "1Gi", json!({}))?;
        claim("read-only", "ReadOnlyMany", "1Gi", json!({}))?;
        claim("modified", "ReadWriteOnce", "1Gi", json!({"volumeAttributesClassName": "gold"}))?;
        stage.await_event("huge", "ProvisioningFailed", "no node has room for 109951162777600 bytes")?;
        stage.await_event("shared", "ProvisioningFailed", "spec.accessModes: ReadWriteMany")?;
        stage.await_event("read-only", "ProvisioningFailed", "spec.accessModes: ReadOnlyMany")?;
        // Kubernetes 1.33 drops the field.
        if !stage.get("pvc", "modified")?["spec"]["volumeAttributesClassName"].is_null() {
            stage.await_event("modified", "ProvisioningFailed", "spec.volumeAttributesClassName")?;
        }
        Ok(())
    })
}

fn a_logical_volume_edited_by_hand_keeps_its_lv_and_tells_what_is_not_done(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "edited", "", |stage| {
        stage.claim("data", "immediate", "1Gi")?;
        stage.await_bound("data")?;
        let (volume, id, node) = made_for(stage, "data")?;
        let edit = |spec: &str| {
            let patch = format!("{{\"spec\": {{{spec}}}}}");
            cluster.kubectl(["patch", "logicalvolume", &volume, "--type=merge", "--patch", &patch])
        };
        for (spec, why) in [
            (r#""nodeName": "elsewhere""#, "cannot be moved to another node"),
            (r#""name": "other""#, "cannot be renamed"),
        ] {
            match edit(spec) {
                Ok(_) => bail!("{spec} is taken"),
                Err(error) => ensure!(format!("{error:#}").contains(why), "{spec} is refused with {error:#}"),
            }
        }
        edit(r#""size": "500Mi""#)?;
        await_event(cluster, "default", &volume, "SizeKept", "spec.size was lowered to 500Mi")?;
        edit(r#""size": "nonsense""#).err().context("a size that is none is taken")?;
        let size = deployed::space(cluster)?[&format!("{node} thick1/{id} size")];
        ensure!(size == GIB, "the logical volume has {size}");
        // It grows from what it has.
        stage.grow("data", "2Gi")?;
        await_capacity_of_volume(cluster, &volume, "2Gi")
    })
}

fn await_capacity_of_volume(cluster: &Cluster, volume: &str, size: &str) -> Result<()> {
    cluster.wait_for(&format!("{volume} to have {size}"), || {
        let status = &cluster.get(["logicalvolume", volume])?["status"];
        ensure!(status["currentSize"] == size, "it is {status}");
        Ok(true)
    })
}

/// Waits until a node says that its configuration is right, or what is wrong with it.
fn await_configuration(cluster: &Cluster, node: &Node, wrong: Option<&str>) -> Result<()> {
    cluster.wait_for("the node to tell of its configuration", || {
        let told = deployed::told_by(cluster, node)?;
        let conditions = told["conditions"].as_array().context("no conditions")?;
        let one = conditions.iter().find(|one| one["type"] == "ConfigurationValid").context("not told")?;
        let message = one["message"].as_str().unwrap_or_default();
        match wrong {
            Some(wrong) => ensure!(
                one["status"] == "False" && message.contains(wrong) && told["state"] == "Degraded",
                "it tells {told}"
            ),
            None => ensure!(one["status"] == "True" && told["state"] == "Ready", "it tells {told}"),
        }
        Ok(true)
    })
}

fn a_wrong_configuration_is_told_and_the_last_good_one_serves_on(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[0];
    let on = Some(node.name.as_str());
    let acted = on_a_stage(cluster, &LVMS, "configuration", "", |stage| {
        stage.claim("before", "thick", "1Gi")?;
        stage.start_pod("before", "before", on)?;
        let written = stage.run_in("before", WRITE)?;
        stage.claim("older", "default", "1Gi")?;
        stage.start_pod("older", "older", on)?;
        let older = stage.run_in("older", WRITE)?;
        let pod = deployed::pod_on(cluster, node)?;
        deployed::configure(node, CONFIGURATION.replacen("volume-group: thick2", "volume-grup: thick2", 1))?;
        await_configuration(cluster, node, Some("line 3: device-classes[1].volume-group"))?;
        let url = format!("/api/v1/namespaces/{}/pods/{pod}:8080/proxy/metrics", deployed::NAMESPACE);
        let figures = cluster.kubectl(["get", "--raw", &url])?;
        ensure!(figures.contains("\nlvms_configuration_wrong 1\n"), "{figures}");
        // All goes on as before: also what the file says wrong.
        stage.claim("meanwhile", "dc2", "1Gi")?;
        stage.make_pod("meanwhile", "meanwhile", on)?;
        stage.grow("before", "2Gi")?;
        stage.await_pod("meanwhile")?;
        await_capacity(stage, "before", "2Gi")?;
        ensure!(stage.run_in("before", READ)? == written, "the data has changed");
        // Mended, and another class is the default: no restart is needed.
        let moved = CONFIGURATION.replacen(", default: true", "", 1);
        let moved = moved.replacen("name: dc2,", "name: dc2, default: true,", 1);
        deployed::configure(node, moved)?;
        await_configuration(cluster, node, None)?;
        stage.claim("default", "default", "1Gi")?;
        stage.start_pod("default", "default", on)?;
        let (group, ..) = lv_of(stage, "default")?;
        ensure!(group == "thick2", "the default class is dc2, and the volume is in {group}");
        // What was made of the former default class stays where it is, grows, and is published again.
        stage.grow("older", "2Gi")?;
        await_capacity(stage, "older", "2Gi")?;
        stage.remove_pod("older")?;
        stage.start_pod("older-again", "older", on)?;
        ensure!(stage.run_in("older-again", READ)? == older, "the data of the former class has changed");
        let (group, ..) = lv_of(stage, "older")?;
        ensure!(group == "thick1", "the volume of the former default class is in {group}");
        ensure!(deployed::pod_on(cluster, node)? == pod, "lvms was started anew");
        deployed::configure(node, CONFIGURATION)?;
        await_configuration(cluster, node, None)
    });
    deployed::configure(node, CONFIGURATION)?;
    acted
}

fn a_volume_group_that_is_gone_is_told_until_it_is_back(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[1];
    let on = Some(node.name.as_str());
    let state = |wanted: &str, message: &str, available: &str| {
        cluster.wait_for(&format!("dc2 to be {wanted}"), || {
            let told = deployed::told_by(cluster, node)?;
            let named = |list: &str, name: &str| {
                let all = told[list].as_array().map_or(&[][..], Vec::as_slice);
                all.iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
            };
            let (group, class) = (named("volumeGroups", "thick2"), named("deviceClasses", "dc2"));
            let said = group["message"].as_str().unwrap_or_default();
            ensure!(
                told["state"] == wanted && group["state"] == wanted && said == message,
                "the node tells {group} and is {}",
                told["state"]
            );
            ensure!(class["available"] == available, "of the class is told {class}");
            Ok(true)
        })
    };
    on_a_stage(cluster, &LVMS, "gone", "", |stage| {
        let pod = deployed::pod_on(cluster, node)?;
        for claim in ["used", "doomed"] {
            stage.claim(claim, "dc2", "1Gi")?;
            stage.start_pod(claim, claim, on)?;
        }
        let written = stage.run_in("used", WRITE)?;
        stage.remove_pod("doomed")?;
        let (used, ..) = made_for(stage, "used")?;
        let (doomed, id, _) = made_for(stage, "doomed")?;
        node.guest.script("vgrename thick2 away").run()?;
        let gone = (|| {
            state("Failed", "volume group thick2 is not there", "0")?;
            // Volumes in it are told of and not taken for lost, and those that are mounted go on.
            await_event(cluster, "default", &used, "VolumeGroupMissing", "volume group")?;
            let status = &cluster.get(["logicalvolume", &used])?["status"];
            ensure!(status["code"].is_null() || status["code"] == 0, "it is {status}");
            stage.run_in("used", "echo more > /data/more; sync")?;
            ensure!(stage.run_in("used", READ)? == written, "the data has changed");
            // What is deleted meanwhile is told of, and waits.
            stage.kubectl(&["delete", "pvc", "doomed", "--wait=false"])?;
            cluster.wait_for("the logical volume to be given up", || {
                let volume = cluster.get(["logicalvolume", &doomed])?;
                Ok(!volume["metadata"]["deletionTimestamp"].is_null())
            })?;
            await_event(cluster, "default", &doomed, "VolumeGroupMissing", "volume group")?;
            ensure!(has_lv(cluster, &node.name, &id)?, "it was removed from a group that is not there");
            stage.claim("waits", "dc2", "1Gi")?;
            stage.make_pod("waits", "waits", on)?;
            // Others go on.
            stage.claim("other", "thick", "1Gi")?;
            stage.start_pod("other", "other", on)?;
            stage.await_event("waits", "FailedScheduling", "did not have enough free storage")
        })();
        node.guest.script("vgrename away thick2").run()?;
        gone?;
        stage.await_pod("waits")?;
        cluster
            .wait_for("what was deleted meanwhile to be gone", || Ok(!has_lv(cluster, &node.name, &id)?))?;
        state("Ready", "", "18Gi")?;
        stage.remove_pod("used")?;
        stage.start_pod("used-again", "used", on)?;
        ensure!(
            stage.run_in("used-again", "cat /data/more")? == "more",
            "what was written meanwhile is lost"
        );
        ensure!(stage.run_in("used-again", READ)? == written, "the data has changed");
        ensure!(deployed::pod_on(cluster, node)? == pod, "lvms was started anew");
        Ok(())
    })
}
