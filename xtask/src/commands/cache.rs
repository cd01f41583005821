//! `cargo xtask cache`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::cache::{self, Cache};

/// What to do with the cache.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// Remove all of it. The next command builds again what it needs.
    Clean,
}

/// Shows or removes it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let directory = cache::directory()?;
    if let Some(What::Clean) = options.what {
        cache::clean()?;
        println!("removed {}", directory.display());
        return Ok(ExitCode::SUCCESS);
    }
    let kept = Cache::open()?.list()?;
    let mib = |bytes: u64| bytes >> 20;
    for entry in &kept {
        let state = if entry.complete { "" } else { "  (unfinished)" };
        println!("{:>8} MiB  {}{state}", mib(entry.size), entry.name);
    }
    println!("{:>8} MiB  in {}", mib(kept.iter().map(|entry| entry.size).sum()), directory.display());
    Ok(ExitCode::SUCCESS)
}
