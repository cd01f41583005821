//! What happens to a simulated host, and what can be seen of it afterwards.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Content, Meanwhile, Simulated};
use crate::lvm::{Failure, Group};
use crate::names::VolumePath;
use crate::units::Bytes;

impl Simulated {
    /// After so many more effects nothing works any more, until this is called again.
    pub fn fail_after(&self, effects: Option<u64>) {
        self.state().effects_left = effects;
    }

    /// So much room is left in the metadata of its group, until this is called again.
    pub fn leave_room(&self, room: Bytes) {
        for group in self.state().inventory.groups.values_mut().map(Arc::make_mut) {
            group.metadata.1 = room;
        }
    }

    /// So often it was asked what is there.
    pub fn reports(&self) -> u32 {
        self.state().reports
    }

    /// Its group is not found by so many of the next looks.
    pub fn hide(&self, looks: u32) {
        self.state().hidden = looks;
    }

    /// A disk of its group is not seen by so many of the next looks.
    pub fn hide_disk(&self, looks: u32) {
        self.state().hidden_disk = looks;
    }

    /// The next report tells what was before the last change: it was made then, and comes now.
    pub fn tell_late(&self) {
        self.state().is_late = true;
    }

    /// In the middle of the next report, this happens.
    pub fn while_reporting(&self, happens: impl FnOnce() + Send + 'static) {
        self.state().meanwhile = Some(Meanwhile(Box::new(happens)));
    }

    /// Somebody takes back the last change, with its sequence number.
    pub fn go_back(&self) {
        let mut state = self.state();
        state.inventory = state.previous.clone();
    }

    /// From now on its disks do not answer, or do again.
    pub fn silence(&self, is_silent: bool) {
        self.state().is_silent = is_silent;
    }

    /// From now on the images of all RAID volumes are being made to agree, or do.
    pub fn synchronise(&self, is_synchronising: bool) {
        self.state().is_synchronising = is_synchronising;
    }

    /// Somebody takes back the last change by vgcfgrestore, which gives its number to what was before.
    pub fn restore(&self) {
        let mut state = self.state();
        let mut restored = state.previous.clone();
        for (name, group) in &mut restored.groups {
            Arc::make_mut(group).seqno = state.inventory.groups.get(name).map_or(0, |group| group.seqno);
        }
        state.inventory = restored;
        state.texts += 1;
    }

    /// A report on all groups comes too late: somebody holds the lock of one of them.
    pub fn hold_up(&self) {
        self.state().late = true;
    }

    /// A report on all groups fails: somebody removes one in the middle of it.
    pub fn remove_another(&self) {
        self.state().another_goes = true;
    }

    /// Its group is given to another host, or back.
    pub fn give_away(&self, is_foreign: bool) {
        self.state().is_foreign = is_foreign;
    }

    /// In the middle of so many of the next copies, the snapshot that is read is lost.
    pub fn overflow(&self, copies: u32) {
        self.state().overflows = copies;
    }

    /// Somebody deactivates all volumes. The group's metadata is as it was.
    pub fn deactivate(&self) {
        for group in self.state().inventory.groups.values_mut().map(Arc::make_mut) {
            group.volumes.values_mut().for_each(|volume| volume.active = false);
        }
    }

    /// All disks are pulled out and put back, while volumes are active.
    pub fn pull_disks(&self) {
        let mut state = self.state();
        let groups: Vec<Arc<Group>> = state.inventory.groups.values().cloned().collect();
        for group in groups {
            let active = group.volumes.values().filter(|volume| volume.active);
            state.orphaned.extend(active.map(|volume| group.path(&volume.name)));
        }
    }

    /// LVM cannot remove this volume.
    pub fn keep_volume(&self, volume: VolumePath) {
        self.state().kept.insert(volume);
    }

    /// Where all volumes are published, or why that cannot be seen.
    pub fn publish(&self, published: Result<Option<PathBuf>, io::ErrorKind>) {
        self.state().published = published;
    }

    /// A killed command has left a volume suspended.
    pub fn suspend(&self, volume: VolumePath) {
        self.state().suspended.push(volume);
    }

    /// The next change ends like this.
    pub fn end_with(&self, failure: Failure) {
        self.state().next_failure = Some(failure);
    }

    /// Where all volumes are published as soon as LVM could not remove one.
    pub fn publish_after_failure(&self, target: PathBuf) {
        self.state().published_then = Some(target);
    }

    /// What a volume holds.
    pub fn content(&self, volume: &VolumePath) -> Content {
        self.state().content.get(volume).cloned().unwrap_or(Content::Dirt)
    }

    /// Somebody writes to a volume.
    pub fn write(&self, volume: &VolumePath, who: &str) {
        self.state().content.insert(volume.clone(), Content::Of(who.to_owned()));
    }

    /// Which extents LVM takes is its own affair: here they lie as in this group, which is otherwise the same.
    pub fn place_like(&self, other: &Group) {
        let mut state = self.state();
        let Some(group) = state.inventory.groups.get_mut(&other.name).map(Arc::make_mut) else { return };
        group.disks.clone_from(&other.disks);
        for (name, volume) in &mut group.volumes {
            if let Some(other) = other.volumes.get(name) {
                volume.areas.clone_from(&other.areas);
            }
        }
    }

    /// Whether nothing would be lost with the power.
    pub fn is_kept(&self) -> bool {
        self.state().unkept.is_empty()
    }

    /// What was done so far.
    pub fn history(&self) -> Vec<String> {
        self.state().history.clone()
    }
}
