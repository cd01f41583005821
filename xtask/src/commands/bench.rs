//! `cargo xtask bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::bench::{self, Bench};
use crate::cache::Cache;
use crate::cluster::programs::Version;
use crate::lab::runs::Run;
use crate::lab::{Lab, Prepared, namespace};
use crate::packages::machine;

/// Which benchmarks.
#[derive(Args)]
pub(crate) struct Options {
    /// Benchmarks to run; all of them if none is named.
    names: Vec<String>,
    /// Also show how the figures differ from those of an earlier run.
    #[arg(long, value_name = "OLD.JSON")]
    compare: Option<PathBuf>,
}

impl Options {
    fn benches(&self) -> Result<Vec<Bench>> {
        if self.names.is_empty() {
            return Ok(Bench::ALL.to_vec());
        }
        self.names.iter().map(|name| Bench::named(name)).collect()
    }
}

/// Prepares and enters the lab.
pub(crate) fn outside(options: &Options) -> Result<ExitCode> {
    let benches = options.benches()?;
    if let Some(old) = &options.compare {
        if benches.len() != 1 {
            bail!("--compare takes the figures of one benchmark: name it");
        }
        if !old.exists() {
            bail!("there is no {}", old.display());
        }
    }
    machine::prepare()?;
    let cache = Cache::open()?;
    let run = Run::begin("bench")?;
    let mut prepared = Prepared::make(&cache, &run.directory)?;
    if benches.iter().any(|bench| bench.needs_kubernetes()) {
        prepared.with_cluster(&cache, &run.directory, Version::default(), &[])?;
    }
    prepared.save(&run.directory)?;
    if namespace::enter(&run.directory)? != 0 {
        eprintln!("logs: {}", run.keep_logs("bench")?.display());
        return Ok(ExitCode::FAILURE);
    }
    if let (Some(old), [bench]) = (&options.compare, benches.as_slice()) {
        bench::compare(*bench, old)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures and reports.
pub(crate) fn inside(options: &Options) -> Result<ExitCode> {
    let prepared = Prepared::load()?;
    let lab = Lab::start(&prepared)?;
    for bench in options.benches()? {
        bench::report(bench, &bench.run(&lab, prepared.programs.as_ref())?)?;
    }
    Ok(ExitCode::SUCCESS)
}
