//! Churn under fire: volumes live and die while everything that serves them is killed at random times.
//!
//! - [`observer`]: what is in the cluster, read once for all workers.
//! - [`life`]: a claim that is mounted, grown, snapshotted and copied, until all of it is deleted.
//! - [`fire`]: what is killed, and when.

mod fire;
mod life;
mod observer;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use self::fire::{Fire, Killed};
use self::life::Life;
use self::observer::Observer;
use super::books::{Books, nothing_is_suspended};
use super::kubernetes::LVMS;
use super::stage::{Stage, on_a_stage};
use super::{Choice, Results, Suite};
use crate::cache::Cache;
use crate::cluster::programs::Programs;
use crate::cluster::{Cluster, Options};
use crate::deployed::{self, NAMESPACE, Shape};
use crate::lab::Lab;
use crate::peers;

/// The only test.
const NAME: &str = "volumes_live_and_die_while_everything_is_killed";

/// How many lives are lived at once.
const WORKERS: u64 = 8;

/// As long as in every run, and so many claims: less would not be churn, not even on emulated machines.
const SHORT: (Duration, usize) = (Duration::from_secs(180), 8);

/// At least so many claims when somebody has time.
const MANY: usize = 200;

/// If something could not be killed in time, so much longer is tried.
const LONGER: Duration = Duration::from_secs(900);

/// How long, how many claims at least, and how chance falls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    length: Duration,
    least: usize,
    seed: u64,
}

impl Plan {
    /// For so many minutes, if somebody has asked for them.
    pub(crate) fn new(minutes: Option<u64>, seed: u64) -> Plan {
        let (length, least) = minutes.map_or(SHORT, |minutes| (Duration::from_secs(60 * minutes), MANY));
        Plan { length, least, seed }
    }
}

/// Its name.
pub(crate) fn list() -> Vec<String> {
    vec![NAME.to_owned()]
}

/// Runs it.
pub(crate) fn run(
    lab: &Arc<Lab>,
    cache: &Cache,
    programs: &Programs,
    choice: &Choice,
    plan: Plan,
    results: &mut Results,
) -> Result<()> {
    let suite = Suite::Churn.name();
    if !choice.matches(NAME) || !choice.claim(suite, NAME)? {
        return Ok(());
    }
    println!("     churn with --seed {}", plan.seed);
    let images = [deployed::IMAGES, peers::IMAGES[0]].map(str::to_owned).to_vec();
    // Where some distributions have the kubelet's directory.
    let options = Options { images, kubelet: "/var/lib/k0s/kubelet", ..Options::nodes(2) };
    let cluster = Cluster::start(lab, programs, &options)?;
    peers::snapshots::install(cache, &cluster)?;
    deployed::install(&cluster, Shape::Roles).inspect_err(|_| deployed::collect_logs(&cluster, "install"))?;
    cluster.apply(CLASSES)?;
    if !results.run(suite, NAME, || churn(&cluster, plan)) {
        cluster.collect_logs();
    }
    Ok(())
}

/// Small volumes: copies of thick ones are written byte by byte.
const CLASSES: &str = "\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: churn-thick}
provisioner: topolvm.io
parameters: {csi.storage.k8s.io/fstype: ext4, topolvm.io/device-class: dc1}
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: churn-thin}
provisioner: topolvm.io
parameters: {csi.storage.k8s.io/fstype: ext4, topolvm.io/device-class: thin}
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
";

fn churn(cluster: &Cluster, plan: Plan) -> Result<()> {
    on_a_stage(cluster, &LVMS, "churn", "", |stage| {
        let before = changes_of_leader(cluster)?;
        let (completed, killed) = live_and_die(stage, plan)?;
        Books::await_agreement(cluster, 0)?;
        nothing_is_suspended(cluster)?;
        ensure!(killed.spared().is_empty(), "never killed: {}", killed.spared().join(", "));
        let leaders = u64::from(killed.leaders());
        cluster.wait_for("another leader after each that was killed", || {
            let changes = changes_of_leader(cluster)? - before;
            ensure!(changes >= leaders, "{leaders} leaders were killed, and {changes} have followed");
            Ok(true)
        })?;
        let least = plan.least;
        ensure!(completed >= least, "only {completed} claims have lived and died, and not {least}");
        Ok(())
    })
}

/// How often another one has begun to lead.
fn changes_of_leader(cluster: &Cluster) -> Result<u64> {
    let lease = cluster.get(["--namespace", NAMESPACE, "lease", "lvms-operator"])?;
    lease["spec"]["leaseTransitions"].as_u64().context("a lease that nobody has held")
}

/// Lives are begun until the time is up, enough were lived and everything was killed once, and all that were begun are
/// lived to their end. Returns the number of claims.
fn live_and_die(stage: &Stage<'_>, plan: Plan) -> Result<(usize, Killed)> {
    let end = Instant::now() + plan.length;
    let latest = end + LONGER;
    let observer = Observer::new(stage);
    let (over, complete) = (AtomicBool::new(false), AtomicBool::new(false));
    let (begun, completed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    let failed = || !failures.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    let go_on = || {
        let now = Instant::now();
        let all = completed.load(Ordering::Relaxed) >= plan.least;
        let killed = complete.load(Ordering::Relaxed) || now >= latest;
        !failed() && (now < end || !all || !killed)
    };
    let fire = std::thread::scope(|scope| {
        let observing = scope.spawn(|| observer.run(&over));
        let fire = scope.spawn(|| Fire::new(stage.cluster, plan.seed).burn(go_on, &complete));
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let (observer, begun, completed, failures) = (&observer, &begun, &completed, &failures);
                scope.spawn(move || {
                    let mut chance = Chance::new(plan.seed ^ (number + 1));
                    while go_on() {
                        let life = begun.fetch_add(1, Ordering::Relaxed);
                        match Life::new(stage, observer, life, &mut chance).live() {
                            Ok(()) => completed.fetch_add(life::CLAIMS, Ordering::Relaxed),
                            Err(error) => {
                                let failure = format!("life {life}: {error:#}");
                                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                                break;
                            }
                        };
                    }
                })
            })
            .collect();
        let workers: Result<Vec<()>> = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a worker panicked")))
            .collect();
        let fire = fire.join().map_err(|_| anyhow!("the fire panicked"));
        over.store(true, Ordering::Relaxed);
        observing.join().map_err(|_| anyhow!("the observer panicked"))?;
        workers.and(fire?)
    })?;
    let completed = completed.into_inner();
    println!("     {completed} claims lived and died; killed: {fire}");
    if observer.reminders() > 0 {
        println!("     Kubernetes had to be reminded of claims: {} times", observer.reminders());
    }
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok((completed, fire))
}

/// Numbers by chance that fall alike for the same seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// One of so many.
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % count.max(1)
    }

    /// So many seconds, from the first number to the second.
    fn seconds(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least * 1000 + self.below((most - least) * 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_falls_alike_for_the_same_seed_and_reaches_everything() {
        let fallen = |seed| {
            let mut chance = Chance::new(seed);
            (0..100).map(|_| chance.below(5)).collect::<Vec<_>>()
        };
        assert_eq!(fallen(7), fallen(7));
        assert_ne!(fallen(7), fallen(8));
        assert!((0..5).all(|number| fallen(7).contains(&number)));
    }
}
