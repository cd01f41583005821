//! KVM or emulation, chosen by trying: a guest really boots.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::qemu;
use crate::cache::Cache;
use crate::packages::root::Root;
use crate::{process, progress};

/// What runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Accelerator {
    /// The processor, through the kernel.
    Kvm,
    /// QEMU's translator.
    Emulation,
}

/// A guest that boots with KVM does so in less than two seconds; one that hangs hangs at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Chooses, and remembers the choice until this machine boots again.
pub(crate) fn choose(cache: &Cache, root: &Root, initramfs: &Path) -> Result<Accelerator> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(Accelerator::Emulation);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let tried = cache.area("accelerator")?.join(boot.trim());
    match fs::read_to_string(&tried).as_deref() {
        Ok("kvm") => return Ok(Accelerator::Kvm),
        Ok("emulation") => return Ok(Accelerator::Emulation),
        _ => {}
    }
    let step = progress::step("trying KVM");
    let console = initramfs.with_file_name("trial.console");
    let boots = boots_with_kvm(root, initramfs, &console)?;
    let _ = fs::remove_file(console);
    step.done();
    fs::write(&tried, if boots { "kvm" } else { "emulation" })?;
    Ok(if boots { Accelerator::Kvm } else { Accelerator::Emulation })
}

fn boots_with_kvm(root: &Root, initramfs: &Path, console: &Path) -> Result<bool> {
    fs::write(console, "")?;
    let start = qemu::Start {
        accelerator: Accelerator::Kvm,
        kernel: &root.kernel,
        initramfs,
        cpus: 1,
        memory_mib: 256,
        words: "lab.probe=1".to_owned(),
        console,
        surroundings: None,
    };
    // A guest that hangs must not outlive this command.
    let mut qemu = process::program("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(process::find("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?)
        .args(start.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && qemu.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = qemu.kill();
    qemu.wait()?;
    Ok(fs::read_to_string(console)?.contains(lab_protocol::agent::READY))
}
