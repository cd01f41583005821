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
        let mut kind: Option<String> = None;
        let (mut stripes, mut mirrors) = (None, None);
        for (option, value) in Words(options) {
            match option {
                "--type" => kind = Some(value.to_owned()),
                "-i" | "--stripes" => stripes = value.parse::<u64>().ok(),
                "-m" | "--mirrors" => mirrors = value.parse::<u64>().ok(),
                _ => {}
            }
        }
        let kind = kind.unwrap_or_else(|| match (mirrors.unwrap_or_default(), stripes.unwrap_or_default()) {
            (0, _) => "striped".to_owned(),
            (_, 0 | 1) => "raid1".to_owned(),
            _ => "raid10".to_owned(),
        });
        Shape::of_kind(&kind, stripes, mirrors.map(|mirrors| mirrors.saturating_add(1)))
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
