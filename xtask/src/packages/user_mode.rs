//! Linux as a program ("user mode Linux"), from Debian's packages: what it runs has the processor's own speed.
//!
//! The release of this machine may be too old for it, so it comes from `testing`, with the C library it wants. Both
//! are unpacked into the cache; nothing is installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use lab_protocol::disk::GIB;

use super::root::{Distribution, extract, only_directory};
use crate::cache::Cache;
use crate::guest::kernel::{Accelerator, Kernel};
use crate::{process, progress};

/// The suite that has a new enough one.
const SUITE: &str = "testing";

/// Where the program looks for its loader and its C library: below the directory in which it is started.
pub(crate) const LIBRARIES: &str = "user-mode";

/// The kernel, fetched if it is not in the cache.
pub(crate) fn kernel(cache: &Cache) -> Result<Kernel> {
    let entry = cache.entry("user-mode-linux", &["1", SUITE], |path| {
        cache.require_space(GIB)?;
        let step = progress::step("fetching user mode Linux");
        make(path)?;
        step.done();
        Ok(())
    })?;
    let drivers = only_directory(&entry.join("modules"))?;
    Ok(Kernel { accelerator: Accelerator::UserMode, file: entry.join("linux"), drivers })
}

fn make(entry: &Path) -> Result<()> {
    let (archives, tree) = (entry.join("archives"), entry.join("tree"));
    fs::create_dir_all(archives.join("lists/partial"))?;
    fs::create_dir_all(&tree)?;
    fetch(&archives)?;
    for package in fs::read_dir(&archives)? {
        let package = package?.path();
        if package.extension().is_some_and(|end| end == "deb") {
            extract(&package, &tree)?;
        }
    }
    let libraries = entry.join("libraries");
    fs::create_dir(&libraries)?;
    fs::copy(tree.join("usr/lib/x86_64-linux-gnu/libc.so.6"), libraries.join("libc.so.6"))?;
    fs::copy(tree.join("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), libraries.join("ld.so"))?;
    let program = fs::read(tree.join("usr/bin/linux.uml"))?;
    fs::write(entry.join("linux"), with_our_loader(program)?)?;
    fs::set_permissions(entry.join("linux"), fs::Permissions::from_mode(0o755))?;
    fs::rename(tree.join("usr/lib/uml/modules"), entry.join("modules"))?;
    fs::remove_dir_all(&archives)?;
    fs::remove_dir_all(&tree)?;
    Ok(())
}

fn fetch(archives: &Path) -> Result<()> {
    let distribution = Distribution::of_this_machine()?;
    let mut targets = process::program("apt-get");
    targets.args(["indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)", "Created-By: Packages"]);
    let targets = process::run(&mut targets)?;
    let wanted = format!("Debian {} ", distribution.version);
    let Some(archive) = targets.lines().find_map(|line| line.strip_prefix(&wanted)) else {
        bail!("this machine does not take its packages from Debian {}", distribution.version);
    };
    let sources = archives.join("sources.list");
    fs::write(&sources, format!("deb {archive} {SUITE} main\n"))?;
    let apt = || {
        let mut apt = process::program("apt-get");
        let set = |name: &str, path: &Path| format!("{name}={}", path.display());
        for option in [
            set("Dir::Etc::SourceList", &sources),
            set("Dir::Etc::SourceParts", Path::new("/dev/null")),
            set("Dir::State::Lists", &archives.join("lists")),
            set("Dir::Cache::pkgcache", Path::new("")),
            set("Dir::Cache::srcpkgcache", Path::new("")),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        ] {
            apt.args(["-o", &option]);
        }
        apt.current_dir(archives);
        apt
    };
    process::run(apt().arg("update"))?;
    process::run(apt().args(["download", "user-mode-linux", "libc6"]))?;
    Ok(())
}

/// The program, asking for the loader that lies beside its C library instead of this machine's.
fn with_our_loader(mut program: Vec<u8>) -> Result<Vec<u8>> {
    const THEIRS: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
    let mut ours = format!("{LIBRARIES}/ld.so").into_bytes();
    ours.resize(THEIRS.len(), 0);
    let place = program.windows(THEIRS.len()).position(|bytes| bytes == THEIRS);
    let place = place.context("user mode Linux does not name its loader")?;
    program[place..place + THEIRS.len()].copy_from_slice(&ours);
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_is_replaced_and_nothing_else() {
        let program = with_our_loader(b"ELF /lib64/ld-linux-x86-64.so.2\0rest".to_vec()).unwrap();
        assert_eq!(program, b"ELF user-mode/ld.so\0\0\0\0\0\0\0\0\0\0\0\0\0rest");
        assert!(with_our_loader(b"ELF".to_vec()).is_err());
    }
}
