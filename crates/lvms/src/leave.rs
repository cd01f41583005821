//! `lvms leave`: this node's driver goes, and another may come. Run in the place of a node's part before that is
//! removed for good.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lvms_node::registration::Plugin;

use crate::cluster;
use crate::serving::{self, Address};

/// Which driver, of which kubelet.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    name: cluster::Name,
    /// The kubelet's directory.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where to serve health (/healthz, /readyz), as address:port; 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    metrics_bind_address: Address,
}

/// Is ready when it has left, and waits until it is told to end: mounted volumes stay mounted.
pub(crate) fn run(options: &Options) -> Result<()> {
    let plugin = Plugin::of(&options.kubelet_dir, options.name.personality());
    plugin
        .leave()
        .with_context(|| format!("the socket in {} cannot be removed", plugin.directory.display()))?;
    tracing::info!(driver = plugin.driver, "has left the kubelet");
    serving::runtime()?.block_on(async {
        serving::health(options.metrics_bind_address, || true, String::new).await?;
        serving::told_to_end().await;
        Ok(())
    })
}
