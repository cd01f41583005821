//! The node: disks for ours and for bare lvm2, and what processes cost it.

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::{Disk, GIB};
use lab_protocol::processes::{OUTPUT, STRACE, Started};

use super::Side;
use crate::cluster::Cluster;
use crate::guest::Guest;

pub(super) struct Node<'a> {
    guest: &'a Guest,
}

/// As TopoLVM has it in the lab.
const CONFIGURATION: &str = "\
device-classes:
- {name: thick, volume-group: ours-thick, default: true, spare-gb: 0}
- {name: thin, volume-group: ours-thin, type: thin, spare-gb: 0, thin-pool: {name: pool, overprovision-ratio: 10.0}}
";

impl<'a> Node<'a> {
    /// Volume groups like TopoLVM's, once for lvms and once for nobody.
    pub(super) fn prepare(cluster: &'a Cluster) -> Result<Node<'a>> {
        let guest: &Guest = &cluster.nodes().first().context("a cluster without nodes")?.guest;
        let mut script = String::from("udevadm settle\n");
        for (name, thin) in
            [("ours-thick", false), ("ours-thin", true), ("bare-thick", false), ("bare-thin", true)]
        {
            let disk = cluster.plug(guest, Disk::new(16 * GIB).serial(name))?;
            script += &format!("vgcreate {name} {disk}\n");
            if thin {
                script += &format!("lvcreate --type thin-pool --extents 80%FREE --name pool {name}\n");
            }
        }
        guest.command(["mkdir", "-p", "/etc/topolvm"]).run()?;
        guest.put("/etc/topolvm/lvmd.yaml", 0o644, CONFIGURATION)?;
        guest.script(&script).run()?;
        Ok(Node { guest })
    }

    /// Bare lvm2: single volumes, then many in a loop, then their removal; in milliseconds.
    pub(super) fn bare(&self, kind: &str, single: usize, many: usize) -> Result<(Vec<f64>, f64, f64)> {
        let make = match kind {
            "thick" => "lvcreate -qq -y -Wy -Zy -L 64m bare-thick -n",
            _ => "lvcreate -qq -y -V 64m --thinpool pool bare-thin -n",
        };
        let script = format!(
            "now() {{ echo $((${{EPOCHREALTIME/./}} / 1000)); }}
             for i in $(seq {single}); do
               began=$(now); {make} single; echo $(($(now) - began)); lvremove -qq -y bare-{kind}/single
             done
             began=$(now); for i in $(seq {many}); do {make} many$i; done; echo $(($(now) - began))
             began=$(now); for i in $(seq {many}); do lvremove -qq -y bare-{kind}/many$i; done; echo $(($(now) - began))"
        );
        let text = self.guest.script(&script).limit(super::LIMIT).run()?.text();
        let times: Vec<f64> = text.lines().map(str::parse).collect::<Result<_, _>>().context(text)?;
        ensure!(times.len() == single + 2, "bare lvm2 was measured {} times", times.len());
        Ok((times[..single].to_vec(), times[single], times[single + 1]))
    }

    /// Memory that all processes of a side hold, in MiB.
    pub(super) fn rss(&self, side: Side) -> Result<f64> {
        let kib = self.sum(side, "awk '/^Rss:/ { print $2 }' /proc/$pid/smaps_rollup")?;
        ensure!(kib > 0.0, "{side:?} does not run");
        Ok(kib / 1024.0)
    }

    /// The processor's time that they have had, in milliseconds.
    pub(super) fn processor_time(&self, side: Side) -> Result<f64> {
        let ticks = self.sum(side, "sed 's/.*) //' /proc/$pid/stat | awk '{ print $12 + $13 }'")?;
        Ok(ticks * 10.0)
    }

    fn sum(&self, side: Side, figure: &str) -> Result<f64> {
        let names = side.programs().join(" ");
        let script =
            format!("for name in {names}; do for pid in $(pgrep -x \"$name\"); do {figure}; done; done");
        let text = self.guest.script(&script).run()?.text();
        Ok(text.split_whitespace().map(str::parse::<f64>).sum::<Result<f64, _>>()?)
    }

    /// What a side has started meanwhile.
    pub(super) fn started(&self, side: Side, act: impl FnOnce() -> Result<()>) -> Result<Started> {
        let (names, strace) = (side.programs().join(" "), STRACE.join(" "));
        let begin = format!(
            "pids=$(for name in {names}; do pgrep -x \"$name\"; done)
             setsid {strace} $(printf -- '-p %s ' $pids) </dev/null >/dev/null 2>&1 &
             for pid in $pids; do
               while grep -q '^TracerPid:[[:space:]]0$' /proc/$pid/status; do kill -0 $!; sleep 0.05; done
             done"
        );
        self.guest.script(&begin).run()?;
        let done = act();
        self.guest.script("pkill -INT -x strace; while pgrep -x strace; do sleep 0.05; done").run()?;
        done?;
        Ok(Started::read(&String::from_utf8_lossy(&self.guest.get(OUTPUT)?)))
    }
}
