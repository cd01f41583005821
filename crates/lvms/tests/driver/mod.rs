//! `lvms standalone` under test: started, killed, and asked.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab_csi::{Client, Code, Status};
use lab_test::{Lab, Result};

/// Where the lab puts the driver.
pub(crate) const PROGRAM: &str = "/lab/lvms";

pub(crate) const MIB: i64 = 1 << 20;

/// A driver that runs, and a connection to it. Dropped, it is killed, and what it has logged is printed.
pub(crate) struct Driver {
    pub(crate) running: lab_csi::Driver,
    pub(crate) client: Client,
    log: PathBuf,
}

impl Driver {
    /// Starts one with these device classes.
    pub(crate) fn start(lab: &Lab, classes: &str, options: &[&str]) -> Result<Driver> {
        Driver::start_named(lab, "driver", classes, options)
    }

    /// Starts one beside others: this name is in all that it has of its own.
    pub(crate) fn start_named(lab: &Lab, name: &str, classes: &str, options: &[&str]) -> Result<Driver> {
        let (configuration, socket) = (place(lab, name, "yaml"), place(lab, name, "sock"));
        let log = place(lab, name, "log");
        fs::write(&configuration, format!("device-classes:\n{classes}"))?;
        let mut command = Command::new(PROGRAM);
        command.arg("standalone").arg("--config").arg(configuration).arg("--endpoint").arg(&socket);
        command.args(["--node-id", "here"]).args(options);
        command.stderr(fs::File::options().create(true).append(true).open(&log)?);
        let running = lab_csi::Driver::start(&mut command, &socket).inspect_err(|_| print(&log))?;
        let client = running.connect()?;
        Ok(Driver { running, client, log })
    }

    /// One more connection, for another thread.
    pub(crate) fn connect(&self) -> Result<Client> {
        self.running.connect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        print(&self.log);
    }
}

fn print(log: &Path) {
    println!("{}", fs::read_to_string(log).unwrap_or_default());
}

fn place(lab: &Lab, name: &str, extension: &str) -> PathBuf {
    lab.state().join(name).with_extension(extension)
}

/// The answer must be this code, with all these parts in its message.
#[track_caller]
pub(crate) fn refused<T>(answer: std::result::Result<T, Status>, code: Code, parts: &[&str]) -> String {
    let Err(status) = answer else { panic!("succeeded, and should have been refused with {code:?}") };
    assert_eq!(status.code(), code, "{}", status.message());
    for part in parts {
        assert!(status.message().contains(part), "{:?} lacks {part:?}", status.message());
    }
    status.message().to_owned()
}

/// A tool of the host's that waits before it does anything.
pub(crate) struct HeldTool {
    stands_for: PathBuf,
}

const HOLD: &str = "/run/test/hold";
const BEGUN: &str = "/run/test/begun";

impl HeldTool {
    /// Found before the real one.
    pub(crate) fn hold(name: &str) -> Result<HeldTool> {
        fs::create_dir_all("/run/test")?;
        let _ = fs::remove_file(BEGUN);
        fs::write(HOLD, "")?;
        let script = format!(
            "#!/bin/sh\necho $$ >> {BEGUN}\nwhile [ -e {HOLD} ]; do sleep 0.1; done\nexec /usr/sbin/{name} \"$@\"\n"
        );
        let tool = HeldTool { stands_for: Path::new("/usr/local/sbin").join(name) };
        fs::create_dir_all("/usr/local/sbin")?;
        fs::write(&tool.stands_for, script)?;
        fs::set_permissions(&tool.stands_for, fs::Permissions::from_mode(0o755))?;
        Ok(tool)
    }

    /// How often it was started.
    pub(crate) fn begun(&self) -> usize {
        fs::read_to_string(BEGUN).map_or(0, |begun| begun.lines().count())
    }

    /// Whoever waits goes on.
    pub(crate) fn let_go(&self) -> Result {
        Ok(fs::remove_file(HOLD)?)
    }
}

impl Drop for HeldTool {
    fn drop(&mut self) {
        let _ = fs::remove_file(HOLD);
        let _ = fs::remove_file(&self.stands_for);
    }
}

/// Where figures are served, if the driver is told to.
pub(crate) const FIGURES: &str = "127.0.0.1:9809";

/// What is served there at a path.
pub(crate) fn figures(path: &str) -> Result<String> {
    let mut connection = TcpStream::connect(FIGURES)?;
    write!(connection, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A device node of a volume.
pub(crate) fn device(group: &str, id: &str) -> PathBuf {
    Path::new("/dev/mapper").join(format!("{}-{}", group.replace('-', "--"), id.replace('-', "--")))
}
