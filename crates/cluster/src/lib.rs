//! A Kubernetes cluster as lvms sees it: what the `kube` crate lacks. Knows nothing of volumes or hosts.
//!
//! - [`connection`]: the way to the API server.
//! - [`slim`]: objects of Kubernetes with the fields that are read, and no others.
//! - [`store`]: the objects of one kind that are ours, kept up to date by one watch.
//! - [`pages`]: all objects of a kind as the API itself has them.
//! - [`work`]: names of what has to be looked at, each by one at a time, again after a while if it failed.
//! - [`lease`]: who of several is the leader.
//! - [`events`]: what people see in `kubectl describe`.
//! - [`write`]: creating, changing and deleting, guarded against what others did meanwhile, with points at which a build
//!   for tests ends itself (`crash`).

pub mod connection;
mod crash;
pub mod events;
pub mod lease;
pub mod pages;
pub mod slim;
pub mod store;
pub mod work;
pub mod write;

pub use connection::Connection;
pub use events::{Events, Reference};
pub use store::{Key, Store};
pub use work::{Busy, Outcome, Work};
