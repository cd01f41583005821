//! Into namespaces for processes, mounts and the network, which die with the command that made them.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// Tells the inside where its run's directory is.
pub(crate) const VARIABLE: &str = "LVMS_LAB_RUN";

/// The file in a run's directory with the number of the process whose child is the lab's first.
const SUPERVISOR: &str = "supervisor";

/// Where a process is.
pub(crate) enum Place {
    /// On the machine.
    Outside,
    /// Process 1 of a lab, in its run's directory.
    Inside,
}

/// Where this process is. A lab started within a lab would take the outer one's directory: that is refused.
pub(crate) fn place() -> Result<Place> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(Place::Outside);
    }
    if !rustix::process::getpid().is_init() {
        bail!("this is inside a lab already ({VARIABLE} is set): run it from outside, or unset {VARIABLE}");
    }
    Ok(Place::Inside)
}

/// A command, to be completed, that runs a program inside the lab whose first process has this number.
/// Files are seen as outside, so that a person's relative paths hold.
pub(crate) fn join(first: u32) -> Command {
    let mut nsenter = process::program("nsenter");
    nsenter.args(["--target", &first.to_string(), "--net", "--pid", "--"]);
    nsenter
}

/// Runs this program again, with the same arguments, inside new namespaces. Returns its exit code.
///
/// `setpriv` has the kernel kill `unshare` when this process dies, and `unshare` has it kill the first process of the
/// namespace, with which all others in it die: by SIGKILL, too, and with nobody left to clean up.
pub(crate) fn enter(run: &Path) -> Result<i32> {
    let this = std::env::current_exe()?;
    let mut command = process::program("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare", "--fork", "--kill-child=KILL"])
        .args(["--pid", "--mount-proc", "--mount", "--net", "--ipc", "--uts"])
        .arg(this)
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, run)
        .current_dir(run);
    let mut child = command.spawn().context("setpriv")?;
    fs::write(run.join(SUPERVISOR), child.id().to_string())?;
    let status = child.wait()?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// The first process of the lab in this directory, by the number that it has outside.
pub(crate) fn first_process(run: &Path) -> Result<u32> {
    let supervisor = fs::read_to_string(run.join(SUPERVISOR))?;
    let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"))?;
    children.trim().parse().context("the lab is about to end")
}
