//! lvms against TopoLVM with its sidecars, in one guest, in turns, through the Kubernetes API alone; and both against
//! bare lvm2.
//!
//! Both run at the same time: TopoLVM under its present name, lvms, as one process, under the former one. Each has disks
//! of its own, alike. A program on this machine (`lab/claims`) asks for volumes and says how long it took.

mod audit;
mod guest;
mod ours;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::audit::Audit;
use self::guest::Node;
use super::Entry;
use super::Goal::AtMost;
use crate::cache::Cache;
use crate::cluster::programs::{NodeFile, Programs};
use crate::cluster::{ADMIN, Cluster, Options, Part};
use crate::lab::{Lab, Prepared};
use crate::peers::topolvm::{Lvmd, Name};
use crate::{deployed, peers, process, progress, workspace};

/// Each turn is taken so often.
const ROUNDS: usize = 3;

/// Claims that come at once.
const BURST: usize = 50;

/// Claims one after the other, in each round.
const SINGLE: usize = 3;

/// Volumes that are mounted while nothing happens.
const MOUNTED: usize = 20;

/// So long nothing happens, in each round.
const IDLE: Duration = Duration::from_secs(60);

/// So long the API server is away.
const AWAY: Duration = Duration::from_secs(90);

/// Objects that are nobody's business, of each of three kinds.
const CROWD: usize = 5000;

/// A program that asks for volumes must not hang for ever.
const LIMIT: Duration = Duration::from_secs(3600);

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
}

impl Side {
    fn driver(self) -> &'static str {
        match self {
            Side::Ours => Name::Legacy.driver(),
            Side::Theirs => Name::Present.driver(),
        }
    }

    /// Whose writes are its own.
    fn namespace(self) -> &'static str {
        match self {
            Side::Ours => deployed::NAMESPACE,
            Side::Theirs => peers::topolvm::NAMESPACE,
        }
    }

    /// The names of its processes, as the kernel has them.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Side::Ours => &["lvms"],
            Side::Theirs => &[
                "lvmd",
                "topolvm-node",
                "topolvm-control",
                "csi-provisioner",
                "csi-resizer",
                "csi-snapshotter",
                "csi-node-driver",
            ],
        }
    }

    fn class(self, kind: &str) -> String {
        match self {
            Side::Ours => format!("ours-{kind}"),
            Side::Theirs => format!("theirs-{kind}"),
        }
    }
}

const SIDES: [Side; 2] = [Side::Ours, Side::Theirs];

/// What nodes need: both sides' images, ours as it is released.
pub(crate) fn node_files(cache: &Cache, run: &Path) -> Result<Vec<NodeFile>> {
    let mut files = peers::node_files(cache)?;
    files.extend(deployed::node_files_of(run, &workspace::build_release("lvms")?)?);
    Ok(files)
}

/// Puts the program that asks where the benchmark finds it.
pub(super) fn share(prepared: &Prepared, run: &Path) -> Result<()> {
    prepared.share(run, &workspace::build_static("lab-claims")?).map(drop)
}

/// All figures.
pub(super) fn run(lab: &Arc<Lab>, programs: &Programs) -> Result<Vec<Entry>> {
    let cache = Cache::open()?;
    let images = peers::IMAGES.iter().chain(&[deployed::IMAGES]).map(|&image| image.to_owned()).collect();
    let cluster = Cluster::start(lab, programs, &Options { images, audit: true, ..Options::nodes(1) })?;
    peers::snapshots::install(&cache, &cluster)?;
    peers::topolvm::install(&cache, &cluster, Name::Present, Lvmd::Topolvm)?;
    let node = Node::prepare(&cluster)?;
    ours::install(&cluster)?;
    let bench = Bench { lab, cluster: &cluster, node };
    let mut entries = Vec::new();
    match bench.measure(&mut entries) {
        Ok(()) => Ok(entries),
        Err(error) => {
            println!("measured before it failed:\n{}", super::table(&entries));
            deployed::collect_logs(&cluster, "bench");
            cluster.collect_logs();
            Err(error)
        }
    }
}

struct Bench<'a> {
    lab: &'a Lab,
    cluster: &'a Cluster,
    node: Node<'a>,
}

/// Samples of the three that are compared, in milliseconds.
#[derive(Debug, Default)]
struct Times {
    ours: Vec<f64>,
    theirs: Vec<f64>,
    bare: Vec<f64>,
}

impl Times {
    fn of(&mut self, side: Side) -> &mut Vec<f64> {
        match side {
            Side::Ours => &mut self.ours,
            Side::Theirs => &mut self.theirs,
        }
    }

    /// Ours against the others', and against bare lvm2 if that was measured.
    fn entries(&self, name: &str, theirs: Option<f64>, bare: Option<f64>) -> Vec<Entry> {
        let mut entries = vec![Entry::ratio(&format!("{name} ÷ TopoLVM"), &self.ours, &self.theirs, theirs)];
        if !self.bare.is_empty() {
            entries.push(Entry::ratio(&format!("{name} ÷ bare lvm2"), &self.ours, &self.bare, bare));
        }
        entries
    }
}

impl Bench<'_> {
    fn measure(&self, entries: &mut Vec<Entry>) -> Result<()> {
        let roles = self.memory_of_roles()?;
        ours::begin(self.cluster, &[ours::SINGLE_NODE])?;
        println!("{}", self.versions()?);
        for kind in ["thick", "thin"] {
            entries.extend(self.volumes(kind)?);
        }
        for kind in ["thick", "thin"] {
            entries.extend(self.costs(kind)?);
        }
        entries.extend(self.idle(&roles)?);
        entries.extend(self.recovery()?);
        entries.push(self.warnings()?);
        let step = progress::step(format!("{CROWD} foreign pods, claims and volumes"));
        self.claims(Side::Ours, "thick", &["crowd", &CROWD.to_string()])?;
        step.done();
        let crowded = self.node.rss(Side::Ours)?;
        let name = format!("single-node: RSS beside {CROWD} foreign pods, claims and volumes");
        entries.push(Entry::new(&name, "MiB", &[crowded], &[], Some(AtMost(30.0))));
        Ok(())
    }

    fn versions(&self) -> Result<String> {
        let images = self.cluster.kubectl([
            "get",
            "pods",
            "--all-namespaces",
            "--output=jsonpath={range .items[*].spec.containers[*]}{.name}{\" \"}{.image}{\"\\n\"}{end}",
        ])?;
        let server = self.cluster.kubectl(["version"])?;
        Ok(format!("{server}\n{images}{}", peers::topolvm::versions()?))
    }

    /// How long volumes of a kind take to come and to go.
    fn volumes(&self, kind: &str) -> Result<Vec<Entry>> {
        let (mut bound, mut burst, mut gone, mut pod, mut grown, mut snapshot) =
            <(Times, Times, Times, Times, Times, Times)>::default();
        // The first is never measured: what it needs is read from disks then.
        for side in SIDES {
            self.claims(side, kind, &["bound", "1"])?;
        }
        for round in 0..ROUNDS {
            let step = progress::step(format!("{kind}, round {} of {ROUNDS}", round + 1));
            // In turns, and each first as often as the other.
            let sides = if round % 2 == 0 { SIDES } else { [Side::Theirs, Side::Ours] };
            for side in sides {
                step.note(format!("{side:?}: one at a time"));
                bound.of(side).extend(self.times(side, kind, &["bound", &SINGLE.to_string()])?);
                step.note(format!("{side:?}: a pod, growth, a snapshot"));
                // TopoLVM has snapshots of thin volumes only.
                let snapshots = if kind == "thin" { side.class("snapshots") } else { String::new() };
                let life = self.times(side, kind, &["life", "--snapshots", &snapshots])?;
                for (times, taken) in [&mut pod, &mut grown, &mut snapshot].into_iter().zip(life) {
                    times.of(side).push(taken);
                }
                step.note(format!("{side:?}: {BURST} at once"));
                let [all, none] = self.times(side, kind, &["burst", &BURST.to_string()])?[..] else {
                    anyhow::bail!("a burst has two times");
                };
                burst.of(side).push(all);
                gone.of(side).push(none);
            }
            step.note("bare lvm2");
            let (one, all, none) = self.node.bare(kind, SINGLE, BURST)?;
            bound.bare.extend(one);
            burst.bare.push(all);
            gone.bare.push(none);
            step.done();
        }
        let at_once = if kind == "thick" { 0.2 } else { 0.12 };
        let mut entries = Vec::new();
        entries.extend(bound.entries(&format!("{kind}: claim to Bound"), Some(0.2), Some(1.5)));
        entries.extend(burst.entries(&format!("{kind}: {BURST} at once to Bound"), Some(at_once), Some(1.2)));
        entries.extend(gone.entries(&format!("{kind}: {BURST} at once deleted"), None, Some(1.2)));
        entries.extend(pod.entries(&format!("{kind}: claim and pod to Running"), Some(0.6), None));
        entries.extend(grown.entries(&format!("{kind}: growth of a mounted volume"), None, None));
        if kind == "thin" {
            entries.extend(snapshot.entries("thin: snapshot to ready", None, None));
        }
        Ok(entries)
    }

    /// What a volume costs from its claim to its end, mounted between: writes to the API and processes.
    fn costs(&self, kind: &str) -> Result<Vec<Entry>> {
        let step = progress::step(format!("what a {kind} volume costs"));
        let (mut writes, mut many, mut processes) = <(Times, Times, Times)>::default();
        for side in SIDES {
            let audit = Audit::begin()?;
            self.claims(side, kind, &["burst", &BURST.to_string()])?;
            let written = audit.end()?.writes_but_leases_of(side.namespace());
            many.of(side).push(written as f64 / BURST as f64);
            for _ in 0..ROUNDS {
                let audit = Audit::begin()?;
                let started = self.node.started(side, || self.claims(side, kind, &["pod"]).map(drop))?;
                let written = audit.end()?;
                writes.of(side).push(written.writes_but_leases_of(side.namespace()) as f64);
                // A volume is not mounted without a process: nothing seen is nothing counted.
                ensure!(started.processes > 0, "{side:?} has started no process");
                processes.of(side).push(started.processes as f64);
                println!("{side:?}: {started:?}");
                if side == Side::Ours {
                    println!("{}", written.story(side.namespace(), &self.log_of(side)?));
                }
            }
        }
        step.done();
        let entry = |name: &str, times: &Times, most: f64| {
            Entry::new(name, "", &times.ours, &[], Some(AtMost(most))).beside(super::median(&times.theirs))
        };
        Ok(vec![
            entry(&format!("{kind}: a mounted volume's life: writes to the API"), &writes, 10.0),
            entry(&format!("{kind}: a volume's life, one of {BURST}: writes to the API"), &many, 10.0),
            entry(&format!("{kind}: a mounted volume's life: processes"), &processes, 6.0),
        ])
    }

    /// What a side has logged of late, each line with its time.
    fn log_of(&self, side: Side) -> Result<String> {
        let log = ["logs", "--selector=app.kubernetes.io/name=lvms", "--timestamps", "--tail=200"];
        self.cluster.kubectl(["--namespace", side.namespace()].iter().chain(&log))
    }

    /// What all processes hold together where lvms has a part per node and two for the cluster, while volumes come and
    /// go.
    fn memory_of_roles(&self) -> Result<Vec<f64>> {
        let step = progress::step("the memory of all roles together");
        ours::begin(self.cluster, &ours::ROLES)?;
        let mut held = Vec::new();
        for _ in 0..ROUNDS {
            for kind in ["thick", "thin"] {
                self.claims(Side::Ours, kind, &["pod"])?;
                self.claims(Side::Ours, kind, &["burst", &BURST.to_string()])?;
            }
            held.push(self.node.rss(Side::Ours)?);
        }
        ours::end(self.cluster, &ours::ROLES)?;
        step.done();
        Ok(held)
    }

    /// What volumes cost that nobody does anything with, and what memory is held then.
    fn idle(&self, roles: &[f64]) -> Result<Vec<Entry>> {
        let count = MOUNTED.to_string();
        for side in SIDES {
            self.claims(side, "thick", &["--namespace", side.namespace(), "mount", &count])?;
        }
        let step = progress::step(format!("nothing happens, with {MOUNTED} mounted volumes of each"));
        let (mut used, mut held, mut started) = <(Times, Times, Vec<f64>)>::default();
        let audit = Audit::begin()?;
        for _ in 0..ROUNDS {
            let before = [self.node.processor_time(Side::Ours)?, self.node.processor_time(Side::Theirs)?];
            std::thread::sleep(IDLE);
            let after = [self.node.processor_time(Side::Ours)?, self.node.processor_time(Side::Theirs)?];
            for (side, (before, after)) in SIDES.into_iter().zip(before.into_iter().zip(after)) {
                used.of(side).push(after - before);
                held.of(side).push(self.node.rss(side)?);
            }
            // To be counted costs a process time of its own.
            let seen = self.node.started(Side::Ours, || {
                std::thread::sleep(IDLE);
                Ok(())
            })?;
            started.push(seen.processes as f64);
        }
        let written = audit.end()?;
        step.done();
        for side in SIDES {
            self.claims(side, "thick", &["--namespace", side.namespace(), "unmount", &count])?;
        }
        // One in any round is one.
        let most = started.into_iter().fold(0.0, f64::max);
        let writes = |side: Side| written.writes_but_leases_of(side.namespace()) as f64;
        let idle_writes = Entry::new(
            "idle: writes to the API but leases",
            "",
            &[writes(Side::Ours)],
            &[],
            Some(AtMost(0.0)),
        );
        Ok(vec![
            Entry::new(
                "RSS after the volumes' coming and going",
                "MiB",
                &held.ours,
                &held.theirs,
                Some(AtMost(0.1)),
            ),
            Entry::new("single-node: RSS", "MiB", &held.ours, &[], Some(AtMost(20.0))),
            Entry::new(
                "all roles together: RSS after as many",
                "MiB",
                roles,
                &held.theirs,
                Some(AtMost(0.1)),
            ),
            Entry::ratio("idle: processor time", &used.ours, &used.theirs, Some(0.1)),
            idle_writes.beside(writes(Side::Theirs)),
            Entry::new("idle: processes", "", &[most], &[], Some(AtMost(0.0))),
        ])
    }

    /// How soon a claim is fulfilled when the API server was away, and how much of that is not Kubernetes' own. Both are
    /// asked at the same time: who is asked later has had longer to find it again.
    fn recovery(&self) -> Result<Vec<Entry>> {
        let step = progress::step(format!("the API server is away for {} s", AWAY.as_secs()));
        let (mut times, mut made) = <(Times, Times)>::default();
        for _ in 0..ROUNDS {
            let audit = Audit::begin()?;
            self.cluster.kill(Part::ApiServer)?;
            std::thread::sleep(AWAY);
            self.cluster.start_again(Part::ApiServer)?;
            let [ours, theirs] = std::thread::scope(|scope| {
                let asked = SIDES.map(|side| {
                    scope.spawn(move || {
                        self.times(side, "thick", &["--namespace", side.namespace(), "bound", "1"])
                    })
                });
                asked.map(|one| one.join().expect("the thread does not panic"))
            });
            times.ours.extend(ours?);
            times.theirs.extend(theirs?);
            let requests = audit.end()?;
            for side in SIDES {
                made.of(side).push(requests.asked_to_made(side.namespace())?);
            }
        }
        step.done();
        let mut entries = times.entries("claim to Bound after an outage", None, None);
        entries.extend(made.entries("of it, since Kubernetes asked for the volume", None, None));
        Ok(entries)
    }

    /// Warnings about all that was asked for.
    fn warnings(&self) -> Result<Entry> {
        let [ours, theirs] = SIDES.map(|side| self.claims(side, "thick", &["warnings"]));
        let (ours, theirs) = (ours?, theirs?);
        print!("{ours}");
        let count = |lines: &str| lines.lines().count() as f64;
        Ok(Entry::new("warnings", "", &[count(&ours)], &[], Some(AtMost(0.0))).beside(count(&theirs)))
    }

    /// What the program that asks printed, as numbers.
    fn times(&self, side: Side, kind: &str, act: &[&str]) -> Result<Vec<f64>> {
        let printed = self.claims(side, kind, act)?;
        let times: Vec<f64> = printed.lines().map(str::parse).collect::<Result<_, _>>().context(printed)?;
        ensure!(!times.is_empty(), "`claims {}` has measured nothing", act.join(" "));
        Ok(times)
    }

    /// Asks for volumes of one side.
    fn claims(&self, side: Side, kind: &str, act: &[&str]) -> Result<String> {
        let mut claims = Command::new(self.lab.share.join("lab-claims"));
        claims
            .args(["--kubeconfig", ADMIN, "--driver", side.driver(), "--class", &side.class(kind)])
            .args(act);
        process::run_within(&mut claims, &[], LIMIT)
    }
}
