//! Processes that the driver starts while something is done.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab_protocol::processes::{OUTPUT, STRACE, Started};

use crate::Result;

/// Counts what the driver and its children start while `act` runs.
pub(crate) fn count(driver: u32, act: impl FnOnce() -> Result<()>) -> Result<Started> {
    let driver = driver.to_string();
    let mut strace = Command::new(STRACE[0]);
    let mut strace = strace.args(&STRACE[1..]).args(["-p", &driver]).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(format!("/proc/{driver}/status"))?.contains("TracerPid:\t0\n") {
        if Instant::now() > deadline || strace.try_wait()?.is_some() {
            return Err("the driver cannot be traced".into());
        }
        sleep(Duration::from_millis(10));
    }
    let done = act();
    Command::new("kill").args(["-INT", &strace.id().to_string()]).status()?;
    strace.wait()?;
    done?;
    Ok(Started::read(&fs::read_to_string(OUTPUT)?))
}
