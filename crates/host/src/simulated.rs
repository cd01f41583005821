//! A host made of numbers, for thousands of histories without a disk.
//!
//! It is the [model](crate::lvm::model) of what lvm2 does, with room on disks, a moment at which it fails, and bytes
//! reduced to who wrote them. A sample of the same histories runs on real LVM, step by step, and must agree.

pub mod history;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::dm::{Cow, Fill, Pool, PoolState, Raid};
use crate::facts::Facts;
use crate::lvm::inventory::{Area, Disk, Kind};
use crate::lvm::metadata::Version;
use crate::lvm::{Change, Failure, Group, Inventory, Volume, model};
use crate::names::{LvName, VgName, VolumePath};
use crate::runner::{AtWork, DeviceState, ProcessError, Progress, Runner, Use};
use crate::units::{Bytes, Extents};

/// The simulated host.
#[derive(Debug)]
pub struct Simulated {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inventory: Inventory,
    /// As it was before the last change.
    previous: Inventory,
    /// So many texts of metadata were written.
    texts: u32,
    /// So often it was asked what is there.
    reports: u32,
    /// The next report tells that.
    is_late: bool,
    /// A disk is not seen by so many of the next looks.
    hidden_disk: u32,
    /// What is in a volume: the name of the one who wrote it, or nothing for zeros.
    content: BTreeMap<VolumePath, Content>,
    /// After so many effects nothing works any more.
    effects_left: Option<u64>,
    hidden: u32,
    /// A report on all groups comes too late.
    late: bool,
    /// A report on all groups fails.
    another_goes: bool,
    /// Its disks do not answer.
    is_silent: bool,
    /// Its group belongs to another host.
    is_foreign: bool,
    /// In the middle of so many of the next copies, the snapshot that is read is lost.
    overflows: u32,
    /// Volumes whose devices lead to a disk that was pulled out and put back.
    orphaned: BTreeSet<VolumePath>,
    /// Volumes that LVM cannot remove.
    kept: BTreeSet<VolumePath>,
    /// Where all volumes are published, or why that cannot be seen.
    published: Result<Option<PathBuf>, io::ErrorKind>,
    /// Where all volumes are published as soon as LVM could not remove one.
    published_then: Option<PathBuf>,
    /// How the next change ends.
    next_failure: Option<Failure>,
    /// Volumes that a killed command has left suspended.
    suspended: Vec<VolumePath>,
    /// Groups of which a disk's cache may hold something.
    unkept: BTreeSet<VgName>,
    /// The images of all RAID volumes are just made to agree.
    is_synchronising: bool,
    /// What happens in the middle of the next report.
    meanwhile: Option<Meanwhile>,
    /// What was done, for people.
    history: Vec<String>,
}

struct Meanwhile(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Meanwhile")
    }
}

/// What a volume holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Whatever was there before.
    Dirt,
    /// Zeros.
    Zeros,
    /// Somebody's bytes.
    Of(String),
    /// Some of each.
    Mixed,
}

/// A group called `vg` with disks of so many extents of 4 MiB.
pub fn group(disks: &[u64]) -> Group {
    let disk = |(number, extents): (usize, &u64)| Disk {
        path: format!("/dev/sd{}", char::from(b'a' + u8::try_from(number % 26).unwrap_or_default())),
        uuid: format!("disk-{number}"),
        extents: Extents(*extents),
        taken: Extents::ZERO,
        run: Extents(*extents),
        missing: false,
        allocatable: true,
        device: None,
    };
    let disks: Vec<Disk> = disks.iter().enumerate().map(disk).collect();
    let extents: Extents = disks.iter().map(|disk| disk.extents).sum();
    Group {
        name: VgName::parse("vg").unwrap_or_else(|_| unreachable!("vg is a name")),
        uuid: "vg-uuid".to_owned(),
        seqno: 1,
        checksum: None,
        attributes: "wz--n-".to_owned(),
        tags: Vec::new(),
        extent: Bytes::mib(4),
        extents,
        free: extents,
        metadata: (Bytes::mib(1), Bytes::kib(500)),
        disks,
        measured: true,
        placed: true,
        volumes: BTreeMap::new(),
    }
}

impl Simulated {
    /// A host with this group.
    pub fn new(group: Group) -> Simulated {
        let inventory = Inventory::of(group);
        let state = State {
            previous: inventory.clone(),
            texts: 0,
            reports: 0,
            is_late: false,
            is_silent: false,
            hidden_disk: 0,
            inventory,
            content: BTreeMap::new(),
            effects_left: None,
            hidden: 0,
            late: false,
            another_goes: false,
            is_foreign: false,
            overflows: 0,
            orphaned: BTreeSet::new(),
            kept: BTreeSet::new(),
            published: Ok(None),
            published_then: None,
            suspended: Vec::new(),
            next_failure: None,
            unkept: BTreeSet::new(),
            is_synchronising: false,
            meanwhile: None,
            history: Vec::new(),
        };
        Simulated { state: Mutex::new(state) }
    }

    /// Adds a thin pool of so many extents to its group.
    pub fn with_pool(self, group: &VgName, name: &LvName, extents: Extents) -> Simulated {
        let mut state = self.state();
        if let Some(group) = state.inventory.groups.get_mut(group).map(Arc::make_mut) {
            // Data, metadata, and as much for a repair.
            let cost = extents + Extents(2);
            place(group, 1, cost);
            group.free = group.free - cost;
            let pool = Volume {
                name: name.clone(),
                uuid: String::new(),
                kind: Kind::Pool { chunk: Bytes::kib(64), metadata: group.extent },
                size: extents.bytes(group.extent),
                tags: Vec::new(),
                attributes: "twi-a-tz--".to_owned(),
                active: true,
                areas: Vec::new(),
            };
            group.volumes.insert(name.clone(), pool);
        }
        drop(state);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn effect(&mut self, what: impl FnOnce() -> String) -> Result<(), String> {
        if let Some(left) = &mut self.effects_left {
            if *left == 0 {
                return Err("the simulated host has failed".to_owned());
            }
            *left -= 1;
        }
        self.history.push(what());
        Ok(())
    }

    /// What a command does.
    fn apply(&mut self, change: &Change) -> Result<(), Failure> {
        let path = change.path();
        let Some(before) = self.inventory.groups.get(&path.group).cloned() else {
            return Err(Failure::NotFound(format!("Volume group \"{}\" not found", path.group)));
        };
        let mut group = Group::clone(&before);
        model::apply(&mut group, change)?;
        group.seqno += model::increments(&before, change);
        if change.is_written() {
            self.texts += 1;
            self.unkept.insert(group.name.clone());
        }
        settle(&before, &mut group, &path.volume);
        let source = match change {
            Change::SnapshotThin { origin, .. } | Change::SnapshotThick { origin, .. } => {
                Some(self.content.get(origin).cloned().unwrap_or(Content::Dirt))
            }
            Change::CreateThin { .. } => Some(Content::Zeros),
            Change::CreateThick { .. } => Some(Content::Dirt),
            Change::Extend { .. }
            | Change::Remove { .. }
            | Change::Release { .. }
            | Change::Tag { .. }
            | Change::Activate { .. }
            | Change::Refresh { .. }
            | Change::Deactivate { .. } => None,
        };
        self.content.extend(source.map(|content| (path.clone(), content)));
        if matches!(change, Change::Deactivate { .. }) {
            self.orphaned.retain(|path| group.volumes.get(&path.volume).is_some_and(|volume| volume.active));
        }
        self.content.retain(|path, _| path.group != group.name || group.volumes.contains_key(&path.volume));
        self.previous = self.inventory.clone();
        self.inventory.groups.insert(path.group, Arc::new(group));
        Ok(())
    }

    /// A store that is full loses its snapshot, and nothing is written of that; a thin snapshot is removed by somebody.
    fn lose(&mut self, snapshot: &VolumePath) -> Result<(), Failure> {
        let group = self.inventory.groups.get_mut(&snapshot.group).map(Arc::make_mut);
        match group.and_then(|group| group.volumes.get_mut(&snapshot.volume)) {
            Some(volume) if matches!(volume.kind, Kind::Cow { .. }) => {
                volume.attributes = "swi-I-s---".to_owned();
                Ok(())
            }
            _ => self.apply(&Change::remove(snapshot.clone())),
        }
    }

    fn volume(&self, path: &VolumePath) -> io::Result<&Volume> {
        let volume = self.inventory.volume(path).filter(|volume| volume.active);
        let volume = volume.filter(|_| !self.orphaned.contains(path));
        volume.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{path} is not active")))
    }
}

/// Takes extents from the disks with the most room, a piece of each.
fn place(group: &mut Group, disks: u64, extents: Extents) -> Vec<Area> {
    let mut chosen: Vec<&mut Disk> = group.disks.iter_mut().collect();
    chosen.sort_by_key(|disk| std::cmp::Reverse(disk.free()));
    let mut left = extents;
    let piece = Extents(extents.0.div_ceil(disks.max(1)));
    let mut areas = Vec::new();
    for disk in chosen {
        let had = Extents(disk.free().0.min(left.0).min(if disks > 1 { piece.0 } else { left.0 }));
        disk.taken = disk.taken + had;
        left = left - had;
        areas.push(Area { place: disk.path.clone(), first: 0, last: had.0 });
    }
    areas
}

impl Runner for Simulated {
    fn inventory(&self, group: Option<&VgName>) -> Result<Inventory, Failure> {
        let meanwhile = self.state().meanwhile.take();
        if let Some(Meanwhile(happens)) = meanwhile {
            happens();
        }
        let mut state = self.state();
        state.reports += 1;
        if state.late && group.is_none() {
            let limit = Duration::from_secs(60);
            return Err(Failure::Process(ProcessError::TooSlow { program: "fullreport".to_owned(), limit }));
        }
        if state.another_goes && group.is_none() {
            return Err(Failure::NotFound("Volume group \"other\" not found".to_owned()));
        }
        if let Some(name) = group.filter(|_| state.is_foreign) {
            return Err(Failure::Foreign(format!("Cannot access VG {name} with system ID other.")));
        }
        let mut inventory =
            if std::mem::take(&mut state.is_late) { state.previous.clone() } else { state.inventory.clone() };
        if state.hidden_disk > 0 {
            state.hidden_disk -= 1;
            let groups = inventory.groups.values_mut().map(Arc::make_mut);
            groups.filter_map(|group| group.disks.first_mut()).for_each(|disk| disk.missing = true);
        }
        if state.hidden > 0 {
            state.hidden -= 1;
            inventory.groups.clear();
        }
        if let Some(name) = group {
            inventory.groups.retain(|other, _| other == name);
            if inventory.groups.is_empty() {
                return Err(Failure::NotFound(format!("Volume group \"{name}\" not found")));
            }
        }
        Ok(inventory)
    }

    fn sequence_number(&self, group: &Group) -> Option<Version> {
        let state = self.state();
        if state.hidden > 0 || state.is_silent {
            return None;
        }
        let group = state.inventory.groups.get(&group.name)?;
        Some(Version { seqno: group.seqno, checksum: state.texts })
    }

    fn change(&self, change: &Change) -> Result<(), Failure> {
        let mut state = self.state();
        if let Some(failure) = state.next_failure.take() {
            return Err(failure);
        }
        state.effect(|| change.arguments().join(" ")).map_err(Failure::Other)?;
        if let Change::Remove { path, others } = change {
            // LVM removes none of them when one cannot go.
            for volume in [&path.volume].into_iter().chain(others) {
                let path = VolumePath { group: path.group.clone(), volume: volume.clone() };
                if state.kept.contains(&path) {
                    if let Some(target) = state.published_then.take() {
                        state.published = Ok(Some(target));
                    }
                    return Err(Failure::InUse(format!("Logical volume {path} in use.")));
                }
            }
        }
        state.apply(change)
    }

    fn keep(&self, group: &Group) -> io::Result<()> {
        let mut state = self.state();
        state.effect(|| format!("flush of {}", group.name)).map_err(io::Error::other)?;
        state.unkept.remove(&group.name);
        Ok(())
    }

    fn pool(&self, pool: &VolumePath) -> io::Result<Option<Pool>> {
        let state = self.state();
        let good = Pool {
            data: Fill { used: 0, total: 1000 },
            metadata: Fill { used: 0, total: 1000 },
            state: PoolState::Good,
            needs_check: false,
        };
        Ok(state.inventory.volume(pool).filter(|volume| volume.is_pool()).map(|_| good))
    }

    fn cow(&self, snapshot: &VolumePath) -> io::Result<Option<Cow>> {
        let state = self.state();
        let valid = Cow::Valid(Fill { used: 1, total: 100 });
        let how = |volume: &Volume| if volume.has_overflowed() { Cow::Invalid } else { valid };
        Ok(state.inventory.volume(snapshot).filter(|volume| volume.active).map(how))
    }

    fn raid(&self, volume: &VolumePath) -> io::Result<Option<Raid>> {
        let state = self.state();
        let (used, action) = if state.is_synchronising { (12, "resync") } else { (100, "idle") };
        let how = |volume: &Volume| match &volume.kind {
            Kind::Thick(layout) if layout.segment.starts_with("raid") => Some(Raid {
                level: layout.segment.clone(),
                health: (0..layout.stripes).map(|_| if state.is_synchronising { 'a' } else { 'A' }).collect(),
                sync: Fill { used, total: 100 },
                action: action.to_owned(),
            }),
            Kind::Thick(_) | Kind::Pool { .. } | Kind::Thin { .. } | Kind::Cow { .. } | Kind::Other(_) => {
                None
            }
        };
        Ok(state.inventory.volume(volume).filter(|volume| volume.active).and_then(how))
    }

    fn device_state(&self, volume: &VolumePath) -> io::Result<DeviceState> {
        let state = self.state();
        Ok(match state.inventory.volume(volume).filter(|volume| volume.active) {
            None => DeviceState::Absent,
            Some(_) if state.orphaned.contains(volume) => DeviceState::Orphaned,
            Some(_) => DeviceState::Ready,
        })
    }

    fn used(&self, _: &VolumePath) -> io::Result<Use> {
        Ok(Use::None)
    }

    fn published(&self, _: &VolumePath) -> io::Result<Option<PathBuf>> {
        self.state().published.clone().map_err(io::Error::from)
    }

    fn unreadable(&self, _: &Group) -> Vec<String> {
        Vec::new()
    }

    fn silent(&self, group: &Group) -> Vec<String> {
        if self.state().is_silent { vec![group.disks[0].path.clone()] } else { Vec::new() }
    }

    fn suspended(&self, _: &VgName) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn at_work(&self, _: &VgName) -> io::Result<Option<AtWork>> {
        Ok(None)
    }

    fn recover(&self, _: &VgName) -> io::Result<Vec<VolumePath>> {
        Ok(std::mem::take(&mut self.state().suspended))
    }

    fn zero(&self, volume: &VolumePath, from: Bytes, to: Bytes, progress: Progress<'_>) -> io::Result<()> {
        let mut state = self.state();
        state.effect(|| format!("zero {volume} from {from} to {to}")).map_err(io::Error::other)?;
        state.volume(volume)?;
        if from == Bytes::ZERO {
            state.content.insert(volume.clone(), Content::Zeros);
        }
        progress(to, to);
        Ok(())
    }

    fn copy(
        &self,
        from: &VolumePath,
        to: &VolumePath,
        length: Bytes,
        dirty: bool,
        progress: Progress<'_>,
    ) -> io::Result<()> {
        let mut state = self.state();
        state.effect(|| format!("copy {from} to {to}, {length}")).map_err(io::Error::other)?;
        let (source, target) = (state.volume(from)?.size, state.volume(to)?.size);
        if length > source || length > target {
            return Err(io::Error::other("past the end"));
        }
        let overflowed = || io::Error::other(format!("{from} has overflowed"));
        if state.volume(from)?.has_overflowed() {
            return Err(overflowed());
        }
        let content = state.content.get(from).cloned().unwrap_or(Content::Dirt);
        let under = state.content.get(to).cloned().unwrap_or(Content::Dirt);
        // Zeros that are not written leave what was there.
        let is_over_others = !dirty && under != Content::Zeros && under != content;
        state.content.insert(to.clone(), if is_over_others { Content::Mixed } else { content });
        let is_made_for_it = state.volume(from).is_ok_and(|volume| Facts::of(volume).temporary.is_some());
        if state.overflows > 0 && is_made_for_it {
            state.overflows -= 1;
            state.lose(from).map_err(io::Error::other)?;
            return Err(overflowed());
        }
        progress(length, length);
        Ok(())
    }
}

/// Gives room on disks to what has come, and takes it from what has gone.
fn settle(before: &Group, after: &mut Group, changed: &LvName) {
    after.placed = true;
    after.disks.clone_from(&before.disks);
    for (name, volume) in &before.volumes {
        if !after.volumes.contains_key(name) {
            for area in &volume.areas {
                if let Some(disk) = after.disks.iter_mut().find(|disk| disk.path == area.place) {
                    disk.taken = disk.taken - Extents(area.last);
                }
            }
        }
    }
    let more = before.free.minus(after.free);
    let disks = match after.volumes.get(changed).map(|volume| &volume.kind) {
        Some(Kind::Thick(layout)) => layout.stripes,
        _ => 1,
    };
    let areas = place(after, disks, more);
    if let Some(volume) = after.volumes.get_mut(changed) {
        volume.areas.extend(areas);
    }
}
