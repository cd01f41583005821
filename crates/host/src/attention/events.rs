//! The kernel's events of block devices, and device-mapper's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::dm::Control;

/// Events come in swarms: after the first one, others are awaited this long.
const SWARM: Duration = Duration::from_millis(200);

/// A swarm that does not end is cut here.
const LONGEST: Duration = Duration::from_secs(2);

/// From now on they are kept until they are heard.
pub(super) fn listen() -> io::Result<OwnedFd> {
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
pub(super) fn heard(events: &OwnedFd, devices: Option<&Control>, limit: Duration) -> io::Result<bool> {
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
            let last = *swarm.get_or_insert(now + LONGEST);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, send, socketpair};
    use std::sync::Arc;
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
