//! What is known of groups, and how it stays true.

use std::sync::Arc;
use std::time::Duration;

use super::{Error, Volumes, lock, room};
use crate::lvm::inventory::Disk;
use crate::lvm::{Change, Failure, Group, Inventory, model};
use crate::names::VgName;
use crate::queue::NoTurn;
use crate::runner::Runner;

/// What is there when we begin. If LVM does not answer in time, as while a command holds the lock of one group, all are
/// unknown until each is looked at by itself; what is wrong with other groups is not for us.
pub(super) fn first<R: Runner>(runner: &R, groups: &[&VgName]) -> Result<Inventory, Failure> {
    let failure = match runner.inventory(None) {
        Ok(inventory) => return Ok(inventory),
        Err(failure) => failure,
    };
    tracing::warn!(%failure, "LVM does not tell of all volume groups: each is looked at by itself");
    let mut inventory = Inventory::default();
    for group in groups {
        let why = if failure.is_of_the_moment() {
            // Each would be waited for as long as all.
            failure.to_string()
        } else {
            match runner.inventory(Some(group)) {
                Ok(seen) => {
                    inventory.groups.extend(seen.groups);
                    continue;
                }
                Err(Failure::NotFound(_)) => continue,
                Err(failure) => failure.to_string(),
            }
        };
        inventory.unseen.insert((*group).clone(), why);
    }
    if inventory.unseen.len() == groups.len() && !failure.is_of_the_moment() {
        return Err(failure);
    }
    Ok(inventory)
}

impl<R: Runner> Volumes<R> {
    /// What a change of ours has done is known from the model, if nobody else has changed anything meanwhile.
    pub(super) fn follow(&self, name: &VgName, change: &Change) {
        let Some(before) = self.inventory().groups.get(name).cloned() else { return };
        let on_disk = self.runner.sequence_number(&before);
        let mut group = Group::clone(&before);
        let expected = before.seqno + model::increments(&before, change);
        let modelled = model::apply(&mut group, change).is_ok();
        if change.is_written() {
            room::take(&mut group, &before, change);
        }
        let is_certain = modelled && on_disk.is_some_and(|on_disk| on_disk.seqno == expected);
        group.seqno = on_disk.map_or(expected, |on_disk| on_disk.seqno);
        group.checksum = on_disk.map(|on_disk| on_disk.checksum);
        self.tell(group);
        // A report that comes before answers nothing: it has just been overwritten.
        if !is_certain {
            self.forget(name);
        }
    }

    fn tell(&self, group: Group) {
        self.tell_if(group, |_| true);
    }

    /// Tells what is known of a group now, if that is to be believed in place of what was known. Says whether it is.
    fn tell_if(&self, group: Group, is_believed: impl Fn(&Group) -> bool) -> bool {
        let mut believed = true;
        self.known.send_if_modified(|inventory| {
            let known = inventory.groups.get(&group.name);
            believed = known.is_none_or(|known| is_believed(known));
            if !believed || known.is_some_and(|known| **known == group) {
                return false;
            }
            Arc::make_mut(inventory).groups.insert(group.name.clone(), Arc::new(group));
            true
        });
        believed
    }

    fn has_seen(&self, name: &VgName) {
        self.known.send_if_modified(|inventory| {
            inventory.unseen.contains_key(name) && Arc::make_mut(inventory).unseen.remove(name).is_some()
        });
    }

    /// Whoever watches looks again, though LVM's metadata is as it was.
    pub(crate) fn tell_all(&self) {
        self.known.send_modify(|_| {});
    }

    /// The next look at this group asks LVM, whatever its sequence number is.
    pub(super) fn forget(&self, name: &VgName) {
        self.doubts.raise(name);
    }

    /// Makes sure that what is known of a group is what is on disk.
    pub fn look(&self, name: &VgName) -> Result<(), Error> {
        self.look_at(name, false)
    }

    pub(super) fn look_at(&self, name: &VgName, places: bool) -> Result<(), Error> {
        let known = self.inventory().groups.get(name).cloned();
        if let Some(group) = &known
            && !self.doubts.about(name)
            && group.is_placed_for(places)
            && self.runner.sequence_number(group).is_some_and(|on_disk| group.is(on_disk))
        {
            return Ok(());
        }
        // LVM would wait for the lock of the command that hangs.
        if let Some(stuck) = self.stuck(name) {
            return Err(NoTurn::Stuck(stuck).into());
        }
        let doubts = self.doubts.until_now(name);
        let on_disk = known.as_ref().and_then(|group| self.runner.sequence_number(group));
        known.as_deref().map_or(Ok(()), |group| self.answers(group))?;
        match self.report(name, known.as_deref()) {
            Ok(mut inventory) => {
                if let Some(group) = inventory.groups.remove(name) {
                    let mut group = Arc::unwrap_or_clone(group);
                    // Of the text that was there when LVM was asked, if no other came meanwhile.
                    let on_disk = on_disk.filter(|on_disk| on_disk.seqno == group.seqno);
                    group.checksum = on_disk.map(|on_disk| on_disk.checksum);
                    if self.believe(group) {
                        self.doubts.answer(name, doubts);
                    }
                }
            }
            Err(Failure::NotFound(_)) => self.lose(name),
            Err(failure) => {
                if matches!(failure, Failure::Foreign(_)) {
                    // What is known of it stays: its volumes are somebody's. None of them is a copy that we make.
                    self.has_seen(name);
                    if lock(&self.foreign).insert(name.clone()) {
                        self.tell_all();
                    }
                }
                return Err(failure.into());
            }
        }
        self.has_seen(name);
        if lock(&self.foreign).remove(name) {
            self.tell_all();
        }
        Ok(())
    }

    /// LVM would wait for a disk that does not answer, and keep its group from everybody.
    pub(super) fn answers(&self, group: &Group) -> Result<(), Failure> {
        let disks = self.runner.silent(group);
        if disks.is_empty() { Ok(()) } else { Err(Failure::Silent { group: group.name.to_string(), disks }) }
    }

    /// That a group is gone, or one of its disks, is believed only after a second look.
    fn report(&self, name: &VgName, known: Option<&Group>) -> Result<Inventory, Failure> {
        let was_there = |disk: &Disk| {
            let mut known = known.into_iter().flat_map(|group| &group.disks);
            known.any(|known| known.uuid == disk.uuid && !known.missing)
        };
        let report = self.runner.inventory(Some(name));
        let is_gone = match &report {
            Ok(inventory) => inventory.groups.get(name).is_some_and(|group| group.missing().any(was_there)),
            Err(failure) => matches!(failure, Failure::NotFound(_)),
        };
        if !is_gone {
            return report;
        }
        std::thread::sleep(Duration::from_millis(100));
        self.runner.inventory(Some(name))
    }

    /// Whoever looks outside his turn may tell a report when later changes are known already. That a group has really
    /// gone back, by vgcfgrestore, is on its disks.
    fn believe(&self, group: Group) -> bool {
        let is_older = |known: &Group| known.uuid == group.uuid && known.seqno > group.seqno;
        let has_gone_back = self.inventory().groups.get(&group.name).is_some_and(|known| is_older(known))
            && self.runner.sequence_number(&group).is_some_and(|on_disk| group.is(on_disk));
        self.tell_if(group.clone(), |known| has_gone_back || !is_older(known))
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
                self.tell(group);
                self.forget(name);
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::facts::Facts;
    use crate::names::{LvName, VolumePath};
    use crate::plan::Refusal;
    use crate::simulated::history::{Act, Class, device_class, path, perform};
    use crate::simulated::{Simulated, group};
    use crate::units::{Bytes, Extents};

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

    #[test]
    fn what_may_be_needed_in_a_group_that_nobody_has_seen_yet_is_not_removed() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let calm = Volumes::open(Arc::clone(&host), &[]).unwrap();
        perform(&Act::Create { volume: 0, class: Class::Linear, extents: 4, block: false }, &calm).unwrap();
        // The snapshot of a copy in another group, that is not finished.
        let facts = Facts { temporary: LvName::parse("elsewhere").ok(), ..Facts::default() };
        let change = Change::SnapshotThick {
            origin: path(0),
            name: LvName::parse("lvms-copy-elsewhere").unwrap(),
            store: Extents(2),
            chunk: None,
            tags: facts.tags(),
        };
        host.change(&change).unwrap();
        let (name, other) = (path(0).group, VgName::parse("other").unwrap());
        host.hold_up();
        let volumes = Volumes::open(Arc::clone(&host), &[&name, &other]).unwrap();
        volumes.look(&name).unwrap();
        for removed in
            [path(0), VolumePath { group: name.clone(), volume: LvName::parse("elsewhere").unwrap() }]
        {
            let refused = volumes.remove(&removed, None).unwrap_err();
            assert!(matches!(refused, Error::Refused(Refusal::PerhapsNeeded { .. })), "{refused}");
        }
        volumes.look(&other).unwrap();
        volumes.remove(&path(0), None).unwrap();
        assert!(volumes.inventory().groups[&name].volumes.is_empty());
    }

    #[test]
    fn groups_that_cannot_be_looked_at_together_are_looked_at_one_by_one() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let name = host.inventory(None).unwrap().groups.keys().next().unwrap().clone();
        host.hold_up();
        let volumes = Volumes::open(Arc::clone(&host), &[&name]).unwrap();
        assert!(volumes.inventory().groups.is_empty());
        volumes.look(&name).unwrap();
        assert!(volumes.inventory().groups.contains_key(&name));
    }

    #[test]
    fn a_group_that_goes_just_then_keeps_no_other_from_being_seen() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let name = host.inventory(None).unwrap().groups.keys().next().unwrap().clone();
        host.remove_another();
        let gone = VgName::parse("gone").unwrap();
        for groups in [&[&name][..], &[&name, &gone]] {
            let inventory = Volumes::open(Arc::clone(&host), groups).unwrap().inventory();
            assert_eq!(inventory.groups.keys().collect::<Vec<_>>(), [&name]);
            assert!(inventory.unseen.is_empty());
        }
        host.give_away(true);
        let Err(error) = Volumes::open(Arc::clone(&host), &[&name]) else { panic!("LVM shows nothing") };
        assert!(error.to_string().contains("not found"), "{error}");
    }

    #[test]
    fn that_a_disk_is_gone_is_believed_only_after_a_second_look() {
        let host = Arc::new(Simulated::new(group(&[100, 100])));
        let name = host.inventory(None).unwrap().groups.keys().next().unwrap().clone();
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        let missing = || volumes.inventory().groups[&name].missing().count();
        for (looks, expected) in [(1, 0), (2, 1)] {
            host.hide_disk(looks);
            volumes.forget(&name);
            volumes.look(&name).unwrap();
            assert_eq!(missing(), expected, "{looks} looks");
        }
        volumes.forget(&name);
        volumes.look(&name).unwrap();
        assert_eq!(missing(), 0);
    }

    #[test]
    fn a_group_whose_disk_does_not_answer_is_neither_asked_nor_changed_until_it_does() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        let act = Act::Create { volume: 0, class: Class::Linear, extents: 4, block: false };
        let asked = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&asked);
        host.while_reporting(move || seen.store(true, Ordering::Relaxed));
        host.silence(true);
        let refused = volumes.look(&path(0).group).unwrap_err();
        assert!(matches!(refused, Error::Lvm(Failure::Silent { .. })), "{refused}");
        assert!(refused.to_string().contains("do not answer"), "{refused}");
        assert!(perform(&act, &volumes).is_err());
        let class = device_class(Class::Linear);
        assert_eq!(volumes.capacity(&class, &[]).unwrap(), Bytes::ZERO);
        assert!(!asked.load(Ordering::Relaxed), "LVM was asked");
        host.silence(false);
        perform(&act, &volumes).unwrap();
        assert!(volumes.capacity(&class, &[]).unwrap() > Bytes::ZERO);
    }

    #[test]
    fn an_older_report_is_not_believed_unless_the_disks_say_the_same() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        let act = Act::Create { volume: 0, class: Class::Linear, extents: 4, block: false };
        perform(&act, &volumes).unwrap();
        let name = path(0).group;
        let is_known = || volumes.inventory().volume(&path(0)).is_some();
        for (happens, expected) in
            [(Simulated::tell_late as fn(&Simulated), true), (Simulated::go_back, false)]
        {
            happens(&host);
            volumes.forget(&name);
            volumes.look(&name).unwrap();
            assert_eq!(is_known(), expected);
            assert_eq!(volumes.doubts.about(&name), expected, "what is not believed answers nothing");
        }
    }

    #[test]
    fn another_text_with_the_number_of_our_change_is_noticed() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        let create = Act::Create { volume: 0, class: Class::Linear, extents: 4, block: false };
        for _ in 0..2 {
            perform(&create, &volumes).unwrap();
            host.restore();
            volumes.look(&path(0).group).unwrap();
            assert!(volumes.inventory().volume(&path(0)).is_none());
        }
    }

    #[test]
    fn a_group_of_another_host_has_no_capacity_until_it_is_given_back() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        let (name, class) = (path(0).group, crate::simulated::history::device_class(Class::Linear));
        volumes.forget(&name);
        volumes.look(&name).unwrap();
        let mut watch = volumes.watch();
        for (is_foreign, told) in [(false, false), (true, true), (true, false), (false, true), (false, false)]
        {
            host.give_away(is_foreign);
            volumes.forget(&name);
            let looked = volumes.look(&name);
            assert_eq!(matches!(looked, Err(Error::Lvm(Failure::Foreign(_)))), is_foreign, "{looked:?}");
            assert_eq!(volumes.capacity(&class, &[]).unwrap() == crate::units::Bytes::ZERO, is_foreign);
            assert_eq!(watch.has_changed().unwrap(), told);
            watch.mark_unchanged();
            assert!(volumes.inventory().groups.contains_key(&name));
        }
    }

    #[test]
    fn what_somebody_else_has_made_is_seen_though_another_report_is_under_way() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        let name = path(0).group;
        let create = |volume| Act::Create { volume, class: Class::Linear, extents: 4, block: false };
        perform(&create(0), &volumes).unwrap();
        let before = Group::clone(&volumes.inventory().groups[&name]);
        perform(&create(1), &Volumes::open(Arc::clone(&host), &[]).unwrap()).unwrap();
        // So soon after a change of ours that the sequence number is all that was seen of it.
        let seqno = host.inventory(None).unwrap().groups[&name].seqno;
        volumes.tell(Group { seqno, ..before });
        volumes.forget(&name);
        let (other, seen) = (Arc::clone(&volumes), Arc::new(AtomicBool::new(false)));
        let (seen_meanwhile, looked_at) = (Arc::clone(&seen), name.clone());
        host.while_reporting(move || {
            other.look(&looked_at).unwrap();
            seen_meanwhile.store(other.inventory().volume(&path(1)).is_some(), Ordering::Relaxed);
        });
        volumes.look(&name).unwrap();
        assert!(seen.load(Ordering::Relaxed), "the report under way has not come yet");
    }
}
