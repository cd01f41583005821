//! One tool at a time on one device, whoever has started it: what a killed driver has begun goes on without it.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::lvm::inventory::DeviceNumber;

/// A claim to a device. It ends when this is dropped and every tool that was started with it has ended.
#[derive(Debug)]
pub struct Claim(File);

impl Claim {
    /// Takes it, unless somebody has it. In the directory is a file for each number that a device has had since the boot:
    /// numbers are given again.
    pub(super) fn try_take(directory: &Path, device: DeviceNumber) -> io::Result<Option<Claim>> {
        fs::create_dir_all(directory)?;
        let path = directory.join(format!("{}:{}", device.major, device.minor));
        let file = File::options().create(true).append(true).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Claim(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What a tool has to keep open.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }
}
