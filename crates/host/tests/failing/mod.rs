//! This host, which fails at a chosen moment as the simulated one does.

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use lvms_host::dm::{Cow, Pool, Raid};
use lvms_host::lvm::metadata::Version;
use lvms_host::lvm::{Change, Failure, Group, Inventory};
use lvms_host::names::{VgName, VolumePath};
use lvms_host::runner::{AtWork, DeviceState, Linux, Progress, Runner, Use};
use lvms_host::units::Bytes;

/// In the words of the simulated host.
const TOLD: &str = "the simulated host has failed";

/// This host, until so many effects have happened.
pub(crate) struct Failing {
    host: Linux,
    effects_left: Mutex<Option<u64>>,
}

impl Failing {
    pub(crate) fn new(host: Linux) -> Failing {
        Failing { host, effects_left: Mutex::default() }
    }

    /// After so many more effects nothing works any more, until this is called again.
    pub(crate) fn fail_after(&self, effects: Option<u64>) {
        *self.effects_left.lock().expect("nobody panics with it") = effects;
    }

    fn effect(&self) -> Result<(), String> {
        let mut left = self.effects_left.lock().expect("nobody panics with it");
        match &mut *left {
            Some(0) => Err(TOLD.to_owned()),
            Some(more) => {
                *more -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Runner for Failing {
    fn inventory(&self, group: Option<&VgName>) -> Result<Inventory, Failure> {
        self.host.inventory(group)
    }

    fn sequence_number(&self, group: &Group) -> Option<Version> {
        self.host.sequence_number(group)
    }

    fn unreadable(&self, group: &Group) -> Vec<String> {
        self.host.unreadable(group)
    }

    fn silent(&self, group: &Group) -> Vec<String> {
        self.host.silent(group)
    }

    fn change(&self, change: &Change) -> Result<(), Failure> {
        self.effect().map_err(Failure::Other)?;
        self.host.change(change)
    }

    fn keep(&self, group: &Group) -> io::Result<()> {
        self.effect().map_err(io::Error::other)?;
        self.host.keep(group)
    }

    fn pool(&self, pool: &VolumePath) -> io::Result<Option<Pool>> {
        self.host.pool(pool)
    }

    fn cow(&self, snapshot: &VolumePath) -> io::Result<Option<Cow>> {
        self.host.cow(snapshot)
    }

    fn raid(&self, volume: &VolumePath) -> io::Result<Option<Raid>> {
        self.host.raid(volume)
    }

    fn device_state(&self, volume: &VolumePath) -> io::Result<DeviceState> {
        self.host.device_state(volume)
    }

    fn used(&self, volume: &VolumePath) -> io::Result<Use> {
        self.host.used(volume)
    }

    fn published(&self, volume: &VolumePath) -> io::Result<Option<PathBuf>> {
        self.host.published(volume)
    }

    fn suspended(&self, group: &VgName) -> io::Result<Vec<String>> {
        self.host.suspended(group)
    }

    fn at_work(&self, group: &VgName) -> io::Result<Option<AtWork>> {
        self.host.at_work(group)
    }

    fn recover(&self, group: &VgName) -> io::Result<Vec<VolumePath>> {
        self.host.recover(group)
    }

    fn zero(&self, volume: &VolumePath, from: Bytes, to: Bytes, progress: Progress<'_>) -> io::Result<()> {
        self.effect().map_err(io::Error::other)?;
        self.host.zero(volume, from, to, progress)
    }

    fn copy(
        &self,
        from: &VolumePath,
        to: &VolumePath,
        length: Bytes,
        dirty: bool,
        progress: Progress<'_>,
    ) -> io::Result<()> {
        self.effect().map_err(io::Error::other)?;
        self.host.copy(from, to, length, dirty, progress)
    }
}
