//! `cargo xtask setup`.

use std::process::ExitCode;

use anyhow::Result;

use crate::cache::Cache;
use crate::packages::{machine, root};

/// Makes ready all that takes long and does not depend on this checkout's own code.
pub(crate) fn run() -> Result<ExitCode> {
    machine::prepare()?;
    let cache = Cache::open()?;
    root::root(&cache)?;
    eprintln!("the lab is ready");
    Ok(ExitCode::SUCCESS)
}
