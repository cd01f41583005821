//! What happens without us: others change a group, pools and snapshots fill, disks of RAID fail.
//!
//! One thread listens to the kernel's events of block devices and to device-mapper's. After some it looks at the groups'
//! sequence numbers; only a group that has really changed costs a report. Device-mapper tells of a pool that is out of
//! room and of RAID that has lost a disk, but of a copy-on-write snapshot only when it is lost: while there are such,
//! their fill is looked at by ioctl, and a store is extended long before it is full.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::desired::{ClassKind, Desired, DeviceClass};
use crate::dm::{Control, Cow, PoolState, Target};
use crate::lvm::inventory::Kind;
use crate::names::{VgName, VolumePath};
use crate::plan::volume::FULL_ENOUGH;
use crate::runner::{Linux, Runner};
use crate::volumes::Volumes;

/// Events come in swarms: after the first one, others are awaited this long.
const SWARM: Duration = Duration::from_millis(200);

/// How often stores are looked at while there are any.
const WHILE_FILLING: Duration = Duration::from_secs(2);

/// So often is looked after events: LVM removes a device before it writes that the volume is gone.
const AFTERWARDS: u32 = 5;

/// How often sequence numbers are read though nothing was heard: where no udev runs, a change of metadata alone is
/// silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Follows what happens, in a thread of its own, for ever. `desired` tells which groups concern us.
pub fn follow(
    volumes: &Arc<Volumes<Linux>>,
    desired: impl Fn() -> Arc<Desired> + Send + 'static,
) -> io::Result<()> {
    let events = listen()?;
    // A kernel without device-mapper has no volumes yet, and tells of the first by its other events.
    let mut devices = volumes.runner().control().ok();
    let volumes = Arc::clone(volumes);
    std::thread::Builder::new().name("attention".into()).spawn(move || {
        let (mut afterwards, mut lost, mut unseen) = (0, BTreeSet::new(), BTreeMap::new());
        let mut states = states(&volumes);
        loop {
            let quiet = afterwards == 0 && stores(&volumes).is_empty();
            match heard(&events, devices.as_ref(), if quiet { SILENCE } else { WHILE_FILLING }) {
                Ok(true) => afterwards = AFTERWARDS,
                Ok(false) => afterwards = afterwards.saturating_sub(1),
                Err(error) => {
                    tracing::warn!(%error, "the kernel's events cannot be heard: groups are looked at now and then");
                    std::thread::sleep(WHILE_FILLING);
                }
            }
            let desired = desired();
            let looked = volumes.runner().together(|| {
                if devices.is_none() {
                    devices = volumes.runner().control().ok();
                }
                look_at_groups(&volumes, &desired, &mut unseen);
                tell_states(&volumes, &mut states);
                extend_stores(&volumes, &desired, &mut lost);
            });
            if let Err(error) = looked {
                tracing::warn!(%error, "the host's files are out of reach: groups are not looked at");
            }
        }
    })?;
    Ok(())
}

/// Looks whether others have changed a group. Why it cannot be looked at is told once, and again when it is another
/// reason.
fn look_at_groups(volumes: &Volumes<Linux>, desired: &Desired, unseen: &mut BTreeMap<VgName, String>) {
    for group in desired.groups() {
        match volumes.look_in_turn(group) {
            Ok(()) => drop(unseen.remove(group)),
            Err(error) => {
                let reason = error.to_string();
                if unseen.get(group) != Some(&reason) {
                    tracing::warn!(group = %group, %error, "a volume group cannot be looked at");
                    unseen.insert(group.clone(), reason);
                }
            }
        }
    }
}

fn listen() -> io::Result<OwnedFd> {
    /// The kernel's own events; those of udev are another group.
    const KERNEL: u32 = 1;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::KOBJECT_UEVENT);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
    Ok(socket)
}

/// Waits for events of block devices, until they are over or the time is; says whether there were any. Others do not
/// make the wait longer.
fn heard(events: &OwnedFd, devices: Option<&Control>, limit: Duration) -> io::Result<bool> {
    let (mut end, mut swarm) = (Instant::now() + limit, None);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut waiting = vec![PollFd::new(events, PollFlags::IN)];
        waiting.extend(devices.map(|devices| PollFd::from_borrowed_fd(devices.as_fd(), PollFlags::IN)));
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => return Ok(swarm.is_some()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = waiting.get(1).is_some_and(|devices| devices.revents().contains(PollFlags::IN));
        if let Some(devices) = devices.filter(|_| happened) {
            devices.arm()?;
        }
        if drain(events)? || happened {
            let now = Instant::now();
            let last = *swarm.get_or_insert(now + WHILE_FILLING);
            end = last.min(now + SWARM);
        }
    }
}

/// Takes all events; says whether one was of a block device.
fn drain(events: &OwnedFd) -> io::Result<bool> {
    let mut block = false;
    let mut buffer = [0; 8192];
    loop {
        match recv(events, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => {
                let mut words = buffer[..length.min(8192)].split(|byte| *byte == 0);
                block |= words.any(|word| word == b"SUBSYSTEM=block");
            }
            Err(Errno::AGAIN) => return Ok(block),
            // Some were lost: something has happened.
            Err(Errno::NOBUFS) => block = true,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// How pools and RAID volumes are: LVM's metadata says nothing of it.
fn states(volumes: &Volumes<Linux>) -> BTreeMap<VolumePath, State> {
    let (inventory, runner) = (volumes.inventory(), volumes.runner());
    let mut states = BTreeMap::new();
    for group in inventory.groups.values() {
        for volume in group.volumes.values() {
            let path = group.path(&volume.name);
            let state = match &volume.kind {
                Kind::Pool { .. } => runner.pool(&path).ok().flatten().map(|pool| State {
                    is_good: pool.state == PoolState::Good && !pool.needs_check,
                    told: format!(
                        "pool {:?}, data {:.0} %, metadata {:.0} %",
                        pool.state,
                        pool.data.percent(),
                        pool.metadata.percent()
                    ),
                }),
                Kind::Thick(layout) if layout.segment.starts_with("raid") => {
                    let device = runner.device(&path.mapper_name()).ok().flatten();
                    let raid = device.and_then(|device| device.targets.iter().find_map(Target::raid));
                    raid.map(|raid| State {
                        is_good: !raid.health.contains('D'),
                        told: format!("RAID images {}, {}", raid.health, raid.action),
                    })
                }
                Kind::Thick(_) | Kind::Thin { .. } | Kind::Cow { .. } | Kind::Other(_) => None,
            };
            states.extend(state.map(|state| (path, state)));
        }
    }
    states
}

/// How a pool or a RAID volume is.
#[derive(Debug, PartialEq, Eq)]
struct State {
    is_good: bool,
    told: String,
}

/// Tells whoever watches when such a state has become another.
fn tell_states(volumes: &Volumes<Linux>, before: &mut BTreeMap<VolumePath, State>) {
    let now = states(volumes);
    if now == *before {
        return;
    }
    for (volume, state) in &now {
        match before.get(volume) {
            Some(before) if before.is_good && !state.is_good => {
                tracing::error!(volume = %volume, state = state.told, "is not well any more");
            }
            Some(before) if !before.is_good && state.is_good => {
                tracing::info!(volume = %volume, state = state.told, "is well again");
            }
            _ => {}
        }
    }
    *before = now;
    volumes.tell_all();
}

/// Copy-on-write snapshots that are active.
fn stores(volumes: &Volumes<Linux>) -> Vec<VolumePath> {
    let inventory = volumes.inventory();
    let groups = inventory.groups.values();
    let snapshots = groups.flat_map(|group| {
        let cows =
            group.volumes.values().filter(|volume| volume.active && matches!(volume.kind, Kind::Cow { .. }));
        cows.map(|volume| group.path(&volume.name)).collect::<Vec<_>>()
    });
    snapshots.collect()
}

/// Extends stores that are full enough. What cannot be helped is added to `lost` and told once.
fn extend_stores(
    volumes: &Arc<Volumes<Linux>>,
    desired: &Desired,
    lost: &mut BTreeSet<(VolumePath, &'static str)>,
) {
    let stores = stores(volumes);
    lost.retain(|(snapshot, _)| stores.contains(snapshot));
    for snapshot in stores {
        let thick =
            |class: &&DeviceClass| matches!(class.kind, ClassKind::Thick) && class.group == snapshot.group;
        if !desired.classes.iter().any(|class| thick(&class)) {
            continue;
        }
        match volumes.runner().cow(&snapshot) {
            Ok(Some(Cow::Valid(fill))) if fill.percent() >= FULL_ENOUGH => {
                match volumes.extend_store(&snapshot) {
                    Ok(()) => {
                        tracing::info!(snapshot = %snapshot, percent = fill.percent(), "a snapshot's store was extended");
                    }
                    Err(error) if lost.insert((snapshot.clone(), "full")) => {
                        tracing::error!(snapshot = %snapshot, %error, "a snapshot's store cannot be extended: it will be lost");
                    }
                    Err(_) => {}
                }
            }
            Ok(Some(Cow::Invalid)) if lost.insert((snapshot.clone(), "overflowed")) => {
                tracing::error!(snapshot = %snapshot, "a snapshot has overflowed and is lost");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(snapshot = %snapshot, %error, "a snapshot cannot be looked at"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, send, socketpair};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Whether events were heard, and whether that was known while they still came, without end.
    fn heard_in_a_stream_of(event: &'static [u8]) -> (bool, bool) {
        let (events, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stopped, gave_up) = (Arc::clone(&stop), Arc::clone(&ended));
        let stream = std::thread::spawn(move || {
            for _ in 0..6000 {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let _ = send(&kernel, event, SendFlags::empty());
                std::thread::sleep(Duration::from_millis(5));
            }
            gave_up.store(true, Ordering::Relaxed);
        });
        let heard = heard(&events, None, SWARM).unwrap();
        let still_coming = !ended.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        stream.join().unwrap();
        (heard, still_coming)
    }

    #[test]
    fn events_of_others_do_not_make_the_wait_longer() {
        assert_eq!(heard_in_a_stream_of(b"add@/devices/virtual/net/x\0SUBSYSTEM=net\0"), (false, true));
    }

    #[test]
    fn a_swarm_that_does_not_end_is_looked_at_all_the_same() {
        assert_eq!(heard_in_a_stream_of(b"change@/block/dm-0\0SUBSYSTEM=block\0"), (true, true));
    }
}
