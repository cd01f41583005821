//! What is killed, and when.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Chance;
use crate::cluster::{Cluster, Node, Part};
use crate::deployed::{self, NAMESPACE};

/// What can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// The operator that leads: another one has to take over.
    Leader,
    /// An operator, whichever.
    Operator,
    /// A node's part, whatever it does.
    NodePlugin,
    /// A node's part, while a command of LVM runs for it.
    NodePluginInACommand,
    Kubelet,
    ApiServer,
    Etcd,
}

const VICTIMS: [Victim; 7] = [
    Victim::Leader,
    Victim::NodePluginInACommand,
    Victim::ApiServer,
    Victim::Kubelet,
    Victim::Etcd,
    Victim::NodePlugin,
    Victim::Operator,
];

/// Kills them.
pub(super) struct Fire<'a> {
    cluster: &'a Cluster,
    chance: Chance,
}

/// What was killed, how often, and how often it could not be.
#[derive(Debug, Default)]
pub(super) struct Killed(BTreeMap<Victim, (u32, u32)>);

impl Killed {
    /// What was never killed.
    pub(super) fn spared(&self) -> Vec<String> {
        let killed = |victim: &&Victim| self.0.get(victim).is_some_and(|(killed, _)| *killed > 0);
        VICTIMS.iter().filter(|victim| !killed(victim)).map(|victim| format!("{victim:?}")).collect()
    }

    /// How often a leader was killed.
    pub(super) fn leaders(&self) -> u32 {
        self.0.get(&Victim::Leader).map_or(0, |(killed, _)| *killed)
    }
}

impl fmt::Display for Killed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.iter().map(|(victim, (killed, missed))| match missed {
            0 => format!("{victim:?} {killed}"),
            missed => format!("{victim:?} {killed} (missed {missed})"),
        });
        formatter.write_str(&all.collect::<Vec<_>>().join(", "))
    }
}

impl<'a> Fire<'a> {
    pub(super) fn new(cluster: &'a Cluster, seed: u64) -> Fire<'a> {
        Fire { cluster, chance: Chance::new(seed) }
    }

    /// Kills as long as it may go on; `complete` is told when everything was killed once. Afterwards all that was killed is
    /// there again, or about to be.
    pub(super) fn burn(mut self, go_on: impl Fn() -> bool, complete: &AtomicBool) -> Result<Killed> {
        let mut killed = Killed::default();
        // Everything once, and then by chance.
        let mut first = VICTIMS.to_vec();
        while go_on() {
            std::thread::sleep(self.chance.seconds(3, 12));
            let victims = if first.is_empty() { &VICTIMS[..] } else { &first };
            let victim = victims[usize::try_from(self.chance.below(victims.len() as u64))?];
            let counts = killed.0.entry(victim).or_default();
            match self.kill(victim) {
                Ok(true) => {
                    counts.0 += 1;
                    first.retain(|other| *other != victim);
                    complete.store(first.is_empty(), Ordering::Relaxed);
                }
                // Nothing was there to be killed, or the way to it is dead.
                Ok(false) => counts.1 += 1,
                Err(error) => {
                    eprintln!("  {victim:?} was not killed: {error:#}");
                    counts.1 += 1;
                }
            }
        }
        // Whatever went wrong above: nothing stays dead.
        self.cluster.start_again(Part::Etcd)?;
        self.cluster.start_again(Part::ApiServer)?;
        Ok(killed)
    }

    fn kill(&mut self, victim: Victim) -> Result<bool> {
        match victim {
            Victim::Leader => {
                let lease = self.cluster.get(["--namespace", NAMESPACE, "lease", "lvms-operator"])?;
                let holder = lease["spec"]["holderIdentity"].as_str().context("nobody leads")?;
                self.kill_pod(holder.split('_').next().unwrap_or_default())
            }
            Victim::Operator => {
                let selector = "--selector=app.kubernetes.io/component=operator";
                let pods = self.cluster.get(["--namespace", NAMESPACE, "pods", selector])?;
                let pods = pods["items"].as_array().context("a list has items")?;
                let Some(chosen) = self.one_of(pods) else { return Ok(false) };
                self.kill_pod(chosen["metadata"]["name"].as_str().context("a pod has a name")?)
            }
            Victim::NodePlugin => {
                let node = self.node()?;
                self.kill_pod(&deployed::pod_on(self.cluster, node)?)
            }
            Victim::NodePluginInACommand => {
                let node = self.node()?;
                let pod = deployed::pod_on(self.cluster, node)?;
                let seen = node.guest.script(
                    "for i in $(seq 200); do
                         if pgrep -x 'lvm|lvcreate|lvextend|lvremove|lvchange' >/dev/null; then
                             pkill -9 -x lvms && exit 0
                         fi
                         sleep 0.05
                     done
                     exit 3",
                );
                let killed = seen.output()?.success().is_ok();
                // A new pod is started at once, the same one would be started later each time.
                self.kill_pod(&pod)?;
                Ok(killed)
            }
            Victim::Kubelet => self.node()?.restart_kubelet().map(|()| true),
            Victim::ApiServer => self.away(Part::ApiServer, 2, 12),
            Victim::Etcd => self.away(Part::Etcd, 1, 6),
        }
    }

    /// Kills a program of the control plane and starts it again after a while.
    fn away(&mut self, part: Part, least: u64, most: u64) -> Result<bool> {
        let length: Duration = self.chance.seconds(least, most);
        self.cluster.kill(part)?;
        std::thread::sleep(length);
        self.cluster.start_again(part)?;
        Ok(true)
    }

    fn node(&mut self) -> Result<&'a Node> {
        let cluster = self.cluster;
        self.one_of(cluster.nodes()).context("a cluster has nodes")
    }

    fn one_of<'b, T>(&mut self, all: &'b [T]) -> Option<&'b T> {
        all.get(usize::try_from(self.chance.below(all.len() as u64)).ok()?)
    }

    fn kill_pod(&self, pod: &str) -> Result<bool> {
        deployed::kill(self.cluster, pod)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missed_only_was_spared() {
        let mut killed = Killed(VICTIMS.iter().map(|victim| (*victim, (1, 0))).collect());
        assert!(killed.spared().is_empty());
        killed.0.insert(Victim::Etcd, (0, 3));
        killed.0.remove(&Victim::Leader);
        assert_eq!(killed.spared(), ["Leader", "Etcd"]);
    }
}
