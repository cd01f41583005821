//! Whether a filesystem that is mounted already is mounted as a further target wants it.
//!
//! The first target's flags are known only as the kernel tells them: in its own words, with what follows from them, and
//! without those that are its defaults. So flags whose telling is known are compared, both ways; of any other only a
//! value that the kernel tells otherwise counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Flags, Mount};

/// In what two mounts of one filesystem differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// It is mounted without this flag.
    Without(String),
    /// It is mounted with this flag, which is not asked for.
    With(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Without(flag) => write!(out, "without {flag:?}"),
            Difference::With(flag) => write!(out, "with {flag:?}"),
        }
    }
}

/// Flags that the kernel tells if, and only if, somebody asked for them.
const TOLD: [&str; 7] = ["sync", "dirsync", "lazytime", "wsync", "largeio", "autodefrag", "flushoncommit"];

/// The same, with a value.
const TOLD_WITH_VALUE: [&str; 6] = ["data", "commit", "compress", "compress-force", "allocsize", "barrier"];

/// SELinux labels.
const LABELS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

/// The kernel's form of a flag: its name, and its value if it has one.
fn canonical(flag: &str, filesystem: &str) -> (String, String) {
    let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
    let (name, value) = match (name, value) {
        ("nobarrier", "") => ("barrier", "0"),
        ("barrier", "") => ("barrier", "1"),
        ("discard", "sync") => ("discard", ""),
        ("compress" | "compress-force", "") => (name, "zlib"),
        (name, value) => (name, value),
    };
    let value = match name {
        "compress" | "compress-force" => match value.split_once(':').unwrap_or((value, "")) {
            (algorithm @ ("zlib" | "zstd"), "" | "0") => format!("{algorithm}:3"),
            _ => value.to_owned(),
        },
        "commit" if value == "0" => default("commit", filesystem).unwrap_or(value).to_owned(),
        _ if LABELS.contains(&name) => label(value),
        _ => bytes(value).unwrap_or_else(|| value.to_owned()),
    };
    (name.to_owned(), value)
}

/// What is in force if nobody asks: the kernel may leave it out.
fn default(name: &str, filesystem: &str) -> Option<&'static str> {
    match (name, filesystem) {
        ("data", _) => Some("ordered"),
        ("barrier", _) => Some("1"),
        ("commit", "ext4") => Some("5"),
        ("commit", "btrfs") => Some("30"),
        _ => None,
    }
}

/// A size with a unit as a number of bytes.
fn bytes(value: &str) -> Option<String> {
    let unit = value.chars().last()?.to_ascii_lowercase();
    let shift = match unit {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        _ => return None,
    };
    let number: u64 = value[..value.len() - 1].parse().ok()?;
    number.checked_mul(1 << shift).map(|bytes| bytes.to_string())
}

/// A label in one form: the kernel orders its categories, and tells a row of them by the first and the last.
fn label(value: &str) -> String {
    let value = value.trim_matches('"');
    let Some((rest, categories)) = value.rsplit_once(":c") else { return value.to_owned() };
    let mut numbers = BTreeSet::new();
    for part in format!("c{categories}").split(',') {
        let (first, last) = part.split_once('.').unwrap_or((part, part));
        let number = |text: &str| text.strip_prefix('c')?.parse::<u16>().ok();
        match (number(first), number(last)) {
            (Some(first), Some(last)) => numbers.extend(first..=last),
            _ => return value.to_owned(),
        }
    }
    let numbers: Vec<String> = numbers.iter().map(|number| format!("c{number}")).collect();
    format!("{rest}:{}", numbers.join(","))
}

/// Those of some flags that can be compared: by name, with the value and the flag itself.
fn comparable<'a>(
    flags: impl Iterator<Item = &'a String>,
    filesystem: &str,
) -> BTreeMap<String, (String, &'a String)> {
    let mut found = BTreeMap::new();
    for flag in flags {
        let (name, value) = canonical(flag, filesystem);
        let is_told = match value.as_str() {
            // The kernel of btrfs discards by itself where the disk can, and tells it: but not in this way.
            "" => TOLD.contains(&name.as_str()) || name == "discard",
            _ => TOLD_WITH_VALUE.contains(&name.as_str()) || LABELS.contains(&name.as_str()),
        };
        let is_none =
            matches!((name.as_str(), value.as_str()), ("compress" | "compress-force", "no" | "none"));
        if is_told && !is_none && default(&name, filesystem) != Some(value.as_str()) {
            found.insert(name, (value, flag));
        } else {
            // The last one counts.
            found.remove(&name);
        }
    }
    found
}

impl Flags {
    /// In what a filesystem that is mounted differs from these flags. Flags of one mount alone are not compared.
    pub fn difference(&self, mounted: &Mount) -> Option<Difference> {
        let filesystem = mounted.filesystem.as_str();
        let told = || mounted.shared_options.iter().chain(&mounted.options);
        let (asked, there) = (comparable(self.shared.iter(), filesystem), comparable(told(), filesystem));
        for (name, (value, flag)) in &asked {
            if there.get(name).map(|(value, _)| value) != Some(value) {
                return Some(Difference::Without((*flag).clone()));
            }
        }
        if let Some((_, (_, flag))) = there.iter().find(|(name, _)| !asked.contains_key(*name)) {
            return Some(Difference::With((*flag).clone()));
        }
        let another = self.shared.iter().find(|flag| {
            let (name, value) = canonical(flag, filesystem);
            let is_other = |other: &String| {
                let (other, told) = canonical(other, filesystem);
                other == name && told != value
            };
            let is_same = |other: &String| canonical(other, filesystem) == (name.clone(), value.clone());
            let of_value = !value.is_empty() && default(&name, filesystem).is_none();
            of_value && told().any(is_other) && !told().any(is_same)
        });
        another.map(|flag| Difference::Without(flag.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::parse;

    fn mounted(filesystem: &str, options: &str) -> Mount {
        let line =
            format!("36 35 253:3 / /a rw,relatime shared:1 - {filesystem} /dev/mapper/vg-a {options}\n");
        parse(&line).remove(0)
    }

    fn difference(filesystem: &str, told: &str, asked: &str) -> Option<Difference> {
        let flags = Flags::parse(&[asked.to_owned()], false).unwrap();
        flags.difference(&mounted(filesystem, told))
    }

    #[test]
    fn flags_are_the_same_though_the_kernel_tells_them_otherwise() {
        for (filesystem, told, asked) in [
            ("ext4", "rw", ""),
            ("ext4", "rw,seclabel,stripe=64", "data=ordered,async,barrier=1,commit=5,nodiscard"),
            ("ext4", "rw,nodelalloc,data=journal", "data=journal"),
            ("ext4", "rw,nobarrier,discard", "discard,barrier=0"),
            ("ext4", "rw,data=writeback", "data=journal,data=writeback"),
            (
                "xfs",
                "rw,nouuid,attr2,inode64,allocsize=65536k,logbufs=8,logbsize=32k,noquota",
                "allocsize=64m",
            ),
            ("xfs", "rw,inode64,logbufs=8,logbsize=256k,noquota", "logbsize=262144"),
            ("xfs", "rw,inode64,logbufs=8,logbsize=32k,usrquota", "uquota"),
            ("btrfs", "rw,ssd,discard=async,space_cache=v2,subvolid=5,subvol=/", ""),
            (
                "btrfs",
                "rw,compress=zstd:3,ssd,discard=async,space_cache=v2,subvolid=5,subvol=/",
                "compress=zstd",
            ),
            ("btrfs", "rw,compress=zlib:3,space_cache=v2", "compress"),
            ("btrfs", "rw,discard,space_cache=v2", "discard=sync,compress=none,commit=30"),
        ] {
            assert_eq!(difference(filesystem, told, asked), None, "{filesystem} {told} / {asked}");
        }
    }

    #[test]
    fn flags_that_differ_are_named_both_ways() {
        let (without, with) = (Difference::Without, Difference::With);
        for (filesystem, told, asked, expected) in [
            ("ext4", "rw", "data=journal", without("data=journal".into())),
            ("ext4", "rw,data=writeback", "data=journal", without("data=journal".into())),
            ("ext4", "rw,nodelalloc,data=journal", "", with("data=journal".into())),
            ("ext4", "rw,discard", "", with("discard".into())),
            ("ext4", "rw,sync", "commit=60", without("commit=60".into())),
            ("ext4", "rw,errors=continue", "errors=panic", without("errors=panic".into())),
            ("xfs", "rw,inode64,allocsize=65536k", "allocsize=32m", without("allocsize=32m".into())),
            ("xfs", "rw,inode64,logbsize=32k", "logbsize=256k", without("logbsize=256k".into())),
            ("btrfs", "rw,compress=zstd:3", "compress=zstd:5", without("compress=zstd:5".into())),
            ("btrfs", "rw,compress=zstd:3", "", with("compress=zstd:3".into())),
        ] {
            assert_eq!(difference(filesystem, told, asked), Some(expected), "{filesystem} {told} / {asked}");
        }
    }

    #[test]
    fn another_selinux_label_is_a_difference() {
        let label =
            |categories: &str| format!("context=\"system_u:object_r:container_file_t:s0:{categories}\"");
        let told = |categories: &str| format!("rw,{}", label(categories));
        assert_eq!(difference("xfs", &told("c15,c829"), &label("c829,c15")), None);
        assert_eq!(difference("xfs", &told("c1.c3"), &label("c1,c2,c3")), None);
        let plain = "context=system_u:object_r:container_file_t:s0";
        assert_eq!(difference("xfs", &format!("rw,{plain}"), plain), None);
        assert!(difference("xfs", &told("c1,c2"), &label("c1,c3")).is_some());
        assert!(difference("xfs", "rw,seclabel", &label("c1,c2")).is_some());
        assert!(difference("xfs", &told("c1,c2"), "").is_some());
    }
}
