//! This Linux host: its disks, LVM, filesystems and mounts. Knows neither Kubernetes nor gRPC.

pub mod desired;
pub mod dm;
pub mod facts;
pub mod lvm;
pub mod names;
pub mod plan;
mod queue;
pub mod runner;
pub mod simulated;
pub mod units;
pub mod volumes;

pub use queue::{NoTurn, Stuck};
