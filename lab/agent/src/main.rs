//! The first program of a guest: it boots it and runs what the lab asks for.
//!
//! - As `/init` of the initramfs ([`initramfs`]) it loads the drivers and moves into the root image.
//! - As process 1 of that root ([`system`]) it makes the guest a Linux host: mounts, network, udev, LVM policy.
//! - As `serve` ([`serve`]) it runs programs for the lab, one connection each.
//!
//! It is linked statically, because the initramfs has no libraries.

mod cmdline;
mod initramfs;
mod serve;
mod system;

use std::error::Error;
use std::process::ExitCode;

/// Any failure here ends the boot, with its text on the console.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let outcome = match argument.as_deref() {
        None if rustix::process::getpid().is_init() => initramfs::enter(),
        Some("system") => system::start(),
        Some("serve") => serve::forever(),
        _ => Err("lab-agent is the first program of a lab guest; it is started by the kernel".into()),
    };
    if let Err(error) = outcome {
        eprintln!("lab-agent: {error}");
        if rustix::process::getpid().is_init() {
            let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
        }
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
