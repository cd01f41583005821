//! The way to the API server.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// The way to the API server.
#[derive(Clone)]
pub struct Connection {
    /// For requests, which are answered soon or not at all.
    pub client: Client,
    /// For watches, which may be silent for long.
    pub watching: Client,
    /// The namespace that we are in.
    pub namespace: String,
}

/// A request that was not answered after so long was not heard.
const ANSWER: Duration = Duration::from_secs(30);

/// A watch that was silent for so long has lost its server: the server itself ends each sooner.
const SILENCE: Duration = Duration::from_secs(270);

/// A server that cannot be reached after so long is not there.
const CONNECT: Duration = Duration::from_secs(5);

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum NoConnection {
    /// The file that tells the way is missing or wrong.
    #[error("--kubeconfig {0}")]
    Kubeconfig(String, #[source] kube::config::KubeconfigError),
    /// Neither a service account nor a file tells the way.
    #[error("there is no way to a cluster: run in a pod, or give --kubeconfig")]
    Infer(#[source] kube::config::InferConfigError),
    /// The way that was told cannot be gone.
    #[error("the way to the cluster is wrong")]
    Client(#[source] kube::Error),
}

impl Connection {
    /// As a file says, or a pod's service account, or a person's own configuration.
    pub async fn open(kubeconfig: Option<&Path>) -> Result<Connection, NoConnection> {
        let mut config = match kubeconfig {
            Some(path) => {
                let wrong = |error| NoConnection::Kubeconfig(path.display().to_string(), error);
                let file = Kubeconfig::read_from(path).map_err(wrong)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(wrong)?
            }
            None => Config::infer().await.map_err(NoConnection::Infer)?,
        };
        config.connect_timeout = Some(CONNECT);
        let namespace = config.default_namespace.clone();
        config.reset_reader_on_write = true;
        config.read_timeout = Some(SILENCE);
        let watching = Client::try_from(config.clone()).map_err(NoConnection::Client)?;
        config.read_timeout = Some(ANSWER);
        config.write_timeout = Some(ANSWER);
        let client = Client::try_from(config).map_err(NoConnection::Client)?;
        Ok(Connection { client, watching, namespace })
    }
}
