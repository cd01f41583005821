//! The kernel of all guests, and what runs it: chosen by trying, a guest really boots.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::start::Start;
use crate::cache::Cache;
use crate::packages::root::Root;
use crate::packages::{initramfs, user_mode};
use crate::progress;

/// What runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Accelerator {
    /// The processor, through the machine's kernel.
    Kvm,
    /// The processor: the guest's kernel is a program of the machine, and so is all that runs on it.
    UserMode,
    /// QEMU's translator.
    Emulation,
}

/// A kernel, and what runs it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Kernel {
    pub(crate) accelerator: Accelerator,
    /// An image, or a program.
    pub(crate) file: PathBuf,
    /// Its drivers, `…/<version>`.
    pub(crate) drivers: PathBuf,
}

/// The variable by which a person chooses.
pub(crate) const VARIABLE: &str = "LVMS_LAB_GUESTS";

/// A guest that boots without emulation does so in less than two seconds; one that hangs hangs at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Chooses, remembers the choice until this machine boots again, and leaves the kernel's initramfs in the run's
/// directory.
pub(crate) fn choose(cache: &Cache, root: &Root, agent: &Path, run: &Path) -> Result<Kernel> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let tried = cache.area("accelerator")?.join(boot.trim());
    let accelerator = match (std::env::var(VARIABLE), fs::read_to_string(&tried)) {
        (Ok(wanted), _) => Some(Accelerator::named(&wanted)?),
        (Err(_), Ok(found)) => Accelerator::named(&found).ok(),
        (Err(_), Err(_)) => None,
    };
    if let Some(accelerator) = accelerator {
        let kernel = accelerator.kernel(cache, root)?;
        initramfs::write(&run.join(initramfs::NAME), agent, &kernel.drivers)?;
        return Ok(kernel);
    }
    for accelerator in Accelerator::ALL {
        let step = progress::step(format!("trying {}", accelerator.told()));
        match try_out(accelerator, cache, root, agent, run) {
            Ok(kernel) => {
                step.done();
                fs::write(&tried, accelerator.name())?;
                return Ok(kernel);
            }
            Err(error) => eprintln!("  no guest runs with {} here: {error:#}", accelerator.told()),
        }
    }
    bail!("no guest boots on this machine, by no means");
}

fn try_out(accelerator: Accelerator, cache: &Cache, root: &Root, agent: &Path, run: &Path) -> Result<Kernel> {
    if accelerator == Accelerator::Kvm && !Path::new("/dev/kvm").exists() {
        bail!("there is no /dev/kvm");
    }
    let kernel = accelerator.kernel(cache, root)?;
    initramfs::write(&run.join(initramfs::NAME), agent, &kernel.drivers)?;
    if accelerator == Accelerator::Emulation {
        return Ok(kernel);
    }
    let console = run.join("trial.console");
    fs::write(&console, "")?;
    let start = Start {
        kernel: &kernel,
        cpus: 1,
        memory_mib: 256,
        words: "lab.probe=1".to_owned(),
        console: Path::new("trial.console"),
        surroundings: None,
    };
    let mut guest = start.spawn(run)?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && guest.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = guest.kill();
    guest.wait()?;
    if !fs::read_to_string(&console)?.contains(lab_protocol::agent::READY) {
        bail!("the kernel did not boot");
    }
    fs::remove_file(console)?;
    Ok(kernel)
}

impl Accelerator {
    /// The quickest first.
    const ALL: [Accelerator; 3] = [Accelerator::Kvm, Accelerator::UserMode, Accelerator::Emulation];

    fn kernel(self, cache: &Cache, root: &Root) -> Result<Kernel> {
        match self {
            Accelerator::UserMode => user_mode::kernel(cache),
            Accelerator::Kvm | Accelerator::Emulation => {
                Ok(Kernel { accelerator: self, file: root.kernel.clone(), drivers: root.drivers.clone() })
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::UserMode => "user-mode",
            Accelerator::Emulation => "emulation",
        }
    }

    fn named(name: &str) -> Result<Accelerator> {
        match Accelerator::ALL.into_iter().find(|accelerator| accelerator.name() == name.trim()) {
            Some(accelerator) => Ok(accelerator),
            None => bail!("{VARIABLE}={name:?}: use kvm, user-mode or emulation, or unset it"),
        }
    }

    /// For people.
    pub(crate) fn told(self) -> &'static str {
        match self {
            Accelerator::Kvm => "KVM",
            Accelerator::UserMode => "user mode Linux",
            Accelerator::Emulation => "emulation",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_known_by_its_name_and_others_are_refused_with_what_to_do() {
        for accelerator in Accelerator::ALL {
            assert_eq!(Accelerator::named(accelerator.name()).unwrap(), accelerator);
        }
        assert!(Accelerator::named("xen").unwrap_err().to_string().contains("unset it"));
    }
}
