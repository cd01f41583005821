//! Filesystems: which there are, what is on a device, and whether it may be formatted.

pub mod superblock;

use std::fmt;

use thiserror::Error;
use uuid::Uuid;

use crate::facts::Facts;
use crate::units::Bytes;

/// A filesystem that we make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Filesystem {
    /// The default.
    Ext4,
    /// Grows only.
    Xfs,
    /// With snapshots of its own.
    Btrfs,
}

impl Filesystem {
    /// All of them.
    pub const ALL: [Filesystem; 3] = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs];

    /// By its name; an empty one means ext4.
    pub fn named(name: &str) -> Option<Filesystem> {
        if name.is_empty() {
            return Some(Filesystem::Ext4);
        }
        Filesystem::ALL.into_iter().find(|filesystem| filesystem.name() == name)
    }

    /// As mount(8) calls it.
    pub fn name(self) -> &'static str {
        match self {
            Filesystem::Ext4 => "ext4",
            Filesystem::Xfs => "xfs",
            Filesystem::Btrfs => "btrfs",
        }
    }

    /// The size below which it cannot be made.
    pub fn least(self) -> Bytes {
        match self {
            Filesystem::Ext4 => Bytes::mib(32),
            Filesystem::Xfs => Bytes::mib(300),
            Filesystem::Btrfs => Bytes::mib(200),
        }
    }

    /// The command that makes it. Without force: a tool that finds something refuses, as a last guard.
    pub fn make(self, device: &str, uuid: Uuid) -> Vec<String> {
        let uuid = uuid.to_string();
        let words: &[&str] = match self {
            Filesystem::Ext4 => &["mkfs.ext4", "-q", "-m0", "-U", &uuid],
            Filesystem::Xfs => &["mkfs.xfs", "-q", "-m", &format!("uuid={uuid}")],
            Filesystem::Btrfs => &["mkfs.btrfs", "-q", "-U", &uuid],
        };
        words.iter().copied().chain([device]).map(str::to_owned).collect()
    }

    /// The command that makes a mounted one as large as its device.
    pub fn grow(self, device: &str, mounted_at: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Filesystem::Ext4 => &["resize2fs", device],
            Filesystem::Xfs => &["xfs_growfs", "-d", mounted_at],
            Filesystem::Btrfs => &["btrfs", "filesystem", "resize", "max", mounted_at],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Whether a power cut soon after growth could leave it unmountable: xfs of Linux 6.1 cannot recover a journal that
    /// tells of its growth and of what was written behind its former end.
    pub fn must_be_written_out_when_grown(self) -> bool {
        self == Filesystem::Xfs
    }

    /// Mount options without which a copy cannot be mounted beside its source, or a read-only device at all.
    pub fn options(self, device_is_read_only: bool) -> Vec<&'static str> {
        match (self, device_is_read_only) {
            (Filesystem::Ext4, false) | (Filesystem::Btrfs, false) => vec![],
            (Filesystem::Ext4, true) => vec!["noload"],
            (Filesystem::Xfs, false) => vec!["nouuid"],
            (Filesystem::Xfs, true) => vec!["nouuid", "norecovery"],
            (Filesystem::Btrfs, true) => vec!["rescue=nologreplay"],
        }
    }
}

impl fmt::Display for Filesystem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What a probe of a device found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing at all.
    Nothing,
    /// A filesystem.
    Filesystem {
        /// Its kind, as blkid(8) calls it.
        kind: String,
        /// Its identity.
        uuid: Option<Uuid>,
        /// Whether the filesystem itself says that its making was cut off.
        unfinished: bool,
    },
    /// Something else: a partition table, LUKS, an array's member, a physical volume.
    Other(String),
    /// No signature, but a copy of a filesystem's that is kept for repairs.
    Remains(&'static str),
}

impl Content {
    /// From what `blkid --probe --output export` printed.
    pub fn of_blkid(printed: &str) -> Content {
        let value = |key: &str| {
            let line = printed.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.map(str::to_owned)
        };
        match (value("USAGE").as_deref(), value("TYPE"), value("PTTYPE")) {
            (Some("filesystem"), Some(kind), None) => {
                let uuid = value("UUID").and_then(|uuid| uuid.parse().ok());
                Content::Filesystem { kind, uuid, unfinished: false }
            }
            (_, Some(kind), _) => Content::Other(kind),
            (_, None, Some(table)) => Content::Other(format!("a {table} partition table")),
            (_, None, None) => Content::Other("something that blkid does not name".to_owned()),
        }
    }
}

/// What to do with a device before it is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preparation {
    /// A filesystem is made.
    Format,
    /// One is there and was never used by anybody: making it had finished.
    Finish,
    /// One is there, somebody's.
    Use,
}

/// Why a device is neither formatted nor mounted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotMountable {
    /// There is something that is no filesystem.
    #[error("it contains {0}, and is neither mounted nor formatted")]
    Foreign(String),
    /// It has another filesystem than wished.
    #[error("it has a filesystem of type {present}, wanted is {wanted}")]
    Another {
        /// What is there.
        present: String,
        /// What is wished.
        wanted: Filesystem,
    },
    /// It was used, and its filesystem is gone.
    #[error(
        "it was in use with a filesystem, and none is found now: its data may be damaged, and it is not formatted"
    )]
    Vanished,
    /// It would have to be formatted, and may only be read.
    #[error("it has no filesystem yet, and a read-only mount makes none")]
    ReadOnly,
    /// It was made for use as a block device.
    #[error("it was made as a block device, and its bytes may be somebody's")]
    Block,
}

/// Decides what to do, from the facts that we noted, and what the probe found.
///
/// Tags only ever forbid, or permit on an empty probe: whatever is on a device is kept, whoever wrote it.
pub fn prepare(
    facts: &Facts,
    content: &Content,
    wanted: Filesystem,
    read_only: bool,
) -> Result<Preparation, NotMountable> {
    match content {
        Content::Other(what) => Err(NotMountable::Foreign(what.clone())),
        Content::Remains(what) => Err(NotMountable::Foreign(format!("remains of {what}"))),
        Content::Filesystem { kind, uuid, unfinished } => {
            let ours = facts.is_ours() && !facts.used && uuid.is_some() && *uuid == facts.fsid;
            if ours && *unfinished {
                return if read_only { Err(NotMountable::ReadOnly) } else { Ok(Preparation::Format) };
            }
            if kind != wanted.name() {
                return Err(NotMountable::Another { present: kind.clone(), wanted });
            }
            Ok(if ours { Preparation::Finish } else { Preparation::Use })
        }
        Content::Nothing if facts.used => Err(NotMountable::Vanished),
        Content::Nothing if facts.block && facts.fsid.is_none() => Err(NotMountable::Block),
        Content::Nothing if read_only => Err(NotMountable::ReadOnly),
        Content::Nothing => Ok(Preparation::Format),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ours() -> Facts {
        Facts { name: Some("v".into()), fsid: Some(Uuid::from_u128(1)), ..Facts::default() }
    }

    fn xfs(uuid: u128) -> Content {
        Content::Filesystem { kind: "xfs".into(), uuid: Some(Uuid::from_u128(uuid)), unfinished: false }
    }

    #[test]
    fn only_an_empty_volume_is_formatted() {
        assert_eq!(prepare(&ours(), &Content::Nothing, Filesystem::Xfs, false), Ok(Preparation::Format));
        // TopoLVM made it and nobody has used it.
        assert_eq!(
            prepare(&Facts::default(), &Content::Nothing, Filesystem::Xfs, false),
            Ok(Preparation::Format)
        );
        for content in [
            Content::Other("LVM2_member".into()),
            Content::Remains("ext4"),
            Content::Filesystem { kind: "ext4".into(), uuid: None, unfinished: false },
            Content::Filesystem { kind: "ext4".into(), uuid: None, unfinished: true },
        ] {
            for facts in [ours(), Facts::default()] {
                assert!(prepare(&facts, &content, Filesystem::Xfs, false).is_err(), "{content:?}");
            }
        }
    }

    #[test]
    fn a_volume_that_was_used_is_never_formatted_again() {
        let used = Facts { used: true, ..ours() };
        assert_eq!(prepare(&used, &Content::Nothing, Filesystem::Xfs, false), Err(NotMountable::Vanished));
        let unfinished = Content::Filesystem { kind: "xfs".into(), uuid: used.fsid, unfinished: true };
        assert_eq!(prepare(&used, &unfinished, Filesystem::Xfs, false), Ok(Preparation::Use));
    }

    #[test]
    fn making_that_was_cut_off_is_made_again_only_if_it_was_ours() {
        let cut = |uuid| Content::Filesystem {
            kind: "xfs".into(),
            uuid: Some(Uuid::from_u128(uuid)),
            unfinished: true,
        };
        assert_eq!(prepare(&ours(), &cut(1), Filesystem::Xfs, false), Ok(Preparation::Format));
        assert_eq!(prepare(&ours(), &cut(2), Filesystem::Xfs, false), Ok(Preparation::Use));
        assert_eq!(prepare(&ours(), &xfs(1), Filesystem::Xfs, false), Ok(Preparation::Finish));
        assert_eq!(prepare(&ours(), &xfs(2), Filesystem::Xfs, false), Ok(Preparation::Use));
    }

    #[test]
    fn a_read_only_mount_makes_no_filesystem() {
        assert_eq!(prepare(&ours(), &Content::Nothing, Filesystem::Ext4, true), Err(NotMountable::ReadOnly));
        assert_eq!(prepare(&ours(), &xfs(9), Filesystem::Xfs, true), Ok(Preparation::Use));
        let cut = Content::Filesystem { kind: "xfs".into(), uuid: ours().fsid, unfinished: true };
        assert_eq!(prepare(&ours(), &cut, Filesystem::Xfs, true), Err(NotMountable::ReadOnly));
    }

    #[test]
    fn what_may_become_either_is_formatted_until_somebody_has_had_it() {
        let block = Facts { block: true, fsid: None, ..ours() };
        let wanted = Filesystem::Ext4;
        assert_eq!(prepare(&block, &Content::Nothing, wanted, false), Err(NotMountable::Block));
        let either = Facts { block: true, ..ours() };
        assert_eq!(prepare(&either, &Content::Nothing, wanted, false), Ok(Preparation::Format));
        let used = Facts { used: true, ..either };
        assert_eq!(prepare(&used, &Content::Nothing, wanted, false), Err(NotMountable::Vanished));
    }

    #[test]
    fn no_journal_is_replayed_on_a_read_only_device() {
        for (kind, option) in [
            (Filesystem::Ext4, "noload"),
            (Filesystem::Xfs, "norecovery"),
            (Filesystem::Btrfs, "rescue=nologreplay"),
        ] {
            assert!(kind.options(true).contains(&option), "{kind}");
            assert!(!kind.options(false).contains(&option), "{kind}");
        }
    }

    #[test]
    fn what_blkid_prints_is_told_apart() {
        let ext4 = "DEVNAME=/dev/dm-3\nUUID=0f3bd1e1-5ab6-4b7e-8b4c-5f0d6b1f8a11\nVERSION=1.0\nTYPE=ext4\nUSAGE=filesystem\n";
        assert!(
            matches!(Content::of_blkid(ext4), Content::Filesystem { kind, uuid: Some(_), .. } if kind == "ext4")
        );
        let gpt = "DEVNAME=/dev/dm-3\nPTUUID=a\nPTTYPE=gpt\n";
        assert_eq!(Content::of_blkid(gpt), Content::Other("a gpt partition table".into()));
        let member = "DEVNAME=/dev/dm-3\nUUID=x\nTYPE=LVM2_member\nUSAGE=raid\n";
        assert_eq!(Content::of_blkid(member), Content::Other("LVM2_member".into()));
        assert!(matches!(Content::of_blkid(""), Content::Other(_)));
    }
    proptest! {
        #[test]
        fn nothing_that_is_printed_is_taken_for_an_empty_device(
            lines in prop::collection::vec("(TYPE|USAGE|UUID|PTTYPE|\\PC{0,8})=?(filesystem|ext4|\\PC{0,12})", 0..8),
        ) {
            let found = Content::of_blkid(&lines.join("\n"));
            prop_assert!(matches!(found, Content::Filesystem { .. } | Content::Other(_)), "{:?}", found);
        }

        #[test]
        fn a_filesystem_is_read_as_it_is_printed(kind in "[a-z0-9_]{1,12}", uuid: u128, before in "[A-Z]{1,9}=[ -~]{0,20}") {
            let uuid = Uuid::from_u128(uuid);
            prop_assume!(!["TYPE=", "USAGE=", "UUID=", "PTTYPE="].iter().any(|key| before.starts_with(key)));
            let printed = format!("{before}\nUUID={uuid}\nTYPE={kind}\nUSAGE=filesystem\n");
            let expected = Content::Filesystem { kind, uuid: Some(uuid), unfinished: false };
            prop_assert_eq!(Content::of_blkid(&printed), expected);
        }
    }
}
