//! The protocol of TopoLVM's lvmd, for whoever spoke to it: TopoLVM's own node service, or a script.
//!
//! It is another door to the volumes of this host, and no second way to LVM: what is asked here goes through the same
//! engine, queues and plans as all else. Who may open the socket is root of the volume groups, as with lvmd itself:
//! nothing in this protocol asks whether somebody still needs a volume that shall be removed.
//!
//! - [`volumes`]: makes, copies, grows and removes.
//! - [`groups`]: tells what is there, and how full it is.
//! - [`told`]: what is told, as pure functions of what is there.

mod groups;
#[expect(missing_docs)]
pub mod health {
    //! Generated from `health.proto`.
    tonic::include_proto!("grpc.health.v1");
}
#[expect(missing_docs)]
pub mod proto {
    //! Generated from `lvmd.proto`.
    tonic::include_proto!("proto");
}
mod told;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use lvms_csi::sockets::{self, Owned};
use lvms_csi::{Error, Kind};
use lvms_host::desired::{Desired, DeviceClass};
use lvms_node::host_volumes::HostVolumes;
use lvms_node::metrics::Metrics;
use lvms_node::telemetry::Telemetry;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use self::health::health_check_response::ServingStatus;
use self::health::health_server::{Health, HealthServer};
use self::health::{HealthCheckRequest, HealthCheckResponse};
use self::proto::lv_service_server::LvServiceServer;
use self::proto::vg_service_server::VgServiceServer;

/// Where lvmd listens unless its configuration says otherwise.
pub const SOCKET: &str = "/run/topolvm/lvmd.sock";

/// The socket, listened to and not served yet.
pub struct Lvmd {
    host: Arc<HostVolumes>,
    metrics: Arc<Metrics>,
    path: PathBuf,
    listener: UnixListener,
    socket: Owned,
}

impl Lvmd {
    /// Listens where the configuration says. Fails if somebody else serves there.
    pub fn listen(host: Arc<HostVolumes>, metrics: Arc<Metrics>) -> Result<Lvmd> {
        let named = host.configuration.desired().socket_name.clone().filter(|name| !name.is_empty());
        let path = PathBuf::from(named.unwrap_or_else(|| SOCKET.to_owned()));
        let (listener, socket) = bind(&path)?;
        Ok(Lvmd { host, metrics, path, listener, socket })
    }

    /// Serves until `stop` ends, and removes the socket then.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<()> {
        let Lvmd { host, metrics, path, listener, socket } = self;
        let (end, ending) = watch::channel(false);
        let volumes = volumes::Service { host: Arc::clone(&host) };
        let groups = groups::Service { host, ending };
        tracing::warn!(
            socket = %path.display(),
            "serves the protocol of lvmd: whoever opens its socket can remove any volume of the groups"
        );
        let stop = async {
            stop.await;
            // Whoever watches would be waited for for ever.
            let _ = end.send(true);
        };
        let telemetry = Telemetry::new(metrics);
        let (stop, all_ended) = telemetry.ending(stop);
        let served = Server::builder()
            .layer(telemetry)
            .add_service(HealthServer::new(Well))
            .add_service(LvServiceServer::new(volumes))
            .add_service(VgServiceServer::new(groups))
            .serve_with_incoming_shutdown(sockets::connections(listener), stop);
        let served = tokio::select! {
            served = served => served,
            () = all_ended => Ok(()),
        };
        socket.remove();
        Ok(served?)
    }
}

fn bind(path: &Path) -> Result<(UnixListener, Owned)> {
    sockets::bind_unless_served(path).context("socket-name of the configuration")
}

/// The class that a request names.
fn class<'a>(desired: &'a Desired, name: &str) -> Result<&'a DeviceClass, Error> {
    desired.class(name).ok_or_else(|| Error::new(Kind::NotFound, format!("device-class not found: {name}")))
}

/// Who answers is well.
struct Well;

#[tonic::async_trait]
impl Health for Well {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() }))
    }
}
