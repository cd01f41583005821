//! QEMU's command line.

use std::path::{Path, PathBuf};

use super::accelerator::Accelerator;

/// One start of a virtual machine, as QEMU needs it.
pub(crate) struct Start<'a> {
    pub(crate) accelerator: Accelerator,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// Words for the kernel, beside those that every guest gets.
    pub(crate) words: String,
    pub(crate) console: &'a Path,
    /// The machine around it; none for a trial boot.
    pub(crate) surroundings: Option<Surroundings<'a>>,
}

/// What connects a machine to its lab.
pub(crate) struct Surroundings<'a> {
    pub(crate) monitor: PathBuf,
    pub(crate) tap: String,
    pub(crate) hardware_address: String,
    /// A directory that the guest sees, read-only, as `/lab`.
    pub(crate) share: &'a Path,
    /// Images with the serial numbers by which the agent knows them; the last word is whether it may write.
    pub(crate) images: Vec<(&'a Path, &'static str, bool)>,
}

/// What makes a kernel slow under emulation and protects nobody in a guest of ours.
const QUICKLY: &str = "mitigations=off init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off audit=0 \
     apparmor=0 tsc=reliable nowatchdog transparent_hugepage=madvise";

impl Start<'_> {
    /// The arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut words = vec!["-nodefaults".to_owned(), "-no-user-config".into(), "-no-reboot".into()];
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        add("-display", "none".into());
        add("-machine", "q35,usb=off,vmport=off,smbus=off".into());
        match self.accelerator {
            Accelerator::Kvm => {
                add("-accel", "kvm".into());
                add("-cpu", "host".into());
            }
            Accelerator::Emulation => {
                add("-accel", "tcg,thread=multi,tb-size=256".into());
                // What `max` has more is slower to emulate than to do without.
                add("-cpu", "Westmere".into());
            }
        }
        add("-smp", self.cpus.to_string());
        add("-m", format!("{}M", self.memory_mib));
        add("-kernel", self.kernel.display().to_string());
        add("-initrd", self.initramfs.display().to_string());
        add("-append", format!("console=ttyS0 quiet panic=-1 {QUICKLY} {}", self.words));
        add("-chardev", format!("file,id=console,append=on,path={}", self.console.display()));
        add("-serial", "chardev:console".into());
        let Some(surroundings) = &self.surroundings else { return words };
        // Paused until its disks are in.
        add("-S", String::new());
        words.pop();
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        add("-qmp", format!("unix:{},server=on,wait=off", surroundings.monitor.display()));
        add("-netdev", format!("tap,id=net,ifname={},script=no,downscript=no", surroundings.tap));
        // The boot ROM of a network card costs seconds under emulation.
        add("-device", format!("virtio-net-pci,netdev=net,romfile=,mac={}", surroundings.hardware_address));
        add("-device", "virtio-rng-pci".into());
        add("-device", "virtio-scsi-pci,id=scsi".into());
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
    fn a_trial_boot_has_neither_disks_nor_network_and_does_not_wait() {
        let start = Start {
            accelerator: Accelerator::Kvm,
            kernel: Path::new("k"),
            initramfs: Path::new("i"),
            cpus: 1,
            memory_mib: 256,
            words: "lab.probe=1".into(),
            console: Path::new("c"),
            surroundings: None,
        };
        let words = start.arguments().join(" ");
        assert!(words.contains("-accel kvm") && words.contains("transparent_hugepage=madvise lab.probe=1"));
        assert!(!words.contains("-S") && !words.contains("-netdev") && !words.contains("-drive"));
    }
}
