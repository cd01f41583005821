//! For which driver lvms stands in. Everything that differs between them is asked here.

use std::fmt;

/// A driver whose objects and volumes are ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Personality {
    /// TopoLVM under its present name.
    Topolvm,
    /// TopoLVM under the name that it had before 0.16.
    Legacy,
}

impl Personality {
    /// The one that TopoLVM's own switch asks for: any text that is not empty means the former name.
    pub fn from_legacy_switch(use_legacy: Option<&str>) -> Personality {
        match use_legacy {
            None | Some("") => Personality::Topolvm,
            Some(_) => Personality::Legacy,
        }
    }

    /// The name of the CSI driver, and the API group of its LogicalVolumes.
    pub fn driver(self) -> &'static str {
        match self {
            Personality::Topolvm => "topolvm.io",
            Personality::Legacy => "topolvm.cybozu.com",
        }
    }

    /// The label of a node, and of what can be reached from it only, whose value is the node's name.
    pub fn topology_key(self) -> String {
        format!("topology.{}/node", self.driver())
    }

    /// The annotation of a node that says how much of a device class is free.
    pub fn capacity_annotation(self, class: &str) -> String {
        format!("capacity.{}/{class}", self.driver())
    }

    /// What the annotations of all device classes begin with.
    pub fn capacity_prefix(self) -> String {
        format!("capacity.{}/", self.driver())
    }

    /// The parameter of a StorageClass that names the device class.
    pub fn device_class_parameter(self) -> String {
        format!("{}/device-class", self.driver())
    }

    /// The parameter of a StorageClass that names a class of options for lvcreate.
    pub fn option_class_parameter(self) -> String {
        format!("{}/lvcreate-option-class", self.driver())
    }

    /// The finalizer of a LogicalVolume whose LV may still be there.
    pub fn volume_finalizer(self) -> String {
        format!("{}/logicalvolume", self.driver())
    }

    /// The finalizer of a Node on which volumes may be.
    pub fn node_finalizer(self) -> String {
        format!("{}/node", self.driver())
    }

    /// The annotation of a LogicalVolume that says when it was asked to grow.
    pub fn resize_requested(self) -> String {
        format!("{}/resize-requested-at", self.driver())
    }

    /// The annotation of a LogicalVolume whose node has left: no node acts upon it any more.
    pub fn pending_deletion(self) -> String {
        format!("{}/pendingdeletion", self.driver())
    }
}

impl fmt::Display for Personality {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.driver())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_asks_for_the_former_name_as_in_topolvm() {
        assert_eq!(Personality::from_legacy_switch(None), Personality::Topolvm);
        assert_eq!(Personality::from_legacy_switch(Some("")), Personality::Topolvm);
        assert_eq!(Personality::from_legacy_switch(Some("true")), Personality::Legacy);
        assert_eq!(Personality::from_legacy_switch(Some("false")), Personality::Legacy);
    }
}
