//! What was found: one line each. Whatever is not as it should be is told with what to do.

use std::fmt::Display;
use std::path::Path;

use lvms_host::desired::lvmd::Mistake;
use lvms_host::plan::Refusal;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    Warning,
    Error,
}

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) what: String,
    pub(super) message: String,
}

/// What is wrong, and what to do about it.
pub(super) struct Trouble(String);

impl Trouble {
    /// A mistake in a file says what to do.
    pub(super) fn of_file(path: &Path, mistake: &Mistake) -> Trouble {
        Trouble(format!("{}: {mistake}", path.display()))
    }
}

impl<P: Display, R: Display> From<(P, R)> for Trouble {
    fn from((problem, remedy): (P, R)) -> Trouble {
        Trouble(format!("{problem}: {remedy}"))
    }
}

/// What the engine refuses to make of a class it refuses with what to do.
impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Trouble {
        Trouble(refusal.to_string())
    }
}

#[derive(Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, what: &str, message: impl Into<String>) {
        self.add(Verdict::Ok, what, message.into());
    }

    pub(super) fn warn(&mut self, what: &str, trouble: impl Into<Trouble>) {
        self.add(Verdict::Warning, what, trouble.into().0);
    }

    pub(super) fn error(&mut self, what: &str, trouble: impl Into<Trouble>) {
        self.add(Verdict::Error, what, trouble.into().0);
    }

    fn add(&mut self, verdict: Verdict, what: &str, message: String) {
        self.0.push(Finding { verdict, what: what.to_owned(), message });
    }

    pub(super) fn all(&self) -> &[Finding] {
        &self.0
    }
}
