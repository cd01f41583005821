//! What happens without us: others change a group, pools and snapshots fill, disks of RAID fail.
//!
//! One thread listens to the kernel's events of block devices and to device-mapper's. After some it wakes a thread for
//! each group, which looks at the group's sequence number; only a group that has really changed costs a report. A group
//! whose disk hangs, or in which a command does, holds no other up. Device-mapper tells of a pool that is out of room and
//! of RAID that has lost a disk, but of a copy-on-write snapshot only when it is lost: while there are such, their fill is
//! looked at by ioctl, the more often the faster one fills, and a store is extended long before it is full. That holds for
//! snapshots of ours also where no class is in their group any more.

mod events;
mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use self::stores::Stores;
use crate::desired::{ClassKind, Desired};
use crate::dm::{Cow, PoolState};
use crate::facts::Facts;
use crate::lvm::inventory::{DeviceNumber, Kind};
use crate::lvm::{Group, Inventory, Volume};
use crate::names::{VgName, VolumePath};
use crate::plan::volume::may_overflow;
use crate::runner::{Linux, Runner};
use crate::volumes::Volumes;

/// How often stores are looked at while there are any that may overflow.
const WHILE_FILLING: Duration = Duration::from_secs(2);

/// So often is looked after events: LVM removes a device before it writes that the volume is gone.
const AFTERWARDS: u32 = 5;

/// How often sequence numbers are read though nothing was heard: where no udev runs, a change of metadata alone is
/// silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Follows what happens, in threads of its own, for ever. `desired` tells which groups concern us.
pub fn follow(
    volumes: &Arc<Volumes<Linux>>,
    desired: impl Fn() -> Arc<Desired> + Send + 'static,
) -> io::Result<()> {
    let events = events::listen()?;
    // A kernel without device-mapper has no volumes yet, and tells of the first by its other events.
    let mut devices = volumes.runner().control().ok();
    let volumes = Arc::clone(volumes);
    std::thread::Builder::new().name("attention".into()).spawn(move || {
        let (mut afterwards, mut attended) = (0, BTreeMap::new());
        loop {
            wake(&volumes, &desired(), &mut attended);
            let is_filling = is_filling(&desired(), &volumes.inventory());
            let limit = if afterwards > 0 || is_filling { WHILE_FILLING } else { SILENCE };
            match events::heard(&events, devices.as_ref(), limit) {
                Ok(true) => afterwards = AFTERWARDS,
                Ok(false) => afterwards = afterwards.saturating_sub(1),
                Err(error) => {
                    tracing::warn!(%error, "the kernel's events cannot be heard: groups are looked at now and then");
                    std::thread::sleep(WHILE_FILLING);
                }
            }
            if devices.is_none() {
                devices = volumes.runner().control().ok();
            }
        }
    })?;
    Ok(())
}

/// Where the thread of a group is told to look.
type Wake = SyncSender<Arc<Desired>>;

/// Has all groups looked at. One that is being looked at is looked at once more.
fn wake(volumes: &Arc<Volumes<Linux>>, desired: &Arc<Desired>, attended: &mut BTreeMap<VgName, Wake>) {
    let groups = concerned(desired, &volumes.inventory());
    attended.retain(|group, _| groups.contains(group));
    for group in groups {
        let wake = match attended.get(&group) {
            Some(wake) => wake.clone(),
            None => match Attention::begin(volumes, &group) {
                Ok(wake) => wake,
                Err(error) => {
                    tracing::warn!(group = %group, %error, "a volume group cannot be looked at");
                    continue;
                }
            },
        };
        match wake.try_send(Arc::clone(desired)) {
            Ok(()) | Err(TrySendError::Full(_)) => drop(attended.insert(group.clone(), wake)),
            Err(TrySendError::Disconnected(_)) => drop(attended.remove(&group)),
        }
    }
}

/// Whether there is a store that we watch and that is not lost yet.
fn is_filling(desired: &Desired, inventory: &Inventory) -> bool {
    inventory.groups.values().any(|group| {
        let is_thick = is_thick(desired, &group.name);
        let fills = |volume: &Volume| may_overflow(group, volume) && !volume.has_overflowed();
        group.volumes.values().any(|volume| is_watched(volume, is_thick) && fills(volume))
    })
}

/// Whether volumes of a class lie in a group itself.
fn is_thick(desired: &Desired, group: &VgName) -> bool {
    desired.classes.iter().any(|class| matches!(class.kind, ClassKind::Thick) && class.group == *group)
}

/// Whether it is a copy-on-write snapshot whose store we extend: ours, and anybody's beside volumes of a thick class.
fn is_watched(volume: &Volume, is_thick: bool) -> bool {
    matches!(volume.kind, Kind::Cow { .. }) && (is_thick || is_our_store(volume))
}

/// The groups that concern us: those of classes, and those in which we have made snapshots that may overflow.
fn concerned(desired: &Desired, inventory: &Inventory) -> BTreeSet<VgName> {
    let has_stores = |group: &&Arc<Group>| {
        group.volumes.values().any(|volume| is_our_store(volume) && may_overflow(group, volume))
    };
    let others = inventory.groups.values().filter(has_stores).map(|group| &group.name);
    desired.groups().into_iter().chain(others).cloned().collect()
}

/// What is known of a group to whoever attends to it.
struct Attention {
    volumes: Arc<Volumes<Linux>>,
    group: VgName,
    /// Why it could not be looked at.
    unseen: Option<String>,
    /// Whether it is known not to be there.
    is_missing: bool,
    states: BTreeMap<VolumePath, State>,
    brought_back: BTreeMap<VolumePath, BroughtBack>,
    stores: Stores,
    /// What cannot be helped, and was told.
    lost: BTreeSet<(VolumePath, &'static str)>,
}

/// Whether a RAID volume was brought to disks that are back.
#[derive(Default)]
struct BroughtBack {
    to: Vec<Option<DeviceNumber>>,
    attempts_left: u32,
}

impl Attention {
    fn begin(volumes: &Arc<Volumes<Linux>>, group: &VgName) -> io::Result<Wake> {
        let (wake, wakes) = sync_channel(1);
        let (volumes, group) = (Arc::clone(volumes), group.clone());
        std::thread::Builder::new().name(format!("group {group}")).spawn(move || {
            let states = states(&volumes, &group);
            let attention = Attention {
                volumes,
                group,
                unseen: None,
                is_missing: false,
                states,
                brought_back: BTreeMap::new(),
                stores: Stores::default(),
                lost: BTreeSet::new(),
            };
            attention.pay(&wakes);
        })?;
        Ok(wake)
    }

    fn pay(mut self, wakes: &Receiver<Arc<Desired>>) {
        let (volumes, mut desired) = (Arc::clone(&self.volumes), Arc::default());
        let mut again = None;
        loop {
            let woken = match again {
                Some(limit) => wakes.recv_timeout(limit),
                None => wakes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let is_due = match woken {
                Ok(now) => {
                    desired = now;
                    true
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let looked = volumes.runner().together(|| {
                if is_due {
                    self.look();
                    self.bring_images_back();
                    self.tell_states();
                }
                self.extend_stores(&desired)
            });
            again = looked.unwrap_or_else(|error| {
                tracing::warn!(group = %self.group, %error, "the host's files are out of reach: the group is not looked at");
                None
            });
        }
    }

    /// Looks whether others have changed it. That it is not there is told once; so is why it cannot be looked at, and
    /// again when it is another reason.
    fn look(&mut self) {
        let unseen = self.volumes.look_in_turn(&self.group).err().map(|error| error.to_string());
        if let Some(error) = unseen.as_ref().filter(|_| unseen != self.unseen) {
            tracing::warn!(group = %self.group, error, "a volume group cannot be looked at");
        }
        let is_missing = unseen.is_none() && !self.volumes.inventory().groups.contains_key(&self.group);
        if is_missing && !self.is_missing {
            tracing::warn!(group = %self.group, "there is no such volume group: its classes have no capacity");
        }
        (self.unseen, self.is_missing) = (unseen, is_missing);
    }

    /// RAID whose disk was pulled out goes on without it, and does not take it back by itself. When all disks are there
    /// again it is brought to them, once: a disk that goes on failing is left to people.
    fn bring_images_back(&mut self) {
        /// The group may be busy, or a disk of it silent, just then.
        const ATTEMPTS: u32 = 3;
        let inventory = self.volumes.inventory();
        let Some(group) = inventory.groups.get(&self.group) else { return };
        if group.disks.iter().any(|disk| disk.missing || disk.is_gone()) {
            return;
        }
        self.brought_back.retain(|path, _| group.volumes.contains_key(&path.volume));
        let disks: Vec<Option<DeviceNumber>> = group.disks.iter().map(|disk| disk.device).collect();
        let runner = self.volumes.runner();
        for volume in group.volumes.values().filter(|volume| is_raid(&volume.kind)) {
            let path = group.path(&volume.name);
            if !runner.has_lost_images(&path).unwrap_or(false) {
                self.brought_back.remove(&path);
                continue;
            }
            let brought = self.brought_back.entry(path.clone()).or_default();
            if brought.to != disks {
                *brought = BroughtBack { to: disks.clone(), attempts_left: ATTEMPTS };
            }
            if brought.attempts_left == 0 {
                continue;
            }
            match self.volumes.bring_back(&path) {
                Ok(()) => {
                    brought.attempts_left = 0;
                    tracing::warn!(volume = %path, "a disk of RAID is back, and gets what it has missed");
                }
                Err(error) => {
                    brought.attempts_left -= 1;
                    tracing::error!(volume = %path, %error, "a disk of RAID is back, and cannot be used again");
                }
            }
        }
    }

    /// Tells whoever watches when a pool or a RAID volume is otherwise than before.
    fn tell_states(&mut self) {
        let now = states(&self.volumes, &self.group);
        if now == self.states {
            return;
        }
        for (volume, state) in &now {
            match self.states.get(volume) {
                Some(before) if before.is_good && !state.is_good => {
                    tracing::error!(volume = %volume, state = state.told, "is not well any more");
                }
                Some(before) if !before.is_good && state.is_good => {
                    tracing::info!(volume = %volume, state = state.told, "is well again");
                }
                _ => {}
            }
        }
        self.states = now;
        self.volumes.tell_all();
    }

    /// Extends stores that are full enough. What cannot be helped is told once. Says when one has to be looked at again, if
    /// that is before the next wake.
    fn extend_stores(&mut self, desired: &Desired) -> Option<Duration> {
        let inventory = self.volumes.inventory();
        let group = inventory.groups.get(&self.group)?;
        let is_thick = is_thick(desired, &self.group);
        // Whether they are active, device-mapper knows better than we: that others have activated something raises no
        // sequence number.
        let watched: Vec<&Volume> =
            group.volumes.values().filter(|volume| is_watched(volume, is_thick)).collect();
        let paths: Vec<VolumePath> = watched.iter().map(|volume| group.path(&volume.name)).collect();
        self.lost.retain(|(snapshot, _)| paths.contains(snapshot));
        self.stores.retain(&paths);
        let mut soonest = None;
        for (volume, snapshot) in watched.into_iter().zip(paths) {
            match self.volumes.runner().cow(&snapshot) {
                Ok(Some(Cow::Valid(fill))) if may_overflow(group, volume) => {
                    let next = self.stores.see(&snapshot, fill, Instant::now());
                    let extended = next.extend_by.map(|by| self.volumes.extend_store(&snapshot, by));
                    match extended {
                        Some(Err(error)) => {
                            if self.lost.insert((snapshot.clone(), "full")) {
                                tracing::error!(snapshot = %snapshot, %error, "a snapshot's store cannot be extended: it will be lost");
                            }
                            continue;
                        }
                        Some(Ok(())) => {
                            tracing::info!(snapshot = %snapshot, percent = fill.percent(), "a snapshot's store was extended");
                        }
                        None => {}
                    }
                    soonest = soonest.into_iter().chain(next.again).min();
                }
                Ok(Some(Cow::Invalid)) if self.lost.insert((snapshot.clone(), "overflowed")) => {
                    tracing::error!(snapshot = %snapshot, "a snapshot has overflowed and is lost");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(snapshot = %snapshot, %error, "a snapshot cannot be looked at"),
            }
        }
        soonest
    }
}

/// Whether it is a copy-on-write snapshot that we made.
fn is_our_store(volume: &Volume) -> bool {
    let facts = Facts::of(volume);
    matches!(volume.kind, Kind::Cow { .. })
        && (facts.is_ours() || facts.snapshot || facts.temporary.is_some())
}

fn is_raid(kind: &Kind) -> bool {
    matches!(kind, Kind::Thick(layout) if layout.segment.starts_with("raid"))
}

/// How a pool or a RAID volume is.
#[derive(Debug, PartialEq, Eq)]
struct State {
    is_good: bool,
    told: String,
}

/// How pools and RAID volumes of a group are: LVM's metadata says nothing of it.
fn states(volumes: &Volumes<Linux>, group: &VgName) -> BTreeMap<VolumePath, State> {
    let (inventory, runner) = (volumes.inventory(), volumes.runner());
    let mut states = BTreeMap::new();
    let Some(group) = inventory.groups.get(group) else { return states };
    for volume in group.volumes.values() {
        let path = group.path(&volume.name);
        let state = match &volume.kind {
            Kind::Pool { .. } => runner.pool(&path).ok().flatten().map(|pool| State {
                is_good: pool.state == PoolState::Good && !pool.needs_check,
                told: format!(
                    "pool {:?}, data {:.0} %, metadata {:.0} %",
                    pool.state,
                    pool.data.percent(),
                    pool.metadata.percent()
                ),
            }),
            kind if is_raid(kind) => runner
                .raid(&path)
                .ok()
                .flatten()
                .map(|raid| State { is_good: !raid.is_degraded(), told: format!("RAID {raid}") }),
            Kind::Thick(_) | Kind::Thin { .. } | Kind::Cow { .. } | Kind::Other(_) => None,
        };
        states.extend(state.map(|state| (path, state)));
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lvm::{Change, model};
    use crate::names::LvName;
    use crate::simulated::group;
    use crate::units::Extents;

    #[test]
    fn a_group_without_a_class_is_attended_while_snapshots_of_ours_may_overflow_in_it() {
        let ours = Facts { snapshot: true, ..Facts::default() };
        for (store, facts, is_attended) in
            [(2, &ours, true), (6, &ours, false), (2, &Facts::default(), false)]
        {
            let mut group = group(&[100]);
            let origin = group.path(&LvName::parse("v").unwrap());
            let (path, options, tags, on) = (origin.clone(), Vec::new(), Vec::new(), Vec::new());
            let thick = Change::CreateThick { path, extents: Extents(5), options, tags, on };
            let (name, store, tags) = (LvName::parse("s").unwrap(), Extents(store), facts.tags());
            let snapshot = Change::SnapshotThick { origin, name, store, chunk: None, tags };
            for change in [thick, snapshot] {
                model::apply(&mut group, &change).unwrap();
            }
            let inventory = Inventory::of(group);
            let groups = concerned(&Desired::default(), &inventory);
            assert_eq!(groups.len(), usize::from(is_attended), "{store:?} {facts:?}");
            assert_eq!(is_filling(&Desired::default(), &inventory), is_attended, "{store:?} {facts:?}");
        }
    }
}
