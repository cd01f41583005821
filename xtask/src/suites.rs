//! Tests and who runs them.
//!
//! - [`unit`]: cargo's own, on this machine.
//! - [`host`]: test binaries that run in guests.
//! - `crash`: those of them that kill the driver at every point.
//! - [`lab`]: the lab itself.
//! - [`sanity`]: csi-sanity against the standalone driver.
//! - [`cluster`]: a Kubernetes with three nodes.
//! - [`kubernetes`]: lvms in a Kubernetes with three nodes.
//! - [`churn`]: lvms in a Kubernetes where everything is killed at random times.
//! - [`topolvm`]: TopoLVM in a Kubernetes with one node.

mod books;
mod choice;
pub(crate) mod churn;
pub(crate) mod cluster;
pub(crate) mod host;
pub(crate) mod kubernetes;
pub(crate) mod lab;
mod parts;
mod results;
pub(crate) mod sanity;
pub(crate) mod stage;
pub(crate) mod topolvm;
pub(crate) mod unit;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub(crate) use choice::Choice;
pub(crate) use results::Results;

/// A named set of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Suite {
    Unit,
    Host,
    Crash,
    Lab,
    Sanity,
    Cluster,
    Kubernetes,
    Churn,
    Topolvm,
}

impl Suite {
    /// Whether it needs Kubernetes' programs.
    pub(crate) fn needs_kubernetes(self) -> bool {
        match self {
            Suite::Unit | Suite::Host | Suite::Crash | Suite::Lab | Suite::Sanity => false,
            Suite::Cluster | Suite::Kubernetes | Suite::Churn | Suite::Topolvm => true,
        }
    }

    /// Whether it needs programs that are built from Go modules.
    pub(crate) fn needs_go(self) -> bool {
        self.needs_kubernetes() || self == Suite::Sanity
    }

    /// Whether it needs the binaries of tests that run in guests.
    pub(crate) fn needs_test_binaries(self) -> bool {
        matches!(self, Suite::Host | Suite::Crash | Suite::Lab)
    }

    /// All of them. What takes long in one piece comes first, so that the rest can be divided evenly.
    pub(crate) const ALL: [Suite; 9] = [
        Suite::Unit,
        Suite::Topolvm,
        Suite::Kubernetes,
        Suite::Churn,
        Suite::Cluster,
        Suite::Crash,
        Suite::Sanity,
        Suite::Host,
        Suite::Lab,
    ];

    /// What a person calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Unit => "unit",
            Suite::Host => "host",
            Suite::Crash => "crash",
            Suite::Lab => "lab",
            Suite::Sanity => "sanity",
            Suite::Cluster => "cluster",
            Suite::Kubernetes => "kubernetes",
            Suite::Churn => "churn",
            Suite::Topolvm => "topolvm",
        }
    }

    /// The suite of this name.
    pub(crate) fn named(name: &str) -> Result<Suite> {
        let known = Suite::ALL.map(Suite::name).join(", ");
        let found = Suite::ALL.into_iter().find(|suite| suite.name() == name);
        found.with_context(|| format!("there is no suite {name:?}: use one of {known}"))
    }
}

/// Whether a test is among those asked for: `filter` is a part of its name, or several, separated by commas.
pub(crate) fn matches(name: &str, filter: &str) -> bool {
    filter.split(',').any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_parts_of_a_name_is_enough() {
        assert!(matches("thin_volumes", "") && matches("thin_volumes", "thin"));
        assert!(matches("thin_volumes", "thick,vol") && !matches("thin_volumes", "thick,fat"));
    }

    #[test]
    fn an_unknown_suite_is_refused_with_the_names_of_all() {
        let error = Suite::named("hots").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no suite \"hots\": use one of unit, topolvm, kubernetes, churn, cluster, crash, sanity, host, lab"
        );
    }
}
