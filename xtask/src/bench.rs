//! Benchmarks: what is measured, against what, and whether the goal is met.
//!
//! Times under emulation mean nothing alone. Both sides of a ratio are measured in one guest, in turns; what has no
//! other side has a limit.

mod lab;
mod lvm;
mod native;
mod topolvm;
mod volumes;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cluster::programs::Programs;
use crate::lab::{Lab, Prepared};
use crate::workspace;

/// What nodes of a cluster need for the benchmark against TopoLVM.
pub(crate) use topolvm::node_files;

/// A named set of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bench {
    /// The lab itself.
    Lab,
    /// Bare lvm2 commands.
    Lvm,
    /// The driver, against bare lvm2.
    Volumes,
    /// Volumes of a Kubernetes, against TopoLVM and bare lvm2.
    Topolvm,
}

impl Bench {
    pub(crate) const ALL: [Bench; 4] = [Bench::Lab, Bench::Lvm, Bench::Volumes, Bench::Topolvm];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Bench::Lab => "lab",
            Bench::Lvm => "lvm",
            Bench::Volumes => "volumes",
            Bench::Topolvm => "topolvm",
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
        matches!(self, Bench::Lab | Bench::Topolvm)
    }

    /// Puts what it needs where guests see it.
    pub(crate) fn share(self, prepared: &Prepared, run: &Path) -> Result<()> {
        match self {
            Bench::Lab | Bench::Lvm => Ok(()),
            Bench::Volumes => volumes::share(prepared, run),
            Bench::Topolvm => topolvm::share(prepared, run),
        }
    }

    /// Measures.
    pub(crate) fn run(self, lab: &Arc<Lab>, programs: Option<&Programs>) -> Result<Vec<Entry>> {
        match self {
            Bench::Lab => lab::run(lab, programs.context("this lab was prepared without Kubernetes")?),
            Bench::Lvm => lvm::run(lab),
            Bench::Volumes => volumes::run(lab),
            Bench::Topolvm => {
                topolvm::run(lab, programs.context("this lab was prepared without Kubernetes")?)
            }
        }
    }
}

/// What a ratio shall be, or ours if there is no other side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
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
    /// What the ratio, or ours if there is no other side, shall be at most.
    pub(crate) goal: Option<f64>,
    /// At least, instead.
    #[serde(default)]
    pub(crate) at_least: bool,
    /// Whether it is.
    pub(crate) met: Option<bool>,
}

impl Entry {
    /// Medians of ours and, if there is another side, of that.
    pub(crate) fn new(name: &str, unit: &str, ours: &[f64], against: &[f64], goal: Option<Goal>) -> Entry {
        let ours = median(ours);
        let against = (!against.is_empty()).then(|| median(against));
        let ratio = against.map(|against| ours / against);
        let judged = ratio.unwrap_or(ours);
        let (limit, at_least, met) = match goal {
            None => (None, false, None),
            Some(Goal::AtMost(most)) => (Some(most), false, Some(judged <= most)),
            Some(Goal::AtLeast(least)) => (Some(least), true, Some(judged >= least)),
        };
        Entry { name: name.into(), unit: unit.into(), ours, against, ratio, goal: limit, at_least, met }
    }

    /// The other's figure stands beside ours; the goal is a number of our own.
    pub(crate) fn beside(self, theirs: f64) -> Entry {
        Entry { against: Some(theirs), ..self }
    }

    /// A time of ours, in seconds, with a limit.
    pub(crate) fn seconds(name: &str, samples: &[f64], most: Option<f64>) -> Entry {
        Entry::new(name, "s", samples, &[], most.map(Goal::AtMost))
    }

    /// Times of both sides, in milliseconds.
    pub(crate) fn ratio(name: &str, ours: &[f64], against: &[f64], most: Option<f64>) -> Entry {
        Entry::new(name, "ms", ours, against, most.map(Goal::AtMost))
    }

    fn goal(&self) -> String {
        let sign = if self.at_least { '≥' } else { '≤' };
        self.goal.map_or("-".to_owned(), |goal| format!("{sign} {goal:.2}"))
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
        "{:<60} {:>5} {:>10} {:>10} {:>7} {:>7}  met",
        "name", "unit", "ours", "against", "ratio", "goal"
    );
    for entry in entries {
        let met = entry.met.map_or("-", |met| if met { "yes" } else { "NO" });
        text += &format!(
            "\n{:<60} {:>5} {:>10.2} {:>10} {:>7} {:>7}  {met}",
            entry.name,
            entry.unit,
            entry.ours,
            number(entry.against),
            number(entry.ratio),
            entry.goal(),
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
    let mut text = format!("{:<60} {:>10} {:>10} {:>8}", "name", "old", "new", "new/old");
    for entry in new {
        // Where there is another side, the ratio to it is what can be compared between two runs.
        let figure = |entry: &Entry| entry.ratio.unwrap_or(entry.ours);
        match old.iter().find(|before| before.name == entry.name) {
            Some(before) => {
                let (before, now) = (figure(before), figure(entry));
                text += &format!("\n{:<60} {before:>10.2} {now:>10.2} {:>8.2}", entry.name, now / before);
            }
            None => text += &format!("\n{:<60} {:>10} {:>10.2} {:>8}", entry.name, "-", figure(entry), "-"),
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
    fn a_goal_can_be_the_least_and_the_table_says_so() {
        let rate = |ours| Entry::new("copy", "MiB/s", &[ours], &[100.0], Some(Goal::AtLeast(1.0)));
        assert_eq!((rate(101.0).met, rate(99.0).met), (Some(true), Some(false)));
        assert!(table(&[rate(99.0)]).contains("0.99  ≥ 1.00  NO"), "{}", table(&[rate(99.0)]));
    }

    #[test]
    fn figures_of_a_run_before_minima_can_be_read() {
        let old = r#"{"name":"x","unit":"s","ours":1.0,"against":null,"ratio":null,"goal":2.0,"met":true}"#;
        assert_eq!(serde_json::from_str::<Entry>(old).unwrap(), Entry::seconds("x", &[1.0], Some(2.0)));
    }

    #[test]
    fn two_runs_are_compared_by_name() {
        let (old, new) = (Entry::seconds("boot", &[10.0], None), Entry::seconds("boot", &[5.0], None));
        let text = comparison(&[old], &[new, Entry::seconds("new", &[1.0], None)]);
        assert!(text.contains("10.00       5.00     0.50"), "{text}");
        assert!(text.lines().last().unwrap().starts_with("new"));
    }
}
