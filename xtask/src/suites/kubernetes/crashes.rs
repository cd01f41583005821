//! `lvms single-node` is killed before and after every write to the API, in every flow, and goes on.
//!
//! Built with crash points it kills itself at each point that it has not passed before in the same flow, and a loop
//! starts it again: so a flow goes on from one point to the next, and has survived all of them when it has reached its
//! goal ([`flows`]). It runs beside the kubelet instead of in a pod, because a kubelet would wait longer each time.

mod flows;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::LVMS;
use crate::cluster::Cluster;
use crate::deployed::{self, NAMESPACE};
use crate::guest::Guest;
use crate::suites::books::nothing_is_suspended;
use crate::suites::cluster::Case;
use crate::suites::stage::on_a_stage;
use crate::workspace;

pub(super) const CASES: &[Case] = &[Case::One(
    "volumes_survive_a_crash_at_every_write_to_the_api",
    volumes_survive_a_crash_at_every_write_to_the_api,
)];

fn volumes_survive_a_crash_at_every_write_to_the_api(cluster: &Cluster) -> Result<()> {
    on_a_stage(cluster, &LVMS, "crashes", "", |stage| {
        let process = Process::start(cluster)?;
        let lived = flows::all(stage, &process);
        let log = process.log();
        let hits = process.end();
        lived.inspect_err(|_| keep_log(log))?;
        nothing_is_suspended(cluster)?;
        all_were_hit(&hits?)
    })
}

fn keep_log(log: Result<String>) {
    crate::suites::stage::keep("crashes-lvms-crash.log", log);
}

/// How many capacities the scheduler is told of.
fn published(cluster: &Cluster) -> Result<usize> {
    let list = cluster.get(["--namespace", NAMESPACE, "csistoragecapacities"])?;
    Ok(list["items"].as_array().context("a list has items")?.len())
}

/// The process that kills itself, and what starts it again.
struct Process<'a> {
    cluster: &'a Cluster,
    guest: &'a Guest,
    node: &'a str,
    /// How many capacities there were before it began.
    published: usize,
}

/// The leases of a predecessor's controller and of one of its sidecars.
const PREDECESSORS: [&str; 2] = ["topolvm", "topolvm-io"];

/// The name of a flow is in this file. Points that were hit are in its neighbour.
const FLOW: &str = "/run/crashes/flow";

const SUPERVISE: &str = "\
cd /run/crashes
while [ ! -e end ]; do
    LVMS_CRASH_WRITES=/run/crashes/flow ./lvms-crash single-node --kubeconfig kubeconfig --namespace lvms-system \\
        --nodename \"$1\" --node-finalize delete --csi-socket /run/crashes/csi.sock >> log 2>&1
    echo $? >> codes
done
touch ended
";

impl Process<'_> {
    /// It takes the place of the pod, and finds nothing published.
    fn start(cluster: &Cluster) -> Result<Process<'_>> {
        let node = cluster.nodes().first().context("a node")?;
        let process =
            Process { cluster, guest: &node.guest, node: &node.name, published: published(cluster)? };
        process.scale(0)?;
        let kinds = "lvmnodes,csistoragecapacities";
        cluster.kubectl(["--namespace", NAMESPACE, "delete", kinds, "--all"])?;
        // A predecessor that has gone: what it acted by is ours before anything else is written.
        for name in PREDECESSORS {
            cluster.apply(&format!(
                "{{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: {name}, namespace: {NAMESPACE}}}}}"
            ))?;
        }
        // What it needs for a node that leaves.
        cluster.apply(&deployed::manifest_of("node-finalize-delete")?)?;
        let user = format!("system:serviceaccount:{NAMESPACE}:lvms-single-node");
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{NAMESPACE}")];
        process
            .guest
            .script("rm -rf /run/crashes; mkdir /run/crashes; cp /lab/lvms-crash /run/crashes/")
            .run()?;
        process.guest.put("/run/crashes/kubeconfig", 0o600, cluster.kubeconfig(&user, &groups)?)?;
        process.guest.put("/run/crashes/supervise", 0o700, SUPERVISE)?;
        process.arm("publish")?;
        let start = format!("setsid sh /run/crashes/supervise {} </dev/null >/dev/null 2>&1 &", node.name);
        process.guest.script(&start).run()?;
        Ok(process)
    }

    fn scale(&self, replicas: u32) -> Result<()> {
        let replicas_word = format!("--replicas={replicas}");
        let scale = ["--namespace", NAMESPACE, "scale", "deployment", "lvms-single-node", &replicas_word];
        self.cluster.kubectl(scale)?;
        self.cluster.wait_for("the pod to be there, or gone", || {
            let pods = self.cluster.get(["--namespace", NAMESPACE, "pods"])?;
            Ok(pods["items"].as_array().is_some_and(|pods| pods.len() == replicas as usize))
        })
    }

    /// From now on it is in this flow, and is killed at each of its points.
    fn arm(&self, flow: &str) -> Result<()> {
        // In one step: it reads the file all the time.
        self.guest.script(&format!("echo {flow} > {FLOW}.new; mv {FLOW}.new {FLOW}")).run()?;
        Ok(())
    }

    /// Asks as a client of CSI does, again and again until it says this. Returns what it said.
    fn ask(&self, words: &str, answer: &str) -> Result<String> {
        let (act, words) = words.split_once(' ').context("an act and its words")?;
        let ask = format!("/opt/lab/bin/lab-csi {act} /run/crashes/csi.sock {words} 2>&1");
        let mut said = String::new();
        self.cluster.wait_for(&format!("an answer to {act}"), || {
            said = self.guest.script(&format!("{ask} && echo answered || true")).run()?.text();
            ensure!(said.contains(answer), "it says {said}");
            Ok(true)
        })?;
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }

    fn log(&self) -> Result<String> {
        Ok(self.guest.command(["cat", "/run/crashes/log"]).run()?.text())
    }

    /// The pod takes its place again. Returns the points at which it was killed.
    fn end(self) -> Result<Vec<String>> {
        self.guest
            .script(&format!(
                "rm -f {FLOW}; touch /run/crashes/end
                 until [ -e /run/crashes/ended ]; do pkill -9 -x lvms-crash || true; sleep 0.2; done"
            ))
            .run()?;
        let hits = self.guest.command(["cat", "/run/crashes/flow.log"]).run()?.text();
        let codes = self.guest.command(["cat", "/run/crashes/codes"]).run()?.text();
        let end = ["--namespace", NAMESPACE, "delete", "lease"];
        self.cluster.kubectl(end.iter().chain(&PREDECESSORS))?;
        self.scale(1)?;
        let node = self.cluster.nodes().first().context("a node")?;
        self.cluster
            .wait_for("the pod of lvms to run", || deployed::pod_on(self.cluster, node).map(|_| true))?;
        let hits: Vec<String> = hits.lines().map(str::to_owned).collect();
        let killed = codes.lines().filter(|code| *code == "137").count();
        ensure!(killed == codes.lines().count(), "it has ended by itself: {}", codes.replace('\n', " "));
        ensure!(killed >= hits.len(), "it hit {} points and was killed {killed} times", hits.len());
        Ok(hits)
    }
}

/// Writes that a single node that is killed never makes, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "cluster/src/lease.rs try_once create",
        "it needs no lease of its own; a predecessor has made the others",
    ),
    ("cluster/src/lease.rs release replace", "only who is told to end gives up a lease"),
];

/// Writes that nothing depends on. They come after another one, and whoever was killed at that one does not make them any
/// more; or a work has to last long enough. So they are met by chance.
const BY_CHANCE: &[(&str, &str)] = &[
    ("cluster/src/events.rs say", "what was done can be seen"),
    ("node/src/volumes/progress.rs", "how far a work is that lasts"),
    ("operator/src/resize.rs nudge", "the kubelet looks by itself after a minute or two"),
];

/// At every write in the sources it was killed before and after.
fn all_were_hit(hits: &[String]) -> Result<()> {
    let mut flows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut sites: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for hit in hits {
        let words: Vec<&str> = hit.split_whitespace().collect();
        let [flow, moment, _, _, site] = words[..] else { anyhow::bail!("a point is called {hit:?}") };
        flows.entry(flow).or_default().insert(hit);
        sites.entry(site).or_default().insert(moment);
    }
    let counts: Vec<String> = flows.iter().map(|(flow, hits)| format!("{flow} {}", hits.len())).collect();
    println!("     killed at {} points of {} writes: {}", hits.len(), sites.len(), counts.join(", "));
    let mut missing = Vec::new();
    for (site, what) in writes()? {
        let excused = ELSEWHERE.iter().chain(BY_CHANCE).any(|(known, _)| what.starts_with(known));
        let hit = sites.get(site.as_str()).cloned().unwrap_or_default();
        if hit.len() < 2 && !excused {
            missing.push(format!("{what} ({site}), only {hit:?}"));
        }
    }
    ensure!(missing.is_empty(), "it was not killed before and after {}", missing.join(", "));
    Ok(())
}

/// Where the API is written to: file and line; and file, function and what is done there.
fn writes() -> Result<Vec<(String, String)>> {
    let crates = workspace::directory().join("crates");
    let mut found = Vec::new();
    for entry in fs::read_dir(&crates)? {
        search(&crates, &entry?.path().join("src"), &mut found)?;
    }
    ensure!(found.len() > 10, "only {} writes were found", found.len());
    Ok(found)
}

fn search(crates: &Path, directory: &Path, found: &mut Vec<(String, String)>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            search(crates, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(crates)?.display().to_string();
            let text = fs::read_to_string(&path)?;
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let sites = sites(code).map(|(line, function, write)| {
                (format!("crates/{name}:{line}"), format!("{name} {function} {write}"))
            });
            found.extend(sites);
        }
    }
    Ok(())
}

/// Functions of `lvms_cluster::write` that write.
const WRITES: [&str; 7] = ["create", "delete", "change", "change_status", "merge", "merge_status", "replace"];

/// The lines that write, the functions that they are in, and what they do.
fn sites(code: &str) -> impl Iterator<Item = (usize, &str, &'static str)> {
    let mut function = "";
    code.lines().zip(1..).filter_map(move |(line, number)| {
        if let Some((_, rest)) = line.split_once("fn ").filter(|(before, _)| !before.contains("//")) {
            function = rest.split(['(', '<']).next().unwrap_or_default();
        }
        let write = WRITES.into_iter().find(|write| line.contains(&format!("write::{write}(")));
        write.map(|write| (number, function, write))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_found_with_the_functions_that_they_are_in() {
        let code = "async fn one<K>(api: &Api<K>) {\n    write::create(api).await;\n    // not fn two(\n\
                    }\nfn two(&self) {\n    a(write::merge_status(b)); write::passes(c)\n    write::is_conflict(d)\n}\n";
        assert_eq!(sites(code).collect::<Vec<_>>(), [(2, "one", "create"), (6, "two", "merge_status")]);
    }
}
