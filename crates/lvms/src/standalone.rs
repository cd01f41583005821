//! `lvms standalone`: Identity, Controller and Node on one unix socket.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::routing::get;
use clap::Args;
use lvms_csi::locks::Locks;
use lvms_csi::proto::controller_server::ControllerServer;
use lvms_csi::proto::identity_server::IdentityServer;
use lvms_csi::proto::node_server::NodeServer;
use lvms_csi::{Controller, Identity, Node};
use lvms_host::attention;
use lvms_host::desired::Desired;
use lvms_host::runner::{Linux, Options as HostOptions};
use lvms_host::volumes::Volumes as Engine;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::configuration::{self, Configuration};
use crate::local::{LocalVolumes, least};
use crate::metrics::Metrics;
use crate::telemetry::Telemetry;

/// How the driver is run.
#[derive(Args)]
pub(crate) struct Options {
    /// The configuration: device classes, as TopoLVM's lvmd has them.
    #[arg(long, value_name = "FILE", default_value = configuration::DEFAULT)]
    config: PathBuf,
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
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<SocketAddr>,
    /// lvm2's program on the host.
    #[arg(long, value_name = "FILE")]
    lvm_path: Option<PathBuf>,
    /// A changing LVM command that has not ended after this long counts as stuck, and holds its volume group up.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    command_deadline: u64,
    /// Where the lock and LVM's layered configuration are kept.
    #[arg(long, value_name = "DIRECTORY", default_value = "/run/lvms", hide = true)]
    runtime_directory: PathBuf,
}

/// lvm2's way to the host, as configuration and arguments say.
pub(crate) fn host_options(
    desired: &Desired,
    lvm_path: Option<&Path>,
    runtime: &Path,
) -> Result<HostOptions> {
    let mut options = HostOptions { runtime: runtime.to_owned(), ..HostOptions::default() };
    match (lvm_path, &desired.lvm_command_prefix) {
        (Some(_), Some(_)) => bail!("--lvm-path and lvm-command-prefix exclude each other: keep one of them"),
        (Some(path), None) => path.clone_into(&mut options.lvm),
        (None, Some(prefix)) => options.lvm_command_prefix = Some(prefix.clone()),
        (None, None) => {}
    }
    Ok(options)
}

/// Serves until it is told to end.
pub(crate) fn run(options: &Options) -> Result<()> {
    let socket = socket(&options.endpoint)?;
    let configuration = Configuration::read(&options.config)?;
    let desired = configuration.desired();
    let mut host = host_options(&desired, options.lvm_path.as_deref(), &options.runtime_directory)?;
    host.change_limit = Duration::from_secs(options.command_deadline);
    let _alone = be_alone(&options.runtime_directory)?;
    let linux = Arc::new(Linux::new(host).context("the host cannot be reached")?);
    let engine = Engine::open(linux, &desired.groups()).context("LVM does not answer")?;
    configuration.follow(options.config.clone())?;
    shield(&engine, &desired);
    let followed = Arc::clone(&configuration);
    attention::follow(&engine, move || followed.desired())?;
    for group in desired.groups() {
        if !engine.inventory().groups.contains_key(group) {
            tracing::warn!(group = %group, "there is no such volume group: its classes have no capacity");
        }
    }
    // One thread serves, others block: a host with many processors must not cost many threads.
    let runtime =
        tokio::runtime::Builder::new_current_thread().max_blocking_threads(64).enable_all().build()?;
    runtime.block_on(serve(options, &socket, engine, configuration))
}

fn shield(engine: &Engine<Linux>, desired: &Desired) {
    if let Err(error) = engine.runner().shield(&desired.groups()) {
        tracing::warn!(%error, "the host cannot be kept from looking into volumes");
    }
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

/// One process changes the volume groups of a host.
fn be_alone(runtime: &Path) -> Result<File> {
    fs::create_dir_all(runtime).with_context(|| runtime.display().to_string())?;
    let path = runtime.join("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path)?;
    if lock.try_lock().is_err() {
        bail!("another lvms serves this host (it holds {}): end it first", path.display());
    }
    Ok(lock)
}

async fn serve(
    options: &Options,
    socket: &Path,
    engine: Arc<Engine<Linux>>,
    configuration: Arc<Configuration>,
) -> Result<()> {
    let name = options
        .node_id
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let metrics = Arc::new(Metrics::new(&name));
    if let Some(address) = options.metrics_bind_address {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("--metrics-bind-address {address}"))?;
        let figures = figures(Arc::clone(&metrics), Arc::clone(&engine), Arc::clone(&configuration));
        tokio::spawn(async move { axum::serve(listener, figures).await });
    }
    let (shielded, mut changes) = (Arc::clone(&engine), configuration.watch());
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            let (engine, desired) = (Arc::clone(&shielded), Arc::clone(&changes.borrow_and_update()));
            let _ = tokio::task::spawn_blocking(move || shield(&engine, &desired)).await;
        }
    });
    let listener = bind(socket)?;
    let volumes = Arc::new(LocalVolumes::new(engine, configuration));
    let locks = Arc::new(Locks::default());
    let topology = (format!("topology.{}/node", options.driver_name), name.clone());
    let identity =
        Identity { name: options.driver_name.clone(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let controller = Controller {
        volumes: Arc::clone(&volumes),
        locks: Arc::clone(&locks),
        topology: topology.clone(),
        least,
    };
    let node = Node { volumes, locks, id: name, topology };
    tracing::info!(socket = %socket.display(), driver = options.driver_name, "serves");
    Server::builder()
        .layer(Telemetry { metrics })
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller))
        .add_service(NodeServer::new(node))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), told_to_end())
        .await?;
    tracing::info!("ends: what was begun is finished");
    Ok(())
}

fn figures(metrics: Arc<Metrics>, engine: Arc<Engine<Linux>>, configuration: Arc<Configuration>) -> Router {
    let text = move || {
        let (metrics, engine, configuration) =
            (Arc::clone(&metrics), Arc::clone(&engine), Arc::clone(&configuration));
        async move {
            let text = tokio::task::spawn_blocking(move || metrics.text(&engine, &configuration)).await;
            text.unwrap_or_default()
        }
    };
    let fine = || async { "ok" };
    Router::new().route("/metrics", get(text)).route("/healthz", get(fine)).route("/readyz", get(fine))
}

/// Only root may speak with us.
fn bind(socket: &Path) -> Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    match fs::symlink_metadata(socket) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(socket)?,
        Ok(_) => bail!("--endpoint: {} is there and is no socket", socket.display()),
        Err(_) => {}
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let bound = UnixListener::bind(socket).with_context(|| format!("--endpoint: {}", socket.display()));
    rustix::process::umask(before);
    let bound = bound?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    Ok(bound)
}

async fn told_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be received");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("told to end");
}
