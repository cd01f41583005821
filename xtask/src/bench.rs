//! Benchmarks: what is measured, against what, and whether the goal is met.
//!
//! Times under emulation mean nothing alone. Both sides of a ratio are measured in one guest, in turns; what has no
//! other side has a limit.

mod lab;
mod lvm;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cluster::programs::Programs;
use crate::lab::Lab;
use crate::workspace;

/// A named set of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bench {
    /// The lab itself.
    Lab,
    /// Bare lvm2 commands.
    Lvm,
}

impl Bench {
    pub(crate) const ALL: [Bench; 2] = [Bench::Lab, Bench::Lvm];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Bench::Lab => "lab",
            Bench::Lvm => "lvm",
        }
    }

    /// The benchmark of this name.
    pub(crate) fn named(name: &str) -> Result<Bench> {
        let known = Bench::ALL.map(Bench::name).join(", ");
        let found = Bench::ALL.into_iter().find(|bench| bench.name() == name);
        found.with_context(|| format!("there is no benchmark {name:?}: use one of {known}"))
    }

    /// Whether it needs Kubernetes' programs.
    pub(crate) fn needs_kubernetes(self) -> bool {
        self == Bench::Lab
    }

    /// Measures.
    pub(crate) fn run(self, lab: &Arc<Lab>, programs: Option<&Programs>) -> Result<Vec<Entry>> {
        match self {
            Bench::Lab => lab::run(lab, programs.context("this lab was prepared without Kubernetes")?),
            Bench::Lvm => lvm::run(lab),
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// What was measured.
    pub(crate) name: String,
    /// In what.
    pub(crate) unit: String,
    /// Ours, the median.
    pub(crate) ours: f64,
    /// The other side's, if there is one.
    pub(crate) against: Option<f64>,
    /// Ours divided by the other's.
    pub(crate) ratio: Option<f64>,
    /// The most that the ratio, or ours if there is no other side, shall be.
    pub(crate) goal: Option<f64>,
    /// Whether it is.
    pub(crate) met: Option<bool>,
}

impl Entry {
    /// A time of ours, in seconds, with a limit.
    pub(crate) fn seconds(name: &str, samples: &[f64], goal: Option<f64>) -> Entry {
        let ours = median(samples);
        let met = goal.map(|goal| ours <= goal);
        Entry { name: name.into(), unit: "s".into(), ours, against: None, ratio: None, goal, met }
    }

    /// Times of both sides, in milliseconds.
    pub(crate) fn ratio(name: &str, ours: &[f64], against: &[f64], goal: Option<f64>) -> Entry {
        let (ours, against) = (median(ours), median(against));
        let ratio = ours / against;
        let met = goal.map(|goal| ratio <= goal);
        Entry {
            name: name.into(),
            unit: "ms".into(),
            ours,
            against: Some(against),
            ratio: Some(ratio),
            goal,
            met,
        }
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// Where a benchmark's figures are written.
fn file(bench: Bench) -> PathBuf {
    workspace::target().join("bench").join(format!("{}.json", bench.name()))
}

/// Writes the figures and prints them.
pub(crate) fn report(bench: Bench, entries: &[Entry]) -> Result<()> {
    let path = file(bench);
    fs::create_dir_all(path.parent().context("a file has a directory")?)?;
    fs::write(&path, serde_json::to_vec_pretty(entries)?)?;
    println!("\n{}", table(entries));
    println!("written to {}", path.display());
    Ok(())
}

fn table(entries: &[Entry]) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let mut text = format!(
        "{:<52} {:>5} {:>10} {:>10} {:>7} {:>7}  met",
        "name", "unit", "ours", "against", "ratio", "goal"
    );
    for entry in entries {
        let met = entry.met.map_or("-", |met| if met { "yes" } else { "NO" });
        text += &format!(
            "\n{:<52} {:>5} {:>10.2} {:>10} {:>7} {:>7}  {met}",
            entry.name,
            entry.unit,
            entry.ours,
            number(entry.against),
            number(entry.ratio),
            number(entry.goal),
        );
    }
    text
}

/// The figures of an earlier run.
pub(crate) fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no list of figures", path.display()))
}

/// Prints how the figures of an earlier run and those of the last one differ.
pub(crate) fn compare(bench: Bench, old: &[Entry]) -> Result<()> {
    println!("\n{}", comparison(old, &read(&file(bench))?));
    Ok(())
}

fn comparison(old: &[Entry], new: &[Entry]) -> String {
    let mut text = format!("{:<52} {:>10} {:>10} {:>8}", "name", "old", "new", "new/old");
    for entry in new {
        // Where there is another side, the ratio to it is what can be compared between two runs.
        let figure = |entry: &Entry| entry.ratio.unwrap_or(entry.ours);
        match old.iter().find(|before| before.name == entry.name) {
            Some(before) => {
                let (before, now) = (figure(before), figure(entry));
                text += &format!("\n{:<52} {before:>10.2} {now:>10.2} {:>8.2}", entry.name, now / before);
            }
            None => text += &format!("\n{:<52} {:>10} {:>10.2} {:>8}", entry.name, "-", figure(entry), "-"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]).to_bits(), 2.0f64.to_bits());
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]).to_bits(), 2.5f64.to_bits());
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_goal_is_met_by_the_ratio_or_by_the_figure_itself() {
        assert_eq!(Entry::ratio("x", &[50.0], &[100.0], Some(0.5)).met, Some(true));
        assert_eq!(Entry::ratio("x", &[51.0], &[100.0], Some(0.5)).met, Some(false));
        assert_eq!(Entry::seconds("x", &[11.0], Some(10.0)).met, Some(false));
        assert_eq!(Entry::seconds("x", &[11.0], None).met, None);
    }

    #[test]
    fn two_runs_are_compared_by_name() {
        let (old, new) = (Entry::seconds("boot", &[10.0], None), Entry::seconds("boot", &[5.0], None));
        let text = comparison(&[old], &[new, Entry::seconds("new", &[1.0], None)]);
        assert!(text.contains("10.00       5.00     0.50"), "{text}");
        assert!(text.lines().last().unwrap().starts_with("new"));
    }
}
