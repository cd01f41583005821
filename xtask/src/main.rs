//! `cargo xtask`: the lab, and what is done in it.
//!
//! - [`packages`]: what the lab is made of and does not write itself.
//! - [`guest`]: virtual machines with disks that can be plugged, broken and cut off.
//! - [`lab`]: guests and a control plane in namespaces that die with the command.
//! - [`cluster`]: a real Kubernetes whose nodes are guests.
//! - [`peers`]: others' storage, to be compared with.
//! - [`suites`]: tests, and who runs them.
//! - [`mod@bench`] holds measurements.
//! - [`cache`], [`progress`], [`process`], [`workspace`]: what all of them use.

mod bench;
mod cache;
mod cluster;
mod commands;
mod deployed;
mod driver;
mod guest;
mod lab;
mod packages;
mod peers;
mod process;
mod progress;
mod suites;
mod workspace;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::lab::namespace::{self, Place};

/// The lab of lvms: a real kernel, real LVM and a real Kubernetes, on one small machine.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check what the lab needs, install what is missing, and build the outside programs into the cache.
    ///
    /// The other commands do this by themselves.
    Setup,
    /// Run the tests: all suites, or those named.
    Test(commands::test::Options),
    /// A lab to play with.
    #[command(subcommand)]
    Lab(commands::lab::Command),
    /// What a test of the lab runs in a guest.
    #[command(hide = true)]
    NativeTests { scratch: PathBuf, binaries: Vec<PathBuf> },
    /// What `lab shell` runs inside the lab.
    #[command(hide = true)]
    GuestShell {
        address: Ipv4Addr,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// The main job, shown end to end.
    Demo(commands::demo::Options),
    /// Run the benchmarks: all of them, or those named.
    Bench(commands::bench::Options),
    /// Check licences, sources, duplicates and advisories of all dependencies.
    Deny,
    /// Show what is cached and how large it is.
    Cache(commands::cache::Options),
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match (arguments.command, namespace::place()?) {
        (Command::Test(options), Place::Outside) => commands::test::outside(&options),
        (Command::Test(options), Place::Inside) => commands::test::inside(&options),
        (Command::Lab(command), Place::Outside) => commands::lab::outside(&command),
        (Command::Lab(command), Place::Inside) => commands::lab::inside(&command),
        (Command::GuestShell { address, program }, _) => guest::shell(address, program),
        (Command::Demo(options), Place::Outside) => commands::demo::outside(&options),
        (Command::Demo(options), Place::Inside) => commands::demo::inside(&options),
        (Command::Bench(options), Place::Outside) => commands::bench::outside(&options),
        (Command::Bench(options), Place::Inside) => commands::bench::inside(&options),
        (Command::NativeTests { scratch, binaries }, _) => commands::test::native(&binaries, &scratch),
        (Command::Setup, _) => commands::setup::run(),
        (Command::Deny, _) => commands::deny::run(),
        (Command::Cache(options), _) => commands::cache::run(&options),
    }
}
