//! The kernel's command line, where the lab says what this guest shall be.

use std::fs;

use crate::Result;

/// What the lab asked for with `lab.…=` words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cmdline {
    /// The host name.
    pub(crate) name: String,
    /// The address on the lab's network, without its prefix length; none for a guest without network.
    pub(crate) address: Option<String>,
    /// The lab's own address on that network.
    pub(crate) gateway: String,
    /// Whether systemd-udevd runs.
    pub(crate) udev: bool,
    /// Whether dmeventd runs.
    pub(crate) dmeventd: bool,
    /// Whether LVM uses a devices file.
    pub(crate) devices_file: bool,
    /// Whether there is a disk for what must outlive a power cut.
    pub(crate) state: bool,
    /// Whether this guest only shows that it boots, and powers off.
    pub(crate) probe: bool,
    /// What the machine's own files are reached by, if the kernel is a program of that machine (`user mode`).
    pub(crate) user_mode: Option<UserMode>,
}

/// What a kernel in user mode cannot tell by itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UserMode {
    /// The images in the order of their devices: `lab-root` is `ubda`, the next `ubdb`.
    pub(crate) images: Vec<String>,
    /// The directory of the machine that is `/lab`.
    pub(crate) share: String,
    /// The directory of the machine with the kernel's drivers.
    pub(crate) drivers: String,
}

impl Cmdline {
    pub(crate) fn read() -> Result<Cmdline> {
        Ok(Cmdline::parse(&fs::read_to_string("/proc/cmdline")?))
    }

    fn parse(text: &str) -> Cmdline {
        let word = |key: &str| {
            let mut words = text.split_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
        };
        let flag = |key: &str| word(key).as_deref() == Some("1");
        let user_mode = word("lab.images").map(|images| UserMode {
            images: images.split(',').map(str::to_owned).collect(),
            share: word("lab.share").unwrap_or_default(),
            drivers: word("lab.drivers").unwrap_or_default(),
        });
        Cmdline {
            name: word("lab.name").unwrap_or_else(|| "guest".to_owned()),
            address: word("lab.address"),
            gateway: word("lab.gateway").unwrap_or_default(),
            udev: flag("lab.udev"),
            dmeventd: flag("lab.dmeventd"),
            devices_file: flag("lab.devices-file"),
            state: flag("lab.state"),
            probe: flag("lab.probe"),
            user_mode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_ignored_and_flags_are_off_unless_they_are_one() {
        let line = Cmdline::parse(
            "quiet lab.name=n0 lab.address=10.88.0.11 lab.udev=1 lab.dmeventd=0 xlab.probe=1\n",
        );
        assert_eq!(line.name, "n0");
        assert_eq!(line.address.as_deref(), Some("10.88.0.11"));
        assert!(line.udev && !line.dmeventd && !line.devices_file && !line.probe);
        assert_eq!(line.user_mode, None);
    }

    #[test]
    fn a_kernel_in_user_mode_is_told_where_things_are() {
        let line = Cmdline::parse("lab.images=lab-root,lab-state lab.share=/s lab.drivers=/d/1.2\n");
        let user_mode = line.user_mode.unwrap();
        assert_eq!(user_mode.images, ["lab-root", "lab-state"]);
        assert_eq!((user_mode.share.as_str(), user_mode.drivers.as_str()), ("/s", "/d/1.2"));
    }
}
