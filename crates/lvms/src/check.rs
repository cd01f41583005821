//! `lvms check`: what is wrong with a configuration, and with this host for it. One line each.

mod findings;
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

use self::findings::{Findings, Trouble, Verdict};
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
        Err(error) => {
            let remedy = "run it as root, and in a container with the host's processes (hostPID)";
            findings.error("host", (format!("cannot be reached: {error:#}"), remedy));
        }
    }
    match options.output {
        Form::Json => println!("{}", serde_json::to_string_pretty(findings.all())?),
        Form::Text => {
            for finding in findings.all() {
                let verdict = match finding.verdict {
                    Verdict::Ok => "ok     ",
                    Verdict::Warning => "warning",
                    Verdict::Error => "error  ",
                };
                println!("{verdict}  {}: {}", finding.what, finding.message);
            }
        }
    }
    let wrong = findings.all().iter().any(|finding| finding.verdict == Verdict::Error);
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn configuration(path: &Path, findings: &mut Findings) -> Option<Desired> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let remedy = "write it, or name another: lvms check FILE";
            findings.error("configuration", (format!("{}: {error}", path.display()), remedy));
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
                findings.warn("configuration", Trouble::of_file(path, remark));
            }
            Some(read.desired)
        }
        Err(mistakes) => {
            for mistake in &mistakes {
                findings.error("configuration", Trouble::of_file(path, mistake));
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
        Err(error) => {
            let remedy = "see what vgs says on the host, and dmesg";
            findings.error("lvm2", (format!("does not answer: {error}"), remedy));
        }
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
