//! Long works: beside a group's changes, in places of their own, and to be seen while they last.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Error, Volumes, lock};
use crate::names::VolumePath;
use crate::plan::Refusal;
use crate::queue::{Long, NoTurn};
use crate::runner::{DeviceState, Progress, Runner, Use};
use crate::units::Bytes;

/// A long work and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// `copy` or `zero`, or what a tool does: `format`, `check` or `grow`. How far a tool is, it does not tell.
    pub what: &'static str,
    /// What is finished.
    pub done: Bytes,
    /// Of how much.
    pub all: Bytes,
}

impl<R: Runner> Volumes<R> {
    /// Long works that run now.
    pub fn works(&self) -> BTreeMap<VolumePath, Work> {
        lock(&self.works).clone()
    }

    /// Does a long work for a volume, on the devices of these.
    pub(super) fn work(
        self: &Arc<Self>,
        volume: &VolumePath,
        on: &[&VolumePath],
        what: &'static str,
        deadline: Option<Instant>,
        act: impl FnOnce(Progress<'_>) -> io::Result<()>,
    ) -> Result<(), Error> {
        for path in on {
            // Others may have taken it away, or its disk: neither is written in the group's metadata.
            match self.runner.device_state(path) {
                Ok(DeviceState::Absent) => self.activate(path, deadline)?,
                Ok(DeviceState::Orphaned) => self.renew(path, deadline)?,
                // The work itself tells what is wrong.
                Ok(DeviceState::Ready) | Err(_) => {}
            }
        }
        self.long(Long::Bytes, volume, what, deadline, act)?.map_err(|source| {
            // Whether a snapshot that was read has overflowed, LVM knows.
            on.iter().for_each(|path| self.forget(&path.group));
            Error::Bytes { what: format!("{what} of {volume}"), source }
        })
    }

    /// Nothing is zeroed that somebody uses: others, to whom our tags say nothing, may have made it theirs. udev opens
    /// devices for a moment.
    pub(super) fn await_end_of_use(&self, volume: &VolumePath, from: Bytes) -> Result<(), Error> {
        const AGAIN: Duration = Duration::from_millis(100);
        const TIMES: usize = 100;
        for _ in 0..TIMES {
            let used = self.runner.used(volume);
            let what = || format!("a look at who uses {volume}");
            if used.map_err(|source| Error::Bytes { what: what(), source })? == Use::None {
                return Ok(());
            }
            std::thread::sleep(AGAIN);
        }
        Err(Refusal::UsedBeforeZeros { path: volume.clone(), from }.into())
    }

    /// Does a long work in one of the places of its group.
    pub(crate) fn long<T>(
        &self,
        kind: Long,
        volume: &VolumePath,
        what: &'static str,
        deadline: Option<Instant>,
        act: impl FnOnce(Progress<'_>) -> T,
    ) -> Result<T, NoTurn> {
        let queue = self.queue(&volume.group);
        let _place = queue.job(kind, deadline)?;
        let began = Instant::now();
        let progress = |done: Bytes, all: Bytes| {
            lock(&self.works).insert(volume.clone(), Work { what, done, all });
        };
        let done = act(&progress);
        lock(&self.works).remove(volume);
        tracing::info!(volume = %volume, what, seconds = began.elapsed().as_secs_f64(), "long work ended");
        Ok(done)
    }
}
