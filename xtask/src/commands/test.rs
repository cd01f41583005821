//! `cargo xtask test`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::cache::Cache;
use crate::cluster::programs::Version;
use crate::lab::namespace;
use crate::lab::runs::Run;
use crate::lab::{Lab, Prepared};
use crate::packages::machine;
use crate::peers;
use crate::suites::{self, Results, Suite, cluster, host, lab, topolvm, unit};

/// Which tests.
#[derive(Args)]
pub(crate) struct Options {
    /// Suites to run; all of them if none is named.
    suites: Vec<String>,
    /// Run only tests whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// The version of Kubernetes.
    #[arg(long, value_name = "VERSION", default_value_t)]
    kubernetes: Version,
    /// List the tests and run none.
    #[arg(long)]
    list: bool,
    /// Keep the logs of a run that passed, too.
    #[arg(long)]
    keep: bool,
}

impl Options {
    fn suites(&self) -> Result<Vec<Suite>> {
        if self.suites.is_empty() {
            return Ok(Suite::ALL.to_vec());
        }
        self.suites.iter().map(|name| Suite::named(name)).collect()
    }
}

/// Prepares, enters the lab for the suites that need one, and sums up.
pub(crate) fn outside(options: &Options) -> Result<ExitCode> {
    let suites = options.suites()?;
    let filter = options.filter.as_deref().unwrap_or_default();
    let in_lab: Vec<Suite> = suites.iter().copied().filter(|suite| *suite != Suite::Unit).collect();
    if options.list {
        return list(&suites, filter);
    }
    let native = host::native::wanted()?;
    let mut results = Results::default();
    if suites.contains(&Suite::Unit) {
        unit::run(filter, &mut results)?;
    }
    if in_lab.is_empty() {
        return conclude(&results, filter);
    }
    let with_kubernetes = in_lab.iter().any(|suite| suite.needs_kubernetes());
    machine::prepare(with_kubernetes)?;
    let cache = Cache::open()?;
    if suites.contains(&Suite::Lab) {
        lab::run_outside(filter, &mut results)?;
    }
    let run = Run::begin("test")?;
    let mut prepared = Prepared::make(&cache, &run.directory)?;
    let binaries = if suites.contains(&Suite::Host) || suites.contains(&Suite::Lab) {
        host::build()?
    } else {
        Vec::new()
    };
    for binary in &binaries {
        prepared.share(&run.directory, binary)?;
    }
    if suites.contains(&Suite::Host) && native {
        println!("tests that do not need a guest run on this machine's own kernel");
        host::native::run(&binaries, &run.directory, filter, &mut results)?;
    }
    if with_kubernetes {
        let peers = if in_lab.contains(&Suite::Topolvm) { peers::node_files(&cache)? } else { Vec::new() };
        prepared.with_cluster(&cache, &run.directory, options.kubernetes, &peers)?;
    }
    prepared.save(&run.directory)?;
    let code = namespace::enter(&run.directory)?;
    match Results::load(&run.directory)? {
        Some(inside) => results.append(inside),
        None => {
            results.add_failure("lab", "the whole lab", &format!("it ended early, with exit code {code}"));
        }
    }
    if options.keep || !results.passed() {
        println!("logs: {}", run.keep_logs("test")?.display());
    }
    conclude(&results, filter)
}

/// Sums up.
fn conclude(results: &Results, filter: &str) -> Result<ExitCode> {
    if results.is_empty() {
        bail!("no test matches {filter:?}: `cargo xtask test --list` shows them all");
    }
    results.print();
    Ok(if results.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the suites that need a lab: those of single guests beside those of clusters, because each waits a lot.
pub(crate) fn inside(options: &Options) -> Result<ExitCode> {
    let filter = options.filter.as_deref().unwrap_or_default();
    let prepared = Prepared::load()?;
    let started = Lab::start(&prepared)?;
    let suites = options.suites()?;
    let run = |suite: Suite, results: &mut Results| -> Result<()> {
        match suite {
            Suite::Unit => {}
            Suite::Host => host::run(&started, &prepared.tests, filter, results)?,
            Suite::Lab => lab::run_inside(&started, filter, results),
            Suite::Cluster => cluster::run(&started, prepared.programs()?, filter, results),
            Suite::Topolvm => topolvm::run(&started, &Cache::open()?, prepared.programs()?, filter, results),
        }
        Ok(())
    };
    // What goes wrong in one lane is a failure in the results, and leaves the other's alone.
    let lane = |with_kubernetes: bool| -> Results {
        let mut results = Results::default();
        for suite in suites.iter().filter(|suite| suite.needs_kubernetes() == with_kubernetes) {
            if let Err(error) = run(*suite, &mut results) {
                results.add_failure(suite.name(), "the suite runs", &format!("{error:#}"));
            }
        }
        results
    };
    let mut results = Results::default();
    std::thread::scope(|scope| {
        let clusters = scope.spawn(|| lane(true));
        results.append(lane(false));
        match clusters.join() {
            Ok(clusters) => results.append(clusters),
            Err(_) => results.add_failure("cluster", "the suites with clusters", "they panicked"),
        }
    });
    results.save()?;
    Ok(ExitCode::SUCCESS)
}

fn list(suites: &[Suite], filter: &str) -> Result<ExitCode> {
    for suite in suites {
        let names = match suite {
            Suite::Unit => unit::list()?,
            Suite::Host => host::list()?,
            Suite::Lab => lab::list(),
            Suite::Cluster => cluster::list(),
            Suite::Topolvm => topolvm::list(),
        };
        for name in names.iter().filter(|name| suites::matches(name, filter)) {
            println!("{} {name}", suite.name());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a test of the lab runs in a guest, whose kernel has what this machine's may lack.
pub(crate) fn native(binaries: &[PathBuf], scratch: &Path) -> Result<ExitCode> {
    let mut results = Results::default();
    if host::native::wanted()? {
        host::native::run(binaries, scratch, "", &mut results)?;
    }
    results.print();
    Ok(if results.passed() && !results.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
