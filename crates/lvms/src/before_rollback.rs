//! `lvms before-rollback`: what TopoLVM could not go on with. Run where the cluster can be reached, as in a pod of the
//! operator.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lvms_operator::rollback;

use crate::{cluster, serving};

/// Which cluster.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cluster: cluster::Arguments,
}

/// Prints a line for each. The exit code is 0 only if there is none.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let found = serving::runtime()?.block_on(async {
        let connection = options.cluster.connect().await?;
        let namespace = options.cluster.namespace(&connection);
        let (client, personality) = (&connection.client, options.cluster.personality());
        rollback::look(client, personality, &namespace).await.context("volumes and nodes cannot be listed")
    })?;
    for finding in &found {
        println!("{} on {}: {}", finding.volume, finding.node, finding.trouble);
    }
    if found.is_empty() {
        println!("TopoLVM can go on with all volumes and snapshots");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
