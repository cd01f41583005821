//! The objects that lvms keeps in a Kubernetes cluster, and every name that others know them by.
//!
//! Knows the shape of objects and nothing of how they are read, written or acted upon.
//!
//! - [`personality`]: for which driver lvms stands in, and the names that follow from it.
//! - [`names`]: annotations, labels and finalizers that are the same for all of them.
//! - [`logical_volume`]: TopoLVM's object, one per volume and snapshot: what shall be on a node, and what is.
//! - [`lvm_node`]: what a node tells the cluster about itself.
//! - [`definitions`]: the CustomResourceDefinitions of both.
//! - [`quantity`]: sizes as Kubernetes writes them.

pub mod definitions;
pub mod logical_volume;
pub mod lvm_node;
pub mod names;
pub mod personality;
pub mod quantity;

pub use logical_volume::LogicalVolume;
pub use lvm_node::LvmNode;
pub use personality::Personality;
pub use quantity::Quantity;
