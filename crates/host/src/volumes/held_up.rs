//! Groups that a command holds up: told with what it has suspended, and let go on when it has ended.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::{Error, Volumes, lock};
use crate::lvm::{Change, Failure};
use crate::names::{VgName, VolumePath};
use crate::queue::{NoTurn, Queue, Stuck, Turn};
use crate::runner::{AtWork, Runner};

impl<R: Runner> Volumes<R> {
    /// What holds a group up.
    pub fn stuck(&self, group: &VgName) -> Option<Stuck> {
        let stuck = lock(&self.queues).get(group).and_then(|queue| queue.stuck());
        stuck.map(|stuck| self.with_suspended(group, stuck))
    }

    /// Which devices are suspended may change while a command hangs: it is looked at when it is told.
    pub(super) fn with_suspended(&self, group: &VgName, stuck: Stuck) -> Stuck {
        let suspended = self.runner.suspended(group).unwrap_or_default();
        Stuck { suspended, ..stuck }
    }

    pub(super) fn turn<'a>(
        &self,
        queue: &'a Queue,
        group: &VgName,
        deadline: Option<Instant>,
    ) -> Result<Turn<'a>, NoTurn> {
        queue.turn(deadline).map_err(|reason| match reason {
            NoTurn::Stuck(stuck) => NoTurn::Stuck(self.with_suspended(group, stuck)),
            NoTurn::TooLate => NoTurn::TooLate,
        })
    }

    /// Runs one command in its group's turn. One that does not end holds the group up.
    pub(super) fn command(self: &Arc<Self>, queue: &Arc<Queue>, change: &Change) -> Result<(), Error> {
        let group = change.path().group;
        match self.runner.change(change) {
            Err(Failure::Stuck { pid, program, limit, rest }) => {
                tracing::error!(group = %group, pid, program, "a command does not end: its volume group waits for it");
                let stuck = Stuck {
                    pid,
                    program: format!("{program} (for more than {} s)", limit.as_secs()),
                    suspended: Vec::new(),
                };
                queue.stop(stuck.clone());
                self.wait_for(group.clone(), Arc::clone(queue), || rest.to_the_end().map(|done| done.status));
                Err(NoTurn::Stuck(self.with_suspended(&group, stuck)).into())
            }
            done => Ok(done?),
        }
    }

    /// Lets go on what a killed command has left suspended, in the group's turn.
    pub(super) fn recover(self: &Arc<Self>, queue: &Arc<Queue>, group: &VgName) -> Result<(), NoTurn> {
        self.refresh(queue, group, resume(&*self.runner, group))
    }

    /// Brings volumes that were resumed as they had been to what LVM's metadata says, and those that had to wait.
    pub(super) fn refresh(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        group: &VgName,
        resumed: Vec<VolumePath>,
    ) -> Result<(), NoTurn> {
        lock(&self.unrefreshed).extend(resumed);
        let next = || {
            let mut unrefreshed = lock(&self.unrefreshed);
            let path = unrefreshed.iter().find(|path| path.group == *group)?.clone();
            unrefreshed.take(&path)
        };
        while let Some(path) = next() {
            match self.command(queue, &Change::Refresh { path: path.clone() }) {
                Err(Error::NoTurn(reason)) => return Err(reason),
                Err(error) => {
                    tracing::warn!(volume = %path, %error, "a volume that was suspended cannot be refreshed");
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Brings the devices of a RAID volume to disks that were pulled out and are back, under whoever uses it: what they
    /// have missed is copied to them.
    pub(crate) fn bring_back(self: &Arc<Self>, path: &VolumePath) -> Result<(), Error> {
        let queue = self.queue(&path.group);
        let _turn = self.turn(&queue, &path.group, None)?;
        self.change(&queue, &Change::Refresh { path: path.clone() })
    }

    /// A group at which nobody could look waits for the command that is at work in it, if there is one.
    pub(super) fn find_what_holds_up(self: &Arc<Self>, group: &VgName) {
        match self.runner.at_work(group) {
            Ok(Some(command)) => self.hold_up(group, command),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(group = %group, %error, "whether a command is at work in it cannot be seen");
            }
        }
    }

    fn hold_up(self: &Arc<Self>, group: &VgName, command: AtWork) {
        let AtWork { pid, program, .. } = &command;
        tracing::error!(group = %group, pid, program, "a command does not end: its volume group waits for it");
        let queue = self.queue(group);
        queue.stop(Stuck { pid: *pid, program: program.clone(), suspended: Vec::new() });
        let told = self.stuck(group).map(|stuck| stuck.to_string()).unwrap_or_default();
        self.known.send_modify(|inventory| {
            Arc::make_mut(inventory).unseen.insert(group.clone(), told);
        });
        self.wait_for(group.clone(), queue, move || command.await_end());
    }

    /// Lets a group go on when the command that held it up has ended.
    pub(super) fn wait_for<E: Debug>(
        self: &Arc<Self>,
        group: VgName,
        queue: Arc<Queue>,
        to_the_end: impl FnOnce() -> io::Result<E> + Send + 'static,
    ) {
        let (volumes, span) = (Arc::clone(self), tracing::Span::current());
        std::thread::spawn(move || {
            let _of_the_operation = span.enter();
            let ended = to_the_end();
            tracing::warn!(group = %group, ?ended, "the command that did not end has ended");
            volumes.forget(&group);
            // What it has written came after whatever its disks were asked to keep meanwhile.
            lock(&volumes.written).entry(group.clone()).or_default().changes += 1;
            // A refresh that does not end is waited for in its turn.
            if volumes.recover(&queue, &group).is_ok() {
                queue.go_on();
            }
        });
    }
}

/// Lets suspended devices of a group go on, as far as they can be looked for.
pub(super) fn resume<R: Runner>(runner: &R, group: &VgName) -> Vec<VolumePath> {
    runner.recover(group).unwrap_or_else(|error| {
        tracing::warn!(group = %group, %error, "suspended devices could not be looked for");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use tracing::Subscriber;
    use tracing::span::Id;
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    use super::*;
    use crate::runner::{ProcessError, Processes, Program};
    use crate::simulated::history::{Class, device_class, path};
    use crate::simulated::{Simulated, group};
    use crate::units::Bytes;

    #[test]
    fn what_was_left_suspended_is_refreshed_once() {
        let host = Arc::new(Simulated::new(group(&[100])));
        let refreshed =
            || host.history().iter().filter(|act| act.starts_with("lvchange --yes --refresh")).count();
        host.suspend(path(0));
        let volumes = Volumes::open(Arc::clone(&host), &[&path(0).group]).unwrap();
        assert_eq!(refreshed(), 1);
        host.suspend(path(1));
        for _ in 0..2 {
            volumes.look_in_turn(&path(0).group).unwrap();
            assert_eq!(refreshed(), 2);
        }
    }

    /// A command that is past its deadline, and ends soon.
    fn takes_long() -> Failure {
        let started = Processes::here().run(&Program::changes(["sleep", "0.1"], Duration::ZERO));
        let Err(ProcessError::StillRunning { program, pid, limit, rest }) = started else {
            panic!("{started:?} has ended")
        };
        Failure::Stuck { pid, program, limit, rest }
    }

    /// Which threads have entered a span.
    #[derive(Default, Clone)]
    struct Entered(Arc<Mutex<Vec<ThreadId>>>);

    impl<S: Subscriber> Layer<S> for Entered {
        fn on_enter(&self, _: &Id, _: Context<'_, S>) {
            lock(&self.0).push(thread::current().id());
        }
    }

    #[test]
    fn what_is_told_of_a_command_that_ends_late_is_told_of_its_operation() {
        let host = Arc::new(Simulated::new(group(&[100])));
        host.end_with(takes_long());
        host.suspend(path(0));
        let entered = Entered::default();
        let log = tracing_subscriber::registry().with(entered.clone());
        let volumes = tracing::subscriber::with_default(log, || {
            tracing::error_span!("operation").in_scope(|| Volumes::open(host, &[&path(0).group]).unwrap())
        });
        while volumes.stuck(&path(0).group).is_some() {
            thread::yield_now();
        }
        let here = thread::current().id();
        assert!(lock(&entered.0).iter().any(|thread| *thread != here), "nobody waits in it");
    }

    #[test]
    fn all_that_was_left_suspended_is_refreshed_though_one_refresh_takes_long() {
        let host = Arc::new(Simulated::new(group(&[100])));
        host.end_with(takes_long());
        for volume in [0, 1, 2] {
            host.suspend(path(volume));
        }
        let volumes = Volumes::open(Arc::clone(&host), &[&path(0).group]).unwrap();
        while volumes.stuck(&path(0).group).is_some() {
            std::thread::yield_now();
        }
        let refreshed =
            host.history().iter().filter(|act| act.starts_with("lvchange --yes --refresh")).count();
        assert_eq!(refreshed, 2, "and the one that took long");
    }

    #[test]
    fn a_group_that_is_held_up_has_no_capacity() {
        let volumes = Volumes::open(Arc::new(Simulated::new(group(&[100, 100]))), &[]).unwrap();
        let class = device_class(Class::Linear);
        let capacity = || volumes.capacity(&class, &class.options).unwrap();
        let before = capacity();
        assert!(before > Bytes::ZERO);
        let queue = volumes.queue(&class.group);
        queue.stop(Stuck { pid: 7, program: "lvm lvcreate".into(), suspended: Vec::new() });
        assert_eq!(capacity(), Bytes::ZERO);
        queue.go_on();
        assert_eq!(capacity(), before);
    }
}
