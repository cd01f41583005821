//! Requests, parsed once. Each mistake names its field.

use crate::error::{Error, Kind};
use crate::proto;

/// How large a volume shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// At least so many bytes.
    pub required: u64,
    /// At most so many, if there is a limit.
    pub limit: Option<u64>,
}

/// Sizes are asked of the host in this unit.
const UNIT: i64 = 4096;

/// An extent of LVM, as long as nobody has chosen another.
const EXTENT: i64 = 4 << 20;

/// Who says nothing gets this.
const DEFAULT: i64 = 1 << 30;

impl Size {
    /// As TopoLVM reads a range: `least` raises what is required.
    pub fn parse(range: Option<&proto::CapacityRange>, least: u64) -> Result<Size, Error> {
        let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
        if required < 0 {
            return Err(Error::invalid("capacity_range.required_bytes", "must not be negative"));
        }
        if limit < 0 {
            return Err(Error::invalid("capacity_range.limit_bytes", "must not be negative"));
        }
        let least = i64::try_from(least).unwrap_or(i64::MAX);
        let required = if required == 0 { 0 } else { required.max(least) };
        if limit != 0 && required > limit {
            let problem = format!("{required} bytes are required, which is more than limit_bytes, {limit}");
            return Err(Error::invalid("capacity_range.required_bytes", problem));
        }
        let size = match required {
            0 if limit == 0 || limit >= DEFAULT => DEFAULT.max(least),
            // What is made in whole extents of LVM must not become more than that.
            0 if limit >= EXTENT => limit - limit % EXTENT,
            0 => limit - limit % UNIT,
            required => required
                .checked_add(UNIT - 1)
                .map(|size| size - size % UNIT)
                .ok_or_else(|| Error::invalid("capacity_range.required_bytes", "is too large"))?,
        };
        if size == 0 || size < least {
            let problem = format!("{limit} is less than the smallest volume, {} bytes", least.max(UNIT));
            return Err(Error::invalid("capacity_range.limit_bytes", problem));
        }
        if limit != 0 && size > limit {
            let problem =
                format!("{required} bytes become {size} in whole units of {UNIT}, more than limit_bytes");
            return Err(Error::invalid("capacity_range.required_bytes", problem));
        }
        let number = |value: i64| u64::try_from(value).unwrap_or_default();
        Ok(Size { required: number(size), limit: (limit != 0).then(|| number(limit)) })
    }
}

/// How a volume is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// As a filesystem or as a block device.
    pub how: How,
    /// By whom.
    pub mode: Mode,
}

/// As what a volume is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// As a filesystem.
    Filesystem {
        /// Its type; empty for the default.
        kind: String,
        /// Mount options.
        flags: Vec<String>,
    },
    /// As a block device.
    Block,
}

/// By whom a volume is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One node writes.
    Writer,
    /// One pod on one node writes.
    SingleWriter,
    /// One node reads.
    Reader,
}

impl Access {
    /// Parses one capability.
    pub fn parse(field: &str, capability: &proto::VolumeCapability) -> Result<Access, Error> {
        Ok(Access { how: how(field, capability)?, mode: mode(field, capability.access_mode.as_ref())? })
    }

    /// Parses the one of a volume that is there: another mode than it has is no mistake of the request alone.
    pub fn parse_of_present(field: &str, capability: &proto::VolumeCapability) -> Result<Access, Error> {
        let mode = mode(field, capability.access_mode.as_ref());
        let mode = mode.map_err(|error| Error::new(Kind::Precondition, error.message))?;
        Ok(Access { how: how(field, capability)?, mode })
    }

    /// Fills in the filesystem that a class names, where the capability names none.
    pub fn complete(&mut self, default: Option<&str>) {
        if let (How::Filesystem { kind, .. }, Some(default)) = (&mut self.how, default)
            && kind.is_empty()
        {
            default.clone_into(kind);
        }
    }

    /// Parses all capabilities of a request; there must be one.
    pub fn parse_all(field: &str, capabilities: &[proto::VolumeCapability]) -> Result<Vec<Access>, Error> {
        if capabilities.is_empty() {
            return Err(Error::invalid(field, "is missing: name at least one way of access"));
        }
        let each = capabilities.iter().enumerate();
        each.map(|(position, capability)| Access::parse(&format!("{field}[{position}]"), capability))
            .collect()
    }
}

fn how(field: &str, capability: &proto::VolumeCapability) -> Result<How, Error> {
    use proto::volume_capability::AccessType;
    match &capability.access_type {
        Some(AccessType::Block(_)) => Ok(How::Block),
        Some(AccessType::Mount(mount)) => {
            Ok(How::Filesystem { kind: mount.fs_type.clone(), flags: mount.mount_flags.clone() })
        }
        None => Err(Error::invalid(
            &format!("{field}.access_type"),
            "unknown or empty access_type: give mount or block",
        )),
    }
}

fn mode(field: &str, mode: Option<&proto::volume_capability::AccessMode>) -> Result<Mode, Error> {
    use proto::volume_capability::access_mode::Mode as Asked;
    let field = format!("{field}.access_mode.mode");
    let Some(mode) = mode else { return Ok(Mode::Writer) };
    match Asked::try_from(mode.mode) {
        Ok(Asked::SingleNodeWriter | Asked::SingleNodeMultiWriter) => Ok(Mode::Writer),
        Ok(Asked::SingleNodeSingleWriter) => Ok(Mode::SingleWriter),
        Ok(Asked::SingleNodeReaderOnly) => Ok(Mode::Reader),
        Ok(
            asked @ (Asked::Unknown
            | Asked::MultiNodeReaderOnly
            | Asked::MultiNodeSingleWriter
            | Asked::MultiNodeMultiWriter),
        ) => Err(Error::invalid(
            &field,
            format!("unsupported access mode: {}: a volume is on one node", asked.as_str_name()),
        )),
        Err(_) => Err(Error::invalid(&field, format!("unsupported access mode: {}", mode.mode))),
    }
}

/// The volume or snapshot that a call is about, in its log lines.
pub(crate) fn about(id: &str) {
    tracing::Span::current().record("volume", id);
}

/// The name that a caller gives to what it asks for, in the call's log lines.
pub(crate) fn called(name: &str) {
    tracing::Span::current().record("called", name);
}

/// The volume or snapshot that a call names.
pub(crate) fn id<'a>(field: &str, value: &'a str) -> Result<&'a str, Error> {
    about(value);
    given(field, value)
}

/// A field that must not be empty.
pub(crate) fn given<'a>(field: &str, value: &'a str) -> Result<&'a str, Error> {
    if value.is_empty() { Err(Error::invalid(field, "is missing")) } else { Ok(value) }
}

/// A path that must be absolute and lead nowhere else.
pub(crate) fn path(field: &str, value: &str) -> Result<std::path::PathBuf, Error> {
    use std::path::Component;
    let path = std::path::PathBuf::from(given(field, value)?);
    let plain = |component: Component<'_>| matches!(component, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) || value.contains('\0') {
        return Err(Error::invalid(field, format!("{value:?} is no absolute path")));
    }
    Ok(path.components().collect())
}

/// A path at which something was published. One that cannot be is not found, and not a mistake.
pub(crate) fn published_path(field: &str, value: &str) -> Result<std::path::PathBuf, Error> {
    given(field, value)?;
    path(field, value).map_err(|error| Error::new(Kind::NotFound, error.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size(required_bytes: i64, limit_bytes: i64) -> Result<u64, Kind> {
        let range = proto::CapacityRange { required_bytes, limit_bytes };
        Size::parse(Some(&range), 0).map(|size| size.required).map_err(|error| error.kind)
    }

    #[test]
    fn sizes_are_read_as_topolvm_reads_them() {
        const GIB: i64 = 1 << 30;
        for (required, limit) in [(-1, 10), (10, -1), (20, 10), (GIB + 1, GIB + 1), (0, 4095)] {
            assert_eq!(size(required, limit), Err(Kind::Invalid), "{required} {limit}");
        }
        for (required, limit, expected) in [
            (0, 4097, 4096),
            (0, 1_000_000_000, 238 << 22),
            (1, 8192, 4096),
            (0, 2 * GIB, 1 << 30),
            (1, 0, 4096),
            (GIB, GIB, 1 << 30),
            (0, 0, 1 << 30),
        ] {
            assert_eq!(size(required, limit), Ok(expected), "{required} {limit}");
        }
        assert_eq!(size(i64::MAX, 0), Err(Kind::Invalid));
        assert_eq!(Size::parse(None, 0).unwrap().required, 1 << 30);
    }

    #[test]
    fn what_is_required_is_raised_to_the_least() {
        let range = |required_bytes, limit_bytes| proto::CapacityRange { required_bytes, limit_bytes };
        assert_eq!(Size::parse(Some(&range(1, 0)), 300 << 20).unwrap().required, 300 << 20);
        assert_eq!(Size::parse(Some(&range(1, 1 << 20)), 300 << 20).unwrap_err().kind, Kind::Invalid);
    }

    #[test]
    fn paths_lead_where_they_say() {
        for bad in ["", "relative", "/a/../b", "../x"] {
            assert!(path("target_path", bad).is_err(), "{bad:?}");
        }
        assert_eq!(path("target_path", "/a//b/").unwrap(), std::path::Path::new("/a/b"));
    }

    proptest! {
        #[test]
        fn a_path_leads_nowhere_else(text in "\\PC{0,30}|[/.a\\x00]{0,12}") {
            if let Ok(found) = path("target_path", &text) {
                prop_assert!(text.starts_with('/') && !text.contains('\0'));
                prop_assert!(text.split('/').all(|part| part != ".."));
                prop_assert_eq!(path("target_path", found.to_str().unwrap()).unwrap(), found);
            } else {
                let kind = if text.is_empty() { Kind::Invalid } else { Kind::NotFound };
                prop_assert_eq!(published_path("target_path", &text).unwrap_err().kind, kind);
            }
        }

        #[test]
        fn a_path_of_names_is_that_path(names in prop::collection::vec("[a-z0-9~.]{1,8}[a-z]", 1..6)) {
            let (text, doubled) = (format!("/{}", names.join("/")), format!("//{}/", names.join("//")));
            prop_assert_eq!(path("target_path", &text).unwrap(), std::path::Path::new(&text));
            prop_assert_eq!(path("target_path", &doubled).unwrap(), std::path::Path::new(&text));
        }

        #[test]
        fn a_size_is_within_its_range(required in any::<i64>(), limit in any::<i64>(), least in 0u64..1 << 40) {
            let range = proto::CapacityRange { required_bytes: required, limit_bytes: limit };
            if let Ok(size) = Size::parse(Some(&range), least) {
                prop_assert!(size.required % 4096 == 0 && size.required > 0);
                prop_assert!(i64::try_from(size.required).unwrap() >= required);
                prop_assert!(size.limit.is_none_or(|limit| size.required <= limit));
            }
        }
    }
}
