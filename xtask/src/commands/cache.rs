//! `cargo xtask cache`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

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
    Clean {
        /// Only what no command has used for two weeks, and what was left half made.
        #[arg(long)]
        old: bool,
    },
}

const OLD: Duration = Duration::from_secs(14 * 24 * 3600);

/// Shows or removes it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let directory = cache::directory()?;
    match options.what {
        None => list(&directory)?,
        Some(What::Clean { old: false }) => {
            cache::clean()?;
            println!("removed {}", directory.display());
        }
        Some(What::Clean { old: true }) => {
            for name in Cache::open()?.remove_older_than(OLD)? {
                println!("removed {name}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(directory: &Path) -> Result<()> {
    let kept = Cache::open()?.list()?;
    let mib = |bytes: u64| bytes >> 20;
    for entry in &kept {
        let state = if entry.complete { "" } else { "  (unfinished)" };
        println!("{:>8} MiB  {}{state}", mib(entry.size), entry.name);
    }
    println!("{:>8} MiB  in {}", mib(kept.iter().map(|entry| entry.size).sum()), directory.display());
    Ok(())
}
