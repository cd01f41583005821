//! A driver in a process of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Client, Error};

/// A driver that does not serve after this long never will: emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// A driver, killed when this is dropped.
pub struct Driver {
    /// Its process.
    pub process: Child,
    socket: PathBuf,
}

impl Driver {
    /// Starts it with this command, and waits until it serves at the socket.
    pub fn start(command: &mut Command, socket: &Path) -> Result<Driver, Error> {
        // One that was killed has left it.
        let _ = fs::remove_file(socket);
        let process = command.stdin(Stdio::null()).spawn()?;
        let mut driver = Driver { process, socket: socket.to_owned() };
        let deadline = Instant::now() + PATIENCE;
        while driver.connect().is_err() {
            if let Some(status) = driver.process.try_wait()? {
                return Err(format!("the driver ended with {status}").into());
            }
            if Instant::now() > deadline {
                return Err("the driver does not serve".into());
            }
            sleep(Duration::from_millis(50));
        }
        Ok(driver)
    }

    /// A connection to it.
    pub fn connect(&self) -> Result<Client, Error> {
        Client::connect(&self.socket)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
