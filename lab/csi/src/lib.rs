//! A CSI client as a container orchestrator has one, for tests, benchmarks and the demo: calls block, and answer with
//! what the driver said.

mod driver;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

pub use driver::Driver;
use lvms_csi::proto::controller_client::ControllerClient;
use lvms_csi::proto::node_client::NodeClient;
use lvms_csi::proto::volume_capability::access_mode::Mode;
use lvms_csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use lvms_csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
pub use lvms_csi::proto::{self, Snapshot, Volume};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
pub use tonic::{Code, Status};

/// What goes wrong beside what the driver says.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A driver that has not answered after this long hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// A connection to a driver.
pub struct Client {
    runtime: Runtime,
    channel: Channel,
}

/// How a volume is to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// As this filesystem.
    Filesystem(&'static str),
    /// As a block device.
    Block,
}

/// What a volume is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A snapshot.
    Snapshot(String),
    /// A volume.
    Volume(String),
}

impl Access {
    /// As the protocol has it.
    pub fn capability(self) -> proto::VolumeCapability {
        let access_type = match self {
            Access::Block => AccessType::Block(BlockVolume {}),
            Access::Filesystem(kind) => {
                AccessType::Mount(MountVolume { fs_type: kind.to_owned(), ..MountVolume::default() })
            }
        };
        let mode = AccessMode { mode: Mode::SingleNodeWriter.into() };
        proto::VolumeCapability { access_mode: Some(mode), access_type: Some(access_type) }
    }
}

impl Client {
    /// Connects to the socket of a driver that serves.
    pub fn connect(socket: &Path) -> Result<Client, Error> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?.timeout(LIMIT);
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Client { runtime, channel })
    }

    /// Any call to the Controller service.
    pub fn controller<T>(
        &self,
        call: impl AsyncFnOnce(ControllerClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        let client = ControllerClient::new(self.channel.clone());
        self.runtime.block_on(call(client)).map(tonic::Response::into_inner)
    }

    /// Any call to the Node service.
    pub fn node<T>(
        &self,
        call: impl AsyncFnOnce(NodeClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        let client = NodeClient::new(self.channel.clone());
        self.runtime.block_on(call(client)).map(tonic::Response::into_inner)
    }

    /// Makes a volume.
    pub fn create(
        &self,
        name: &str,
        class: &str,
        size: i64,
        access: Access,
        source: Option<&Source>,
    ) -> Result<Volume, Status> {
        let kind = source.map(|source| match source {
            Source::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.clone() }),
            Source::Volume(id) => Type::Volume(VolumeSource { volume_id: id.clone() }),
        });
        let request = proto::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(proto::CapacityRange { required_bytes: size, limit_bytes: 0 }),
            volume_capabilities: vec![access.capability()],
            parameters: HashMap::from([("topolvm.io/device-class".to_owned(), class.to_owned())]),
            volume_content_source: kind.map(|kind| proto::VolumeContentSource { r#type: Some(kind) }),
            ..proto::CreateVolumeRequest::default()
        };
        let answer = self.controller(async |mut controller| controller.create_volume(request).await)?;
        answer.volume.ok_or_else(|| Status::internal("the driver answered without a volume"))
    }

    /// Removes a volume.
    pub fn delete(&self, id: &str) -> Result<(), Status> {
        let request = proto::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.controller(async |mut controller| controller.delete_volume(request).await).map(drop)
    }

    /// Makes a snapshot.
    pub fn snapshot(&self, name: &str, source: &str) -> Result<Snapshot, Status> {
        let request = proto::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..Default::default()
        };
        let answer = self.controller(async |mut controller| controller.create_snapshot(request).await)?;
        answer.snapshot.ok_or_else(|| Status::internal("the driver answered without a snapshot"))
    }

    /// Removes a snapshot.
    pub fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        let request = proto::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        self.controller(async |mut controller| controller.delete_snapshot(request).await).map(drop)
    }

    /// Grows a volume, and its filesystem where it is published.
    pub fn grow(&self, id: &str, size: i64, access: Access, published: Option<&Path>) -> Result<i64, Status> {
        let range = Some(proto::CapacityRange { required_bytes: size, limit_bytes: 0 });
        let request = proto::ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: range,
            volume_capability: Some(access.capability()),
            ..Default::default()
        };
        let grown =
            self.controller(async |mut controller| controller.controller_expand_volume(request).await)?;
        if let Some(path) = published.filter(|_| grown.node_expansion_required) {
            let request = proto::NodeExpandVolumeRequest {
                volume_id: id.to_owned(),
                volume_path: path.to_string_lossy().into_owned(),
                capacity_range: range,
                volume_capability: Some(access.capability()),
                ..Default::default()
            };
            self.node(async |mut node| node.node_expand_volume(request).await)?;
        }
        Ok(grown.capacity_bytes)
    }

    /// Makes a volume visible at a path.
    pub fn publish(&self, id: &str, target: &Path, access: Access) -> Result<(), Status> {
        let request = proto::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: target.to_string_lossy().into_owned(),
            volume_capability: Some(access.capability()),
            ..Default::default()
        };
        self.node(async |mut node| node.node_publish_volume(request).await).map(drop)
    }

    /// Hides it again.
    pub fn unpublish(&self, id: &str, target: &Path) -> Result<(), Status> {
        let target_path = target.to_string_lossy().into_owned();
        let request = proto::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path };
        self.node(async |mut node| node.node_unpublish_volume(request).await).map(drop)
    }

    /// How full a published volume is.
    pub fn stats(&self, id: &str, path: &Path) -> Result<proto::NodeGetVolumeStatsResponse, Status> {
        let request = proto::NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: path.to_string_lossy().into_owned(),
            ..Default::default()
        };
        self.node(async |mut node| node.node_get_volume_stats(request).await)
    }

    /// What can still be had of a class.
    pub fn capacity(&self, class: &str) -> Result<i64, Status> {
        let request = proto::GetCapacityRequest {
            parameters: HashMap::from([("topolvm.io/device-class".to_owned(), class.to_owned())]),
            ..Default::default()
        };
        Ok(self.controller(async |mut controller| controller.get_capacity(request).await)?.available_capacity)
    }
}
