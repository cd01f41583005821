//! Changes of a group `vg`, and what is there after them.

#![allow(dead_code, reason = "each test uses some of it")]

use lab_test::Result;
use lvms_host::lvm::{Change, Group};
use lvms_host::names::{LvName, Tag, VgName, VolumePath};
use lvms_host::runner::{Linux, Options, Runner};
use lvms_host::units::{Bytes, Extents};

pub(crate) fn linux() -> Result<Linux> {
    Ok(Linux::new(Options::default())?)
}

pub(crate) fn path(volume: &str) -> Result<VolumePath> {
    Ok(VolumePath { group: VgName::parse("vg")?, volume: LvName::parse(volume)? })
}

pub(crate) fn group(linux: &Linux) -> Result<Group> {
    let mut inventory = linux.inventory(None)?;
    let group = inventory.groups.remove(&VgName::parse("vg")?).ok_or("there is no group vg")?;
    Ok(std::sync::Arc::unwrap_or_clone(group))
}

pub(crate) fn thick(volume: &str, extents: u64, options: &[&str]) -> Result<Change> {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    let tags = vec![Tag::parse("lvms.io/name=a#20b")?];
    Ok(Change::CreateThick { path: path(volume)?, extents: Extents(extents), options, tags, on: Vec::new() })
}

pub(crate) fn thin(volume: &str, size: Bytes) -> Result<Change> {
    let pool = LvName::parse("pool")?;
    Ok(Change::CreateThin { path: path(volume)?, pool, size, options: Vec::new(), tags: Vec::new() })
}

pub(crate) fn snapshot_thick(origin: &str, name: &str, store: u64) -> Result<Change> {
    let (origin, name) = (path(origin)?, LvName::parse(name)?);
    Ok(Change::SnapshotThick { origin, name, store: Extents(store), chunk: None, tags: Vec::new() })
}
