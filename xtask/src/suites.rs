//! Tests and who runs them.
//!
//! - [`unit`]: cargo's own, on this machine.
//! - [`host`]: test binaries that run in guests.
//! - `crash`: those of them that kill the driver at every point. They take so long that they run only by name.
//! - [`lab`]: the lab itself.
//! - [`sanity`]: csi-sanity against the standalone driver.
//! - [`cluster`]: a Kubernetes with three nodes.
//! - [`topolvm`]: TopoLVM in a Kubernetes with one node.

pub(crate) mod cluster;
pub(crate) mod host;
pub(crate) mod lab;
mod results;
pub(crate) mod sanity;
pub(crate) mod topolvm;
pub(crate) mod unit;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub(crate) use results::Results;

/// Suites that share a lab, one after the other. The labs run at the same time; this divides the work about evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Guests, and clusters of them.
    Guests,
    /// Whole drivers.
    Drivers,
}

impl Lane {
    pub(crate) const ALL: [Lane; 2] = [Lane::Guests, Lane::Drivers];

    /// The name of its runs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Lane::Guests => "test",
            Lane::Drivers => "test-drivers",
        }
    }
}

/// A named set of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Suite {
    Unit,
    Host,
    Crash,
    Lab,
    Sanity,
    Cluster,
    Topolvm,
}

impl Suite {
    /// Whether it needs Kubernetes' programs.
    pub(crate) fn needs_kubernetes(self) -> bool {
        match self {
            Suite::Unit | Suite::Host | Suite::Crash | Suite::Lab | Suite::Sanity => false,
            Suite::Cluster | Suite::Topolvm => true,
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

    /// The lab in which it runs.
    pub(crate) fn lane(self) -> Lane {
        match self {
            Suite::Unit | Suite::Host | Suite::Crash | Suite::Lab | Suite::Cluster => Lane::Guests,
            Suite::Sanity | Suite::Topolvm => Lane::Drivers,
        }
    }

    /// Those that run unless others are named, the quick ones first.
    pub(crate) const ALL: [Suite; 6] =
        [Suite::Unit, Suite::Host, Suite::Lab, Suite::Sanity, Suite::Cluster, Suite::Topolvm];

    /// What a person calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Unit => "unit",
            Suite::Host => "host",
            Suite::Crash => "crash",
            Suite::Lab => "lab",
            Suite::Sanity => "sanity",
            Suite::Cluster => "cluster",
            Suite::Topolvm => "topolvm",
        }
    }

    /// The suite of this name.
    pub(crate) fn named(name: &str) -> Result<Suite> {
        let all = || Suite::ALL.into_iter().chain([Suite::Crash]);
        let known = all().map(Suite::name).collect::<Vec<_>>().join(", ");
        let found = all().find(|suite| suite.name() == name);
        found.with_context(|| format!("there is no suite {name:?}: use one of {known}"))
    }
}

/// Whether a test is among those asked for.
pub(crate) fn matches(name: &str, filter: &str) -> bool {
    name.contains(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_suite_is_refused_with_the_names_of_all() {
        let error = Suite::named("hots").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no suite \"hots\": use one of unit, host, lab, sanity, cluster, topolvm, crash"
        );
    }
}
