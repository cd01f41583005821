//! Volumes are made visible on this node, measured, grown and hidden again. Nothing of this needs the cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lvms_csi::request::{How, Mode};
use lvms_csi::volumes::{Condition, NodeVolumes, Publish, Stats};
use lvms_csi::{Error, Kind};
use lvms_host::desired::Desired;
use lvms_host::facts::Facts;
use lvms_host::filesystem::Filesystem;
use lvms_host::mount::Flags;
use lvms_host::names::VolumePath;
use lvms_host::publish::Access;
use lvms_host::runner::Linux;
use lvms_host::volumes::Volumes as Engine;

use crate::asked::NoAnswer;
use crate::host_volumes::HostVolumes;
use crate::known::named;
use crate::status;

/// A filesystem that has not said how full it is after this long does not answer.
const STATS_LIMIT: Duration = Duration::from_secs(15);

/// How a volume is, in CSI's words.
pub fn told(condition: lvms_host::publish::Condition) -> Condition {
    Condition { abnormal: condition.abnormal, message: condition.message }
}

/// The filesystem that a capability wants of a volume: who names none gets what is there, or the default.
pub fn wanted(capability: &str, facts: &Facts, named: &str) -> Result<Filesystem, Error> {
    let wanted = if named.is_empty() { facts.filesystem.as_deref().unwrap_or_default() } else { named };
    Filesystem::named(wanted).ok_or_else(|| {
        let problem = format!("{wanted:?} is no filesystem that is made here");
        Error::invalid(&format!("{capability}.mount.fs_type"), problem)
    })
}

impl NodeVolumes for HostVolumes {
    async fn publish(&self, mut request: Publish, deadline: Instant) -> Result<(), Error> {
        self.blocking(move |engine, desired| {
            request.target = engine.runner().real_place(&request.target);
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &request.id, false)?;
            if let Some(claim) = &found.facts.claim {
                tracing::Span::current().record("claim", claim);
            }
            if request.access.mode == Mode::SingleWriter {
                is_alone(engine, &found.path, &request.target)?;
            }
            let read_only = request.read_only;
            let access = match request.access.how {
                How::Block => Access::Block { read_only },
                How::Filesystem { kind, flags } => {
                    let kind = wanted("volume_capability", &found.facts, &kind)?;
                    Flags::parse(&flags, read_only)
                        .map_err(|error| Error::invalid("volume_capability.mount.mount_flags", error))?;
                    Access::Filesystem { kind, flags, read_only }
                }
            };
            let done = engine.publish(&found.path, &request.target, &access, Some(deadline));
            done.map_err(|error| status::of_publish(&error))
        })
        .await
    }

    async fn unpublish(&self, id: &str, target: PathBuf) -> Result<(), Error> {
        let hidden = id.to_owned();
        self.blocking(move |engine, _| {
            let target = engine.runner().real_place(&target);
            engine.unpublish(&hidden, &target).map_err(|error| status::of_publish(&error))
        })
        .await?;
        // Nobody listens where there are no LogicalVolumes.
        let _ = self.hidden.send(id.to_owned());
        Ok(())
    }

    async fn stats(&self, id: &str, path: PathBuf) -> Result<Stats, Error> {
        let id = id.to_owned();
        let look = move |engine: &Arc<Engine<Linux>>, desired: &Desired| {
            let found = named(desired, &engine.inventory(), "volume_id", &id, false)?.path;
            let condition = told(engine.condition(&found));
            Ok((found, condition))
        };
        let (volume, condition) = self.blocking(look).await?;
        match self.measure(volume, path).await {
            Ok((bytes, inodes)) => Ok(Stats { bytes: Some(bytes), inodes, condition }),
            // That something is wrong with it is told though, and perhaps because, it cannot be measured.
            Err(error) if condition.abnormal && error.kind != Kind::NotFound => {
                Ok(Stats { bytes: None, inodes: None, condition })
            }
            Err(error) => Err(error),
        }
    }

    async fn grow_published(&self, id: &str, path: PathBuf, deadline: Instant) -> Result<u64, Error> {
        let id = id.to_owned();
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &id, false)?;
            let path = engine.runner().real_place(&path);
            if !is_published(engine, &found.path, &path)? {
                return Err(Error::new(
                    Kind::NotFound,
                    format!("volume_path: {id} is not published on {}", path.display()),
                ));
            }
            let grown = engine.grow_published(&found.path, &path, Some(deadline));
            Ok(grown.map_err(|error| status::of_publish(&error))?.0)
        })
        .await
    }

    async fn size(&self, id: &str) -> Result<u64, Error> {
        let (inventory, desired) = (self.engine.inventory(), self.configuration.desired());
        Ok(named(&desired, &inventory, "volume_id", id, false)?.volume.size.0)
    }
}

impl HostVolumes {
    /// How full what is published is, if its filesystem answers.
    async fn measure(&self, volume: VolumePath, path: PathBuf) -> Result<Measured, Error> {
        let (engine, question) = (Arc::clone(&self.engine), (volume.clone(), path.clone()));
        let place = path.clone();
        let measure = move || {
            let measure = || usage(&engine, &volume, &engine.runner().real_place(&place));
            engine.runner().together(measure).unwrap_or_else(|error| Err(internal(&error)))
        };
        self.asked.ask(question, STATS_LIMIT, measure).await.unwrap_or_else(|NoAnswer| {
            let message = format!("volume_path: the filesystem on {} does not answer", path.display());
            Err(Error::new(Kind::Unavailable, message))
        })
    }
}

fn internal(error: &std::io::Error) -> Error {
    Error::new(Kind::Internal, error.to_string())
}

/// Bytes, and inodes where the filesystem counts them.
pub(crate) type Measured = ((u64, Option<(u64, u64)>), Option<(u64, u64, u64)>);

fn usage(engine: &Arc<Engine<Linux>>, volume: &VolumePath, path: &Path) -> Result<Measured, Error> {
    let linux = engine.runner();
    if !is_published(engine, volume, path)? {
        let message = format!("volume_path: {} is not published on {}", volume.volume, path.display());
        return Err(Error::new(Kind::NotFound, message));
    }
    if linux.node_at(path).is_some() {
        let size = linux.device_size(path).map_err(|error| internal(&error))?;
        return Ok(((size.0, None), None));
    }
    let usage = linux.usage(path).map_err(|error| internal(&error))?;
    let bytes = usage.bytes.map_or((0, None), |bytes| (bytes.total, Some((bytes.used, bytes.available))));
    Ok((bytes, usage.inodes.map(|inodes| (inodes.total, inodes.used, inodes.available))))
}

/// Whether this volume is what is visible at a path.
fn is_published(engine: &Arc<Engine<Linux>>, volume: &VolumePath, path: &Path) -> Result<bool, Error> {
    let linux = engine.runner();
    let Some(device) = linux.device(&volume.mapper_name()).map_err(|error| internal(&error))? else {
        return Ok(false);
    };
    if linux.is_device(path, device.number).unwrap_or(false) {
        return Ok(true);
    }
    let mounts = linux.mounts().map_err(|error| internal(&error))?;
    let Some(mount) = lvms_host::mount::at(&mounts, path).last() else { return Ok(false) };
    // Something may be mounted over a directory above.
    Ok(mount.device == device.number && linux.is_seen(mount).map_err(|error| internal(&error))?)
}

/// A volume for a single writer is published on one path at a time.
fn is_alone(engine: &Arc<Engine<Linux>>, volume: &VolumePath, target: &Path) -> Result<(), Error> {
    if is_published(engine, volume, target)? {
        // A kubelet that was restarted publishes anew, and has bound the volume elsewhere for its own purposes.
        return Ok(());
    }
    let linux = engine.runner();
    let Some(device) = linux.device(&volume.mapper_name()).map_err(|error| internal(&error))? else {
        return Ok(());
    };
    let mounts = linux.mounts().map_err(|error| internal(&error))?;
    match mounts.iter().find(|mount| mount.device == device.number && mount.target != target) {
        Some(other) => {
            let message = format!(
                "{} is for a single writer and is published on {}",
                volume.volume,
                other.target.display()
            );
            Err(Error::new(Kind::Precondition, message))
        }
        None => Ok(()),
    }
}
