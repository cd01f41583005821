//! Into namespaces for processes, mounts and the network, which die with the command that made them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Tells the inside where its run's directory is.
const VARIABLE: &str = "LVMS_LAB_RUN";

/// Where a process is.
pub(crate) enum Place {
    /// On the machine.
    Outside,
    /// Process 1 of a lab, in its run's directory.
    Inside(PathBuf),
}

/// Where this process is. A lab started within a lab would take the outer one's directory: that is refused.
pub(crate) fn place() -> Result<Place> {
    let Some(run) = std::env::var_os(VARIABLE) else { return Ok(Place::Outside) };
    if !rustix::process::getpid().is_init() {
        bail!("this is inside a lab already ({VARIABLE} is set): run it from outside, or unset {VARIABLE}");
    }
    Ok(Place::Inside(PathBuf::from(run)))
}

/// Runs this program again, with the same arguments, inside new namespaces. Returns its exit code.
///
/// `setpriv` has the kernel kill `unshare` when this process dies, and `unshare` has it kill the first process of the
/// namespace, with which all others in it die: by SIGKILL, too, and with nobody left to clean up.
pub(crate) fn enter(run: &Path) -> Result<i32> {
    let this = std::env::current_exe()?;
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare", "--fork", "--kill-child=KILL"])
        .args(["--pid", "--mount-proc", "--mount", "--net", "--ipc", "--uts"])
        .arg(this)
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, run)
        .current_dir(run);
    let status = command.status().context("setpriv")?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// For a command that shall not be inside, though its caller is.
pub(crate) fn forget(command: &mut Command) -> &mut Command {
    command.env_remove(VARIABLE)
}
