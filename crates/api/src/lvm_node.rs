//! What a node tells the cluster about itself: its volume groups, how full they are, and what can be had of each
//! device class. One object per node, named after it.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{Resource, TypeMeta};
use serde::{Deserialize, Serialize};

use crate::Quantity;

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LvmNode {
    /// Kind and version, as they are written.
    #[serde(flatten)]
    pub types: TypeMeta,
    /// Its name is that of the Node.
    pub metadata: ObjectMeta,
    /// What is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The worst of its groups and classes.
    #[serde(default)]
    pub state: State,
    /// How full it is, in one line for people.
    #[serde(default)]
    pub used: String,
    /// Its volume groups.
    #[serde(default)]
    pub volume_groups: Vec<VolumeGroup>,
    /// What is offered of them.
    #[serde(default)]
    pub device_classes: Vec<DeviceClass>,
    /// How it is, for programs.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// A condition of Kubernetes. Its time is kept as it was written: not all that the API server takes for one is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// What holds, or does not.
    pub r#type: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Since when.
    pub last_transition_time: String,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default)]
pub enum State {
    /// Nothing is wrong.
    #[default]
    Ready,
    /// It serves, and somebody should look at it.
    Degraded,
    /// It does not serve.
    Failed,
    /// A state of a later version.
    #[serde(other)]
    Unknown,
}

/// A volume group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroup {
    /// Its name.
    pub name: String,
    /// How it is.
    #[serde(default)]
    pub state: State,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How large it is.
    #[serde(default)]
    pub size: Quantity,
    /// How much of it nobody has.
    #[serde(default)]
    pub free: Quantity,
    /// What of ours no LogicalVolume names; `None` if there is nothing, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unnamed: Option<Unnamed>,
    /// Its disks.
    #[serde(default)]
    pub devices: Devices,
    /// Its thin pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Pool>,
}

/// LVs that no LogicalVolume names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Unnamed {
    /// How many.
    pub count: u64,
    /// How large they are together; thin ones take less.
    pub size: Quantity,
}

/// Disks of a volume group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Devices {
    /// Those that it consists of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub included: Vec<Device>,
    /// Those that it does not consist of, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Excluded>,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Device {
    /// The kernel's name for it.
    pub kname: String,
}

/// A disk that is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Excluded {
    /// The kernel's name for it.
    pub kname: String,
    /// Why.
    #[serde(default)]
    pub reasons: Vec<String>,
}

/// A thin pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// How large it is.
    #[serde(default)]
    pub size: Quantity,
    /// How full of data, like `63.2`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub data_percent: String,
    /// How full of metadata.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metadata_percent: String,
}

/// What is offered under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClass {
    /// The name.
    pub name: String,
    /// The volume group of it.
    pub volume_group: String,
    /// The thin pool of it, if it is thin.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thin_pool: String,
    /// Whether it is meant when none is named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// How it is.
    #[serde(default)]
    pub state: State,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The largest volume that can be had.
    #[serde(default)]
    pub available: Quantity,
    /// The same for each class of options for lvcreate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lvcreate_option_classes: Vec<OptionClass>,
}

impl DeviceClass {
    /// Whether this name means it; none means the default one.
    pub fn is_meant(&self, name: &str) -> bool {
        if name.is_empty() { self.default } else { self.name == name }
    }
}

/// What can be had of a device class with certain options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct OptionClass {
    /// The name of the options.
    pub name: String,
    /// The largest volume that can be had.
    #[serde(default)]
    pub available: Quantity,
}

impl LvmNode {
    /// The one of this node.
    pub fn new(name: &str, namespace: &str) -> LvmNode {
        LvmNode {
            types: TypeMeta {
                api_version: LvmNode::api_version(&()).into_owned(),
                kind: LvmNode::kind(&()).into_owned(),
            },
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            status: None,
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// A device class, or the default one if none is named.
    pub fn class(&self, name: &str) -> Option<&DeviceClass> {
        self.status.as_ref()?.device_classes.iter().find(|offered| offered.is_meant(name))
    }

    /// The largest volume that a device class can give, with the options of a class of options if one is named. `None`
    /// if the node offers no such thing.
    pub fn available(&self, class: &str, options: &str) -> Option<u64> {
        let class = self.class(class)?;
        let available = match options {
            "" => &class.available,
            options => {
                &class.lvcreate_option_classes.iter().find(|offered| offered.name == options)?.available
            }
        };
        available.bytes().ok()
    }
}

impl Resource for LvmNode {
    type DynamicType = ();
    type Scope = kube_core::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "LVMNode".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "lvm.topolvm.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v2alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "lvmnodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_had_depends_on_class_and_options() {
        let mut node = LvmNode::new("n1", "lvms");
        assert_eq!(node.available("ssd", ""), None);
        let raid = OptionClass { name: "raid1".into(), available: Quantity::of(5) };
        let ssd = DeviceClass {
            name: "ssd".into(),
            available: Quantity::of(10),
            default: true,
            lvcreate_option_classes: vec![raid],
            ..DeviceClass::default()
        };
        let hdd = DeviceClass { name: "hdd".into(), available: Quantity::of(99), ..DeviceClass::default() };
        node.status = Some(Status { device_classes: vec![hdd, ssd], ..Status::default() });
        assert_eq!(node.available("ssd", ""), Some(10));
        assert_eq!(node.available("", ""), Some(10));
        assert_eq!(node.available("", "raid1"), Some(5));
        assert_eq!(node.available("hdd", "raid1"), None);
        assert_eq!(node.available("nvme", ""), None);
    }

    #[test]
    fn what_the_api_server_lets_a_node_write_can_be_read() {
        let status = serde_json::json!({
            "volumeGroups": [{"name": "vg", "devices": {"included": [{}], "excluded": [{"reasons": []}]}}],
            "deviceClasses": [{"name": "ssd", "available": "much"}],
            "conditions": [{
                "type": "X", "status": "True", "reason": "", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00+99:99",
            }],
        });
        let status: Status = serde_json::from_value(status).unwrap();
        assert_eq!(status.conditions[0].last_transition_time, "2026-01-01T00:00:00+99:99");
        assert_eq!((status.volume_groups.len(), status.device_classes.len()), (1, 1));
    }

    #[test]
    fn a_state_of_a_later_version_can_be_read() {
        let status: Status = serde_json::from_value(serde_json::json!({"state": "Sleeping"})).unwrap();
        assert_eq!(status.state, State::Unknown);
    }
}
