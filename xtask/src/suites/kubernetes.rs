//! lvms in a Kubernetes with three nodes, and as one process in one with a single node.
//!
//! Tests whose names begin with a number are TopoLVM's own end-to-end tests.

mod bad_input;
mod by_hand;
mod crashes;
mod definitions;
mod departure;
mod long_works;
mod no_room;
mod outage;
mod own_disk;
mod protection;
mod refused;
mod restored;
mod scenarios;
mod single;

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::cluster::{Case, InOneCluster, names};
use super::stage::{Product, on_a_stage};
use super::{Choice, Results, Suite};
use crate::cache::Cache;
use crate::cluster::programs::Programs;
use crate::cluster::{Cluster, Options, PATIENCE};
use crate::deployed::{self, NAMESPACE, Shape};
use crate::lab::Lab;
use crate::peers;

const CASES: &[Case] = &[
    Case::One("a_node_tells_what_it_has", a_node_tells_what_it_has),
    Case::One(
        "the_kubelet_knows_the_driver_again_after_either_was_restarted",
        the_kubelet_knows_the_driver_again_after_either_was_restarted,
    ),
    Case::One(
        "the_driver_takes_the_place_of_a_predecessor_at_the_kubelet",
        the_driver_takes_the_place_of_a_predecessor_at_the_kubelet,
    ),
    Case::One(
        "a_new_leader_goes_on_where_the_old_one_was_killed",
        a_new_leader_goes_on_where_the_old_one_was_killed,
    ),
];

/// Their names.
pub(crate) fn list() -> Vec<String> {
    names(&roles(false, false)).chain(names(&single(false))).collect()
}

/// What is done in a cluster with three nodes. What takes minutes by its nature takes more of them if it may be `long`.
fn roles(brief: bool, long: bool) -> Vec<Case> {
    let outage = if long { outage::LONG } else { outage::SHORT };
    let definitions = if brief { &[] } else { definitions::CASES };
    let scenarios = scenarios::of_three_nodes();
    let cases = [
        CASES,
        protection::CASES,
        bad_input::CASES,
        no_room::CASES,
        long_works::CASES,
        refused::CASES,
        departure::CASES,
    ];
    [cases.concat(), scenarios, outage.to_vec(), definitions.to_vec()].concat()
}

/// What is done in a cluster with one.
fn single(brief: bool) -> Vec<Case> {
    let more = if brief { Vec::new() } else { [crashes::CASES, definitions::LAST].concat() };
    [single::CASES, restored::CASES, by_hand::CASES, &scenarios::of_one_node(), &more].concat()
}

/// Whose volumes they are about.
pub(super) const LVMS: Product = Product { space: deployed::space, collect_logs: deployed::collect_logs };

/// Runs them.
pub(crate) fn run(
    lab: &Arc<Lab>,
    cache: &Cache,
    programs: &Programs,
    choice: &Choice,
    results: &mut Results,
) -> Result<()> {
    let images = [deployed::IMAGES, peers::IMAGES[0]].map(str::to_owned).to_vec();
    let (roles, single) = (roles(choice.brief, choice.long), single(choice.brief));
    for (part, nodes, shape, cases) in
        [("roles", 3, Shape::Roles, &roles), ("single-node", 1, Shape::SingleNode, &single)]
    {
        // Without these the kubelet does not tell what is wrong with a volume, and the scheduler does not prefer a node
        // with more room.
        let feature_gates =
            ["CSIVolumeHealth=true", "StorageCapacityScoring=true"].map(str::to_owned).to_vec();
        let options = Options { images: images.clone(), feature_gates, audit: true, ..Options::nodes(nodes) };
        let suite = InOneCluster { suite: Suite::Kubernetes, part, options, cases };
        suite.run(lab, programs, choice, results, |cluster| {
            definitions::prepare(cache)?;
            peers::snapshots::install(cache, cluster)?;
            deployed::install(cluster, shape).inspect_err(|_| deployed::collect_logs(cluster, "install"))
        })?;
    }
    Ok(())
}

fn a_node_tells_what_it_has(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        cluster.wait_for(&format!("{} to tell what it has", node.name), || {
            let told = cluster.get(["--namespace", NAMESPACE, "lvmnode", &node.name])?;
            let classes = told["status"]["deviceClasses"].as_array().map_or(&[][..], Vec::as_slice);
            let available = |name: &str| {
                let class = classes.iter().find(|class| class["name"] == name);
                class.and_then(|class| class["available"].as_str()).unwrap_or_default().to_owned()
            };
            ensure!(told["status"]["state"] == "Ready", "it is {}", told["status"]);
            ensure!(available("dc1") == "19Gi", "of dc1 {} is available", available("dc1"));
            ensure!(available("dc2") == "20Gi", "of dc2 {} is available", available("dc2"));
            ensure!(available("thin") == "20Gi", "of thin {} is available", available("thin"));
            Ok(true)
        })?;
    }
    let table = cluster.kubectl(["--namespace", NAMESPACE, "get", "lvmnodes"])?;
    ensure!(table.contains("Ready") && table.contains("dc1 0%"), "people are shown\n{table}");
    Ok(())
}

fn the_kubelet_knows_the_driver_again_after_either_was_restarted(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[0];
    let pod = deployed::pod_on(cluster, node)?;
    cluster.kubectl(["--namespace", NAMESPACE, "delete", "pod", &pod, "--force", "--grace-period=0"])?;
    cluster.wait_for("a new pod of lvms", || Ok(deployed::pod_on(cluster, node)? != pod))?;
    await_ready(cluster, &deployed::pod_on(cluster, node)?)?;
    ensure!(deployed::is_registered(cluster, &node.name)?, "a ready pod is not registered");
    let pod = deployed::pod_on(cluster, node)?;
    let before = times_registered(cluster, &pod)?;
    node.restart_kubelet()?;
    cluster.wait_for("the new kubelet to have taken the driver", || {
        Ok(times_registered(cluster, &pod)? > before && deployed::is_registered(cluster, &node.name)?)
    })
}

fn the_driver_takes_the_place_of_a_predecessor_at_the_kubelet(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[1];
    let pod = deployed::pod_on(cluster, node)?;
    let before = times_registered(cluster, &pod)?;
    // A kubelet that finds the socket of node-driver-registrar, as TopoLVM has it, and registers the driver by it.
    node.guest
        .script(
            "pkill -9 -x kubelet
             cd /var/lib/kubelet
             mv plugins_registry/topolvm.io@reg.sock .
             socket=/var/lib/kubelet/plugins/topolvm.io/node/csi-topolvm.sock
             setsid /opt/lab/bin/registrar --csi-address=$socket --kubelet-registration-path=$socket \
                --plugin-registration-path=/var/lib/kubelet/plugins_registry </dev/null >/run/registrar.log 2>&1 &
             until [ -S plugins_registry/topolvm.io-reg.sock ]; do sleep 0.2; done
             sh /etc/kubernetes/start-kubelet
             until grep -q 'has registered' /run/registrar.log; do sleep 0.2; done
             mv topolvm.io@reg.sock plugins_registry/",
        )
        .limit(PATIENCE)
        .run()?;
    // The kubelet refuses a second socket for the same driver, until we have taken the first one away.
    cluster.wait_for("the driver to be registered by our socket", || {
        Ok(times_registered(cluster, &pod)? > before && deployed::is_registered(cluster, &node.name)?)
    })?;
    node.guest
        .script("[ ! -e /var/lib/kubelet/plugins_registry/topolvm.io-reg.sock ]; pkill -x registrar")
        .run()?;
    // One that comes beside us is refused and goes, which is nothing to us. That a second one is refused, too, shows that
    // the kubelet has seen the first one go, and still knows us.
    let before = times_registered(cluster, &pod)?;
    node.guest
        .script(
            "while pgrep -x registrar; do sleep 0.1; done
             socket=/var/lib/kubelet/plugins/topolvm.io/node/csi-topolvm.sock
             for turn in 1 2; do
                 ! /opt/lab/bin/registrar --csi-address=$socket --kubelet-registration-path=$socket \
                    --plugin-registration-path=/var/lib/kubelet/plugins_registry </dev/null >/run/beside.log 2>&1
                 grep -q 'the kubelet refuses' /run/beside.log
             done",
        )
        .limit(PATIENCE)
        .run()?;
    ensure!(deployed::is_registered(cluster, &node.name)?, "the driver is not registered any more");
    ensure!(times_registered(cluster, &pod)? == before, "the driver had to be registered again");
    Ok(())
}

fn a_new_leader_goes_on_where_the_old_one_was_killed(cluster: &Cluster) -> Result<()> {
    let leader = || -> Result<String> {
        let lease = cluster.get(["--namespace", NAMESPACE, "lease", "lvms-operator"])?;
        Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    };
    on_a_stage(cluster, &LVMS, "leader", "", |stage| {
        let first = leader()?;
        let claims = ["before-1", "before-2", "after-1", "after-2"];
        for claim in &claims[..2] {
            stage.claim(claim, "immediate", "1Gi")?;
        }
        deployed::kill(cluster, first.split('_').next().unwrap_or_default())?;
        for claim in &claims[2..] {
            stage.claim(claim, "immediate", "1Gi")?;
        }
        for claim in claims {
            stage.await_bound(claim)?;
        }
        cluster.wait_for("another leader", || Ok(leader()? != first))?;
        let volumes = cluster.kubectl(["get", "logicalvolumes", "--output=name"])?;
        ensure!(volumes.lines().count() == claims.len(), "for {} claims there are\n{volumes}", claims.len());
        Ok(())
    })
}

/// How often the kubelet has taken the driver that a pod serves.
fn times_registered(cluster: &Cluster, pod: &str) -> Result<usize> {
    let log = cluster.kubectl(["--namespace", NAMESPACE, "logs", pod])?;
    Ok(log.matches("registered with the kubelet").count())
}

fn await_ready(cluster: &Cluster, pod: &str) -> Result<()> {
    cluster.wait_for(&format!("{pod} to be ready"), || {
        let pod = cluster.get(["--namespace", NAMESPACE, "pod", pod])?;
        let conditions = pod["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
    })
}
