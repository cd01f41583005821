//! One virtual machine of a lab, from power-on to power-off, as often as one likes.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab_protocol::agent::READY;
use lab_protocol::disk::{Cut, Disk, Fault, GIB};
use lab_protocol::needs;

use super::bus::Bus;
use super::command::{Command, Connections, write_file};
use super::console::Console;
use super::kernel::Accelerator;
use super::lock;
use super::medium::Medium;
use super::start::{Start, Surroundings};
use crate::lab::Lab;
use crate::process;

/// A guest that has not booted after this long will not.
const BOOT_LIMIT: Duration = Duration::from_secs(240);

/// What a guest shall be.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Its name in the lab, and its host name.
    pub(crate) name: String,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    pub(crate) surroundings: needs::Surroundings,
    /// Whether it has a disk for what must outlive a power cut.
    pub(crate) state: bool,
    /// An image with programs, seen as `/opt/lab`.
    pub(crate) programs: Option<PathBuf>,
}

impl Spec {
    /// A guest of this name, with systemd-udevd and no state disk.
    pub(crate) fn new(name: &str) -> Spec {
        let surroundings = needs::Surroundings::default();
        Spec { name: name.to_owned(), cpus: 2, memory_mib: 1024, surroundings, state: false, programs: None }
    }
}

/// A guest. Dropped, it is powered off.
pub(crate) struct Guest {
    spec: Spec,
    lab: Arc<Lab>,
    /// Its address on the lab's network.
    pub(crate) address: Ipv4Addr,
    number: u8,
    state: Option<PathBuf>,
    /// Its media by serial number, in the order in which they were plugged in.
    media: Mutex<Vec<Arc<Medium>>>,
    /// Media that were pulled out and may come back.
    pulled: Mutex<Vec<Arc<Medium>>>,
    power: Mutex<Power>,
    connections: Arc<Connections>,
}

struct Power {
    console: Console,
    running: Option<Running>,
    cuts: u32,
}

struct Running {
    guest: Child,
    disks: Bus,
}

impl Guest {
    /// Makes a guest with these disks and boots it.
    pub(crate) fn boot(lab: &Arc<Lab>, spec: Spec, disks: Vec<Arc<Medium>>) -> Result<Arc<Guest>> {
        let number = lab.network.new_tap()?;
        let console = Console::new(&spec.name)?;
        let state = if spec.state { Some(state_disk(lab, &spec.name)?) } else { None };
        let guest = Arc::new(Guest {
            address: lab.network.address(number),
            lab: Arc::clone(lab),
            number,
            state,
            media: Mutex::new(disks),
            pulled: Mutex::default(),
            power: Mutex::new(Power { console, running: None, cuts: 0 }),
            connections: Arc::default(),
            spec,
        });
        guest.power_on()?;
        lab.register(&guest);
        Ok(guest)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// The disks plugged in, in order.
    pub(crate) fn serials(&self) -> Vec<String> {
        lock(&self.media).iter().map(|medium| medium.disk.serial.clone()).collect()
    }

    /// Boots, on the disks as they are.
    pub(crate) fn power_on(&self) -> Result<()> {
        let mut power = lock(&self.power);
        if power.running.is_some() {
            bail!("{} is running", self.spec.name);
        }
        power.console.begin()?;
        let socket = self.lab.path(&format!("{}.disks", self.spec.name));
        let mut disks = Bus::serve(&socket, &self.spec.name, &lock(&self.media))?;
        let mut guest = self.start(power.console.path(), socket)?;
        if self.lab.kernel.accelerator == Accelerator::UserMode {
            disks.belongs_to(guest.id());
        }
        let deadline = Instant::now() + BOOT_LIMIT;
        while !power.console.text().contains(READY) {
            let ended = guest.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                end(&mut guest, &mut disks)?;
                let log = fs::read_to_string(power.console.path().with_extension("log")).unwrap_or_default();
                let log = process::last_lines(&log, 5);
                bail!("{} did not boot: {}\n{log}", self.spec.name, power.console.last_words());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        power.running = Some(Running { guest, disks });
        Ok(())
    }

    fn start(&self, console: &Path, disks: PathBuf) -> Result<Child> {
        let (spec, lab) = (&self.spec, &self.lab);
        let flag = |key: &str, on: bool| format!(" lab.{key}={}", u8::from(on));
        let mut words = format!("lab.name={} lab.address={}", spec.name, self.address);
        words += &format!(" lab.gateway={}", lab.network.gateway());
        words += &flag("udev", spec.surroundings.udev);
        words += &flag("dmeventd", spec.surroundings.dmeventd);
        words += &flag("devices-file", spec.surroundings.devices_file);
        words += &flag("state", spec.state);
        let mut images = vec![(lab.root.image.as_path(), "lab-root", false)];
        images.extend(self.state.iter().map(|path| (path.as_path(), "lab-state", true)));
        images.extend(spec.programs.iter().map(|path| (path.as_path(), "lab-programs", false)));
        let start = Start {
            kernel: &lab.kernel,
            // With several emulated processors a kernel that patches its own code, as it does when it loads a driver,
            // hangs once in some hundred boots.
            cpus: if lab.kernel.accelerator == Accelerator::Kvm { spec.cpus } else { 1 },
            memory_mib: spec.memory_mib,
            words,
            console,
            surroundings: Some(Surroundings {
                disks,
                tap: format!("tap{}", self.number),
                hardware_address: format!("52:54:00:00:00:{:02x}", self.number),
                share: &lab.share,
                images,
            }),
        };
        start.spawn(Path::new("."))
    }

    /// Plugs in a disk.
    pub(crate) fn plug(&self, medium: &Arc<Medium>) -> Result<()> {
        let mut power = lock(&self.power);
        let running = power.running()?;
        running.disks.plug(medium)?;
        lock(&self.media).push(Arc::clone(medium));
        Ok(())
    }

    /// Plugs in a blank disk and returns its serial number.
    pub(crate) fn plug_new(&self, disk: Disk) -> Result<String> {
        let medium = self.lab.new_disk(disk)?;
        self.plug(&medium)?;
        Ok(medium.disk.serial.clone())
    }

    /// Pulls a disk out, as it is.
    pub(crate) fn unplug(&self, serial: &str) -> Result<()> {
        let mut power = lock(&self.power);
        let running = power.running()?;
        running.disks.unplug(serial)?;
        let mut media = lock(&self.media);
        if let Some(position) = media.iter().position(|medium| medium.disk.serial == serial) {
            lock(&self.pulled).push(media.remove(position));
        }
        Ok(())
    }

    /// Plugs in again, with its bytes, a disk that was pulled out.
    pub(crate) fn plug_back(&self, serial: &str) -> Result<()> {
        let found = lock(&self.pulled).iter().find(|medium| medium.disk.serial == serial).cloned();
        let medium = found.with_context(|| format!("no disk {serial} was pulled out"))?;
        self.plug(&medium)?;
        lock(&self.pulled).retain(|medium| medium.disk.serial != serial);
        Ok(())
    }

    /// Pulls out all disks and forgets them.
    pub(crate) fn unplug_all(&self) -> Result<()> {
        for serial in self.serials() {
            self.unplug(&serial)?;
        }
        lock(&self.pulled).clear();
        Ok(())
    }

    /// From now on this is wrong with the disk.
    pub(crate) fn set_fault(&self, serial: &str, fault: Fault) -> Result<()> {
        let media = lock(&self.media);
        let medium = media.iter().find(|medium| medium.disk.serial == serial);
        medium
            .with_context(|| format!("no disk {serial} in {}", self.spec.name))?
            .set_fault(&self.spec.name, fault)
    }

    /// Cuts the power. [`Guest::power_on`] boots again on the same disks.
    pub(crate) fn cut_power(&self, cut: Cut) -> Result<()> {
        let mut power = lock(&self.power);
        let media = lock(&self.media);
        if cut == Cut::LoseUnflushed
            && let Some(medium) = media.iter().find(|medium| !medium.disk.faults)
        {
            bail!("disk {} cannot lose unflushed writes: ask for a disk with faults", medium.disk.serial);
        }
        if let Some(mut running) = power.running.take() {
            end(&mut running.guest, &mut running.disks)?;
            power.cuts += 1;
        }
        self.connections.break_all();
        for medium in media.iter() {
            medium.after(cut, &self.spec.name)?;
        }
        Ok(())
    }

    /// How often its power was cut.
    pub(crate) fn cuts(&self) -> u32 {
        lock(&self.power).cuts
    }

    /// Whether it has power.
    pub(crate) fn is_running(&self) -> bool {
        let mut power = lock(&self.power);
        match &mut power.running {
            Some(running) => matches!(running.guest.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// A program to run in it.
    pub(crate) fn command<S: AsRef<str>>(&self, argv: impl IntoIterator<Item = S>) -> Command {
        let argv = argv.into_iter().map(|word| word.as_ref().to_owned()).collect();
        Command::new(&self.spec.name, self.address, &self.connections, argv)
    }

    /// A shell script to run in it, which stops at its first failure.
    pub(crate) fn script(&self, script: &str) -> Command {
        self.command(["bash", "-euo", "pipefail", "-c", script])
    }

    /// Writes a file in it.
    pub(crate) fn put(&self, path: impl AsRef<Path>, mode: u32, content: impl Into<Vec<u8>>) -> Result<()> {
        self.command(write_file(path.as_ref(), mode)).stdin(content).run()?;
        Ok(())
    }

    /// Reads a file in it.
    pub(crate) fn get(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        Ok(self.command(["cat", "--", &path.as_ref().to_string_lossy()]).run()?.stdout)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.cut_power(Cut::Kill);
        self.lab.network.remove_tap(self.number);
        if let Some(state) = &self.state {
            let _ = fs::remove_file(state);
        }
    }
}

impl Power {
    fn running(&mut self) -> Result<&mut Running> {
        self.running.as_mut().context("the guest has no power")
    }
}

/// Ends a guest, and what was under way on its disks.
fn end(guest: &mut Child, disks: &mut Bus) -> Result<()> {
    guest.kill()?;
    guest.wait()?;
    disks.close();
    Ok(())
}

fn state_disk(lab: &Lab, guest: &str) -> Result<PathBuf> {
    let path = lab.path(&format!("{guest}.state"));
    File::create(&path)?.set_len(16 * GIB)?;
    let mut mke2fs = process::program("mke2fs");
    // The kernel finishes the tables in the background otherwise, which costs an emulated guest dearly.
    mke2fs.args([
        "-q",
        "-F",
        "-t",
        "ext4",
        "-m",
        "0",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0",
        "-N",
        "200000",
    ]);
    process::run(mke2fs.arg(&path))?;
    Ok(path)
}
