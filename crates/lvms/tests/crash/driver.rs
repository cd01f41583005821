//! The driver, built to end itself at given points.

use std::fs;
use std::path::Path;
use std::process::Command;

use lab_csi::Client;
use lab_test::Result;

const DRIVER: &str = "/lab/lvms-crash";
const SOCKET: &str = "/run/test/csi.sock";
const CONFIGURATION: &str = "/run/test/lvmd.yaml";
const CRASH: &str = "/run/test/crash";

/// The class, in a volume group of its own name; beside a thin one, a thick one in the same group.
fn configuration(class: &str) -> String {
    let shape = match class {
        "thin" => "type: thin, thin-pool: {name: pool, overprovision-ratio: 10}",
        "striped" => "stripe: 2",
        "raid1" => "lvcreate-options: [--type=raid1, -m1, --nosync]",
        "raid10" => "lvcreate-options: [--type=raid10, -i2, -m1, --nosync]",
        "raid5" => "lvcreate-options: [--type=raid5, -i2]",
        "raid6" => "lvcreate-options: [--type=raid6, -i3]",
        _ => "type: thick",
    };
    let beside = if class == "thin" { ", {name: beside, volume-group: thin, spare-gb: 0}" } else { "" };
    format!("device-classes: [{{name: {class}, volume-group: {class}, spare-gb: 0, {shape}}}{beside}]\n")
}

/// It, started again and again.
pub(crate) struct Driver {
    running: Option<(lab_csi::Driver, Client)>,
    armed: u32,
}

impl Driver {
    /// With no point armed.
    pub(crate) fn start(class: &str) -> Result<Driver> {
        fs::create_dir_all("/run/test")?;
        fs::write(CONFIGURATION, configuration(class))?;
        let mut driver = Driver { running: None, armed: 0 };
        driver.arm(0)?;
        driver.again()?;
        Ok(driver)
    }

    /// Starts it, after it was killed or at first.
    pub(crate) fn again(&mut self) -> Result {
        drop(self.running.take());
        let log = fs::File::options().create(true).append(true).open("/run/test/lvms.log")?;
        let mut command = Command::new(DRIVER);
        command.args(["standalone", "--config", CONFIGURATION, "--endpoint", SOCKET, "--node-id", "here"]);
        command.env("LVMS_CRASH_FILE", CRASH).stderr(log);
        let driver = lab_csi::Driver::start(&mut command, Path::new(SOCKET))?;
        let client = driver.connect()?;
        self.running = Some((driver, client));
        Ok(())
    }

    /// From now on points are counted, and the one with this number is the last; 0 is none.
    pub(crate) fn arm(&mut self, point: u32) -> Result {
        self.armed += 1;
        Ok(fs::write(CRASH, format!("run-{} {point}", self.armed))?)
    }

    pub(crate) fn client(&self) -> Result<&Client> {
        self.running.as_ref().map(|(_, client)| client).ok_or_else(|| "the driver does not run".into())
    }

    pub(crate) fn has_died(&mut self) -> Result<bool> {
        Ok(match &mut self.running {
            Some((driver, _)) => driver.process.try_wait()?.is_some(),
            None => true,
        })
    }
}
