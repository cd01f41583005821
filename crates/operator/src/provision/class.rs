//! What a StorageClass asks of a volume.

use std::collections::BTreeMap;

use lvms_api::Personality;
use lvms_api::names::kubernetes::PARAMETER_PREFIX;

/// What a StorageClass asks of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parameters {
    /// The device class; empty for the default of the node.
    pub device_class: String,
    /// The class of options for lvcreate; empty for none.
    pub option_class: String,
    /// The filesystem; empty if the class does not say.
    pub filesystem: String,
    /// What nobody knows, and is left out as TopoLVM leaves it out.
    pub unknown: Vec<String>,
}

/// Filesystems that volumes can have, with their least sizes, as TopoLVM has them.
const FILESYSTEMS: [(&str, u64); 3] = [("ext4", 32 << 20), ("xfs", 300 << 20), ("btrfs", 200 << 20)];

/// The least size of a block volume.
const LEAST_BLOCK: u64 = 8 << 20;

/// LVM is asked for whole pages.
const GRAIN: u64 = 4096;

/// What is given to who asks for nothing.
const DEFAULT_SIZE: u64 = 1 << 30;

/// Secrets that external-provisioner would read; LVM has no use for them.
const SECRETS: [&str; 8] = [
    "secret",
    "provisioner-secret",
    "controller-publish-secret",
    "node-stage-secret",
    "node-publish-secret",
    "controller-expand-secret",
    "node-expand-secret",
    "controller-modify-secret",
];

impl Parameters {
    /// Reads them. What is wrong is told with its key and what to write.
    pub fn read(
        parameters: &BTreeMap<String, String>,
        personality: Personality,
    ) -> Result<Parameters, String> {
        let mut read = Parameters::default();
        let (class, options) = (personality.device_class_parameter(), personality.option_class_parameter());
        let own = format!("{}/", personality.driver());
        for (key, value) in parameters {
            if *key == class {
                read.device_class.clone_from(value);
            } else if *key == options {
                read.option_class.clone_from(value);
            } else if key == "csi.storage.k8s.io/fstype" || key.eq_ignore_ascii_case("fstype") {
                if !read.filesystem.is_empty() && read.filesystem != *value {
                    return Err(format!(
                        "parameters[{key:?}]: the filesystem is named twice: keep one of them"
                    ));
                }
                read.filesystem.clone_from(value);
            } else if let Some(rest) = key.strip_prefix(PARAMETER_PREFIX) {
                let secret = rest.strip_suffix("-name").or_else(|| rest.strip_suffix("-namespace"));
                if !secret.is_some_and(|secret| SECRETS.contains(&secret)) {
                    return Err(format!("parameters[{key:?}] is not known: remove it"));
                }
            } else if key.starts_with(&own) {
                return Err(format!("parameters[{key:?}] is not known: known are {class:?} and {options:?}"));
            } else {
                read.unknown.push(key.clone());
            }
        }
        let known = FILESYSTEMS.map(|(name, _)| name);
        if !read.filesystem.is_empty() && !known.contains(&read.filesystem.as_str()) {
            return Err(format!(
                "parameters[\"csi.storage.k8s.io/fstype\"]: there is no filesystem {:?} here: use one of {}",
                read.filesystem,
                known.join(", ")
            ));
        }
        Ok(read)
    }

    /// The size of a volume for who asks for so much.
    pub fn size(&self, requested: u64, block: bool) -> Result<u64, String> {
        let least = if block {
            LEAST_BLOCK
        } else {
            FILESYSTEMS.iter().find(|(name, _)| *name == self.filesystem).map_or(0, |(_, least)| *least)
        };
        let wanted = if requested == 0 { DEFAULT_SIZE } else { requested }.max(least);
        let size = wanted.checked_next_multiple_of(GRAIN).filter(|size| i64::try_from(*size).is_ok());
        size.ok_or_else(|| format!("{wanted} bytes are more than a volume can have: request less"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Parameters, String> {
        let parameters =
            parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Parameters::read(&parameters, Personality::Topolvm)
    }

    #[test]
    fn classes_of_topolvm_are_read() {
        let read = read(&[
            ("topolvm.io/device-class", "ssd"),
            ("topolvm.io/lvcreate-option-class", "raid1"),
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("csi.storage.k8s.io/provisioner-secret-name", "s"),
            ("color", "red"),
        ]);
        let expected = Parameters {
            device_class: "ssd".into(),
            option_class: "raid1".into(),
            filesystem: "xfs".into(),
            unknown: vec!["color".into()],
        };
        assert_eq!(read, Ok(expected));
        assert_eq!(super::Parameters::read(&BTreeMap::new(), Personality::Legacy), Ok(Parameters::default()));
    }

    #[test]
    fn every_mistake_is_told_with_its_key() {
        for (key, value) in [
            ("topolvm.io/deviceclass", "ssd"),
            ("csi.storage.k8s.io/fstypo", "xfs"),
            ("csi.storage.k8s.io/fstype", "zfs"),
        ] {
            let error = read(&[(key, value)]).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
        let error = read(&[("csi.storage.k8s.io/fstype", "xfs"), ("fsType", "ext4")]).unwrap_err();
        assert!(error.contains("twice"), "{error}");
    }

    #[test]
    fn sizes_are_those_of_topolvm() {
        let of = |filesystem: &str| Parameters { filesystem: filesystem.into(), ..Parameters::default() };
        assert_eq!(of("xfs").size(100 << 20, false), Ok(300 << 20));
        assert_eq!(of("btrfs").size(100 << 20, false), Ok(200 << 20));
        assert_eq!(of("ext4").size(1, false), Ok(32 << 20));
        assert_eq!(of("").size(1, false), Ok(4096));
        assert_eq!(of("xfs").size(1 << 20, true), Ok(8 << 20));
        assert_eq!(of("").size(0, false), Ok(1 << 30));
        assert_eq!(of("").size((1 << 30) + 1, false), Ok((1 << 30) + 4096));
        assert!(of("").size(u64::MAX, false).is_err());
    }
}
