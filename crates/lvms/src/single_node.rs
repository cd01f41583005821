//! `lvms single-node`: a cluster's part and its only node's, in one process. One watch of LogicalVolumes serves both, and
//! the host's lock stands for a lease. The node's part goes on whether the cluster's may act or not.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::Args;
use lvms_operator::metrics::Metrics;
use lvms_operator::stores::Stores;
use tokio::sync::watch;

use crate::{operator, serving, vgmanager};

/// How it is run.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    node: vgmanager::Options,
    #[command(flatten)]
    leader: operator::Leader,
}

/// Serves and leads until it is told to end.
pub(crate) fn run(options: &Options) -> Result<()> {
    let host = options.node.host.open_in_any_case()?;
    serving::runtime()?.block_on(async {
        let cluster = &options.node.cluster;
        let connection = cluster.connect().await?;
        let metrics: Arc<Metrics> = Arc::default();
        let stores = Arc::new(Stores { are_volumes_followed: true, ..Stores::default() });
        let leader =
            options.leader.role(cluster, connection.clone(), Arc::clone(&stores), Arc::clone(&metrics));
        let registered = Arc::new(watch::Sender::new(false));
        let watched = Some(Arc::clone(&stores.volumes));
        let watching = stores.follow_volumes(&connection, cluster.personality());
        let node = options.node.role(&host, connection, watched, &registered, move || metrics.text()).await?;
        let lvmd = options.node.host.lvmd(&host, &node.metrics)?;
        let (leading, leads) = (leader.clone(), leader.lead_on());
        let served = tokio::select! {
            served = async { tokio::try_join!(node.run(registered, serving::told_to_end()), lvmd) } => served.map(drop),
            never = leads => match never {},
            // Whoever starts us again is better than a node that is told nothing.
            () = watching => Err(anyhow!("the watch of LogicalVolumes has ended")),
        };
        leading.let_in().await;
        served
    })
}
