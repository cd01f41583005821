//! Tests on this machine's own kernel, for whoever asks for it with `LVMS_LAB=native`.
//!
//! A test gets loop devices on sparse files, and an LVM that sees nothing but these: no disk of the machine is
//! touched. Tests that cut the power, plug, break, or want other surroundings than usual have a guest even then.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lab_protocol::needs::{Needs, Start};

use super::{Case, cases};
use crate::process;
use crate::suites::{Results, Suite, matches};

/// The variable, and its one value.
const VARIABLE: &str = "LVMS_LAB";

/// Whether the person asked for this kernel. It must have device-mapper then.
pub(crate) fn wanted() -> Result<bool> {
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(false) };
    if value != "native" {
        bail!(
            "{VARIABLE} is {}: unset it for guests, or set it to `native` for this kernel",
            value.display()
        );
    }
    if !Path::new("/sys/class/misc/device-mapper").exists() && !Path::new("/dev/mapper/control").exists() {
        bail!(
            "{VARIABLE}=native, and this kernel has no device-mapper: `modprobe dm_mod`, or unset {VARIABLE} for guests"
        );
    }
    for program in ["lvm", "losetup"] {
        if process::find(program).is_none() {
            bail!(
                "{VARIABLE}=native needs {program}: install lvm2 and util-linux, or unset {VARIABLE} for guests"
            );
        }
    }
    Ok(true)
}

/// Runs what can run here. `scratch` is a directory for the disks' bytes.
pub(crate) fn run(binaries: &[PathBuf], scratch: &Path, filter: &str, results: &mut Results) -> Result<()> {
    let asked = |case: &Case| matches(&case.name, filter) && !case.test.needs.only_a_guest_will_do();
    for case in cases(binaries, Suite::Host)?.iter().filter(|case| asked(case)) {
        results.run(Suite::Host.name(), &format!("{} (native)", case.name), || run_case(case, scratch));
    }
    Ok(())
}

fn run_case(case: &Case, scratch: &Path) -> Result<()> {
    let disks = LoopDisks::set_up(scratch, &case.test.needs)?;
    let state = scratch.join("state");
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state)?;
    let start = Start {
        name: case.test.name.clone(),
        serials: Vec::new(),
        paths: disks.devices.clone(),
        boots: 0,
        control: None,
        state: state.display().to_string(),
    };
    // Mounts of the test are its own, and gone with it.
    let mut unshare = process::program("unshare");
    unshare.arg("--mount").arg(&case.binary).arg("--lab-run").arg(serde_json::to_string(&start)?);
    let ran = process::run_within(unshare.env("LVM_SYSTEM_DIR", &disks.lvm), &[], super::LIMIT);
    let given_back = disks.give_back();
    ran?;
    given_back
}

/// Waits until udev has dealt with what has happened, if there is one.
fn settle() -> Result<()> {
    if process::find("udevadm").is_some() {
        process::run(process::program("udevadm").args(["settle", "--timeout=60"]))?;
    }
    Ok(())
}

fn has_holders(device: &str) -> bool {
    let holders = Path::new("/sys/block").join(device.trim_start_matches("/dev/")).join("holders");
    fs::read_dir(holders).is_ok_and(|mut holders| holders.next().is_some())
}

/// Loop devices and an LVM for one test.
struct LoopDisks {
    devices: Vec<String>,
    lvm: PathBuf,
    files: Vec<PathBuf>,
}

impl LoopDisks {
    fn set_up(scratch: &Path, needs: &Needs) -> Result<LoopDisks> {
        let lvm = scratch.join("lvm");
        fs::create_dir_all(&lvm)?;
        let mut disks = LoopDisks { devices: Vec::new(), lvm, files: Vec::new() };
        for (number, disk) in needs.disks.iter().enumerate() {
            let path = scratch.join(format!("disk-{number}.img"));
            File::create(&path)?.set_len(disk.size)?;
            disks.files.push(path.clone());
            let device = process::run(process::program("losetup").args(["--find", "--show"]).arg(&path))?;
            disks.devices.push(device.trim().to_owned());
        }
        let accept: Vec<String> = disks.devices.iter().map(|device| format!("\"a|^{device}$|\"")).collect();
        let accept = accept.iter().map(|rule| format!("{rule}, ")).collect::<String>();
        let policy = format!(
            "devices {{ use_devicesfile = 0 global_filter = [ {accept}\"r|.*|\" ] }}\nactivation {{ monitoring = 0 }}\n"
        );
        fs::write(disks.lvm.join("lvm.conf"), policy)?;
        Ok(disks)
    }

    /// Gives everything back; what cannot be given back is told, and fails the test.
    fn give_back(mut self) -> Result<()> {
        let deactivated = self.deactivate();
        let detached = self.detach();
        deactivated.and(detached).map(drop)
    }

    /// Deactivates what the test has left. The machine's udev activates a new group by the machine's own policy, as soon
    /// as it hears of it: that may be after the test has ended.
    fn deactivate(&self) -> Result<()> {
        for _ in 0..60 {
            settle()?;
            process::run(process::program("lvm").args(["vgchange", "-an"]).env("LVM_SYSTEM_DIR", &self.lvm))?;
            // Links to volumes go a moment after them, and the next test may want their names.
            settle()?;
            if !self.devices.iter().any(|device| has_holders(device)) {
                return Ok(());
            }
        }
        bail!("device-mapper devices on {} come back again and again", self.devices.join(", "))
    }

    fn detach(&mut self) -> Result<String> {
        let mut outcome = Ok(String::new());
        for device in self.devices.drain(..) {
            let detached = process::run(process::program("losetup").args(["--detach", &device]));
            outcome = outcome.and(detached.with_context(|| format!("{device} is left")));
        }
        outcome
    }
}

impl Drop for LoopDisks {
    fn drop(&mut self) {
        let _ = self.detach();
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}
