//! Whether there is room for more, in a group and in the area of its metadata.

use std::time::{Duration, Instant};

use super::{Error, Volumes};
use crate::lvm::{Change, Group};
use crate::names::VgName;
use crate::plan::capacity::most_text;
use crate::runner::Runner;

/// How long its text has become only LVM knows: after a change of ours, what is free at least is known.
pub(super) fn take(group: &mut Group, before: &Group, change: &Change) {
    group.metadata.1 = group.metadata.1.minus(most_text(before, change));
    group.measured = false;
}

impl<R: Runner> Volumes<R> {
    /// Whether LVM may tell of more room in a group than is known: nothing is refused before it was asked.
    pub(super) fn may_have_room(&self, group: &VgName) -> bool {
        self.inventory().groups.get(group).is_some_and(|group| !group.measured)
    }

    /// Looks at a group with its places. Says whether it could.
    pub(super) fn look_for_room(&self, group: &VgName) -> bool {
        let looked = self.look_for_places(group);
        if let Err(error) = &looked {
            tracing::warn!(group = %group, %error, "a volume group cannot be looked at");
        }
        looked.is_ok()
    }

    fn look_for_places(&self, group: &VgName) -> Result<(), Error> {
        /// Whoever asks for room asks again: many of them that wait must not keep others from being answered.
        const PATIENCE: Duration = Duration::from_secs(10);
        let queue = self.queue(group);
        let _turn = self.turn(&queue, group, Some(Instant::now() + PATIENCE))?;
        self.look_at(group, true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::Refusal;
    use crate::simulated::history::{Act, Class, device_class, path, perform};
    use crate::simulated::{Simulated, group};
    use crate::units::Bytes;

    fn host(room: Bytes) -> (Arc<Simulated>, Arc<Volumes<Simulated>>) {
        let host = Arc::new(Simulated::new(group(&[100])));
        host.leave_room(room);
        let volumes = Volumes::open(Arc::clone(&host), &[]).unwrap();
        (host, volumes)
    }

    fn create(volumes: &Arc<Volumes<Simulated>>, volume: u8) -> Result<(), Error> {
        perform(&Act::Create { volume, class: Class::Linear, extents: 1, block: false }, volumes)
    }

    fn is_full(refused: &Error) -> bool {
        matches!(refused, Error::Refused(Refusal::MetadataFull(_)))
    }

    #[test]
    fn metadata_that_may_be_full_is_looked_at_and_refuses_nothing_by_itself() {
        let (host, volumes) = host(Bytes::kib(20));
        let class = device_class(Class::Linear);
        let before = host.reports();
        for volume in 0..5 {
            create(&volumes, volume).unwrap();
            assert_eq!(host.reports(), before, "volume {volume} was not foreseen");
        }
        // Each may have taken a fifth, and has not.
        create(&volumes, 5).unwrap();
        assert_eq!(host.reports(), before + 1);
        for volume in 6..10 {
            create(&volumes, volume).unwrap();
        }
        assert_eq!(host.reports(), before + 1);
        assert!(volumes.capacity(&class, &[]).unwrap() > Bytes::ZERO);
        assert_eq!(host.reports(), before + 2);
    }

    #[test]
    fn metadata_that_is_full_is_told_and_looked_at_once_after_each_change() {
        let (host, volumes) = host(Bytes::kib(8));
        let class = device_class(Class::Linear);
        let before = host.reports();
        create(&volumes, 0).unwrap();
        create(&volumes, 1).unwrap();
        host.leave_room(Bytes::kib(3));
        assert_eq!(host.reports(), before);
        for _ in 0..3 {
            assert!(matches!(volumes.capacity(&class, &[]), Err(Refusal::MetadataFull(_))));
            let refused = create(&volumes, 2).unwrap_err();
            assert!(is_full(&refused), "{refused}");
        }
        assert_eq!(host.reports(), before + 1);
        // What is removed makes room, how much LVM knows.
        volumes.remove(&path(0), None).unwrap();
        assert!(is_full(&create(&volumes, 2).unwrap_err()));
        assert!(volumes.capacity(&class, &[]).is_err());
        assert_eq!(host.reports(), before + 2);
        volumes.remove(&path(1), None).unwrap();
        host.leave_room(Bytes::kib(4));
        assert!(volumes.capacity(&class, &[]).unwrap() > Bytes::ZERO);
        create(&volumes, 2).unwrap();
        assert_eq!(host.reports(), before + 3);
    }

    #[test]
    fn what_is_noted_of_volumes_takes_room_too() {
        let (host, volumes) = host(Bytes::kib(12));
        create(&volumes, 0).unwrap();
        let room = || volumes.inventory().groups[&path(0).group].metadata.1;
        assert_eq!(room(), Bytes::kib(8));
        volumes.note(&path(0), None, |facts| facts.used = true).unwrap();
        assert!(room() < Bytes::kib(8) && room() > Bytes::kib(7), "{}", room());
        volumes.activate(&path(0), None).unwrap();
        let noted = room();
        volumes.forget(&path(0).group);
        volumes.look(&path(0).group).unwrap();
        assert!(noted < room() && room() == Bytes::kib(12) && host.reports() > 0);
    }
}
