//! `cargo xtask bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::bench::{self, Bench};
use crate::cluster::programs::Version;
use crate::lab::{Lab, Prepared};

/// Which benchmarks.
#[derive(Args)]
pub(crate) struct Options {
    /// Benchmarks to run: lab (the lab itself), lvm (bare lvm2), volumes (the driver against bare lvm2), topolvm (in
    /// Kubernetes, against TopoLVM); all of them if none is named. Figures are printed and written to target/bench/NAME.json.
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
    if options.compare.is_some() && benches.len() != 1 {
        bail!("--compare takes the figures of one benchmark: name it");
    }
    // Read before the run, which may write the same file.
    let old = options.compare.as_ref().map(|path| bench::read(path)).transpose()?;
    let files = if benches.contains(&Bench::Topolvm) { bench::node_files } else { super::NO_FILES };
    let with_kubernetes = benches.iter().any(|bench| bench.needs_kubernetes());
    let kubernetes = with_kubernetes.then(|| (Version::default(), files));
    let code = super::in_a_lab("bench", kubernetes, |prepared, run| {
        benches.iter().try_for_each(|bench| bench.share(prepared, run))
    })?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    if let (Some(old), [bench]) = (old, benches.as_slice()) {
        bench::compare(*bench, &old)?;
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
