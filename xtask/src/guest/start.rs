//! The command lines that start a guest.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::kernel::{Accelerator, Kernel};
use crate::packages::{initramfs, user_mode};
use crate::process;

/// One start of a guest. All paths are relative to the run's directory or absolute.
pub(crate) struct Start<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// Words for the kernel, beside those that every guest gets.
    pub(crate) words: String,
    pub(crate) console: &'a Path,
    /// The machine around it; none for a trial boot.
    pub(crate) surroundings: Option<Surroundings<'a>>,
}

/// What connects a guest to its lab.
pub(crate) struct Surroundings<'a> {
    /// The socket at which its bus for disks is served.
    pub(crate) disks: PathBuf,
    pub(crate) tap: String,
    pub(crate) hardware_address: String,
    /// A directory that the guest sees, read-only, as `/lab`.
    pub(crate) share: &'a Path,
    /// Images with the names by which the agent knows them; the last word is whether it may write.
    pub(crate) images: Vec<(&'a Path, &'static str, bool)>,
}

/// What makes a kernel slow and protects nobody in a guest of ours.
const QUICKLY: &str = "mitigations=off init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off audit=0 \
     apparmor=0 transparent_hugepage=madvise";

/// The number of virtio's SCSI buses among its kinds of devices.
const VIRTIO_SCSI: u32 = 8;

impl Start<'_> {
    /// Starts it, in the run's directory. In a lab it dies with the namespace, and outside, at a trial, with this thread.
    pub(crate) fn spawn(&self, run: &Path) -> Result<Child> {
        let program = match self.kernel.accelerator {
            Accelerator::UserMode => self.kernel.file.clone(),
            Accelerator::Kvm | Accelerator::Emulation => {
                process::find("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?
            }
        };
        let log = |end: &str| {
            let path = run.join(self.console.with_extension(end));
            File::options().create(true).append(true).open(&path).context(path.display().to_string())
        };
        let mut guest = process::program(if self.surroundings.is_some() { "env" } else { "setpriv" });
        if self.surroundings.is_none() {
            guest.args(["--pdeathsig", "KILL", "env"]);
        }
        guest.current_dir(run).stdin(Stdio::null());
        match self.kernel.accelerator {
            Accelerator::UserMode => {
                // Not for env itself: its C library is this machine's.
                guest.arg(format!("LD_LIBRARY_PATH={}", user_mode::LIBRARIES)).arg(program);
                self.user_mode(&mut guest, run)?;
                guest.stdout(log("console")?).stderr(log("log")?);
            }
            Accelerator::Kvm | Accelerator::Emulation => {
                let log = log("log")?;
                guest.arg(program).args(self.qemu()).stdout(log.try_clone()?).stderr(log);
            }
        }
        guest.spawn().context("the guest cannot be started")
    }

    fn user_mode(&self, guest: &mut Command, run: &Path) -> Result<()> {
        let libraries = self.kernel.file.with_file_name("libraries");
        let link = run.join(user_mode::LIBRARIES);
        if !link.exists() {
            symlink(libraries, &link)?;
        }
        guest.args(["seccomp=on", "con=null", "con0=null,fd:1", "ssl=null", "quiet", "panic=-1"]);
        guest.args(QUICKLY.split_whitespace());
        guest.arg(format!("mem={}M", self.memory_mib)).arg(format!("initrd={}", initramfs::NAME));
        guest.args(self.words.split_whitespace());
        let Some(surroundings) = &self.surroundings else { return Ok(()) };
        let mut names = Vec::new();
        for (number, (path, name, writable)) in surroundings.images.iter().enumerate() {
            // Without the kernel's own locks: an image that nobody writes is in many guests.
            let access = if *writable { "c" } else { "rc" };
            guest.arg(format!("ubd{number}{access}={}", path.display()));
            names.push(*name);
        }
        let share = std::path::absolute(run.join(surroundings.share))?;
        guest.arg(format!("lab.images={}", names.join(",")));
        guest.arg(format!("lab.share={}", share.display()));
        guest.arg(format!("lab.drivers={}", self.kernel.drivers.display()));
        let Surroundings { tap, hardware_address, disks, .. } = surroundings;
        guest.arg(format!("vec0:transport=tap,ifname={tap},mac={hardware_address}"));
        guest.arg(format!("virtio_uml.device={}:{VIRTIO_SCSI}", disks.display()));
        Ok(())
    }

    fn qemu(&self) -> Vec<String> {
        let mut words = vec!["-nodefaults".to_owned(), "-no-user-config".into(), "-no-reboot".into()];
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        add("-display", "none".into());
        add("-machine", "q35,usb=off,vmport=off,smbus=off,memory-backend=memory".into());
        // Shared with the lab, which reads and writes what goes from and to disks.
        add("-object", format!("memory-backend-memfd,id=memory,share=on,size={}M", self.memory_mib));
        match self.kernel.accelerator {
            Accelerator::Kvm => {
                add("-accel", "kvm".into());
                add("-cpu", "host".into());
            }
            Accelerator::Emulation | Accelerator::UserMode => {
                add("-accel", "tcg,thread=multi,tb-size=256".into());
                // What `max` has more is slower to emulate than to do without.
                add("-cpu", "Westmere".into());
            }
        }
        add("-smp", self.cpus.to_string());
        add("-m", format!("{}M", self.memory_mib));
        add("-kernel", self.kernel.file.display().to_string());
        add("-initrd", initramfs::NAME.into());
        add(
            "-append",
            format!("console=ttyS0 quiet panic=-1 tsc=reliable nowatchdog {QUICKLY} {}", self.words),
        );
        add("-chardev", format!("file,id=console,append=on,path={}", self.console.display()));
        add("-serial", "chardev:console".into());
        let Some(surroundings) = &self.surroundings else { return words };
        add("-netdev", format!("tap,id=net,ifname={},script=no,downscript=no", surroundings.tap));
        // The boot ROM of a network card costs seconds under emulation.
        add("-device", format!("virtio-net-pci,netdev=net,romfile=,mac={}", surroundings.hardware_address));
        add("-device", "virtio-rng-pci".into());
        add("-chardev", format!("socket,id=disks,path={}", surroundings.disks.display()));
        add("-device", "vhost-user-scsi-pci,chardev=disks,num_queues=1".into());
        let share = surroundings.share.display();
        add("-fsdev", format!("local,id=lab,path={share},security_model=none,readonly=on,multidevs=remap"));
        add("-device", "virtio-9p-pci,fsdev=lab,mount_tag=lab".into());
        for (path, serial, writable) in &surroundings.images {
            let access = if *writable { "off" } else { "on" };
            let path = path.display();
            add(
                "-drive",
                format!("if=none,id={serial},format=raw,file.locking=off,readonly={access},file={path}"),
            );
            add("-device", format!("virtio-blk-pci,drive={serial},serial={serial}"));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_boot_has_neither_disks_nor_network() {
        let kernel = Kernel { accelerator: Accelerator::Kvm, file: "k".into(), drivers: "d".into() };
        let start = Start {
            kernel: &kernel,
            cpus: 1,
            memory_mib: 256,
            words: "lab.probe=1".into(),
            console: Path::new("c"),
            surroundings: None,
        };
        let words = start.qemu().join(" ");
        assert!(words.contains("-accel kvm") && words.contains("transparent_hugepage=madvise lab.probe=1"));
        assert!(!words.contains("-netdev") && !words.contains("-drive") && !words.contains("disks"));
    }
}
