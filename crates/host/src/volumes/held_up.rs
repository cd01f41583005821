//! Groups that a command holds up: told with what it has suspended, and let go on when it has ended.

use std::sync::Arc;
use std::time::Instant;

use super::{Volumes, lock};
use crate::names::VgName;
use crate::queue::{NoTurn, Queue, Stuck, Turn};
use crate::runner::{Following, Runner};

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

    /// Lets a group go on when the command that held it up has ended.
    pub(super) fn wait_for(self: &Arc<Self>, group: VgName, queue: Arc<Queue>, rest: Box<Following>) {
        let volumes = Arc::clone(self);
        std::thread::spawn(move || {
            let ended = rest.to_the_end();
            let ended = ended.map(|finished| finished.status);
            tracing::warn!(group = %group, ?ended, "the command that did not end has ended");
            if let Err(error) = volumes.runner.recover(&group) {
                tracing::warn!(group = %group, %error, "suspended devices could not be looked for");
            }
            volumes.forget(&group);
            // What it has written came after whatever its disks were asked to keep meanwhile.
            lock(&volumes.written).entry(group).or_default().changes += 1;
            queue.go_on();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::history::{Class, device_class};
    use crate::simulated::{Simulated, group};
    use crate::units::Bytes;

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
