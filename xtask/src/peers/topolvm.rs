//! TopoLVM 0.41.0 with its sidecars, as pods, as its chart 17.1.0 runs it.
//!
//! What is not as in the chart: one controller, whose socket is seen on its node, as in TopoLVM's own end-to-end
//! tests; no pod webhook, which would need certificates; no liveness probes, whose time-outs an emulated node does not
//! keep; leases that outlast a moment in which this machine is busy; the newest sidecars that are to be had as Go
//! modules, and a registrar of the lab's own; an image with TopoLVM's programs alone, which uses the node's for
//! filesystems.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::{Disk, GIB};

use super::snapshots::SNAPSHOTTER;
use super::{await_deployment, define};
use crate::cache::Cache;
use crate::cluster::images::Image;
use crate::cluster::{Cluster, Node};
use crate::guest::Guest;
use crate::packages::go::{self, Module};
use crate::{driver, progress};

const TOPOLVM: Module = Module {
    folder: "topolvm",
    commands: &["github.com/topolvm/topolvm/cmd/hypertopolvm"],
    set: &["github.com/topolvm/topolvm.Version=@"],
};

const PROVISIONER: Module = Module {
    folder: "provisioner",
    commands: &["github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"],
    set: &["main.version=@"],
};

const RESIZER: Module = Module {
    folder: "resizer",
    commands: &["github.com/kubernetes-csi/external-resizer/cmd/csi-resizer"],
    set: &["main.version=@"],
};

const REGISTRAR: Module = Module { folder: "registrar", commands: &["."], set: &[] };

/// Under which name it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// That of today.
    Present,
    /// That from before 0.16.
    Legacy,
}

impl Name {
    /// The driver's name, and the API group of its LogicalVolumes.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Name::Present => PRESENT,
            Name::Legacy => "topolvm.cybozu.com",
        }
    }

    /// A manifest for it.
    fn manifest(self, text: &str) -> String {
        let switch = if self == Name::Legacy { "true" } else { "" };
        text.replace(PRESENT, self.driver()).replace("@LEGACY@", switch)
    }
}

/// The driver's name in the manifests.
const PRESENT: &str = "topolvm.io";

/// Where its pods are.
pub(crate) const NAMESPACE: &str = "topolvm-system";

/// The StorageClass on plain logical volumes, with ext4.
pub(crate) const THICK: &str = "topolvm-thick";

/// The StorageClass on thin ones, with xfs, and the VolumeSnapshotClass.
pub(crate) const THIN: &str = "topolvm-thin";

/// The volume group of the plain ones.
pub(crate) const THICK_GROUP: &str = "thick-vg";

/// The volume group of the thin ones.
pub(crate) const THIN_GROUP: &str = "thin-vg";

/// The socket of its controller service, on [`controller_node`].
pub(crate) const CONTROLLER_SOCKET: &str = "/var/lib/kubelet/plugins/topolvm.io/controller/csi-topolvm.sock";

/// The directory of its node service, on every node, seen alike inside the pod.
pub(crate) const NODE_DIRECTORY: &str = "/var/lib/kubelet/plugins/topolvm.io/node";

/// The node that has the controller, and larger disks than the others: a volume that nobody wants on a certain node
/// goes where most is free, and csi-sanity, which asks for such, looks for it beside the controller.
pub(crate) fn controller_node(cluster: &Cluster) -> Result<&Node> {
    cluster.nodes().first().context("a cluster without nodes")
}

/// What tells a kubelet of a driver that does not do so itself.
pub(crate) fn registrar(cache: &Cache) -> Result<PathBuf> {
    Ok(REGISTRAR.programs(cache)?.join("registrar"))
}

/// The images that [`install`] needs on the nodes.
pub(crate) fn images(cache: &Cache) -> Result<Vec<Image>> {
    let mut image = Image::new("lab.lvms.io/topolvm-with-sidecar:0.41.0")
        .file("/hypertopolvm", &TOPOLVM.programs(cache)?.join("hypertopolvm"))
        .file("/csi-provisioner", &PROVISIONER.programs(cache)?.join("csi-provisioner"))
        .file("/csi-resizer", &RESIZER.programs(cache)?.join("csi-resizer"))
        .file("/csi-snapshotter", &SNAPSHOTTER.programs(cache)?.join("csi-snapshotter"))
        .file("/csi-node-driver-registrar", &registrar(cache)?)
        .directory("/usr");
    for name in ["lvmd", "topolvm-node", "topolvm-controller"] {
        image = image.link(&format!("/{name}"), "hypertopolvm");
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        image = image.link(&format!("/{name}"), &format!("usr/{name}"));
    }
    Ok(vec![image.entrypoint(&["/hypertopolvm"])])
}

/// What it and its sidecars are, one line each.
pub(crate) fn versions() -> Result<String> {
    let lines = [TOPOLVM, PROVISIONER, RESIZER, SNAPSHOTTER]
        .map(|module| Ok(format!("{} {}", module.folder, module.version()?)));
    Ok(lines.into_iter().collect::<Result<Vec<_>>>()?.join("\n"))
}

/// Who serves lvmd's protocol to TopoLVM's node service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lvmd {
    /// TopoLVM itself, in a pod.
    Topolvm,
    /// `lvms standalone`, as a process of the node.
    Lvms,
}

/// As in the manifest of TopoLVM's own.
const CONFIGURATION: &str = "\
device-classes:
- {name: thick, volume-group: thick-vg, default: true, spare-gb: 0}
- {name: thin, volume-group: thin-vg, type: thin, spare-gb: 0, thin-pool: {name: pool, overprovision-ratio: 10.0}}
";

/// Its definition of LogicalVolumes.
pub(crate) fn definition(cache: &Cache) -> Result<String> {
    let source = go::source_of(cache, TOPOLVM.folder, "github.com/topolvm/topolvm")?;
    let path = source.join(format!("config/crd/bases/{PRESENT}_logicalvolumes.yaml"));
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Plugs disks into all nodes, makes volume groups of them, and runs TopoLVM on these. Snapshots are there before.
pub(crate) fn install(cache: &Cache, cluster: &Cluster, name: Name, lvmd: Lvmd) -> Result<()> {
    let step = progress::step(format!("installing TopoLVM as {}", name.driver()));
    let first = controller_node(cluster)?;
    for node in cluster.nodes() {
        make_volume_groups(cluster, &node.guest, if node.name == first.name { 16 * GIB } else { 8 * GIB })
            .with_context(|| format!("volume groups on {}", node.name))?;
    }
    let source = go::source_of(cache, TOPOLVM.folder, "github.com/topolvm/topolvm")?;
    define(cluster, &source.join("config/crd/bases"), name.driver(), &["logicalvolumes"])?;
    cluster.apply(&name.manifest(include_str!("topolvm/access.yaml")))?;
    cluster.apply(&name.manifest(include_str!("topolvm/driver.yaml")))?;
    // One after the other: the node service ends if lvmd does not listen, and the provisioner asks for the capacity,
    // which the node service tells, once a minute.
    step.note("lvmd");
    match lvmd {
        Lvmd::Topolvm => cluster.apply(&name.manifest(include_str!("topolvm/lvmd.yaml")))?,
        Lvmd::Lvms => cluster.nodes().iter().try_for_each(|node| {
            node.guest.put("/run/lvmd.yaml", 0o644, CONFIGURATION)?;
            driver::start(&node.guest, "/opt/lab/bin/lvms", "--lvmd-protocol")
        })?,
    }
    for node in cluster.nodes() {
        cluster.wait_for(&format!("lvmd to listen on {}", node.name), || {
            node.guest.command(["test", "-S", "/run/topolvm/lvmd.sock"]).run()?;
            Ok(true)
        })?;
    }
    step.note("node service");
    cluster.apply(&name.manifest(include_str!("topolvm/node.yaml")))?;
    for node in cluster.nodes() {
        cluster.wait_for(&format!("TopoLVM on {}", node.name), || {
            tells_its_capacity(cluster, &node.name, name)
        })?;
    }
    step.note("controller");
    let controller = name.manifest(include_str!("topolvm/controller.yaml"));
    cluster.apply(&controller.replace("@NODE@", &first.name))?;
    await_deployment(cluster, NAMESPACE, "topolvm-controller")?;
    cluster.wait_for("the capacity of all nodes to be published", || is_published(cluster))?;
    step.done();
    Ok(())
}

fn make_volume_groups(cluster: &Cluster, guest: &Guest, size: u64) -> Result<()> {
    let plug = |serial: &str| cluster.plug(guest, Disk::new(size).serial(serial));
    let (thick, thin) = (plug("topolvm-thick")?, plug("topolvm-thin")?);
    let script = format!(
        "udevadm settle
         vgcreate {THICK_GROUP} {thick}
         vgcreate {THIN_GROUP} {thin}
         lvcreate --type thin-pool --extents 80%FREE --name pool {THIN_GROUP}"
    );
    guest.script(&script).run()?;
    Ok(())
}

/// Whether the kubelet has the driver and the node service has said how much is free.
fn tells_its_capacity(cluster: &Cluster, node: &str, name: Name) -> Result<bool> {
    let driver = name.driver();
    let drivers = cluster.get(["csinode", node])?;
    let drivers = drivers["spec"]["drivers"].as_array().map_or(&[][..], Vec::as_slice);
    let told = cluster.get(["node", node])?;
    let told = |class: &str| !told["metadata"]["annotations"][format!("capacity.{driver}/{class}")].is_null();
    Ok(drivers.iter().any(|known| known["name"] == driver) && told("thick") && told("thin"))
}

/// Whether the scheduler can know how much of each class is free on each node.
fn is_published(cluster: &Cluster) -> Result<bool> {
    let capacities = cluster.get(["--namespace", NAMESPACE, "csistoragecapacities"])?;
    let capacities = capacities["items"].as_array().context("no list of capacities")?;
    let published = |class: &str| {
        let some = |capacity: &&serde_json::Value| {
            capacity["storageClassName"] == class
                && !capacity["capacity"].is_null()
                && capacity["capacity"] != "0"
        };
        capacities.iter().filter(some).count()
    };
    Ok([THICK, THIN].iter().all(|class| published(class) == cluster.nodes().len()))
}

/// What a node's two volume groups hold, in bytes, for a comparison of before and after: what is free in each, how
/// large each logical volume is, and how much data is in the thin pool.
pub(crate) fn space(guest: &Guest) -> Result<BTreeMap<String, u64>> {
    // The pool's `data_percent` is rounded; device-mapper counts its chunks.
    let text = guest
        .script(
            r#"report='--noheadings --nosuffix --units b --separator /'
            vgs $report -o vg_name,vg_free thick-vg thin-vg | sed 's|/| free |'
            lvs $report -o vg_name,lv_name,lv_size thick-vg thin-vg | sed 's|/\([^/]*\)$| size \1|'
            chunk=$(lvs $report -o chunk_size thin-vg/pool)
            dmsetup status --target thin-pool | awk -v chunk="$chunk" \
                '$1 ~ /^thin--vg-pool/ { split($7, used, "/"); printf "thin-vg/pool used %.0f\n", used[1] * chunk }'"#,
        )
        .run()?
        .text();
    let space = parse_space(&text)?;
    ensure!(space.contains_key("thin-vg/pool used"), "device-mapper has no thin pool:\n{text}");
    Ok(space)
}

/// Lines like `thick-vg free 8585740288`.
fn parse_space(text: &str) -> Result<BTreeMap<String, u64>> {
    let parse = |line: &str| {
        let (what, bytes) =
            line.trim().rsplit_once(' ').with_context(|| format!("{line:?} has no number"))?;
        Ok((what.to_owned(), bytes.parse().with_context(|| line.to_owned())?))
    };
    text.lines().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_read_line_by_line() {
        let space =
            parse_space("thick-vg free 8585740288\n  thin-vg/pool size 6866075648\nthin-vg/pool used 65536")
                .unwrap();
        assert_eq!(space["thick-vg free"], 8_585_740_288);
        assert_eq!(space["thin-vg/pool size"], 6_866_075_648);
        assert_eq!(space["thin-vg/pool used"], 65536);
        assert!(parse_space("thick-vg free ?").is_err());
    }
}
