//! A test's view of the lab around it.

use std::fs;
use std::io::BufReader;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab_protocol::control::{self, Answer, Ask};
use lab_protocol::disk::{Cut, Disk, Fault, link_by_id};
use lab_protocol::needs::Start;

use crate::Result;

/// Conditions are awaited this long: emulated machines are slow, and theirs may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// The lab, as a test sees it from inside a guest.
pub struct Lab {
    start: Start,
    paths: Vec<String>,
}

impl Lab {
    pub(crate) fn new(start: Start) -> Result<Lab> {
        let paths = if start.paths.is_empty() {
            start.serials.iter().map(|serial| await_disk(serial)).collect::<Result<Vec<_>>>()?
        } else {
            start.paths.clone()
        };
        Ok(Lab { start, paths })
    }

    /// The device node of the disk with this position in what the test needs.
    pub fn disk(&self, position: usize) -> &str {
        &self.paths[position]
    }

    /// The device nodes of all its disks.
    pub fn disks(&self) -> &[String] {
        &self.paths
    }

    /// The serial number of the disk with this position.
    pub fn serial(&self, position: usize) -> &str {
        &self.start.serials[position]
    }

    /// How often the guest was booted again since the test began: 0 at first, 1 after the first power cut.
    pub fn boots(&self) -> u32 {
        self.start.boots
    }

    /// A directory that outlives a power cut, empty when the test begins.
    pub fn state(&self) -> &Path {
        Path::new(&self.start.state)
    }

    /// From now on this is wrong with the disk. It needs [`Needs::faults`](crate::Needs::faults).
    pub fn fault(&self, position: usize, fault: Fault) -> Result {
        self.ask(Ask::Fault { serial: self.serial(position).to_owned(), fault })?;
        Ok(())
    }

    /// Plugs in a blank disk. Returns its serial number and, once the guest has it, its device node.
    pub fn plug(&self, disk: Disk) -> Result<(String, String)> {
        match self.ask(Ask::Plug { disk })? {
            Answer::Plugged { serial } => {
                let path = await_disk(&serial)?;
                Ok((serial, path))
            }
            answer @ (Answer::Done | Answer::Refused { .. }) => {
                Err(format!("the lab answered {answer:?}").into())
            }
        }
    }

    /// Pulls the disk with this serial number out.
    pub fn unplug(&self, serial: &str) -> Result {
        self.ask(Ask::Unplug { serial: serial.to_owned() })?;
        Ok(())
    }

    /// Plugs in again, with its bytes, a disk that was pulled out. Returns its device node, perhaps another one.
    pub fn plug_back(&self, serial: &str) -> Result<String> {
        self.ask(Ask::PlugBack { serial: serial.to_owned() })?;
        await_disk(serial)
    }

    /// Cuts the power. The guest boots again on the same disks, and the test begins anew with one boot more.
    pub fn cut_power(&self, cut: Cut) -> Result {
        self.ask(Ask::CutPower { cut })?;
        Err("the power is still on".into())
    }

    fn ask(&self, ask: Ask) -> Result<Answer> {
        let address = self.start.control.as_ref().ok_or("there is no lab outside that could do this")?;
        let mut connection = TcpStream::connect(address)?;
        control::send(&mut connection, &ask)?;
        match control::receive(&mut BufReader::new(connection))? {
            Some(Answer::Refused { reason }) => Err(format!("the lab refused {ask:?}: {reason}").into()),
            Some(answer) => Ok(answer),
            None => Err("the lab hung up".into()),
        }
    }

    /// Waits until `condition` gives something, and says what it waited for if it never does.
    pub fn wait_for<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = condition() {
                return Ok(found);
            }
            if Instant::now() > deadline {
                return Err(format!("waited in vain for {what}").into());
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the images of all RAID volumes agree. Until then snapshots of them stay.
    pub fn await_synchronised(&self) -> Result {
        self.wait_for("RAID to be synchronised", || {
            let status = Command::new("dmsetup").args(["status", "--target", "raid"]).output().ok()?;
            let status = String::from_utf8_lossy(&status.stdout);
            // Where there is no device at all, that is what is said.
            let mut raids = status.lines().filter(|line| line.contains(" raid "));
            raids.all(|line| line.contains(" idle ")).then_some(())
        })
    }
}

fn await_disk(serial: &str) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(path) = disk_with_serial(serial)?
            && path.exists()
            && (!udev_runs() || Path::new(&link_by_id(serial)).exists())
        {
            if udev_runs() && !Command::new("udevadm").args(["settle", "--timeout=120"]).status()?.success() {
                return Err("udev has not dealt with a new disk".into());
            }
            return Ok(path.to_string_lossy().into_owned());
        }
        if Instant::now() > deadline {
            return Err(format!("no disk with the serial number {serial} has appeared").into());
        }
        sleep(Duration::from_millis(20));
    }
}

/// Whether udev runs here. A disk is there once it has dealt with it: it would take one that a test has made a physical
/// volume in the meantime for one that came with a group on it, and activate that by the host's policy.
fn udev_runs() -> bool {
    Path::new("/run/udev/control").exists()
}

fn disk_with_serial(serial: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // The serial number follows a header of four bytes.
        let page = fs::read(entry.path().join("device/vpd_pg80")).unwrap_or_default();
        if page.get(4..) == Some(serial.as_bytes()) {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}
