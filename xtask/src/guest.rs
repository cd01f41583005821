//! Virtual machines: a kernel, a root image, disks that can be plugged, broken and cut off, and programs run inside.

pub(crate) mod accelerator;
mod command;
mod console;
mod machine;
pub(crate) mod medium;
mod nbd;
mod qemu;
mod qmp;
mod shell;

pub(crate) use machine::{Guest, Spec};
pub(crate) use shell::shell;
