//! The trait Volumes for the volumes of a cluster: each call writes a LogicalVolume and waits until its node has done
//! what it says. Claims need none of this; it is for clients of CSI, csi-sanity among them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use lvms_api::logical_volume::{LOST, READ_ONLY, READ_WRITE, Spec};
use lvms_api::names::VOLUME_MODE;
use lvms_api::{LogicalVolume, Quantity};
use lvms_cluster::store::chain;
use lvms_cluster::write::{self, Created, is_conflict};
use lvms_csi::request::{Access, How, Size};
use lvms_csi::volumes::{Capacity, Condition, NewVolume, Snapshot, Source, Volume, Volumes};
use lvms_csi::{Error, Kind};
use serde_json::json;

use crate::Context;
use crate::provision::Parameters;
use crate::release::{Release, Removal};
use crate::resize::asks;

/// The volumes of a cluster.
pub struct ClusterVolumes {
    /// The cluster.
    pub context: Arc<Context>,
    /// What may go.
    pub release: Arc<Release>,
}

/// The least size of a volume for a way of access, as TopoLVM has it.
pub fn least(access: &lvms_csi::request::Access) -> u64 {
    let (filesystem, block) = match &access.how {
        How::Block => (String::new(), true),
        How::Filesystem { kind, .. } => (kind.clone(), false),
    };
    Parameters { filesystem, ..Parameters::default() }.size(1, block).unwrap_or_default()
}

fn failed(error: &kube::Error) -> Error {
    Error::new(Kind::Unavailable, chain(error))
}

fn too_late(name: &str) -> Error {
    Error::new(Kind::Busy, format!("{name}: its node has not done it yet"))
}

impl ClusterVolumes {
    fn by_id(&self, field: &str, id: &str, is_snapshot: bool) -> Result<Arc<LogicalVolume>, Error> {
        let found = self.context.stores.by_handle(id).filter(|volume| volume.is_snapshot() == is_snapshot);
        found.ok_or_else(|| Error::new(Kind::NotFound, format!("{field}: there is no {id:?}")))
    }

    fn parameters(&self, parameters: &BTreeMap<String, String>) -> Result<Parameters, Error> {
        Parameters::read(parameters, self.context.personality)
            .map_err(|problem| Error::new(Kind::Invalid, problem))
    }

    /// Makes a LogicalVolume, or finds the one that was made for the same request, and waits for its node.
    async fn make(&self, wished: LogicalVolume, deadline: Instant) -> Result<Arc<LogicalVolume>, Error> {
        let volumes = &self.context.stores.volumes;
        let name = wished.name().to_owned();
        let same = |present: &LogicalVolume| {
            let (one, other) = (&present.spec, &wished.spec);
            // A snapshot is as large as its source was, which may have grown since.
            let is_as_large = wished.is_snapshot() || one.size == other.size;
            one.source == other.source && one.access_type == other.access_type && is_as_large
        };
        let present = match volumes.named(&name) {
            Some(present) => present,
            None => {
                let created = write::create(&self.context.logical_volumes(), &json!(wished)).await;
                match created.map_err(|error| failed(&error))? {
                    Created::Now(created) => volumes.answered(created),
                    Created::AlreadyThere => {}
                }
                let there = volumes.until(|volumes| volumes.named(&name));
                tokio::time::timeout_at(deadline.into(), there).await.map_err(|_| too_late(&name))?
            }
        };
        if !same(&present) {
            let message = format!("something else with the name {name:?} is there already");
            return Err(Error::new(Kind::AlreadyExists, message));
        }
        let made = volumes.until(|volumes| match volumes.named(&name) {
            None => Some(Err(Error::new(Kind::Busy, format!("{name} was taken away meanwhile")))),
            Some(volume) => {
                if volume.is_deleted() {
                    return Some(Err(Error::new(Kind::Busy, format!("a former {name} is being removed"))));
                }
                let status = volume.status.clone().unwrap_or_default();
                let done = volume.volume_id().is_some() && status.current_size.is_some();
                if status.code != 0 {
                    return Some(Err(Error::new(Kind::numbered(status.code), status.message)));
                }
                done.then_some(Ok(volume))
            }
        });
        let made = tokio::time::timeout_at(deadline.into(), made).await.map_err(|_| too_late(&name))?;
        let never_made = volumes.named(&name).is_some_and(|volume| volume.volume_id().is_none());
        if never_made && made.as_ref().is_err_and(|error| error.kind != Kind::Busy) {
            // What was refused is taken away, so that the same request can be tried again.
            let delete = write::delete(&self.context.logical_volumes(), &name, present.uid()).await;
            delete.map_err(|error| failed(&error))?;
        }
        made
    }

    async fn remove(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        // Its name is as unknown as its absence: the store is complete, and is told of all that we make.
        let Some(volume) = self.context.stores.by_handle(id) else { return Ok(()) };
        if !volume.is_deleted() {
            match self.release.remove(&volume).await {
                Ok(Removal::Released) => {}
                Ok(Removal::Vanished) => {
                    let message =
                        format!("{} vanished before it was released: its LV may be left", volume.name());
                    return Err(Error::new(Kind::Precondition, message));
                }
                Ok(Removal::Kept(kept)) => return Err(Error::new(Kind::Precondition, kept.to_string())),
                Err(error) if is_conflict(&error) => return Err(too_late(volume.name())),
                Err(error) => return Err(failed(&error)),
            }
        }
        let gone =
            self.context.stores.volumes.until(|_| self.context.stores.by_handle(id).is_none().then_some(()));
        tokio::time::timeout_at(deadline.into(), gone).await.map_err(|_| too_late(volume.name()))
    }

    /// Asks the node of a volume for a size.
    async fn ask(&self, volume: &LogicalVolume, size: u64) -> Result<(), Error> {
        let change = asks(self.context.personality, size);
        let changed = write::change(&self.context.logical_volumes(), volume, change).await;
        let busy = |error| if is_conflict(&error) { too_late(volume.name()) } else { failed(&error) };
        self.context.stores.volumes.answered(changed.map_err(busy)?);
        Ok(())
    }

    /// Waits until a volume shows something.
    async fn until(
        &self,
        id: &str,
        deadline: Instant,
        shown: impl Fn(&LogicalVolume) -> Option<Result<u64, Error>>,
    ) -> Result<u64, Error> {
        let seen = self.context.stores.volumes.until(|_| match self.context.stores.by_handle(id) {
            Some(volume) => shown(&volume),
            None => Some(Err(Error::new(Kind::NotFound, format!("volume_id: there is no {id:?} any more")))),
        });
        tokio::time::timeout_at(deadline.into(), seen).await.map_err(|_| too_late(id))?
    }

    fn volume(&self, volume: &LogicalVolume) -> Volume {
        let status = volume.status.clone().unwrap_or_default();
        let source = self.context.stores.volumes.named(&volume.spec.source).and_then(|source| {
            let id = source.volume_id()?.to_owned();
            Some(if source.is_snapshot() { Source::Snapshot(id) } else { Source::Volume(id) })
        });
        Volume {
            id: status.volume_id.clone(),
            size: size(volume),
            source,
            node: volume.spec.node_name.clone(),
            condition: Condition { abnormal: status.code != 0, message: status.message },
        }
    }

    fn snapshot_of(&self, volume: &LogicalVolume) -> Snapshot {
        let source = self.context.stores.volumes.named(&volume.spec.source);
        let created = volume.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        Snapshot {
            id: volume.volume_id().unwrap_or_default().to_owned(),
            source: source.and_then(|source| Some(source.volume_id()?.to_owned())).unwrap_or_default(),
            size: size(volume),
            created,
            ready: volume.status.as_ref().is_some_and(|status| status.code == 0),
        }
    }

    /// The node for a volume that is a copy of nothing: the best that is named, or the one with the most room.
    fn place(&self, request: &NewVolume, parameters: &Parameters) -> Result<String, Error> {
        if let Some(node) = request.nodes.first() {
            return Ok(node.clone());
        }
        let room = |told: &Arc<lvms_api::LvmNode>| {
            Some((
                told.available(&parameters.device_class, &parameters.option_class)?,
                told.name().to_owned(),
            ))
        };
        let rooms: Vec<(u64, String)> = self.context.stores.lvm_nodes.all().iter().filter_map(room).collect();
        let most = rooms.into_iter().max().ok_or_else(|| {
            let problem = format!("no node offers device class {:?}", parameters.device_class);
            Error::new(Kind::Invalid, problem)
        })?;
        if most.0 < request.size.required {
            let message = format!("no node has room: the most that can be had is {}", most.0);
            return Err(Error::new(Kind::NoSpace, message));
        }
        Ok(most.1)
    }
}

/// The only mode in which a volume is wished; none if it may be used in both, as a node takes it that is told none.
fn mode(access: &[Access]) -> Option<&'static str> {
    let blocks = access.iter().filter(|access| access.how == How::Block).count();
    match blocks {
        0 => Some("Filesystem"),
        all if all == access.len() => Some("Block"),
        _ => None,
    }
}

fn size(volume: &LogicalVolume) -> u64 {
    let size = volume.status.as_ref().and_then(|status| status.current_size.as_ref()?.bytes().ok());
    size.unwrap_or_default()
}

impl Volumes for ClusterVolumes {
    fn id(&self, name: &str) -> String {
        name.to_lowercase()
    }

    async fn create(&self, request: NewVolume, deadline: Instant) -> Result<Volume, Error> {
        let parameters = self.parameters(&request.parameters)?;
        let mut spec = Spec {
            name: request.name.to_lowercase(),
            size: Quantity::of(request.size.required),
            device_class: parameters.device_class.clone(),
            lvcreate_option_class: parameters.option_class.clone(),
            ..Spec::default()
        };
        match &request.source {
            // What was made for the same request is where it is, and the room for it is taken.
            None => {
                spec.node_name = match self.context.stores.volumes.named(&spec.name) {
                    Some(present) => present.spec.node_name.clone(),
                    None => self.place(&request, &parameters)?,
                }
            }
            Some(source) => {
                let origin = match source {
                    Source::Snapshot(id) => {
                        self.by_id("volume_content_source.snapshot.snapshot_id", id, true)?
                    }
                    Source::Volume(id) => self.by_id("volume_content_source.volume.volume_id", id, false)?,
                };
                if size(&origin) > request.size.required {
                    let problem = format!("the source has {} bytes: ask for at least as many", size(&origin));
                    return Err(Error::new(Kind::OutOfRange, format!("capacity_range: {problem}")));
                }
                if !request.nodes.is_empty() && !request.nodes.contains(&origin.spec.node_name) {
                    let problem = format!("the source is on node {}", origin.spec.node_name);
                    return Err(Error::invalid("accessibility_requirements", problem));
                }
                spec.node_name.clone_from(&origin.spec.node_name);
                spec.source = origin.name().to_owned();
                spec.access_type = READ_WRITE.to_owned();
            }
        }
        let mut wished = LogicalVolume::new(self.context.personality, spec);
        if let Some(mode) = mode(&request.access) {
            let annotations = wished.metadata.annotations.get_or_insert_default();
            annotations.insert(VOLUME_MODE.to_owned(), mode.to_owned());
        }
        let made = self.make(wished, deadline).await?;
        Ok(Volume { source: request.source, ..self.volume(&made) })
    }

    async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        self.remove(id, deadline).await
    }

    async fn get(&self, id: &str) -> Result<Volume, Error> {
        Ok(self.volume(self.by_id("volume_id", id, false)?.as_ref()))
    }

    async fn objection(&self, id: &str, access: &[Access]) -> Result<Option<String>, Error> {
        let volume = self.by_id("volume_id", id, false)?;
        let made_for = volume.annotation(VOLUME_MODE);
        let problem = |how: &How| match (made_for, how) {
            (Some("Block"), How::Filesystem { .. }) => Some("mount: it was made as a block device"),
            (Some("Filesystem"), How::Block) => {
                Some("block: it was made for a filesystem, and what was there before may not be zeroed")
            }
            _ => None,
        };
        let mut access = access.iter().enumerate();
        Ok(access.find_map(|(position, access)| {
            Some(format!("volume_capabilities[{position}].{}", problem(&access.how)?))
        }))
    }

    async fn list(&self) -> Result<Vec<Volume>, Error> {
        let all = self.context.stores.volumes.filter(|one| one.volume_id().is_some() && !one.is_snapshot());
        Ok(all.iter().map(|volume| self.volume(volume)).collect())
    }

    async fn grow(&self, id: &str, wanted: Size, deadline: Instant) -> Result<u64, Error> {
        let volume = self.by_id("volume_id", id, false)?;
        if size(&volume) >= wanted.required {
            return Ok(size(&volume));
        }
        let code = |volume: &LogicalVolume| volume.status.as_ref().map_or(0, |status| status.code);
        if let Some(status) = volume.status.as_ref().filter(|status| status.code == LOST) {
            return Err(Error::new(Kind::numbered(LOST), status.message.clone()));
        }
        if code(&volume) != 0 {
            // It is about what was asked for before. When nothing is, the node takes it back.
            self.ask(&volume, size(&volume)).await?;
            self.until(id, deadline, |volume| (code(volume) == 0).then_some(Ok(0))).await?;
        }
        let volume = self.by_id("volume_id", id, false)?;
        self.ask(&volume, wanted.required).await?;
        self.until(id, deadline, |volume| {
            if size(volume) >= wanted.required {
                return Some(Ok(size(volume)));
            }
            let status = volume.status.clone().unwrap_or_default();
            (status.code != 0).then(|| Err(Error::new(Kind::numbered(status.code), status.message)))
        })
        .await
    }

    async fn capacity(
        &self,
        parameters: &BTreeMap<String, String>,
        _: &[Access],
        node: Option<&str>,
    ) -> Result<Capacity, Error> {
        let parameters = self.parameters(parameters)?;
        let nodes = self.context.stores.lvm_nodes.filter(|told| node.is_none_or(|node| told.name() == node));
        let rooms = nodes
            .iter()
            .filter_map(|told| told.available(&parameters.device_class, &parameters.option_class));
        let rooms: Vec<u64> = rooms.collect();
        let largest = rooms.iter().copied().max().unwrap_or_default();
        let least = Parameters::default().size(1, true).unwrap_or_default();
        Ok(Capacity { available: rooms.iter().sum(), largest, least })
    }

    /// The object has its own id later, and guards itself.
    fn snapshot_id(&self, name: &str) -> String {
        format!("snapshot {name}")
    }

    async fn snapshot(&self, name: &str, source: &str, deadline: Instant) -> Result<Snapshot, Error> {
        let origin = self.by_id("source_volume_id", source, false)?;
        let spec = Spec {
            name: name.to_lowercase(),
            node_name: origin.spec.node_name.clone(),
            size: Quantity::of(size(&origin)),
            device_class: origin.spec.device_class.clone(),
            source: origin.name().to_owned(),
            access_type: READ_ONLY.to_owned(),
            ..Spec::default()
        };
        let made = self.make(LogicalVolume::new(self.context.personality, spec), deadline).await?;
        Ok(self.snapshot_of(&made))
    }

    async fn delete_snapshot(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        self.remove(id, deadline).await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let all = self.context.stores.volumes.filter(|one| one.volume_id().is_some() && one.is_snapshot());
        Ok(all.iter().map(|volume| self.snapshot_of(volume)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lvms_csi::request::Mode;

    use super::*;
    use crate::scripted;

    #[test]
    fn a_volume_for_both_ways_of_access_is_told_to_be_for_none() {
        let block = Access { how: How::Block, mode: Mode::Writer };
        let mount = Access { how: How::Filesystem { kind: String::new(), flags: Vec::new() }, ..block };
        assert_eq!(mode(&[block.clone(), block.clone()]), Some("Block"));
        assert_eq!(mode(std::slice::from_ref(&mount)), Some("Filesystem"));
        assert_eq!(mode(&[block.clone(), mount.clone()]), None);
        assert_eq!(mode(&[mount, block]), None);
    }

    #[tokio::test]
    async fn a_volume_is_confirmed_for_what_it_was_made_for() {
        let (context, _) = scripted::context(|_| (500, json!({"code": 500}))).await;
        for (name, made_for) in [("b", Some("Block")), ("f", Some("Filesystem")), ("e", None)] {
            let annotations: BTreeMap<_, _> = made_for.map(|mode| (VOLUME_MODE, mode)).into_iter().collect();
            let made = json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
                "metadata": {"name": name, "uid": name, "annotations": annotations},
                "spec": {"name": name, "nodeName": "n1", "size": "1Gi", "deviceClass": "thin"},
                "status": {"volumeID": name, "currentSize": "1Gi"},
            });
            context.stores.volumes.answered(serde_json::from_value(made).unwrap());
        }
        let volumes = ClusterVolumes { release: Release::new(Arc::clone(&context)), context };
        let block = Access { how: How::Block, mode: Mode::Writer };
        let mount = Access { how: How::Filesystem { kind: String::new(), flags: Vec::new() }, ..block };
        for (id, as_block, as_mount) in [("b", true, false), ("f", false, true), ("e", true, true)] {
            for (access, is_confirmed) in [(&block, as_block), (&mount, as_mount)] {
                let objection = volumes.objection(id, std::slice::from_ref(access)).await.unwrap();
                assert_eq!(objection.is_none(), is_confirmed, "{id} {access:?} {objection:?}");
            }
        }
        assert_eq!(volumes.objection("x", &[block]).await.unwrap_err().kind, Kind::NotFound);
    }

    #[tokio::test]
    async fn a_snapshot_that_is_asked_for_again_is_found_though_its_source_has_grown() {
        let (context, _) = scripted::context(|_| (500, json!({"code": 500}))).await;
        let of = |size: &str, access: &str| -> LogicalVolume {
            serde_json::from_value(json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
                "metadata": {"name": "s", "uid": "s"},
                "spec": {
                    "name": "s", "nodeName": "n1", "size": size, "deviceClass": "thin",
                    "source": "v", "accessType": access,
                },
                "status": {"volumeID": "s", "currentSize": "1Gi"},
            }))
            .unwrap()
        };
        let volumes = ClusterVolumes { release: Release::new(Arc::clone(&context)), context };
        let deadline = Instant::now() + Duration::from_secs(60);
        for (access, is_same) in [("ro", true), ("rw", false)] {
            volumes.context.stores.volumes.answered(of("1Gi", access));
            let made = volumes.make(of("2Gi", access), deadline).await;
            assert_eq!(made.is_ok(), is_same, "{access} {made:?}");
        }
    }

    #[tokio::test]
    async fn a_request_that_is_made_again_finds_its_volume_though_no_room_is_left() {
        let (context, asked) = scripted::context(|_| (500, json!({"code": 500}))).await;
        let told = json!({
            "apiVersion": "lvm.topolvm.io/v2alpha1", "kind": "LVMNode",
            "metadata": {"name": "n1", "uid": "n1"},
            "status": {"deviceClasses": [{"name": "thin", "volumeGroup": "vg", "available": "8Gi"}]},
        });
        context.stores.lvm_nodes.answered(serde_json::from_value(told).unwrap());
        let volumes = ClusterVolumes { release: Release::new(Arc::clone(&context)), context };
        let request = NewVolume {
            name: "large".to_owned(),
            size: Size { required: 12 << 30, limit: None },
            access: Vec::new(),
            parameters: [("topolvm.io/device-class".to_owned(), "thin".to_owned())].into(),
            source: None,
            nodes: Vec::new(),
        };
        let deadline = || Instant::now() + Duration::from_secs(60);
        let refused = volumes.create(request.clone(), deadline()).await.unwrap_err();
        assert_eq!(refused.kind, Kind::NoSpace, "{refused:?}");
        let made = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "large", "uid": "lv"},
            "spec": {"name": "large", "nodeName": "n1", "size": "12Gi", "deviceClass": "thin"},
            "status": {"volumeID": "lv", "currentSize": "12Gi"},
        });
        volumes.context.stores.volumes.answered(serde_json::from_value(made).unwrap());
        let found = volumes.create(request, deadline()).await.unwrap();
        assert_eq!((found.id.as_str(), found.node.as_str()), ("lv", "n1"));
        assert!(asked.lock().unwrap().is_empty(), "nothing is written");
    }
}
