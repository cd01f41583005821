//! The directory that `LVM_SYSTEM_DIR` names: the host's policy, with our settings after it.
//!
//! Everything that LVM keeps beside `lvm.conf` is a link to the host's, so that its devices file, its backups and its
//! profiles stay the ones that are used. `lvm.conf` is the host's file followed by our sections: where a section
//! occurs twice LVM merges both, and the last value wins.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Directories beside `lvm.conf`. LVM makes those of the host's that are not there when it needs them, but not behind
/// a link.
const DIRECTORIES: [&str; 5] = ["devices", "backup", "archive", "profile", "cache"];

/// What we set, whatever the host has: answers in rows, no waiting for asynchronous I/O that LVM does not need, and no
/// hints: a disk that could not be read for a while is not in them, and LVM does not find its group for long after.
const OURS: &str = "
# Settings of lvms; all above is the host's own lvm.conf.
global { use_aio = 0 }
report { output_format = \"json\" }
devices { hints = \"none\" }
log { report_command_log = 1 command_log_selection = \"all\" }
";

/// What must be known of the host to write the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// Whether the host runs dmeventd; without it our commands must not start one.
    pub dmeventd: bool,
    /// Whether the host runs lvmpolld.
    pub lvmpolld: bool,
    /// The host's `global_filter`, as `lvmconfig` prints it; `None` if LVM there goes by a devices file.
    pub filter: Option<String>,
}

/// The directory could not be made.
#[derive(Debug, Error)]
#[error("{} could not be made", path.display())]
pub struct SystemDirectoryError {
    path: PathBuf,
    source: io::Error,
}

/// Makes or renews the directory `ours` after the host's `theirs`. Says whether anything was changed.
pub fn write(theirs: &Path, ours: &Path, host: &Host) -> Result<bool, SystemDirectoryError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| SystemDirectoryError { path, source }
    };
    fs::create_dir_all(ours).map_err(failed(ours))?;
    let mut changed = false;
    for name in DIRECTORIES {
        let (link, target) = (ours.join(name), theirs.join(name));
        let made = target.is_dir() || DirBuilder::new().recursive(true).mode(0o700).create(&target).is_ok();
        if made {
            changed |= place_link(&link, &target).map_err(failed(&link))?;
        } else if !link.is_dir() {
            // The host's `/etc` cannot be written: what LVM must keep lives until the next boot.
            let _ = fs::remove_file(&link);
            fs::create_dir(&link).map_err(failed(&link))?;
            changed = true;
        }
    }
    let (link, target) = (ours.join("lvmlocal.conf"), theirs.join("lvmlocal.conf"));
    if target.exists() {
        changed |= place_link(&link, &target).map_err(failed(&link))?;
    } else if fs::remove_file(&link).is_ok() {
        changed = true;
    }
    let (file, source) = (ours.join("lvm.conf"), theirs.join("lvm.conf"));
    let text = match fs::read_to_string(&source) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(&source)(error)),
    };
    let text = configuration(&text, host);
    if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
        // A command that starts now reads the old file or the new one, never half of it.
        let half = ours.join("lvm.conf.new");
        fs::write(&half, text).map_err(failed(&half))?;
        fs::rename(&half, &file).map_err(failed(&file))?;
        changed = true;
    }
    Ok(changed)
}

fn place_link(link: &Path, target: &Path) -> io::Result<bool> {
    if fs::read_link(link).is_ok_and(|present| present == target) {
        return Ok(false);
    }
    if link.is_dir() && !link.is_symlink() {
        fs::remove_dir_all(link)?;
    } else {
        let _ = fs::remove_file(link);
    }
    symlink(target, link)?;
    Ok(true)
}

/// What is never ours, and may hang whoever reads it.
const NEVER_OURS: [&str; 4] = ["nbd", "rbd", "drbd", "zram"];

fn configuration(theirs: &str, host: &Host) -> String {
    let mut text = format!("{}\n{OURS}", theirs.trim_end());
    if !host.dmeventd {
        text += "activation { monitoring = 0 }\n";
    }
    if !host.lvmpolld {
        text += "global { use_lvmpolld = 0 }\n";
    }
    if let Some(filter) = &host.filter {
        let mut rules: Vec<String> = NEVER_OURS.iter().map(|name| format!("\"r|^/dev/{name}|\"")).collect();
        // The first rule that fits decides: the host's own follow.
        let theirs = filter.trim().trim_start_matches('[').trim_end_matches(']').trim();
        rules.extend((!theirs.is_empty()).then(|| theirs.to_owned()));
        let _ = writeln!(text, "devices {{ global_filter = [ {} ] }}", rules.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_settings_come_first_and_ours_after_them() {
        let text = configuration("global {\n\tuse_aio = 1\n}\n", &Host::default());
        assert!(text.starts_with("global {\n\tuse_aio = 1\n}\n"));
        let (theirs, ours) = (text.find("use_aio = 1").unwrap(), text.find("use_aio = 0").unwrap());
        assert!(theirs < ours);
    }

    #[test]
    fn daemons_that_the_host_does_not_run_are_not_started() {
        let without = configuration("", &Host::default());
        assert!(without.contains("monitoring = 0") && without.contains("use_lvmpolld = 0"));
        let with = configuration("", &Host { dmeventd: true, lvmpolld: true, filter: None });
        assert!(!with.contains("monitoring") && !with.contains("use_lvmpolld"));
    }

    #[test]
    fn rejects_are_added_before_the_hosts_own_filter() {
        let host = |filter: &str| Host { filter: Some(filter.to_owned()), ..Host::default() };
        let text = configuration("", &host("[\"a|/dev/sda|\",\"r|.*|\"]"));
        assert!(text.contains("\"r|^/dev/zram|\", \"a|/dev/sda|\",\"r|.*|\" ]"), "{text}");
        assert!(configuration("", &host("[]")).contains("\"r|^/dev/zram|\" ]"));
        assert!(!configuration("", &Host::default()).contains("global_filter"));
    }

    #[test]
    fn the_directory_follows_the_hosts_and_says_when_it_changed() {
        let scratch = std::env::temp_dir().join(format!("lvms-system-directory-{}", std::process::id()));
        let (theirs, ours) = (scratch.join("etc"), scratch.join("run"));
        fs::create_dir_all(&theirs).unwrap();
        assert!(write(&theirs, &ours, &Host::default()).unwrap());
        assert!(!write(&theirs, &ours, &Host::default()).unwrap());
        fs::write(theirs.join("lvm.conf"), "activation { thin_pool_autoextend_threshold = 70 }").unwrap();
        assert!(write(&theirs, &ours, &Host::default()).unwrap());
        assert!(fs::read_to_string(ours.join("lvm.conf")).unwrap().contains("= 70"));
        assert_eq!(fs::read_link(ours.join("devices")).unwrap(), theirs.join("devices"));
        fs::remove_dir_all(scratch).unwrap();
    }
}
