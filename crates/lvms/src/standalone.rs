//! `lvms standalone`: Identity, Controller and Node on one unix socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use lvms_csi::proto::controller_server::ControllerServer;
use lvms_csi::proto::identity_server::IdentityServer;
use lvms_csi::proto::node_server::NodeServer;
use lvms_csi::{Controller, Identity, Node, sockets};
use lvms_node::metrics::Metrics;
use lvms_node::telemetry::Telemetry;
use tonic::transport::Server;

use crate::host::{self, Host};
use crate::local::{LocalVolumes, least};
use crate::serving::{self, Address};

/// How the driver is run.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    host: host::Arguments,
    /// The socket to serve on, as unix:///path or /path.
    #[arg(long, value_name = "SOCKET", env = "CSI_ENDPOINT", default_value = "unix:///run/lvms/csi.sock")]
    endpoint: String,
    /// The driver's name.
    #[arg(long, value_name = "NAME", default_value = "topolvm.io")]
    driver_name: String,
    /// This node's name; the host's name if it is not given.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_id: Option<String>,
    /// Where to serve Prometheus' figures (/metrics) and health (/healthz, /readyz), as address:port.
    #[arg(long, value_name = "ADDRESS", default_value = "0", hide_default_value = true)]
    metrics_bind_address: Address,
}

/// Serves until it is told to end.
pub(crate) fn run(options: &Options) -> Result<()> {
    let socket = socket(&options.endpoint)?;
    let host = options.host.open()?;
    serving::runtime()?.block_on(serve(options, &socket, &host))
}

fn socket(endpoint: &str) -> Result<PathBuf> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    let path = PathBuf::from(path);
    if !path.is_absolute() {
        bail!("--endpoint is {endpoint:?}: write unix:/// and an absolute path");
    }
    Ok(path)
}

async fn serve(options: &Options, socket: &Path, host: &Host) -> Result<()> {
    let name = options
        .node_id
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let metrics = Arc::new(Metrics::new(&name));
    let (volumes, counted) = (Arc::clone(&host.volumes), Arc::clone(&metrics));
    let figures = move || counted.text(&volumes.engine, &volumes.configuration);
    serving::health(options.metrics_bind_address, || true, figures).await?;
    host.attend();
    // Whoever reaches the endpoint reaches lvmd's socket too.
    let lvmd = options.host.lvmd(host, &metrics)?;
    let listener = sockets::bind(socket).context("--endpoint")?;
    let locks = Arc::clone(&host.volumes.locks);
    let topology = (format!("topology.{}/node", options.driver_name), name.clone());
    let identity =
        Identity { name: options.driver_name.clone(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let controller = Controller {
        volumes: Arc::new(LocalVolumes { host: Arc::clone(&host.volumes), node: name.clone() }),
        locks: Arc::clone(&locks),
        topology_key: topology.0.clone(),
        least,
    };
    let node = Node { volumes: Arc::clone(&host.volumes), locks, id: name, topology };
    tracing::info!(socket = %socket.display(), driver = options.driver_name, "serves");
    let telemetry = Telemetry::new(metrics);
    let (stop, all_ended) = telemetry.ending(serving::told_to_end());
    let served = Server::builder()
        .layer(telemetry)
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller))
        .add_service(NodeServer::new(node))
        .serve_with_incoming_shutdown(sockets::connections(listener), stop);
    let served = async {
        tokio::select! {
            served = served => Ok(served?),
            () = all_ended => Ok(()),
        }
    };
    tokio::try_join!(served, lvmd)?;
    tracing::info!("ends: what was begun is finished");
    Ok(())
}
