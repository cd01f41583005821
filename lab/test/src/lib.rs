//! Tests that run in a guest of the lab, on a real kernel with real LVM.
//!
//! A test binary (a `[[test]]` with `harness = false`) lists its tests with [`main!`](crate::main), each with what it
//! needs. `cargo xtask test host` builds it once, asks it for that list, and runs each test in a guest with fresh
//! disks. `cargo test` runs nothing of it, and says so.
//!
//! ```no_run
//! use lab_test::{Lab, Needs, Result, run, GIB};
//!
//! fn a_volume_group_can_be_made(lab: &Lab) -> Result {
//!     run("vgcreate", ["vg", lab.disk(0)])?;
//!     Ok(())
//! }
//!
//! lab_test::main! {
//!     a_volume_group_can_be_made: Needs::disks(1, GIB),
//! }
//! ```

mod lab;
mod program;
mod runner;

pub use lab::Lab;
pub use lab_protocol::disk::{Cut, Disk, Fault, GIB, MIB, link_by_id};
pub use lab_protocol::needs::Needs;
pub use program::{fails, run, run_with_input};
pub use runner::{Test, main};

/// What goes wrong in a test.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How a test ends, unless it panics.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// The `main` of a test binary: each test's function, and what it needs.
#[macro_export]
macro_rules! main {
    ($($test:ident: $needs:expr),+ $(,)?) => {
        fn main() -> std::process::ExitCode {
            $crate::main(&[$($crate::Test { name: stringify!($test), needs: || $needs, body: $test }),+])
        }
    };
}
