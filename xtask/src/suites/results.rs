//! How the tests went.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::parts::Parts;
use crate::progress::seconds;

/// The file by which the inside tells the outside.
const FILE: &str = "results.json";

/// How all tests so far went.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results(Vec<Outcome>);

#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    suite: String,
    test: String,
    time: Duration,
    failure: Option<String>,
}

impl Results {
    /// Runs one test and prints how it went.
    pub(crate) fn run(&mut self, suite: &str, test: &str, body: impl FnOnce() -> Result<()>) -> bool {
        let began = std::time::Instant::now();
        let failure = failure_of(body);
        self.add(suite, test, began.elapsed(), failure)
    }

    /// Runs one test of several parts and prints how each went.
    pub(super) fn run_parts(
        &mut self,
        suite: &str,
        names: &[&'static str],
        body: impl FnOnce(&Parts) -> Result<()>,
    ) -> bool {
        let parts = Parts::new();
        let failure = failure_of(|| body(&parts));
        let mut passed = true;
        for part in parts.end(names, failure) {
            passed &= self.add(suite, part.name, part.time, part.failure);
        }
        passed
    }

    /// Adds a test that was run elsewhere and prints how it went.
    pub(crate) fn add(&mut self, suite: &str, test: &str, time: Duration, failure: Option<String>) -> bool {
        let passed = failure.is_none();
        println!("{} {suite} {test} ({})", if passed { "ok  " } else { "FAIL" }, seconds(time));
        if let Some(failure) = &failure {
            println!("     {}", failure.replace('\n', "\n     "));
        }
        self.0.push(Outcome { suite: suite.to_owned(), test: test.to_owned(), time, failure });
        passed
    }

    pub(crate) fn add_failure(&mut self, suite: &str, test: &str, failure: &str) {
        self.add(suite, test, Duration::ZERO, Some(failure.to_owned()));
    }

    pub(crate) fn append(&mut self, mut other: Results) {
        self.0.append(&mut other.0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn passed(&self) -> bool {
        self.0.iter().all(|outcome| outcome.failure.is_none())
    }

    /// The failures once more, and the line that counts.
    pub(crate) fn print(&self) {
        println!();
        let failures = self.0.iter().filter_map(|outcome| Some((outcome, outcome.failure.as_ref()?)));
        let mut failed = 0;
        for (outcome, failure) in failures {
            failed += 1;
            println!(
                "FAILED: {} {}: {}",
                outcome.suite,
                outcome.test,
                failure.lines().next().unwrap_or_default()
            );
        }
        println!("{} passed, {failed} failed", self.0.len() - failed);
    }

    /// Leaves them for the outside, in the present directory.
    pub(crate) fn save(&self) -> Result<()> {
        Ok(fs::write(FILE, serde_json::to_vec(self)?)?)
    }

    /// Finds what the inside left, if it came that far.
    pub(crate) fn load(run: &Path) -> Result<Option<Results>> {
        let path = run.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&fs::read(path)?)?))
    }
}

/// A panic fails its test and no other; the next one makes what it needs anew.
fn failure_of(body: impl FnOnce() -> Result<()>) -> Option<String> {
    let ended = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| bail!("panicked"));
    ended.err().map(|error| format!("{error:#}"))
}
