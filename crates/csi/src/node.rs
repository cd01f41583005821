//! Volumes are made visible on this node, measured, grown and hidden again.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::controller::condition;
use crate::error::Error;
use crate::locks::{Locks, deadline};
use crate::proto::node_service_capability::rpc::Type as Rpc;
use crate::proto::node_service_capability::{self, Type};
use crate::proto::volume_usage::Unit;
use crate::proto::{self, node_server};
use crate::request::{Access, How, Mode, Size, id, path, published_path};
use crate::volumes::{NodeVolumes, Publish};

/// The Node service.
pub struct Node<V> {
    /// The volumes.
    pub volumes: Arc<V>,
    /// Shared with the Controller service.
    pub locks: Arc<Locks>,
    /// The node's name.
    pub id: String,
    /// Where it is.
    pub topology: (String, String),
}

const CAPABILITIES: [Rpc; 4] =
    [Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::VolumeCondition, Rpc::SingleNodeMultiWriter];

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl<V: NodeVolumes> node_server::Node for Node<V> {
    async fn node_stage_volume(
        &self,
        _: Request<proto::NodeStageVolumeRequest>,
    ) -> Result<Response<proto::NodeStageVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes need not be staged"))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<proto::NodeUnstageVolumeRequest>,
    ) -> Result<Response<proto::NodeUnstageVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes need not be staged"))
    }

    async fn node_publish_volume(
        &self,
        request: Request<proto::NodePublishVolumeRequest>,
    ) -> Result<Response<proto::NodePublishVolumeResponse>, Status> {
        let deadline = deadline(request.metadata());
        let request = request.into_inner();
        let id = id("volume_id", &request.volume_id)?.to_owned();
        let target = path("target_path", &request.target_path)?;
        let capability = request.volume_capability.as_ref();
        let capability = capability.ok_or_else(|| Error::invalid("volume_capability", "is missing"))?;
        let access = Access::parse_of_present("volume_capability", capability)?;
        let read_only = request.readonly || access.mode == Mode::Reader;
        let (held, volumes) = (self.locks.hold(&id, deadline).await?, Arc::clone(&self.volumes));
        let publish = Publish { id, target, access, read_only };
        held.to_the_end(async move { volumes.publish(publish, deadline).await }).await?;
        Ok(Response::new(proto::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<proto::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<proto::NodeUnpublishVolumeResponse>, Status> {
        let deadline = deadline(request.metadata());
        let request = request.into_inner();
        let id = id("volume_id", &request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        let id = id.to_owned();
        let (held, volumes) = (self.locks.hold(&id, deadline).await?, Arc::clone(&self.volumes));
        held.to_the_end(async move { volumes.unpublish(&id, target).await }).await?;
        Ok(Response::new(proto::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<proto::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<proto::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let id = id("volume_id", &request.volume_id)?;
        let path = published_path("volume_path", &request.volume_path)?;
        let stats = self.volumes.stats(id, path).await?;
        let usage = |unit: Unit, total, used, available| proto::VolumeUsage {
            available: signed(available),
            total: signed(total),
            used: signed(used),
            unit: unit.into(),
        };
        let mut usages = Vec::new();
        if let Some((total, rest)) = stats.bytes {
            let (used, available) = rest.unwrap_or_default();
            usages.push(usage(Unit::Bytes, total, used, available));
        }
        if let Some((total, used, available)) = stats.inodes {
            usages.push(usage(Unit::Inodes, total, used, available));
        }
        Ok(Response::new(proto::NodeGetVolumeStatsResponse {
            usage: usages,
            volume_condition: Some(condition(&stats.condition)),
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<proto::NodeExpandVolumeRequest>,
    ) -> Result<Response<proto::NodeExpandVolumeResponse>, Status> {
        let deadline = deadline(request.metadata());
        let request = request.into_inner();
        let id = id("volume_id", &request.volume_id)?;
        let path = published_path("volume_path", &request.volume_path)?;
        Size::parse(request.capacity_range.as_ref(), 0)?;
        let access = request
            .volume_capability
            .as_ref()
            .map(|one| Access::parse("volume_capability", one))
            .transpose()?;
        if access.is_some_and(|access| access.how == How::Block) {
            let size = self.volumes.size(id).await?;
            return Ok(Response::new(proto::NodeExpandVolumeResponse { capacity_bytes: signed(size) }));
        }
        let id = id.to_owned();
        let (held, volumes) = (self.locks.hold(&id, deadline).await?, Arc::clone(&self.volumes));
        let size = held.to_the_end(async move { volumes.grow_published(&id, path, deadline).await }).await?;
        Ok(Response::new(proto::NodeExpandVolumeResponse { capacity_bytes: signed(size) }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<proto::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<proto::NodeGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| proto::NodeServiceCapability {
            r#type: Some(Type::Rpc(node_service_capability::Rpc { r#type: rpc.into() })),
        };
        let capabilities = CAPABILITIES.map(capability).to_vec();
        Ok(Response::new(proto::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<proto::NodeGetInfoRequest>,
    ) -> Result<Response<proto::NodeGetInfoResponse>, Status> {
        let (key, value) = self.topology.clone();
        Ok(Response::new(proto::NodeGetInfoResponse {
            node_id: self.id.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(proto::Topology { segments: HashMap::from([(key, value)]) }),
        }))
    }
}
