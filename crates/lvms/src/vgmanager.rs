//! `lvms vgmanager`: one node of a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use lvms_api::LogicalVolume;
use lvms_cluster::{Connection, Store};
use lvms_node::metrics::Metrics;
use lvms_node::role::Role;
use tokio::sync::watch;

use crate::cluster;
use crate::host::{self, Host};
use crate::serving::{self, Address};

/// How a node is run.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) host: host::Arguments,
    #[command(flatten)]
    pub(crate) cluster: cluster::Arguments,
    /// This node's name, as Kubernetes knows it.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    nodename: String,
    /// The kubelet's directory.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where to serve Prometheus' figures (/metrics) and health (/healthz, /readyz), as address:port; 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    metrics_bind_address: Address,
}

impl Options {
    /// What this node does, once the host is open and the cluster is reached.
    pub(crate) async fn role(
        &self,
        host: &Host,
        connection: Connection,
        watched: Option<Arc<Store<LogicalVolume>>>,
        registered: &Arc<watch::Sender<bool>>,
        more_figures: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Result<Role> {
        let metrics = Arc::new(Metrics::new(&self.nodename));
        let (ready, volumes, counted) =
            (Arc::clone(registered), Arc::clone(&host.volumes), Arc::clone(&metrics));
        let figures = move || more_figures() + &counted.text(&volumes.engine, &volumes.configuration);
        serving::health(self.metrics_bind_address, move || *ready.borrow(), figures).await?;
        host.attend();
        Ok(Role {
            personality: self.cluster.personality(),
            node: self.nodename.clone(),
            namespace: self.cluster.namespace(&connection),
            connection,
            kubelet: self.kubelet_dir.clone(),
            host: Arc::clone(&host.volumes),
            metrics,
            watched,
            version: env!("CARGO_PKG_VERSION"),
        })
    }
}

/// Serves until it is told to end.
pub(crate) fn run(options: &Options) -> Result<()> {
    let host = options.host.open_in_any_case()?;
    serving::runtime()?.block_on(async {
        let connection = options.cluster.connect().await?;
        let registered = Arc::new(watch::Sender::new(false));
        let role = options.role(&host, connection, None, &registered, String::new).await?;
        let lvmd = options.host.lvmd(&host, &role.metrics)?;
        tokio::try_join!(role.run(registered, serving::told_to_end()), lvmd)?;
        tracing::info!("ends: what was begun is finished");
        Ok(())
    })
}
