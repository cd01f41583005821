//! Names of volume groups, logical volumes and tags. Whoever holds one knows that LVM takes it for what it is: none
//! begins like an option, none leaves its directory, none splits an argument.

use std::fmt;

use thiserror::Error;

/// Why something is no name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing there.
    #[error("a {0} must not be empty")]
    Empty(&'static str),
    /// Too long for LVM.
    #[error("a {what} has at most {most} characters, this one has {length}")]
    Long {
        /// What it was to be.
        what: &'static str,
        /// The limit.
        most: usize,
        /// Its length.
        length: usize,
    },
    /// A character that LVM does not allow, or not there.
    #[error("a {what} must not contain {character:?} at position {position}")]
    Character {
        /// What it was to be.
        what: &'static str,
        /// Which.
        character: char,
        /// Where, counted from 1.
        position: usize,
    },
    /// A name with a meaning of its own.
    #[error("{0:?} is reserved")]
    Reserved(String),
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Takes the text for a name if it is one.
            pub fn parse(text: &str) -> Result<$name, NameError> {
                $check(text)?;
                Ok($name(text.to_owned()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// The name of a volume group.
    VgName,
    |text| check_name(text, "volume group's name")
);
name!(
    /// The name of a logical volume.
    LvName,
    |text| check_name(text, "logical volume's name")
);
name!(
    /// A tag of a logical volume.
    Tag,
    |text: &str| check(text, "tag", 1024, "_+.-/=!:&#")
);

impl LvName {
    /// Takes the text for the name of a volume that is to be made: some are LVM's own.
    pub fn parse_new(text: &str) -> Result<LvName, NameError> {
        const BEGINNINGS: [&str; 2] = ["snapshot", "pvmove"];
        const PARTS: [&str; 12] = [
            "_cdata", "_cmeta", "_corig", "_mimage", "_mlog", "_pmspare", "_rimage", "_rmeta", "_tdata",
            "_tmeta", "_vorigin", "_vdata",
        ];
        let name = LvName::parse(text)?;
        if BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
            || PARTS.iter().any(|part| text.contains(part))
        {
            return Err(NameError::Reserved(text.to_owned()));
        }
        Ok(name)
    }
}

/// A logical volume with its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumePath {
    /// The group.
    pub group: VgName,
    /// The volume in it.
    pub volume: LvName,
}

impl VolumePath {
    /// The name under which device-mapper knows it: dashes doubled, one between.
    pub fn mapper_name(&self) -> String {
        let double = |name: &str| name.replace('-', "--");
        format!("{}-{}", double(self.group.as_str()), double(self.volume.as_str()))
    }

    /// The volume that device-mapper knows under this name; none if it is a layer beneath one, or not LVM's.
    pub fn of_mapper_name(name: &str) -> Option<VolumePath> {
        let name = name.replace("--", "\0");
        let (group, volume) = name.split_once('-').filter(|(_, volume)| !volume.contains('-'))?;
        let single = |name: &str| name.replace('\0', "-");
        let (group, volume) = (VgName::parse(&single(group)).ok()?, LvName::parse(&single(volume)).ok()?);
        Some(VolumePath { group, volume })
    }
}

/// As LVM writes it: `group/volume`.
impl fmt::Display for VolumePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.group, self.volume)
    }
}

fn check_name(text: &str, what: &'static str) -> Result<(), NameError> {
    check(text, what, 127, "_+.-")?;
    if text == "." || text == ".." {
        return Err(NameError::Reserved(text.to_owned()));
    }
    Ok(())
}

fn check(text: &str, what: &'static str, most: usize, marks: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty(what));
    }
    let allowed = |position: usize, character: char| {
        character.is_ascii_alphanumeric()
            || (marks.contains(character) && !(position == 0 && character == '-'))
    };
    if let Some((position, character)) =
        text.chars().enumerate().find(|(position, character)| !allowed(*position, *character))
    {
        return Err(NameError::Character { what, character, position: position + 1 });
    }
    if text.len() > most {
        return Err(NameError::Long { what, most, length: text.len() });
    }
    Ok(())
}

/// Any text in characters that a tag may have: others become `#` and two hexadecimal digits per byte.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_+.-".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("#{byte:02x}");
        }
    }
    escaped
}

/// What was [escaped](escape); `None` if it was not.
pub fn unescape(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'#' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_looks_like_an_option_or_a_path_is_no_name() {
        for text in
            ["", "-f", "--yes", "../../etc", "a/b", ".", "..", "a b", "a'b", "a\"b", "a\nb", "ä", "a,b", "@t"]
        {
            assert!(VgName::parse(text).is_err(), "{text:?}");
            assert!(LvName::parse(text).is_err(), "{text:?}");
        }
        assert!(VgName::parse(&"x".repeat(128)).is_err());
        for text in ["vg", "a-b", "0", "pool.1_+", "b5a6cf0e-6a1e-4f0c-9a5e-0a3c1d5f9b11"] {
            assert!(VgName::parse(text).is_ok() && LvName::parse_new(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn names_of_lvms_own_parts_are_not_given_to_new_volumes() {
        for text in ["snapshot1", "pvmove0", "x_tmeta", "x_rimage_0", "lvol0_pmspare"] {
            assert!(matches!(LvName::parse_new(text), Err(NameError::Reserved(_))), "{text}");
            assert!(LvName::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn an_error_says_which_character_and_where() {
        let error = VgName::parse("my vg").unwrap_err().to_string();
        assert_eq!(error, "a volume group's name must not contain ' ' at position 3");
    }

    #[test]
    fn device_mapper_doubles_dashes() {
        let path =
            VolumePath { group: VgName::parse("my-vg").unwrap(), volume: LvName::parse("a-b-c").unwrap() };
        assert_eq!(path.mapper_name(), "my--vg-a--b--c");
        assert_eq!(VolumePath::of_mapper_name("my--vg-a--b--c"), Some(path));
        for other in ["vg-a-real", "vg-pool-tpool", "mpatha", "vg--a", ""] {
            assert_eq!(VolumePath::of_mapper_name(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_name_survives_being_put_into_a_tag(name in "\\PC{0,128}|[\\x00-\\x7f]{0,128}") {
            let escaped = escape(&name);
            let tag = Tag::parse(&format!("lvms.io/name={escaped}"));
            prop_assert!(tag.is_ok() || escaped.len() > 1000);
            prop_assert_eq!(unescape(&escaped), Some(name));
        }

        #[test]
        fn unescaping_never_panics(text in "\\PC{0,64}") {
            let _ = unescape(&text);
        }
    }
}
