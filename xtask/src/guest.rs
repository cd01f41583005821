//! Virtual machines: a kernel, a root image, disks that can be plugged, broken and cut off, and programs run inside.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod bus;
mod command;
mod console;
pub(crate) mod kernel;
mod machine;
pub(crate) mod medium;
mod scsi;
mod shell;
mod start;
mod store;

pub(crate) use machine::{Guest, Spec};
pub(crate) use shell::shell;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
