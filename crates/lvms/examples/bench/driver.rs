//! The driver under measurement, as a child of this process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use lab_csi::Client;

use crate::Result;

const PROGRAM: &str = "/lab/lvms";
const CONFIGURATION: &str = "/run/lvmd.yaml";
const SOCKET: &str = "/run/csi.sock";
const LOG: &str = "/run/lvms.log";

/// A driver that does not serve after this long never will.
const LIMIT: Duration = Duration::from_secs(120);

/// `lvms standalone`, until it is dropped.
pub(crate) struct Driver {
    child: Child,
}

impl Driver {
    /// Starts it, and waits until it serves.
    pub(crate) fn start() -> Result<Driver> {
        let _ = fs::remove_file(SOCKET);
        let log = File::create(LOG)?;
        let child = Command::new(PROGRAM)
            .args(["--log", "json", "standalone", "--config", CONFIGURATION])
            .args(["--endpoint", &format!("unix://{SOCKET}")])
            .stderr(log)
            .spawn()?;
        let mut driver = Driver { child };
        let began = Instant::now();
        while !Path::new(SOCKET).exists() {
            if driver.child.try_wait()?.is_some() || began.elapsed() > LIMIT {
                return Err(format!("the driver does not serve: {}", fs::read_to_string(LOG)?).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(driver)
    }

    /// A connection of its own.
    pub(crate) fn client(&self) -> Result<Client> {
        Client::connect(Path::new(SOCKET))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it holds of memory, in MiB.
    pub(crate) fn resident(&self) -> Result<f64> {
        let text = fs::read_to_string(PathBuf::from(format!("/proc/{}/smaps_rollup", self.pid())))?;
        let resident = text.lines().find_map(|line| line.strip_prefix("Rss:"));
        let kibibytes: f64 = resident.ok_or("no Rss")?.trim().trim_end_matches(" kB").parse()?;
        Ok(kibibytes / 1024.0)
    }

    /// How long its copies took, in seconds, by its own log.
    pub(crate) fn copies(&self) -> Result<Vec<f64>> {
        Ok(copies(&fs::read_to_string(LOG)?))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copies(log: &str) -> Vec<f64> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let copies = lines.filter(|line| line["message"] == "long work ended" && line["what"] == "copy");
    copies.filter_map(|line| line["seconds"].as_f64()).collect()
}
