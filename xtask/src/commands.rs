//! The commands that a person types.

pub(crate) mod cache;
pub(crate) mod deny;
pub(crate) mod lab;
pub(crate) mod setup;
pub(crate) mod test;
