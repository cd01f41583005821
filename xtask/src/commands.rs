//! The commands that a person types.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod demo;
pub(crate) mod deny;
pub(crate) mod lab;
pub(crate) mod setup;
pub(crate) mod test;
