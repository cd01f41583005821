//! `lvms standalone` in a guest.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::guest::Guest;
use crate::lab::Prepared;
use crate::workspace;

/// Where it serves.
pub(crate) const SOCKET: &str = "/run/csi.sock";

/// Puts it where guests see it, as `/lab/lvms`.
pub(crate) fn share(prepared: &Prepared, run: &Path) -> Result<()> {
    prepared.share(run, &workspace::build_static("lvms")?).map(drop)
}

/// The same, as it is released.
pub(crate) fn share_release(prepared: &Prepared, run: &Path) -> Result<()> {
    prepared.share(run, &workspace::build_release("lvms")?).map(drop)
}

/// Puts the build that ends itself at given points where guests see it, as `/lab/lvms-crash`.
pub(crate) fn share_with_crash_points(prepared: &Prepared, run: &Path) -> Result<()> {
    prepared.share_as(run, &workspace::build_with_crash_points()?, Path::new("lvms-crash"))
}

/// Puts one of its examples where guests see it.
pub(crate) fn share_example(prepared: &Prepared, run: &Path, name: &str) -> Result<()> {
    prepared.share(run, &workspace::build_static_example("lvms", name)?).map(drop)
}

/// Starts it with `/run/lvmd.yaml`, and waits until it serves.
pub(crate) fn start(guest: &Guest, program: &str, arguments: &str) -> Result<()> {
    let script = format!(
        "setsid {program} standalone --config /run/lvmd.yaml --endpoint unix://{SOCKET} {arguments} \\
            </dev/null >/run/lvms.log 2>&1 &
         until [ -S {SOCKET} ]; do kill -0 $! || {{ cat /run/lvms.log; exit 1; }}; sleep 0.1; done"
    );
    guest.script(&script).run()?;
    Ok(())
}

/// Keeps what it logged in the run's directory.
pub(crate) fn keep_log(guest: &Guest, name: &str) {
    if let Ok(log) = guest.command(["cat", "/run/lvms.log"]).output() {
        let _ = fs::write(name, log.stdout);
    }
}
