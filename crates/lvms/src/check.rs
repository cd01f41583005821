//! `lvms check`: what is wrong with a configuration, and with this host for it. One line each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lvms_host::desired::{ClassKind, Desired, lvmd};
use lvms_host::facts::Facts;
use lvms_host::filesystem::Filesystem;
use lvms_host::lvm::inventory::Inventory;
use lvms_host::plan::capacity::Situation;
use lvms_host::runner::{Linux, Program, Runner};
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
    check_suspended(linux, desired, findings);
    check_version(linux, findings);
    check_kernel(linux, desired, findings);
    check_tools(linux, findings);
    match linux.inventory(None) {
        Err(error) => findings.error("lvm2", format!("does not answer: {error}")),
        Ok(inventory) => {
            if let Some(desired) = desired {
                check_groups(linux, desired, &inventory, findings);
            }
        }
    }
    check_policy(linux, findings);
}

/// The oldest lvm2 that does what is asked of it.
const OLDEST: (u32, u32, u32) = (2, 3, 14);

fn check_version(linux: &Linux, findings: &mut Findings) {
    let program = Program::looks(["lvm", "version"], Duration::from_secs(30));
    let text = match linux.run(&program).map(|finished| finished.text()) {
        Ok(text) => text,
        Err(error) => return findings.error("lvm2", format!("{error}: install lvm2 on the host")),
    };
    let version = text.lines().find_map(|line| line.trim().strip_prefix("LVM version:"));
    match version.map(str::trim).and_then(|version| Some((version, parse_version(version)?))) {
        Some((version, number)) if number < OLDEST => {
            findings.error("lvm2", format!("version {version} is older than 2.03.14: update it"));
        }
        Some((version, _)) => findings.ok("lvm2", format!("version {version}")),
        None => findings.warn("lvm2", "its version cannot be told"),
    }
}

/// `2.03.16(2) (2022-05-18)`
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text.split(['.', '(', ' ']).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn check_kernel(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    if let Err(error) = linux.device("lvms-check") {
        return findings.error("kernel", format!("device-mapper does not answer: {error}: load dm_mod"));
    }
    findings.ok("kernel", "device-mapper answers");
    let thin = desired.is_some_and(|desired| desired.classes.iter().any(|class| class.pool().is_some()));
    let program = Program::looks(["dmsetup", "targets"], Duration::from_secs(30));
    let Ok(targets) = linux.run(&program).map(|finished| finished.text()) else { return };
    let has = |target: &str| targets.lines().any(|line| line.split_whitespace().next() == Some(target));
    for (target, needed) in [("thin-pool", thin), ("snapshot", false), ("raid", false)] {
        if has(target) {
            findings.ok("kernel", format!("target {target} is loaded"));
        } else if needed {
            findings.warn(
                "kernel",
                format!("target {target} is not loaded: it will be when a pool is activated"),
            );
        }
    }
}

fn check_tools(linux: &Linux, findings: &mut Findings) {
    let tools = [
        "blkid",
        "wipefs",
        "mkfs.ext4",
        "e2fsck",
        "resize2fs",
        "mkfs.xfs",
        "xfs_growfs",
        "mkfs.btrfs",
        "btrfs",
        "btrfstune",
    ];
    let mut missing = Vec::new();
    for tool in tools {
        let program = Program::looks([tool, "--version"], Duration::from_secs(30));
        if linux.run(&program).is_err() {
            missing.push(tool);
        }
    }
    for tool in &missing {
        let needed = matches!(*tool, "blkid" | "wipefs");
        let filesystem = Filesystem::ALL.into_iter().find(|kind| {
            tool.contains(kind.name()) || (tool.starts_with("btrfs") && *kind == Filesystem::Btrfs)
        });
        match filesystem {
            _ if needed => findings.error("tools", format!("{tool} is not on the host: install util-linux")),
            Some(kind) => {
                findings.warn("tools", format!("{tool} is not on the host: no {kind} volumes can be had"));
            }
            None => findings.warn("tools", format!("{tool} is not on the host")),
        }
    }
    if missing.is_empty() {
        findings.ok("tools", "all are on the host");
    }
}

fn check_suspended(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    for group in desired.iter().flat_map(|desired| desired.groups()) {
        for device in linux.suspended(group).unwrap_or_default() {
            let message = format!(
                "device {device} is suspended, and all I/O to it waits: an LVM command is at work in the group, hangs, \
                 or was killed; if none runs, run dmsetup resume {device}"
            );
            findings.error(&format!("volume group {group}"), message);
        }
    }
}

fn check_groups(linux: &Linux, desired: &Desired, inventory: &Inventory, findings: &mut Findings) {
    let pool = |path: &lvms_host::names::VolumePath| linux.pool(path).ok().flatten();
    let situation = Situation { inventory, pool: &pool };
    for class in &desired.classes {
        let what = format!("class {}", class.name);
        let options = if matches!(class.kind, ClassKind::Thick) { class.options.clone() } else { Vec::new() };
        match situation.largest(class, &options) {
            Ok(free) if free.0 == 0 => findings.warn(&what, "has no room for another volume"),
            Ok(free) => findings.ok(&what, format!("has room for a volume of {free}")),
            Err(refusal) => findings.error(&what, refusal.to_string()),
        }
    }
    for name in desired.groups() {
        let Some(group) = inventory.groups.get(name) else { continue };
        let what = format!("volume group {name}");
        let (size, free) = group.metadata;
        if free.0 * 5 < size.0 / 2 {
            let message = format!(
                "its metadata area has {free} of {} left: it limits the number of volumes",
                lvms_host::units::Bytes(size.0 / 2)
            );
            findings.warn(&what, message);
        }
        for volume in group.volumes.values() {
            let facts = Facts::of(volume);
            if let Some(owner) = &facts.temporary {
                findings.warn(
                    &what,
                    format!(
                        "{} was left by a copy for {owner}: it goes when that volume is removed",
                        volume.name
                    ),
                );
            }
            if facts.is_ours() && volume.attribute(10) == 'k' {
                findings.warn(
                    &what,
                    format!(
                        "{} is skipped when the host activates volumes: run lvchange -kn on it",
                        volume.name
                    ),
                );
            }
        }
    }
}

fn check_policy(linux: &Linux, findings: &mut Findings) {
    let arguments = [
        "lvm",
        "lvmconfig",
        "--typeconfig",
        "full",
        "activation/auto_activation_volume_list",
        "activation/volume_list",
        "devices/filter",
        "devices/multipath_component_detection",
    ];
    let program = Program::looks(arguments, Duration::from_secs(30));
    let Ok(text) = linux.run(&program).map(|finished| finished.text()) else { return };
    for line in text.lines().map(str::trim) {
        match line.split_once('=') {
            Some((key @ ("auto_activation_volume_list" | "volume_list"), list)) => {
                findings.warn(
                    "lvm.conf",
                    format!("{key} is {list}: volumes outside it are not active after a boot"),
                );
            }
            Some(("filter", filter)) if !filter.contains("a|.*|") => {
                findings.warn("lvm.conf", format!("filter is {filter}: disks that it rejects are not seen"));
            }
            Some(("multipath_component_detection", "0")) => {
                findings
                    .warn("lvm.conf", "multipath_component_detection is off: a path may be taken for a disk");
            }
            _ => {}
        }
    }
}
