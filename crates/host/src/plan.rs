//! What to do next: pure functions from what is there and what is wished to one step, or to none.
//!
//! A step is one change of LVM's metadata, or one long work with the change that says that it is finished. After each
//! step the plan is made anew from what is there then. So a plan that was cut off anywhere goes on where it was, and
//! no state is kept but LVM's.

pub mod capacity;
pub mod volume;

use std::path::PathBuf;

use thiserror::Error;

use crate::lvm::Change;
use crate::names::{LvName, VgName, VolumePath};
use crate::units::Bytes;

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Nothing: all is as wished.
    Done,
    /// LVM is asked what is there, and then planned again: more must be known than is.
    Look,
    /// This, and then plan again.
    Do(Box<Step>),
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// One command.
    Change(Change),
    /// A command that frees extents and one that takes them, with nothing between.
    Swap(Change, Change),
    /// A command that takes back what was begun, and then this answer.
    GiveUp(Change, Refusal),
    /// Zeros are written; then comes the command that says so.
    Zero {
        /// Where.
        volume: VolumePath,
        /// From this byte.
        from: Bytes,
        /// To this one.
        to: Bytes,
        /// Says that it is finished.
        then: Change,
    },
    /// A copy is made; then comes the command that says so.
    Copy {
        /// From where.
        from: VolumePath,
        /// To where.
        to: VolumePath,
        /// How much.
        length: Bytes,
        /// Whether the target may hold something else than zeros.
        dirty: bool,
        /// Says that it is finished.
        then: Change,
    },
}

impl Step {
    /// The group whose metadata it changes.
    pub fn group(&self) -> VgName {
        match self {
            Step::Change(change) | Step::Swap(_, change) | Step::GiveUp(change, _) => change.path().group,
            Step::Zero { then, .. } | Step::Copy { then, .. } => then.path().group,
        }
    }
}

/// Why a wish cannot be fulfilled as things are.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refusal {
    /// The class's group is not there.
    #[error("there is no volume group {0}: make it with vgcreate, or bring its disks back")]
    NoGroup(VgName),
    /// The class's pool is not there.
    #[error("there is no thin pool {0}: make it with lvcreate --type thin-pool, or bring its disks back")]
    NoPool(VolumePath),
    /// The volume is not there.
    #[error("there is no volume {0}")]
    NoVolume(VolumePath),
    /// Too little room.
    #[error("{place} has room for {free}, wanted are {wanted}")]
    NoSpace {
        /// Where.
        place: String,
        /// How much could be had.
        free: Bytes,
        /// How much is wished.
        wanted: Bytes,
    },
    /// The pool is so full that a new volume would endanger the others.
    #[error(
        "thin pool {pool} is too full for more volumes: data {data:.1} %, metadata {metadata:.1} %: extend it with \
         lvextend (metadata: --poolmetadatasize), or remove volumes"
    )]
    PoolFull {
        /// Which.
        pool: VolumePath,
        /// In percent.
        data: f64,
        /// In percent.
        metadata: f64,
    },
    /// The pool is inactive or damaged.
    #[error("thin pool {pool} cannot be used: {reason}")]
    PoolUnusable {
        /// Which.
        pool: VolumePath,
        /// Why.
        reason: &'static str,
    },
    /// The group's metadata has no room for one more volume.
    #[error(
        "the metadata area of volume group {0} is full: remove volumes or snapshots, or add a disk with a larger one \
         (vgextend --metadatasize) and set the small ones aside (pvchange --metadataignore y)"
    )]
    MetadataFull(VgName),
    /// Somebody has closed the group.
    #[error("volume group {group} takes no volumes: {reason}")]
    GroupClosed {
        /// Which.
        group: VgName,
        /// Why.
        reason: &'static str,
    },
    /// Disks of the group are not there.
    #[error(
        "volume group {group} lacks disks, or cannot read them: {}: nothing is changed in it until they are back",
        disks.join(", ")
    )]
    DisksMissing {
        /// Which.
        group: VgName,
        /// Their names.
        disks: Vec<String>,
    },
    /// Whole extents are more than the largest size that is wished.
    #[error("the volume would have {size}, and at most {limit} are wished")]
    AboveLimit {
        /// With whole extents.
        size: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// A volume of this name is there, and is another one.
    #[error("{path} is there already and is another volume: {difference}")]
    Another {
        /// Which.
        path: VolumePath,
        /// In what.
        difference: String,
    },
    /// The source is not there.
    #[error("the source {0} is not there")]
    NoSource(VolumePath),
    /// The source cannot be copied.
    #[error("the source {path} cannot be copied: {reason}")]
    BadSource {
        /// Which.
        path: VolumePath,
        /// Why.
        reason: &'static str,
    },
    /// The wish is smaller than its source.
    #[error("the source has {source_size}, wanted are only {wanted}")]
    SmallerThanSource {
        /// The source's.
        source_size: Bytes,
        /// What is wished.
        wanted: Bytes,
    },
    /// Somebody is given the volume to use.
    #[error("{path} is published at {}: unpublish it there first", target.display())]
    Published {
        /// Which.
        path: VolumePath,
        /// Where.
        target: PathBuf,
    },
    /// Somebody may be given the volume to use.
    #[error("whether {path} is published cannot be seen: {reason}")]
    PublishedUnseen {
        /// Which.
        path: VolumePath,
        /// Why.
        reason: String,
    },
    /// What was made for a volume of another group may still be needed there.
    #[error(
        "{left} may be the source of a copy in a volume group that could not be looked at yet: {}; it is tried again",
        groups.iter().map(VgName::as_str).collect::<Vec<_>>().join(", ")
    )]
    PerhapsNeeded {
        /// Which.
        left: VolumePath,
        /// The groups.
        groups: Vec<VgName>,
    },
    /// Linux may hang over the removal of a snapshot of RAID whose images do not agree yet.
    #[error(
        "{path} is a snapshot of {origin}, whose images are just made to agree ({state}): Linux may hang if it is removed \
         before they do; it is tried again"
    )]
    Synchronising {
        /// Which.
        path: VolumePath,
        /// Of which volume.
        origin: VolumePath,
        /// How the images are.
        state: String,
    },
    /// Snapshots would be lost with the volume.
    #[error("{path} has snapshots that would be lost with it: {}", names(snapshots))]
    HasSnapshots {
        /// Which.
        path: VolumePath,
        /// Their names.
        snapshots: Vec<LvName>,
    },
    /// Copies that are not finished still need it.
    #[error(
        "{path} is being copied to {}: it can go when that is finished, or deleted",
        copies.iter().map(VolumePath::to_string).collect::<Vec<_>>().join(", ")
    )]
    BeingCopied {
        /// Which.
        path: VolumePath,
        /// What is made of it.
        copies: Vec<VolumePath>,
    },
    /// lvm2 does not grow RAID with copy-on-write snapshots.
    #[error(
        "{path} is a RAID volume and has snapshots, with which it cannot grow: it can when they are gone: {}",
        names(snapshots)
    )]
    GrowsOnlyAlone {
        /// Which.
        path: VolumePath,
        /// Their names.
        snapshots: Vec<LvName>,
    },
    /// lvm2 grows a volume with copy-on-write snapshots only while nobody uses it.
    #[error("{path} is in use and has snapshots, with which it cannot grow: {}", names(snapshots))]
    GrowsOnlyUnused {
        /// Which.
        path: VolumePath,
        /// Their names.
        snapshots: Vec<LvName>,
    },
    /// Its new extents could be read before they are zeroed.
    #[error(
        "{path} is in use as a block device and its RAID images lie on {disks} disks and not on {images}: it grows only while nobody uses it"
    )]
    BlockGrowsOnlyUnused {
        /// Which.
        path: VolumePath,
        /// On how many disks it lies.
        disks: usize,
        /// How many images it has.
        images: u64,
    },
    /// What is zeroed beside it, before it grows, would have a name that is too long.
    #[error(
        "{0} is in use as a block device, and its name is so long that nothing can be zeroed beside it: it grows only \
         while nobody uses it"
    )]
    LongNameGrowsOnlyUnused(VolumePath),
    /// Zeros that were begun would go over what its user has written by now.
    #[error(
        "{path} waits for zeros that were begun, and somebody uses it: nothing is written over what may be wanted by now; \
         it goes on when that use has ended; or keep all that is on it: lvchange --deltag lvms.io/zeroing={} {path}",
        from.0
    )]
    UsedBeforeZeros {
        /// Which.
        path: VolumePath,
        /// Where they begin.
        from: Bytes,
    },
    /// Made by a newer version.
    #[error("{path} was made by a newer lvms (format {format}): this one does not change it")]
    Newer {
        /// Which.
        path: VolumePath,
        /// Its format.
        format: u32,
    },
    /// Somebody has made something of it that only serves.
    #[error(
        "{path} is of LVM's type {segment}: it serves, and is neither grown nor copied: {}",
        way_back(segment)
    )]
    OnlyServes {
        /// Which.
        path: VolumePath,
        /// Its type.
        segment: String,
    },
    /// Options of a class make what is not managed here.
    #[error("{0} makes a volume that is not managed here: use linear, striped or a type of RAID")]
    ForeignType(String),
    /// A pool, or something of LVM's own.
    #[error("{0} is no volume of ours")]
    NotAVolume(VolumePath),
}

fn way_back(segment: &str) -> &'static str {
    match segment {
        "cache" | "writecache" => "take the cache away with lvconvert --uncache",
        "mirror" => "make it RAID with lvconvert --type raid1",
        _ => "make it a volume of another type with lvconvert",
    }
}

fn names(names: &[LvName]) -> String {
    names.iter().map(LvName::as_str).collect::<Vec<_>>().join(", ")
}
