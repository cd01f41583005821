//! The volumes of this host, whoever asks for them: made, copied, grown and removed by their ids, which are the names
//! of their LVs.

mod source;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use lvms_csi::locks::Locks;
use lvms_csi::volumes::Source;
use lvms_csi::{Error, Kind};
use lvms_host::desired::Desired;
use lvms_host::dm::Cow;
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory;
use lvms_host::lvm::shape::Shape;
use lvms_host::names::{LvName, VolumePath};
use lvms_host::plan::Refusal;
use lvms_host::plan::volume::{Wish, is_half_made};
use lvms_host::runner::{Linux, Runner};
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes as Engine;
use tokio::sync::broadcast;
use uuid::Uuid;

pub(crate) use self::source::copied_from;
use self::source::{find_source, former_place, told};
use crate::asked::Asked;
use crate::configuration::Configuration;
use crate::known::{
    Found, OPTION_CLASS, class, class_of, elsewhere, find, left_for, named, options_for, options_from,
    parameter, unknown,
};
use crate::published::Measured;
use crate::status;

/// So many volumes may be hidden before anybody looks.
const HIDDEN: usize = 256;

/// The volumes of this host.
pub struct HostVolumes {
    /// What makes them.
    pub engine: Arc<Engine<Linux>>,
    /// What is offered.
    pub configuration: Arc<Configuration>,
    /// One call at a time on one volume, by whichever protocol.
    pub locks: Arc<Locks>,
    /// Filesystems that were asked how full they are.
    pub(crate) asked: Arc<Asked<Result<Measured, Error>>>,
    /// Volumes that were hidden: what could not be removed while it was used, perhaps can be now.
    pub(crate) hidden: broadcast::Sender<String>,
}

/// A volume that shall be.
#[derive(Debug, Clone)]
pub struct New {
    /// The name of its LV.
    pub id: String,
    /// The name that its owner gave it.
    pub name: String,
    /// The claim that it is for, where there are claims.
    pub claim: Option<String>,
    /// The device class; empty for the default.
    pub class: String,
    /// The class of options for lvcreate; empty for none.
    pub options: String,
    /// At least so large.
    pub size: Bytes,
    /// At the most so large.
    pub limit: Option<Bytes>,
    /// Whether it may be used without a filesystem: then it is zeroed.
    pub block: bool,
    /// Whether it may get a filesystem.
    pub filesystem: bool,
    /// Which one, if whoever publishes it says nothing; empty for the default.
    pub kind: String,
    /// What it is a copy of, with the field that names it.
    pub source: Option<(String, Source)>,
}

/// A volume or a snapshot that is there.
#[derive(Debug, Clone)]
pub struct Present {
    /// Where.
    pub path: VolumePath,
    /// As LVM has it.
    pub volume: inventory::Volume,
}

impl Present {
    /// What we know of it.
    pub fn facts(&self) -> Facts {
        Facts::of(&self.volume)
    }
}

/// Whether the bytes of a snapshot are those of its moment.
pub fn is_ready(engine: &Arc<Engine<Linux>>, found: &Found<'_>) -> bool {
    let overflowed = matches!(engine.runner().cow(&found.path), Ok(Some(Cow::Invalid)));
    !overflowed && !found.volume.has_overflowed() && !is_half_made(found.volume)
}

/// Nobody gets a volume whose making was cut off with what a former one had on it. Whose making was heard to be finished is
/// another question: then it is whatever others have put there.
fn as_made(engine: &Arc<Engine<Linux>>, present: &Found<'_>) -> Result<(), Error> {
    let facts = &present.facts;
    let is_new = facts.is_ours() && !facts.used && !facts.block && facts.source.is_none();
    let is_finished = !facts.is_unfinished(present.volume.size);
    if !is_new
        || !is_finished
        || engine.is_as_made(&present.path).map_err(|error| status::of_publish(&error))?
    {
        return Ok(());
    }
    let problem = format!(
        "{} is there and was never used, but something is on it that may be of a former volume: delete it, and it is made \
         anew",
        present.path
    );
    Err(Error::new(Kind::Precondition, problem))
}

/// Whether a volume that has at least this size, in whole extents of all its stripes, is within a limit.
fn is_within(
    volume: &inventory::Volume,
    extent: Bytes,
    size: Bytes,
    limit: Option<Bytes>,
) -> Result<(), Error> {
    let shape = if let inventory::Kind::Thick(layout) = &volume.kind {
        Shape::of_layout(layout)
    } else {
        Shape::LINEAR
    };
    let size = shape.round_up(size.in_extents(extent)).bytes(extent).max(volume.size);
    match limit.filter(|limit| size > *limit) {
        Some(limit) => Err(status::of_volumes(&Refusal::AboveLimit { size, limit }.into())),
        None => Ok(()),
    }
}

impl HostVolumes {
    /// Those that an engine makes as a configuration says.
    pub fn new(engine: Arc<Engine<Linux>>, configuration: Arc<Configuration>) -> HostVolumes {
        let hidden = broadcast::Sender::new(HIDDEN);
        HostVolumes { engine, configuration, locks: Arc::default(), asked: Arc::default(), hidden }
    }

    /// Runs what blocks on a thread for it, with the log's context. It goes on though the caller has gone.
    pub async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Arc<Engine<Linux>>, &Desired) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (engine, desired) = (Arc::clone(&self.engine), self.configuration.desired());
        let span = tracing::Span::current();
        let task = tokio::task::spawn_blocking(move || {
            engine.runner().together(|| span.in_scope(|| act(&engine, &desired)))
        });
        let done =
            task.await.map_err(|_| Error::new(Kind::Internal, "a thread panicked: the log says more"))?;
        done.map_err(|error| {
            Error::new(Kind::Internal, format!("the host's files are out of reach: {error}"))
        })?
    }

    /// Makes a volume, or finds the one that the same wish has made.
    pub async fn make(&self, new: New, deadline: Option<Instant>) -> Result<Present, Error> {
        self.blocking(move |engine, desired| {
            let (class, options) = class(desired, &new.class, &new.options)?;
            let name = LvName::parse_new(&new.id).map_err(|error| Error::invalid("name", error))?;
            // What is there and was not made by this call is judged.
            engine.look(&class.group).map_err(|error| status::of_volumes(&error))?;
            let inventory = engine.inventory();
            // Found wherever it was made: the class may be another one now.
            let present = find(desired, &inventory, name.as_str(), false);
            if let Some(present) = &present
                && present.path.group != class.group
            {
                let message = format!(
                    "a volume with the name {:?} is there already, in {}",
                    new.name, present.path.group
                );
                return Err(Error::new(Kind::AlreadyExists, message));
            }
            if let Some(group) = elsewhere(desired, &inventory, name.as_str()) {
                let message = format!(
                    "a volume with the name {:?} is there already, in {group}, of which no device class is any more: add \
                     one to lvmd.yaml",
                    new.name
                );
                return Err(Error::new(Kind::AlreadyExists, message));
            }
            let mut facts = Facts {
                name: Some(new.name.clone()),
                claim: new.claim.clone(),
                block: new.block,
                ..Facts::default()
            };
            if new.filesystem {
                facts.fsid = Some(Uuid::new_v4());
                facts.filesystem = (!new.kind.is_empty()).then(|| new.kind.clone());
            }
            let mut source = None;
            if let Some((field, wished)) = &new.source {
                let wished = (field.as_str(), wished);
                facts.source = Some(told(wished.1));
                let is_ready = |found: &Found<'_>| is_ready(engine, found);
                let found = find_source(desired, &inventory, wished, present.as_ref(), is_ready);
                // Nobody can go on with a copy whose source is gone.
                if found.as_ref().is_err_and(|error| error.kind == Kind::NotFound)
                    && let Some(left) = left_for(&inventory, name.as_str())
                {
                    engine.remove(&left, deadline).map_err(|error| status::of_volumes(&error))?;
                }
                source = Some(if let Some(found) = found? {
                    facts.used = found.facts.used || !found.facts.is_ours();
                    // If nobody has written to the source, the copy is formatted like a new one.
                    if facts.used {
                        facts.filesystem.clone_from(&found.facts.filesystem);
                    }
                    found.path
                } else {
                    let copy = VolumePath { group: class.group.clone(), volume: name.clone() };
                    former_place(&inventory, &copy, wished)?
                });
            }
            if let Some(present) = &present {
                as_made(engine, present)?;
            }
            let wish = Wish {
                name,
                class,
                options: options_for(class, options),
                size: new.size,
                limit: new.limit,
                facts,
                source,
            };
            let from = options_from(class, &parameter(OPTION_CLASS), &new.options);
            let made = engine.create(&wish, deadline);
            let volume = made.map_err(|error| status::of_creation(&error, &wish, &from))?;
            Ok(Present { path: wish.path(), volume })
        })
        .await
    }

    /// Makes a snapshot of a volume, or finds the one that was made.
    pub async fn take_snapshot(
        &self,
        id: String,
        name: String,
        source: String,
        deadline: Option<Instant>,
    ) -> Result<Present, Error> {
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let id = LvName::parse_new(&id).map_err(|error| Error::invalid("name", error))?;
            let of = format!("volume:{source}");
            let present = find(desired, &inventory, id.as_str(), true);
            let is_ours = |present: &Found<'_>| present.facts.snapshot && !is_half_made(present.volume);
            if let Some(present) = present.filter(is_ours) {
                if present.facts.source.as_ref() == Some(&of) {
                    return Ok(Present { path: present.path, volume: present.volume.clone() });
                }
                let message =
                    format!("a snapshot with the name {name:?} is there already, of another volume");
                return Err(Error::new(Kind::AlreadyExists, message));
            }
            let origin = named(desired, &inventory, "source_volume_id", &source, false)?;
            let class = class_of(desired, &origin)?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let facts = Facts {
                name: Some(name.clone()),
                snapshot: true,
                source: Some(of),
                created: now.ok().map(|age| age.as_secs()),
                // A restore of what nobody has used is formatted like a new volume.
                used: origin.facts.used || !origin.facts.is_ours(),
                filesystem: origin.facts.filesystem.clone(),
                ..Facts::default()
            };
            let made = engine.snapshot(class, &origin.path, &id, &facts, deadline);
            let volume = made.map_err(|error| status::of_volumes(&error))?;
            Ok(Present { path: VolumePath { group: origin.path.group.clone(), volume: id }, volume })
        })
        .await
    }

    /// Grows a volume to at least this size, and not beyond a limit. Returns its size.
    pub async fn enlarge(
        &self,
        id: &str,
        size: Bytes,
        limit: Option<Bytes>,
        deadline: Option<Instant>,
    ) -> Result<Bytes, Error> {
        let id = id.to_owned();
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &id, false)?;
            let class = class_of(desired, &found)?;
            let extent = inventory.groups.get(&found.path.group).map_or(Bytes(1), |group| group.extent);
            is_within(found.volume, extent, size, limit)?;
            let grown = engine.grow(class, &found.path, size, deadline);
            let grown = grown.map_err(|error| status::of_growth(&error))?;
            Ok(grown.size)
        })
        .await
    }

    /// Takes away the mark of zeros that were begun: what is on the volume is wanted.
    pub async fn keep_bytes(&self, id: &str, deadline: Option<Instant>) -> Result<(), Error> {
        let id = id.to_owned();
        self.blocking(move |engine, desired| {
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &id, false)?;
            let kept = engine.note(&found.path, deadline, |facts| facts.zeroing = None);
            kept.map_err(|error| status::of_volumes(&error))
        })
        .await
    }

    /// Removes a volume or a snapshot. One that is not there is removed already.
    pub async fn remove(&self, id: &str, is_snapshot: bool, deadline: Option<Instant>) -> Result<(), Error> {
        let id = id.to_owned();
        self.blocking(move |engine, desired| {
            if find(desired, &engine.inventory(), &id, is_snapshot).is_none() {
                // That it is gone is known only when every group was looked at, and true when their disks keep it.
                let inventory = engine.inventory();
                let others = elsewhere(desired, &inventory, &id);
                for group in desired.groups().into_iter().chain(others) {
                    engine
                        .look(group)
                        .and_then(|()| engine.keep(group))
                        .map_err(|error| status::of_volumes(&error))?;
                }
            }
            let inventory = engine.inventory();
            let Some(found) = find(desired, &inventory, &id, is_snapshot) else {
                if let Some(path) = left_for(&inventory, &id) {
                    engine.remove(&path, deadline).map_err(|error| status::of_volumes(&error))?;
                }
                let field = if is_snapshot { "snapshot_id" } else { "volume_id" };
                return unknown(desired, &inventory, field, &id).map_or(Ok(()), Err);
            };
            engine.remove(&found.path, deadline).map_err(|error| status::of_volumes(&error))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_host::lvm::inventory::{Kind as Made, Layout};

    fn volume(kind: Made, size: Bytes) -> inventory::Volume {
        inventory::Volume {
            name: LvName::parse("v").unwrap(),
            uuid: String::new(),
            kind,
            size,
            tags: Vec::new(),
            attributes: String::new(),
            active: true,
            areas: Vec::new(),
        }
    }

    #[test]
    fn a_limit_holds_for_the_size_in_whole_extents() {
        let layout = |stripes| Layout { segment: "striped".to_owned(), stripes, copies: 1 };
        let thin = Made::Thin { pool: LvName::parse("p").unwrap(), origin: None };
        for (kind, has, wanted, limit, fits) in [
            (Made::Thick(layout(1)), 8, 33, 36, true),
            (Made::Thick(layout(1)), 8, 33, 35, false),
            (Made::Thick(layout(3)), 12, 33, 36, true),
            (Made::Thick(layout(3)), 12, 37, 47, false),
            (thin, 8, 33, 35, false),
            // It is larger already.
            (Made::Thick(layout(1)), 64, 33, 36, false),
        ] {
            let (volume, limit) = (volume(kind.clone(), Bytes::mib(has)), Some(Bytes::mib(limit)));
            let answer = is_within(&volume, Bytes::mib(4), Bytes::mib(wanted), limit);
            assert_eq!(answer.is_ok(), fits, "{kind:?} {wanted} {limit:?}");
            if let Err(error) = answer {
                assert_eq!(error.kind, Kind::OutOfRange);
                assert!(error.message.starts_with("capacity_range.limit_bytes: "), "{error}");
            }
            assert!(is_within(&volume, Bytes::mib(4), Bytes::mib(wanted), None).is_ok());
        }
    }
}
