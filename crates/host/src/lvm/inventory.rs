//! What is there: volume groups with their disks and volumes, from one report.

mod report;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

pub use self::report::{BadReport, COLUMNS};
use super::metadata::Version;
use crate::names::{LvName, VgName, VolumePath};
use crate::units::{Bytes, Extents};

/// All volume groups of the host that LVM shows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// By name. Of several groups with one name only the first is here: LVM itself refuses to work with them.
    pub groups: BTreeMap<VgName, Arc<Group>>,
    /// Groups at which nobody could look yet, and why: whether they are there is not known.
    pub unseen: BTreeMap<VgName, String>,
}

/// A volume group.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: VgName,
    /// LVM's identity for it.
    pub uuid: String,
    /// Grows with every change of its metadata.
    pub seqno: u64,
    /// LVM's own checksum of its metadata, if it was read.
    pub checksum: Option<u32>,
    /// Six letters: writable, resizeable, exported, partial, allocation policy, clustered or shared.
    pub attributes: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// The size of one extent.
    pub extent: Bytes,
    /// How many there are.
    pub extents: Extents,
    /// How many are free.
    pub free: Extents,
    /// The size of one copy of the metadata, and what is free in it; after changes of ours, what is free at least.
    pub metadata: (Bytes, Bytes),
    /// Whether that is what LVM has told, and not what is free at least.
    pub measured: bool,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Whether it is known how many extents of each disk are taken, and not only of all together.
    pub placed: bool,
    /// Its volumes, without LVM's internal parts.
    pub volumes: BTreeMap<LvName, Volume>,
}

/// A physical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its device node; `[unknown]` if it is missing.
    pub path: String,
    /// LVM's identity for it.
    pub uuid: String,
    /// How many extents it has.
    pub extents: Extents,
    /// How many of them are taken.
    pub taken: Extents,
    /// The longest run of free ones when LVM was asked: no change of ours follows it.
    pub run: Extents,
    /// Whether it is not there.
    pub missing: bool,
    /// Whether new extents may be taken from it.
    pub allocatable: bool,
    /// Its device number, if it is there.
    pub device: Option<DeviceNumber>,
}

impl Disk {
    /// Its name for people, who know a missing one by LVM's identity alone.
    pub fn told(&self) -> String {
        if self.path.starts_with('[') {
            format!("PV {}", self.uuid)
        } else {
            format!("{} (PV {})", self.path, self.uuid)
        }
    }

    /// Whether its device has gone since LVM was asked.
    pub fn is_gone(&self) -> bool {
        self.device.is_some_and(|number| !number.exists())
    }

    /// How many extents can still be had from it.
    pub fn free(&self) -> Extents {
        if self.allocatable && !self.missing { self.extents - self.taken } else { Extents::ZERO }
    }
}

/// Major and minor number of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device.
    pub minor: u32,
}

impl DeviceNumber {
    /// The kernel's directory for it.
    pub fn directory(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{}:{}", self.major, self.minor))
    }

    /// What device-mapper calls it; none if it is another driver's, or gone.
    pub fn mapper_name(self) -> Option<String> {
        let name = fs::read_to_string(self.directory().join("dm/name")).ok()?;
        Some(name.trim().to_owned())
    }

    /// Whether the kernel has such a device.
    pub fn exists(self) -> bool {
        self.directory().exists()
    }
}

/// A logical volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// Its name.
    pub name: LvName,
    /// LVM's identity for it.
    pub uuid: String,
    /// What it is.
    pub kind: Kind,
    /// The size that its user sees.
    pub size: Bytes,
    /// Its tags.
    pub tags: Vec<String>,
    /// Ten letters: type, permissions, allocation, fixed minor, state, open, target, zero, health, skip.
    pub attributes: String,
    /// Whether device-mapper has a device for it.
    pub active: bool,
    /// Where its data lies; empty if that is not known, as after a change of ours.
    pub areas: Vec<Area>,
}

/// Extents of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// The disk's device node.
    pub place: String,
    /// The first extent.
    pub first: u64,
    /// The last extent.
    pub last: u64,
}

/// What a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Extents of its own.
    Thick(Layout),
    /// A pool for thin volumes.
    Pool {
        /// The unit in which it gives space.
        chunk: Bytes,
        /// The size of its metadata.
        metadata: Bytes,
    },
    /// Takes space from a pool as it is written.
    Thin {
        /// The pool.
        pool: LvName,
        /// What it is a snapshot of, if that is still there.
        origin: Option<LvName>,
    },
    /// A copy-on-write snapshot of a thick volume.
    Cow {
        /// What it is a snapshot of.
        origin: LvName,
        /// The size of its store for old blocks.
        store: Bytes,
    },
    /// Of a type that is not made here: somebody has put a cache before a volume, or it is a mirror of the old kind.
    Other(String),
}

/// Other types whose volumes are activated, read, written and removed like any: lvm2 removes a cache with its volume.
const SERVED: [&str; 3] = ["cache", "writecache", "mirror"];

/// How a thick volume lies on its disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// `linear`, `striped`, `raid1`, …
    pub segment: String,
    /// Over how many disks each segment is spread.
    pub stripes: u64,
    /// How many copies of the data there are.
    pub copies: u64,
}

impl Volume {
    /// The letter at this position of the attributes, counted from 1 as in lvs(8).
    pub fn attribute(&self, position: usize) -> char {
        self.attributes.chars().nth(position - 1).unwrap_or('-')
    }

    /// Whether it is a copy-on-write snapshot that was lost because its store was full.
    pub fn has_overflowed(&self) -> bool {
        matches!(self.attribute(5), 'I' | 'S')
    }

    /// Whether it may only be read.
    pub fn is_read_only(&self) -> bool {
        matches!(self.attribute(2), 'r' | 'R')
    }

    /// Whether it has this tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|other| other == tag)
    }

    /// The pool that it takes its space from.
    fn pool(&self) -> Option<&LvName> {
        if let Kind::Thin { pool, .. } = &self.kind { Some(pool) } else { None }
    }

    /// Whether it is a thin pool.
    pub fn is_pool(&self) -> bool {
        matches!(self.kind, Kind::Pool { .. })
    }

    /// Whether it is for people: neither a pool nor of a type of which nothing is known.
    pub fn is_volume(&self) -> bool {
        match &self.kind {
            Kind::Thick(_) | Kind::Thin { .. } | Kind::Cow { .. } => true,
            Kind::Pool { .. } => false,
            Kind::Other(segment) => SERVED.contains(&segment.as_str()),
        }
    }
}

impl Group {
    /// Whether this is the text of its metadata, as far as is known.
    pub fn is(&self, version: Version) -> bool {
        self.seqno == version.seqno && self.checksum.is_none_or(|checksum| checksum == version.checksum)
    }

    /// The path of one of its volumes.
    pub fn path(&self, volume: &LvName) -> VolumePath {
        VolumePath { group: self.name.clone(), volume: volume.clone() }
    }

    /// Why LVM makes no volumes in it, if somebody has told it not to.
    pub fn is_closed(&self) -> Option<&'static str> {
        let mut letters = self.attributes.chars();
        match (letters.next(), letters.nth(1)) {
            (_, Some('x')) => Some("it is exported: import it with vgimport"),
            (Some('r'), _) => Some("it may only be read: allow changes with vgchange --permission rw"),
            _ => None,
        }
    }

    /// How many extents LVM can take: those of disks that are closed to it (`pvchange -xn`) count as free as well.
    pub fn to_be_had(&self) -> Extents {
        let closed = self.disks.iter().filter(|disk| !disk.allocatable);
        self.free.minus(closed.map(|disk| disk.extents - disk.taken).sum())
    }

    /// Whether it is known well enough where the free extents are, for a volume on one disk or on several.
    pub fn is_placed_for(&self, several: bool) -> bool {
        self.placed || !several && self.disks.iter().all(|disk| disk.allocatable)
    }

    /// Its disks that are not there.
    pub fn missing(&self) -> impl Iterator<Item = &Disk> {
        self.disks.iter().filter(|disk| disk.missing)
    }

    /// The names of what LVM would remove with this volume: its copy-on-write snapshots, and thin volumes that read from it
    /// what they do not have themselves. A snapshot in its own pool needs no origin.
    pub fn dependants_of(&self, name: &LvName) -> Vec<&LvName> {
        let own = self.volumes.get(name).and_then(Volume::pool);
        let reads = |volume: &&Volume| {
            let origin = matches!(&volume.kind, Kind::Thin { origin, .. } if origin.as_ref() == Some(name));
            origin && volume.pool() != own
        };
        let others = self.volumes.values().filter(reads).map(|volume| &volume.name);
        self.snapshots_of(name).into_iter().chain(others).collect()
    }

    /// The names of copy-on-write snapshots of this volume.
    pub fn snapshots_of(&self, name: &LvName) -> Vec<&LvName> {
        let depends = |volume: &&Volume| matches!(&volume.kind, Kind::Cow { origin, .. } if origin == name);
        self.volumes.values().filter(depends).map(|volume| &volume.name).collect()
    }
}

impl Inventory {
    /// With this group alone.
    pub fn of(group: Group) -> Inventory {
        Inventory { groups: [(group.name.clone(), Arc::new(group))].into(), ..Inventory::default() }
    }

    /// A volume, if it is there.
    pub fn volume(&self, path: &VolumePath) -> Option<&Volume> {
        self.groups.get(&path.group)?.volumes.get(&path.volume)
    }
}
