//! `cargo deny`, in a pinned version.

use std::path::PathBuf;

use anyhow::Result;

use crate::cache::Cache;
use crate::{process, progress, workspace};

const VERSION: &str = "0.20.2";

/// The program, built if it is not in the cache.
pub(crate) fn program(cache: &Cache) -> Result<PathBuf> {
    let entry = cache.entry("cargo-deny", &[VERSION], |path| {
        let step = progress::step("building cargo-deny");
        let mut cargo = workspace::cargo();
        cargo
            .args(["install", "--quiet", "--locked", "--version", VERSION, "cargo-deny", "--root"])
            .arg(path);
        // Of the many profiles this one builds quickest, and the program is quick enough with it.
        cargo
            .args(["--profile", "dev"])
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_PROFILE_DEV_STRIP", "true");
        process::run(cargo.env_remove("CARGO_BUILD_BUILD_DIR").env("CARGO_TARGET_DIR", path.join("target")))?;
        std::fs::remove_dir_all(path.join("target"))?;
        step.done();
        Ok(())
    })?;
    Ok(entry.join("bin/cargo-deny"))
}
