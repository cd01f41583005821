//! The node: disks for ours and for bare lvm2, and what processes cost it.

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::{Disk, GIB};

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
        script += "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing\n";
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

    /// The programs that a side has started meanwhile, one line each with how often. A process counts with what it became
    /// last; threads are none.
    pub(super) fn started(
        &self,
        side: Side,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<(usize, String)>> {
        self.guest
            .script(
                "cd /sys/kernel/tracing
                 echo 0 >tracing_on; echo 16384 >buffer_size_kb; echo 1 >options/record-tgid; echo >trace
                 echo 1 >events/sched/sched_process_exec/enable; echo 1 >events/task/task_newtask/enable
                 echo 1 >tracing_on",
            )
            .run()?;
        act()?;
        let processes = side.programs().join(" ");
        let names = format!(
            "cd /sys/kernel/tracing; echo 0 >tracing_on
             parents=$(for name in {processes}; do pgrep -x \"$name\"; done | paste -s -d '|')
             children=$(grep -E \"\\( *($parents)\\) .* task_newtask: .* clone_flags=([0-9a-f]{{1,4}}|[0-9a-f]*[02468ace][0-9a-f]{{4}}) \" trace |
                 sed 's/.*task_newtask: pid=\\([0-9]*\\) .*/\\1/')
             for child in $children; do
               sed -n \"s/.* sched_process_exec: filename=\\([^ ]*\\) pid=$child .*/\\1/p\" trace | tail -1 | grep . || echo '(no program)'
             done | sort | uniq -c"
        );
        let text = self.guest.script(&names).limit(super::LIMIT).run()?.text();
        text.lines()
            .map(|line| {
                let (count, name) = line.trim().split_once(' ').context("a number and a name")?;
                Ok((count.parse()?, name.to_owned()))
            })
            .collect()
    }
}
