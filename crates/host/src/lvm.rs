//! LVM: what is asked of it, what it answers, and what is there.
//!
//! lvm2 is driven one process per command ([`crate::runner`]). A command that changes something is a [`Change`]; what
//! is there is an [`Inventory`], read by one report. Answers are log rows and an exit status ([`answer`]): from them
//! comes a typed [`Failure`], so that nobody else reads lvm2's sentences.

pub mod answer;
pub mod change;
pub mod failure;
pub mod inventory;
pub mod metadata;
pub mod model;
pub mod shape;
pub mod system_directory;

pub use change::Change;
pub use failure::Failure;
pub use inventory::{Group, Inventory, Volume};
