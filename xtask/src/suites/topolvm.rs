//! TopoLVM, the peer: what it can do, shown in the same lab in which lvms has to do the same.
//!
//! Each test has its own namespace and ends when all that it took of its volume group is free again, to the byte.

mod sanity;
mod take_over;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::GIB;

use super::cluster::{self, Case, InOneCluster};
use super::stage::{Product, READ, WRITE, filesystem_size, keep, on_a_stage, returning_all_space};
use super::{Choice, Results, Suite};
use crate::cache::Cache;
use crate::cluster::programs::Programs;
use crate::cluster::{Cluster, Options};
use crate::lab::Lab;
use crate::peers::topolvm::{Lvmd, NAMESPACE, Name, THICK, THICK_GROUP, THIN, THIN_GROUP};
use crate::{deployed, driver, peers};

const CASES: &[Case] = &[
    Case::One(
        "one_node_is_ready_and_its_pod_reaches_a_service",
        cluster::a_pod_on_each_node_reaches_a_service,
    ),
    Case::One(
        "a_thick_volume_keeps_its_data_when_its_pod_is_made_again",
        a_thick_volume_keeps_its_data_when_its_pod_is_made_again,
    ),
    Case::One("a_mounted_thick_volume_grows", a_mounted_thick_volume_grows),
    Case::One("a_mounted_thin_volume_grows", a_mounted_thin_volume_grows),
    Case::One(
        "a_snapshot_is_restored_as_it_was_though_its_origin_changed",
        a_snapshot_is_restored_as_it_was_though_its_origin_changed,
    ),
];

/// lvms comes in the place of TopoLVM, and goes again.
const TAKE_OVER: &[Case] = &[Case::One(
    "lvms_takes_over_and_gives_back_under_running_pods",
    lvms_takes_over_and_gives_back_under_running_pods,
)];

/// The same where TopoLVM has its former name.
const LEGACY: &[Case] = &[Case::One(
    "lvms_takes_over_and_gives_back_under_running_pods_by_the_former_name",
    lvms_takes_over_and_gives_back_under_running_pods_by_the_former_name,
)];

/// lvms serves lvmd's protocol and no lvmd runs.
const ON_LVMS: &[Case] =
    &[Case::One("topolvm_works_on_lvms_in_the_place_of_lvmd", topolvm_works_on_lvms_in_the_place_of_lvmd)];

/// With `--all`: they take long, and tell of the peer alone.
const RARELY: &[Case] = &[
    Case::One("csi_sanity_passes_on_thick_volumes", csi_sanity_passes_on_thick_volumes),
    Case::One("csi_sanity_passes_on_thin_volumes", csi_sanity_passes_on_thin_volumes),
];

/// Their names.
pub(crate) fn list() -> Vec<String> {
    [CASES, TAKE_OVER, LEGACY, ON_LVMS, RARELY].into_iter().flat_map(cluster::names).collect()
}

/// Installs TopoLVM in a cluster with one node if there is a test to run, and runs them.
pub(crate) fn run(
    lab: &Arc<Lab>,
    cache: &Cache,
    programs: &Programs,
    choice: &Choice,
    results: &mut Results,
) -> Result<()> {
    let parts = [
        ("take-over", TAKE_OVER, Name::Present, Lvmd::Topolvm, !choice.brief),
        ("legacy", LEGACY, Name::Legacy, Lvmd::Topolvm, !choice.brief),
        ("lvmd", ON_LVMS, Name::Present, Lvmd::Lvms, !choice.brief),
        ("usual", CASES, Name::Present, Lvmd::Topolvm, true),
        ("rare", RARELY, Name::Present, Lvmd::Topolvm, choice.all),
    ];
    for (part, cases, name, lvmd, wanted) in parts {
        if !wanted {
            continue;
        }
        let images = peers::IMAGES.iter().chain(&[deployed::IMAGES]).map(|&image| image.to_owned()).collect();
        // Who writes what while both are there.
        let audit = part == "take-over" || part == "legacy";
        let options = Options { images, audit, ..Options::nodes(1) };
        let suite = InOneCluster { suite: Suite::Topolvm, part, options, cases };
        suite.run(lab, programs, choice, results, |cluster| {
            peers::snapshots::install(cache, cluster)?;
            peers::topolvm::install(cache, cluster, name, lvmd)
        })?;
    }
    Ok(())
}

const TOPOLVM: Product = Product { space, collect_logs };

/// The space of all nodes.
fn space(cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for node in cluster.nodes() {
        let space = peers::topolvm::space(&node.guest)?;
        all.extend(space.into_iter().map(|(what, bytes)| (format!("{} {what}", node.name), bytes)));
    }
    Ok(all)
}

fn collect_logs(cluster: &Cluster, test: &str) {
    let selector = "--selector=app.kubernetes.io/name=topolvm";
    let logs = ["--namespace", NAMESPACE, "logs", selector, "--all-containers", "--prefix", "--tail=-1"];
    keep(&format!("{test}-topolvm.log"), cluster.kubectl(logs));
}

fn a_thick_volume_keeps_its_data_when_its_pod_is_made_again(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &TOPOLVM, "topolvm-keeps-data", THICK_GROUP, |stage| {
        stage.claim("data", THICK, "1Gi")?;
        stage.start_pod("writer", "data", None)?;
        let claim = stage.get("pvc", "data")?;
        ensure!(claim["status"]["phase"] == "Bound", "the claim is {}", claim["status"]["phase"]);
        ensure!(
            claim["status"]["capacity"]["storage"] == "1Gi",
            "the claim has {}",
            claim["status"]["capacity"]
        );
        let taken = stage.taken(&format!("{} {THICK_GROUP} free", stage.node_of("writer")?))?;
        ensure!(taken == GIB, "a volume of 1 GiB takes {taken} bytes");
        let written = stage.run_in("writer", WRITE)?;
        stage.remove_pod("writer")?;
        stage.start_pod("reader", "data", None)?;
        let read = stage.run_in("reader", READ)?;
        ensure!(read == written, "written was {written}, read is {read}");
        Ok(())
    })
}

fn a_mounted_thick_volume_grows(cluster: &Cluster) -> Result<()> {
    grows_while_mounted(cluster, "topolvm-thick-grows", THICK, THICK_GROUP)
}

fn a_mounted_thin_volume_grows(cluster: &Cluster) -> Result<()> {
    grows_while_mounted(cluster, "topolvm-thin-grows", THIN, THIN_GROUP)
}

fn grows_while_mounted(cluster: &Cluster, namespace: &str, class: &str, group: &str) -> Result<()> {
    on_a_stage(cluster, &TOPOLVM, namespace, group, |stage| {
        stage.claim("data", class, "1Gi")?;
        stage.start_pod("user", "data", None)?;
        let written = stage.run_in("user", WRITE)?;
        let size = || filesystem_size(&stage.run_in("user", "df -P -k /data")?);
        let before = size()?;
        ensure!((GIB / 2..=GIB).contains(&before), "a filesystem of {before} bytes in a volume of 1 GiB");
        stage.grow("data", "2Gi")?;
        cluster.wait_for("the claim to have 2 GiB", || {
            Ok(stage.get("pvc", "data")?["status"]["capacity"]["storage"] == "2Gi")
        })?;
        let after = size()?;
        ensure!(
            (before + GIB / 2..=2 * GIB).contains(&after),
            "a filesystem of {after} bytes in a volume of 2 GiB"
        );
        ensure!(stage.run_in("user", READ)? == written, "the file has changed");
        Ok(())
    })
}

fn a_snapshot_is_restored_as_it_was_though_its_origin_changed(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &TOPOLVM, "topolvm-snapshot", THIN_GROUP, |stage| {
        stage.claim("origin", THIN, "1Gi")?;
        stage.start_pod("origin", "origin", None)?;
        let then = stage.run_in("origin", WRITE)?;
        stage.snapshot("moment", "origin", THIN)?;
        stage.await_snapshot("moment")?;
        let now = stage.run_in("origin", WRITE)?;
        ensure!(now != then, "the origin was not overwritten");
        stage.restore("restored", "moment", THIN, "1Gi")?;
        // A snapshot lies where its origin lies, and TopoLVM refuses to restore it elsewhere.
        stage.start_pod("restored", "restored", Some(&stage.node_of("origin")?))?;
        let restored = stage.run_in("restored", READ)?;
        ensure!(restored == then, "at the snapshot's time there was {then}, restored is {restored}");
        ensure!(stage.run_in("origin", READ)? == now, "the restore has changed the origin");
        Ok(())
    })
}

/// TopoLVM's controller and node service as they are, which speak to lvms and think that it is lvmd.
fn topolvm_works_on_lvms_in_the_place_of_lvmd(cluster: &Cluster) -> Result<()> {
    let steps = [
        a_thick_volume_keeps_its_data_when_its_pod_is_made_again,
        a_mounted_thick_volume_grows,
        a_mounted_thin_volume_grows,
        a_snapshot_is_restored_as_it_was_though_its_origin_changed,
    ];
    let worked = steps.into_iter().try_for_each(|step| step(cluster));
    for node in cluster.nodes() {
        driver::keep_log(&node.guest, &format!("{}-lvms.log", node.name));
        node.guest.script("! pgrep -x lvmd").run().context("an lvmd runs beside lvms")?;
        // Each of what TopoLVM asks of lvmd was asked of lvms.
        for call in ["CreateLV", "CreateLVSnapshot", "ResizeLV", "RemoveLV"] {
            let answered = format!("grep -q 'method=\"{call}\"' /run/lvms.log");
            node.guest.script(&answered).run().with_context(|| format!("{call} was not asked"))?;
        }
    }
    worked
}

/// TopoLVM says that it can make snapshots and clones, but of thin volumes only; its own suite skips these too.
const NOT_OF_THICK_VOLUMES: [&str; 4] =
    ["CreateVolume.*source snapshot", "CreateVolume.*source volume", "CreateSnapshot", "DeleteSnapshot"];

fn csi_sanity_passes_on_thick_volumes(cluster: &Cluster) -> Result<()> {
    returning_all_space(cluster, &TOPOLVM, "csi-sanity-thick", || {
        sanity::run(cluster, "thick", None, &NOT_OF_THICK_VOLUMES, 40)
    })
}

fn csi_sanity_passes_on_thin_volumes(cluster: &Cluster) -> Result<()> {
    let parameters = "csi.storage.k8s.io/fstype: xfs\ntopolvm.io/device-class: thin\n";
    returning_all_space(cluster, &TOPOLVM, "csi-sanity-thin", || {
        sanity::run(cluster, "thin", Some(parameters), &[], 52)
    })
}

fn lvms_takes_over_and_gives_back_under_running_pods(cluster: &Cluster) -> Result<()> {
    take_over::run(cluster, Name::Present)
}

fn lvms_takes_over_and_gives_back_under_running_pods_by_the_former_name(cluster: &Cluster) -> Result<()> {
    take_over::run(cluster, Name::Legacy)
}
