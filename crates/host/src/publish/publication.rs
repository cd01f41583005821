//! One volume, one target: what is there already, what has to be done first, and the mount itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use super::hiding::is_stale;
use super::{PublishError, seen, system};
use crate::facts::Facts;
use crate::filesystem::{Content, Filesystem, NotMountable, Preparation, prepare};
use crate::lvm::inventory::DeviceNumber;
use crate::lvm::{Group, Volume};
use crate::mount::{Flags, Mount};
use crate::names::VolumePath;
use crate::plan::volume::has_former_bytes;
use crate::runner::{Claim, Linux};
use crate::volumes::Volumes;

/// The mode of a new filesystem's root directory: that of TopoLVM.
const ROOT_MODE: u32 = 0o2777;

pub(super) struct Publication<'a> {
    pub(super) volumes: &'a Arc<Volumes<Linux>>,
    pub(super) path: &'a VolumePath,
    pub(super) group: &'a Group,
    pub(super) volume: &'a Volume,
    pub(super) facts: Facts,
    pub(super) number: DeviceNumber,
    pub(super) target: &'a Path,
    pub(super) deadline: Option<Instant>,
}

impl Publication<'_> {
    fn linux(&self) -> &Linux {
        self.volumes.runner()
    }

    fn device(&self) -> PathBuf {
        Linux::device_path(self.path)
    }

    pub(super) fn filesystem(&self, kind: Filesystem, flags: Flags) -> Result<(), PublishError> {
        let mounts = self.mounts()?;
        if let Some(present) = seen(self.linux(), &mounts, self.target)? {
            self.is_published(present, kind.name(), &flags)?;
            return self.volumes.grow_mounted(self.path, kind, &mounts, present, self.deadline);
        }
        let whole = |mount: &&Mount| mount.device == self.number && mount.root == Path::new("/");
        if let Some(first) = mounts.iter().find(whole) {
            self.is_same(first, kind, &flags)?;
        }
        let is_seen = |mount: &&Mount| self.linux().is_seen(mount).unwrap_or(false);
        match mounts.iter().filter(whole).find(is_seen) {
            Some(first) => self.another(first, &flags)?,
            None => self.first(kind, flags)?,
        }
        let mounts = self.mounts()?;
        match seen(self.linux(), &mounts, self.target)? {
            Some(mounted) if mounted.device != self.number => Err(self.occupied(another_s(mounted))),
            Some(mounted) => self.volumes.grow_mounted(self.path, kind, &mounts, mounted, self.deadline),
            None => Err(system("mounting on", self.target)(io::Error::other("nothing is mounted there"))),
        }
    }

    fn mounts(&self) -> Result<Vec<Mount>, PublishError> {
        self.linux().mounts().map_err(system("listing mounts for", self.target))
    }

    /// Checks that what is mounted on the target is this volume, in this way.
    fn is_published(&self, present: &Mount, wanted: &str, flags: &Flags) -> Result<(), PublishError> {
        let found = if present.device != self.number {
            another_s(present)
        } else if present.filesystem != wanted {
            format!("this volume, as {}", present.filesystem)
        } else if present.is_read_only() != flags.is_read_only() {
            itself(present)
        } else if let Some(difference) = flags.difference(present) {
            format!("this volume, {difference}")
        } else if !Linux::is_mounted_with(&flags.own, present) {
            format!("this volume, with {}", present.options.join(","))
        } else {
            return Ok(());
        };
        Err(self.occupied(found))
    }

    fn occupied(&self, found: String) -> PublishError {
        PublishError::Occupied { target: self.target.to_owned(), found }
    }

    /// Checks that the volume is mounted elsewhere in the wished way: one filesystem has one way.
    fn is_same(&self, first: &Mount, kind: Filesystem, flags: &Flags) -> Result<(), PublishError> {
        if first.filesystem != kind.name() {
            let reason = NotMountable::Another { present: first.filesystem.clone(), wanted: kind };
            return Err(PublishError::NotMountable { path: self.path.clone(), reason });
        }
        if let Some(difference) = flags.difference(first) {
            let (path, at) = (self.path.clone(), first.target.clone());
            return Err(PublishError::Differs { path, at, difference });
        }
        Ok(())
    }

    /// A further target is bound from one that is seen.
    fn another(&self, first: &Mount, flags: &Flags) -> Result<(), PublishError> {
        self.make_directory()?;
        self.linux().bind(&first.target, self.target, &flags.own).map_err(system("binding", self.target))
    }

    /// The first target mounts the device.
    fn first(&self, kind: Filesystem, mut flags: Flags) -> Result<(), PublishError> {
        // What a probe shows while a tool works is not what there will be.
        let claim = self.volumes.claim(self.path, self.number, self.deadline)?;
        self.prepare(kind, flags.is_read_only(), &claim)?;
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
    fn prepare(&self, kind: Filesystem, read_only: bool, claim: &Arc<Claim>) -> Result<(), PublishError> {
        let (linux, device) = (self.linux(), self.device());
        let content = linux.probe(&device, self.facts.is_ours())?;
        let todo = prepare(&self.facts, &content, kind, read_only)
            .map_err(|reason| PublishError::NotMountable { path: self.path.clone(), reason })?;
        match todo {
            Preparation::Format => self.format(kind, claim),
            Preparation::Finish => finish(self.volumes, self.path, kind, self.deadline),
            Preparation::Use => {
                if !self.volume.is_read_only()
                    // What is mounted elsewhere, with a part of it or in a container that outlives its pod, cannot be
                    // checked.
                    && !linux.is_held(&device).map_err(system("opening", &device))?
                {
                    // A read-only target, too: what it mounts may be written, by the kernel and by targets to come.
                    self.check(kind, &content, claim)?;
                }
                if self.facts.is_ours() && !self.facts.used {
                    note_used(self.volumes, self.path, kind, self.deadline)?;
                }
                Ok(())
            }
        }
    }

    /// The identity that the filesystem is going to have: after a crash it is known by it.
    fn identity(&self) -> Result<Uuid, PublishError> {
        if let Some(fsid) = self.facts.fsid {
            return Ok(fsid);
        }
        let fsid = Uuid::new_v4();
        self.volumes.note(self.path, self.deadline, |facts| facts.fsid = Some(fsid))?;
        Ok(fsid)
    }

    /// Makes a filesystem, and what has to follow, whoever still waits for it.
    fn format(&self, kind: Filesystem, claim: &Arc<Claim>) -> Result<(), PublishError> {
        let uuid = self.identity()?;
        let argv = kind.make(&self.device().to_string_lossy(), uuid);
        let path = self.path.clone();
        let made = {
            let path = path.clone();
            move |volumes: &Arc<Volumes<Linux>>, claim: &Claim| {
                let made = volumes.runner().tool(claim, argv, &[0]);
                made.map_err(|error| PublishError::Tool("making a filesystem", path, error))
            }
        };
        let finished = move |volumes: &Arc<Volumes<Linux>>| finish(volumes, &path, kind, None);
        self.volumes.with_tools(self.path, "format", claim, self.deadline, made, finished)
    }

    /// Repairs what a crash has left, and gives a copy an identity of its own where the kernel needs one.
    fn check(&self, kind: Filesystem, content: &Content, claim: &Arc<Claim>) -> Result<(), PublishError> {
        /// Errors were corrected.
        const CORRECTED: i32 = 1;
        let (linux, device) = (self.linux(), self.device());
        let node = device.to_string_lossy().into_owned();
        if kind == Filesystem::Ext4 {
            let superblock = linux.superblock(&device, kind).map_err(system("reading", &device))?;
            if superblock.is_none_or(|superblock| superblock.unclean) {
                let argv = ["e2fsck", "-p", &node].map(str::to_owned).to_vec();
                self.tool("check", "checking the filesystem", claim, argv, &[0, CORRECTED])?;
            }
        }
        let copied = self.facts.source.is_some();
        if kind == Filesystem::Btrfs
            && copied
            && let (Content::Filesystem { uuid, .. }, Some(fsid)) = (content, self.facts.fsid)
            && *uuid != Some(fsid)
        {
            let argv = ["btrfstune", "-f", "-M", &fsid.to_string(), &node].map(str::to_owned).to_vec();
            self.tool("check", "giving the copy an identity", claim, argv, &[0])?;
        }
        Ok(())
    }

    fn tool(
        &self,
        what: &'static str,
        told: &'static str,
        claim: &Arc<Claim>,
        argv: Vec<String>,
        good: &'static [i32],
    ) -> Result<(), PublishError> {
        let path = self.path.clone();
        let act = move |volumes: &Arc<Volumes<Linux>>, claim: &Claim| {
            let done = volumes.runner().tool(claim, argv, good);
            done.map_err(|error| PublishError::Tool(told, path, error))
        };
        self.volumes.with_tools(self.path, what, claim, self.deadline, act, |_| Ok(()))
    }

    pub(super) fn block(&self, read_only: bool) -> Result<(), PublishError> {
        let linux = self.linux();
        if has_former_bytes(self.group, self.volume) {
            return Err(PublishError::NotZeroed(self.path.clone()));
        }
        let mounts = self.mounts()?;
        let present = seen(linux, &mounts, self.target)?;
        let occupied = |found| Err(self.occupied(found));
        if linux.is_device(self.target, self.number).map_err(system("looking at", self.target))? {
            // A bare node of an older TopoLVM's is no mount.
            return match present {
                Some(present) if present.is_read_only() != read_only => occupied(itself(present)),
                Some(_) | None => Ok(()),
            };
        }
        if let Some(present) = present {
            return occupied(format!("{} ({})", present.source, present.filesystem));
        }
        if let Some(number) = linux.node_at(self.target) {
            if !is_stale(linux, self.target, number)? {
                return occupied(format!("device {}:{}", number.major, number.minor));
            }
            linux.remove_target(self.target).map_err(system("removing", self.target))?;
        }
        if self.facts.is_ours() && !self.facts.used {
            self.volumes.note(self.path, self.deadline, |facts| facts.used = true)?;
        }
        linux.make_file(self.target).map_err(system("making", self.target))?;
        let own: Vec<String> = read_only.then(|| "ro".to_owned()).into_iter().collect();
        linux.bind(&self.device(), self.target, &own).map_err(system("binding", self.target))?;
        seen(linux, &self.mounts()?, self.target).map(drop)
    }
}

/// Prepares a filesystem that nobody has used.
fn finish(
    volumes: &Arc<Volumes<Linux>>,
    path: &VolumePath,
    kind: Filesystem,
    deadline: Option<Instant>,
) -> Result<(), PublishError> {
    let device = Linux::device_path(path);
    volumes.runner().set_root_mode(&device, kind, ROOT_MODE).map_err(system("preparing", &device))?;
    note_used(volumes, path, kind, deadline)
}

/// Notes that somebody may have written to a filesystem.
fn note_used(
    volumes: &Arc<Volumes<Linux>>,
    path: &VolumePath,
    kind: Filesystem,
    deadline: Option<Instant>,
) -> Result<(), PublishError> {
    volumes.note(path, deadline, |facts| {
        facts.used = true;
        facts.filesystem = Some(kind.name().to_owned());
    })?;
    Ok(())
}

/// A target on which something else is mounted.
fn another_s(present: &Mount) -> String {
    format!("{} ({})", present.source, present.filesystem)
}

/// A target on which the same volume is, but may be written if it shall only be read, or the other way round.
fn itself(present: &Mount) -> String {
    format!("this volume, {}", if present.is_read_only() { "read-only" } else { "writable" })
}
