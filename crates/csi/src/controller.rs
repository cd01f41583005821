//! Volumes and snapshots are made, found, grown and removed.

use std::collections::HashMap;
use std::sync::Arc;

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use crate::error::{Error, Kind};
use crate::locks::{Locks, deadline};
use crate::paging::page;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::controller_service_capability::{self, Type};
use crate::proto::validate_volume_capabilities_response::Confirmed;
use crate::proto::volume_content_source::{self as content, Type as ContentType};
use crate::proto::{self, controller_server};
use crate::request::{Access, How, Size, about, called, given, id};
use crate::volumes::{NewVolume, Snapshot, Source, Volume, Volumes};

/// The Controller service.
pub struct Controller<V> {
    /// The volumes.
    pub volumes: Arc<V>,
    /// Shared with the Node service.
    pub locks: Arc<Locks>,
    /// The name of the only topology there is, whose values are nodes.
    pub topology_key: String,
    /// The least size of a volume for a way of access.
    pub least: fn(&Access) -> u64,
}

/// GetSnapshot is served but not told: csi-sanity 5.4 takes it for a mistake.
const CAPABILITIES: [Rpc; 10] = [
    Rpc::CreateDeleteVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::ExpandVolume,
    Rpc::VolumeCondition,
    Rpc::GetVolume,
    Rpc::SingleNodeMultiWriter,
];

/// The longest name that the specification allows.
const LONGEST_NAME: usize = 128;

/// The parameter of a class that names the filesystem for who names none.
const FILESYSTEM: &str = "csi.storage.k8s.io/fstype";

impl<V: Volumes> Controller<V> {
    fn volume(&self, volume: &Volume) -> proto::Volume {
        let content_source = volume.source.as_ref().map(|source| proto::VolumeContentSource {
            r#type: Some(match source {
                Source::Snapshot(id) => {
                    ContentType::Snapshot(content::SnapshotSource { snapshot_id: id.clone() })
                }
                Source::Volume(id) => ContentType::Volume(content::VolumeSource { volume_id: id.clone() }),
            }),
        });
        proto::Volume {
            capacity_bytes: signed(volume.size),
            volume_id: volume.id.clone(),
            volume_context: HashMap::new(),
            content_source,
            accessible_topology: vec![proto::Topology {
                segments: HashMap::from([(self.topology_key.clone(), volume.node.clone())]),
            }],
        }
    }

    /// Whether these ways of access are granted.
    fn granted(&self, capabilities: &[proto::VolumeCapability]) -> Result<Vec<Access>, Error> {
        let access = Access::parse_all("volume_capabilities", capabilities)?;
        self.volumes.supports(&access)?;
        Ok(access)
    }

    /// The nodes that a volume may be on, the best first; none if any will do.
    fn nodes(&self, requirement: Option<&proto::TopologyRequirement>) -> Result<Vec<String>, Error> {
        let Some(requirement) = requirement else { return Ok(Vec::new()) };
        let wanted = requirement.preferred.iter().chain(&requirement.requisite);
        let mut nodes: Vec<String> = Vec::new();
        for node in wanted.filter_map(|topology| topology.segments.get(&self.topology_key)) {
            if !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        if nodes.is_empty() && !(requirement.preferred.is_empty() && requirement.requisite.is_empty()) {
            let problem = format!("none of them says {}, and volumes are on nodes", self.topology_key);
            return Err(Error::invalid("accessibility_requirements", problem));
        }
        Ok(nodes)
    }
}

/// A name that is no longer than the specification allows, without characters that it bans: those that control, but
/// for white space.
fn checked_name(name: &str) -> Result<&str, Error> {
    given("name", name)?;
    if name.len() > LONGEST_NAME {
        let problem = format!("has {} bytes, at most {LONGEST_NAME} are allowed", name.len());
        return Err(Error::invalid("name", problem));
    }
    let is_banned = |character: &char| character.is_control() && !matches!(character, '\t' | '\n' | '\r');
    if let Some(banned) = name.chars().find(is_banned) {
        return Err(Error::invalid("name", format!("has the character {banned:?}, which is not allowed")));
    }
    Ok(name)
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn snapshot(snapshot: &Snapshot) -> proto::Snapshot {
    proto::Snapshot {
        size_bytes: signed(snapshot.size),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.source.clone(),
        creation_time: Some(Timestamp { seconds: snapshot.created, nanos: 0 }),
        ready_to_use: snapshot.ready,
        group_snapshot_id: String::new(),
    }
}

fn source(source: Option<&proto::VolumeContentSource>) -> Result<Option<Source>, Error> {
    let Some(source) = source else { return Ok(None) };
    let missing =
        |field: &str| Error::new(Kind::NotFound, format!("volume_content_source.{field}: is empty"));
    match &source.r#type {
        Some(ContentType::Snapshot(snapshot)) if snapshot.snapshot_id.is_empty() => {
            Err(missing("snapshot.snapshot_id"))
        }
        Some(ContentType::Volume(volume)) if volume.volume_id.is_empty() => Err(missing("volume.volume_id")),
        Some(ContentType::Snapshot(snapshot)) => Ok(Some(Source::Snapshot(snapshot.snapshot_id.clone()))),
        Some(ContentType::Volume(volume)) => Ok(Some(Source::Volume(volume.volume_id.clone()))),
        None => Err(Error::invalid("volume_content_source.type", "is missing: name a snapshot or a volume")),
    }
}

#[tonic::async_trait]
impl<V: Volumes> controller_server::Controller for Controller<V> {
    async fn create_volume(
        &self,
        request: Request<proto::CreateVolumeRequest>,
    ) -> Result<Response<proto::CreateVolumeResponse>, Status> {
        let deadline = deadline(request.metadata());
        let request = request.into_inner();
        let name = checked_name(&request.name)?.to_owned();
        let id = self.volumes.id(&name);
        about(&id);
        called(&name);
        let mut access = Access::parse_all("volume_capabilities", &request.volume_capabilities)?;
        let default = request.parameters.get(FILESYSTEM).map(String::as_str);
        access.iter_mut().for_each(|access| access.complete(default));
        let least = access.iter().map(self.least).max().unwrap_or_default();
        let size = Size::parse(request.capacity_range.as_ref(), least)?;
        let nodes = self.nodes(request.accessibility_requirements.as_ref())?;
        let source = source(request.volume_content_source.as_ref())?;
        let parameters = request.parameters.into_iter().collect();
        let held = self.locks.hold(&id, deadline).await?;
        let new = NewVolume { name, size, access, parameters, source, nodes };
        let volumes = Arc::clone(&self.volumes);
        let volume = held.to_the_end(async move { volumes.create(new, deadline).await }).await?;
        Ok(Response::new(proto::CreateVolumeResponse { volume: Some(self.volume(&volume)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<proto::DeleteVolumeRequest>,
    ) -> Result<Response<proto::DeleteVolumeResponse>, Status> {
        let deadline = deadline(request.metadata());
        let id = id("volume_id", &request.get_ref().volume_id)?.to_owned();
        let (held, volumes) = (self.locks.hold(&id, deadline).await?, Arc::clone(&self.volumes));
        held.to_the_end(async move { volumes.delete(&id, deadline).await }).await?;
        Ok(Response::new(proto::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<proto::ControllerPublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes need not be attached"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<proto::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes need not be attached"))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<proto::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<proto::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let id = id("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(
                Error::invalid("volume_capabilities", "is missing: name at least one way of access").into()
            );
        }
        self.volumes.get(id).await?;
        let objection = match self.granted(&request.volume_capabilities) {
            Ok(access) => self.volumes.objection(id, &access).await?,
            Err(error) => Some(error.message),
        };
        let answer = match objection {
            None => proto::ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            },
            Some(message) => proto::ValidateVolumeCapabilitiesResponse { confirmed: None, message },
        };
        Ok(Response::new(answer))
    }

    async fn list_volumes(
        &self,
        request: Request<proto::ListVolumesRequest>,
    ) -> Result<Response<proto::ListVolumesResponse>, Status> {
        use proto::list_volumes_response::{Entry, VolumeStatus};
        let request = request.into_inner();
        let all = self.volumes.list().await?;
        let (volumes, next_token) =
            page(all, |volume| volume.id.as_str(), request.max_entries, &request.starting_token)?;
        let entry = |volume: &Volume| Entry {
            volume: Some(self.volume(volume)),
            status: Some(VolumeStatus {
                published_node_ids: Vec::new(),
                volume_condition: Some(condition(&volume.condition)),
            }),
        };
        let entries = volumes.iter().map(entry).collect();
        Ok(Response::new(proto::ListVolumesResponse { entries, next_token }))
    }

    async fn get_capacity(
        &self,
        request: Request<proto::GetCapacityRequest>,
    ) -> Result<Response<proto::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let nothing = proto::GetCapacityResponse {
            available_capacity: 0,
            maximum_volume_size: Some(0),
            minimum_volume_size: None,
        };
        let node =
            request.accessible_topology.as_ref().map(|topology| topology.segments.get(&self.topology_key));
        if node == Some(None) {
            return Ok(Response::new(nothing));
        }
        // A way of access that is never granted has no capacity.
        let mut access = Vec::new();
        if !request.volume_capabilities.is_empty() {
            let Ok(granted) = self.granted(&request.volume_capabilities) else {
                return Ok(Response::new(nothing));
            };
            access = granted;
        }
        let default = request.parameters.get(FILESYSTEM).map(String::as_str);
        access.iter_mut().for_each(|access| access.complete(default));
        let least = access.iter().map(self.least).max().unwrap_or_default();
        let (parameters, node) =
            (request.parameters.into_iter().collect(), node.flatten().map(String::as_str));
        let capacity = self.volumes.capacity(&parameters, &access, node).await?;
        let least = least.max(capacity.least);
        // Room for less than the least is room for nothing.
        if capacity.largest < least {
            return Ok(Response::new(nothing));
        }
        Ok(Response::new(proto::GetCapacityResponse {
            available_capacity: signed(capacity.available),
            maximum_volume_size: Some(signed(capacity.largest)),
            minimum_volume_size: Some(signed(least)),
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<proto::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<proto::ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| proto::ControllerServiceCapability {
            r#type: Some(Type::Rpc(controller_service_capability::Rpc { r#type: rpc.into() })),
        };
        let capabilities = CAPABILITIES.map(capability).to_vec();
        Ok(Response::new(proto::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<proto::CreateSnapshotRequest>,
    ) -> Result<Response<proto::CreateSnapshotResponse>, Status> {
        let deadline = deadline(request.metadata());
        let request = request.into_inner();
        let source = id("source_volume_id", &request.source_volume_id)?;
        let name = checked_name(&request.name)?;
        called(name);
        let (name, source) = (name.to_owned(), source.to_owned());
        let volumes = Arc::clone(&self.volumes);
        // Its removal waits for it, too. Whoever holds both has taken the source first.
        let snapshot_id = volumes.snapshot_id(&name);
        let held = self.locks.hold(&source, deadline).await?;
        let snapshot_held = self.locks.hold(&snapshot_id, deadline).await?;
        let making = async move { volumes.snapshot(&name, &source, deadline).await };
        let made = held.to_the_end(async move { snapshot_held.to_the_end(making).await }).await?;
        Ok(Response::new(proto::CreateSnapshotResponse { snapshot: Some(snapshot(&made)) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<proto::DeleteSnapshotRequest>,
    ) -> Result<Response<proto::DeleteSnapshotResponse>, Status> {
        let deadline = deadline(request.metadata());
        let id = id("snapshot_id", &request.get_ref().snapshot_id)?.to_owned();
        let (held, volumes) = (self.locks.hold(&id, deadline).await?, Arc::clone(&self.volumes));
        held.to_the_end(async move { volumes.delete_snapshot(&id, deadline).await }).await?;
        Ok(Response::new(proto::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<proto::ListSnapshotsRequest>,
    ) -> Result<Response<proto::ListSnapshotsResponse>, Status> {
        use proto::list_snapshots_response::Entry;
        let request = request.into_inner();
        let mut all = self.volumes.snapshots().await?;
        all.retain(|snapshot| {
            (request.snapshot_id.is_empty() || snapshot.id == request.snapshot_id)
                && (request.source_volume_id.is_empty() || snapshot.source == request.source_volume_id)
        });
        let (snapshots, next_token) =
            page(all, |snapshot| snapshot.id.as_str(), request.max_entries, &request.starting_token)?;
        let entries = snapshots.iter().map(|one| Entry { snapshot: Some(snapshot(one)) }).collect();
        Ok(Response::new(proto::ListSnapshotsResponse { entries, next_token }))
    }

    async fn get_snapshot(
        &self,
        request: Request<proto::GetSnapshotRequest>,
    ) -> Result<Response<proto::GetSnapshotResponse>, Status> {
        let id = id("snapshot_id", &request.get_ref().snapshot_id)?;
        let all = self.volumes.snapshots().await?;
        let found = all.iter().find(|snapshot| snapshot.id == id);
        let found = found
            .ok_or_else(|| Error::new(Kind::NotFound, format!("snapshot_id: there is no snapshot {id:?}")))?;
        Ok(Response::new(proto::GetSnapshotResponse { snapshot: Some(snapshot(found)) }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<proto::ControllerExpandVolumeRequest>,
    ) -> Result<Response<proto::ControllerExpandVolumeResponse>, Status> {
        let deadline = deadline(request.metadata());
        let request = request.into_inner();
        let id = id("volume_id", &request.volume_id)?;
        match request.capacity_range {
            None => return Err(Error::invalid("capacity_range", "is missing").into()),
            Some(proto::CapacityRange { required_bytes: 0, limit_bytes: 0 }) => {
                return Err(Error::invalid("capacity_range.required_bytes", "is missing").into());
            }
            Some(_) => {}
        }
        let size = Size::parse(request.capacity_range.as_ref(), 0)?;
        let access = request
            .volume_capability
            .as_ref()
            .map(|one| Access::parse("volume_capability", one))
            .transpose()?;
        let id = id.to_owned();
        let (held, volumes) = (self.locks.hold(&id, deadline).await?, Arc::clone(&self.volumes));
        let size = held.to_the_end(async move { volumes.grow(&id, size, deadline).await }).await?;
        let node_expansion_required = access.is_none_or(|access| access.how != How::Block);
        let capacity_bytes = signed(size);
        Ok(Response::new(proto::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<proto::ControllerGetVolumeRequest>,
    ) -> Result<Response<proto::ControllerGetVolumeResponse>, Status> {
        use proto::controller_get_volume_response::VolumeStatus;
        let volume = self.volumes.get(id("volume_id", &request.get_ref().volume_id)?).await?;
        let status = VolumeStatus {
            published_node_ids: Vec::new(),
            volume_condition: Some(condition(&volume.condition)),
        };
        let volume = Some(self.volume(&volume));
        Ok(Response::new(proto::ControllerGetVolumeResponse { volume, status: Some(status) }))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<proto::ControllerModifyVolumeRequest>,
    ) -> Result<Response<proto::ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes have no parameters that can be changed"))
    }
}

pub(crate) fn condition(condition: &crate::volumes::Condition) -> proto::VolumeCondition {
    proto::VolumeCondition { abnormal: condition.abnormal, message: condition.message.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_what_the_specification_allows() {
        for good in ["a", "with space", "tab\tline\nreturn\r", "ünïcödé 日本 🦀", &"x".repeat(128)] {
            assert_eq!(checked_name(good), Ok(good));
        }
        for bad in
            ["", &"x".repeat(129), "nul\0", "bell\u{7}", "\u{b}", "\u{1f}", "\u{7f}", "\u{80}", "\u{9f}"]
        {
            let error = checked_name(bad).unwrap_err();
            assert!(error.kind == Kind::Invalid && error.message.starts_with("name: "), "{bad:?}: {error}");
        }
    }
}
