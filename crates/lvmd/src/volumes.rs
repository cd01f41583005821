//! lvmd's LVService: volumes made, copied, grown and removed, under the names that the caller gives.
//!
//! What is made here is as lvmd makes it: nothing of ours is known of a new volume, so whoever publishes it judges it by
//! its bytes, and nothing is zeroed. Where lvmd would destroy (a removed origin takes its snapshots along, a
//! missing volume group counts as a volume that is gone), the caller is refused.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use lvms_csi::locks::deadline;
use lvms_csi::{Error, Kind};
use lvms_host::desired::Desired;
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory;
use lvms_host::names::{LvName, Tag, VgName, VolumePath};
use lvms_host::plan::volume::{Wish, has_leftover};
use lvms_host::runner::Linux;
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes as Engine;
use lvms_node::host_volumes::HostVolumes;
use lvms_node::known::{Found, class_of, options, options_for, options_from};
use lvms_node::status;
use tonic::{Request, Response, Status};

use crate::class;
use crate::proto::lv_service_server::LvService;
use crate::proto::{
    CreateLvRequest, CreateLvResponse, CreateLvSnapshotRequest, CreateLvSnapshotResponse, Empty,
    LogicalVolume, RemoveLvRequest, ResizeLvRequest, ResizeLvResponse,
};
use crate::told;

/// Over the volumes of this host.
pub(crate) struct Service {
    pub(crate) host: Arc<HostVolumes>,
}

impl Service {
    /// Does something to a volume while no other call does, nor one by another protocol, to its end though the caller may leave.
    async fn alone<T: Send + 'static>(
        &self,
        name: &str,
        until: Instant,
        act: impl FnOnce(&Arc<Engine<Linux>>, &Desired) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        let held = self.host.locks.hold(name, until).await?;
        let host = Arc::clone(&self.host);
        Ok(held.to_the_end(async move { host.blocking(act).await }).await?)
    }
}

#[tonic::async_trait]
impl LvService for Service {
    async fn create_lv(
        &self,
        request: Request<CreateLvRequest>,
    ) -> Result<Response<CreateLvResponse>, Status> {
        let until = deadline(request.metadata());
        let request = request.into_inner();
        let (name, size) = (new_name(&request.name)?, size(request.size_bytes)?);
        let facts = Facts { others: tags(&request.tags)?, ..Facts::default() };
        let volume = self
            .alone(&request.name.clone(), until, move |engine, desired| {
                let class = class(desired, &request.device_class)?;
                let options = match request.lvcreate_option_class.as_str() {
                    "" => options(class),
                    named => desired.option_classes.get(named).cloned().ok_or_else(|| {
                        let problem = format!("unsupported lvcreate-option-class target: {named}");
                        Error::new(Kind::Internal, problem)
                    })?,
                };
                let options = options_for(class, options);
                let wish = Wish { name, class, options, size, limit: None, facts, source: None };
                if look(engine, &wish.path())?.is_some() {
                    return Err(already_there(&wish.path()));
                }
                let from = options_from(class, "lvcreate_option_class", &request.lvcreate_option_class);
                let created = engine.create(&wish, Some(until));
                created.map_err(|error| status::of_creation(&error, &wish, &from))?;
                made(engine, &wish.path(), until)
            })
            .await?;
        Ok(Response::new(CreateLvResponse { volume: Some(volume) }))
    }

    async fn remove_lv(&self, request: Request<RemoveLvRequest>) -> Result<Response<Empty>, Status> {
        let until = deadline(request.metadata());
        let request = request.into_inner();
        self.alone(&request.name.clone(), until, move |engine, desired| {
            let class = class(desired, &request.device_class)?;
            let path = path(&class.group, &request.name)?;
            look(engine, &path)?.ok_or_else(|| missing(&path))?;
            engine.remove(&path, Some(until)).map_err(|error| status::of_volumes(&error))
        })
        .await?;
        Ok(Response::new(Empty {}))
    }

    async fn resize_lv(
        &self,
        request: Request<ResizeLvRequest>,
    ) -> Result<Response<ResizeLvResponse>, Status> {
        let until = deadline(request.metadata());
        let request = request.into_inner();
        let size = size(request.size_bytes)?;
        let grown = self
            .alone(&request.name.clone(), until, move |engine, desired| {
                let class = class(desired, &request.device_class)?;
                let path = path(&class.group, &request.name)?;
                let volume = look(engine, &path)?.ok_or_else(|| missing(&path))?;
                let found = Found { path, facts: Facts::of(&volume), volume: &volume };
                let class = class_of(desired, &found)?;
                let grown = engine.grow(class, &found.path, size, Some(until));
                Ok(grown.map_err(|error| status::of_volumes(&error))?.size)
            })
            .await?;
        Ok(Response::new(ResizeLvResponse { size_bytes: told::signed(grown) }))
    }

    async fn create_lv_snapshot(
        &self,
        request: Request<CreateLvSnapshotRequest>,
    ) -> Result<Response<CreateLvSnapshotResponse>, Status> {
        let until = deadline(request.metadata());
        let request = request.into_inner();
        let name = new_name(&request.name)?;
        let size = if request.size_bytes == 0 { None } else { Some(size(request.size_bytes)?) };
        let others = tags(&request.tags)?;
        let volume = self
            .alone(&request.name.clone(), until, move |engine, desired| {
                copy(engine, desired, &request, name, size, others, until)
            })
            .await?;
        Ok(Response::new(CreateLvSnapshotResponse { snapshot: Some(volume) }))
    }
}

/// A snapshot, or a copy.
fn copy(
    engine: &Arc<Engine<Linux>>,
    desired: &Desired,
    request: &CreateLvSnapshotRequest,
    name: LvName,
    size: Option<Bytes>,
    others: Vec<Tag>,
    until: Instant,
) -> Result<LogicalVolume, Error> {
    let class = class(desired, &request.device_class)?;
    let source = path(&class.group, &request.source_volume)?;
    let origin = look(engine, &source)?.ok_or_else(|| missing(&source))?;
    let target = VolumePath { group: class.group.clone(), volume: name.clone() };
    let inventory = engine.inventory();
    if inventory.volume(&target).is_some_and(told::is_finished) && !has_leftover(&inventory, &name) {
        return Err(already_there(&target));
    }
    let size = size.unwrap_or(origin.size);
    let known = Facts::of(&origin);
    let kind = if known.snapshot { "snapshot" } else { "volume" };
    let mut facts = Facts {
        source: Some(format!("{kind}:{}", source.volume)),
        // Somebody's bytes, whatever is known of the source: never formatted.
        used: true,
        filesystem: known.filesystem.clone(),
        others,
        ..Facts::default()
    };
    match request.access_type.as_str() {
        "rw" => {
            let (options, from) = (options_for(class, options(class)), options_from(class, "", ""));
            let wish = Wish { name, class, options, size, limit: None, facts, source: Some(source) };
            let created = engine.create(&wish, Some(until));
            created.map_err(|error| status::of_creation(&error, &wish, &from))?;
        }
        "ro" if size < origin.size => {
            let problem = format!("size_bytes: the source has {}, wanted are only {size}", origin.size);
            return Err(Error::new(Kind::OutOfRange, problem));
        }
        "ro" if size > origin.size => {
            let problem = format!("size_bytes: a snapshot has its source's size, {}", origin.size);
            return Err(Error::new(Kind::Unsupported, problem));
        }
        "ro" => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            (facts.snapshot, facts.created) = (true, now.ok().map(|age| age.as_secs()));
            let class = class_of(desired, &Found { path: source.clone(), volume: &origin, facts: known })?;
            let taken = engine.snapshot(class, &source, &name, &facts, Some(until));
            taken.map_err(|error| status::of_volumes(&error))?;
        }
        other => {
            let problem = format!("{other:?} is neither \"ro\", a snapshot, nor \"rw\", a copy");
            return Err(Error::invalid("access_type", problem));
        }
    }
    made(engine, &target, until)
}

/// What was made, with a device: callers use its numbers.
fn made(engine: &Arc<Engine<Linux>>, path: &VolumePath, until: Instant) -> Result<LogicalVolume, Error> {
    let inventory = engine.inventory();
    let volume = inventory.volume(path).ok_or_else(|| missing(path))?;
    if !volume.active {
        engine.activate(path, Some(until)).map_err(|error| status::of_volumes(&error))?;
    }
    Ok(told::volume(path, volume, &told::Now::of(engine, path)))
}

/// The volume as it is now. That there is none is known only when its group was looked at.
fn look(engine: &Arc<Engine<Linux>>, path: &VolumePath) -> Result<Option<inventory::Volume>, Error> {
    engine.look(&path.group).map_err(|error| status::of_volumes(&error))?;
    let inventory = engine.inventory();
    if !inventory.groups.contains_key(&path.group) {
        let problem = format!("volume group {} is not there: what is in it is not known", path.group);
        return Err(Error::new(Kind::Precondition, problem));
    }
    Ok(inventory.volume(path).cloned())
}

fn missing(path: &VolumePath) -> Error {
    Error::new(Kind::NotFound, format!("logical volume {path} is not found"))
}

fn already_there(path: &VolumePath) -> Error {
    Error::new(Kind::AlreadyExists, format!("logical volume {path} is there already"))
}

fn new_name(text: &str) -> Result<LvName, Error> {
    LvName::parse_new(text).map_err(|error| Error::invalid("name", error))
}

/// What is no name is nobody's.
fn path(group: &VgName, name: &str) -> Result<VolumePath, Error> {
    let volume =
        LvName::parse(name).map_err(|error| Error::new(Kind::NotFound, format!("{name:?}: {error}")))?;
    Ok(VolumePath { group: group.clone(), volume })
}

fn size(bytes: i64) -> Result<Bytes, Error> {
    match u64::try_from(bytes) {
        Ok(bytes) if bytes > 0 => Ok(Bytes(bytes)),
        _ => Err(Error::invalid("size_bytes", format!("{bytes} is no size of a volume"))),
    }
}

/// Any tags but those with which we keep facts.
fn tags(texts: &[String]) -> Result<Vec<Tag>, Error> {
    let tag = |text: &String| {
        if Facts::is_kept_in(text) {
            return Err(Error::invalid("tags", format!("{text:?} is reserved")));
        }
        Tag::parse(text).map_err(|error| Error::invalid("tags", error))
    };
    texts.iter().filter(|text| !text.is_empty()).map(tag).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_the_callers_own_and_never_facts_of_ours() {
        let parse = |texts: &[&str]| tags(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let parsed = parse(&["a", "", "b=c"]).unwrap();
        assert_eq!(parsed.iter().map(Tag::as_str).collect::<Vec<_>>(), ["a", "b=c"]);
        for wrong in ["lvms.io/used", "lvms.io/anything", "--yes", "a b"] {
            let error = parse(&["fine", wrong]).unwrap_err();
            assert!(error.kind == Kind::Invalid && error.message.starts_with("tags:"), "{error}");
        }
    }

    #[test]
    fn a_size_is_a_positive_number_of_bytes() {
        assert_eq!(size(1), Ok(Bytes(1)));
        for wrong in [0, -1, i64::MIN] {
            assert_eq!(size(wrong).unwrap_err().kind, Kind::Invalid);
        }
    }

    #[test]
    fn what_cannot_be_a_name_is_not_found() {
        let group = VgName::parse("vg").unwrap();
        for wrong in ["", "-f", "../etc", "a/b"] {
            assert_eq!(path(&group, wrong).unwrap_err().kind, Kind::NotFound, "{wrong:?}");
        }
        assert_eq!(path(&group, "a").unwrap().to_string(), "vg/a");
    }
}
