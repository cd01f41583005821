//! The driver under measurement, as a child of this process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab_csi::Client;

use crate::Result;

const PROGRAM: &str = "/lab/lvms";
const CONFIGURATION: &str = "/run/lvmd.yaml";
const SOCKET: &str = "/run/csi.sock";
const LOG: &str = "/run/lvms.log";

/// `lvms standalone`, until it is dropped.
pub(crate) struct Driver(lab_csi::Driver);

impl Driver {
    /// Starts it, and waits until it serves.
    pub(crate) fn start() -> Result<Driver> {
        let mut command = Command::new(PROGRAM);
        command.args(["--log", "json", "standalone", "--config", CONFIGURATION, "--endpoint", SOCKET]);
        let started = lab_csi::Driver::start(command.stderr(File::create(LOG)?), Path::new(SOCKET));
        started
            .map(Driver)
            .map_err(|error| format!("{error}: {}", fs::read_to_string(LOG).unwrap_or_default()).into())
    }

    /// A connection of its own.
    pub(crate) fn client(&self) -> Result<Client> {
        self.0.connect()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.0.process.id()
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

fn copies(log: &str) -> Vec<f64> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let copies = lines.filter(|line| line["message"] == "long work ended" && line["what"] == "copy");
    copies.filter_map(|line| line["seconds"].as_f64()).collect()
}
