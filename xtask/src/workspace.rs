//! This checkout, and what cargo builds from it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{process, progress};

/// The checkout's root.
pub(crate) fn directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// Where cargo puts final artefacts of this checkout.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| directory().join("target"), PathBuf::from)
}

/// A `cargo` command in this checkout.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(directory());
    cargo
}

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Builds a program that runs inside a guest, whatever libraries that has, and returns its path.
pub(crate) fn build_static(package: &str) -> Result<PathBuf> {
    Ok(build_for_guests(package, &[])?.join(package))
}

/// Builds a program as it is released, to run anywhere.
pub(crate) fn build_release(package: &str) -> Result<PathBuf> {
    Ok(build(package, "release", &[])?.join(package))
}

/// Builds an example of a package's in the same way.
pub(crate) fn build_static_example(package: &str, example: &str) -> Result<PathBuf> {
    Ok(build_for_guests(package, &["--example", example])?.join("examples").join(example))
}

/// Builds the driver with points at which it ends itself, apart from the one without.
pub(crate) fn build_with_crash_points() -> Result<PathBuf> {
    let apart = target().join("crash-points");
    let place = apart.display().to_string();
    build_for_guests("lvms", &["--features", "crash-points", "--target-dir", &place])?;
    Ok(apart.join(TRIPLE).join("guest").join("lvms"))
}

fn build_for_guests(package: &str, what: &[&str]) -> Result<PathBuf> {
    build(package, "guest", what)
}

fn build(package: &str, profile: &str, what: &[&str]) -> Result<PathBuf> {
    let step = progress::step(format!("building {package}"));
    let mut build = cargo();
    build
        .args(["build", "--quiet", "--package", package, "--profile", profile, "--target", TRIPLE])
        .args(what);
    build.arg("--config").arg(format!("target.{TRIPLE}.rustflags=['-Ctarget-feature=+crt-static']"));
    process::run(&mut build).with_context(|| format!("{package} could not be built"))?;
    step.done();
    Ok(target().join(TRIPLE).join(profile))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn sources(directory: &Path, text: &mut String) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                *text += &fs::read_to_string(path).unwrap();
            }
        }
    }

    #[test]
    fn every_test_that_the_rules_name_is_there() {
        let mut code = String::new();
        for part in ["crates", "xtask/src/suites"] {
            sources(&directory().join(part), &mut code);
        }
        let rules = fs::read_to_string(directory().join("docs/rules.md")).unwrap();
        let names: Vec<&str> =
            rules.split('`').skip(1).step_by(2).filter(|word| word.contains('_')).collect();
        assert!(names.len() > 20, "only {} names", names.len());
        for name in names {
            assert!(code.contains(&format!("fn {name}(")), "there is no test {name}");
        }
    }
}
