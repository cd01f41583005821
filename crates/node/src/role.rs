//! `lvms vgmanager`: this node's part of the cluster, all of it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use lvms_api::{LogicalVolume, Personality};
use lvms_cluster::{Connection, Events, Store};
use lvms_csi::proto::identity_server::IdentityServer;
use lvms_csi::proto::node_server::NodeServer;
use lvms_csi::{Identity, Node, sockets};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::Server;

use crate::host_volumes::HostVolumes;
use crate::metrics::Metrics;
use crate::registration::Plugin;
use crate::report::Report;
use crate::telemetry::Telemetry;
use crate::volumes::{LongWorks, Volumes};
use crate::watched::{driver_known, own_volumes};

/// This node's part.
pub struct Role {
    /// For which driver.
    pub personality: Personality,
    /// The node's name.
    pub node: String,
    /// The way to the cluster.
    pub connection: Connection,
    /// Where LVMNodes are.
    pub namespace: String,
    /// The kubelet's directory, alike inside the pod and on the host.
    pub kubelet: PathBuf,
    /// The host.
    pub host: Arc<HostVolumes>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// All LogicalVolumes, if somebody in this process watches them already.
    pub watched: Option<Arc<Store<LogicalVolume>>>,
    /// The version that is told to clients.
    pub version: &'static str,
}

impl Role {
    /// Serves until `stop` ends. `registered` is told whether the kubelet has taken us.
    pub async fn run(
        self,
        registered: Arc<watch::Sender<bool>>,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let Role { personality, node, connection, namespace, kubelet, host, metrics, watched, version } =
            self;
        let objects = watched.clone().unwrap_or_default();
        let locks = Arc::clone(&host.locks);
        let volumes = Arc::new(Volumes {
            personality,
            node: node.clone(),
            client: connection.client.clone(),
            objects: Arc::clone(&objects),
            events: Events::new(connection.client.clone(), &format!("{}-node", personality.driver()), &node),
            host: Arc::clone(&host),
            locks: Arc::clone(&locks),
            long: LongWorks::default(),
        });
        let work = volumes.work();
        metrics.count(work.clone());
        let report = Report {
            client: connection.client.clone(),
            namespace,
            node: node.clone(),
            host: Arc::clone(&host),
            objects: Arc::clone(&objects),
            metrics: Arc::clone(&metrics),
        };
        let plugin = Plugin::of(&kubelet, personality);
        let socket = plugin.endpoint.clone();
        // Two drivers on one node would both make what LogicalVolumes ask for.
        let mut stop = std::pin::pin!(stop);
        tokio::select! {
            () = sockets::vacated(&socket) => {}
            () = &mut stop => return Ok(()),
        }
        let listener = sockets::bind(&socket)?;
        let known = Arc::new(watch::Sender::new(None));
        let mut tasks = JoinSet::new();
        let watching = &connection.watching;
        if watched.is_none() {
            tasks.spawn(own_volumes(objects, watching.clone(), personality, node.clone()));
        }
        let driver = personality.driver().to_owned();
        tasks.spawn(driver_known(watching.clone(), driver, node.clone(), Arc::clone(&known)));
        tasks.spawn(volumes.run(work));
        tasks.spawn(report.run(Arc::new(watch::Sender::new(None))));
        // The kubelet asks who we are as soon as it sees the socket: CSI is served before.
        tasks.spawn(plugin.register(known.subscribe(), registered));
        let topology = (personality.topology_key(), node.clone());
        let identity = Identity { name: personality.driver().to_owned(), version: version.to_owned() };
        tracing::info!(socket = %socket.display(), node, driver = personality.driver(), "serves");
        let telemetry = Telemetry::new(metrics);
        let (stop, all_ended) = telemetry.ending(stop);
        let served = Server::builder()
            .layer(telemetry)
            .add_service(IdentityServer::new(identity))
            .add_service(NodeServer::new(Node { volumes: host, locks, id: node, topology }))
            .serve_with_incoming_shutdown(sockets::connections(listener), stop);
        tokio::select! {
            served = served => Ok(served?),
            () = all_ended => Ok(()),
            // Whoever starts us again is better than a node that does half of its work.
            ended = tasks.join_next() => bail!("a part of this node's work has ended: {ended:?}"),
        }
    }
}
