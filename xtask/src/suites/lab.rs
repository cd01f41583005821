//! The lab itself: what guests can do for a test, and how labs and wrong input are dealt with.
//!
//! [`guests`] runs inside a lab. [`commands`] runs outside, because it starts labs of its own.

mod commands;
mod guests;

use std::sync::Arc;

use anyhow::Result;

use super::{Choice, Results, Suite, matches};
use crate::lab::Lab;

/// Their names.
pub(crate) fn list() -> Vec<String> {
    let inside = guests::CASES.iter().map(|(name, _)| *name);
    inside.chain(commands::CASES.iter().map(|(name, _)| *name)).map(str::to_owned).collect()
}

/// Runs those that need a lab.
pub(crate) fn run_inside(lab: &Arc<Lab>, choice: &Choice, results: &mut Results) -> Result<()> {
    for (name, body) in guests::CASES.iter().filter(|(name, _)| choice.matches(name)) {
        if choice.claim(Suite::Lab.name(), name)? {
            results.run(Suite::Lab.name(), name, || body(lab));
        }
    }
    Ok(())
}

/// Runs those that start commands of their own.
pub(crate) fn run_outside(filter: &str) -> Results {
    let mut results = Results::default();
    for (name, body) in commands::CASES.iter().filter(|(name, _)| matches(name, filter)) {
        results.run(Suite::Lab.name(), name, body);
    }
    results
}
