//! Programs built from Go modules, with their versions and checksums pinned in `xtask/go/<module>/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use lab_protocol::disk::GIB;

use crate::cache::Cache;
use crate::{process, progress, workspace};

/// A module of ours that pins an outside one, and what is built from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    /// Its folder in `xtask/go`.
    pub(crate) folder: &'static str,
    /// The packages of the commands.
    pub(crate) commands: &'static [&'static str],
    /// `name=value` pairs set at link time; `@` stands for the version of the first required module.
    pub(crate) set: &'static [&'static str],
}

impl Module {
    /// The version of what it pins.
    pub(crate) fn version(&self) -> Result<String> {
        let path = workspace::directory().join("xtask/go").join(self.folder).join("go.mod");
        let pins = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(version_of(&pins, self.commands.first().context("a module without commands")?))
    }

    /// A directory with the programs, built if it is not in the cache.
    pub(crate) fn programs(&self, cache: &Cache) -> Result<PathBuf> {
        let source = workspace::directory().join("xtask/go").join(self.folder);
        let read = |name: &str| {
            fs::read_to_string(source.join(name)).with_context(|| format!("{}/{name}", self.folder))
        };
        let (pins, sums) = (read("go.mod")?, read("go.sum")?);
        let own = main_file(&source)?;
        let go = process::run(command(cache)?.args(["env", "GOVERSION"]))?;
        let inputs = [RECIPE, &pins, &sums, &go, &self.commands.join(" "), &self.set.join(" "), own.as_str()];
        cache.entry(self.folder, &inputs, |path| {
            cache.require_space(8 * GIB)?;
            let count = self.commands.len();
            let step = progress::step(format!("building {} ({count} programs)", self.folder));
            self.build(cache, &source, &pins, path)?;
            step.done();
            Ok(())
        })
    }

    fn build(&self, cache: &Cache, source: &Path, pins: &str, into: &Path) -> Result<()> {
        let version = version_of(pins, self.commands.first().context("a module without commands")?);
        let mut link = "-s -w".to_owned();
        for pair in self.set {
            link += &format!(" -X {}", pair.replace('@', &version));
        }
        let mut go = command(cache)?;
        go.arg("build").arg("-ldflags").arg(link).arg("-o").arg(format!("{}/", into.display()));
        process::run(go.args(self.commands).current_dir(source))?;
        Ok(())
    }
}

/// Bumped when programs are built in another way, so that old ones are not used.
const RECIPE: &str = "1";

/// `go`, with its caches inside ours and nothing of the caller's settings. It dies with the command that asked for it.
pub(crate) fn command(cache: &Cache) -> Result<Command> {
    let mut go = process::program("setpriv");
    go.args(["--pdeathsig", "KILL"])
        .arg(process::find("go").context("go is not in PATH")?)
        .env("GOMODCACHE", cache.area("go-modules")?)
        .env("GOCACHE", cache.area("go-build")?)
        .env("GOFLAGS", "-mod=readonly -trimpath -buildvcs=false -modcacherw")
        .env("CGO_ENABLED", "0")
        .envs([
            ("GOENV", "off"),
            ("GOOS", "linux"),
            ("GOARCH", "amd64"),
            ("GOAMD64", "v1"),
            ("GOEXPERIMENT", ""),
        ])
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off");
    Ok(go)
}

/// The directory of a required module's source.
pub(crate) fn source_of(cache: &Cache, folder: &str, module: &str) -> Result<PathBuf> {
    let mut go = command(cache)?;
    go.args(["mod", "download", "-json", module])
        .current_dir(workspace::directory().join("xtask/go").join(folder));
    let answer: serde_json::Value = serde_json::from_str(&process::run(&mut go)?)?;
    Ok(answer["Dir"].as_str().with_context(|| format!("go knows no directory of {module}"))?.into())
}

/// The pinned version of the module that a command belongs to.
fn version_of(pins: &str, command: &str) -> String {
    let required = pins.lines().filter_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        Some((words.next()?, words.next()?))
    });
    let owner = required.filter(|(module, version)| command.starts_with(*module) && version.starts_with('v'));
    owner.max_by_key(|(module, _)| module.len()).map(|(_, version)| version.to_owned()).unwrap_or_default()
}

/// A module with a program of our own has it in `main.go`.
fn main_file(source: &Path) -> Result<String> {
    let path = source.join("main.go");
    if path.exists() { Ok(fs::read_to_string(path)?) } else { Ok(String::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_command_is_that_of_its_module() {
        let pins = "module x\n\ngo 1.25.0\n\nrequire k8s.io/kubernetes v1.35.4\n\nrequire (\n\tk8s.io/kube v0.1.0\n)\n";
        assert_eq!(version_of(pins, "k8s.io/kubernetes/cmd/kubelet"), "v1.35.4");
    }
}
