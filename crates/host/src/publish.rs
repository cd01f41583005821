//! A volume is made visible at a path, and hidden again.
//!
//! Nothing is staged, and no mount of ours is hidden anywhere: the first target mounts the device, a further one on
//! the same host is bound from it, each with its own flags. What is mounted tells all; nothing else is remembered.

mod admission;
mod condition;
mod hiding;
mod publication;
mod tools;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;

pub use self::admission::{Manner, admits};
pub use self::condition::Condition;
use self::publication::Publication;
use crate::facts::Facts;
use crate::filesystem::{Content, Filesystem, NotMountable};
use crate::lvm::inventory::{DeviceNumber, Kind};
use crate::lvm::{Inventory, Volume};
use crate::mount::{BadFlag, Difference, Flags, Mount};
use crate::names::VolumePath;
use crate::plan::Refusal;
use crate::plan::volume::changeable;
use crate::runner::{Claim, Linux, ProbeError, ProcessError, Runner, Use};
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

/// A filesystem that is smaller than its device by less than this is as large as it can be.
const REMAINDER: Bytes = Bytes::mib(1);

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
    #[error("{0} is not finished: repeat the call that made or grew it")]
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
    #[error(
        "{0} was made for a filesystem and never zeroed, and as a block device it would show what was there before: \
         publish it with a filesystem, or make a volume for block access"
    )]
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
    /// It is mounted there, and something else is seen.
    #[error("what is mounted on {} is hidden by {by}: unmount that first", target.display())]
    Hidden {
        /// Where.
        target: PathBuf,
        /// By what.
        by: String,
    },
    /// It is mounted on this host in another way.
    #[error("{path} is mounted on {} already, {difference}: mount flags must be the same on one node", at.display())]
    Differs {
        /// Which.
        path: VolumePath,
        /// Where.
        at: PathBuf,
        /// In what.
        difference: Difference,
    },
    /// What is on it cannot be told.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Somebody of us still does something to its filesystem, perhaps a driver that has been killed.
    #[error(
        "a tool still works on the filesystem of {0}: it is not cut off, and the same call goes on when it has ended"
    )]
    Busy(VolumePath),
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

fn none(path: &VolumePath) -> volumes::Error {
    Refusal::NoVolume(path.clone()).into()
}

/// What is mounted at a place, and seen there.
fn seen<'a>(linux: &Linux, mounts: &'a [Mount], target: &Path) -> Result<Option<&'a Mount>, PublishError> {
    let Some(topmost) = mounts.iter().rfind(|mount| mount.target == target) else { return Ok(None) };
    if linux.is_seen(topmost).map_err(system("looking at", target))? {
        return Ok(Some(topmost));
    }
    let at = target.ancestors().find_map(|place| linux.mount_of(place).ok().flatten());
    let by = mounts.iter().find(|mount| Some(mount.id) == at);
    let by = by.map_or_else(
        || "another mount".to_owned(),
        |mount| format!("{} ({}) on {}", mount.source, mount.filesystem, mount.target.display()),
    );
    Err(PublishError::Hidden { target: target.to_owned(), by })
}

/// A volume that may be made visible, with what is known of it.
fn publishable<'a>(inventory: &'a Inventory, path: &VolumePath) -> Result<(&'a Volume, Facts), PublishError> {
    let volume = inventory.volume(path).ok_or_else(|| none(path))?;
    let facts = Facts::of(volume);
    changeable(path, &facts).map_err(volumes::Error::from)?;
    if facts.is_unfinished(volume.size) {
        return Err(PublishError::Unfinished(path.clone()));
    }
    if facts.snapshot || !volume.is_volume() || matches!(volume.kind, Kind::Cow { .. }) {
        return Err(PublishError::NotAVolume(path.clone()));
    }
    Ok((volume, facts))
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
        let mut inventory = self.inventory();
        if publishable(&inventory, path)?.1.zeroing.is_some() {
            self.unmark(path, deadline)?;
            inventory = self.inventory();
        }
        let (volume, facts) = publishable(&inventory, path)?;
        let group = inventory.groups.get(&path.group).ok_or_else(|| none(path))?;
        let number = self.activated(path, deadline)?;
        let publication = Publication { volumes: self, path, group, volume, facts, number, target, deadline };
        match access {
            Access::Filesystem { kind, flags, read_only } => {
                let flags = Flags::parse(flags, *read_only)?;
                publication.filesystem(*kind, flags)
            }
            Access::Block { read_only } => publication.block(*read_only),
        }
    }

    /// Takes away the mark of a growth that came to nothing: should others extend the volume, what its user writes there
    /// must not be taken for bytes to be zeroed. Judged in the group's turn, in which no growth of ours is half done.
    fn unmark(self: &Arc<Self>, path: &VolumePath, deadline: Option<Instant>) -> Result<(), PublishError> {
        self.note(path, deadline, |facts| {
            let inventory = self.inventory();
            let size = inventory.volume(path).map_or(Bytes::ZERO, |volume| volume.size);
            if !facts.is_unfinished(size) {
                facts.zeroing = None;
            }
        })?;
        Ok(())
    }

    /// Whether nobody has made anything of a volume of ours: it has no signature. Copies of superblocks say nothing: a
    /// thick volume has those of former tenants until it is used.
    pub fn is_blank(self: &Arc<Self>, path: &VolumePath) -> Result<bool, PublishError> {
        Ok(matches!(self.content(path)?, Content::Nothing))
    }

    /// Whether what is on a volume of ours is of our making. LVM wipes a new volume after it has written that it is there:
    /// cut off between, it leaves what a former volume had on the same extents.
    pub fn is_as_made(self: &Arc<Self>, path: &VolumePath) -> Result<bool, PublishError> {
        let fsid = self.inventory().volume(path).and_then(|volume| Facts::of(volume).fsid);
        Ok(match self.content(path)? {
            Content::Nothing | Content::Remains(_) => true,
            Content::Filesystem { uuid, .. } => uuid.is_some() && uuid == fsid,
            Content::Other(_) => false,
        })
    }

    fn content(self: &Arc<Self>, path: &VolumePath) -> Result<Content, PublishError> {
        self.activated(path, None)?;
        Ok(self.runner().probe(&Linux::device_path(path), true)?)
    }

    /// Makes a mounted filesystem as large as its volume. Returns the volume's size.
    pub fn grow_published(
        self: &Arc<Self>,
        path: &VolumePath,
        target: &Path,
        deadline: Option<Instant>,
    ) -> Result<Bytes, PublishError> {
        let linux = self.runner();
        let inventory = self.inventory();
        let volume = inventory.volume(path);
        let size = volume.map_or(Bytes::ZERO, |volume| volume.size);
        if let Some(volume) = volume {
            changeable(path, &Facts::of(volume)).map_err(volumes::Error::from)?;
        }
        let device = linux.device(&path.mapper_name()).map_err(system("looking at", target))?;
        let mounts = linux.mounts().map_err(system("listing mounts for", target))?;
        let mounted = seen(linux, &mounts, target)?
            .filter(|mount| device.as_ref().is_some_and(|device| device.number == mount.device));
        if let Some(mounted) = mounted
            && let Some(kind) = Filesystem::named(&mounted.filesystem)
        {
            self.grow_mounted(path, kind, &mounts, mounted, deadline)?;
        }
        Ok(size)
    }

    /// Through a mount that may be written: growing is a change.
    fn grow_mounted(
        self: &Arc<Self>,
        path: &VolumePath,
        kind: Filesystem,
        mounts: &[Mount],
        mounted: &Mount,
        deadline: Option<Instant>,
    ) -> Result<(), PublishError> {
        if !self.is_smaller(path, kind)? {
            return Ok(());
        }
        let writable = mounts.iter().find(|mount| {
            mount.device == mounted.device
                && mount.filesystem == mounted.filesystem
                && !mount.is_read_only()
                && self.runner().is_seen(mount).unwrap_or(false)
        });
        let Some(writable) = writable else { return Ok(()) };
        let claim = self.claim(path, mounted.device, deadline)?;
        // Whoever had it may have grown it.
        if !self.is_smaller(path, kind)? {
            return Ok(());
        }
        let argv = kind.grow(&Linux::device_path(path).to_string_lossy(), &writable.target.to_string_lossy());
        let (volume, place) = (path.clone(), writable.target.clone());
        let grown = {
            let volume = volume.clone();
            move |volumes: &Arc<Self>, claim: &Claim| {
                let grown = volumes.runner().tool(claim, argv, &[0]);
                grown.map_err(|error| PublishError::Tool("growing the filesystem", volume, error))
            }
        };
        let written_out = move |volumes: &Arc<Self>| {
            let linux = volumes.runner();
            if kind.must_be_written_out_when_grown()
                // Most of it is written before anybody has to wait for it.
                && let Err(error) = linux
                    .sync(&place)
                    .and_then(|()| volumes.in_turn(&volume.group, || linux.write_out(&volume)))
            {
                tracing::warn!(volume = %volume, %error, "the grown filesystem cannot be written out at once");
            }
            Ok(())
        };
        self.with_tools(path, "grow", &claim, deadline, grown, written_out)
    }

    /// Whether a filesystem could be larger.
    fn is_smaller(&self, path: &VolumePath, kind: Filesystem) -> Result<bool, PublishError> {
        let (linux, device) = (self.runner(), Linux::device_path(path));
        let size = linux.device_size(&device).map_err(system("measuring", &device))?;
        let superblock = linux.superblock(&device, kind).map_err(system("reading", &device))?;
        Ok(superblock.is_none_or(|superblock| superblock.size + REMAINDER <= size))
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
            // The disk may be back as another device, which LVM finds when it activates the volume. While the volume is
            // published, its number must not become another's: who has its node would have that one's bytes.
            if self.runner().used(path).map_err(system("looking at", &node))? == Use::None {
                self.renew(path, deadline)?;
            }
            let renewed = device()?.filter(|_| matches!(is_orphaned(), Ok(false)));
            return renewed.map(|device| device.number).ok_or_else(|| PublishError::Orphaned(path.clone()));
        }
        self.activate(path, deadline)?;
        let gone = || system("activating", &node)(io::Error::from(io::ErrorKind::NotFound));
        Ok(device()?.ok_or_else(gone)?.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lvm::{Change, model};
    use crate::names::LvName;
    use crate::simulated::group;
    use crate::units::Extents;

    fn judged(tags: &[&str]) -> Result<Facts, PublishError> {
        let mut group = group(&[100]);
        let path = group.path(&LvName::parse("v").unwrap());
        let (extents, options, on) = (Extents(4), Vec::new(), Vec::new());
        let made = Change::CreateThick { path: path.clone(), extents, options, tags: Vec::new(), on };
        model::apply(&mut group, &made).unwrap();
        group.volumes.get_mut(&path.volume).unwrap().tags = tags.iter().map(ToString::to_string).collect();
        let inventory = Inventory::of(group);
        publishable(&inventory, &path).map(|(_, facts)| facts)
    }

    #[test]
    fn what_a_newer_version_made_is_not_published() {
        let refused = judged(&["lvms.io/name=v", "lvms.io/used", "lvms.io/format=2"]);
        let newer =
            matches!(&refused, Err(PublishError::Volume(volumes::Error::Refused(Refusal::Newer { .. }))));
        assert!(newer, "{refused:?}");
        assert!(judged(&["lvms.io/name=v", "lvms.io/format=1"]).is_ok());
    }

    #[test]
    fn what_is_not_finished_is_not_published_and_zeros_from_the_end_on_are_none() {
        for tag in ["lvms.io/copying=vg#2fother", "lvms.io/zeroing=0", "lvms.io/zeroing=16777215"] {
            assert!(matches!(judged(&[tag]), Err(PublishError::Unfinished(_))), "{tag}");
        }
        assert!(judged(&["lvms.io/zeroing=16777216"]).is_ok());
        assert!(matches!(judged(&["lvms.io/snapshot"]), Err(PublishError::NotAVolume(_))));
    }
}
