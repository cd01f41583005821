//! `cargo xtask demo`: the main job, shown end to end, and failed if a step does not do what it tells.

mod kubernetes;
mod standalone;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::cache::Cache;
use crate::cluster::programs::Version;
use crate::lab::{Lab, Prepared};

/// What is shown.
#[derive(Args)]
pub(crate) struct Options {
    /// Show the driver for one host, without Kubernetes.
    #[arg(long)]
    standalone: bool,
}

/// Enters a lab.
pub(crate) fn outside(options: &Options) -> Result<ExitCode> {
    if options.standalone {
        return super::in_a_lab("demo", None, standalone::share);
    }
    super::in_a_lab("demo", Some((Version::default(), kubernetes::node_files)), |_, _| Ok(()))
}

/// Shows it.
pub(crate) fn inside(options: &Options) -> Result<ExitCode> {
    let prepared = Prepared::load()?;
    let lab = Lab::start(&prepared)?;
    if options.standalone {
        standalone::show(&lab)?;
    } else {
        kubernetes::show(&lab, &Cache::open()?, prepared.programs()?)?;
    }
    println!("`cargo xtask lab up` starts a lab to play with.");
    Ok(ExitCode::SUCCESS)
}
