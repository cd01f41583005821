//! `lvms standalone` under test: started, killed, and asked.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lab_csi::{Client, Code, Status};
use lab_test::{Lab, Result};

/// Where the lab puts the driver.
pub(crate) const PROGRAM: &str = "/lab/lvms";

pub(crate) const MIB: i64 = 1 << 20;

/// A driver that runs, and a connection to it. Dropped, it is killed.
pub(crate) struct Driver {
    pub(crate) process: Child,
    pub(crate) client: Client,
    socket: PathBuf,
}

impl Driver {
    /// Starts one with these device classes.
    pub(crate) fn start(lab: &Lab, classes: &str, options: &[&str]) -> Result<Driver> {
        Driver::start_named(lab, "driver", classes, options)
    }

    /// Starts one beside others: this name is in all that it has of its own.
    pub(crate) fn start_named(lab: &Lab, name: &str, classes: &str, options: &[&str]) -> Result<Driver> {
        let (configuration, socket) = (place(lab, name, "yaml"), place(lab, name, "sock"));
        fs::write(&configuration, format!("device-classes:\n{classes}"))?;
        let mut log = fs::File::options().create(true).append(true).open(place(lab, name, "log"))?;
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(PROGRAM);
        command.arg("standalone").arg("--config").arg(configuration).arg("--endpoint").arg(&socket);
        command.args(["--node-id", "here"]).args(options).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let said = process.stderr.take().ok_or("the driver has no standard error")?;
        // Beside what the test does, and in a file for tests that wait for a line.
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(std::result::Result::ok) {
                println!("{line}");
                let _ = writeln!(log, "{line}");
            }
        });
        let served = lab.wait_for("the driver to serve", || {
            if matches!(process.try_wait(), Ok(Some(_))) {
                return Some(Err("the driver has ended"));
            }
            Client::connect(&socket).ok().map(Ok)
        });
        match served.and_then(|client| client.map_err(Into::into)) {
            Ok(client) => Ok(Driver { process, client, socket }),
            Err(error) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(error)
            }
        }
    }

    /// One more connection, for another thread.
    pub(crate) fn connect(&self) -> Result<Client> {
        Client::connect(&self.socket)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn place(lab: &Lab, name: &str, extension: &str) -> PathBuf {
    lab.state().join(name).with_extension(extension)
}

/// The answer must be this code, with all these parts in its message.
#[track_caller]
pub(crate) fn refused<T>(answer: std::result::Result<T, Status>, code: Code, parts: &[&str]) -> String {
    let Err(status) = answer else { panic!("succeeded, and should have been refused with {code:?}") };
    assert_eq!(status.code(), code, "{}", status.message());
    for part in parts {
        assert!(status.message().contains(part), "{:?} lacks {part:?}", status.message());
    }
    status.message().to_owned()
}

/// A device node of a volume.
pub(crate) fn device(group: &str, id: &str) -> PathBuf {
    Path::new("/dev/mapper").join(format!("{}-{}", group.replace('-', "--"), id.replace('-', "--")))
}
