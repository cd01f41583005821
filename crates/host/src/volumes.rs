//! The engine for volumes: plans, one queue per group, long works beside them, and what is there on a channel.
//!
//! What is there is known from one report and followed through our own changes ([`crate::lvm::model`]). Before each
//! change the group's sequence number is read from a disk; only if somebody else has changed it is LVM asked again.

mod doubts;
mod held_up;
mod look;
mod removal;
mod room;
mod works;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use thiserror::Error;
use tokio::sync::watch;

use self::doubts::Doubts;
pub use self::works::Work;
use crate::desired::DeviceClass;
use crate::facts::Facts;
use crate::lvm::inventory::{Disk, Kind};
use crate::lvm::shape::Shape;
use crate::lvm::{Change, Failure, Inventory, Volume};
use crate::names::{LvName, VgName, VolumePath};
use crate::plan::capacity::{Situation, complete, without};
use crate::plan::volume::{self, Wish};
use crate::plan::{Next, Refusal, Step};
use crate::queue::{NoTurn, Queue};
use crate::runner::{Runner, Use};
use crate::units::Bytes;

/// Why something was not done.
#[derive(Debug, Error)]
pub enum Error {
    /// It cannot be done as things are.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// LVM did not do it.
    #[error(transparent)]
    Lvm(#[from] Failure),
    /// Others are busy, or one of them does not end.
    #[error(transparent)]
    NoTurn(#[from] NoTurn),
    /// Bytes could not be written or read.
    #[error("{what} failed, and goes on with the same call once its disk is well")]
    Bytes {
        /// What.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A plan that does not come to an end: a mistake of ours, stopped before it does harm.
    #[error("the plan for {0} does not come to an end")]
    Endless(VolumePath),
}

/// What was written to a group since we began.
#[derive(Debug, Default, Clone)]
struct Written {
    changes: u64,
    /// So many of them, with all that was before, its disks have kept.
    kept: Option<u64>,
}

/// More steps than any plan has.
const MOST_STEPS: usize = 40;

/// So often a step is planned anew because somebody else was quicker.
const MOST_SURPRISES: usize = 3;

/// The engine.
pub struct Volumes<R> {
    runner: Arc<R>,
    queues: Mutex<BTreeMap<VgName, Arc<Queue>>>,
    known: watch::Sender<Arc<Inventory>>,
    doubts: Doubts,
    /// Volumes that go on as they had been before a command was killed, and have to be what LVM's metadata says.
    unrefreshed: Mutex<BTreeSet<VolumePath>>,
    /// Groups that belong to another host, as far as is known now.
    foreign: Mutex<BTreeSet<VgName>>,
    written: Mutex<BTreeMap<VgName, Written>>,
    works: Mutex<BTreeMap<VolumePath, Work>>,
    /// Volumes whose removal somebody waits for, and that may go with others.
    leaving: Mutex<BTreeSet<VolumePath>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: Runner> Volumes<R> {
    /// Looks at what is there. Devices of these groups that a killed command left suspended go on. A group that a command
    /// holds up since before our start is told to be so, and goes on when that ends.
    pub fn open(runner: Arc<R>, groups: &[&VgName]) -> Result<Arc<Volumes<R>>, Error> {
        let resumed: Vec<_> = groups.iter().map(|group| (*group, held_up::resume(&*runner, group))).collect();
        let inventory = look::first(&*runner, groups)?;
        let volumes = Arc::new(Volumes {
            runner,
            queues: Mutex::default(),
            known: watch::Sender::new(Arc::new(inventory)),
            doubts: Doubts::default(),
            unrefreshed: Mutex::default(),
            foreign: Mutex::default(),
            written: Mutex::default(),
            works: Mutex::default(),
            leaving: Mutex::default(),
        });
        volumes.inventory().unseen.keys().for_each(|group| volumes.find_what_holds_up(group));
        for (group, resumed) in resumed {
            // What does not end holds its group up.
            let _told = volumes.refresh(&volumes.queue(group), group, resumed);
        }
        Ok(volumes)
    }

    /// The host.
    pub fn runner(&self) -> &R {
        &self.runner
    }

    /// What is there, as far as is known now. Costs nothing.
    pub fn inventory(&self) -> Arc<Inventory> {
        Arc::clone(&self.known.borrow())
    }

    /// Tells whenever something has changed.
    pub fn watch(&self) -> watch::Receiver<Arc<Inventory>> {
        self.known.subscribe()
    }

    /// Makes a volume, or finds the one that was made by the same wish.
    pub fn create(self: &Arc<Self>, wish: &Wish<'_>, deadline: Option<Instant>) -> Result<Volume, Error> {
        let path = wish.path();
        let mut groups = vec![path.group.clone()];
        groups.extend(wish.source.as_ref().map(|source| source.group.clone()));
        let places = Shape::of_options(&wish.options).disks > 1;
        if Shape::is_contiguous(&wish.options) && self.may_have_room(&path.group) {
            self.forget(&path.group);
        }
        self.settle(&path, &groups, places, deadline, |situation| volume::create(situation, wish))?;
        self.find(&path)
    }

    /// Makes a snapshot, or finds it.
    pub fn snapshot(
        self: &Arc<Self>,
        class: &DeviceClass,
        source: &VolumePath,
        name: &LvName,
        facts: &Facts,
        deadline: Option<Instant>,
    ) -> Result<Volume, Error> {
        let path = VolumePath { group: source.group.clone(), volume: name.clone() };
        let groups = [path.group.clone()];
        self.settle(&path, &groups, false, deadline, |situation| {
            volume::snapshot(situation, class, source, name, facts)
        })?;
        self.find(&path)
    }

    /// Grows a volume to at least this size.
    pub fn grow(
        self: &Arc<Self>,
        class: &DeviceClass,
        path: &VolumePath,
        size: Bytes,
        deadline: Option<Instant>,
    ) -> Result<Volume, Error> {
        let groups = [path.group.clone()];
        self.settle(path, &groups, true, deadline, |situation| {
            // What cannot be seen may be in use.
            let used = self.runner.used(path).unwrap_or(Use::Open);
            volume::grow(situation, class, path, size, used)
        })?;
        self.find(path)
    }

    /// Makes what is known of a volume true.
    pub fn note(
        self: &Arc<Self>,
        path: &VolumePath,
        deadline: Option<Instant>,
        change: impl Fn(&mut Facts),
    ) -> Result<(), Error> {
        let groups = [path.group.clone()];
        self.settle(path, &groups, false, deadline, |situation| {
            let volume = situation.inventory.volume(path).ok_or_else(|| Refusal::NoVolume(path.clone()))?;
            let before = Facts::of(volume);
            let mut now = before.clone();
            change(&mut now);
            let (add, remove) = now.since(&before);
            if add.is_empty() && remove.is_empty() {
                return Ok(Next::Done);
            }
            Ok(Next::Do(Box::new(Step::Change(Change::Tag { path: path.clone(), add, remove }))))
        })
    }

    /// Makes a device for a volume.
    pub fn activate(self: &Arc<Self>, path: &VolumePath, deadline: Option<Instant>) -> Result<(), Error> {
        let groups = [path.group.clone()];
        let asked = Cell::new(false);
        self.approach(path, &groups, false, deadline, |situation| {
            situation.inventory.volume(path).ok_or_else(|| Refusal::NoVolume(path.clone()))?;
            if asked.replace(true) {
                return Ok(Next::Done);
            }
            Ok(Next::Do(Box::new(Step::Change(Change::Activate { path: path.clone() }))))
        })
    }

    /// Makes the device of a volume anew.
    pub(crate) fn renew(self: &Arc<Self>, path: &VolumePath, deadline: Option<Instant>) -> Result<(), Error> {
        let groups = [path.group.clone()];
        let steps = Cell::new(0);
        self.approach(path, &groups, false, deadline, |situation| {
            situation.inventory.volume(path).ok_or_else(|| Refusal::NoVolume(path.clone()))?;
            let path = path.clone();
            let change = match steps.replace(steps.get() + 1) {
                0 => Change::Deactivate { path },
                1 => Change::Activate { path },
                _ => return Ok(Next::Done),
            };
            Ok(Next::Do(Box::new(Step::Change(change))))
        })
    }

    /// Extends the store of a copy-on-write snapshot once, by at least this if there is room.
    pub fn extend_store(self: &Arc<Self>, snapshot: &VolumePath, by: Bytes) -> Result<(), Error> {
        let inventory = self.inventory();
        let now = match inventory.volume(snapshot).map(|volume| &volume.kind) {
            Some(Kind::Cow { store, .. }) => *store,
            _ => return Err(Refusal::NoVolume(snapshot.clone()).into()),
        };
        let groups = [snapshot.group.clone()];
        let enough = now + Bytes(1);
        self.settle(snapshot, &groups, false, None, |situation| {
            volume::extend_store(situation, snapshot, enough, by)
        })
    }

    /// Like [`Volumes::look`], while nobody of us changes the group.
    pub fn look_in_turn(self: &Arc<Self>, group: &VgName) -> Result<(), Error> {
        let queue = self.queue(group);
        let _turn = self.turn(&queue, group, None)?;
        // Somebody's command may have been killed.
        match self.runner.recover(group) {
            Ok(resumed) => self.refresh(&queue, group, resumed)?,
            Err(error) => {
                tracing::debug!(group = %group, %error, "suspended devices could not be looked for");
            }
        }
        self.look(group)?;
        self.keep(group)
    }

    /// The largest new volume that a class admits; nothing whenever one would be refused.
    pub fn capacity(&self, class: &DeviceClass, options: &[String]) -> Result<Bytes, Refusal> {
        if self.queue(&class.group).stuck().is_some() || lock(&self.foreign).contains(&class.group) {
            return Ok(Bytes::ZERO);
        }
        let mut inventory = self.inventory();
        // Where LVM has put what was made last is known only from LVM.
        let several = Shape::of_options(options).disks > 1;
        let is_measured = !Shape::is_contiguous(options) || !self.may_have_room(&class.group);
        if !is_measured {
            self.forget(&class.group);
        }
        let group = inventory.groups.get(&class.group);
        if group.is_some_and(|group| !is_measured || !group.is_placed_for(several)) {
            if !self.look_for_room(&class.group) {
                return Ok(Bytes::ZERO);
            }
            inventory = self.inventory();
        }
        if let Some(group) = inventory.groups.get(&class.group) {
            // A disk may have gone since LVM was asked.
            without(group, Disk::is_gone)?;
            if !self.runner.silent(group).is_empty() {
                return Ok(Bytes::ZERO);
            }
        }
        let largest = |situation: Situation<'_>| situation.largest(class, options);
        match self.with_situation(&inventory, largest) {
            Err(Refusal::MetadataFull(full)) if self.may_have_room(&full) => {
                self.forget(&full);
                if !self.look_for_room(&full) {
                    return Ok(Bytes::ZERO);
                }
                self.with_situation(&self.inventory(), largest)
            }
            told => told,
        }
    }

    fn with_situation<T>(&self, inventory: &Inventory, act: impl FnOnce(Situation<'_>) -> T) -> T {
        let pool = |pool: &VolumePath| self.runner.pool(pool).ok().flatten();
        let raid = |volume: &VolumePath| self.runner.raid(volume).ok().flatten();
        act(Situation { inventory, pool: &pool, raid: &raid })
    }

    fn find(&self, path: &VolumePath) -> Result<Volume, Error> {
        Ok(self.inventory().volume(path).cloned().ok_or_else(|| Refusal::NoVolume(path.clone()))?)
    }

    /// Does something while nobody of us changes the group.
    pub(crate) fn in_turn(&self, group: &VgName, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let queue = self.queue(group);
        let _turn = self.turn(&queue, group, None).map_err(io::Error::other)?;
        act()
    }

    fn queue(&self, group: &VgName) -> Arc<Queue> {
        Arc::clone(lock(&self.queues).entry(group.clone()).or_default())
    }

    /// Plans and does, until there is nothing to do, and that is kept.
    fn settle(
        self: &Arc<Self>,
        path: &VolumePath,
        groups: &[VgName],
        places: bool,
        deadline: Option<Instant>,
        plan: impl Fn(Situation<'_>) -> Result<Next, Refusal>,
    ) -> Result<(), Error> {
        self.approach(path, groups, places, deadline, plan)?;
        groups.iter().try_for_each(|group| self.keep(group))
    }

    /// Plans and does, until there is nothing to do. `groups` are those that the plan looks at, `places` whether it
    /// must know which extents are taken. Each step is planned in its own group's turn: nobody of us changes it between.
    fn approach(
        self: &Arc<Self>,
        path: &VolumePath,
        groups: &[VgName],
        places: bool,
        deadline: Option<Instant>,
        plan: impl Fn(Situation<'_>) -> Result<Next, Refusal>,
    ) -> Result<(), Error> {
        let mut at = path.group.clone();
        let mut surprises = 0;
        for _ in 0..MOST_STEPS {
            let queue = self.queue(&at);
            let turn = self.turn(&queue, &at, deadline)?;
            for group in groups {
                self.look_at(group, places)?;
            }
            let inventory = self.inventory();
            let step = match self.with_situation(&inventory, &plan) {
                Ok(Next::Done) => return Ok(()),
                Ok(Next::Look) => {
                    self.forget(&at);
                    continue;
                }
                Ok(Next::Do(step)) => step,
                Err(Refusal::MetadataFull(full)) if groups.contains(&full) && self.may_have_room(&full) => {
                    self.forget(&full);
                    continue;
                }
                Err(refusal) => return Err(refusal.into()),
            };
            if step.group() != at {
                at = step.group();
                continue;
            }
            match *step {
                Step::Change(change) => match self.change(&queue, &change) {
                    Err(Error::Lvm(failure)) if failure.is_of_another() && surprises < MOST_SURPRISES => {
                        tracing::info!(volume = %path, %failure, "somebody else was quicker");
                        surprises += 1;
                    }
                    done => done?,
                },
                Step::Swap(first, second) => {
                    self.change(&queue, &first)?;
                    self.change(&queue, &second)?;
                }
                Step::GiveUp(change, refusal) => {
                    self.change(&queue, &change)?;
                    return Err(refusal.into());
                }
                Step::Zero { volume, from, to, then } => {
                    drop(turn);
                    self.await_end_of_use(&volume, from)?;
                    self.work(&volume, &[&volume], "zero", deadline, |progress| {
                        self.runner.zero(&volume, from, to, progress)
                    })?;
                    let _turn = self.turn(&queue, &at, None)?;
                    self.look(&at)?;
                    self.change(&queue, &then)?;
                }
                Step::Copy { from, to, length, dirty, then } => {
                    drop(turn);
                    self.work(&to, &[&from, &to], "copy", deadline, |progress| {
                        self.runner.copy(&from, &to, length, dirty, progress)
                    })?;
                    let _turn = self.turn(&queue, &at, None)?;
                    self.look(&at)?;
                    self.change(&queue, &then)?;
                }
            }
        }
        Err(Error::Endless(path.clone()))
    }

    /// Makes one change, in its group's turn, and follows it.
    fn change(self: &Arc<Self>, queue: &Arc<Queue>, change: &Change) -> Result<(), Error> {
        let group = change.path().group;
        if change.is_written()
            && let Some(group) = self.inventory().groups.get(&group)
        {
            complete(group)?;
            self.answers(group)?;
        }
        let changed = self.command(queue, change);
        if change.is_written() {
            lock(&self.written).entry(group.clone()).or_default().changes += 1;
        }
        match changed {
            Ok(()) => {
                self.follow(&group, change);
                if change.is_written() { self.keep(&group) } else { Ok(()) }
            }
            Err(Error::Lvm(failure)) => {
                // The command's own failure is told.
                let _told = self.recover(queue, &group);
                self.forget(&group);
                Err(failure.into())
            }
            held_up => held_up,
        }
    }

    /// What is answered must outlive the loss of what disks have not written yet, also if it was done before a flush
    /// failed, or by a process that was killed before its own.
    pub fn keep(&self, name: &VgName) -> Result<(), Error> {
        let Some(group) = self.inventory().groups.get(name).cloned() else { return Ok(()) };
        let Written { changes, kept } = lock(&self.written).entry(name.clone()).or_default().clone();
        if kept == Some(changes) {
            return Ok(());
        }
        let kept = self.runner.keep(&group);
        kept.map_err(|source| Error::Bytes { what: format!("flush of the disks of {name}"), source })?;
        let mut written = lock(&self.written);
        let written = written.entry(name.clone()).or_default();
        written.kept = written.kept.max(Some(changes));
        Ok(())
    }
}
