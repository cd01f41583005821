//! This host.

mod beneath;
mod policy;
mod suspended;
mod told;

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use policy::Fingerprint;

use super::claim::Claim;
use super::process::{Finished, ProcessError, Processes, Program};
use super::reading::Reading;
use super::surroundings::{ControlGroup, Namespaces};
use super::{AtWork, DeviceState, Intent, Progress, Runner, Use, archive, crash, device, shield};
use crate::causes;
use crate::dm::{self, Control, Cow, Pool, Raid};
use crate::lvm::answer::Answer;
use crate::lvm::inventory::{COLUMNS, DeviceNumber, Disk};
use crate::lvm::metadata::{Beginning, MetadataError, Version};
use crate::lvm::{Change, Failure, Group, Inventory, metadata};
use crate::names::{VgName, VolumePath};
use crate::units::Bytes;

/// How this host is reached.
#[derive(Debug, Clone)]
pub struct Options {
    /// lvm2's program on the host.
    pub lvm: PathBuf,
    /// Words that run lvm2, with its program at the end; they reach the host by themselves.
    pub lvm_command_prefix: Option<Vec<String>>,
    /// A directory of ours on the host, gone after a boot.
    pub runtime: PathBuf,
    /// How long a report may take.
    pub report_limit: Duration,
    /// How long a change may take before its group counts as stuck.
    pub change_limit: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lvm: "lvm".into(),
            lvm_command_prefix: None,
            runtime: "/run/lvms".into(),
            report_limit: Duration::from_secs(60),
            change_limit: Duration::from_secs(180),
        }
    }
}

thread_local! {
    /// Whether this thread sees the host's files.
    static MOVED: Cell<bool> = const { Cell::new(false) };
}

/// This host.
#[derive(Debug)]
pub struct Linux {
    processes: Processes,
    /// For what brings its own way to the host.
    here: Processes,
    options: Options,
    /// The state of the host's files when our system directory was written.
    layered: Mutex<Option<Fingerprint>>,
    archive: archive::Archive,
    reading: Reading,
    flushing: Reading,
}

impl Linux {
    /// Finds the host around this process.
    pub fn new(options: Options) -> io::Result<Linux> {
        let namespaces = Namespaces::of_the_host()?;
        let group = control_group()
            .inspect_err(|error| {
                tracing::warn!(%error, "commands have no control group of the host's: the end of our pod may kill them");
            })
            .ok();
        let here = Processes {
            namespaces: Namespaces::default(),
            group: group.as_ref().and_then(|group| group.try_clone().ok()),
            held: None,
        };
        Ok(Linux {
            processes: Processes { namespaces, group, held: None },
            here,
            options,
            layered: Mutex::default(),
            archive: archive::Archive::default(),
            reading: Reading::default(),
            flushing: Reading::default(),
        })
    }

    /// Whether commands live in a control group of the host's, so that the end of our pod is not theirs.
    pub fn keeps_commands(&self) -> bool {
        self.processes.group.is_some()
    }

    /// Where our system directory for LVM is, on the host.
    fn system_directory(&self) -> PathBuf {
        self.options.runtime.join("lvm")
    }

    /// Does many things on the host's files, and more: each of them alone would take a thread of its own.
    pub fn together<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        // Words that reach the host by themselves begin where we are.
        if self.options.lvm_command_prefix.is_some() { Ok(act()) } else { self.on_host(act) }
    }

    /// What metadata each disk of a group begins with, unless it does not answer.
    fn read(&self, group: &Group) -> Vec<Option<Result<Beginning, MetadataError>>> {
        let disks: Vec<&Path> = group.disks.iter().map(|disk| Path::new(&disk.path)).collect();
        self.reading.read(&disks, metadata::read)
    }

    /// Does something on the host's files.
    pub(crate) fn on_host<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        if !self.processes.namespaces.mounts_differ() || MOVED.get() {
            return Ok(act());
        }
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || {
                self.processes.namespaces.move_this_thread()?;
                MOVED.set(true);
                Ok(act())
            })?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread on the host panicked")))
        })
    }

    /// Runs a program of the host's to its end.
    pub fn run(&self, program: &Program) -> Result<Finished, ProcessError> {
        self.start(&self.processes, program)
    }

    /// Runs a tool that changes what is on a claimed device to its end, however long that takes. `good` are the exit codes
    /// with which it has done its work.
    pub(crate) fn tool(&self, claim: &Claim, argv: Vec<String>, good: &[i32]) -> Result<(), ProcessError> {
        /// After this long it is told.
        const LONG: Duration = Duration::from_secs(3600);
        let program = Program::changes(argv, LONG);
        let not_started = |source| ProcessError::NotStarted { program: program.words(), source };
        let processes = claim.share().and_then(|held| self.processes.holding(held)).map_err(not_started)?;
        let finished = match self.start(&processes, &program) {
            Err(ProcessError::StillRunning { program, pid, rest, .. }) => {
                tracing::warn!(program, pid, "a tool takes long");
                rest.to_the_end().map_err(|source| ProcessError::NotFollowed { program, source })?
            }
            ended => ended?,
        };
        if finished.status.code().is_some_and(|code| good.contains(&code)) {
            return Ok(());
        }
        finished.success(&program).map(drop)
    }

    /// Waits until no tool works on a device; `None` if one still does at the deadline.
    pub(crate) fn claim(&self, device: DeviceNumber, deadline: Instant) -> io::Result<Option<Claim>> {
        /// Nobody tells when a lock is given back, but to whoever sleeps for it without a deadline.
        const AGAIN: Duration = Duration::from_millis(100);
        let directory = self.options.runtime.join("devices");
        loop {
            let claim = self.on_host(|| Claim::try_take(&directory, device))??;
            if claim.is_some() || Instant::now() >= deadline {
                return Ok(claim);
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn start(&self, processes: &Processes, program: &Program) -> Result<Finished, ProcessError> {
        let began = Instant::now();
        let name =
            program.argv.iter().take(3).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let finished = if program.intent == Intent::Looks {
            tracing::debug!(command = %program.words(), "looks");
            processes.run(program)
        } else {
            tracing::info!(command = %program.words(), "changes");
            crash::point(&name, "before");
            let finished = processes.run(program);
            crash::point(&name, "after");
            finished
        };
        let milliseconds = began.elapsed().as_millis();
        tracing::debug!(name, milliseconds, "command ended");
        finished
    }

    /// Runs lvm2 with these arguments.
    pub fn lvm(&self, arguments: &[String], intent: Intent) -> Result<Answer, Failure> {
        self.layer().map_err(|error| Failure::Other(causes::told(&error)))?;
        self.lvm_with(arguments, intent, &self.system_directory())
    }

    fn lvm_with(&self, arguments: &[String], intent: Intent, directory: &Path) -> Result<Answer, Failure> {
        let (processes, program) = self.lvm_program(arguments, intent, directory);
        match self.start(processes, &program) {
            Ok(finished) => Failure::judge(&program, &finished),
            Err(ProcessError::StillRunning { program, pid, limit, rest }) => {
                Err(Failure::Stuck { pid, program, limit, rest })
            }
            Err(error) => Err(Failure::Process(error)),
        }
    }

    fn lvm_program(&self, arguments: &[String], intent: Intent, directory: &Path) -> (&Processes, Program) {
        let (processes, mut argv) = match &self.options.lvm_command_prefix {
            Some(prefix) => (&self.here, prefix.iter().map(OsString::from).collect()),
            None => (&self.processes, vec![self.options.lvm.clone().into_os_string()]),
        };
        argv.extend(arguments.iter().map(OsString::from));
        let limit = match intent {
            Intent::Looks => self.options.report_limit,
            Intent::Changes => self.options.change_limit,
        };
        let mut program = Program { intent, ..Program::looks(argv, limit) }
            .env("LVM_SYSTEM_DIR", directory)
            .env("LVM_SUPPRESS_FD_WARNINGS", "1");
        // Without udev on the host, LVM makes device nodes itself, and must not wait for it.
        if !self.on_host(|| Path::new("/run/udev/control").exists()).unwrap_or(true) {
            program = program.env("DM_DISABLE_UDEV", "1");
        }
        (processes, program)
    }

    /// Device-mapper.
    pub fn control(&self) -> io::Result<Control> {
        self.on_host(Control::open)?
    }

    /// Keeps the host from interpreting what is inside volumes of these groups. Where no udev runs, nobody does.
    pub fn shield(&self, groups: &[&VgName]) -> io::Result<()> {
        let write = || {
            let runs = Path::new("/run/udev/control").exists();
            if runs { shield::write(Path::new(shield::DIRECTORY), groups) } else { Ok(false) }
        };
        if !self.on_host(write)?? {
            return Ok(());
        }
        tracing::info!("the host is told not to look into volumes");
        // By itself udev reads changed rules a few seconds later.
        let reload = Program::looks(["udevadm", "control", "--reload"], self.options.report_limit);
        if let Err(error) = self.run(&reload).and_then(|finished| finished.success(&reload)) {
            tracing::warn!(error = causes::told(&error), "udev cannot be told of its new rule at once");
        }
        Ok(())
    }

    fn prune_archive(&self, group: &VgName) {
        if !self.archive.is_due(group) {
            return;
        }
        let directory = self.system_directory().join("archive");
        match self.on_host(|| archive::prune(&directory, group)).flatten() {
            Ok(0) => {}
            Ok(count) => tracing::debug!(group = %group, count, "old copies of LVM's metadata were removed"),
            Err(error) => {
                tracing::warn!(group = %group, %error, "old copies of LVM's metadata cannot be removed");
            }
        }
    }

    /// The device node of an active volume.
    pub(crate) fn device_path(volume: &VolumePath) -> PathBuf {
        Path::new("/dev/mapper").join(volume.mapper_name())
    }

    /// The state of the device-mapper device of this name.
    pub fn device(&self, name: &str) -> io::Result<Option<dm::Device>> {
        let has_device_mapper =
            || fs::read_to_string("/proc/misc").map(|devices| devices.contains(" device-mapper\n"));
        match self.control() {
            // The kernel has made none yet.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && !self.on_host(has_device_mapper)?? =>
            {
                Ok(None)
            }
            control => control?.device(name),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A control group of the host's for our children: the end of our own group, by a pod's removal or a service's stop,
/// must not kill a command in the middle of a change. Without the unified hierarchy there is none.
fn control_group() -> io::Result<ControlGroup> {
    /// The host's root, as the kernel shows it to a pod that sees the host's processes.
    const OF_THE_HOST: &str = "/proc/1/root";
    let root = [OF_THE_HOST, "/"]
        .map(|root| Path::new(root).join("sys/fs/cgroup"))
        .into_iter()
        .find(|root| root.join("cgroup.procs").exists())
        .ok_or_else(|| io::Error::other("there is no cgroup2 at /sys/fs/cgroup"))?;
    let group = root.join("lvms");
    if !group.exists() {
        fs::create_dir(&group)?;
    }
    let members = File::options().write(true).open(group.join("cgroup.procs"))?;
    Ok(ControlGroup { directory: File::open(group)?, members })
}

impl Runner for Linux {
    fn inventory(&self, group: Option<&VgName>) -> Result<Inventory, Failure> {
        let mut words = vec!["fullreport".to_owned(), "--units".into(), "b".into(), "--nosuffix".into()];
        for (table, columns) in COLUMNS {
            words.extend(["--configreport".to_owned(), table.into(), "--options".into(), columns.into()]);
        }
        words.extend(group.map(VgName::to_string));
        let answer = self.lvm(&words, Intent::Looks)?;
        Inventory::read(&answer).map_err(|error| Failure::Other(causes::told(&error)))
    }

    fn sequence_number(&self, group: &Group) -> Option<Version> {
        let read = || {
            // That a disk went or came back is not written on the others.
            if group.disks.iter().any(|disk| disk.missing || disk.is_gone()) {
                return None;
            }
            // All are asked, though one would tell: LVM reads them all, and would wait for one that does not answer.
            let mut beginnings = self.read(group).into_iter().flatten().flatten();
            beginnings
                .find(|beginning| beginning.group == group.name.as_str())
                .map(|beginning| beginning.version)
        };
        self.on_host(read).ok().flatten()
    }

    fn unreadable(&self, group: &Group) -> Vec<String> {
        let unreadable = |(disk, read): &(&Disk, Option<Result<Beginning, MetadataError>>)| {
            disk.is_gone() || matches!(read, None | Some(Err(MetadataError::Read { .. })))
        };
        let look = || {
            let disks = group.disks.iter().zip(self.read(group)).filter(unreadable);
            disks.map(|(disk, _)| disk.uuid.clone()).collect()
        };
        self.on_host(look).unwrap_or_default()
    }

    fn silent(&self, group: &Group) -> Vec<String> {
        let is_silent = |disk: &&Disk| self.reading.is_silent(Path::new(&disk.path));
        group.disks.iter().filter(is_silent).map(|disk| disk.path.clone()).collect()
    }

    fn change(&self, change: &Change) -> Result<(), Failure> {
        let answer = self.lvm(&change.arguments(), Intent::Changes)?;
        for warning in answer.warnings() {
            tracing::debug!(volume = %change.path(), warning, "lvm2 warns");
        }
        self.prune_archive(&change.path().group);
        Ok(())
    }

    fn keep(&self, group: &Group) -> io::Result<()> {
        /// A cache may have much to write, and a dead disk never ends.
        const LIMIT: Duration = Duration::from_secs(60);
        let present = group.disks.iter().filter(|disk| !disk.missing);
        let disks: Vec<&Path> = present.map(|disk| Path::new(&disk.path)).collect();
        let flush = |disk: &Path| File::open(disk)?.sync_data();
        let flushed = self.on_host(|| self.flushing.read_within(LIMIT, &disks, flush))?;
        disks.iter().zip(flushed).try_for_each(|(disk, flushed)| {
            let silent =
                || io::Error::new(io::ErrorKind::TimedOut, format!("{} does not answer", disk.display()));
            flushed.unwrap_or_else(|| Err(silent()))
        })
    }

    fn pool(&self, pool: &VolumePath) -> io::Result<Option<Pool>> {
        self.told_by_pool(pool)
    }

    fn raid(&self, volume: &VolumePath) -> io::Result<Option<Raid>> {
        self.told_by(volume, told::BENEATH_SNAPSHOTS, "raid", dm::Target::raid)
    }

    fn cow(&self, snapshot: &VolumePath) -> io::Result<Option<Cow>> {
        self.told_by(snapshot, "", "snapshot", dm::Target::cow)
    }

    fn device_state(&self, volume: &VolumePath) -> io::Result<DeviceState> {
        let name = volume.mapper_name();
        if self.device(&name)?.is_none() {
            return Ok(DeviceState::Absent);
        }
        Ok(if self.is_orphaned(&name)? { DeviceState::Orphaned } else { DeviceState::Ready })
    }

    fn used(&self, volume: &VolumePath) -> io::Result<Use> {
        let Some(device) = self.device(&volume.mapper_name())? else { return Ok(Use::None) };
        let mounts = self.mounts()?;
        let mut here = mounts.iter().filter(|mount| mount.device == device.number).peekable();
        let is_published = here.peek().is_some();
        Ok(if here.any(|mount| !mount.is_node()) {
            Use::Mounted
        } else if is_published || device.open > 0 {
            Use::Open
        } else {
            Use::None
        })
    }

    fn published(&self, volume: &VolumePath) -> io::Result<Option<PathBuf>> {
        let Some(device) = self.device(&volume.mapper_name())? else { return Ok(None) };
        let mounts = self.mounts()?;
        Ok(mounts.into_iter().find(|mount| mount.device == device.number).map(|mount| mount.target))
    }

    fn suspended(&self, group: &VgName) -> io::Result<Vec<String>> {
        self.suspended_devices(group)
    }

    fn at_work(&self, group: &VgName) -> io::Result<Option<AtWork>> {
        let directory = self.locking_directory();
        self.on_host(|| AtWork::find(&directory, group))?
    }

    fn recover(&self, group: &VgName) -> io::Result<Vec<VolumePath>> {
        self.resume_suspended(group)
    }

    fn zero(&self, volume: &VolumePath, from: Bytes, to: Bytes, progress: Progress<'_>) -> io::Result<()> {
        let path = Linux::device_path(volume);
        tracing::info!(volume = %volume, from = from.0, to = to.0, "zeros");
        crash::point("zero", "before");
        let done = self.on_host(|| device::zero(&path, from, to, progress))?;
        crash::point("zero", "after");
        done
    }

    fn copy(
        &self,
        from: &VolumePath,
        to: &VolumePath,
        length: Bytes,
        dirty: bool,
        progress: Progress<'_>,
    ) -> io::Result<()> {
        let (source, target) = (Linux::device_path(from), Linux::device_path(to));
        tracing::info!(from = %from, volume = %to, bytes = length.0, "copies");
        crash::point("copy", "before");
        let done = self.on_host(|| device::copy(&source, &target, length, dirty, progress))?;
        crash::point("copy", "after");
        done
    }
}
