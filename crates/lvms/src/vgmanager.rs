//! `lvms vgmanager`: one node of a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
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
    host: host::Arguments,
    #[command(flatten)]
    cluster: cluster::Arguments,
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

/// Serves until it is told to end.
pub(crate) fn run(options: &Options) -> Result<()> {
    let host = options.host.open()?;
    serving::runtime()?.block_on(async {
        let connection = options.cluster.connect().await?;
        let metrics = Arc::new(Metrics::new(&options.nodename));
        let registered = Arc::new(watch::Sender::new(false));
        let ready = Arc::clone(&registered);
        let volumes = Arc::clone(&host.volumes);
        serving::figures(options.metrics_bind_address, Arc::clone(&metrics), volumes, move || {
            *ready.borrow()
        })
        .await?;
        tokio::spawn(Host::keep_shielded(Arc::clone(&host.volumes)));
        let role = Role {
            personality: options.cluster.personality(),
            node: options.nodename.clone(),
            namespace: options.cluster.namespace(&connection),
            connection,
            kubelet: options.kubelet_dir.clone(),
            host: Arc::clone(&host.volumes),
            metrics,
            version: env!("CARGO_PKG_VERSION"),
        };
        role.run(registered, serving::told_to_end()).await?;
        tracing::info!("ends: what was begun is finished");
        Ok(())
    })
}
