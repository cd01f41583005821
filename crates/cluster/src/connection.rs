//! The way to the API server.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::store::WATCH;

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

/// A watch that was silent for so long has lost its server, which may have died without a word: the server itself ends
/// each sooner.
const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 15);

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
        let config = match kubeconfig {
            Some(path) => {
                let wrong = |error| NoConnection::Kubeconfig(path.display().to_string(), error);
                let file = Kubeconfig::read_from(path).map_err(wrong)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(wrong)?
            }
            None => Config::infer().await.map_err(NoConnection::Infer)?,
        };
        Connection::by(config)
    }

    fn by(mut config: Config) -> Result<Connection, NoConnection> {
        config.connect_timeout = Some(CONNECT);
        // The client would ask a busy server again for minutes, and nobody could tell: who asks knows when to ask again.
        config.default_retry = false;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use kube::{Api, Error};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::slim::Node;

    #[tokio::test]
    async fn a_server_that_is_too_busy_is_asked_once_and_whoever_asks_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let busy = Arc::new(AtomicBool::new(true));
        let is_busy = Arc::clone(&busy);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut request).await.unwrap();
                }
                let (status, body) = if is_busy.swap(false, Ordering::SeqCst) {
                    ("503 x\r\nretry-after: 1", "")
                } else {
                    ("200 x", r#"{"metadata": {"name": "n"}}"#)
                };
                let head =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
                stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
            }
        });
        let connection = Connection::by(Config::new(url.parse().unwrap())).unwrap();
        for client in [connection.client, connection.watching] {
            busy.store(true, Ordering::SeqCst);
            let nodes: Api<Node> = Api::all(client);
            let answer = nodes.get("n").await;
            assert!(matches!(&answer, Err(Error::Api(status)) if status.code == 503), "{answer:?}");
            assert_eq!(nodes.get("n").await.unwrap().metadata.name.as_deref(), Some("n"));
        }
    }
}
