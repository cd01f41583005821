//! Volumes in every state that a predecessor may leave behind, and what becomes of each.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use lab_protocol::disk::GIB;
use serde_json::{Value, json};

use super::{Live, Test, text};
use crate::peers::topolvm::THICK;
use crate::suites::books::lvs;
use crate::suites::stage::READ;

impl Test<'_> {
    /// What a predecessor may leave behind (its own states, and what people do while nobody acts).
    pub(super) fn change_what_nobody_acts_on(&self) -> Result<()> {
        let stage = self.stage;
        let kind = self.kind();
        // Its size was not told yet, as with a very old TopoLVM; and it is asked to be smaller than it is.
        let idle = self.volume_of("idle")?;
        self.patch(&idle, &json!({"status": {"currentSize": null}}), true)?;
        let block = self.volume_of("block")?;
        self.patch(&block, &json!({"spec": {"size": "512Mi"}}), false)?;
        // Its class is not there any more, and it has data.
        let stray = self.volume_of("stray")?;
        self.patch(&stray, &json!({"spec": {"deviceClass": "gone"}}), false)?;
        // A mark of ours is missing, and is not missed.
        let thick = self.volume_of("thick")?;
        self.cluster.kubectl(["label", &kind, &thick, "app.kubernetes.io/created-by-"])?;
        // Half deleted: the claim, and its LogicalVolume before its PersistentVolume.
        let going = self.volume_of("going")?;
        stage.kubectl(&["delete", "pvc", "going", "--wait=false"])?;
        self.cluster.wait_for("the volume of a deleted claim to be released", || {
            Ok(self.cluster.get(["pv", &going])?["status"]["phase"] == "Released")
        })?;
        self.cluster.kubectl(["delete", &kind, &going, "--wait=false"])?;
        // A finalizer of long ago.
        let old = json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", format!("{}/pvc", self.name.driver())]}});
        stage.kubectl(&["patch", "pvc", "idle", "--type=merge", "--patch", &old.to_string()])?;
        // Refused before; of a node that has left; of a class that there is not.
        let node = &self.cluster.nodes()[0].name;
        for (name, class, annotations) in [
            ("refused", "thick", json!({})),
            ("left", "thick", json!({format!("{}/pendingdeletion", self.name.driver()): "true"})),
            ("classless", "gone", json!({})),
        ] {
            let object = json!({
                "apiVersion": format!("{}/v1", self.name.driver()), "kind": "LogicalVolume",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"name": name, "nodeName": node, "size": "1Gi", "deviceClass": class},
            });
            self.cluster.apply(&object.to_string())?;
        }
        self.patch("refused", &json!({"status": {"code": 8, "message": "no room"}}), true)?;
        // Wanted meanwhile: a volume, and growth.
        stage.claim("meanwhile", THICK, "1Gi")?;
        stage.make_pod("meanwhile", "meanwhile", None)?;
        stage.grow("thick", "2Gi")
    }

    /// Each state has come to its end.
    pub(super) fn states_were_taken_over(&self, live: &Live) -> Result<()> {
        let (stage, kind) = (self.stage, self.kind());
        let wait = |what: &str, holds: &dyn Fn() -> Result<bool>| self.cluster.wait_for(what, holds);
        stage.await_pod("meanwhile")?;
        wait("the growth that was wanted meanwhile", &|| self.has_grown("thick", "2Gi", 2 * GIB))?;
        let volume = |claim: &str| self.cluster.get([kind.as_str(), &self.volume_of(claim)?]);
        wait("a missing size to be told", &|| Ok(volume("idle")?["status"]["currentSize"] == "1Gi"))?;
        wait("what TopoLVM has published to be replaced", &|| {
            let publishers = self.publishers()?;
            ensure!(publishers.iter().eq(["lvms"]), "it is by {publishers:?}");
            Ok(true)
        })?;
        wait("an old finalizer to be gone", &|| {
            let claim = stage.get("pvc", "idle")?;
            Ok(claim["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"]))
        })?;
        wait("what was half deleted to be gone", &|| {
            let of = |kind: &str| self.cluster.kubectl(["get", kind, "--output=name"]);
            let claims = stage.kubectl(&["get", "pvc", "--output=name"])?;
            let bound = claims.lines().count();
            Ok(of("pv")?.lines().count() == bound && !claims.contains("going"))
        })?;
        // A size that was lowered lowers nothing.
        let block = volume("block")?;
        ensure!(
            block["status"]["currentSize"] == "1Gi" && block["status"]["code"].is_null(),
            "{}",
            block["status"]
        );
        stage.start_pod("stray", "stray", None)?;
        ensure!(stage.run_in("stray", READ)? == live.stray, "the volume without a class has changed");
        stage.remove_pod("stray")?;
        self.vanishes("stray")?;
        let volumes: BTreeSet<String> = lvs(self.cluster)?;
        for (name, code) in [("refused", json!(8)), ("left", Value::Null)] {
            let object = self.cluster.get([kind.as_str(), name])?;
            ensure!(object["status"]["code"] == code, "{name} has {}", object["status"]);
            ensure!(!volumes.contains(&text(&object["metadata"]["uid"])?), "an LV was made for {name}");
        }
        wait("a class that there is not to be told", &|| {
            let events =
                ["--field-selector=involvedObject.name=classless", "--output=jsonpath={.items[*].message}"];
            let told = self.cluster.kubectl(["get", "events"].iter().chain(&events))?;
            ensure!(told.contains("gone"), "it says {told:?}");
            Ok(true)
        })?;
        // What nothing names can be deleted in any state.
        for name in ["refused", "classless"] {
            self.cluster.kubectl(["delete", kind.as_str(), name, "--wait"])?;
        }
        self.cluster.kubectl(["delete", kind.as_str(), "left", "--wait=false"])?;
        Ok(())
    }
}
