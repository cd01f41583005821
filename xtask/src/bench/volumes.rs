//! The driver against bare lvm2: how long volumes take, what they cost the host, how quickly bytes move.
//!
//! A program (`crates/lvms/examples/bench`) measures, in a guest and on this machine's own kernel; this file knows the
//! goals.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab_protocol::agent::{Ended, FromGuest};
use lab_protocol::disk::{Disk, GIB};
use lab_protocol::figures::Figure;

use super::Goal::{AtLeast, AtMost};
use super::{Entry, Goal, native};
use crate::guest::{Guest, Spec};
use crate::lab::{Lab, Prepared};
use crate::{driver, progress};

/// Each is the goal of the figure of that name; all must have been measured.
const GOALS: [(&str, Goal); 14] = [
    ("thick: create and delete", AtMost(1.05)),
    ("thin: create and delete", AtMost(1.05)),
    ("100 volumes by 8 callers, against a loop of lvcreate", AtMost(0.9)),
    ("thick, ext4: processes from create to delete", AtMost(6.0)),
    ("thin, xfs: processes from create to delete", AtMost(6.0)),
    ("thin, xfs, first in its pool: processes from create to delete", AtMost(6.0)),
    ("100 mounted volumes polled: processes", AtMost(0.0)),
    ("RSS after 200 volumes made and removed", AtMost(10.0)),
    ("clone: rate of the copy, against dd", AtLeast(1.0)),
    ("block: devices between what is published and the LV", AtMost(0.0)),
    ("thick, natively and inactive: create and delete", AtMost(0.5)),
    ("10,000 creates, natively: copies in LVM's archive", AtMost(75.0)),
    ("1,000 LVs, natively: RSS after they were made", AtMost(20.0)),
    ("1,000 LVs, natively: RSS of a driver that found them", AtMost(20.0)),
];

/// In MB.
const BINARY: Goal = AtMost(12.0);

/// All turns together, in an emulated guest on a busy machine.
const LIMIT: Duration = Duration::from_secs(3600);

const CONFIGURATION: &str = "\
device-classes:
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
  - {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 5}}
";

/// The driver as it is released, and the program that measures it.
pub(super) fn share(prepared: &Prepared, run: &Path) -> Result<()> {
    driver::share_release(prepared, run)?;
    driver::share_example(prepared, run, "bench")
}

/// All figures: of this machine's kernel first, which takes seconds, then a guest's.
pub(super) fn run(lab: &Arc<Lab>) -> Result<Vec<Entry>> {
    let step = progress::step("measuring on this machine's own kernel");
    let natively = native::run(lab)?;
    step.done();
    let mut figures = in_a_guest(lab)?;
    figures.extend(natively);
    let mut entries = judge(&figures)?;
    let size = fs::metadata(lab.share.join("lvms"))?.len() as f64 / 1e6;
    entries.push(Entry::new("release binary", "MB", &[size], &[], Some(BINARY)));
    Ok(entries)
}

fn in_a_guest(lab: &Arc<Lab>) -> Result<Vec<Figure>> {
    let disks = [lab.new_disk(Disk::new(20 * GIB))?, lab.new_disk(Disk::new(20 * GIB))?];
    let guest = Guest::boot(lab, Spec::new("guest"), disks.to_vec())?;
    guest.put("/run/lvmd.yaml", 0o644, CONFIGURATION)?;
    guest
        .script(
            "vgcreate vg /dev/sda
             vgcreate bare /dev/sdb
             for group in vg bare; do lvcreate -y --type thin-pool -n pool -L 4G $group; done",
        )
        .run()?;
    let mut figures = Vec::new();
    for part in ["times", "life", "copies"] {
        let measured = guest.command(["/lab/bench", part]).limit(LIMIT).follow(|frame| {
            if let FromGuest::Stdout(text) | FromGuest::Stderr(text) = frame {
                eprint!("{}", String::from_utf8_lossy(text));
            }
        })?;
        driver::keep_log(&guest, &format!("lvms-{part}.log"));
        ensure!(measured.ended == Ended::Exited(0), "`bench {part}` ended with {:?}", measured.ended);
        figures.extend(Figure::all(&measured.text())?);
    }
    Ok(figures)
}

/// Figures with their goals.
fn judge(figures: &[Figure]) -> Result<Vec<Entry>> {
    for (name, _) in GOALS {
        let count = figures.iter().filter(|figure| figure.name == name).count();
        ensure!(count == 1, "{name:?} has a goal and was measured {count} times");
    }
    let goal = |figure: &Figure| GOALS.iter().find(|(name, _)| *name == figure.name).map(|(_, goal)| *goal);
    let entry =
        |figure: &Figure| Entry::new(&figure.name, &figure.unit, &figure.ours, &figure.against, goal(figure));
    Ok(figures.iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str) -> Figure {
        Figure { name: name.into(), unit: "ms".into(), ours: vec![1.0], against: Vec::new() }
    }

    #[test]
    fn a_goal_that_was_not_measured_is_an_error() {
        let mut all: Vec<Figure> = GOALS.iter().map(|(name, _)| figure(name)).collect();
        all.push(figure("without a goal"));
        let entries = judge(&all).unwrap();
        assert_eq!(entries.iter().filter(|entry| entry.goal.is_some()).count(), GOALS.len());
        all.remove(0);
        assert!(judge(&all).unwrap_err().to_string().contains("thick: create and delete"));
    }
}
