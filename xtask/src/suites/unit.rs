//! Cargo's own tests, on this machine.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Results, Suite};
use crate::{process, progress, workspace};

/// Runs them and adds each to the results.
pub(crate) fn run(filter: &str, results: &mut Results) -> Result<()> {
    let step = progress::step("building the unit tests");
    process::run(workspace::cargo().args(["test", "--quiet", "--workspace", "--no-run"]))?;
    step.done();
    let began = Instant::now();
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast", "--"]).args(filter.split(','));
    let output = process::output(&mut cargo)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let parsed = parse(&text);
    for (test, verdict) in &parsed {
        let failure = match *verdict {
            "ok" => None,
            // A test that does not run proves nothing.
            other => Some(format!("{other}\n{}", process::last_lines(&text, 40))),
        };
        results.add(Suite::Unit.name(), test, Duration::ZERO, failure);
    }
    if !output.status.success() && parsed.iter().all(|(_, verdict)| *verdict == "ok") {
        let said = String::from_utf8_lossy(&output.stderr);
        results.add_failure(Suite::Unit.name(), "cargo test", &process::last_lines(&said, 20));
    }
    eprintln!("  {} unit tests ({})", parsed.len(), progress::seconds(began.elapsed()));
    Ok(())
}

/// Their names.
pub(crate) fn list() -> Result<Vec<String>> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--workspace", "--", "--list"]);
    let text = process::run(&mut cargo).context("the unit tests cannot be listed")?;
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// `test cache::tests::an_entry_is_made_once ... ok`
fn parse(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    lines.map(|(name, verdict)| (name, verdict.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_line_of_cargo_is_read_with_its_verdict() {
        let text = "running 2 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored\n\ntest result: FAILED. 1 passed;";
        assert_eq!(parse(text), [("a::b", "ok"), ("c", "FAILED"), ("d", "ignored")]);
    }
}
