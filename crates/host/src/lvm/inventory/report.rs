//! The report that tells it all, as lvm2 prints it.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use super::{Area, DeviceNumber, Disk, Group, Inventory, Kind, Layout, Volume};
use crate::lvm::answer::{Answer, Tables};
use crate::names::{LvName, NameError, VgName};
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
