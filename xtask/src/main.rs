//! `cargo xtask`: the lab, and what is done in it.
//!
//! - [`packages`]: what the lab is made of and does not write itself.
//! - [`guest`]: virtual machines with disks that can be plugged, broken and cut off.
//! - [`lab`]: guests and a control plane in namespaces that die with the command.
//! - [`suites`]: tests, and who runs them.
//! - [`cache`], [`progress`], [`process`], [`workspace`]: what all of them use.

mod cache;
mod commands;
mod guest;
mod lab;
mod packages;
mod process;
mod progress;
mod suites;
mod workspace;

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
        (Command::Test(options), Place::Inside(_)) => commands::test::inside(&options),
        (Command::Setup, _) => commands::setup::run(),
        (Command::Deny, _) => commands::deny::run(),
        (Command::Cache(options), _) => commands::cache::run(&options),
    }
}
