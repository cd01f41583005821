//! A volume is made visible at a path, and hidden again.
//!
//! Nothing is staged, and no mount of ours is hidden anywhere: the first target mounts the device, a further one on
//! the same host is bound from it, each with its own flags. What is mounted tells all; nothing else is remembered.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;
use uuid::Uuid;

use crate::facts::Facts;
use crate::filesystem::{Content, Filesystem, NotMountable, Preparation, prepare};
use crate::lvm::Volume;
use crate::lvm::inventory::{DeviceNumber, Kind};
use crate::mount::{self, BadFlag, Flags, Mount};
use crate::names::VolumePath;
use crate::runner::{Linux, ProbeError, ProcessError, is_not_mounted};
use crate::units::Bytes;
use crate::volumes::{self, Volumes};

/// How a volume shall be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// As a filesystem.
    Filesystem {
        /// Which.
        kind: Filesystem,
        /// Mount options of its class.
        flags: Vec<String>,
        /// Whether it may only be read.
        read_only: bool,
    },
    /// As a block device.
    Block {
        /// Whether it may only be read.
        read_only: bool,
    },
}

/// The mode of a new filesystem's root directory: that of TopoLVM.
const ROOT_MODE: u32 = 0o2777;

/// A filesystem that is smaller than its device by less than this is as large as it can be.
const REMAINDER: Bytes = Bytes::mib(1);

/// Where older TopoLVM made device nodes.
const LEGACY_DEVICES: &str = "/dev/topolvm";

/// Why a volume is not published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The volume is not there, or LVM does not do it.
    #[error(transparent)]
    Volume(#[from] volumes::Error),
    /// Its disk was pulled out and put back while it was active.
    #[error(
        "{0} leads to a disk that was pulled out, and cannot be led to another while it or its pool is in use: \
         stop who uses volumes of {group}, and run vgchange -an {group} and vgchange -ay {group}",
        group = .0.group
    )]
    Orphaned(VolumePath),
    /// It is being copied or zeroed.
    #[error("{0} is not finished")]
    Unfinished(VolumePath),
    /// It is a snapshot or a pool.
    #[error("{0} is not a volume that can be published")]
    NotAVolume(VolumePath),
    /// Its bytes forbid it.
    #[error("{path}: {reason}")]
    NotMountable {
        /// Which.
        path: VolumePath,
        /// Why.
        reason: NotMountable,
    },
    /// It was made for a filesystem, and what is on it was not zeroed.
    #[error("{0} was made for a filesystem: as a block device it would show what was there before")]
    NotZeroed(VolumePath),
    /// A flag of the class.
    #[error(transparent)]
    Flag(#[from] BadFlag),
    /// Something else is mounted there.
    #[error("something else is mounted on {}: {found}", target.display())]
    Occupied {
        /// Where.
        target: PathBuf,
        /// What.
        found: String,
    },
    /// It is mounted on this host in another way.
    #[error("{path} is mounted on {} already, without {flag:?}: mount flags must be the same on one node", at.display())]
    Differs {
        /// Which.
        path: VolumePath,
        /// Where.
        at: PathBuf,
        /// The difference.
        flag: String,
    },
    /// What is on it cannot be told.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A tool failed.
    #[error("{0} failed on {1}")]
    Tool(&'static str, VolumePath, #[source] ProcessError),
    /// The kernel refused.
    #[error("{what} {} failed", place.display())]
    System {
        /// What.
        what: &'static str,
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn system(what: &'static str, place: &Path) -> impl FnOnce(io::Error) -> PublishError {
    let place = place.to_owned();
    move |source| PublishError::System { what, place, source }
}

/// How a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Whether something is wrong.
    pub abnormal: bool,
    /// What, for people.
    pub message: String,
}

impl Volumes<Linux> {
    /// Makes a volume visible at a path. Done already is as good.
    pub fn publish(
        self: &Arc<Self>,
        path: &VolumePath,
        target: &Path,
        access: &Access,
        deadline: Option<Instant>,
    ) -> Result<(), PublishError> {
        self.look(&path.group)?;
        let inventory = self.inventory();
        let volume = inventory
            .volume(path)
            .ok_or_else(|| volumes::Error::from(crate::plan::Refusal::NoVolume(path.clone())))?;
        let facts = Facts::of(volume);
        if facts.is_unfinished() {
            return Err(PublishError::Unfinished(path.clone()));
        }
        if facts.snapshot || !matches!(volume.kind, Kind::Thick(_) | Kind::Thin { .. }) {
            return Err(PublishError::NotAVolume(path.clone()));
        }
        let number = self.activated(path, deadline)?;
        let publication = Publication { volumes: self, path, volume, facts, number, target, deadline };
        match access {
            Access::Filesystem { kind, flags, read_only } => {
                let flags = Flags::parse(flags, *read_only)?;
                publication.filesystem(*kind, flags)
            }
            Access::Block { read_only } => publication.block(*read_only),
        }
    }

    /// Whether nothing was ever written to a volume for a filesystem, whoever might have: no signature, and no copy of
    /// one.
    pub fn is_blank(self: &Arc<Self>, path: &VolumePath) -> Result<bool, PublishError> {
        self.activated(path, None)?;
        let content = self.runner().probe(&Linux::device_path(path), false)?;
        Ok(matches!(content, Content::Nothing))
    }

    /// Hides whatever is at a path. Nothing there is as good. Needs neither the volume nor LVM, and does not touch what
    /// is mounted: a dead disk answers nothing.
    pub fn unpublish(&self, volume: &str, target: &Path) -> Result<(), PublishError> {
        let linux = self.runner();
        loop {
            let mounts = linux.mounts().map_err(system("listing mounts for", target))?;
            if mount::at(&mounts, target).next().is_none() {
                break;
            }
            match linux.unmount(target) {
                Err(error) if !is_not_mounted(&error) => return Err(system("unmounting", target)(error)),
                _ => {}
            }
        }
        linux.remove_target(target).map_err(system("removing", target))?;
        let legacy = Path::new(LEGACY_DEVICES).join(volume);
        if legacy.parent() == Some(Path::new(LEGACY_DEVICES)) && linux.is_block_device(&legacy) {
            linux.remove_target(&legacy).map_err(system("removing", &legacy))?;
        }
        Ok(())
    }

    /// Makes a mounted filesystem as large as its volume. Returns the volume's size.
    pub fn grow_published(self: &Arc<Self>, path: &VolumePath, target: &Path) -> Result<Bytes, PublishError> {
        let linux = self.runner();
        let inventory = self.inventory();
        let size = inventory.volume(path).map_or(Bytes::ZERO, |volume| volume.size);
        let device = linux.device(&path.mapper_name()).map_err(system("looking at", target))?;
        let mounts = linux.mounts().map_err(system("listing mounts for", target))?;
        let mounted = mount::at(&mounts, target)
            .last()
            .filter(|mount| device.as_ref().is_some_and(|device| device.number == mount.device));
        if let Some(mounted) = mounted
            && let Some(kind) = Filesystem::named(&mounted.filesystem)
        {
            self.grow_mounted(path, kind, &mounts, mounted)?;
        }
        Ok(size)
    }

    /// Through a mount that may be written: growing is a change.
    fn grow_mounted(
        &self,
        path: &VolumePath,
        kind: Filesystem,
        mounts: &[Mount],
        mounted: &Mount,
    ) -> Result<(), PublishError> {
        let linux = self.runner();
        let device = Linux::device_path(path);
        let size = linux.device_size(&device).map_err(system("measuring", &device))?;
        let superblock = linux.superblock(&device, kind).map_err(system("reading", &device))?;
        let is_smaller = superblock.is_none_or(|superblock| superblock.size + REMAINDER <= size);
        let writable = mounts.iter().find(|mount| {
            mount.device == mounted.device && mount.filesystem == mounted.filesystem && !mount.is_read_only()
        });
        if !is_smaller {
            return Ok(());
        }
        let Some(writable) = writable else { return Ok(()) };
        let argv = kind.grow(&device.to_string_lossy(), &writable.target.to_string_lossy());
        linux
            .tool(argv)
            .map_err(|error| PublishError::Tool("growing the filesystem", path.clone(), error))?;
        if kind.must_be_written_out_when_grown()
            && let Err(error) = self.in_turn(&path.group, || linux.write_out(path))
        {
            tracing::warn!(volume = %path, %error, "the grown filesystem cannot be written out at once");
        }
        Ok(())
    }

    /// The number of a volume's device, which is made if there is none.
    fn activated(
        self: &Arc<Self>,
        path: &VolumePath,
        deadline: Option<Instant>,
    ) -> Result<DeviceNumber, PublishError> {
        let node = Linux::device_path(path);
        let name = path.mapper_name();
        let device = || self.runner().device(&name).map_err(system("looking at", &node));
        let is_orphaned = || self.runner().is_orphaned(&name).map_err(system("looking at", &node));
        if let Some(present) = device()? {
            if !is_orphaned()? {
                return Ok(present.number);
            }
            // The disk may be back as another device, which LVM finds when it activates the volume.
            if present.open == 0 {
                self.renew(path, deadline)?;
            }
            let renewed = device()?.filter(|_| matches!(is_orphaned(), Ok(false)));
            return renewed.map(|device| device.number).ok_or_else(|| PublishError::Orphaned(path.clone()));
        }
        self.activate(path, deadline)?;
        let gone = || system("activating", &node)(io::Error::from(io::ErrorKind::NotFound));
        Ok(device()?.ok_or_else(gone)?.number)
    }

    /// How a volume is, without a process.
    pub fn condition(&self, path: &VolumePath) -> Condition {
        let problems = self.problems(path);
        let abnormal = !problems.is_empty();
        let message = if abnormal {
            problems.join("; ")
        } else {
            "volume is healthy and operating normally".to_owned()
        };
        Condition { abnormal, message }
    }

    fn problems(&self, path: &VolumePath) -> Vec<String> {
        let linux = self.runner();
        let inventory = self.inventory();
        let mut problems = Vec::new();
        let Some(volume) = inventory.volume(path) else { return vec![format!("there is no volume {path}")] };
        if let Some(stuck) = self.stuck(&path.group) {
            problems.push(stuck.to_string());
        }
        if let Some(group) = inventory.groups.get(&path.group) {
            for disk in group.disks.iter().filter(|disk| disk.missing || disk.is_gone()) {
                problems.push(format!("disk {} of volume group {} is missing", disk.told(), group.name));
            }
        }
        if let Ok(Some(device)) = linux.device(&path.mapper_name()) {
            if device.suspended {
                problems.push("its device is suspended".to_owned());
            }
            for raid in device.targets.iter().filter_map(crate::dm::Target::raid) {
                if raid.health.contains('D') {
                    problems.push(format!("RAID is degraded: images {}", raid.health));
                }
            }
        }
        if let Kind::Thin { pool, .. } = &volume.kind {
            use crate::dm::PoolState;
            let pool = VolumePath { group: path.group.clone(), volume: pool.clone() };
            match crate::runner::Runner::pool(linux, &pool) {
                Ok(Some(state)) if state.state == PoolState::OutOfData => {
                    problems.push(format!("thin pool {pool} is full: writes fail"));
                }
                Ok(Some(state)) if state.state != PoolState::Good || state.needs_check => {
                    problems.push(format!("thin pool {pool} cannot be written"));
                }
                Ok(_) => {}
                Err(error) => problems.push(format!("thin pool {pool} cannot be looked at: {error}")),
            }
        }
        problems
    }
}

struct Publication<'a> {
    volumes: &'a Arc<Volumes<Linux>>,
    path: &'a VolumePath,
    volume: &'a Volume,
    facts: Facts,
    number: DeviceNumber,
    target: &'a Path,
    deadline: Option<Instant>,
}

impl Publication<'_> {
    fn linux(&self) -> &Linux {
        self.volumes.runner()
    }

    fn device(&self) -> PathBuf {
        Linux::device_path(self.path)
    }

    fn filesystem(&self, kind: Filesystem, flags: Flags) -> Result<(), PublishError> {
        let mounts = self.mounts()?;
        if let Some(present) = mount::at(&mounts, self.target).last() {
            self.is_published(present, &flags)?;
            return self.volumes.grow_mounted(self.path, kind, &mounts, present);
        }
        let whole = |mount: &&Mount| mount.device == self.number && mount.root == Path::new("/");
        if let Some(first) = mounts.iter().find(whole) {
            self.another(first, kind, &flags)?;
        } else {
            self.first(kind, flags)?;
        }
        let mounts = self.mounts()?;
        match mount::at(&mounts, self.target).last() {
            Some(mounted) => self.volumes.grow_mounted(self.path, kind, &mounts, mounted),
            None => Err(system("mounting on", self.target)(io::Error::other("nothing is mounted there"))),
        }
    }

    fn mounts(&self) -> Result<Vec<Mount>, PublishError> {
        self.linux().mounts().map_err(system("listing mounts for", self.target))
    }

    /// Checks that what is mounted on the target is this volume.
    fn is_published(&self, present: &Mount, flags: &Flags) -> Result<(), PublishError> {
        if present.device != self.number {
            let found = format!("{} ({})", present.source, present.filesystem);
            return Err(PublishError::Occupied { target: self.target.to_owned(), found });
        }
        if present.is_read_only() != flags.is_read_only() {
            let found =
                format!("this volume, {}", if present.is_read_only() { "read-only" } else { "writable" });
            return Err(PublishError::Occupied { target: self.target.to_owned(), found });
        }
        Ok(())
    }

    /// A further target is bound from one that is there.
    fn another(&self, first: &Mount, kind: Filesystem, flags: &Flags) -> Result<(), PublishError> {
        if first.filesystem != kind.name() {
            let reason = NotMountable::Another { present: first.filesystem.clone(), wanted: kind };
            return Err(PublishError::NotMountable { path: self.path.clone(), reason });
        }
        if let Some(flag) = flags.difference(first) {
            let (path, at, flag) = (self.path.clone(), first.target.clone(), flag.to_owned());
            return Err(PublishError::Differs { path, at, flag });
        }
        self.make_directory()?;
        self.linux().bind(&first.target, self.target, &flags.own).map_err(system("binding", self.target))
    }

    /// The first target mounts the device.
    fn first(&self, kind: Filesystem, mut flags: Flags) -> Result<(), PublishError> {
        self.prepare(kind, flags.is_read_only())?;
        let read_only = self.volume.is_read_only();
        for option in kind.options(read_only) {
            if !flags.shared.iter().any(|flag| flag == option) {
                flags.shared.push(option.to_owned());
            }
        }
        self.make_directory()?;
        let mounted = self.linux().mount(&self.device(), self.target, kind, &flags, read_only);
        mounted.map_err(system("mounting on", self.target))
    }

    fn make_directory(&self) -> Result<(), PublishError> {
        self.linux().make_directory(self.target).map_err(system("making", self.target))
    }

    /// Makes sure that there is a filesystem, and never in place of anything else.
    fn prepare(&self, kind: Filesystem, read_only: bool) -> Result<(), PublishError> {
        let (linux, device) = (self.linux(), self.device());
        let content = linux.probe(&device, self.facts.is_ours())?;
        let todo = prepare(&self.facts, &content, kind, read_only)
            .map_err(|reason| PublishError::NotMountable { path: self.path.clone(), reason })?;
        let tool = |what| move |error| PublishError::Tool(what, self.path.clone(), error);
        if todo == Preparation::Format {
            let uuid = self.facts.fsid.unwrap_or_else(Uuid::new_v4);
            let argv = kind.make(&device.to_string_lossy(), uuid);
            linux.tool(argv).map_err(tool("making a filesystem"))?;
        }
        if todo != Preparation::Use {
            linux.set_root_mode(&device, kind, ROOT_MODE).map_err(system("preparing", &device))?;
        } else if !read_only && !self.volume.is_read_only() {
            self.check(kind, &content)?;
        }
        let ours = self.facts.is_ours() || todo == Preparation::Format;
        if ours && !self.facts.used {
            self.volumes.note(self.path, self.deadline, |facts| {
                facts.used = true;
                facts.filesystem = Some(kind.name().to_owned());
            })?;
        }
        Ok(())
    }

    /// Repairs what a crash has left, and gives a copy an identity of its own where the kernel needs one.
    fn check(&self, kind: Filesystem, content: &Content) -> Result<(), PublishError> {
        let (linux, device) = (self.linux(), self.device());
        let node = device.to_string_lossy().into_owned();
        let tool = |what| move |error| PublishError::Tool(what, self.path.clone(), error);
        if kind == Filesystem::Ext4 {
            let superblock = linux.superblock(&device, kind).map_err(system("reading", &device))?;
            if superblock.is_none_or(|superblock| superblock.unclean) {
                let argv = ["e2fsck", "-p", &node].map(str::to_owned).to_vec();
                linux.check(argv).map_err(tool("checking the filesystem"))?;
            }
        }
        let copied = self.facts.source.is_some();
        if kind == Filesystem::Btrfs
            && copied
            && let (Content::Filesystem { uuid, .. }, Some(fsid)) = (content, self.facts.fsid)
            && *uuid != Some(fsid)
        {
            let argv = ["btrfstune", "-f", "-M", &fsid.to_string(), &node].map(str::to_owned).to_vec();
            linux.tool(argv).map_err(tool("giving the copy an identity"))?;
        }
        Ok(())
    }

    fn block(&self, read_only: bool) -> Result<(), PublishError> {
        let linux = self.linux();
        let zeroed = self.facts.block || self.facts.used || matches!(self.volume.kind, Kind::Thin { .. });
        if self.facts.is_ours() && !zeroed {
            return Err(PublishError::NotZeroed(self.path.clone()));
        }
        if linux.is_device(self.target, self.number).map_err(system("looking at", self.target))? {
            return Ok(());
        }
        let mounts = self.mounts()?;
        if let Some(present) = mount::at(&mounts, self.target).last() {
            let found = format!("{} ({})", present.source, present.filesystem);
            return Err(PublishError::Occupied { target: self.target.to_owned(), found });
        }
        if self.facts.is_ours() && !self.facts.used {
            self.volumes.note(self.path, self.deadline, |facts| facts.used = true)?;
        }
        linux.make_file(self.target).map_err(system("making", self.target))?;
        let own: Vec<String> = read_only.then(|| "ro".to_owned()).into_iter().collect();
        linux.bind(&self.device(), self.target, &own).map_err(system("binding", self.target))
    }
}
