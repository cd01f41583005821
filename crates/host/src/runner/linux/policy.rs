//! The host's policy for LVM: where it is, and how ours follows it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Linux, lock};
use crate::lvm::system_directory::{self, SystemDirectoryError};
use crate::runner::Intent;
use crate::runner::process::ProcessError;

/// The host's own configuration of LVM.
const THEIRS: &str = "/etc/lvm";

/// The state of the host's files and of ours, and which of LVM's daemons run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    theirs: Vec<FileState>,
    ours: FileState,
    daemons: Daemons,
}

type FileState = Option<(u64, i64, i64)>;

/// Which of LVM's daemons the host runs. One that was killed leaves its files behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Daemons {
    dmeventd: bool,
    lvmpolld: bool,
}

impl Daemons {
    fn of_the_host() -> Daemons {
        Daemons {
            dmeventd: runs("dmeventd", "dmeventd-server"),
            lvmpolld: runs("lvmpolld", "lvm/lvmpolld.socket"),
        }
    }
}

impl Linux {
    /// Writes our system directory if the host's configuration has changed, or somebody has changed ours.
    pub(super) fn layer(&self) -> Result<(), LayerError> {
        let mut layered = lock(&self.layered);
        let files =
            ["lvm.conf", "lvmlocal.conf", "devices/system.devices"].map(|name| Path::new(THEIRS).join(name));
        let ours = self.system_directory();
        let state_of_ours = || state(&ours.join("lvm.conf"));
        let mut now = self.on_host(|| Fingerprint {
            theirs: files.iter().map(|path| state(path)).collect(),
            ours: state_of_ours(),
            daemons: Daemons::of_the_host(),
        })?;
        if layered.as_ref() == Some(&now) {
            return Ok(());
        }
        let host = self.describe_host(now.daemons)?;
        if self.on_host(|| system_directory::write(Path::new(THEIRS), &ours, &host))?? {
            tracing::info!(directory = %ours.display(), "LVM's configuration was taken from the host");
        }
        now.ours = self.on_host(state_of_ours)?;
        *layered = Some(now);
        Ok(())
    }

    fn describe_host(&self, daemons: Daemons) -> Result<system_directory::Host, LayerError> {
        // Old lvm2 does not know devices files, and says so by failing.
        let text = self.settings(["devices/use_devicesfile", "devices/global_filter"])?.unwrap_or_default();
        let setting =
            |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        let devices_file = setting("use_devicesfile") == Some("1")
            && self.on_host(|| Path::new(THEIRS).join("devices/system.devices").exists())?;
        let filter = setting("global_filter").unwrap_or_default().to_owned();
        // What LVM takes by default, unless the host says otherwise.
        let filter = if filter == "[\"a|.*|\"]" { String::new() } else { filter };
        let Daemons { dmeventd, lvmpolld } = daemons;
        Ok(system_directory::Host { dmeventd, lvmpolld, filter: (!devices_file).then_some(filter) })
    }

    /// The host's own settings, as lvm2 prints them; `None` if it does not know one of them.
    fn settings<const N: usize>(&self, keys: [&str; N]) -> Result<Option<String>, ProcessError> {
        let words: Vec<&str> = ["lvmconfig", "--typeconfig", "full"].into_iter().chain(keys).collect();
        match self.ask_lvm(&words) {
            Err(ProcessError::Failed { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// What lvm2 prints for these words, under the host's own configuration.
    pub fn ask_lvm(&self, words: &[&str]) -> Result<String, ProcessError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let (processes, program) = self.lvm_program(&words, Intent::Looks, Path::new(THEIRS));
        Ok(processes.run(&program)?.success(&program)?.text())
    }

    /// Where LVM's locks are.
    pub(super) fn locking_directory(&self) -> PathBuf {
        let text = self.settings(["global/locking_dir"]).ok().flatten().unwrap_or_default();
        let configured = text.trim().strip_prefix("locking_dir=").map(|value| value.trim_matches('"'));
        PathBuf::from(configured.unwrap_or("/run/lock/lvm"))
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LayerError {
    #[error("the host's files cannot be reached")]
    Host(#[from] io::Error),
    #[error("LVM's configuration cannot be layered")]
    Directory(#[from] SystemDirectoryError),
    #[error("LVM's configuration cannot be read")]
    Process(#[from] ProcessError),
}

fn state(path: &Path) -> FileState {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

/// Whether a daemon of LVM's runs on the host, or is started by systemd when it is spoken to.
fn runs(daemon: &str, socket: &str) -> bool {
    let pid =
        fs::read_to_string(format!("/run/{daemon}.pid")).ok().and_then(|pid| pid.trim().parse::<u32>().ok());
    let alive = pid.is_some_and(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == daemon)
    });
    let by_systemd = Path::new("/run/systemd/system").exists() && Path::new("/run").join(socket).exists();
    alive || by_systemd
}
