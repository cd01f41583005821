//! Sizes as Kubernetes writes them.

use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A size in an object, as it was written. It is read with [`Quantity::bytes`]: an object with a size that makes no
/// sense is still an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity(String);

impl Default for Quantity {
    /// The API refuses an empty text.
    fn default() -> Quantity {
        Quantity::of(0)
    }
}

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadQuantity {
    /// It is not a number with a unit.
    #[error("{0:?} is not a size: write a number with a unit, for example 10Gi")]
    Syntax(String),
    /// It is below zero.
    #[error("{0:?} is below zero")]
    Negative(String),
    /// It is more than can be.
    #[error("{0:?} is more than 16 EiB")]
    TooLarge(String),
}

impl Quantity {
    /// A size in bytes.
    pub fn of(bytes: u64) -> Quantity {
        const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if bytes == 1000 {
            // Kubernetes writes what is below 1024 in powers of ten.
            return Quantity("1k".to_owned());
        }
        let (mut number, mut unit) = (bytes, 0);
        while number != 0 && number.is_multiple_of(1024) {
            number /= 1024;
            unit += 1;
        }
        Quantity(format!("{number}{}", UNITS[unit]))
    }

    /// How many bytes it is; a part of a byte counts as one.
    pub fn bytes(&self) -> Result<u64, BadQuantity> {
        parse(&self.0)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }
}

/// The value of a unit: a power of ten or of two.
fn unit(suffix: &str) -> Option<(i32, u32)> {
    let known = match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            (digits.parse().ok()?, 0)
        }
    };
    Some(known)
}

fn parse(text: &str) -> Result<u64, BadQuantity> {
    let syntax = || BadQuantity::Syntax(text.to_owned());
    let too_large = || BadQuantity::TooLarge(text.to_owned());
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(syntax());
    }
    let (ten, two) = unit(suffix).ok_or_else(syntax)?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(BadQuantity::Negative(text.to_owned()));
    }
    let mantissa: u128 = digits.parse().map_err(|_| too_large())?;
    let places = i32::try_from(fraction.len()).map_err(|_| syntax())?;
    let ten = ten.saturating_sub(places);
    let scaled = mantissa.checked_mul(1 << two).ok_or_else(too_large)?;
    let power = 10u128.checked_pow(ten.unsigned_abs());
    let bytes = match (ten < 0, power) {
        (true, Some(power)) => scaled.div_ceil(power),
        // Less than a byte.
        (true, None) => 1,
        (false, Some(power)) => scaled.checked_mul(power).ok_or_else(too_large)?,
        (false, None) => return Err(too_large()),
    };
    u64::try_from(bytes).map_err(|_| too_large())
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Quantity;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a size, as a text or a number")
            }

            fn visit_str<E>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }
        }

        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> Result<u64, BadQuantity> {
        Quantity::from(text).bytes()
    }

    #[test]
    fn what_was_never_told_is_nothing_and_not_an_empty_text() {
        assert_eq!(Quantity::default().to_string(), "0");
    }

    #[test]
    fn every_unit_is_read_as_kubernetes_reads_it() {
        let known = [
            ("0", 0),
            ("5", 5),
            ("+5", 5),
            ("1.", 1),
            (".5", 1),
            ("1Ki", 1024),
            ("1.5Gi", 3 << 29),
            ("0.1Ki", 103),
            ("1k", 1000),
            ("2M", 2_000_000),
            ("1G", 1_000_000_000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("12e-1", 2),
            ("1m", 1),
            ("1500m", 2),
            ("1n", 1),
            ("1023Mi", 1023 << 20),
            ("15Ei", 15 << 60),
            ("0.0000000000000000000000000000000000001", 1),
        ];
        for (text, expected) in known {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_text() {
        for text in ["", ".", "1.2.3", "Gi", "1 Gi", "1GiB", "1gi", "ten", "1e", "--1"] {
            assert_eq!(bytes(text), Err(BadQuantity::Syntax(text.to_owned())), "{text}");
        }
        assert_eq!(bytes("-1Gi"), Err(BadQuantity::Negative("-1Gi".to_owned())));
        assert_eq!(bytes("-0"), Ok(0));
        for text in ["16Ei", "1e400", "99999999999999999999999999999999999999999"] {
            assert_eq!(bytes(text), Err(BadQuantity::TooLarge(text.to_owned())));
        }
    }

    #[test]
    fn sizes_are_written_as_kubernetes_writes_them() {
        let known = [
            (0, "0"),
            (1, "1"),
            (999, "999"),
            (1000, "1k"),
            (1024, "1Ki"),
            (1000 << 20, "1000Mi"),
            (1 << 40, "1Ti"),
        ];
        for (bytes, text) in known {
            assert_eq!(Quantity::of(bytes).as_str(), text);
        }
        assert_eq!(Quantity::of(4097).as_str(), "4097");
    }

    #[test]
    fn a_number_is_as_good_as_a_text() {
        let read = |json: &str| serde_json::from_str::<Quantity>(json).unwrap().bytes();
        assert_eq!(read("\"2Gi\""), Ok(2 << 30));
        assert_eq!(read("4096"), Ok(4096));
        assert_eq!(read("-1"), Err(BadQuantity::Negative("-1".to_owned())));
        assert_eq!(serde_json::to_string(&Quantity::of(1 << 30)).unwrap(), "\"1Gi\"");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(size in any::<u64>(), shift in 0u32..63) {
            let size = size >> shift;
            prop_assert_eq!(Quantity::of(size).bytes(), Ok(size));
            let rounded = size >> (shift / 2) << (shift / 2);
            prop_assert_eq!(Quantity::of(rounded).bytes(), Ok(rounded));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+0-9.eEkKMGimunTP]{0,24}") {
            let _ = bytes(&text);
        }
    }
}
