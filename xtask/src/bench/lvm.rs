//! Bare lvm2 commands, as the host's configuration has them and with `use_aio = 0`, which lvms will set: the baseline
//! for everything that is built on them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use lab_protocol::disk::{Disk, GIB};

use super::Entry;
use crate::guest::{Guest, Spec};
use crate::lab::Lab;

const ROUNDS: u32 = 15;

/// What is measured: a name, and the commands, of which `$n` is the round.
const COMMANDS: [(&str, &str); 6] = [
    ("lvs", "lvs"),
    ("lvcreate and lvremove, thick", "lvcreate -qq -y -n x$n -L 32M vg && lvremove -qq -y vg/x$n"),
    (
        "lvcreate and lvremove, thin",
        "lvcreate -qq -y -n x$n -V 1G --thinpool vg/pool && lvremove -qq -y vg/x$n",
    ),
    ("thin snapshot, made and removed", "lvcreate -qq -y -n x$n -s -kn vg/origin && lvremove -qq -y vg/x$n"),
    ("lvextend by one extent", "lvextend -qq -l +1 vg/thick"),
    ("lvchange, a tag added", "lvchange -qq --addtag t$n vg/thick"),
];

/// Each command in turns, with the one configuration and with the other.
pub(super) fn run(lab: &Arc<Lab>) -> Result<Vec<Entry>> {
    let guest = Guest::boot(lab, Spec::new("guest"), vec![lab.new_disk(Disk::new(8 * GIB))?])?;
    guest
        .script(
            "mkdir -p /run/without-aio
             cp -r /etc/lvm/. /run/without-aio/
             printf 'global { use_aio = 0 }\\n' >> /run/without-aio/lvm.conf
             vgcreate vg /dev/sda
             lvcreate -y --type thin-pool -n pool -L 2G vg
             lvcreate -y -n origin -V 1G --thinpool vg/pool
             lvcreate -y -n thick -L 32M vg",
        )
        .run()?;
    COMMANDS.iter().map(|(name, command)| measure(&guest, name, command)).collect()
}

fn measure(guest: &Guest, name: &str, command: &str) -> Result<Entry> {
    let script = format!(
        "for n in $(seq 1 {ROUNDS}); do
           for directory in /run/without-aio /etc/lvm; do
             export LVM_SYSTEM_DIR=$directory
             began=$(date +%s%N); {{ {command}; }} >/dev/null; ended=$(date +%s%N)
             echo $directory $((ended - began))
             n=${{n}}b
           done
         done"
    );
    let text = guest.script(&script).limit(Duration::from_secs(600)).run()?.text();
    let samples = |directory: &str| -> Result<Vec<f64>> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(directory));
        lines.map(|line| Ok(line.trim().parse::<f64>().context("date printed no number")? / 1e6)).collect()
    };
    let (ours, against) = (samples("/run/without-aio")?, samples("/etc/lvm")?);
    Ok(Entry::ratio(&format!("{name}: use_aio=0 against default"), &ours, &against, None))
}
