//! Labs side by side, and wrong input: commands as a person starts them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::guest::kernel;
use crate::lab::namespace;
use crate::lab::runs;
use crate::packages::machine;
use crate::process;

type Case = (&'static str, fn() -> Result<()>);

pub(super) const CASES: [Case; 4] = [
    ("of_two_labs_with_equal_names_one_is_killed_and_the_other_goes_on", two_labs),
    ("wrong_input_gets_one_line_that_says_what_to_do", wrong_input),
    ("the_demo_of_one_host_does_what_it_tells", demo),
    ("tests_run_in_emulated_guests_with_the_release_s_kernel", emulated),
];

fn this(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::null());
    Ok(command)
}

/// Whatever runs the other tests' guests, some see the kernel of this machine's distribution.
fn emulated() -> Result<()> {
    let mut command = this(&["test", "host", "--filter", "lvm::commands_work,filesystems::,power::synced"])?;
    let output = command.env(kernel::VARIABLE, "emulation").output()?;
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{told}{said}");
    ensure!(told.contains("guests run with emulation"), "guests are not emulated: {told}");
    ensure!(said.contains("passed, 0 failed") && !said.contains("\n0 passed"), "no test has run: {said}");
    Ok(())
}

fn demo() -> Result<()> {
    let output = this(&["demo", "--standalone"])?.output()?;
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{told}{said}");
    // What is read from the snapshot is what was written before it.
    let last = ["then: Dear diary", "Everything is removed again", "That was lvms without Kubernetes"];
    ensure!(last.iter().all(|words| said.contains(words)), "it has not told all: {said}");
    Ok(())
}

/// A `lab up` that runs; killed if the test fails.
struct Twin {
    command: Child,
    directory: PathBuf,
    /// Its namespaces for processes and the network.
    namespaces: [u64; 2],
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

fn start_twin() -> Result<Twin> {
    let before = runs::alive()?;
    let mut command =
        this(&["lab", "up", "--bare", "--name", "twin", "--disks", "64M"])?.stdout(Stdio::piped()).spawn()?;
    let output = command.stdout.take().context("a piped child has an output")?;
    let mut lines = BufReader::new(output).lines();
    if !lines.any(|line| line.is_ok_and(|line| line.contains("is up"))) {
        bail!("the lab did not come up: {:?}", command.wait()?);
    }
    std::thread::spawn(move || lines.count());
    let directory =
        runs::alive()?.into_iter().find(|run| !before.contains(run)).context("its run has no directory")?;
    let first = namespace::first_process(&directory)?;
    let inode = |kind: &str| Ok::<_, anyhow::Error>(fs::metadata(format!("/proc/{first}/ns/{kind}"))?.ino());
    let namespaces = [inode("pid")?, inode("net")?];
    Ok(Twin { command, directory, namespaces })
}

impl Twin {
    fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        process::run(this(&["lab", "shell", "--lab", &self.name(), "--"])?.args(words))
    }

    /// Processes that are in one of its namespaces.
    fn processes(&self) -> Result<usize> {
        let inside = |process: &Path| {
            let inode = |kind: &str| {
                fs::metadata(process.join("ns").join(kind)).map(|metadata| metadata.ino()).unwrap_or(0)
            };
            self.namespaces.contains(&inode("pid")) || self.namespaces.contains(&inode("net"))
        };
        let processes = fs::read_dir("/proc")?.filter_map(Result::ok).map(|entry| entry.path());
        Ok(processes.filter(|process| process.join("ns").exists() && inside(process)).count())
    }
}

fn two_labs() -> Result<()> {
    let mut first = start_twin()?;
    let second = start_twin()?;
    ensure!(first.directory != second.directory && first.namespaces != second.namespaces);
    second.run(&["touch", "/run/of-the-second"])?;
    ensure!(first.run(&["test", "-e", "/run/of-the-second"]).is_err(), "the labs share a guest");
    let ambiguous = process::output(&mut this(&["lab", "shell", "--lab", "twin", "--", "true"])?)?;
    refused("an ambiguous name", "choose with --lab one of", &ambiguous)?;
    ensure!(first.processes()? >= 2, "the first lab has no processes of its own");

    first.command.kill()?;
    first.command.wait()?;
    await_condition("all processes of the killed lab to be gone", || Ok(first.processes()? == 0))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(&first.name()), "a mount of the killed lab is left");

    ensure!(second.run(&["cat", "/etc/hostname"])?.trim() == "node-0");
    second.run(&["test", "-e", "/run/of-the-second"])?;
    ensure!(!first.directory.exists(), "the next command has not removed the directory of the killed lab");
    process::run(&mut this(&["lab", "down", "--lab", &second.name()])?)?;
    ensure!(!second.directory.exists(), "the ended lab's directory is left");
    await_condition("all processes of the ended lab to be gone", || Ok(second.processes()? == 0))
}

fn await_condition(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition()? {
        ensure!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A directory for a test, removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("lvms-lab-test-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn wrong_input() -> Result<()> {
    let scratch = Scratch::new()?;
    // Where anybody may start it, wherever the checkout lies.
    let program = scratch.0.join("xtask");
    fs::copy(std::env::current_exe()?, &program)?;
    let run = |arguments: &[&str], change: &dyn Fn(&mut Command)| -> Result<Output> {
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::null());
        change(&mut command);
        process::output(&mut command)
    };
    let nothing = |_: &mut Command| {};
    refused("an unknown suite", "use one of unit, topolvm", &run(&["test", "hots"], &nothing)?)?;
    refused("no test", "--list", &run(&["test", "unit", "--filter", "no-such-test"], &nothing)?)?;
    refused(
        "a lab that is not up",
        "cargo xtask lab up",
        &run(&["lab", "down", "--lab", "none"], &nothing)?,
    )?;
    let within = |command: &mut Command| {
        command.env(namespace::VARIABLE, "/");
    };
    refused("a run within a run", "run it from outside", &run(&["test"], &within)?)?;
    let programs = scratch.0.join("programs");
    fs::create_dir(&programs)?;
    for name in machine::programs() {
        symlink(process::find(name).with_context(|| name.to_owned())?, programs.join(name))?;
    }
    let without_go = |command: &mut Command| {
        command.env("PATH", &programs);
    };
    refused("no Go", "Go 1.25 or newer", &run(&["setup"], &without_go)?)?;
    let relative = |command: &mut Command| {
        command.env(crate::cache::VARIABLE, "somewhere");
    };
    refused("a relative cache", "absolute path", &run(&["cache"], &relative)?)?;

    let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let mut nobody = Command::new("setpriv");
    nobody.args(unprivileged).arg(&program).arg("setup").stdin(Stdio::null());
    refused("no root", "sudo", &process::output(&mut nobody)?)?;

    // A machine without QEMU and without apt, and one whose disk is full, each in a mount namespace of its own.
    let in_mounts = |script: &str| -> Result<Output> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", script, "sh"]).arg(&program).arg(&scratch.0);
        process::output(command.stdin(Stdio::null()))
    };
    let hidden = "for name in qemu-system-x86_64 apt-get; do mount --bind /dev/null \"$(command -v $name)\"; done; exec \"$1\" setup";
    refused("no QEMU", "qemu-system-x86", &in_mounts(hidden)?)?;
    let full = "mkdir -p \"$2/full\"; mount -t tmpfs -o size=16m full \"$2/full\"; LVMS_LAB_CACHE=\"$2/full\" exec \"$1\" setup";
    refused("no disk space", "GiB free and the lab needs", &in_mounts(full)?)
}

/// Whether a command failed with one line that has the remedy in it.
fn refused(what: &str, remedy: &str, output: &Output) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> =
        said.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("  ")).collect();
    ensure!(!output.status.success(), "{what}: the command succeeded");
    ensure!(errors.len() == 1 && errors[0].starts_with("error: "), "{what}: not one line: {said}");
    ensure!(errors[0].contains(remedy), "{what}: {:?} does not say {remedy:?}", errors[0]);
    Ok(())
}
