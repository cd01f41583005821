//! Histories: what people do to volumes in the course of time, made up from a number.
//!
//! The same history runs on the simulated host and on real LVM; what is there after each act is told by
//! [`summary`] in the same words.

use std::sync::Arc;

use crate::desired::{ClassKind, DeviceClass};
use crate::facts::Facts;
use crate::lvm::inventory::{Inventory, Kind};
use crate::names::{LvName, VgName, VolumePath};
use crate::plan::volume::Wish;
use crate::runner::Runner;
use crate::units::{Bytes, Extents};
use crate::volumes::{Error, Volumes};

/// One act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// A volume is made.
    Create {
        /// Its number.
        volume: u8,
        /// Of which class.
        class: Class,
        /// How large.
        extents: u64,
        /// Whether it is a block device for its user.
        block: bool,
    },
    /// A copy of a volume or snapshot is made.
    Clone {
        /// Its number.
        volume: u8,
        /// Of which class.
        class: Class,
        /// Of which volume.
        source: u8,
        /// By how much it is larger.
        more: u64,
    },
    /// A snapshot is made.
    Snapshot {
        /// Its number.
        volume: u8,
        /// Of which volume.
        source: u8,
    },
    /// A volume grows.
    Grow {
        /// Which.
        volume: u8,
        /// To how much.
        extents: u64,
    },
    /// A volume is removed.
    Remove {
        /// Which.
        volume: u8,
    },
}

/// A class of the histories' group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// One piece.
    Linear,
    /// Over two disks.
    Striped,
    /// On two disks.
    Mirrored,
    /// RAID 5, over three disks.
    Parity,
    /// RAID 6, over five disks.
    DoubleParity,
    /// RAID 10, over four disks.
    MirroredStripes,
    /// In the pool.
    Thin,
}

/// The group in which histories happen, and the pool in it.
pub const GROUP: &str = "vg";
/// The pool.
pub const POOL: &str = "pool";

/// A history of so many acts.
pub fn generate(seed: u64, length: usize) -> Vec<Act> {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..length).map(|_| dice.act()).collect()
}

/// Xorshift: the same numbers for the same seed, on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn volume(&mut self) -> u8 {
        u8::try_from(self.below(6)).unwrap_or_default()
    }

    fn class(&mut self) -> Class {
        match self.below(8) {
            0 | 1 => Class::Linear,
            2 => Class::Striped,
            3 => Class::Mirrored,
            4 => Class::Parity,
            5 => Class::DoubleParity,
            6 => Class::MirroredStripes,
            _ => Class::Thin,
        }
    }

    fn act(&mut self) -> Act {
        let (volume, source) = (self.volume(), self.volume());
        match self.below(10) {
            0..=3 => {
                let block = self.below(3) == 0;
                Act::Create { volume, class: self.class(), extents: 1 + self.below(20), block }
            }
            4 => Act::Clone { volume, class: self.class(), source, more: self.below(3) },
            5 | 6 => Act::Snapshot { volume, source },
            7 => Act::Grow { volume, extents: 1 + self.below(30) },
            _ => Act::Remove { volume },
        }
    }
}

fn lv(volume: u8) -> LvName {
    LvName::parse(&format!("v{volume}")).unwrap_or_else(|_| unreachable!("v and a number are a name"))
}

fn vg() -> VgName {
    VgName::parse(GROUP).unwrap_or_else(|_| unreachable!("the group's name is one"))
}

/// The path of a history's volume.
pub fn path(volume: u8) -> VolumePath {
    VolumePath { group: vg(), volume: lv(volume) }
}

/// What a class is made of.
pub fn device_class(class: Class) -> DeviceClass {
    let pool = LvName::parse(POOL).unwrap_or_else(|_| unreachable!("the pool's name is one"));
    let kind = match class {
        Class::Thin => ClassKind::Thin { pool, overprovision_ratio: 4.0 },
        Class::Linear
        | Class::Striped
        | Class::Mirrored
        | Class::Parity
        | Class::DoubleParity
        | Class::MirroredStripes => ClassKind::Thick,
    };
    DeviceClass {
        name: format!("{class:?}"),
        group: vg(),
        default: false,
        spare: Bytes::mib(16),
        kind,
        stripe: 0,
        stripe_size: None,
        options: Vec::new(),
    }
}

fn options(class: Class) -> Vec<String> {
    let words: &[&str] = match class {
        Class::Linear | Class::Thin => &[],
        Class::Striped => &["--stripes", "2"],
        Class::Mirrored => &["--type", "raid1", "--mirrors", "1", "--nosync"],
        Class::Parity => &["--type", "raid5", "--stripes", "2", "--nosync"],
        // Its images have to agree.
        Class::DoubleParity => &["--type", "raid6", "--stripes", "3"],
        Class::MirroredStripes => &["--type", "raid10", "--stripes", "2", "--mirrors", "1", "--nosync"],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Does it, on whichever host.
pub fn perform<R: Runner>(act: &Act, volumes: &Arc<Volumes<R>>) -> Result<(), Error> {
    let extent = volumes.inventory().groups.get(&vg()).map_or(Bytes::mib(4), |group| group.extent);
    let named = |volume: u8| Facts { name: Some(format!("volume {volume}")), ..Facts::default() };
    match act {
        Act::Create { volume, class, extents, block } => {
            let facts = Facts { block: *block, ..named(*volume) };
            create(volumes, *volume, *class, Extents(*extents).bytes(extent), facts, None)
        }
        Act::Clone { volume, class, source, more } => {
            let known = volumes.inventory();
            let origin = known.volume(&path(*source));
            let size = origin.map_or(extent, |origin| origin.size) + Extents(*more).bytes(extent);
            let block = origin.is_some_and(|origin| Facts::of(origin).block);
            let facts =
                Facts { source: Some(format!("volume {source}")), used: true, block, ..named(*volume) };
            create(volumes, *volume, *class, size, facts, Some(path(*source)))
        }
        Act::Snapshot { volume, source } => {
            let known = volumes.inventory();
            let class = match known.volume(&path(*source)).map(|origin| &origin.kind) {
                Some(Kind::Thin { .. }) => Class::Thin,
                _ => Class::Linear,
            };
            let facts = Facts { source: Some(format!("volume {source}")), snapshot: true, ..named(*volume) };
            volumes.snapshot(&device_class(class), &path(*source), &lv(*volume), &facts, None).map(drop)
        }
        Act::Grow { volume, extents } => {
            let known = volumes.inventory();
            let class = match known.volume(&path(*volume)).map(|volume| &volume.kind) {
                Some(Kind::Thin { .. }) => Class::Thin,
                _ => Class::Linear,
            };
            let size = Extents(*extents).bytes(extent);
            volumes.grow(&device_class(class), &path(*volume), size, None).map(drop)
        }
        Act::Remove { volume } => volumes.remove(&path(*volume), None),
    }
}

fn create<R: Runner>(
    volumes: &Arc<Volumes<R>>,
    volume: u8,
    class: Class,
    size: Bytes,
    facts: Facts,
    source: Option<VolumePath>,
) -> Result<(), Error> {
    let device_class = device_class(class);
    let wish = Wish {
        name: lv(volume),
        class: &device_class,
        options: options(class),
        size,
        limit: None,
        facts,
        source,
    };
    volumes.create(&wish, None).map(drop)
}

/// How an act went, in a word that both hosts use.
pub fn verdict(result: &Result<(), Error>) -> String {
    use crate::lvm::Failure;
    match result {
        Ok(()) => "done".to_owned(),
        Err(Error::Refused(refusal)) => format!("refused: {refusal}"),
        Err(Error::Lvm(Failure::NoSpace(_))) => "lvm: no space".to_owned(),
        Err(Error::Lvm(failure)) => format!("lvm: {failure}"),
        Err(error @ (Error::NoTurn(_) | Error::Bytes { .. } | Error::Endless(_))) => error.to_string(),
    }
}

/// What is there, in words: volumes with kind, size and tags, and how many extents are free.
pub fn summary(inventory: &Inventory) -> Vec<String> {
    let Some(group) = inventory.groups.get(&vg()) else { return vec!["no group".to_owned()] };
    let mut lines = vec![format!("free {}", group.free.0)];
    for volume in group.volumes.values() {
        let kind = match &volume.kind {
            Kind::Thick(layout) => format!("{} {} {}", layout.segment, layout.stripes, layout.copies),
            Kind::Pool { .. } => "pool".to_owned(),
            Kind::Thin { pool, origin } => format!("thin in {pool} of {origin:?}"),
            Kind::Cow { origin, store } => format!("snapshot of {origin} with {store}"),
            Kind::Other(other) => other.clone(),
        };
        let mut tags = volume.tags.clone();
        tags.sort();
        lines.push(format!("{} {kind} {} {}", volume.name, volume.size, tags.join(" ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::Refusal;
    use crate::simulated::{Content, Simulated, group};

    fn host() -> Arc<Simulated> {
        host_with(&[60, 60])
    }

    fn host_with(disks: &[u64]) -> Arc<Simulated> {
        let pool = LvName::parse(POOL).unwrap();
        Arc::new(Simulated::new(group(disks)).with_pool(&vg(), &pool, Extents(20)))
    }

    fn open(host: &Arc<Simulated>) -> Arc<Volumes<Simulated>> {
        Volumes::open(Arc::clone(host), &[&vg()]).unwrap()
    }

    fn layout(volume: &crate::lvm::Volume) -> Option<String> {
        let Kind::Thick(layout) = &volume.kind else { return None };
        Some(layout.segment.clone())
    }

    fn extents_add_up(inventory: &Inventory) {
        let group = &inventory.groups[&vg()];
        let free: Extents = group.disks.iter().map(|disk| disk.free()).sum();
        assert_eq!(free, group.free);
    }

    #[test]
    fn thousands_of_histories_leave_neither_leaks_nor_halves() {
        let (mut done, mut refused) = (0, 0);
        for seed in 0..2000 {
            // On two disks, or on five, on which every layout has a place.
            let host = host_with(if seed % 2 == 0 { &[24; 5] } else { &[60, 60] });
            let volumes = open(&host);
            for act in generate(seed, 25) {
                let result = perform(&act, &volumes);
                let real = host.inventory(None).unwrap();
                assert_eq!(summary(&volumes.inventory()), summary(&real), "seed {seed}, {act:?}");
                extents_add_up(&real);
                match result {
                    Ok(()) => {
                        done += 1;
                        assert!(host.is_kept(), "seed {seed}, {act:?}");
                        assert!(
                            !summary(&real).join(" ").contains("lvms-"),
                            "seed {seed}, {act:?}: {real:?}"
                        );
                    }
                    Err(Error::Refused(_)) => refused += 1,
                    Err(error) => panic!("seed {seed}, {act:?}: {error}"),
                }
            }
        }
        assert!(done > 10_000 && refused > 5_000, "{done} done, {refused} refused");
    }

    #[test]
    fn whatever_fails_at_whichever_step_is_made_good_by_the_same_call() {
        let (mut failures, mut layouts) = (0, BTreeSet::new());
        for seed in 0..400 {
            let disks: &[u64] = if seed % 2 == 0 { &[60, 60] } else { &[24; 5] };
            let (undisturbed, disturbed) = (host_with(disks), host_with(disks));
            let calm = open(&undisturbed);
            let mut volumes = open(&disturbed);
            for (number, act) in generate(seed, 20).into_iter().enumerate() {
                let expected = verdict(&perform(&act, &calm));
                for step in 0.. {
                    disturbed.fail_after(Some(step));
                    let result = perform(&act, &volumes);
                    disturbed.fail_after(None);
                    // A new process knows only what is on disk.
                    volumes = open(&disturbed);
                    if verdict(&result) == expected {
                        assert!(result.is_err() || disturbed.is_kept(), "seed {seed}, act {number} {act:?}");
                        break;
                    }
                    failures += 1;
                    assert!(step < 40, "seed {seed}, act {number} {act:?}: {}", verdict(&result));
                }
                let (left, right) = (summary(&volumes.inventory()), summary(&calm.inventory()));
                assert_eq!(left, right, "seed {seed}, act {number} {act:?}\n{:#?}", disturbed.history());
                layouts.extend(calm.inventory().groups[&vg()].volumes.values().filter_map(layout));
            }
        }
        assert!(failures > 1000, "only {failures} failures");
        let all = ["linear", "raid1", "raid10", "raid5", "raid6", "striped"];
        assert!(layouts.iter().eq(all), "{layouts:?}");
    }

    #[test]
    fn copies_have_their_sources_bytes_and_new_block_volumes_have_none() {
        let mut copies = 0;
        for seed in 0..500 {
            let host = host();
            let volumes = open(&host);
            for (number, act) in generate(seed, 25).into_iter().enumerate() {
                let before = host.inventory(None).unwrap();
                if perform(&act, &volumes).is_err() {
                    continue;
                }
                match act {
                    Act::Create { volume, block: true, .. } if before.volume(&path(volume)).is_none() => {
                        assert_eq!(host.content(&path(volume)), Content::Zeros, "seed {seed}");
                        host.write(&path(volume), &format!("user {number}"));
                    }
                    Act::Create { volume, .. } if before.volume(&path(volume)).is_none() => {
                        host.write(&path(volume), &format!("user {number}"));
                    }
                    Act::Clone { volume, source, .. } | Act::Snapshot { volume, source }
                        if before.volume(&path(volume)).is_none() =>
                    {
                        copies += 1;
                        assert_eq!(
                            host.content(&path(volume)),
                            host.content(&path(source)),
                            "seed {seed}, {act:?}"
                        );
                        if matches!(act, Act::Clone { .. }) {
                            host.write(&path(source), &format!("later {number}"));
                        }
                    }
                    Act::Create { .. }
                    | Act::Clone { .. }
                    | Act::Snapshot { .. }
                    | Act::Grow { .. }
                    | Act::Remove { .. } => {}
                }
            }
        }
        assert!(copies > 300, "only {copies} copies");
    }

    #[test]
    fn a_copy_whose_snapshot_is_lost_has_the_bytes_of_one_moment() {
        let mut lost = 0;
        for seed in 0..500 {
            let host = host();
            let volumes = open(&host);
            for (number, act) in generate(seed, 25).into_iter().enumerate() {
                let before = host.inventory(None).unwrap();
                host.overflow(1);
                let mut result = perform(&act, &volumes);
                host.overflow(0);
                match act {
                    Act::Clone { volume, source, .. } => {
                        if matches!(result, Err(Error::Bytes { .. })) {
                            lost += 1;
                            host.write(&path(source), &format!("later {number}"));
                            result = perform(&act, &volumes);
                        }
                        if result.is_ok() && before.volume(&path(volume)).is_none() {
                            let (copy, source) = (host.content(&path(volume)), host.content(&path(source)));
                            assert_eq!(copy, source, "seed {seed}, {act:?}\n{:#?}", host.history());
                        }
                    }
                    Act::Create { volume, .. } if result.is_ok() => {
                        host.write(&path(volume), &format!("user {number}"));
                    }
                    Act::Create { .. } | Act::Snapshot { .. } | Act::Grow { .. } | Act::Remove { .. } => {}
                }
                let real = summary(&host.inventory(None).unwrap());
                assert!(
                    result.is_err() || !real.join(" ").contains("lvms-"),
                    "seed {seed}, {act:?}: {real:?}"
                );
            }
        }
        assert!(lost > 100, "only {lost} snapshots were lost");
    }

    #[test]
    fn a_copy_of_raid_is_finished_by_the_same_call_when_its_images_agree() {
        for (class, waits) in [
            (Class::Parity, true),
            (Class::DoubleParity, true),
            (Class::Mirrored, false),
            (Class::MirroredStripes, false),
            (Class::Linear, false),
        ] {
            let host = host_with(&[60; 5]);
            let volumes = open(&host);
            perform(&Act::Create { volume: 0, class, extents: 6, block: false }, &volumes).unwrap();
            host.write(&path(0), "user");
            host.synchronise(true);
            let copy = Act::Clone { volume: 1, class: Class::Linear, source: 0, more: 0 };
            for _ in 0..2 {
                let copied = perform(&copy, &volumes);
                let refused = matches!(copied, Err(Error::Refused(Refusal::Synchronising { .. })));
                assert_eq!((refused, copied.is_ok()), (waits, !waits), "{class:?}: {copied:?}");
                let removed = host.history().iter().any(|act| act.starts_with("lvremove"));
                assert_eq!(removed, !waits, "{class:?}");
                assert_eq!(host.content(&path(1)), Content::Of("user".to_owned()));
            }
            host.synchronise(false);
            perform(&copy, &volumes).unwrap();
            let copies = host.history().iter().filter(|act| act.starts_with("copy")).count();
            assert_eq!(copies, 1, "{class:?}");
            assert!(!summary(&volumes.inventory()).join(" ").contains("lvms-"));
        }
    }

    #[test]
    fn what_was_begun_goes_on_though_its_devices_were_taken_away_or_their_disks() {
        let (volume, source) = (0, 1);
        let thick = |volume, block| Act::Create { volume, class: Class::Linear, extents: 4, block };
        // How many effects come before the zeros, or the copy.
        for (act, effects) in [
            (thick(volume, true), 2),
            (Act::Clone { volume, class: Class::Linear, source, more: 0 }, 4),
            (Act::Clone { volume, class: Class::Thin, source, more: 0 }, 4),
        ] {
            for happens in [Simulated::deactivate, Simulated::pull_disks] {
                let host = host();
                let volumes = open(&host);
                perform(&thick(source, false), &volumes).unwrap();
                host.fail_after(Some(effects));
                let failed = perform(&act, &volumes);
                assert!(matches!(failed, Err(Error::Bytes { .. })), "{act:?}: {failed:?}");
                host.fail_after(None);
                volumes.look(&vg()).unwrap();
                happens(&host);
                let again = perform(&act, &volumes);
                assert!(again.is_ok(), "{act:?}: {again:?}\n{:#?}", host.history());
            }
        }
    }
}
