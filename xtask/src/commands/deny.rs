//! `cargo xtask deny`: licences, sources, duplicates and advisories of all dependencies.

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use crate::cache::Cache;
use crate::packages::cargo_deny;
use crate::{process, workspace};

/// Checks what can be checked here, and says what cannot.
pub(crate) fn run() -> Result<ExitCode> {
    let program = cargo_deny::program(&Cache::open()?)?;
    let check = |what: &[&str]| {
        let mut deny = Command::new(&program);
        deny.current_dir(workspace::directory()).args(["--log-level", "warn", "check"]).args(what);
        process::output(&mut deny)
    };
    let checked = check(&["bans", "licenses", "sources"])?;
    eprint!("{}", String::from_utf8_lossy(&checked.stderr));
    if !checked.status.success() {
        bail!("cargo deny refuses a dependency: see above, and deny.toml");
    }
    let advisories = check(&["advisories"])?;
    let said = String::from_utf8_lossy(&advisories.stderr);
    if advisories.status.success() {
        println!("bans, licenses, sources and advisories are fine");
    } else if said.contains("failed to fetch advisory database") {
        println!(
            "bans, licenses and sources are fine; NOT checked: advisories, their database cannot be fetched here"
        );
    } else {
        eprint!("{said}");
        bail!("a dependency has an advisory: see above");
    }
    Ok(ExitCode::SUCCESS)
}
