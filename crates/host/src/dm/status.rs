//! What targets say of themselves, in the kernel's words.

use std::collections::BTreeSet;
use std::fmt;

use super::Target;

/// How full something is, in units of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fill {
    /// Taken.
    pub used: u64,
    /// All.
    pub total: u64,
}

impl Fill {
    /// In percent.
    pub fn percent(self) -> f64 {
        if self.total == 0 { 0.0 } else { self.used as f64 * 100.0 / self.total as f64 }
    }

    fn parse(text: &str) -> Option<Fill> {
        let (used, total) = text.split_once('/')?;
        Some(Fill { used: used.parse().ok()?, total: total.parse().ok()? })
    }
}

/// The state of a thin pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// It works.
    Good,
    /// Its data is full: writes that need more wait or fail.
    OutOfData,
    /// It can only be read: its metadata is full or damaged.
    ReadOnly,
    /// It does not work at all.
    Failed,
}

/// What a `thin-pool` target says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Chunks of data.
    pub data: Fill,
    /// Blocks of metadata.
    pub metadata: Fill,
    /// Its state.
    pub state: PoolState,
    /// Whether its metadata must be checked before it is used again.
    pub needs_check: bool,
}

/// What a `snapshot` target says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cow {
    /// Sectors of its store.
    Valid(Fill),
    /// It overflowed or was damaged, and its bytes are lost.
    Invalid,
}

/// What a `raid` target says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raid {
    /// `raid1`, `raid10`, `raid5_ls`, …
    pub level: String,
    /// One letter per image: `A` alive and in sync, `a` alive and not in sync, `D` dead.
    pub health: String,
    /// How much is in sync.
    pub sync: Fill,
    /// `idle`, `resync`, `recover`, …
    pub action: String,
}

impl fmt::Display for Raid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "images {}, {}", self.health, self.action)?;
        if self.is_in_sync() { Ok(()) } else { write!(out, " {:.0} %", self.sync.percent().floor()) }
    }
}

impl Raid {
    /// Whether all images have the same bytes.
    pub fn is_in_sync(&self) -> bool {
        self.sync.used >= self.sync.total
    }

    /// Whether it has lost an image.
    pub fn is_degraded(&self) -> bool {
        self.health.contains('D')
    }

    /// Whether its images are just compared, or made to agree.
    pub fn is_at_work(&self) -> bool {
        self.action != "idle"
    }

    /// Whether it works without these images, and without those that are dead.
    pub fn works_without(&self, lost: &BTreeSet<usize>) -> bool {
        let dead = |(image, health)| health == 'D' || lost.contains(&image);
        let dead: Vec<bool> = self.health.chars().enumerate().map(dead).collect();
        let count = dead.iter().filter(|dead| **dead).count();
        match self.level.as_str() {
            "raid1" => count < dead.len(),
            // As LVM makes it: each image has the one beside it as its copy.
            "raid10" => dead.chunks(2).all(|copies| copies.contains(&false)),
            level if level.starts_with("raid6") => count <= 2,
            level if level.starts_with("raid4") || level.starts_with("raid5") => count <= 1,
            _ => count == 0,
        }
    }
}

impl Target {
    /// The state of a thin pool.
    pub fn pool(&self) -> Option<Pool> {
        if self.kind != "thin-pool" {
            return None;
        }
        let words: Vec<&str> = self.status.split_whitespace().collect();
        if matches!(words.as_slice(), ["Fail" | "Error"]) {
            let none = Fill::default();
            return Some(Pool { data: none, metadata: none, state: PoolState::Failed, needs_check: true });
        }
        let state = match *words.get(4)? {
            "rw" => PoolState::Good,
            "out_of_data_space" => PoolState::OutOfData,
            _ => PoolState::ReadOnly,
        };
        Some(Pool {
            metadata: Fill::parse(words.get(1)?)?,
            data: Fill::parse(words.get(2)?)?,
            state,
            needs_check: words.contains(&"needs_check"),
        })
    }

    /// The state of a copy-on-write snapshot.
    pub fn cow(&self) -> Option<Cow> {
        if self.kind != "snapshot" {
            return None;
        }
        let fill = self.status.split_whitespace().next().and_then(Fill::parse);
        Some(fill.map_or(Cow::Invalid, Cow::Valid))
    }

    /// The state of RAID.
    pub fn raid(&self) -> Option<Raid> {
        if self.kind != "raid" {
            return None;
        }
        let words: Vec<&str> = self.status.split_whitespace().collect();
        Some(Raid {
            level: (*words.first()?).to_owned(),
            health: (*words.get(2)?).to_owned(),
            sync: Fill::parse(words.get(3)?)?,
            action: words.get(4).copied().unwrap_or("idle").to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(kind: &str, status: &str) -> Target {
        Target { kind: kind.into(), sectors: 0, status: status.into() }
    }

    #[test]
    fn a_pool_says_how_full_it_is_and_whether_it_works() {
        let status = "1 12/1024 0/5120 - rw discard_passdown queue_if_no_space - 1024 ";
        let pool = target("thin-pool", status).pool().unwrap();
        assert_eq!(
            (pool.metadata, pool.data),
            (Fill { used: 12, total: 1024 }, Fill { used: 0, total: 5120 })
        );
        assert_eq!((pool.state, pool.needs_check), (PoolState::Good, false));
        let full = "1 12/1024 5120/5120 - out_of_data_space discard_passdown error_if_no_space - 1024 ";
        assert_eq!(target("thin-pool", full).pool().unwrap().state, PoolState::OutOfData);
        let damaged = "1 1024/1024 7/5120 - ro discard_passdown queue_if_no_space needs_check 1024 ";
        let damaged = target("thin-pool", damaged).pool().unwrap();
        assert_eq!((damaged.state, damaged.needs_check), (PoolState::ReadOnly, true));
        assert_eq!(target("thin-pool", "Fail").pool().unwrap().state, PoolState::Failed);
    }

    #[test]
    fn a_snapshot_that_overflowed_is_invalid() {
        assert_eq!(target("snapshot", "16/8192 16").cow(), Some(Cow::Valid(Fill { used: 16, total: 8192 })));
        for status in ["Invalid", "Overflow", "Merge failed"] {
            assert_eq!(target("snapshot", status).cow(), Some(Cow::Invalid));
        }
    }

    #[test]
    fn raid_says_which_images_live() {
        let raid = target("raid", "raid1 2 AD 40960/40960 idle 0 0 -").raid().unwrap();
        assert_eq!((raid.health.as_str(), raid.action.as_str()), ("AD", "idle"));
        assert_eq!((raid.to_string().as_str(), raid.is_at_work()), ("images AD, idle", false));
        let raid = target("raid", "raid1 2 Aa 40959/40960 recover 0 0 -").raid().unwrap();
        assert_eq!((raid.to_string().as_str(), raid.is_in_sync()), ("images Aa, recover 99 %", false));
        assert!(raid.is_at_work());
        assert_eq!(target("linear", "").raid(), None);
    }

    #[test]
    fn raid_works_without_as_many_images_as_its_level_has_to_spare() {
        let works = |status: &str, lost: &[usize]| {
            let raid = target("raid", status).raid().unwrap();
            raid.works_without(&lost.iter().copied().collect())
        };
        assert!(works("raid1 2 AA 8/8 idle 0 0 -", &[0]) && !works("raid1 2 AA 8/8 idle 0 0 -", &[0, 1]));
        assert!(works("raid1 2 DA 8/8 idle 0 0 -", &[0]) && !works("raid1 2 DA 8/8 idle 0 0 -", &[1]));
        assert!(
            works("raid10 4 AAAA 8/8 idle 0 0 -", &[0, 3]) && !works("raid10 4 AAAA 8/8 idle 0 0 -", &[0, 1])
        );
        assert!(
            works("raid5_ls 3 AAA 8/8 idle 0 0 -", &[1]) && !works("raid5_ls 3 ADA 8/8 idle 0 0 -", &[0])
        );
        assert!(
            works("raid6_zr 5 AAAAA 8/8 idle 0 0 -", &[1, 4])
                && !works("raid6_zr 5 DAAAA 8/8 idle 0 0 -", &[1, 4])
        );
        assert!(works("raid0 2 AA 8/8 idle 0 0 -", &[]) && !works("raid0 2 AA 8/8 idle 0 0 -", &[1]));
    }

    proptest! {
        #[test]
        fn whatever_a_target_says_nothing_panics(status in "\\PC{0,80}", kind in "thin-pool|snapshot|raid") {
            let target = target(&kind, &status);
            let _ = (target.pool(), target.cow(), target.raid());
        }
    }
}
