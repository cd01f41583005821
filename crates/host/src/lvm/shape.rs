//! How a thick volume lies on disks, from the options given to lvcreate: how many disks it needs, what it takes of
//! each, and how large it can be.

use super::inventory::{Group, Layout};
use crate::units::Extents;

/// The shape of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Over how many disks the data is spread: a size is rounded up to a multiple of this.
    pub stripes: u64,
    /// How many disks it needs in all.
    pub disks: u64,
    /// What it takes of each disk beside the data.
    pub metadata: Extents,
}

impl Shape {
    /// One piece, or several wherever there is room.
    pub const LINEAR: Shape = Shape { stripes: 1, disks: 1, metadata: Extents::ZERO };

    /// What lvcreate makes of these options. Options that do not concern the shape are passed over.
    pub fn of_options(options: &[String]) -> Shape {
        let asked = Asked::of(options);
        let copies = asked.mirrors.map(|mirrors| mirrors.saturating_add(1));
        Shape::of_kind(asked.kind(), asked.stripes, copies)
    }

    /// The same options, with what lvm2 would otherwise take from the host's configuration, in which
    /// `mirror_segtype_default` and `raid10_segtype_default` may name the old kind of mirrors, and
    /// `raid_stripe_all_devices` any number of disks.
    pub fn explicit(mut options: Vec<String>) -> Vec<String> {
        let asked = Asked::of(&options);
        let kind = asked.kind();
        let is_striped = kind.starts_with("raid") && !kind.starts_with("raid1") || kind.starts_with("raid10");
        let mut more = Vec::new();
        if asked.kind.is_none() && kind.starts_with("raid") {
            more.extend(["--type".to_owned(), kind.to_owned()]);
        }
        if asked.stripes.is_none() && is_striped {
            more.extend(["--stripes".to_owned(), Shape::of_options(&options).stripes.to_string()]);
        }
        options.extend(more);
        options
    }

    /// Whether options ask for pieces that are each one run of extents.
    pub fn is_contiguous(options: &[String]) -> bool {
        let asked = Words(options).filter_map(|(option, value)| match option {
            "-C" | "--contiguous" => Some(value.starts_with('y')),
            "--alloc" => Some(value == "contiguous"),
            _ => None,
        });
        asked.last().unwrap_or_default()
    }

    /// The option that asks for something else than a volume with extents of its own, striped or not, or RAID.
    pub fn foreign(options: &[String]) -> Option<String> {
        let is_foreign = |(option, value): &(&str, &str)| match *option {
            "--type" => !(matches!(*value, "linear" | "striped") || value.starts_with("raid")),
            other => FOREIGN.contains(&other),
        };
        let (option, value) = Words(options).find(is_foreign)?;
        Some(format!("{option} {value}").trim_end().to_owned())
    }

    /// That of a volume that is there.
    pub fn of_layout(layout: &Layout) -> Shape {
        let (devices, copies) = (layout.stripes, layout.copies.max(1));
        // For RAID the report counts all disks.
        match layout.segment.as_str() {
            "raid1" => Shape::of_kind("raid1", None, Some(devices)),
            kind if kind.starts_with("raid10") => {
                Shape::of_kind("raid10", Some(devices / copies), Some(copies))
            }
            kind if kind.starts_with("raid6") => {
                Shape::of_kind("raid6", Some(devices.saturating_sub(2)), None)
            }
            kind if kind.starts_with("raid4") || kind.starts_with("raid5") => {
                Shape::of_kind("raid5", Some(devices.saturating_sub(1)), None)
            }
            "raid0_meta" => Shape::of_kind("raid0_meta", Some(devices), None),
            _ => Shape::of_kind("striped", Some(devices), None),
        }
    }

    fn of_kind(kind: &str, stripes: Option<u64>, copies: Option<u64>) -> Shape {
        let given = |default: u64| stripes.filter(|stripes| *stripes > 0).unwrap_or(default);
        let raid = |stripes: u64, disks: u64| Shape { stripes, disks, metadata: Extents(1) };
        match kind {
            "raid1" | "mirror" => raid(1, copies.unwrap_or(2).max(1)),
            kind if kind.starts_with("raid10") => {
                raid(given(2), given(2).saturating_mul(copies.unwrap_or(2).max(2)))
            }
            kind if kind.starts_with("raid6") => raid(given(3), given(3).saturating_add(2)),
            kind if kind.starts_with("raid4") || kind.starts_with("raid5") => {
                raid(given(2), given(2).saturating_add(1))
            }
            "raid0_meta" => raid(given(2), given(2)),
            "raid0" => Shape { stripes: given(2), disks: given(2), metadata: Extents::ZERO },
            _ => Shape { stripes: given(1), disks: given(1), metadata: Extents::ZERO },
        }
    }

    /// Whether what is lost with a disk is on others, too.
    pub fn is_redundant(self) -> bool {
        self.disks > self.stripes
    }

    /// The size that a volume of so many extents really gets.
    pub fn round_up(self, extents: Extents) -> Extents {
        extents.round_up(self.stripes)
    }

    /// What a new volume of this size takes of a group, all in all.
    pub fn cost(self, extents: Extents) -> Extents {
        (self.per_disk(extents) + self.metadata) * self.disks
    }

    /// What of it lies on one disk.
    pub fn per_disk(self, extents: Extents) -> Extents {
        Extents(extents.0.div_ceil(self.stripes))
    }

    /// The size of the largest new volume that leaves `spare` extents free.
    pub fn largest(self, group: &Group, spare: Extents) -> Extents {
        self.largest_piece(group, spare).minus(self.metadata) * self.stripes
    }

    /// The size of the largest new volume whose pieces are each one run of extents.
    pub fn largest_of_runs(self, group: &Group) -> Extents {
        let open = group.disks.iter().filter(|disk| disk.free() > Extents::ZERO);
        let mut runs: Vec<Extents> = open.map(|disk| disk.run).collect();
        runs.sort_by_key(|run| std::cmp::Reverse(*run));
        let least = usize::try_from(self.disks - 1).ok().and_then(|last| runs.get(last));
        least.map_or(Extents::ZERO, |run| run.minus(self.metadata) * self.stripes)
    }

    /// By how much a volume can grow and leave `spare` extents free.
    pub fn largest_growth(self, group: &Group, spare: Extents) -> Extents {
        self.largest_piece(group, spare) * self.stripes
    }

    /// The most that can be had on each of the disks: pieces of one volume lie on different disks.
    fn largest_piece(self, group: &Group, spare: Extents) -> Extents {
        let usable = group.to_be_had().minus(spare);
        if self.disks == 1 {
            return usable;
        }
        let free = group.disks.iter().map(|disk| disk.free().0).collect();
        Extents(self.placed_by_lvm(free).min(usable.0 / self.disks))
    }

    /// How large the pieces become that LVM's allocator makes, which is not the best that could be done: it takes the
    /// disks with most room, as much as the smallest of them has, and goes on with what is left. A disk that has a
    /// part of one piece must not get a part of another where they shall survive each other.
    fn placed_by_lvm(self, mut free: Vec<u64>) -> u64 {
        let count = usize::try_from(self.disks).unwrap_or(usize::MAX);
        let (mut placed, mut taken) = (0, Vec::new());
        loop {
            let mut order: Vec<usize> = (0..free.len()).filter(|disk| free[*disk] > 0).collect();
            order.sort_by_key(|disk| std::cmp::Reverse(free[*disk]));
            order.truncate(count);
            let again = order.iter().filter(|disk| taken.contains(*disk)).count();
            if order.len() < count || (self.is_redundant() && again > 1) {
                return placed;
            }
            let length = order.iter().map(|disk| free[*disk]).min().unwrap_or_default();
            for disk in &order {
                free[*disk] -= length;
            }
            placed += length;
            taken.extend(order);
        }
    }
}

/// Options that name a type without `--type`.
const FOREIGN: [&str; 7] = ["-H", "--cache", "-T", "--thin", "-s", "--snapshot", "--vdo"];

/// What options say of the shape.
struct Asked<'a> {
    kind: Option<&'a str>,
    stripes: Option<u64>,
    mirrors: Option<u64>,
}

impl<'a> Asked<'a> {
    fn of(options: &'a [String]) -> Asked<'a> {
        let mut asked = Asked { kind: None, stripes: None, mirrors: None };
        for (option, value) in Words(options) {
            match option {
                "--type" => asked.kind = Some(value),
                "-i" | "--stripes" => asked.stripes = value.parse().ok(),
                "-m" | "--mirrors" => asked.mirrors = value.parse().ok(),
                _ => {}
            }
        }
        asked
    }

    fn kind(&self) -> &'a str {
        self.kind.unwrap_or(match (self.mirrors.unwrap_or_default(), self.stripes.unwrap_or_default()) {
            (0, _) => "striped",
            (_, 0 | 1) => "raid1",
            _ => "raid10",
        })
    }
}

/// Options and their values, however they are written: `-m 1`, `-m1`, `--mirrors 1`, `--mirrors=1`.
struct Words<'a>(&'a [String]);

impl<'a> Iterator for Words<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<(&'a str, &'a str)> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        if let Some((option, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
            return Some((option, value));
        }
        let is_short = word.starts_with('-') && !word.starts_with("--") && word.is_char_boundary(2);
        if is_short && word.len() > 2 {
            return Some((&word[..2], &word[2..]));
        }
        match rest.split_first().filter(|(value, _)| word.starts_with('-') && !value.starts_with('-')) {
            Some((value, rest)) => {
                self.0 = rest;
                Some((word, value))
            }
            None => Some((word, "")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::group;
    use proptest::prelude::*;

    fn shape(options: &[&str]) -> Shape {
        Shape::of_options(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_understood_however_they_are_written() {
        let raid1 = Shape { stripes: 1, disks: 2, metadata: Extents(1) };
        for options in [
            &["--type=raid1"][..],
            &["--type", "raid1", "-m", "1"],
            &["-m1"],
            &["--mirrors=1", "--nosync"],
            &["--yes", "--mirrors", "1"],
        ] {
            assert_eq!(shape(options), raid1, "{options:?}");
        }
        assert_eq!(shape(&["-i2", "-I", "64"]), Shape { stripes: 2, disks: 2, metadata: Extents::ZERO });
        assert_eq!(shape(&["--type=raid5", "-i", "3"]), Shape { stripes: 3, disks: 4, metadata: Extents(1) });
        assert_eq!(shape(&["--type=raid6"]), Shape { stripes: 3, disks: 5, metadata: Extents(1) });
        assert_eq!(shape(&["--type=raid10"]), Shape { stripes: 2, disks: 4, metadata: Extents(1) });
        assert_eq!(shape(&["-m2"]), Shape { stripes: 1, disks: 3, metadata: Extents(1) });
        assert_eq!(shape(&[]), Shape::LINEAR);
        assert_eq!(shape(&["--contiguous", "y"]), Shape::LINEAR);
    }

    #[test]
    fn the_hosts_configuration_decides_nothing_of_a_shape() {
        for (options, more) in [
            (&["-m1"][..], &["--type", "raid1"][..]),
            (&["-m1", "-i2"], &["--type", "raid10"]),
            (&["--type=raid10", "-m1"], &["--stripes", "2"]),
            (&["--type=raid5"], &["--stripes", "2"]),
            (&["--type=raid6_zr"], &["--stripes", "3"]),
            (&["--type=raid6", "-i4"], &[]),
            (&["--type=raid1"], &[]),
            (&["-i2"], &[]),
            (&["-m0"], &[]),
            (&[], &[]),
        ] {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            let explicit = Shape::explicit(words(options));
            assert_eq!(explicit, [words(options), words(more)].concat(), "{options:?}");
            assert_eq!(Shape::of_options(&explicit), shape(options), "{options:?}");
        }
    }

    #[test]
    fn options_for_something_else_than_volumes_are_named() {
        for (options, expected) in [
            (&["--type=mirror", "-m1"][..], Some("--type mirror")),
            (&["--nosync", "--type", "cache"], Some("--type cache")),
            (&["--type=vdo"], Some("--type vdo")),
            (&["-T", "vg/pool"], Some("-T vg/pool")),
            (&["--type=raid5_ls"], None),
            (&["--type", "linear"], None),
            (&["-m1", "-i2", "--type=striped"], None),
            (&["--contiguous", "y"], None),
        ] {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            assert_eq!(Shape::foreign(&options).as_deref(), expected, "{options:?}");
        }
    }

    #[test]
    fn what_shall_be_contiguous_is_not_larger_than_the_longest_runs() {
        let mut group = group(&[100, 100, 100]);
        for (disk, run) in group.disks.iter_mut().zip([30, 50, 40]) {
            (disk.taken, disk.run) = (Extents(20), Extents(run));
        }
        for (options, expected) in
            [(&[][..], 50), (&["-i2"], 80), (&["-i3"], 90), (&["-m1"], 39), (&["-i4"], 0)]
        {
            assert_eq!(shape(options).largest_of_runs(&group), Extents(expected), "{options:?}");
        }
        let is_contiguous = |options: &[&str]| {
            Shape::is_contiguous(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
        };
        for options in [&["-Cy"][..], &["-C", "y"], &["--contiguous=y"], &["--alloc", "contiguous"]] {
            assert!(is_contiguous(options), "{options:?}");
        }
        for options in [&[][..], &["-Cn"], &["--alloc", "cling"], &["-Cy", "--contiguous", "n"]] {
            assert!(!is_contiguous(options), "{options:?}");
        }
    }

    #[test]
    fn disks_that_are_closed_do_not_count() {
        let mut group = group(&[100, 60]);
        group.disks[1].allocatable = false;
        group.disks[1].taken = Extents(10);
        group.free = Extents(150);
        assert_eq!(Shape::LINEAR.largest(&group, Extents(20)), Extents(80));
        assert_eq!(Shape::LINEAR.largest_growth(&group, Extents::ZERO), Extents(100));
        assert_eq!(shape(&["-m1"]).largest(&group, Extents::ZERO), Extents::ZERO);
    }

    #[test]
    fn redundancy_counts() {
        let group = group(&[100, 60, 30]);
        assert_eq!(Shape::LINEAR.largest(&group, Extents(10)), Extents(180));
        assert_eq!(
            shape(&["-m1"]).largest(&group, Extents::ZERO),
            Extents(89),
            "60 and 30 mirror 90 of the first"
        );
        assert_eq!(shape(&["-m2"]).largest(&group, Extents::ZERO), Extents(29));
        assert_eq!(shape(&["-m3"]).largest(&group, Extents::ZERO), Extents::ZERO);
        assert_eq!(shape(&["-i3"]).largest(&group, Extents::ZERO), Extents(90));
        assert_eq!(shape(&["-i2"]).largest(&group, Extents(190)), Extents::ZERO);
    }

    proptest! {
        #[test]
        fn the_largest_volume_fits_and_leaves_what_is_spare(
            disks in proptest::collection::vec(0u64..500, 1..6),
            spare in 0u64..600,
            options in prop::sample::select(vec!["", "-i2", "-i3", "-m1", "-m2", "--type=raid5", "--type=raid6", "--type=raid10"]),
        ) {
            let group = group(&disks);
            let shape = shape(&[options]);
            let largest = shape.largest(&group, Extents(spare));
            if largest > Extents::ZERO {
                prop_assert!(shape.cost(largest) + Extents(spare) <= group.free);
                prop_assert_eq!(shape.round_up(largest), largest);
            }
        }

        #[test]
        fn no_options_make_it_panic(options in proptest::collection::vec("\\PC{0,12}", 0..6)) {
            let _ = Shape::of_options(&options);
        }
    }
}
