//! What the host shall offer: device classes, each a volume group or a thin pool in one, and named sets of options.
//!
//! The source today is an `lvmd.yaml` as TopoLVM has it ([`lvmd`]).

pub mod lvmd;
mod yaml;

use std::collections::BTreeMap;

use crate::names::{LvName, VgName};
use crate::units::Bytes;

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Desired {
    /// The classes, in the order of the file.
    pub classes: Vec<DeviceClass>,
    /// Sets of options for lvcreate, by name.
    pub option_classes: BTreeMap<String, Vec<String>>,
    /// Words that run lvm2, with lvm2's own program at the end, if the host needs special ones.
    pub lvm_command_prefix: Option<Vec<String>>,
    /// Where TopoLVM's lvmd would listen.
    pub socket_name: Option<String>,
}

/// Something that volumes can be made of.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceClass {
    /// Its name.
    pub name: String,
    /// The volume group.
    pub group: VgName,
    /// Whether volumes that name no class are made of it.
    pub default: bool,
    /// What stays free, for the administrator.
    pub spare: Bytes,
    /// Thick or thin.
    pub kind: ClassKind,
    /// Over how many disks volumes are spread; 0 means that LVM decides.
    pub stripe: u64,
    /// The size of a stripe, as lvcreate takes it.
    pub stripe_size: Option<String>,
    /// Options for lvcreate.
    pub options: Vec<String>,
}

/// Whether volumes have their own extents or share a pool.
#[derive(Debug, Clone, PartialEq)]
pub enum ClassKind {
    /// Their own.
    Thick,
    /// A pool.
    Thin {
        /// Its name.
        pool: LvName,
        /// How many times its size may be promised.
        overprovision_ratio: f64,
    },
}

impl ClassKind {
    fn pool(&self) -> Option<&LvName> {
        match self {
            ClassKind::Thick => None,
            ClassKind::Thin { pool, .. } => Some(pool),
        }
    }
}

impl Desired {
    /// The class of this name; the default one for an empty name.
    pub fn class(&self, name: &str) -> Option<&DeviceClass> {
        if name.is_empty() {
            return self.classes.iter().find(|class| class.default);
        }
        self.classes.iter().find(|class| class.name == name)
    }

    /// The classes whose volumes lie in this group.
    pub fn classes_of<'a>(&'a self, group: &'a VgName) -> impl Iterator<Item = &'a DeviceClass> {
        self.classes.iter().filter(move |class| class.group == *group)
    }

    /// The volume groups, each once.
    pub fn groups(&self) -> Vec<&VgName> {
        let mut groups: Vec<&VgName> = self.classes.iter().map(|class| &class.group).collect();
        groups.sort();
        groups.dedup();
        groups
    }
}

impl DeviceClass {
    /// The pool, if it is thin.
    pub fn pool(&self) -> Option<&LvName> {
        self.kind.pool()
    }
}
