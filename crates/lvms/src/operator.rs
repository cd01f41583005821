//! `lvms operator`: what a cluster has once.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lvms_cluster::Connection;
use lvms_operator::leftovers::Departure;
use lvms_operator::metrics::Metrics;
use lvms_operator::role::Role;
use lvms_operator::stores::Stores;

use crate::cluster;
use crate::serving::{self, Address};

/// How it is run.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cluster: cluster::Arguments,
    #[command(flatten)]
    leader: Leader,
    /// Where to serve Prometheus' figures (/metrics), as address:port; 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    metrics_bind_address: Address,
    /// Where to serve health (/healthz, /readyz), as address:port; 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    health_probe_bind_address: Address,
}

/// How a leader leads, whoever else is in its process.
#[derive(Args)]
pub(crate) struct Leader {
    /// The pod that this is, whose owner owns what is published.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pod: Option<String>,
    /// Where the leader serves CSI's Controller service; nowhere if it is not given, since Kubernetes does not need it.
    #[arg(long, value_name = "SOCKET")]
    csi_socket: Option<PathBuf>,
    /// What becomes of the volumes of a node that leaves: keep them and their claims, or delete both as TopoLVM does.
    #[arg(long, value_name = "RULE", default_value = "keep")]
    node_finalize: NodeFinalize,
    /// The namespace in which TopoLVM was: a lease of its controller or sidecars elsewhere is not waited for. Anywhere if
    /// it is not given. Several are separated by commas.
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = namespace)]
    predecessor_namespace: Vec<String>,
}

impl Leader {
    /// What it does, once the cluster is reached.
    pub(crate) fn role(
        &self,
        cluster: &cluster::Arguments,
        connection: Connection,
        stores: Arc<Stores>,
        metrics: Arc<Metrics>,
    ) -> Role {
        Role {
            personality: cluster.personality(),
            namespace: cluster.namespace(&connection),
            connection,
            pod: self.pod.clone(),
            departure: self.node_finalize.into(),
            predecessors: self.predecessor_namespace.clone(),
            stores,
            metrics,
            socket: self.csi_socket.clone(),
        }
    }
}

/// One that no namespace can have would hold nobody up, unnoticed.
fn namespace(text: &str) -> Result<String, &'static str> {
    let is_of_a_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    match text.trim() {
        "" => Err("a namespace is missing: name one, or leave the option out"),
        name if name.chars().all(is_of_a_name) => Ok(name.to_owned()),
        _ => Err("no namespace has such a name"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NodeFinalize {
    Keep,
    Delete,
}

impl From<NodeFinalize> for Departure {
    fn from(rule: NodeFinalize) -> Departure {
        match rule {
            NodeFinalize::Keep => Departure::Keep,
            NodeFinalize::Delete => Departure::Delete,
        }
    }
}

/// Leads whenever it can, until it is told to end.
pub(crate) fn run(options: &Options) -> Result<()> {
    serving::runtime()?.block_on(async {
        let connection = options.cluster.connect().await?;
        let metrics: Arc<Metrics> = Arc::default();
        serving::health(options.health_probe_bind_address, || true, String::new).await?;
        let counted = Arc::clone(&metrics);
        serving::health(options.metrics_bind_address, || true, move || counted.text() + "# EOF\n").await?;
        let role = options.leader.role(&options.cluster, connection, Arc::default(), metrics);
        role.run(serving::told_to_end()).await;
        Ok(())
    })
}
