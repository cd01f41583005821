//! Sizes: bytes as people ask for them, extents as LVM gives them.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Mul, Sub};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A number of a volume group's extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Extents(pub u64);

impl Bytes {
    /// None at all.
    pub const ZERO: Bytes = Bytes(0);

    /// So many kibibytes.
    pub const fn kib(count: u64) -> Bytes {
        Bytes(count << 10)
    }

    /// So many mebibytes.
    pub const fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    /// So many gibibytes.
    pub const fn gib(count: u64) -> Bytes {
        Bytes(count << 30)
    }

    /// The least number of extents of size `extent` that hold these bytes.
    pub fn in_extents(self, extent: Bytes) -> Extents {
        Extents(self.0.div_ceil(extent.0.max(1)))
    }

    /// The same, or the next multiple of `unit` above; as large as can be where that is out of range.
    pub fn round_up(self, unit: Bytes) -> Bytes {
        Bytes(self.0.checked_next_multiple_of(unit.0.max(1)).unwrap_or(u64::MAX))
    }

    /// The same, or the next multiple of `unit` below.
    pub fn round_down(self, unit: Bytes) -> Bytes {
        Bytes(self.0 - self.0 % unit.0.max(1))
    }

    /// What is left after `other` is taken away; nothing where there is too little.
    pub fn minus(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Extents {
    /// None at all.
    pub const ZERO: Extents = Extents(0);

    /// Their size, when each has the size `extent`.
    pub fn bytes(self, extent: Bytes) -> Bytes {
        Bytes(self.0.saturating_mul(extent.0))
    }

    /// The same, or the next multiple of `unit` above.
    pub fn round_up(self, unit: u64) -> Extents {
        Extents(self.0.checked_next_multiple_of(unit.max(1)).unwrap_or(u64::MAX))
    }

    /// What is left after `other` is taken away; nothing where there are too few.
    pub fn minus(self, other: Extents) -> Extents {
        Extents(self.0.saturating_sub(other.0))
    }
}

impl Add for Extents {
    type Output = Extents;
    fn add(self, other: Extents) -> Extents {
        Extents(self.0.saturating_add(other.0))
    }
}

impl Sub for Extents {
    type Output = Extents;
    fn sub(self, other: Extents) -> Extents {
        self.minus(other)
    }
}

impl Mul<u64> for Extents {
    type Output = Extents;
    fn mul(self, times: u64) -> Extents {
        Extents(self.0.saturating_mul(times))
    }
}

impl Sum for Extents {
    fn sum<I: Iterator<Item = Extents>>(all: I) -> Extents {
        all.fold(Extents::ZERO, Add::add)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(all: I) -> Bytes {
        all.fold(Bytes::ZERO, Add::add)
    }
}

/// As people read it: exact, in the largest unit that leaves no remainder.
impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let fits = |shift: u32| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match units.into_iter().find(|(shift, _)| fits(*shift)) {
            Some((shift, unit)) => write!(out, "{} {unit}", self.0 >> shift),
            None => write!(out, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_size_is_printed_exactly() {
        assert_eq!(Bytes::gib(3).to_string(), "3 GiB");
        assert_eq!(Bytes(1536 << 20).to_string(), "1536 MiB");
        assert_eq!(Bytes(1).to_string(), "1 B");
        assert_eq!(Bytes::ZERO.to_string(), "0 B");
    }

    proptest! {
        #[test]
        fn extents_hold_the_bytes_and_not_an_extent_more(bytes in 0..u64::MAX / 2, shift in 9u32..33) {
            let extent = Bytes(1 << shift);
            let extents = Bytes(bytes).in_extents(extent);
            prop_assert!(extents.bytes(extent).0 >= bytes);
            prop_assert!(extents.0 == 0 || (extents - Extents(1)).bytes(extent).0 < bytes);
        }

        #[test]
        fn rounding_never_overflows(bytes: u64, unit in 1u64..) {
            prop_assert!(Bytes(bytes).round_up(Bytes(unit)) >= Bytes(bytes));
            prop_assert!(Bytes(bytes).round_down(Bytes(unit)) <= Bytes(bytes));
        }
    }
}
