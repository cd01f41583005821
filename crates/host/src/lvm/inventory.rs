//! What is there: volume groups with their disks and volumes, from one report.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use super::answer::{Answer, Tables};
use super::metadata::Version;
use crate::names::{LvName, NameError, VgName, VolumePath};
use crate::units::{Bytes, Extents};

/// The columns of each table, as `fullreport` takes them.
pub const COLUMNS: [(&str, &str); 5] = [
    (
        "vg",
        "vg_name,vg_uuid,vg_seqno,vg_attr,vg_tags,vg_extent_size,vg_extent_count,vg_free_count,vg_mda_size,vg_mda_free",
    ),
    ("pv", "pv_name,pv_uuid,pv_pe_count,pv_pe_alloc_count,pv_missing,pv_allocatable,pv_major,pv_minor"),
    (
        "lv",
        "lv_name,lv_uuid,lv_attr,lv_size,lv_tags,origin,origin_size,pool_lv,lv_kernel_major,lv_kernel_minor,\
         lv_metadata_size",
    ),
    ("pvseg", "pv_name,pvseg_start,pvseg_size,lv_name"),
    ("seg", "lv_uuid,segtype,stripes,data_copies,seg_size_pe,chunk_size"),
];

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

/// A report that does not say what it should.
#[derive(Debug, Error)]
pub enum BadReport {
    /// A column is not there.
    #[error("lvm2's report has no column {0}")]
    Missing(String),
    /// A column holds something else than expected.
    #[error("lvm2's report has {value:?} in column {column}")]
    Value {
        /// Which.
        column: String,
        /// What.
        value: String,
    },
    /// A name that is none.
    #[error("lvm2's report has a name that is none")]
    Name(#[from] NameError),
}

struct Row<'a>(&'a BTreeMap<String, String>);

impl<'a> Row<'a> {
    fn text(&self, column: &str) -> Result<&'a str, BadReport> {
        self.0.get(column).map(String::as_str).ok_or_else(|| BadReport::Missing(column.to_owned()))
    }

    fn number<N: std::str::FromStr>(&self, column: &str) -> Result<N, BadReport> {
        let value = self.text(column)?;
        value.parse().map_err(|_| BadReport::Value { column: column.to_owned(), value: value.to_owned() })
    }

    fn number_or_nothing<N: std::str::FromStr>(&self, column: &str) -> Result<Option<N>, BadReport> {
        if self.text(column)?.is_empty() { Ok(None) } else { self.number(column).map(Some) }
    }

    fn bytes(&self, column: &str) -> Result<Bytes, BadReport> {
        Ok(Bytes(self.number_or_nothing(column)?.unwrap_or_default()))
    }

    fn tags(&self, column: &str) -> Result<Vec<String>, BadReport> {
        Ok(self.text(column)?.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect())
    }

    /// An inactive volume has -1 for both.
    fn device(&self, major: &str, minor: &str) -> Result<Option<DeviceNumber>, BadReport> {
        let (major, minor): (Option<i64>, Option<i64>) =
            (self.number_or_nothing(major)?, self.number_or_nothing(minor)?);
        let number = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
        Ok(number(major).zip(number(minor)).map(|(major, minor)| DeviceNumber { major, minor }))
    }
}

impl Inventory {
    /// Reads a `fullreport` with [`COLUMNS`].
    pub fn read(answer: &Answer) -> Result<Inventory, BadReport> {
        let mut groups = BTreeMap::new();
        for tables in &answer.report {
            // Disks without a group make a table without one.
            if let Some(row) = rows(tables, "vg").next() {
                let group = group(&row, tables)?;
                groups.entry(group.name.clone()).or_insert_with(|| Arc::new(group));
            }
        }
        Ok(Inventory { groups, ..Inventory::default() })
    }
}

fn rows<'a>(tables: &'a Tables, name: &str) -> impl Iterator<Item = Row<'a>> {
    tables.get(name).into_iter().flatten().filter(|row| !row.is_empty()).map(Row)
}

fn group(row: &Row<'_>, tables: &Tables) -> Result<Group, BadReport> {
    let extent = row.bytes("vg_extent_size")?;
    let mut segments: BTreeMap<&str, Vec<Row<'_>>> = BTreeMap::new();
    for segment in rows(tables, "seg") {
        segments.entry(segment.text("lv_uuid")?).or_default().push(segment);
    }
    let mut places = areas(tables)?;
    let mut volumes = BTreeMap::new();
    for row in rows(tables, "lv") {
        let segments = segments.get(row.text("lv_uuid")?).map(Vec::as_slice).unwrap_or_default();
        let areas = places.remove(row.text("lv_name")?).unwrap_or_default();
        let volume = volume(&row, segments, areas)?;
        volumes.insert(volume.name.clone(), volume);
    }
    Ok(Group {
        name: VgName::parse(row.text("vg_name")?)?,
        uuid: row.text("vg_uuid")?.to_owned(),
        seqno: row.number("vg_seqno")?,
        checksum: None,
        attributes: row.text("vg_attr")?.to_owned(),
        tags: row.tags("vg_tags")?,
        extent,
        extents: Extents(row.number("vg_extent_count")?),
        free: Extents(row.number("vg_free_count")?),
        metadata: (row.bytes("vg_mda_size")?, row.bytes("vg_mda_free")?),
        disks: rows(tables, "pv").map(|row| disk(&row, tables)).collect::<Result<_, _>>()?,
        measured: true,
        placed: true,
        volumes,
    })
}

fn disk(row: &Row<'_>, tables: &Tables) -> Result<Disk, BadReport> {
    Ok(Disk {
        path: row.text("pv_name")?.to_owned(),
        uuid: row.text("pv_uuid")?.to_owned(),
        extents: Extents(row.number("pv_pe_count")?),
        taken: Extents(row.number("pv_pe_alloc_count")?),
        run: longest_run(row.text("pv_name")?, tables)?,
        missing: !row.text("pv_missing")?.is_empty(),
        allocatable: !row.text("pv_allocatable")?.is_empty(),
        device: row.device("pv_major", "pv_minor")?,
    })
}

/// What belongs to no volume has no name.
fn longest_run(disk: &str, tables: &Tables) -> Result<Extents, BadReport> {
    let mut longest = 0;
    for row in rows(tables, "pvseg") {
        if row.text("pv_name")? == disk && row.text("lv_name")?.is_empty() {
            longest = longest.max(row.number("pvseg_size")?);
        }
    }
    Ok(Extents(longest))
}

fn volume(row: &Row<'_>, segments: &[Row<'_>], areas: Vec<Area>) -> Result<Volume, BadReport> {
    let attributes = row.text("lv_attr")?;
    let size = row.bytes("lv_size")?;
    let kind = kind(row, attributes, size, segments)?;
    Ok(Volume {
        name: LvName::parse(row.text("lv_name")?)?,
        uuid: row.text("lv_uuid")?.to_owned(),
        // The size of a copy-on-write snapshot is that of its store; its user sees the origin's.
        size: if matches!(kind, Kind::Cow { .. }) { row.bytes("origin_size")? } else { size },
        kind,
        tags: row.tags("lv_tags")?,
        attributes: attributes.to_owned(),
        active: row.device("lv_kernel_major", "lv_kernel_minor")?.is_some(),
        areas,
    })
}

fn kind(row: &Row<'_>, attributes: &str, size: Bytes, segments: &[Row<'_>]) -> Result<Kind, BadReport> {
    let origin = row.text("origin")?;
    let Some(first) = segments.first() else { return Ok(Kind::Other("nothing".into())) };
    let segment = first.text("segtype")?;
    Ok(match segment {
        "thin-pool" => {
            Kind::Pool { chunk: first.bytes("chunk_size")?, metadata: row.bytes("lv_metadata_size")? }
        }
        "thin" => Kind::Thin {
            pool: LvName::parse(row.text("pool_lv")?)?,
            origin: if origin.is_empty() { None } else { Some(LvName::parse(origin)?) },
        },
        _ if attributes.starts_with(['s', 'S']) => Kind::Cow { origin: LvName::parse(origin)?, store: size },
        "linear" | "striped" => layout(segments)?,
        raid if raid.starts_with("raid") => layout(segments)?,
        other => Kind::Other(other.to_owned()),
    })
}

/// That of the segment with the most stripes: a volume that was extended where less disks were free has several.
fn layout(segments: &[Row<'_>]) -> Result<Kind, BadReport> {
    let mut widest = Layout { segment: String::new(), stripes: 0, copies: 1 };
    for segment in segments {
        let stripes = segment.number("stripes")?;
        if stripes > widest.stripes {
            widest = Layout {
                segment: segment.text("segtype")?.to_owned(),
                stripes,
                copies: segment.number_or_nothing("data_copies")?.unwrap_or(1),
            };
        }
    }
    Ok(Kind::Thick(widest))
}

/// Where volumes lie, by their names; the images of a RAID volume are hidden volumes, whose names are in brackets.
fn areas<'a>(tables: &'a Tables) -> Result<BTreeMap<&'a str, Vec<Area>>, BadReport> {
    let mut areas: BTreeMap<&'a str, Vec<Area>> = BTreeMap::new();
    for row in rows(tables, "pvseg") {
        let name = row.text("lv_name")?.trim_matches(['[', ']']);
        let name = name.rsplit_once("_rimage_").map_or(name, |(volume, _)| volume);
        let (first, size): (u64, u64) = (row.number("pvseg_start")?, row.number("pvseg_size")?);
        if !name.is_empty() && size > 0 {
            let place = row.text("pv_name")?.to_owned();
            let bad = || BadReport::Value { column: "pvseg_size".to_owned(), value: size.to_string() };
            let last = first.checked_add(size - 1).ok_or_else(bad)?;
            areas.entry(name).or_default().push(Area { place, first, last });
        }
    }
    Ok(areas)
}

#[cfg(test)]
mod tests;
