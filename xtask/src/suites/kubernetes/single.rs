//! `lvms single-node`: one process for a whole cluster.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::GIB;
use serde_json::Value;

use super::LVMS;
use super::protection::{changes_nothing_of_a_pod_but_one_annotation, made_for};
use crate::cluster::Cluster;
use crate::deployed::{self, CONFIGURATION, CONFIGURATION_FILE, CONTROLLER_SOCKET, NODE_SOCKET};
use crate::suites::cluster::Case;
use crate::suites::sanity::{Target, Volumes, sanity};
use crate::suites::stage::{on_a_stage, returning_all_space};
use crate::workspace;

pub(super) const CASES: &[Case] = &[
    Case::One("one_process_serves_a_whole_cluster", one_process_serves_a_whole_cluster),
    Case::One(
        "one_process_watches_each_kind_once_and_keeps_no_lease",
        one_process_watches_each_kind_once_and_keeps_no_lease,
    ),
    Case::One("lvmd_s_protocol_is_served_as_the_page_says", lvmd_s_protocol_is_served_as_the_page_says),
    Case::One(
        "a_wrong_configuration_at_the_start_is_lived_with",
        a_wrong_configuration_at_the_start_is_lived_with,
    ),
    Case::One(
        "a_volume_that_cannot_be_removed_is_told_of_and_lived_with",
        a_volume_that_cannot_be_removed_is_told_of_and_lived_with,
    ),
    Case::One(
        "t39_csi_sanity_passes_on_thick_volumes_of_a_cluster",
        t39_csi_sanity_passes_on_thick_volumes_of_a_cluster,
    ),
    Case::One(
        "t39_csi_sanity_passes_on_thin_volumes_of_a_cluster",
        t39_csi_sanity_passes_on_thin_volumes_of_a_cluster,
    ),
];

fn one_process_serves_a_whole_cluster(cluster: &Cluster) -> Result<()> {
    changes_nothing_of_a_pod_but_one_annotation(cluster, "lvms-single-node")?;
    on_a_stage(cluster, &LVMS, "single", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let written = stage.run_in("user", "date > /data/now; sync; sha256sum /data/now")?;
        let node = cluster.nodes().first().context("a node")?;
        let pod = deployed::pod_on(cluster, node)?;
        let namespace = ["--namespace", deployed::NAMESPACE];
        // Only root is answered, whoever may open the socket.
        let ask = format!("/opt/lab/bin/lab-csi unpublish {NODE_SOCKET} unknown /run/nowhere");
        node.guest.script(&ask).run()?;
        let nobody = "setpriv --reuid=65534 --inh-caps=+dac_override --ambient-caps=+dac_override";
        ensure!(node.guest.script(&format!("{nobody} {ask}")).run().is_err(), "anybody is answered");
        cluster.wait_for("the log to say who has asked", || {
            let log = cluster.kubectl(namespace.iter().chain(&["logs", &pod]))?;
            Ok(log.contains("somebody who is not root has connected"))
        })?;
        // The process is killed and comes back; the pod does not notice, and what is asked for then is done.
        cluster.kubectl(namespace.iter().chain(&["delete", "pod", &pod, "--force", "--grace-period=0"]))?;
        stage.grow("data", "2Gi")?;
        cluster.wait_for("the claim to have grown", || {
            Ok(stage.get("pvc", "data")?["status"]["capacity"]["storage"] == "2Gi")
        })?;
        ensure!(stage.run_in("user", "sha256sum /data/now")? == written, "the file has changed");
        Ok(())
    })
}

/// What is being watched by our account, kind by kind, with the addresses.
fn watched() -> Result<BTreeMap<String, Vec<String>>> {
    let log = fs::read_to_string("audit.log")?;
    let account = format!("system:serviceaccount:{}:lvms-single-node", deployed::NAMESPACE);
    let mut open: BTreeMap<String, Value> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("\"watch\"") && line.contains(&account)) {
        let Ok(request) = serde_json::from_str::<Value>(line) else { continue };
        let id = request["auditID"].as_str().unwrap_or_default().to_owned();
        let begun = request["stage"] == "ResponseStarted" && request["responseStatus"]["code"] == 200;
        if request["verb"] == "watch" && request["user"]["username"] == account.as_str() && begun {
            open.insert(id, request);
        } else if request["stage"] == "ResponseComplete" || request["stage"] == "Panic" {
            open.remove(&id);
        }
    }
    let mut watched: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for request in open.values() {
        let part = |part: &Value| part.as_str().unwrap_or_default().to_owned();
        let kind = part(&request["objectRef"]["resource"]);
        watched.entry(kind).or_default().push(part(&request["requestURI"]));
    }
    Ok(watched)
}

fn one_process_watches_each_kind_once_and_keeps_no_lease(cluster: &Cluster) -> Result<()> {
    // One that the API server has ended is told of a moment before or after the next has begun.
    cluster.wait_for("each kind to be watched once", || {
        let watched = watched()?;
        for kind in ["logicalvolumes", "lvmnodes", "nodes", "persistentvolumeclaims", "persistentvolumes"] {
            ensure!(watched.contains_key(kind), "{kind} are not among {:?}", watched.keys());
        }
        let twice: Vec<_> = watched.values().filter(|addresses| addresses.len() > 1).collect();
        ensure!(twice.is_empty(), "watched more than once is {twice:?}");
        Ok(true)
    })?;
    let leases = cluster.kubectl(["--namespace", deployed::NAMESPACE, "get", "leases", "--output=name"])?;
    ensure!(leases.is_empty(), "one process needs no lease, and there is {leases}");
    Ok(())
}

/// What `docs/kubernetes.md` has to be added to a pod, as a patch of ours.
fn recipe() -> Result<String> {
    let page = fs::read_to_string(workspace::directory().join("docs/kubernetes.md"))?;
    let section = page.split_once("## lvmd's protocol").map(|(_, section)| section);
    let block = section.and_then(|section| section.split("```").nth(1)?.strip_prefix("yaml\n"));
    let block = block.context("the page has no recipe for lvmd's protocol")?;
    let args = format!("args: [single-node, --csi-socket={CONTROLLER_SOCKET}, ");
    let ours = block.replace("args: [vgmanager, ", &args);
    ensure!(ours != block, "the recipe has changed: {block}");
    Ok(format!("spec:\n  template:\n    spec:\n      containers:\n      - name: lvms\n{ours}"))
}

fn lvmd_s_protocol_is_served_as_the_page_says(cluster: &Cluster) -> Result<()> {
    let guest = &cluster.nodes().first().context("a node")?.guest;
    let deployment = |act: &[&str]| -> Result<()> {
        let namespace = ["--namespace", deployed::NAMESPACE];
        cluster.kubectl(namespace.iter().chain(act).chain(&["deployment/lvms-single-node"]))?;
        let status = ["rollout", "status", "deployment/lvms-single-node", "--timeout=5m"];
        cluster.kubectl(namespace.iter().chain(&status)).map(drop)
    };
    on_a_stage(cluster, &LVMS, "lvmd", "", |stage| {
        stage.claim("data", "immediate", "1Gi")?;
        stage.await_bound("data")?;
        let (_, id, _) = made_for(stage, "data")?;
        let served = deployment(&["patch", "--patch", &recipe()?]).and_then(|()| {
            let ask = "/opt/lab/bin/lab-csi lvmd /run/topolvm/lvmd.sock dc1";
            cluster.wait_for("the volume to be told by lvmd's protocol", || {
                let names = guest.script(ask).run()?.text();
                ensure!(names.lines().any(|name| name == id), "of {id} it is told {names}");
                Ok(true)
            })?;
            let nobody = guest.script(&format!("setpriv --reuid=65534 --clear-groups {ask}"));
            ensure!(nobody.run().is_err(), "anybody is answered");
            Ok(())
        });
        deployment(&["rollout", "undo"])?;
        served
    })
}

/// Kills the pod of lvms, and waits for the next.
fn restart(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().first().context("a node")?;
    let pod = deployed::pod_on(cluster, node)?;
    let namespace = ["--namespace", deployed::NAMESPACE];
    cluster.kubectl(namespace.iter().chain(&["delete", "pod", &pod, "--force", "--grace-period=0"]))?;
    cluster.wait_for("a new pod of lvms", || Ok(deployed::pod_on(cluster, node)? != pod))?;
    super::await_ready(cluster, &deployed::pod_on(cluster, node)?)
}

fn a_wrong_configuration_at_the_start_is_lived_with(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes().first().context("a node")?;
    on_a_stage(cluster, &LVMS, "wrong-configuration", "", |stage| {
        stage.claim("data", "thick", "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let written = stage.run_in("user", "date > /data/now; sync; sha256sum /data/now")?;
        node.guest.put(CONFIGURATION_FILE, 0o644, "device-classes: nonsense")?;
        let lived = restart(cluster).and_then(|()| {
            // What was published is hidden, what is there is not lost, and people are told.
            stage.remove_pod("user")?;
            cluster.wait_for("the node to tell what is wrong", || {
                let told = cluster.get(["--namespace", deployed::NAMESPACE, "lvmnode", &node.name])?;
                let why = told["status"]["conditions"][0]["message"].as_str().unwrap_or_default();
                Ok(told["status"]["state"] == "Failed" && why.contains("lvmd.yaml"))
            })?;
            let volume = stage.get("pvc", "data")?["spec"]["volumeName"].clone();
            let volume = cluster.get(["logicalvolume", volume.as_str().context("a volume")?])?;
            ensure!(volume["status"]["code"].is_null(), "it counts as lost: {}", volume["status"]);
            Ok(())
        });
        node.guest.put(CONFIGURATION_FILE, 0o644, CONFIGURATION)?;
        lived?;
        stage.start_pod("again", "data", None)?;
        ensure!(stage.run_in("again", "sha256sum /data/now")? == written, "the file has changed");
        Ok(())
    })
}

fn a_volume_that_cannot_be_removed_is_told_of_and_lived_with(cluster: &Cluster) -> Result<()> {
    let guest = &cluster.nodes().first().context("a node")?.guest;
    on_a_stage(cluster, &LVMS, "not-removed", "", |stage| {
        stage.claim("data", "immediate", "1Gi")?;
        stage.await_bound("data")?;
        let volume = stage.get("pvc", "data")?["spec"]["volumeName"].as_str().context("a volume")?.to_owned();
        let handle = cluster.get(["pv", &volume])?["spec"]["csi"]["volumeHandle"].clone();
        let device = format!("/dev/thick1/{}", handle.as_str().context("a handle")?);
        // Somebody on the node has its device open.
        let hold = format!("setsid sleep 100000 <{device} >/dev/null 2>&1 & echo $!");
        let holder = guest.script(&hold).run()?.text();
        let told = stage.kubectl(&["delete", "pvc", "data", "--wait=false"]).and_then(|_| {
            cluster.wait_for("people to be told why the volume stays", || {
                let about = format!("involvedObject.name={volume},reason=VolumeFailedDelete");
                let events = cluster.get(["events", "--namespace=default", "--field-selector", &about])?;
                let why = events["items"][0]["message"].as_str().context("no event yet")?;
                ensure!(why.contains("in use"), "people are told {why}");
                Ok(true)
            })
        });
        guest.script(&format!("kill {}", holder.trim())).run()?;
        told
    })
}

const TARGET: Target =
    Target { program: "/opt/lab/bin/csi-sanity", socket: NODE_SOCKET, controller: Some(CONTROLLER_SOCKET) };

/// As TopoLVM's own tests run it.
fn csi_sanity(cluster: &Cluster, kind: &str, parameters: &str) -> Result<()> {
    let guest = &cluster.nodes().first().context("a node")?.guest;
    let volumes = Volumes { kind, access: "mount", parameters, size: GIB };
    returning_all_space(cluster, &LVMS, kind, || sanity(guest, &TARGET, &volumes))
}

fn t39_csi_sanity_passes_on_thick_volumes_of_a_cluster(cluster: &Cluster) -> Result<()> {
    csi_sanity(cluster, "default", "")
}

fn t39_csi_sanity_passes_on_thin_volumes_of_a_cluster(cluster: &Cluster) -> Result<()> {
    csi_sanity(cluster, "thin", "csi.storage.k8s.io/fstype: xfs\ntopolvm.io/device-class: thin\n")
}
