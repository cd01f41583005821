//! This Linux host: its disks, LVM, filesystems and mounts. Knows neither Kubernetes nor gRPC.

pub mod attention;
pub mod causes;
pub mod desired;
mod direct;
pub mod dm;
pub mod facts;
pub mod filesystem;
pub mod lvm;
pub mod mount;
pub mod names;
pub mod plan;
pub mod publish;
mod queue;
pub mod runner;
pub mod simulated;
pub mod units;
pub mod volumes;

pub use queue::{NoTurn, Stuck};
