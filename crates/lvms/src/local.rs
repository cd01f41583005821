//! The volumes of this host, for a CSI client that is alone with it. All that is known of them is in LVM's metadata.

mod known;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lvms_csi::request::{How, Mode, Size};
use lvms_csi::volumes::{Capacity, Condition, NewVolume, Publish, Snapshot, Source, Stats, Volume};
use lvms_csi::{Error, Kind, Volumes};
use lvms_host::desired::Desired;
use lvms_host::dm::Cow;
use lvms_host::facts::Facts;
use lvms_host::filesystem::Filesystem;
use lvms_host::mount::Flags;
use lvms_host::names::{LvName, VolumePath};
use lvms_host::plan::volume::{Wish, is_half_made};
use lvms_host::publish::Access;
use lvms_host::runner::{Linux, Runner};
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes as Engine;
use uuid::Uuid;

use self::known::{Found, all, class, class_of, find, named, options_for, source_of, unknown};
use crate::configuration::Configuration;
use crate::status;

/// From these and a name come the names of volumes and snapshots.
const VOLUMES: Uuid = Uuid::from_u128(0x6c76_6d73_2e69_6f2f_766f_6c75_6d65_0001);
const SNAPSHOTS: Uuid = Uuid::from_u128(0x6c76_6d73_2e69_6f2f_736e_6170_7368_0001);

/// A filesystem that has not said how full it is after this long does not answer.
const STATS_LIMIT: Duration = Duration::from_secs(15);

/// The smallest volume for a block device.
const LEAST_BLOCK: Bytes = Bytes::mib(8);

/// The volumes of this host.
pub(crate) struct LocalVolumes {
    pub(crate) engine: Arc<Engine<Linux>>,
    pub(crate) configuration: Arc<Configuration>,
    /// Paths whose filesystems were asked how full they are and have not answered.
    asked: Arc<Mutex<BTreeSet<PathBuf>>>,
}

/// The least size of a volume for a way of access, as TopoLVM has it.
pub(crate) fn least(access: &lvms_csi::request::Access) -> u64 {
    match &access.how {
        How::Block => LEAST_BLOCK.0,
        How::Filesystem { kind, .. } => Filesystem::named(kind).map_or(0, |kind| kind.least().0),
    }
}

impl LocalVolumes {
    pub(crate) fn new(engine: Arc<Engine<Linux>>, configuration: Arc<Configuration>) -> LocalVolumes {
        LocalVolumes { engine, configuration, asked: Arc::default() }
    }

    /// Runs what blocks on a thread for it, with the log's context. It goes on though the caller has gone.
    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Arc<Engine<Linux>>, &Desired) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (engine, desired) = (Arc::clone(&self.engine), self.configuration.desired());
        let span = tracing::Span::current();
        let task = tokio::task::spawn_blocking(move || span.in_scope(|| act(&engine, &desired)));
        task.await.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a thread panicked: the log says more")))
    }
}

fn told(condition: lvms_host::publish::Condition) -> Condition {
    Condition { abnormal: condition.abnormal, message: condition.message }
}

fn volume(engine: &Arc<Engine<Linux>>, found: &Found<'_>) -> Volume {
    Volume {
        id: found.path.volume.to_string(),
        size: found.volume.size.0,
        source: source_of(&found.facts),
        condition: told(engine.condition(&found.path)),
    }
}

fn snapshot(engine: &Arc<Engine<Linux>>, found: &Found<'_>) -> Snapshot {
    let overflowed = matches!(engine.runner().cow(&found.path), Ok(Some(Cow::Invalid)));
    let source = match source_of(&found.facts) {
        Some(Source::Volume(id) | Source::Snapshot(id)) => id,
        None => String::new(),
    };
    Snapshot {
        id: found.path.volume.to_string(),
        source,
        size: found.volume.size.0,
        created: found.facts.created.and_then(|created| i64::try_from(created).ok()).unwrap_or_default(),
        ready: !overflowed && !found.volume.has_overflowed() && !is_half_made(found.volume),
    }
}

/// Checks what a volume is to be used for, and says whether as a block device.
fn is_for_block(request: &NewVolume) -> Result<bool, Error> {
    for (position, access) in request.access.iter().enumerate() {
        let How::Filesystem { kind, flags } = &access.how else { continue };
        let field = format!("volume_capabilities[{position}].mount");
        if Filesystem::named(kind).is_none() {
            let known = Filesystem::ALL.map(Filesystem::name).join(", ");
            let problem = format!("{kind:?} is no filesystem that is made here: use one of {known}");
            return Err(Error::invalid(&format!("{field}.fs_type"), problem));
        }
        Flags::parse(flags, false).map_err(|error| Error::invalid(&format!("{field}.mount_flags"), error))?;
    }
    Ok(request.access.iter().any(|access| access.how == How::Block))
}

impl Volumes for LocalVolumes {
    fn id(&self, name: &str) -> String {
        Uuid::new_v5(&VOLUMES, name.as_bytes()).to_string()
    }

    async fn create(&self, request: NewVolume, deadline: Instant) -> Result<Volume, Error> {
        let id = self.id(&request.name);
        self.blocking(move |engine, desired| {
            let (class, options) = class(desired, &request.parameters)?;
            let block = is_for_block(&request)?;
            let name = LvName::parse_new(&id).map_err(|error| Error::invalid("name", error))?;
            let inventory = engine.inventory();
            // Found wherever it was made: the class may be another one now.
            if let Some(present) = find(desired, &inventory, name.as_str(), false)
                && present.path.group != class.group
            {
                let message = format!(
                    "a volume with the name {:?} is there already, in {}",
                    request.name, present.path.group
                );
                return Err(Error::new(Kind::AlreadyExists, message));
            }
            let mut facts = Facts { name: Some(request.name.clone()), block, ..Facts::default() };
            if !block {
                facts.fsid = Some(Uuid::new_v4());
            }
            let mut source = None;
            if let Some(wished) = &request.source {
                let (kind, id, is_snapshot) = match wished {
                    Source::Snapshot(id) => ("snapshot", id, true),
                    Source::Volume(id) => ("volume", id, false),
                };
                let field = format!("volume_content_source.{kind}");
                let found = named(desired, &inventory, &field, id, is_snapshot)?;
                if is_snapshot && !snapshot(engine, &found).ready {
                    let message = format!(
                        "{field}: {id} has overflowed, or was not finished, and its bytes are lost: delete it"
                    );
                    return Err(Error::new(Kind::Precondition, message));
                }
                facts.source = Some(format!("{kind}:{id}"));
                facts.used = found.facts.used || !found.facts.is_ours();
                facts.filesystem.clone_from(&found.facts.filesystem);
                if !facts.used {
                    // Nobody has written to the source: the copy is formatted like a new one.
                    facts.filesystem = None;
                }
                source = Some(found.path);
            }
            let wish = Wish {
                name,
                class,
                options: options_for(class, options),
                size: Bytes(request.size.required),
                limit: request.size.limit.map(Bytes),
                facts,
                source,
            };
            let made = engine.create(&wish, Some(deadline)).map_err(|error| status::of_volumes(&error))?;
            let facts = Facts::of(&made);
            Ok(volume(engine, &Found { path: wish.path(), volume: &made, facts }))
        })
        .await
    }

    async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        self.remove(id, false, deadline).await
    }

    async fn get(&self, id: &str) -> Result<Volume, Error> {
        let (inventory, desired) = (self.engine.inventory(), self.configuration.desired());
        let found = named(&desired, &inventory, "volume_id", id, false)?;
        Ok(volume(&self.engine, &found))
    }

    async fn list(&self) -> Result<Vec<Volume>, Error> {
        let (inventory, desired) = (self.engine.inventory(), self.configuration.desired());
        let volumes = all(&desired, &inventory).filter(|found| !found.facts.snapshot);
        Ok(volumes.map(|found| volume(&self.engine, &found)).collect())
    }

    async fn grow(&self, id: &str, size: Size, deadline: Instant) -> Result<u64, Error> {
        let id = id.to_owned();
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &id, false)?;
            let class = class_of(desired, &found)?;
            let grown = engine.grow(class, &found.path, Bytes(size.required), Some(deadline));
            let grown = grown.map_err(|error| status::of_growth(&error))?;
            Ok(grown.size.0)
        })
        .await
    }

    async fn capacity(&self, parameters: &BTreeMap<String, String>) -> Result<Capacity, Error> {
        let desired = self.configuration.desired();
        let (class, options) = class(&desired, parameters)?;
        // Whatever refuses a new volume means that there is none to be had.
        let largest = self.engine.capacity(class, &options_for(class, options)).unwrap_or_default();
        Ok(Capacity { available: largest.0, largest: largest.0, least: LEAST_BLOCK.0 })
    }

    async fn snapshot(&self, name: &str, source: &str, deadline: Instant) -> Result<Snapshot, Error> {
        let (name, source) = (name.to_owned(), source.to_owned());
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let uuid = Uuid::new_v5(&SNAPSHOTS, name.as_bytes());
            let id = LvName::parse_new(&uuid.to_string()).map_err(|error| Error::invalid("name", error))?;
            let facts = |found: &Facts| Facts {
                name: Some(name.clone()),
                snapshot: true,
                source: Some(format!("volume:{source}")),
                created: SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .ok()
                    .map(|age| age.as_secs()),
                used: true,
                filesystem: found.filesystem.clone(),
                ..Facts::default()
            };
            let present = find(desired, &inventory, id.as_str(), true);
            if let Some(present) = present.filter(|present| !is_half_made(present.volume)) {
                if present.facts.source == facts(&present.facts).source {
                    return Ok(snapshot(engine, &present));
                }
                let message =
                    format!("a snapshot with the name {name:?} is there already, of another volume");
                return Err(Error::new(Kind::AlreadyExists, message));
            }
            let origin = named(desired, &inventory, "source_volume_id", &source, false)?;
            let class = class_of(desired, &origin)?;
            let facts = facts(&origin.facts);
            let made = engine.snapshot(class, &origin.path, &id, &facts, Some(deadline));
            let made = made.map_err(|error| status::of_volumes(&error))?;
            let path = VolumePath { group: origin.path.group.clone(), volume: id };
            let facts = Facts::of(&made);
            Ok(snapshot(engine, &Found { path, volume: &made, facts }))
        })
        .await
    }

    async fn delete_snapshot(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        self.remove(id, true, deadline).await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let (inventory, desired) = (self.engine.inventory(), self.configuration.desired());
        let snapshots = all(&desired, &inventory).filter(|found| found.facts.snapshot);
        Ok(snapshots.map(|found| snapshot(&self.engine, &found)).collect())
    }

    async fn publish(&self, request: Publish, deadline: Instant) -> Result<(), Error> {
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &request.id, false)?;
            if request.access.mode == Mode::SingleWriter {
                is_alone(engine, &found.path, &request.target)?;
            }
            let read_only = request.read_only;
            let access = match request.access.how {
                How::Block => Access::Block { read_only },
                How::Filesystem { kind, flags } => {
                    // Who says nothing gets what is there, or the default.
                    let wanted = if kind.is_empty() {
                        found.facts.filesystem.clone().unwrap_or_default()
                    } else {
                        kind
                    };
                    let kind = Filesystem::named(&wanted).ok_or_else(|| {
                        let problem = format!("{wanted:?} is no filesystem that is made here");
                        Error::invalid("volume_capability.mount.fs_type", problem)
                    })?;
                    Access::Filesystem { kind, flags, read_only }
                }
            };
            let done = engine.publish(&found.path, &request.target, &access, Some(deadline));
            done.map_err(|error| status::of_publish(&error))
        })
        .await
    }

    async fn unpublish(&self, id: &str, target: PathBuf) -> Result<(), Error> {
        let id = id.to_owned();
        self.blocking(move |engine, _| {
            engine.unpublish(&id, &target).map_err(|error| status::of_publish(&error))
        })
        .await
    }

    async fn stats(&self, id: &str, path: PathBuf) -> Result<Stats, Error> {
        let desired = self.configuration.desired();
        let inventory = self.engine.inventory();
        let found = named(&desired, &inventory, "volume_id", id, false)?;
        let condition = told(self.engine.condition(&found.path));
        let not_answering = || {
            let message = format!("volume_path: the filesystem on {} does not answer", path.display());
            Error::new(Kind::Unavailable, message)
        };
        if !lock(&self.asked).insert(path.clone()) {
            return Err(not_answering());
        }
        let (asked, volume, place) = (Arc::clone(&self.asked), found.path.clone(), path.clone());
        let task = self.blocking(move |engine, _| {
            let usage = usage(engine, &volume, &place);
            lock(&asked).remove(&place);
            usage
        });
        match tokio::time::timeout(STATS_LIMIT, task).await {
            Ok(usage) => {
                let (bytes, inodes) = usage?;
                Ok(Stats { bytes, inodes, condition })
            }
            Err(_) => Err(not_answering()),
        }
    }

    async fn grow_published(&self, id: &str, path: PathBuf) -> Result<u64, Error> {
        let id = id.to_owned();
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &id, false)?;
            if !is_published(engine, &found.path, &path)? {
                return Err(Error::new(
                    Kind::NotFound,
                    format!("volume_path: {id} is not published on {}", path.display()),
                ));
            }
            let size =
                engine.grow_published(&found.path, &path).map_err(|error| status::of_publish(&error))?;
            Ok(size.0)
        })
        .await
    }
}

impl LocalVolumes {
    async fn remove(&self, id: &str, is_snapshot: bool, deadline: Instant) -> Result<(), Error> {
        let id = id.to_owned();
        self.blocking(move |engine, desired| {
            if find(desired, &engine.inventory(), &id, is_snapshot).is_none() {
                // That it is gone is known only when every group was looked at.
                for group in desired.groups() {
                    engine.look(group).map_err(|error| status::of_volumes(&error))?;
                }
            }
            let inventory = engine.inventory();
            let Some(found) = find(desired, &inventory, &id, is_snapshot) else {
                let field = if is_snapshot { "snapshot_id" } else { "volume_id" };
                return unknown(desired, &inventory, field, &id).map_or(Ok(()), Err);
            };
            engine.remove(&found.path, Some(deadline)).map_err(|error| status::of_volumes(&error))
        })
        .await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn internal(error: &std::io::Error) -> Error {
    Error::new(Kind::Internal, error.to_string())
}

type Measured = ((u64, Option<(u64, u64)>), Option<(u64, u64, u64)>);

fn usage(engine: &Arc<Engine<Linux>>, volume: &VolumePath, path: &Path) -> Result<Measured, Error> {
    let linux = engine.runner();
    if !is_published(engine, volume, path)? {
        let message = format!("volume_path: {} is not published on {}", volume.volume, path.display());
        return Err(Error::new(Kind::NotFound, message));
    }
    if linux.is_block_device(path) {
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
    Ok(lvms_host::mount::at(&mounts, path).last().is_some_and(|mount| mount.device == device.number))
}

/// A volume for a single writer is published on one path at a time.
fn is_alone(engine: &Arc<Engine<Linux>>, volume: &VolumePath, target: &Path) -> Result<(), Error> {
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
