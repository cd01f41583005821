//! `cargo xtask test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, bail};
use clap::Args;

use crate::cache::Cache;
use crate::cluster::programs::Version;
use crate::guest::kernel::Accelerator;
use crate::lab::namespace;
use crate::lab::runs::Run;
use crate::lab::{Lab, Prepared};
use crate::packages::machine;
use crate::suites::{
    self, Choice, Results, Suite, churn, cluster, host, kubernetes, lab, sanity, topolvm, unit,
};
use crate::{deployed, driver, peers, workspace};

/// Which tests.
#[derive(Args)]
pub(crate) struct Options {
    /// Suites to run; all of them if none is named.
    suites: Vec<String>,
    /// Run only tests whose name contains this, or one of several, separated by commas.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Run also the tests that take long and show once more what others show.
    #[arg(long)]
    all: bool,
    /// Let what takes minutes by its nature take more of them: the API server is away for ten.
    #[arg(long)]
    long: bool,
    /// How long the churn goes on at least, and until two hundred claims have lived; otherwise it is short.
    #[arg(long, value_name = "NUMBER")]
    minutes: Option<u64>,
    /// How chance falls in the churn, as a run has printed it; otherwise by the clock.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
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
        let named = self.suites.iter().map(|name| Suite::named(name)).collect::<Result<Vec<_>>>()?;
        Ok(Suite::ALL.into_iter().filter(|suite| named.contains(suite)).collect())
    }

    fn churn(&self) -> churn::Plan {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        churn::Plan::new(self.minutes, self.seed.unwrap_or_else(clock))
    }
}

/// Labs that divide the tests: their guests have one processor each, and wait a lot.
const LABS: [&str; 3] = ["test", "test-2", WITHOUT_CLUSTERS];

/// Clusters take memory: not every lab has them.
const WITHOUT_CLUSTERS: &str = "test-3";

/// Prepares, enters labs for the suites that need one, and sums up.
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
    machine::prepare(in_lab.iter().any(|suite| suite.needs_go()))?;
    let cache = Cache::open()?;
    let mut binaries = Vec::new();
    if suites.iter().any(|suite| suite.needs_test_binaries()) {
        binaries = host::build()?;
    }
    let mut labs = Vec::new();
    for name in LABS {
        let has = |suite: &Suite| name != WITHOUT_CLUSTERS || !suite.needs_kubernetes();
        let suites: Vec<Suite> = in_lab.iter().copied().filter(has).collect();
        if suites.is_empty() {
            continue;
        }
        let claims = labs.first().map(|(_, run): &(_, Run)| run.directory.join("claims"));
        labs.push((name, prepare(&cache, name, &suites, &binaries, options.kubernetes, claims)?));
    }
    if suites.contains(&Suite::Host)
        && native
        && let Some((_, run)) = labs.first()
    {
        println!("tests that do not need a guest run on this machine's own kernel");
        host::native::run(&binaries, &run.directory, filter, &mut results)?;
    }
    // At the same time, because each waits a lot.
    std::thread::scope(|scope| -> Result<()> {
        let outside = suites.contains(&Suite::Lab).then(|| scope.spawn(|| lab::run_outside(filter)));
        let entered: Vec<_> =
            labs.iter().map(|(_, run)| scope.spawn(|| namespace::enter(&run.directory))).collect();
        for ((name, run), entered) in labs.iter().zip(entered) {
            let code = entered.join().map_err(|_| anyhow!("a lab's thread panicked"))??;
            match Results::load(&run.directory)? {
                Some(inside) => results.append(inside),
                None => {
                    let failure = format!("it ended early, with exit code {code}");
                    results.add_failure(name, "the whole lab", &failure);
                }
            }
        }
        if let Some(outside) = outside {
            results.append(outside.join().map_err(|_| anyhow!("the thread of the lab's tests panicked"))?);
        }
        Ok(())
    })?;
    if options.keep || !results.passed() {
        for (name, run) in &labs {
            println!("logs: {}", run.keep_logs(name)?.display());
        }
    }
    conclude(&results, filter)
}

/// Makes a lab ready for these suites.
fn prepare(
    cache: &Cache,
    name: &str,
    suites: &[Suite],
    binaries: &[PathBuf],
    kubernetes: Version,
    claims: Option<PathBuf>,
) -> Result<Run> {
    let run = Run::begin(name)?;
    let mut prepared = Prepared::make(cache, &run.directory)?;
    prepared.claims = claims.unwrap_or_else(|| run.directory.join("claims"));
    fs::create_dir_all(&prepared.claims)?;
    if suites.iter().any(|suite| suite.needs_test_binaries()) {
        for binary in binaries {
            prepared.share_test(&run.directory, binary)?;
        }
    }
    if suites.contains(&Suite::Host) || suites.contains(&Suite::Sanity) {
        driver::share(&prepared, &run.directory)?;
    }
    if suites.contains(&Suite::Crash) || suites.contains(&Suite::Kubernetes) {
        driver::share_with_crash_points(&prepared, &run.directory)?;
    }
    if suites.contains(&Suite::Sanity) {
        prepared.share(&run.directory, &peers::csi_sanity(cache)?)?;
    }
    if suites.iter().any(|suite| suite.needs_kubernetes()) {
        let mut files = Vec::new();
        let ours = suites.contains(&Suite::Kubernetes) || suites.contains(&Suite::Churn);
        if suites.contains(&Suite::Topolvm) || ours {
            files.extend(peers::node_files(cache)?);
        }
        if suites.contains(&Suite::Topolvm) {
            files.push(("bin/lvms".to_owned(), workspace::build_static("lvms")?));
        }
        if suites.contains(&Suite::Topolvm) || ours {
            files.extend(deployed::node_files(&run.directory)?);
        }
        prepared.with_cluster(cache, &run.directory, kubernetes, &files)?;
    }
    prepared.suites = suites.to_vec();
    prepared.save(&run.directory)?;
    Ok(run)
}

/// Sums up.
fn conclude(results: &Results, filter: &str) -> Result<ExitCode> {
    if results.is_empty() {
        bail!("no test matches {filter:?}: `cargo xtask test --list` shows them all");
    }
    results.print();
    Ok(if results.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the suites that this lab was made ready for.
pub(crate) fn inside(options: &Options) -> Result<ExitCode> {
    let prepared = Prepared::load()?;
    let filter = options.filter.as_deref().unwrap_or_default();
    let mut choice = Choice::new(filter, options.all, &prepared.claims);
    choice.long = options.long;
    let started = Lab::start(&prepared)?;
    let asked_for = options.all || !options.suites.is_empty() || options.filter.is_some();
    choice.brief = started.kernel.accelerator == Accelerator::Emulation && !asked_for;
    if choice.brief && choice.claim("lab", "what is left out")? {
        println!(
            "guests are emulated: take-over, churn, crashes at API writes and definitions are left out; --all runs them"
        );
    }
    let run = |suite: Suite, results: &mut Results| -> Result<()> {
        match suite {
            Suite::Unit => Ok(()),
            Suite::Churn if choice.brief => Ok(()),
            Suite::Host | Suite::Crash => host::run(&started, &prepared.tests, suite, &choice, results),
            Suite::Lab => lab::run_inside(&started, &choice, results),
            Suite::Sanity => sanity::run(&started, &choice, results),
            Suite::Cluster => cluster::run(&started, prepared.programs()?, &choice, results),
            Suite::Kubernetes => {
                kubernetes::run(&started, &Cache::open()?, prepared.programs()?, &choice, results)
            }
            Suite::Churn => {
                let (cache, programs, plan) = (Cache::open()?, prepared.programs()?, options.churn());
                churn::run(&started, &cache, programs, &choice, plan, results)
            }
            Suite::Topolvm => topolvm::run(&started, &Cache::open()?, prepared.programs()?, &choice, results),
        }
    };
    let mut results = Results::default();
    for suite in &prepared.suites {
        // What goes wrong in one suite is a failure in the results, and leaves the others alone.
        if let Err(error) = run(*suite, &mut results) {
            results.add_failure(suite.name(), "the suite runs", &format!("{error:#}"));
        }
    }
    results.save()?;
    Ok(ExitCode::SUCCESS)
}

fn list(suites: &[Suite], filter: &str) -> Result<ExitCode> {
    for suite in suites {
        let names = match suite {
            Suite::Unit => unit::list()?,
            Suite::Host | Suite::Crash => host::list(*suite)?,
            Suite::Lab => lab::list(),
            Suite::Sanity => sanity::list(),
            Suite::Cluster => cluster::list(),
            Suite::Kubernetes => kubernetes::list(),
            Suite::Churn => churn::list(),
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
