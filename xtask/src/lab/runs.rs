//! The directories of runs: one per command that has a lab, in the checkout's target directory.
//!
//! A run holds a lock on its directory. A directory whose lock is free belongs to a command that was killed, and the
//! next command removes it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lab_protocol::disk::GIB;

use crate::{cache, workspace};

/// The directory of a run, and the lock that says that the run is alive. Dropped, the directory is removed.
pub(crate) struct Run {
    pub(crate) directory: PathBuf,
    _lock: File,
}

/// What the largest run, with clusters and their nodes' state, takes and some more.
const ROOM: u64 = 8 * GIB;

fn home() -> PathBuf {
    workspace::target().join("lab")
}

impl Run {
    /// A new directory for a run of this name. Labs of equal names do not meet: they get a number too.
    pub(crate) fn begin(name: &str) -> Result<Run> {
        let _alone = sweep()?;
        cache::require_space(&home(), ROOM)?;
        for number in 1.. {
            let directory = home().join(format!("{name}-{number}"));
            match fs::create_dir(&directory) {
                Ok(()) => {
                    let lock = File::create(directory.join("lock"))?;
                    lock.lock()?;
                    return Ok(Run { directory, _lock: lock });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| directory.display().to_string()),
            }
        }
        bail!("there are too many labs")
    }

    /// Keeps what tells about a failure, under a name that the next such run takes over. Returns where it is.
    pub(crate) fn keep_logs(&self, name: &str) -> Result<PathBuf> {
        let kept = home().join(format!("{name}-logs"));
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        fs::create_dir_all(&kept)?;
        copy_logs(&self.directory, &kept)?;
        Ok(kept)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Directories of runs that are alive, newest last.
pub(crate) fn alive() -> Result<Vec<PathBuf>> {
    let _alone = sweep()?;
    let mut alive = Vec::new();
    for directory in all()? {
        if is_alive(&directory) {
            alive.push(directory);
        }
    }
    alive.sort_by_key(|directory| fs::metadata(directory).and_then(|metadata| metadata.created()).ok());
    Ok(alive)
}

/// Removes what killed runs left behind. What is returned keeps others from doing the same.
pub(crate) fn sweep() -> Result<File> {
    fs::create_dir_all(home()).with_context(|| home().display().to_string())?;
    let alone = File::create(home().join("lock"))?;
    alone.lock()?;
    for directory in all()? {
        if !is_alive(&directory) {
            // A process of a run just killed may still be writing; the command after this one tries again.
            let _ = fs::remove_dir_all(&directory);
        }
    }
    Ok(alone)
}

/// Whether the command that has this directory is there. Asked under the lock of [`sweep`], under which directories get
/// their locks too.
fn is_alive(directory: &Path) -> bool {
    File::open(directory.join("lock")).is_ok_and(|lock| lock.try_lock().is_err())
}

/// The directories of all runs, alive or not; kept logs are no run.
fn all() -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(home())? {
        let path = entry?.path();
        if path.is_dir() && !path.to_string_lossy().ends_with("-logs") {
            all.push(path);
        }
    }
    Ok(all)
}

fn copy_logs(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let is_log = path.extension().is_some_and(|end| end == "log" || end == "console");
        if is_log {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}
