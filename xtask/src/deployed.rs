//! lvms in a cluster of the lab, as its manifests under `deploy/` say.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use lab_protocol::disk::{Disk, GIB};

use crate::cluster::images::{self, Image};
use crate::cluster::programs::NodeFile;
use crate::cluster::{Cluster, KUBELET, Node};
use crate::guest::Guest;
use crate::{process, progress, workspace};

/// Where its pods are.
pub(crate) const NAMESPACE: &str = "lvms-system";

/// The driver's name.
pub(crate) const DRIVER: &str = "topolvm.io";

/// The file with its image, on a node.
pub(crate) const IMAGES: &str = "lvms.tar";

const IMAGE: &str = "lab.lvms.io/lvms:1";

/// A volume group of a node, of one or more partitions of one disk.
struct Group {
    name: &'static str,
    gibibytes: &'static [u64],
}

/// As in TopoLVM's own end-to-end tests.
const GROUPS: [Group; 5] = [
    Group { name: "thick1", gibibytes: &[20] },
    Group { name: "thick2", gibibytes: &[20] },
    Group { name: "raid1-1", gibibytes: &[3, 3] },
    Group { name: "raid1-2", gibibytes: &[3, 3] },
    Group { name: "thin1", gibibytes: &[5] },
];

/// What is offered of them.
pub(crate) const CONFIGURATION: &str = "\
device-classes:
- {name: dc1, volume-group: thick1, default: true, spare-gb: 1}
- {name: dc2, volume-group: thick2, spare-gb: 0}
- {name: create-option-raid1, volume-group: raid1-1, spare-gb: 0, lvcreate-options: [--type=raid1]}
- {name: option-class-raid1, volume-group: raid1-2, spare-gb: 0}
- {name: thin, volume-group: thin1, type: thin, spare-gb: 0, thin-pool: {name: pool0, overprovision-ratio: 5.0}}
lvcreate-option-classes:
- {name: raid1, options: [--type=raid1]}
";

/// Where nodes have it.
pub(crate) const CONFIGURATION_FILE: &str = "/etc/topolvm/lvmd.yaml";

/// What nodes need: the image with the program alone, and what calls it as a kubelet does.
pub(crate) fn node_files(run: &Path) -> Result<Vec<NodeFile>> {
    node_files_of(run, &workspace::build_static("lvms")?)
}

/// The same for a certain build.
pub(crate) fn node_files_of(run: &Path, program: &Path) -> Result<Vec<NodeFile>> {
    let path = run.join(IMAGES);
    let image = Image::new(IMAGE).file("/lvms", program).entrypoint(&["/lvms"]);
    images::write(&path, &[image])?;
    fs::copy(program, run.join("lvms"))?;
    fs::write(run.join("definitions.yaml"), process::run(std::process::Command::new(program).arg("crd"))?)?;
    Ok(vec![
        (format!("images/{IMAGES}"), path),
        ("bin/lab-csi".to_owned(), workspace::build_static("lab-csi")?),
    ])
}

/// How it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A pod per node, and two for the cluster, of which one leads.
    Roles,
    /// One pod for a cluster with one node, which also serves CSI's Controller service.
    SingleNode,
}

/// Where the Controller service is, if there is one.
pub(crate) const CONTROLLER_SOCKET: &str = "/var/lib/kubelet/plugins/topolvm.io/controller.sock";

/// Where the Node service is.
pub(crate) const NODE_SOCKET: &str = "/var/lib/kubelet/plugins/topolvm.io/node/csi-topolvm.sock";

/// Makes volume groups on all nodes, and runs lvms on them.
pub(crate) fn install(cluster: &Cluster, shape: Shape) -> Result<()> {
    let step = progress::step("installing lvms");
    std::thread::scope(|scope| {
        let nodes: Vec<_> = cluster
            .nodes()
            .iter()
            .map(|node| {
                scope.spawn(move || {
                    prepare(cluster, &node.guest).with_context(|| format!("volume groups on {}", node.name))
                })
            })
            .collect();
        nodes.into_iter().try_for_each(|node| {
            node.join().map_err(|_| anyhow::anyhow!("the preparation of a node panicked"))?
        })
    })?;
    step.note("objects");
    cluster.apply(&fs::read_to_string("definitions.yaml")?)?;
    for name in ["logicalvolumes.topolvm.io", "lvmnodes.lvm.topolvm.io"] {
        cluster.kubectl(["wait", "--for=condition=Established", "--timeout=120s", "crd", name])?;
    }
    let parts: &[&str] = match shape {
        Shape::Roles => &["node", "operator"],
        Shape::SingleNode => &["single-node"],
    };
    for manifest in ["base", "operator-access"].iter().chain(parts) {
        let text = manifest_of(manifest)?;
        let socket = format!("args: [single-node, --csi-socket={CONTROLLER_SOCKET}]");
        cluster.apply(&beside(cluster, &text.replace("args: [single-node]", &socket)))?;
    }
    step.note("nodes");
    for node in cluster.nodes() {
        cluster.wait_for(&format!("lvms on {}", node.name), || is_registered(cluster, &node.name))?;
    }
    cluster.apply(CLASSES)?;
    step.note("operator");
    cluster.wait_for("all of its pods to be ready", || {
        let deployments = cluster.get(["--namespace", NAMESPACE, "deployments"])?;
        let mut all = deployments["items"].as_array().context("no list of deployments")?.iter();
        Ok(all.all(|deployment| deployment["status"]["readyReplicas"] == deployment["spec"]["replicas"]))
    })?;
    cluster.wait_for("the capacity of all nodes to be published", || {
        let published = cluster.get(["--namespace", NAMESPACE, "csistoragecapacities"])?;
        let published = published["items"].as_array().context("no list of capacities")?;
        let of = |class: &str| published.iter().filter(|one| one["storageClassName"] == class).count();
        // Nodes are told a moment later.
        let nodes = space(cluster)?;
        let told = |node: &Node| nodes.contains_key(&format!("{} told of thin", node.name));
        Ok(["thick", "dc2", "thin", "default"].iter().all(|class| of(class) == cluster.nodes().len())
            && cluster.nodes().iter().all(told))
    })?;
    step.done();
    Ok(())
}

/// A manifest for kubelets that have their directory elsewhere: it is told, and mounted alike.
fn beside(cluster: &Cluster, manifest: &str) -> String {
    if cluster.kubelet() == KUBELET {
        return manifest.to_owned();
    }
    let told = format!("args: [vgmanager, --kubelet-dir={}]", cluster.kubelet());
    manifest.replace("args: [vgmanager]", &told).replace(KUBELET, cluster.kubelet())
}

/// StorageClasses as in TopoLVM's own end-to-end tests.
const CLASSES: &str = include_str!("deployed/classes.yaml");

/// A manifest of `deploy/`, with the lab's image.
pub(crate) fn manifest_of(name: &str) -> Result<String> {
    let path = workspace::directory().join("deploy").join(format!("{name}.yaml"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    // Tests halt processes for longer than a kubelet would bear it.
    let text = text.replace("periodSeconds: 60}", "periodSeconds: 600}");
    Ok(text.replace("image: lvms:latest", &format!("image: {IMAGE}")))
}

/// The manifests as the documentation names them, in `deploy/` of the run's directory, with the lab's image.
pub(crate) fn manifests() -> Result<()> {
    fs::create_dir_all("deploy")?;
    for entry in fs::read_dir(workspace::directory().join("deploy"))? {
        let path = entry?.path();
        let name = path.file_stem().context("a manifest without a name")?.to_string_lossy().into_owned();
        fs::write(format!("deploy/{name}.yaml"), manifest_of(&name)?)?;
    }
    Ok(())
}

/// Offers something else on a node.
pub(crate) fn configure(node: &Node, configuration: impl Into<String>) -> Result<()> {
    node.guest.put("/etc/topolvm/lvmd.yaml", 0o644, configuration.into())
}

/// Kills a pod of lvms without a word: what it has held it gives up to nobody.
pub(crate) fn kill(cluster: &Cluster, pod: &str) -> Result<()> {
    let there = cluster.get(["--namespace", NAMESPACE, "pod", pod])?;
    let uid = there["metadata"]["uid"].as_str().context("a pod has a uid")?.replace('-', "[-_]");
    let node = cluster.nodes().iter().find(|node| there["spec"]["nodeName"] == node.name.as_str());
    let script = format!(
        "for process in $(pgrep -x lvms); do grep -q 'pod{uid}' /proc/$process/cgroup && kill -9 $process; done; true"
    );
    node.context("a pod is on a node")?.guest.script(&script).run()?;
    cluster.kubectl(["--namespace", NAMESPACE, "delete", "pod", pod, "--force", "--grace-period=0"]).map(drop)
}

/// Lets the node's part of lvms halt, in the middle of whatever it does.
pub(crate) fn halt(node: &Node) -> Result<()> {
    node.guest.script("pkill -STOP -f '^/lvms vgmanager'").run().map(drop)
}

/// Lets it go on, if it is still there.
pub(crate) fn go_on(node: &Node) -> Result<()> {
    node.guest.script("pkill -CONT -f '^/lvms vgmanager' || true").run().map(drop)
}

/// What a node tells of itself.
pub(crate) fn told_by(cluster: &Cluster, node: &Node) -> Result<serde_json::Value> {
    Ok(cluster.get(["--namespace", NAMESPACE, "lvmnode", &node.name])?["status"].take())
}

fn prepare(cluster: &Cluster, guest: &Guest) -> Result<()> {
    let all: u64 = GROUPS.iter().flat_map(|group| group.gibibytes).sum();
    let disk = cluster.plug(guest, Disk::new((all + 1) * GIB).serial("lvms"))?;
    let mut partitions = String::from("label: gpt\n");
    let mut groups = String::new();
    let mut number = 0;
    for group in &GROUPS {
        groups += &format!("vgcreate {}", group.name);
        for size in group.gibibytes {
            number += 1;
            // LVM's own metadata has room beside the extents.
            partitions += &format!("size={}M\n", size * 1024 + 4);
            groups += &format!(" \"${{disk}}{number}\"");
        }
        groups.push('\n');
    }
    guest.put("/run/partitions", 0o644, partitions)?;
    guest.command(["mkdir", "-p", "/etc/topolvm"]).run()?;
    guest.put(CONFIGURATION_FILE, 0o644, CONFIGURATION)?;
    let script = format!(
        "disk=$(readlink -f {disk})
         sfdisk --quiet \"$disk\" < /run/partitions
         udevadm settle
         {groups}
         lvcreate --type thin-pool --size 4G --name pool0 thin1"
    );
    guest.script(&script).run()?;
    Ok(())
}

/// Whether the kubelet of a node has the driver.
pub(crate) fn is_registered(cluster: &Cluster, node: &str) -> Result<bool> {
    let drivers = cluster.get(["csinode", node])?;
    let drivers = drivers["spec"]["drivers"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(drivers.iter().any(|driver| driver["name"] == DRIVER))
}

/// What lvms has logged, into the run's directory.
pub(crate) fn collect_logs(cluster: &Cluster, test: &str) {
    let logs =
        ["--namespace", NAMESPACE, "logs", "--selector=app.kubernetes.io/name=lvms", "--prefix", "--tail=-1"];
    let text = cluster.kubectl(logs).unwrap_or_else(|error| format!("{error:#}"));
    let _ = fs::write(format!("{test}-lvms.log"), text);
    let pods = cluster.kubectl(["--namespace", NAMESPACE, "describe", "pods"]);
    let _ = fs::write(format!("{test}-pods.log"), pods.unwrap_or_else(|error| format!("{error:#}")));
}

/// The pod of lvms on a node.
pub(crate) fn pod_on(cluster: &Cluster, node: &Node) -> Result<String> {
    let selector = "--selector=app.kubernetes.io/component=node";
    let field = format!("--field-selector=spec.nodeName={},status.phase=Running", node.name);
    let pods = cluster.get(["--namespace", NAMESPACE, "pods", selector, &field])?;
    let name = pods["items"][0]["metadata"]["name"].as_str();
    Ok(name.with_context(|| format!("lvms does not run on {}", node.name))?.to_owned())
}

/// What all nodes have, in bytes, for a comparison of before and after: what is free in each volume group, how large
/// each logical volume is, and what the cluster is told that can be had.
pub(crate) fn space(cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for node in cluster.nodes() {
        let text = node.guest.script(
            r#"report='--noheadings --nosuffix --units b --separator /'
            vgs $report -o vg_name,vg_free | sed 's|/| free |'
            lvs $report -o vg_name,lv_name,lv_size | sed 's|/\([^/]*\)$| size \1|'"#,
        );
        for line in text.run()?.text().lines() {
            let (what, bytes) = line.trim().rsplit_once(' ').with_context(|| line.to_owned())?;
            all.insert(format!("{} {what}", node.name), bytes.parse().with_context(|| line.to_owned())?);
        }
        let told = cluster.get(["node", &node.name])?;
        for (key, value) in told["metadata"]["annotations"].as_object().into_iter().flatten() {
            if let Some(class) = key.strip_prefix(&format!("capacity.{DRIVER}/")) {
                let bytes = value.as_str().unwrap_or_default().parse().with_context(|| key.clone())?;
                all.insert(format!("{} told of {class}", node.name), bytes);
            }
        }
    }
    Ok(all)
}
