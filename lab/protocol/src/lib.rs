//! What the lab and its guests say to each other.
//!
//! - [`agent`]: the lab runs a program in a guest. One TCP connection per program.
//! - [`control`]: a test in a guest asks the lab for what only the outside can do: a fault under a disk, a disk
//!   plugged in, a power cut. One JSON line there, one JSON line back.
//! - [`needs`]: what a test says it needs, so that the lab can give it a guest.
//! - [`disk`]: what a disk looks like, and how it can be broken.
//! - [`figures`]: what a benchmark's program has measured.
//! - [`processes`]: how many processes something has cost.
//!
//! This crate knows neither QEMU nor LVM; it holds data and its wire form.

pub mod agent;
pub mod control;
pub mod disk;
pub mod figures;
pub mod needs;
pub mod processes;
