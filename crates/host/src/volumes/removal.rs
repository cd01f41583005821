//! Volumes go. Those that wait for their turn go with the one whose turn it is: a command costs LVM and udev much more
//! than a volume more in it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{Error, Volumes, lock};
use crate::causes;
use crate::lvm::Change;
use crate::names::{LvName, VolumePath};
use crate::plan::capacity::{Situation, complete};
use crate::plan::volume;
use crate::plan::{Next, Refusal, Step};
use crate::runner::{Runner, Use};

impl<R: Runner> Volumes<R> {
    /// Removes a volume; one that is gone already is as good.
    pub fn remove(self: &Arc<Self>, path: &VolumePath, deadline: Option<Instant>) -> Result<(), Error> {
        let _leaving = Leaving::enter(&self.leaving, path);
        let together = RefCell::new(Vec::new());
        // Copies that lie elsewhere, and may need one of its snapshots, are ours and known; a group that cannot be
        // looked at holds no other up.
        let groups = [path.group.clone()];
        let removed = self.settle(path, &groups, false, deadline, |situation| {
            let next = self.next_to_removal(situation, path, &self.leaving_beside(path))?;
            together.borrow_mut().extend_from_slice(others(&next));
            self.take_along(path, &together.borrow());
            Ok(next)
        });
        match removed {
            // One of them could not go, and LVM has removed none.
            Err(Error::Lvm(failure)) if !together.borrow().is_empty() => {
                tracing::info!(volume = %path, %failure, "volumes that were to go together go one by one");
                self.settle(path, &groups, false, deadline, |situation| {
                    self.next_to_removal(situation, path, &[])
                })
            }
            Ok(()) => {
                for other in together.borrow().iter() {
                    tracing::info!(volume = %other, with = %path, "removed by the same command");
                }
                Ok(())
            }
            refused => refused,
        }
    }

    /// What is published, or may be, is not removed.
    fn next_to_removal(
        &self,
        situation: Situation<'_>,
        path: &VolumePath,
        others: &[VolumePath],
    ) -> Result<Next, Refusal> {
        let next = volume::remove_with(situation, path, others)?;
        if next == Next::Done {
            return Ok(next);
        }
        self.is_left(&next, path)?;
        situation.inventory.groups.get(&path.group).map_or(Ok(()), |group| complete(group))?;
        match self.runner.published(path) {
            Ok(None) => Ok(next),
            Ok(Some(target)) => Err(Refusal::Published { path: path.clone(), target }),
            Err(error) => Err(Refusal::PublishedUnseen { path: path.clone(), reason: causes::told(&error) }),
        }
    }

    /// What was made for another volume goes with this one, or before it, only when that other is known to be gone.
    fn is_left(&self, next: &Next, path: &VolumePath) -> Result<(), Refusal> {
        let Next::Do(step) = next else { return Ok(()) };
        let Step::Change(Change::Remove { path: left, .. }) = &**step else { return Ok(()) };
        let unseen = &self.inventory().unseen;
        if left == path || unseen.is_empty() {
            return Ok(());
        }
        Err(Refusal::PerhapsNeeded { left: left.clone(), groups: unseen.keys().cloned().collect() })
    }

    /// Each goes with others once: if that fails, it goes alone.
    fn take_along(&self, path: &VolumePath, others: &[LvName]) {
        if !others.is_empty() {
            let goes = |one: &LvName| *one == path.volume || others.contains(one);
            lock(&self.leaving).retain(|one| one.group != path.group || !goes(&one.volume));
        }
    }

    /// Volumes that may go with one of the same group. What is open would keep it waiting.
    fn leaving_beside(&self, path: &VolumePath) -> Vec<VolumePath> {
        let leaving: Vec<VolumePath> =
            lock(&self.leaving).iter().filter(|other| other.group == path.group).cloned().collect();
        let is_unused = |other: &VolumePath| matches!(self.runner.used(other), Ok(Use::None));
        leaving.into_iter().filter(is_unused).collect()
    }
}

fn others(next: &Next) -> &[LvName] {
    let Next::Do(step) = next else { return &[] };
    let Step::Change(Change::Remove { others, .. }) = &**step else { return &[] };
    others
}

/// Somebody who waits for a removal.
struct Leaving<'a> {
    all: &'a Mutex<BTreeSet<VolumePath>>,
    path: &'a VolumePath,
}

impl<'a> Leaving<'a> {
    fn enter(all: &'a Mutex<BTreeSet<VolumePath>>, path: &'a VolumePath) -> Leaving<'a> {
        lock(all).insert(path.clone());
        Leaving { all, path }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        lock(self.all).remove(self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::lvm::Failure;
    use crate::names::VgName;
    use crate::simulated::{Simulated, group};
    use crate::units::Extents;

    fn path(name: &str) -> VolumePath {
        VolumePath { group: VgName::parse("vg").unwrap(), volume: LvName::parse(name).unwrap() }
    }

    fn host(names: &[&str]) -> (Arc<Simulated>, Arc<Volumes<Simulated>>) {
        let host = Arc::new(Simulated::new(group(&[100])));
        for name in names {
            let (options, tags, on) = <(Vec<_>, Vec<_>, Vec<_>)>::default();
            let made = Change::CreateThick { path: path(name), extents: Extents(1), options, tags, on };
            host.change(&made).unwrap();
        }
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        (host, volumes)
    }

    fn removals(host: &Simulated) -> Vec<String> {
        host.history().into_iter().filter(|act| act.starts_with("lvremove")).collect()
    }

    /// Removes them at the same time: all of them wait before the first has its turn.
    fn remove_at_once(volumes: &Arc<Volumes<Simulated>>, names: &[&str]) -> Vec<Result<(), Error>> {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            let held = volumes.in_turn(&path("x").group, || {
                for name in names {
                    threads.push(scope.spawn(|| volumes.remove(&path(name), None)));
                }
                while lock(&volumes.leaving).len() < names.len() {
                    std::thread::yield_now();
                }
                Ok(())
            });
            held.unwrap();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn volumes_whose_removal_is_waited_for_go_with_one_command() {
        let (host, volumes) = host(&["a", "b", "c", "stays"]);
        for removed in remove_at_once(&volumes, &["a", "b", "c"]) {
            removed.unwrap();
        }
        let commands = removals(&host);
        assert_eq!(commands.len(), 1, "{commands:?}");
        let left: Vec<LvName> =
            volumes.inventory().groups[&path("x").group].volumes.keys().cloned().collect();
        assert_eq!(left, [path("stays").volume]);
        assert!(lock(&volumes.leaving).is_empty());
    }

    #[test]
    fn one_that_cannot_go_keeps_no_other() {
        let (host, volumes) = host(&["a", "b", "c"]);
        host.keep_volume(path("b"));
        let removed = remove_at_once(&volumes, &["a", "b", "c"]);
        assert!(removed[0].is_ok() && removed[2].is_ok(), "{removed:?}");
        assert!(matches!(&removed[1], Err(Error::Lvm(Failure::InUse(_)))), "{removed:?}");
        let left: Vec<LvName> =
            volumes.inventory().groups[&path("x").group].volumes.keys().cloned().collect();
        assert_eq!(left, [path("b").volume]);
        let together = removals(&host).iter().filter(|command| command.matches(" vg/").count() > 1).count();
        assert_eq!(together, 1, "{:?}", removals(&host));
    }

    #[test]
    fn a_volume_stays_while_it_is_published_or_that_cannot_be_seen() {
        let (host, volumes) = host(&["a"]);
        for (published, goes) in [
            (Err(io::ErrorKind::PermissionDenied), false),
            (Ok(Some("/there".into())), false),
            (Ok(None), true),
        ] {
            host.publish(published);
            let removed = volumes.remove(&path("a"), None);
            assert_eq!(removed.is_ok(), goes, "{removed:?}");
            assert_eq!(volumes.inventory().volume(&path("a")).is_none(), goes);
        }
    }

    #[test]
    fn one_that_is_published_meanwhile_does_not_go_alone() {
        let (host, volumes) = host(&["a", "b"]);
        host.keep_volume(path("b"));
        host.publish_after_failure("/there".into());
        let removed = remove_at_once(&volumes, &["a", "b"]);
        let published =
            |removed: &Result<(), Error>| matches!(removed, Err(Error::Refused(Refusal::Published { .. })));
        assert!(removed.iter().all(published), "{removed:?}");
        assert!(volumes.inventory().volume(&path("a")).is_some());
    }
}
