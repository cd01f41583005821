//! What is known of groups, and how it stays true.

use std::sync::Arc;
use std::time::Duration;

use super::{Error, Volumes};
use crate::lvm::{Change, Failure, Group, model};
use crate::names::VgName;
use crate::queue::NoTurn;
use crate::runner::Runner;

/// No group has this sequence number.
const UNKNOWN: u64 = 0;

impl<R: Runner> Volumes<R> {
    /// What a change of ours has done is known from the model, if nobody else has changed anything meanwhile.
    pub(super) fn follow(&self, name: &VgName, change: &Change) {
        let Some(before) = self.inventory().groups.get(name).cloned() else { return };
        let on_disk = self.runner.sequence_number(&before);
        let mut group = Group::clone(&before);
        let expected = before.seqno + model::increments(&before, change);
        let modelled = model::apply(&mut group, change).is_ok();
        group.seqno = if modelled && on_disk == Some(expected) { expected } else { UNKNOWN };
        self.tell(group);
    }

    pub(super) fn tell(&self, group: Group) {
        self.known.send_if_modified(|inventory| {
            if inventory.groups.get(&group.name).is_some_and(|known| **known == group) {
                return false;
            }
            Arc::make_mut(inventory).groups.insert(group.name.clone(), Arc::new(group));
            true
        });
    }

    /// Whoever watches looks again, though LVM's metadata is as it was.
    pub(crate) fn tell_all(&self) {
        self.known.send_modify(|_| {});
    }

    /// The next look at this group asks LVM. Nobody is told: nothing has changed yet.
    pub(super) fn forget(&self, name: &VgName) {
        self.known.send_if_modified(|inventory| {
            if let Some(group) = Arc::make_mut(inventory).groups.get_mut(name) {
                Arc::make_mut(group).seqno = UNKNOWN;
            }
            false
        });
    }

    /// Makes sure that what is known of a group is what is on disk.
    pub fn look(&self, name: &VgName) -> Result<(), Error> {
        self.look_at(name, false)
    }

    /// That a group is gone is believed only after a second look.
    pub(super) fn look_at(&self, name: &VgName, places: bool) -> Result<(), Error> {
        if let Some(group) = self.inventory().groups.get(name)
            && group.seqno != UNKNOWN
            && (group.placed || !places)
            && self.runner.sequence_number(group) == Some(group.seqno)
        {
            return Ok(());
        }
        // LVM would wait for the lock of the command that hangs.
        if let Some(stuck) = self.stuck(name) {
            return Err(NoTurn::Stuck(stuck).into());
        }
        let found = match self.runner.inventory(Some(name)) {
            Err(Failure::NotFound(_)) => {
                std::thread::sleep(Duration::from_millis(100));
                self.runner.inventory(Some(name))
            }
            other => other,
        };
        match found {
            Ok(mut inventory) => {
                if let Some(group) = inventory.groups.remove(name) {
                    self.tell(Arc::unwrap_or_clone(group));
                }
                Ok(())
            }
            Err(Failure::NotFound(_)) => {
                self.lose(name);
                Ok(())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// A group that LVM does not find is gone, unless its disks are: then its volumes are still somebody's.
    fn lose(&self, name: &VgName) {
        let inventory = self.inventory();
        let known = inventory.groups.get(name);
        let unreadable = known.map(|group| self.runner.unreadable(group)).unwrap_or_default();
        match known.filter(|_| !unreadable.is_empty()) {
            Some(group) => {
                let mut group = Group::clone(group);
                for disk in group.disks.iter_mut().filter(|disk| unreadable.contains(&disk.uuid)) {
                    disk.missing = true;
                }
                group.seqno = UNKNOWN;
                self.tell(group);
            }
            None => {
                self.known.send_if_modified(|inventory| {
                    inventory.groups.contains_key(name)
                        && Arc::make_mut(inventory).groups.remove(name).is_some()
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{Simulated, group};

    #[test]
    fn that_a_group_is_gone_is_believed_only_after_a_second_look() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let name = host.inventory(None).unwrap().groups.keys().next().unwrap().clone();
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        let is_known = || volumes.inventory().groups.contains_key(&name);
        host.hide(1);
        volumes.look(&name).unwrap();
        assert!(is_known());
        host.hide(2);
        volumes.look(&name).unwrap();
        assert!(!is_known());
        volumes.look(&name).unwrap();
        assert!(is_known());
    }
}
