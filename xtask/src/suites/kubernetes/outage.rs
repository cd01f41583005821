//! The API server is away for a while: volumes serve, nothing spins, and all goes on when it is back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::LVMS;
use crate::cluster::{Cluster, Node, Part};
use crate::deployed::{NAMESPACE, NODE_SOCKET};
use crate::process;
use crate::suites::cluster::Case;
use crate::suites::stage::{Stage, on_a_stage};

/// As long as it is away in every run.
pub(super) const SHORT: &[Case] =
    &[Case::One("volumes_serve_while_the_api_is_away", volumes_serve_while_the_api_is_away)];

/// As long as it may be away when somebody has time.
pub(super) const LONG: &[Case] = &[Case::One(
    "volumes_serve_while_the_api_is_away_for_long",
    volumes_serve_while_the_api_is_away_for_long,
)];

fn volumes_serve_while_the_api_is_away(cluster: &Cluster) -> Result<()> {
    outage(cluster, Duration::from_secs(90))
}

fn volumes_serve_while_the_api_is_away_for_long(cluster: &Cluster) -> Result<()> {
    outage(cluster, Duration::from_secs(600))
}

fn outage(cluster: &Cluster, length: Duration) -> Result<()> {
    let node = cluster.nodes().first().context("a node")?;
    on_a_stage(cluster, &LVMS, "outage", "", |stage| {
        stage.claim("beating", "thick", "1Gi")?;
        start_beating(stage, "beating", &node.name)?;
        // A volume that the node knows and no pod uses.
        stage.claim("known", "thick", "1Gi")?;
        stage.start_pod("before", "known", Some(&node.name))?;
        stage.run_in("before", "echo remembered > /data/file; sync")?;
        stage.remove_pod("before")?;
        stage.claim("doomed", "immediate", "1Gi")?;
        stage.await_bound("doomed")?;
        let beating = beats_at(stage, "beating")?;
        let known = persistent(stage, "known")?;
        let handle = known["spec"]["csi"]["volumeHandle"].as_str().context("a handle")?.to_owned();
        let pods = Pods::of(cluster)?;
        let counted = Counted::begin(cluster, &pods)?;

        // What is asked for in the last moment is not forgotten.
        for claim in ["late-1", "late-2"] {
            stage.claim(claim, "immediate", "1Gi")?;
        }
        stage.kubectl(&["delete", "pvc", "doomed", "--wait=false"])?;
        let (before, began) = (counted.now()?, Instant::now());
        cluster.kill(Part::ApiServer)?;
        let served = while_away(cluster, node, &beating, &handle, began + length);
        let (after, away) = (counted.now(), began.elapsed());
        cluster.start_again(Part::ApiServer)?;
        served?;
        is_calm(&before, &after?, away)?;
        counted.end()?;

        for claim in ["late-1", "late-2"] {
            stage.await_bound(claim)?;
        }
        stage.claim("new", "thick", "1Gi")?;
        stage.start_pod("after", "new", Some(&node.name))?;
        stage.remove_pod("after")?;
        stage.kubectl(&["delete", "pvc", "known", "new", "--wait=false"])?;
        cluster.wait_for("what was deleted to be gone", || {
            let left = stage.kubectl(&["get", "pvc", "doomed", "known", "new", "--ignore-not-found"])?;
            Ok(left.is_empty())
        })?;
        let now = Pods::of(cluster)?;
        ensure!(now == pods, "before the API server went away there were {pods:?}, now there are {now:?}");
        let restarts = &stage.get("pod", "beating")?["status"]["containerStatuses"][0]["restartCount"];
        ensure!(*restarts == 0, "the pod that writes was restarted {restarts} times");
        Ok(())
    })
}

/// A pod that adds a line to a file again and again, and ends if it cannot.
fn start_beating(stage: &Stage<'_>, claim: &str, node: &str) -> Result<()> {
    let beat = "set -e; while :; do echo beat >> /data/beats; sync; sleep 0.5; done";
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [{
            "name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never",
            "command": ["sh", "-c", beat], "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    });
    stage.apply("v1", "Pod", claim, &spec)?;
    stage.await_pod(claim)
}

/// Where the node has the file that a pod writes.
fn beats_at(stage: &Stage<'_>, claim: &str) -> Result<String> {
    let pod = stage.get("pod", claim)?;
    let uid = pod["metadata"]["uid"].as_str().context("a pod has a uid")?;
    let volume = persistent(stage, claim)?;
    let volume = volume["metadata"]["name"].as_str().context("a volume has a name")?;
    Ok(format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount/beats"))
}

fn persistent(stage: &Stage<'_>, claim: &str) -> Result<Value> {
    let claim = stage.get("pvc", claim)?;
    stage.cluster.get(["pv", claim["spec"]["volumeName"].as_str().context("the claim is not bound")?])
}

/// What a node does without the API server, again and again until it is time.
fn while_away(cluster: &Cluster, node: &Node, beats: &str, handle: &str, until: Instant) -> Result<()> {
    let at = "/var/lib/kubelet/plugins/topolvm.io/outage";
    while Instant::now() < until {
        ensure!(cluster.get(["nodes"]).is_err(), "the API server is not away");
        let written = count_lines(node, beats)?;
        node.guest
            .script(&format!(
                "set -e
                 /opt/lab/bin/lab-csi publish {NODE_SOCKET} {handle} {at}
                 grep -q remembered {at}/file
                 echo more >> {at}/file
                 /opt/lab/bin/lab-csi unpublish {NODE_SOCKET} {handle} {at}
                 if mountpoint -q {at}; then exit 9; fi"
            ))
            .run()?;
        cluster.wait_for("the pod to go on writing", || Ok(count_lines(node, beats)? > written))?;
        let left = until.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(Duration::from_secs(10)));
    }
    Ok(())
}

fn count_lines(node: &Node, file: &str) -> Result<u64> {
    Ok(node.guest.command(["sh", "-c", "wc -l < \"$0\"", file]).run()?.text().parse()?)
}

/// The pods of lvms: their nodes and addresses, and how often they were started again.
#[derive(Debug, PartialEq, Eq)]
struct Pods(BTreeMap<String, Pod>);

#[derive(Debug, PartialEq, Eq)]
struct Pod {
    uid: String,
    node: String,
    address: String,
    restarts: u64,
}

impl Pods {
    fn of(cluster: &Cluster) -> Result<Pods> {
        let list =
            cluster.get(["--namespace", NAMESPACE, "pods", "--selector=app.kubernetes.io/name=lvms"])?;
        let pods = list["items"].as_array().context("no list of pods")?.iter().map(|pod| {
            let text = |value: &Value| value.as_str().map(str::to_owned).context("a text is missing");
            let described = Pod {
                uid: text(&pod["metadata"]["uid"])?,
                node: text(&pod["spec"]["nodeName"])?,
                address: text(&pod["status"]["podIP"])?,
                restarts: pod["status"]["containerStatuses"][0]["restartCount"]
                    .as_u64()
                    .context("restarts")?,
            };
            Ok((text(&pod["metadata"]["name"])?, described))
        });
        Ok(Pods(pods.collect::<Result<_>>()?))
    }
}

/// What lvms does on all nodes, counted by the nodes' kernels.
struct Counted<'a> {
    cluster: &'a Cluster,
    pods: &'a Pods,
}

/// What it has done since it was started, or since it is counted.
#[derive(Debug)]
struct Done {
    /// Ticks of a processor, by node and process; those of the programs that it ran are among them.
    ticks: BTreeMap<(String, u32), u64>,
    /// How often a pod wanted to connect to the API server.
    attempts: BTreeMap<String, u64>,
    /// Lines that a pod has logged.
    lines: BTreeMap<String, u64>,
}

impl<'a> Counted<'a> {
    fn begin(cluster: &'a Cluster, pods: &'a Pods) -> Result<Counted<'a>> {
        let counted = Counted { cluster, pods };
        counted.rules("-I")?;
        Ok(counted)
    }

    /// A rule of the lab's for each pod that matches its attempts to connect to the API server, and does nothing.
    fn rules(&self, act: &str) -> Result<()> {
        for pod in self.pods.0.values() {
            let mut iptables = process::program("iptables");
            iptables.args(["-w", act, "INPUT", "-p", "tcp", "--syn", "--dport", "6443", "-s", &pod.address]);
            process::run(&mut iptables)?;
        }
        Ok(())
    }

    /// How often each pod's rule has matched.
    fn attempts(&self) -> Result<BTreeMap<String, u64>> {
        let rules = process::run(process::program("iptables-save").args(["-c", "-t", "filter"]))?;
        let mut attempts = BTreeMap::new();
        for rule in rules.lines().filter(|rule| rule.contains("--dport 6443")) {
            let count = rule.strip_prefix('[').and_then(|rest| rest.split_once(':'));
            let count = count.with_context(|| format!("a rule without a number: {rule}"))?.0;
            let of_rule = |pod: &&Pod| rule.contains(&format!(" -s {}/32 ", pod.address));
            if let Some((name, _)) = self.pods.0.iter().find(|(_, pod)| of_rule(pod)) {
                attempts.insert(name.clone(), count.parse()?);
            }
        }
        Ok(attempts)
    }

    fn end(self) -> Result<()> {
        self.rules("-D")
    }

    fn now(&self) -> Result<Done> {
        let mut done = Done { ticks: BTreeMap::new(), attempts: self.attempts()?, lines: BTreeMap::new() };
        for node in self.cluster.nodes() {
            // Field 2 of stat is "(lvms)": the parent is field 4, and 14 to 17 are times.
            let text = node.guest.script(&format!(
                r"for pid in $(pgrep -x lvms); do
                     echo process $pid $(cut -d' ' -f4,14-17 /proc/$pid/stat 2>/dev/null || true)
                 done
                 for pod in /var/log/pods/{NAMESPACE}_*; do
                     echo lines $(basename $pod | cut -d_ -f2) $(cat $pod/*/*.log | wc -l)
                 done"
            ));
            let text = text.run()?.text();
            let mut parents = BTreeMap::new();
            for line in text.lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                match words[..] {
                    ["process", pid, parent, ref times @ ..] => {
                        let ticks = times.iter().map(|time| time.parse::<u64>()).sum::<Result<u64, _>>()?;
                        parents.insert(pid.parse::<u32>()?, (parent.parse::<u32>()?, ticks));
                    }
                    ["lines", pod, count] if self.pods.0.contains_key(pod) => {
                        done.lines.insert(pod.to_owned(), count.parse()?);
                    }
                    _ => {}
                }
            }
            // A process that is about to become a command of LVM is called like its parent.
            let roots = parents.iter().filter(|(_, (parent, _))| !parents.contains_key(parent));
            done.ticks.extend(roots.map(|(pid, (_, ticks))| ((node.name.clone(), *pid), *ticks)));
        }
        let pods = self.pods.0.len();
        let counts = [done.ticks.len(), done.attempts.len(), done.lines.len()];
        ensure!(counts == [pods; 3], "of {pods} pods not all were counted: {done:?}");
        Ok(done)
    }
}

/// Ticks of a processor in a second.
const TICKS: u64 = 100;

/// Whoever waits for the API server wants it at most so often in a second on average, and says at most as many things.
/// That is far more than what is there: a leader that lost its lease wants it every two seconds.
const ATTEMPTS: u64 = 1;

/// What is done at first, before anybody waits for long.
const AT_FIRST: u64 = 60;

/// The part of a processor, in percent, that waiting may cost: whoever spins takes a whole one. On emulated machines that
/// have to share two processors with many others it was 2 to 11.
const PERCENT: u64 = 25;

/// Neither did a process end, nor was one busy with waiting.
fn is_calm(before: &Done, after: &Done, length: Duration) -> Result<()> {
    let pids = |done: &Done| done.ticks.keys().cloned().collect::<BTreeSet<_>>();
    ensure!(pids(before) == pids(after), "processes were {:?} and are {:?}", pids(before), pids(after));
    let seconds = length.as_secs();
    for ((node, pid), ticks) in &after.ticks {
        let ticks = ticks.saturating_sub(before.ticks[&(node.clone(), *pid)]);
        println!("     {node} {pid}: {ticks} ticks in {seconds} s");
        let most = seconds * TICKS * PERCENT / 100;
        ensure!(
            ticks <= most,
            "{pid} on {node} took {ticks} ticks in {seconds} s, and not {most} at the most"
        );
    }
    for (what, before, after) in
        [("attempts to connect", &before.attempts, &after.attempts), ("lines", &before.lines, &after.lines)]
    {
        for (pod, count) in after {
            let count = count.saturating_sub(before[pod]);
            println!("     {pod}: {count} {what}");
            let most = seconds * ATTEMPTS + AT_FIRST;
            ensure!(count <= most, "{pod}: {count} {what} in {seconds} s, and not {most} at the most");
        }
    }
    Ok(())
}
