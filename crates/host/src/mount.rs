//! What is mounted where, and with which options.

mod difference;

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::lvm::inventory::DeviceNumber;

pub use difference::Difference;

/// One line of the kernel's list of mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number for it.
    pub id: u64,
    /// The device of the filesystem.
    pub device: DeviceNumber,
    /// What of the filesystem is mounted.
    pub root: PathBuf,
    /// Where.
    pub target: PathBuf,
    /// Options of this mount alone.
    pub options: Vec<String>,
    /// The filesystem's name.
    pub filesystem: String,
    /// What was mounted.
    pub source: String,
    /// Options of the filesystem, for all its mounts.
    pub shared_options: Vec<String>,
}

impl Mount {
    /// Whether it is a device node, bound from where device nodes are.
    pub fn is_node(&self) -> bool {
        self.filesystem == "devtmpfs" && self.root != Path::new("/")
    }

    /// Whether this mount may only be read.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }
}

/// Reads `/proc/<process>/mountinfo`. Lines that cannot be read are passed over: they are of a kind not known here.
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut words = before.split(' ');
    let id = words.next()?.parse().ok()?;
    let mut words = words.skip(1);
    let (major, minor) = words.next()?.split_once(':')?;
    let device = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let (root, target, options) = (words.next()?, words.next()?, words.next()?);
    let mut words = after.split(' ');
    let (filesystem, source) = (words.next()?, words.next()?);
    Some(Mount {
        id,
        device,
        root: unescape(root).into(),
        target: unescape(target).into(),
        options: split(options),
        filesystem: filesystem.to_owned(),
        source: unescape(source),
        shared_options: split(words.next().unwrap_or_default()),
    })
}

/// Blank, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        let octal =
            tail.get(..3).filter(|_| *byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &tail[3..];
            }
            None => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Splits options at commas, but not at those within quotes: an SELinux context has some.
pub fn split(options: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for character in options.chars() {
        match character {
            ',' if !quoted => parts.push(String::new()),
            _ => {
                quoted ^= character == '"';
                if let Some(part) = parts.last_mut() {
                    part.push(character);
                }
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// All mounts at a place, the topmost last. It is seen there only if nothing was mounted over a directory on the way.
pub fn at<'a>(mounts: &'a [Mount], target: &'a Path) -> impl Iterator<Item = &'a Mount> {
    mounts.iter().filter(move |mount| mount.target == target)
}

/// Options of a mount, told apart by who understands them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flags {
    /// Options of one mount: `noatime`, `nosuid`, …
    pub own: Vec<String>,
    /// Options of the filesystem.
    pub shared: Vec<String>,
}

/// Options that a class may not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadFlag {
    /// It would mount something else, or is for mount(8) alone.
    #[error("the mount flag {0:?} is not allowed: it does not describe how the volume is mounted")]
    NotAllowed(String),
    /// Both at once.
    #[error("the mount flag \"rw\" contradicts a read-only volume")]
    Contradiction,
}

/// What the kernel keeps per mount.
pub(crate) const OWN: [&str; 16] = [
    "ro",
    "rw",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "noatime",
    "atime",
    "nodiratime",
    "diratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nosymfollow",
];

const NOT_ALLOWED: [&str; 24] = [
    "loop",
    "bind",
    "rbind",
    "move",
    "remount",
    "user",
    "users",
    "owner",
    "group",
    "auto",
    "noauto",
    "shared",
    "private",
    "slave",
    "unbindable",
    "rshared",
    "rprivate",
    "rslave",
    "runbindable",
    // They name other devices than the volume's.
    "logdev",
    "rtdev",
    "device",
    "journal_path",
    "journal_dev",
];

impl Flags {
    /// Sorts and checks the flags of a class.
    pub fn parse(flags: &[String], read_only: bool) -> Result<Flags, BadFlag> {
        let mut sorted = Flags::default();
        for flag in flags.iter().flat_map(|flag| split(flag)) {
            let name = flag.split('=').next().unwrap_or_default();
            let lower = name.to_ascii_lowercase();
            if NOT_ALLOWED.contains(&lower.as_str()) || lower.starts_with("x-") || lower.starts_with("_net") {
                return Err(BadFlag::NotAllowed(flag));
            }
            match name {
                "rw" if read_only => return Err(BadFlag::Contradiction),
                "rw" | "defaults" | "nofail" => {}
                _ if OWN.contains(&name) => sorted.own.push(flag),
                _ => sorted.shared.push(flag),
            }
        }
        if read_only && !sorted.own.iter().any(|flag| flag == "ro") {
            sorted.own.push("ro".to_owned());
        }
        Ok(sorted)
    }

    /// Whether only reading is asked for.
    pub fn is_read_only(&self) -> bool {
        self.own.iter().any(|flag| flag == "ro")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_of_the_kernels_is_read() {
        let text = "36 35 253:3 / /var/lib/kubelet/a\\040b rw,noatime shared:1 master:2 - xfs /dev/mapper/vg-a rw,nouuid\n";
        let mounts = parse(text);
        assert_eq!((mounts.len(), mounts[0].id), (1, 36));
        assert_eq!(mounts[0].device, DeviceNumber { major: 253, minor: 3 });
        assert_eq!(mounts[0].target, Path::new("/var/lib/kubelet/a b"));
        assert_eq!((mounts[0].options.len(), mounts[0].shared_options.len()), (2, 2));
    }

    #[test]
    fn a_context_stays_in_one_piece() {
        let flags = ["noatime,context=\"system_u:object_r:container_file_t:s0:c1,c2\"".to_owned()];
        let flags = Flags::parse(&flags, true).unwrap();
        assert_eq!(flags.own, ["noatime", "ro"]);
        assert_eq!(flags.shared, ["context=\"system_u:object_r:container_file_t:s0:c1,c2\""]);
    }

    #[test]
    fn flags_that_mount_something_else_are_refused() {
        let flags = [
            "loop",
            "bind",
            "x-systemd.automount",
            "remount",
            "LOOP=/dev/loop0",
            "X-mount.mkdir",
            "users",
            "rshared",
            "runbindable",
            "logdev=/dev/sda",
            "rtdev=/dev/sda",
            "device=/dev/sda",
            "journal_path=/dev/sda",
            "journal_dev=2049",
        ];
        for flag in flags {
            let flags = [flag.to_owned()];
            assert_eq!(Flags::parse(&flags, false), Err(BadFlag::NotAllowed(flag.to_owned())), "{flag}");
        }
        assert_eq!(Flags::parse(&["rw".to_owned()], true), Err(BadFlag::Contradiction));
        assert_eq!(Flags::parse(&["rw,defaults".to_owned()], false), Ok(Flags::default()));
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(text in "\\PC{0,120}") {
            let _ = parse(&text);
            let _ = split(&text);
            let _ = Flags::parse(&[text], false);
        }
    }
}
