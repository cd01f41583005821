//! `lvms check`: what is wrong with a configuration, and with this host for it. One line each.

mod groups;
mod policy;
mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lvms_host::desired::{Desired, lvmd};
use lvms_host::runner::{Linux, Runner};
use serde::Serialize;

use crate::host;
use lvms_node::configuration;

/// What to check, and how to say it.
#[derive(Args)]
pub(crate) struct Options {
    /// The configuration.
    #[arg(value_name = "FILE", default_value = configuration::DEFAULT)]
    config: PathBuf,
    /// How to print.
    #[arg(short, long, default_value = "text", value_name = "FORM")]
    output: Form,
    /// lvm2's program on the host.
    #[arg(long, value_name = "FILE")]
    lvm_path: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Error,
}

/// One line.
#[derive(Debug, Serialize)]
struct Finding {
    verdict: Verdict,
    what: String,
    message: String,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, verdict: Verdict, what: &str, message: impl Into<String>) {
        self.0.push(Finding { verdict, what: what.to_owned(), message: message.into() });
    }

    fn ok(&mut self, what: &str, message: impl Into<String>) {
        self.add(Verdict::Ok, what, message);
    }

    fn warn(&mut self, what: &str, message: impl Into<String>) {
        self.add(Verdict::Warning, what, message);
    }

    fn error(&mut self, what: &str, message: impl Into<String>) {
        self.add(Verdict::Error, what, message);
    }
}

/// Checks and prints. The exit code is 0 unless there is an error.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut findings = Findings::default();
    let desired = configuration(&options.config, &mut findings);
    let host = host::options(
        &desired.clone().unwrap_or_default(),
        options.lvm_path.as_deref(),
        Path::new("/run/lvms"),
    );
    match host.and_then(|host| Ok(Linux::new(host)?)) {
        Ok(linux) => check_host(&linux, desired.as_ref(), &mut findings),
        Err(error) => findings.error("host", format!("cannot be reached: {error:#}")),
    }
    match options.output {
        Form::Json => println!("{}", serde_json::to_string_pretty(&findings.0)?),
        Form::Text => {
            for finding in &findings.0 {
                let verdict = match finding.verdict {
                    Verdict::Ok => "ok     ",
                    Verdict::Warning => "warning",
                    Verdict::Error => "error  ",
                };
                println!("{verdict}  {}: {}", finding.what, finding.message);
            }
        }
    }
    let wrong = findings.0.iter().any(|finding| finding.verdict == Verdict::Error);
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn configuration(path: &Path, findings: &mut Findings) -> Option<Desired> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            findings.error("configuration", format!("{}: {error}", path.display()));
            return None;
        }
    };
    match lvmd::read(&text) {
        Ok(read) => {
            findings.ok(
                "configuration",
                format!("{}: {} device classes", path.display(), read.desired.classes.len()),
            );
            for remark in &read.remarks {
                findings.warn("configuration", format!("{}: {remark}", path.display()));
            }
            Some(read.desired)
        }
        Err(mistakes) => {
            for mistake in &mistakes {
                findings.error("configuration", format!("{}: {mistake}", path.display()));
            }
            None
        }
    }
}

fn check_host(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    // Before LVM is asked: a command that hangs with devices suspended lets it wait.
    groups::check_suspended(linux, desired, findings);
    // lvm2 loads device-mapper, and makes its device node.
    let runs = programs::check_version(linux, findings);
    programs::check_kernel(linux, desired, findings);
    programs::check_tools(linux, desired, findings);
    programs::check_control_group(linux, findings);
    if !runs {
        return;
    }
    programs::check_features(linux, desired, findings);
    let inventory = linux.inventory(None);
    let mut lost = Vec::new();
    match &inventory {
        Err(error) => findings.error("lvm2", format!("does not answer: {error}")),
        Ok(inventory) => {
            let groups = desired.iter().flat_map(|desired| desired.groups());
            lost.extend(groups.filter(|group| !inventory.groups.contains_key(*group)));
            if let Some(desired) = desired {
                groups::check(linux, desired, inventory, findings);
            }
        }
    }
    policy::check(linux, &lost, findings);
}
