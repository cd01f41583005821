//! The commands that a person types.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod demo;
pub(crate) mod deny;
pub(crate) mod lab;
pub(crate) mod setup;
pub(crate) mod test;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::cache::Cache;
use crate::cluster::programs::{NodeFile, Version};
use crate::lab::runs::Run;
use crate::lab::{Prepared, namespace};
use crate::packages::machine;

/// What nodes of a cluster need beside Kubernetes, made in a run's directory.
type NodeFiles = fn(&Cache, &Path) -> Result<Vec<NodeFile>>;

/// Nothing.
const NO_FILES: NodeFiles = |_, _| Ok(Vec::new());

/// Makes a lab ready, with Kubernetes or without and with whatever `more` puts there, and runs this command inside it.
fn in_a_lab(
    name: &str,
    kubernetes: Option<(Version, NodeFiles)>,
    more: impl FnOnce(&Prepared, &Path) -> Result<()>,
) -> Result<ExitCode> {
    machine::prepare(kubernetes.is_some())?;
    let cache = Cache::open()?;
    let run = Run::begin(name)?;
    let mut prepared = Prepared::make(&cache, &run.directory)?;
    if let Some((version, files)) = kubernetes {
        let files = files(&cache, &run.directory)?;
        prepared.with_cluster(&cache, &run.directory, version, &files)?;
    }
    more(&prepared, &run.directory)?;
    prepared.save(&run.directory)?;
    let code = namespace::enter(&run.directory)?;
    if code != 0 {
        eprintln!("logs: {}", run.keep_logs(name)?.display());
    }
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
