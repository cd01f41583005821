//! Which tests a lab runs: those asked for that no other lab has begun.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Which tests a lab runs. Labs that run at the same time share a directory in which each claims a test before it
/// begins it, so that no processor waits while there is work.
pub(crate) struct Choice {
    filter: String,
    /// Also those that run rarely.
    pub(crate) all: bool,
    /// What takes minutes by its nature may take more of them.
    pub(crate) long: bool,
    /// Without what would take an hour where guests are emulated.
    pub(crate) brief: bool,
    claims: PathBuf,
}

impl Choice {
    /// Tests whose name contains `filter`.
    pub(crate) fn new(filter: &str, all: bool, claims: &Path) -> Choice {
        Choice { filter: filter.to_owned(), all, long: false, brief: false, claims: claims.to_owned() }
    }

    /// Whether a test of this name is asked for.
    pub(crate) fn matches(&self, name: &str) -> bool {
        super::matches(name, &self.filter)
    }

    /// Whether a test, or a group of them, is for this lab.
    pub(crate) fn claim(&self, suite: &str, name: &str) -> Result<bool> {
        let path = self.claims.join(format!("{suite} {name}"));
        match File::create_new(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_lab_has_claimed_no_other_runs() {
        let claims = std::env::temp_dir().join(format!("lvms-claims-{}", std::process::id()));
        std::fs::create_dir_all(&claims).unwrap();
        let (one, other) = (Choice::new("thin", false, &claims), Choice::new("thin", false, &claims));
        assert!(one.matches("lvm::thin_volumes") && !one.matches("lvm::thick_volumes"));
        assert!(one.claim("host", "lvm::thin_volumes").unwrap());
        assert!(!other.claim("host", "lvm::thin_volumes").unwrap());
        assert!(other.claim("crash", "lvm::thin_volumes").unwrap());
        std::fs::remove_dir_all(claims).unwrap();
    }
}
