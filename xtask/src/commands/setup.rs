//! `cargo xtask setup`.

use std::process::ExitCode;

use anyhow::Result;

use crate::cache::Cache;
use crate::cluster::programs::{self, Version};
use crate::packages::{machine, root};
use crate::peers;

/// Makes ready all that takes long and does not depend on this checkout's own code.
pub(crate) fn run() -> Result<ExitCode> {
    machine::prepare(true)?;
    let cache = Cache::open()?;
    root::root(&cache)?;
    programs::build(&cache, Version::default())?;
    peers::node_files(&cache)?;
    eprintln!("the lab is ready; `cargo xtask cache` shows what it keeps");
    Ok(ExitCode::SUCCESS)
}
