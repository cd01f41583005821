//! `cargo xtask lab`: a lab to play with.
//!
//! `up` stays in the foreground: the lab dies with it. `shell` and `kubectl`, from another terminal, enter its
//! namespaces.

use std::fs;
use std::path::PathBuf;
use std::process::{Command as Process, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lab_protocol::disk::{Disk, GIB, MIB};
use serde::{Deserialize, Serialize};

use crate::cluster::programs::Version;
use crate::cluster::{Cluster, Options};
use crate::guest::{Guest, Spec};
use crate::lab::runs;
use crate::lab::{Lab, Prepared, namespace};
use crate::{cluster, progress};

/// What to do with a lab.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a lab. It lives until this command ends: by Ctrl-C, or by `lab down`.
    Up(Up),
    /// A prompt in a guest, or a program run in it.
    Shell {
        /// Which guest.
        #[arg(long, default_value = "node-0")]
        guest: String,
        #[command(flatten)]
        which: Which,
        /// The program to run instead of a shell.
        #[arg(trailing_var_arg = true)]
        program: Vec<String>,
    },
    /// kubectl, as the administrator of the lab's cluster.
    #[command(disable_help_flag = true)]
    Kubectl {
        #[command(flatten)]
        which: Which,
        /// What kubectl is told.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// End a lab.
    Down {
        #[command(flatten)]
        which: Which,
    },
}

/// Which lab, if there are several.
#[derive(Args)]
pub(crate) struct Which {
    /// The lab's name, or its name and number as `up` prints them.
    #[arg(long = "lab", value_name = "NAME")]
    name: Option<String>,
}

/// What the lab shall be.
#[derive(Args)]
pub(crate) struct Up {
    /// Its name.
    #[arg(long, default_value = "lab", value_parser = parse_name)]
    name: String,
    /// How many nodes, 1 to 3.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    nodes: u8,
    /// Disks for each node: a size, with `:4096` for large sectors, `:hdd` for a rotating one, `:faults` for a
    /// breakable one.
    #[arg(long, value_name = "SIZE[:OPTION]…", value_delimiter = ',', default_value = "20G", value_parser = parse_disk)]
    disks: Vec<Disk>,
    /// The version of Kubernetes.
    #[arg(long, value_name = "VERSION", default_value_t)]
    kubernetes: Version,
    /// Feature gates of the cluster, as `Name=true`.
    #[arg(long, value_name = "GATE", value_delimiter = ',', value_parser = parse_gate)]
    feature_gates: Vec<String>,
    /// Write every change that the API is asked for to `audit.log` in the lab's directory.
    #[arg(long)]
    audit: bool,
    /// Guests alone, without Kubernetes.
    #[arg(long)]
    bare: bool,
}

/// The file in the lab's directory that says that it is up, and how to reach it.
const ADDRESS: &str = "up.json";

/// The file that tells a lab to end.
const END: &str = "down";

#[derive(Serialize, Deserialize)]
struct Address {
    kubectl: Option<PathBuf>,
    guests: Vec<(String, std::net::Ipv4Addr)>,
}

/// Prepares and enters, or reaches a lab that is up.
pub(crate) fn outside(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Up(up) => {
            let kubernetes = (!up.bare).then_some((up.kubernetes, super::NO_FILES));
            super::in_a_lab(&up.name, kubernetes, |_, _| Ok(()))
        }
        Command::Shell { guest, which, program } => shell(&Up::find(which)?, guest, program),
        Command::Kubectl { which, arguments } => kubectl(&Up::find(which)?, arguments),
        Command::Down { which } => down(&Up::find(which)?),
    }
}

/// Runs the lab until it is told to end.
pub(crate) fn inside(command: &Command) -> Result<ExitCode> {
    let Command::Up(up) = command else { bail!("only `lab up` runs inside a lab") };
    let prepared = Prepared::load()?;
    let lab = Lab::start(&prepared)?;
    let options =
        Options { feature_gates: up.feature_gates.clone(), audit: up.audit, ..Options::nodes(up.nodes) };
    let cluster = match &prepared.programs {
        Some(programs) => Some(Cluster::start(&lab, programs, &options)?),
        None => None,
    };
    let guests = match &cluster {
        Some(cluster) => cluster.nodes().iter().map(|node| Arc::clone(&node.guest)).collect(),
        None => boot(&lab, up.nodes)?,
    };
    for guest in &guests {
        for disk in &up.disks {
            guest.plug_new(disk.clone())?;
        }
    }
    let address = Address {
        kubectl: prepared.programs.as_ref().map(|programs| programs.kubernetes.join("kubectl")),
        guests: guests.iter().map(|guest| (guest.name().to_owned(), guest.address)).collect(),
    };
    fs::write("up.half", serde_json::to_vec(&address)?)?;
    fs::rename("up.half", ADDRESS)?;
    println!("the lab {} is up; from another terminal:", up.name);
    println!("  cargo xtask lab shell --guest {}", guests.first().map_or("", |guest| guest.name()));
    if cluster.is_some() {
        println!("  cargo xtask lab kubectl get pods -A");
    }
    println!("  cargo xtask lab down      (or Ctrl-C here)");
    while !fs::exists(END)? {
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(ExitCode::SUCCESS)
}

fn boot(lab: &Arc<Lab>, count: u8) -> Result<Vec<Arc<Guest>>> {
    (0..count)
        .map(|number| {
            Guest::boot(lab, Spec { state: true, ..Spec::new(&format!("node-{number}")) }, Vec::new())
        })
        .collect()
}

/// A lab that is up.
struct Reached {
    directory: PathBuf,
    address: Address,
    /// Its first process, as this side sees it.
    first: u32,
}

impl Up {
    fn find(which: &Which) -> Result<Reached> {
        let mut up: Vec<PathBuf> =
            runs::alive()?.into_iter().filter(|run| run.join(ADDRESS).exists()).collect();
        let name_of = |run: &PathBuf| run.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(name) = &which.name {
            up.retain(|run| {
                let full = name_of(run);
                full == *name || full.rsplit_once('-').is_some_and(|(short, _)| short == name)
            });
        }
        let directory = match up.as_slice() {
            [] => bail!("no such lab is up: start one with `cargo xtask lab up`"),
            [only] => only.clone(),
            several => {
                let names: Vec<String> = several.iter().map(name_of).collect();
                bail!("several labs are up: choose with --lab one of {}", names.join(", "))
            }
        };
        let address = serde_json::from_slice(&fs::read(directory.join(ADDRESS))?)?;
        let first = namespace::first_process(&directory)?;
        Ok(Reached { directory, address, first })
    }
}

fn shell(lab: &Reached, guest: &str, program: &[String]) -> Result<ExitCode> {
    let found = lab.address.guests.iter().find(|(name, _)| name == guest);
    let names = || lab.address.guests.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let (_, address) = found.with_context(|| format!("no guest is called {guest}: there is {}", names()))?;
    let mut inside = namespace::join(lab.first);
    inside.arg(std::env::current_exe()?).arg("guest-shell").arg(address.to_string()).args(program);
    finish(&mut inside)
}

fn kubectl(lab: &Reached, arguments: &[String]) -> Result<ExitCode> {
    let program =
        lab.address.kubectl.as_ref().context("this lab has no Kubernetes: it was started with --bare")?;
    let mut inside = namespace::join(lab.first);
    inside.arg(program).arg("--kubeconfig").arg(lab.directory.join(cluster::ADMIN)).args(arguments);
    inside.env("KUBECACHEDIR", lab.directory.join(".kube"));
    finish(&mut inside)
}

fn finish(command: &mut Process) -> Result<ExitCode> {
    let status = command.status().context("nsenter")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn down(lab: &Reached) -> Result<ExitCode> {
    fs::write(lab.directory.join(END), "")?;
    let step = progress::step("ending the lab");
    let deadline = Instant::now() + Duration::from_secs(60);
    while lab.directory.exists() {
        if Instant::now() > deadline {
            bail!("the lab does not end: end its `cargo xtask lab up` with Ctrl-C");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    step.done();
    println!("ended {}", lab.directory.file_name().unwrap_or_default().to_string_lossy());
    Ok(ExitCode::SUCCESS)
}

fn parse_disk(text: &str) -> Result<Disk> {
    let mut parts = text.split(':');
    let mut disk = Disk::new(parse_size(parts.next().unwrap_or_default())?);
    for option in parts {
        disk = match option {
            "4096" => disk.sector_4096(),
            "hdd" => disk.rotational(),
            "faults" => disk.with_faults(),
            other => bail!("unknown option {other:?}: use 4096, hdd or faults"),
        };
    }
    Ok(disk)
}

fn parse_name(text: &str) -> Result<String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        bail!("{text:?} is no name: use letters, digits and hyphens");
    }
    Ok(text.to_owned())
}

fn parse_gate(text: &str) -> Result<String> {
    match text.split_once('=') {
        Some((name, "true" | "false")) if !name.is_empty() => Ok(text.to_owned()),
        _ => bail!("{text:?} is no feature gate: use Name=true or Name=false"),
    }
}

fn parse_size(text: &str) -> Result<u64> {
    let (digits, unit) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "M" => MIB,
        "G" => GIB,
        "T" => 1024 * GIB,
        _ => bail!("{text:?} is no size: use for example 500M, 20G or 1T"),
    };
    let size =
        digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|size| *size > 0);
    size.with_context(|| format!("{text:?} is no size: use for example 500M, 20G or 1T"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_gates_are_checked_before_anything_starts() {
        assert!(parse_name("my-lab2").is_ok() && parse_name("../x").is_err() && parse_name("").is_err());
        assert!(parse_gate("A=true").is_ok() && parse_gate("A=yes").is_err() && parse_gate("=true").is_err());
    }

    #[test]
    fn a_disk_is_described_by_its_size_and_options() {
        assert_eq!(parse_disk("20G").unwrap(), Disk::new(20 * GIB));
        assert_eq!(parse_disk("500M:4096:hdd").unwrap(), Disk::new(500 * MIB).sector_4096().rotational());
        for (wrong, remedy) in
            [("20", "20G"), ("0G", "20G"), ("G", "20G"), ("99999999999999T", "20G"), ("1G:ssd", "hdd")]
        {
            let error = parse_disk(wrong).unwrap_err().to_string();
            assert!(error.contains(remedy), "{wrong}: {error}");
        }
    }
}
