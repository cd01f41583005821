//! What went wrong, as a type. The sentences are lvm2's; here is the only place that reads them.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use thiserror::Error;

use super::answer::{Answer, NotAnAnswer};
use crate::runner::{Finished, Following, ProcessError, Program};

/// Why an LVM command failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// The volume group or the volume is not there.
    #[error("{0}")]
    NotFound(String),
    /// A volume of this name is there already.
    #[error("{0}")]
    AlreadyThere(String),
    /// Too few free extents, or not on enough disks, or the pool refuses.
    #[error("{0}")]
    NoSpace(String),
    /// The metadata area of the volume group is full.
    #[error("the metadata area of the volume group is full: remove volumes, snapshots or tags: {0}")]
    MetadataFull(String),
    /// Somebody uses the volume.
    #[error("{0}")]
    InUse(String),
    /// The volume has the size already, or a larger one.
    #[error("{0}")]
    NotLarger(String),
    /// A disk of the volume group is missing.
    #[error("{0}")]
    MissingDevice(String),
    /// The volume group belongs to another host.
    #[error("{0}: it is used again when vgchange --systemid has given it to this host")]
    Foreign(String),
    /// Another LVM command holds the lock, or locking does not work.
    #[error("{0}")]
    Locked(String),
    /// This kernel or this lvm2 cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// lvm2 does not understand the command: an option of a class that it does not know, for example.
    #[error("lvm2 refused the command: {0}")]
    Refused(String),
    /// It is past its deadline and goes on; its volume group can do nothing else until it ends.
    #[error("process {pid} has changed the volume group for more than {} s and still runs: {program}", limit.as_secs())]
    Stuck {
        /// Its number.
        pid: u32,
        /// Its words.
        program: String,
        /// The deadline.
        limit: Duration,
        /// To follow it on.
        rest: Box<Following>,
    },
    /// Whoever reads these disks waits for ever, as lvm2 would.
    #[error("{} of volume group {group} do not answer: see dmesg; the group goes on by itself when they do", disks.join(", "))]
    Silent {
        /// Of which group.
        group: String,
        /// Which.
        disks: Vec<String>,
    },
    /// lvm2 could not be run.
    #[error(transparent)]
    Process(ProcessError),
    /// lvm2's answer could not be read.
    #[error(transparent)]
    Unreadable(#[from] NotAnAnswer),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Whether it means that somebody else was quicker: what is there is not what was there when it was planned.
    pub(crate) fn is_of_another(&self) -> bool {
        matches!(self, Failure::NotFound(_) | Failure::AlreadyThere(_) | Failure::NotLarger(_))
    }

    /// Whether LVM waits for somebody else.
    pub(crate) fn is_of_the_moment(&self) -> bool {
        use ProcessError::{TooSlow, Unanswered};
        matches!(self, Failure::Locked(_) | Failure::Process(TooSlow { .. } | Unanswered { .. }))
    }

    /// What a finished command answered, or why it failed.
    pub(crate) fn judge(program: &Program, finished: &Finished) -> Result<Answer, Failure> {
        let answer = Answer::parse(&finished.stdout)?;
        if finished.status.success() {
            return Ok(answer);
        }
        let mut said = answer.errors().map(str::to_owned).collect::<Vec<_>>().join("; ");
        if said.is_empty() {
            said = complaint(&finished.stderr);
        }
        // One that was killed has only warned before.
        if said.is_empty() || finished.status.signal().is_some() {
            said = format!("{} ended with {}", program.words(), finished.status);
        }
        /// The exit status of a command line that lvm2 does not understand.
        const REFUSED: i32 = 3;
        Err(if finished.status.code() == Some(REFUSED) { Failure::Refused(said) } else { classify(said) })
    }
}

fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let said = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Run `"));
    said.collect::<Vec<_>>().join("; ")
}

type Make = fn(String) -> Failure;

/// Parts of lvm2's sentences, the particular before the general.
const SENTENCES: &[(&str, Make)] = &[
    ("exceeds maximum metadata size", Failure::MetadataFull),
    ("too large for circular buffer", Failure::MetadataFull),
    ("Failed to write VG", Failure::Other),
    ("insufficient free space", Failure::NoSpace),
    ("Insufficient free space", Failure::NoSpace),
    ("Insufficient suitable", Failure::NoSpace),
    ("No free extents", Failure::NoSpace),
    ("must not exceed number of physical volumes", Failure::NoSpace),
    ("not enough PVs with free space", Failure::NoSpace),
    ("Not enough free space", Failure::NoSpace),
    ("free space in pool", Failure::NoSpace),
    ("reached threshold", Failure::NoSpace),
    ("needs to be extended", Failure::NoSpace),
    ("Cannot change VG", Failure::MissingDevice),
    ("while PVs are missing", Failure::MissingDevice),
    ("while partial", Failure::MissingDevice),
    ("PVs are missing", Failure::MissingDevice),
    ("is missing PVs", Failure::MissingDevice),
    ("missing PV", Failure::MissingDevice),
    ("missing devices", Failure::MissingDevice),
    ("Refusing activation of partial LV", Failure::MissingDevice),
    ("already exists in volume group", Failure::AlreadyThere),
    ("not larger than existing size", Failure::NotLarger),
    ("matches existing size", Failure::NotLarger),
    ("is in use", Failure::InUse),
    (" in use.", Failure::InUse),
    ("contains a filesystem in use", Failure::InUse),
    ("is used by another device", Failure::InUse),
    ("Can't remove open logical volume", Failure::InUse),
    ("in use: not deactivating", Failure::InUse),
    ("snapshot(s), not deactivating", Failure::InUse),
    ("Failed to find logical volume", Failure::NotFound),
    ("not found in volume group", Failure::NotFound),
    ("not found in Volume group", Failure::NotFound),
    ("Volume group \"", Failure::NotFound),
    ("Can't get lock", Failure::Locked),
    ("with system ID", Failure::Foreign),
    ("Cannot access VG", Failure::Locked),
    ("Failed to lock", Failure::Locked),
    ("lock failed", Failure::Locked),
    ("Required device-mapper target", Failure::Unsupported),
    ("without using device-mapper kernel driver", Failure::Unsupported),
];

fn classify(said: String) -> Failure {
    let found = SENTENCES.iter().find(|(part, _)| {
        said.contains(part) && (*part != "Volume group \"" || said.contains("\" not found"))
    });
    match found {
        Some((_, failure)) => failure(said),
        None => Failure::Other(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(said: &str) -> &'static str {
        match classify(said.to_owned()) {
            Failure::NotFound(_) => "not found",
            Failure::AlreadyThere(_) => "there",
            Failure::NoSpace(_) => "no space",
            Failure::MetadataFull(_) => "metadata full",
            Failure::InUse(_) => "in use",
            Failure::NotLarger(_) => "not larger",
            Failure::MissingDevice(_) => "missing device",
            Failure::Foreign(_) => "foreign",
            Failure::Locked(_) => "locked",
            Failure::Unsupported(_) => "unsupported",
            Failure::Refused(_) => "refused",
            Failure::Stuck { .. }
            | Failure::Silent { .. }
            | Failure::Process(_)
            | Failure::Unreadable(_)
            | Failure::Other(_) => "other",
        }
    }

    #[test]
    fn a_killed_command_is_told_as_such_whatever_it_has_said() {
        let finished = Finished {
            status: std::process::ExitStatus::from_raw(9),
            stdout: Vec::new(),
            stderr: b"  WARNING: Ignoring duplicate config value: monitoring\n".to_vec(),
        };
        let program = Program::changes(["lvm", "lvcreate"], Duration::from_secs(1));
        let failure = Failure::judge(&program, &finished).unwrap_err();
        assert!(failure.to_string().starts_with("lvm lvcreate ended with signal: 9"), "{failure}");
    }

    #[test]
    fn sentences_of_lvm2_are_told_apart() {
        // Each was printed by lvm2 2.03.16.
        for (said, expected) in [
            ("Volume group \"novg\" not found; Cannot process volume group novg", "not found"),
            ("Failed to find logical volume \"vg/nolv\"", "not found"),
            ("Logical volume a not found in volume group vg.", "not found"),
            ("Pool pool not found in Volume group vg.", "not found"),
            ("Snapshot origin LV thin not found in Volume group vg.", "not found"),
            ("Logical Volume \"a\" already exists in volume group \"vg\"", "there"),
            ("Volume group \"vg\" has insufficient free space (505 extents): 5000 required.", "no space"),
            ("Insufficient free space: 69993 extents needed, but only 503 available", "no space"),
            ("New size given (3 extents) not larger than existing size (5 extents)", "not larger"),
            ("New size (7 extents) matches existing size (7 extents).", "not larger"),
            ("Can't create raid1 without using device-mapper kernel driver.", "unsupported"),
            (
                "VG vg 113 metadata on /dev/sda (62730 bytes) exceeds maximum metadata size (62720 bytes); \
                 Failed to write VG vg.; Failed to update metadata of vg/filler on disk.",
                "metadata full",
            ),
            ("Cannot access VG vg with system ID other with local system ID here.", "foreign"),
            ("Cannot access VG vg with system ID other with unknown local system ID.", "foreign"),
            ("Cannot access VG vg due to failed lock.", "locked"),
            ("LV vg/origin has open 1 snapshot(s), not deactivating.", "in use"),
            ("Something that nobody has seen", "other"),
        ] {
            assert_eq!(kind(said), expected, "{said}");
        }
    }
}
