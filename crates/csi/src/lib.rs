//! The Container Storage Interface 1.12: Identity, Controller and Node over the traits [`Volumes`] and [`NodeVolumes`].
//!
//! Requests are parsed once, at the edge ([`request`]): what comes behind has sizes, names and ways of access, and no
//! maps of strings. What goes wrong is an [`Error`] whose kind decides the code, in one place ([`error`]). Calls on one
//! volume follow each other ([`locks`]); calls on different ones do not wait.
//!
//! This crate knows nothing of LVM and nothing of Kubernetes.

mod controller;
pub mod error;
mod identity;
pub mod locks;
mod node;
mod paging;
#[expect(missing_docs, clippy::all)]
pub mod proto {
    //! Generated from `csi.proto`.
    tonic::include_proto!("csi.v1");
}
pub mod registration {
    //! Generated from `registration.proto`: how the kubelet finds a driver.
    tonic::include_proto!("pluginregistration");
}
pub mod request;
pub mod sockets;
pub mod volumes;

pub use controller::Controller;
pub use error::{Error, Kind};
pub use identity::Identity;
pub use node::Node;
pub use volumes::{NodeVolumes, Volumes};
