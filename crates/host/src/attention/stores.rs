//! How stores of copy-on-write snapshots fill: when one is extended, by how much, and when it is looked at again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::WHILE_FILLING;
use crate::dm::Fill;
use crate::names::VolumePath;
use crate::units::Bytes;

/// A store that is so full is extended, in percent.
const FULL_ENOUGH: f64 = 70.0;

/// So is one that will be full in this time.
const SOON: Duration = Duration::from_secs(4);

/// By what is written in this time.
const AHEAD: Duration = Duration::from_secs(10);

/// However slowly something was written, from now on it may be as fast as this, in bytes per second.
const FAST: f64 = (1 << 30) as f64;

/// What fills is not looked at more often.
const SHORTEST: Duration = Duration::from_millis(50);

/// What was seen of a store last.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    used: u64,
    again: Duration,
}

/// What is to be done about a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// It is extended by at least this.
    pub(super) extend_by: Option<Bytes>,
    /// When it is looked at again, if that is sooner than all are.
    pub(super) again: Option<Duration>,
}

/// Stores, and how they were.
#[derive(Debug, Default)]
pub(super) struct Stores(BTreeMap<VolumePath, Seen>);

impl Stores {
    pub(super) fn retain(&mut self, present: &[VolumePath]) {
        self.0.retain(|snapshot, _| present.contains(snapshot));
    }

    /// What follows from how full one is now.
    pub(super) fn see(&mut self, snapshot: &VolumePath, fill: Fill, now: Instant) -> Next {
        const SECTOR: f64 = 512.0;
        let before = self.0.get(snapshot).copied();
        let left = fill.total.saturating_sub(fill.used) as f64 * SECTOR;
        let written = before.map_or(0, |before| fill.used.saturating_sub(before.used)) as f64 * SECTOR;
        let lasted = before.map_or(SHORTEST, |before| now.duration_since(before.at)).max(SHORTEST / 10);
        let rate = written / lasted.as_secs_f64();
        let again = match before {
            // Who writes in bursts has pauses between them.
            Some(before) if written == 0.0 => before.again * 2,
            _ => Duration::from_secs_f64(left / rate.max(FAST) / 2.0),
        };
        let again = again.clamp(SHORTEST, WHILE_FILLING);
        self.0.insert(snapshot.clone(), Seen { at: now, used: fill.used, again });
        let is_due = fill.percent() >= FULL_ENOUGH || left < rate * SOON.as_secs_f64();
        // Less than a disk has, and never negative.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ahead = Bytes((rate * AHEAD.as_secs_f64()) as u64);
        Next { extend_by: is_due.then_some(ahead), again: (again < WHILE_FILLING).then_some(again) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{LvName, VgName};

    /// Sectors of a mebibyte.
    const MIB: u64 = 2048;

    fn path() -> VolumePath {
        VolumePath { group: VgName::parse("vg").unwrap(), volume: LvName::parse("s").unwrap() }
    }

    fn fill(used: u64, total: u64) -> Fill {
        Fill { used: used * MIB, total: total * MIB }
    }

    /// Looks as told, until the time is over, at a store into which so much is written each second from a moment on;
    /// extending takes a while. Says whether it has overflowed, and how often was looked.
    fn watch(store: u64, rate: u64, from: Duration, until: Duration) -> (bool, usize) {
        let (begin, mut stores, mut total) = (Instant::now(), Stores::default(), store);
        let (mut now, mut looks) = (Duration::ZERO, 0);
        while now < until {
            let used =
                |now: Duration| rate * u64::try_from(now.saturating_sub(from).as_millis()).unwrap() / 1000;
            if used(now) > total {
                return (true, looks);
            }
            let next = stores.see(&path(), fill(used(now), total), begin + now);
            looks += 1;
            if let Some(by) = next.extend_by {
                now += Duration::from_millis(300);
                if used(now) > total {
                    return (true, looks);
                }
                total += (by.0 >> 20).max(store);
            }
            now += next.again.unwrap_or(WHILE_FILLING);
        }
        (false, looks)
    }

    #[test]
    fn a_store_that_fills_is_extended_before_it_overflows_however_fast_a_disk_is() {
        for (store, rate) in [(40, 5), (40, 10), (2048, 100), (2048, 500), (2048, 900), (20480, 2000)] {
            for offset in 0..20 {
                let from = Duration::from_millis(500 + 200 * offset);
                let (overflowed, _) = watch(store, rate, from, Duration::from_secs(60));
                assert!(!overflowed, "{store} MiB at {rate} MiB/s from {from:?}");
            }
        }
    }

    #[test]
    fn a_store_into_which_nothing_is_written_is_looked_at_as_seldom_as_all() {
        let hour = Duration::from_secs(3600);
        let (_, looks) = watch(40, 0, Duration::ZERO, hour);
        assert!(looks <= 1810, "{looks}");
    }

    #[test]
    fn a_pause_between_bursts_is_not_taken_for_the_end() {
        let (mut stores, begin) = (Stores::default(), Instant::now());
        let mut see =
            |used, at| stores.see(&path(), fill(used, 400), begin + Duration::from_millis(at)).again;
        let millis = |millis| Some(Duration::from_millis(millis));
        see(0, 0);
        assert_eq!(see(200, 100), millis(50));
        for (at, again) in [(200, 100), (300, 200), (500, 400), (900, 800), (1700, 1600)] {
            assert_eq!(see(200, at), millis(again));
        }
        assert_eq!(see(200, 3300), None);
    }

    #[test]
    fn a_store_is_extended_by_what_will_be_written_soon() {
        let (mut stores, begin) = (Stores::default(), Instant::now());
        let mut see =
            |used, at| stores.see(&path(), fill(used, 1000), begin + Duration::from_secs(at)).extend_by;
        assert_eq!(see(0, 0), None);
        assert_eq!(see(100, 1), None);
        assert_eq!(see(600, 2), Some(Bytes::mib(5000)));
        assert_eq!(see(699, 100), None);
        assert_eq!(see(700, 200), Some(Bytes((1 << 20) / 10)));
    }
}
