//! `lvms operator`: the cluster's part, all of it, while it leads.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lvms_api::Personality;
use lvms_cluster::lease::{Candidate, Timing};
use lvms_cluster::{Connection, Events};
use lvms_csi::proto::controller_server::ControllerServer;
use lvms_csi::proto::identity_server::IdentityServer;
use lvms_csi::{Controller, Identity, sockets};
use tokio::task::JoinSet;
use tonic::transport::Server;

use crate::capacity::Capacity;
use crate::leftovers::{Departure, Leftovers};
use crate::metrics::Metrics;
use crate::orphans::Orphans;
use crate::owner::Owner;
use crate::predecessor::Predecessor;
use crate::protect::Protect;
use crate::provision::{Provision, identity};
use crate::question::Question;
use crate::reclaim::Reclaim;
use crate::release::Release;
use crate::resize::Resize;
use crate::restore::Restore;
use crate::snapshot::Snapshots;
use crate::stores::Stores;
use crate::volumes::{ClusterVolumes, least};
use crate::{Context, limits};

/// The cluster's part.
#[derive(Clone)]
pub struct Role {
    /// For which driver.
    pub personality: Personality,
    /// The way to the cluster.
    pub connection: Connection,
    /// Where our own objects are.
    pub namespace: String,
    /// The pod that we are, if we are one.
    pub pod: Option<String>,
    /// What becomes of the volumes of a node that leaves.
    pub departure: Departure,
    /// Namespaces in which the predecessor may be; any if there are none.
    pub predecessors: Vec<String>,
    /// What is watched while it leads is begun from this; a node in the same process looks at the same LogicalVolumes.
    pub stores: Arc<Stores>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// A socket on which the leader serves CSI's Controller service, if somebody needs it.
    pub socket: Option<PathBuf>,
}

/// What has ended is begun again after so long.
const AGAIN: Duration = Duration::from_secs(2);

/// The lease of the leader.
const LEASE: &str = "lvms-operator";

impl Role {
    /// Leads whenever it can, until `stop` ends.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let name = self.pod.clone().unwrap_or_else(|| "lvms".to_owned());
        let identity = format!("{name}_{}", uuid::Uuid::new_v4());
        let client = self.connection.client.clone();
        let mut candidate = Candidate::new(client, &self.namespace, LEASE, &identity, Timing::default());
        let led = candidate.lead(stop, || self.lead_once()).await;
        if led {
            self.let_in().await;
            candidate.release().await;
        }
    }

    /// Leads where nobody else can, whenever no predecessor can act. Without the API nobody knows that for long: the
    /// work ends then, and begins again with what the API says when it is back.
    pub async fn lead_on(self) -> Infallible {
        again_and_again(|| self.lead_once()).await
    }

    /// Does all work, with nothing in mind, as long as no predecessor can do any.
    fn lead_once(&self) -> impl Future<Output = ()> + use<> {
        let role = Role { stores: Arc::new(self.stores.anew()), ..self.clone() };
        async move {
            // Told when it ends, however it does.
            let _counted = Counted(Arc::clone(&role.metrics));
            let _listening = role.stores.listening();
            role.predecessor().kept_out(role.lead()).await;
        }
    }

    /// Gives up what keeps a predecessor from acting.
    pub async fn let_in(&self) {
        self.predecessor().let_in().await;
    }

    fn predecessor(&self) -> Predecessor {
        let client = self.connection.client.clone();
        let (events, namespaces) = (self.events(), self.predecessors.clone());
        Predecessor { personality: self.personality, client, events, namespaces }
    }

    fn events(&self) -> Events {
        let host = self.pod.as_deref().unwrap_or_default();
        Events::new(self.connection.client.clone(), self.personality.driver(), host)
    }

    /// Does all work, for ever.
    async fn lead(&self) {
        let mut tasks = JoinSet::new();
        let stores = Arc::clone(&self.stores);
        let context = Arc::new(Context {
            personality: self.personality,
            client: self.connection.client.clone(),
            namespace: self.namespace.clone(),
            stores: Arc::clone(&stores),
            events: self.events(),
            identity: identity(self.personality),
            names: Question::default(),
        });
        let owner = Owner::new(self.connection.client.clone(), &self.namespace, self.pod.as_deref());
        limits::tell(&self.connection.client).await;
        // Whoever acts is told of every object: all listen before the first is read.
        let protect = Protect::new(Arc::clone(&context));
        let provision = Provision::new(Arc::clone(&context), Arc::clone(&protect));
        let release = Release::new(Arc::clone(&context));
        let reclaim = Reclaim::new(Arc::clone(&context), Arc::clone(&release), self.departure);
        let restore = Restore::new(Arc::clone(&context));
        let orphans = Orphans::new(Arc::clone(&context), Arc::clone(&release));
        let resize = Resize::new(Arc::clone(&context));
        let snapshots = Snapshots::new(Arc::clone(&context), Arc::clone(&release), self.departure);
        let leftovers = Leftovers::new(Arc::clone(&context), self.departure);
        let capacity = Capacity::new(Arc::clone(&context), owner);
        self.metrics.count(vec![
            provision.work(),
            protect.work(),
            release.work(),
            reclaim.work(),
            restore.work(),
            orphans.work(),
            resize.work(),
            snapshots.work(),
            leftovers.work(),
            capacity.work(),
        ]);
        stores.follow(&self.connection, self.personality, &self.namespace, &mut tasks);
        stores.complete().await;
        tracing::info!(
            claims = stores.claims.all().len(),
            volumes = stores.volumes.all().len(),
            nodes = stores.lvm_nodes.all().len(),
            "all objects are known: the work begins"
        );
        if let Some(socket) = &self.socket {
            let volumes = ClusterVolumes { context: Arc::clone(&context), release: Arc::clone(&release) };
            tasks.spawn(serve(socket.clone(), self.personality, volumes));
        }
        tasks.spawn(provision.run());
        tasks.spawn(release.run());
        tasks.spawn(reclaim.run());
        tasks.spawn(protect.run());
        tasks.spawn(restore.run());
        tasks.spawn(orphans.run());
        tasks.spawn(resize.run());
        tasks.spawn(snapshots.run());
        tasks.spawn(leftovers.run());
        tasks.spawn(capacity.run());
        while let Some(ended) = tasks.join_next().await {
            tracing::error!(?ended, "a part of the leader's work has ended");
        }
    }
}

/// Acts, and acts again when that has ended.
async fn again_and_again<Act: Future<Output = ()>>(act: impl Fn() -> Act) -> Infallible {
    loop {
        act().await;
        tracing::warn!("does not lead any more");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Serves CSI's Identity and Controller services.
async fn serve(socket: PathBuf, personality: Personality, volumes: ClusterVolumes) {
    let listener = match sockets::bind(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("--csi-socket: {error:#}");
            return std::future::pending().await;
        }
    };
    let controller = Controller {
        volumes: Arc::new(volumes),
        locks: Arc::default(),
        topology_key: personality.topology_key(),
        least,
    };
    let identity =
        Identity { name: personality.driver().to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let served = Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller))
        // Its connections end with it, as leadership does.
        .serve_with_incoming_shutdown(sockets::connections(listener), std::future::pending())
        .await;
    tracing::error!(?served, "the Controller service has ended");
}

/// What the leader's work is counted by, as long as it leads.
struct Counted(Arc<Metrics>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count(Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_work_has_ended_leads_again() {
        let times = std::cell::Cell::new(0);
        let leading = again_and_again(|| {
            times.set(times.get() + 1);
            std::future::ready(())
        });
        assert!(tokio::time::timeout(3 * AGAIN, leading).await.is_err(), "it has ended");
        assert!(times.get() > 2, "it has led {} times", times.get());
    }
}
