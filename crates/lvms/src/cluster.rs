//! What every role in a cluster needs: the way to it, and whom it stands in for.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lvms_api::Personality;
use lvms_cluster::Connection;

/// How the cluster is reached.
#[derive(Args)]
pub(crate) struct Arguments {
    /// How to reach the API server, if not as a pod does.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where our own objects are; the pod's namespace if it is not given.
    #[arg(long, value_name = "NAME", env = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    name: Name,
}

/// Whom we stand in for.
#[derive(Args)]
pub(crate) struct Name {
    /// Not empty: stand in for TopoLVM under the name that it had before 0.16.
    #[arg(long, value_name = "ANYTHING", env = "USE_LEGACY")]
    use_legacy: Option<String>,
}

impl Name {
    pub(crate) fn personality(&self) -> Personality {
        Personality::from_legacy_switch(self.use_legacy.as_deref())
    }
}

impl Arguments {
    pub(crate) async fn connect(&self) -> Result<Connection> {
        Ok(Connection::open(self.kubeconfig.as_deref()).await?)
    }

    pub(crate) fn namespace(&self, connection: &Connection) -> String {
        self.namespace.clone().unwrap_or_else(|| connection.namespace.clone())
    }

    pub(crate) fn personality(&self) -> Personality {
        self.name.personality()
    }
}
