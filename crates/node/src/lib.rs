//! One node's part: its volumes served by CSI, and told to the cluster.
//!
//! - [`configuration`]: lvmd.yaml, followed while we run.
//! - [`host_volumes`]: the volumes of this host, whoever asks for them; [`known`]: which these are.
//! - [`published`]: the same volumes, made visible on this node; `asked`: what a dead disk may never answer.
//! - [`status`]: what goes wrong on the host, told to whoever asked.
//! - [`telemetry`], [`metrics`]: how calls are told, and counted.
//!
//! All of the above knows nothing of Kubernetes, and `lvms standalone` has no more. In a cluster there are also:
//!
//! - [`role`]: all of it together, as `lvms vgmanager` runs it.
//! - [`registration`]: the kubelet is told of us.
//! - [`watched`]: the objects of this node, and whether the kubelet knows us.
//! - [`volumes`]: LogicalVolume objects of this node become LVs.
//! - [`report`]: what this node has, as an LVMNode.
//! - [`unnamed`]: LVs of ours that no LogicalVolume names.

mod asked;
pub mod configuration;
pub mod host_volumes;
pub mod known;
pub mod metrics;
pub mod published;
pub mod registration;
pub mod report;
pub mod role;
pub mod status;
pub mod telemetry;
pub mod unnamed;
pub mod volumes;
pub mod watched;
