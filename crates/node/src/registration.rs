//! The kubelet is told of us: it watches a directory for sockets, asks each for its driver, and writes the driver into
//! the CSINode object of its node.
//!
//! The kubelet unregisters by the driver's name whichever socket disappears, also a predecessor's. So a predecessor's
//! is removed first, ours is removed only when we leave for good, and when our entry vanishes from the CSINode the socket is made again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use lvms_api::Personality;
use lvms_csi::registration::registration_server::{Registration, RegistrationServer};
use lvms_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use lvms_csi::sockets;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// What the kubelet shall know.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The driver's name.
    pub driver: String,
    /// The socket on which it serves CSI, as the kubelet sees it.
    pub endpoint: PathBuf,
    /// The directory that the kubelet watches.
    pub directory: PathBuf,
}

/// A kubelet that has not answered after so long has not seen the socket.
const PATIENCE: Duration = Duration::from_secs(60);

/// A missing entry in the CSINode is believed after so long.
const DOUBT: Duration = Duration::from_secs(3);

/// One that should be there and was never seen has come and gone unseen, if it does not come in so long.
const UNSEEN: Duration = Duration::from_secs(30);

/// After a refusal the socket is made again after so long, and later at the most after [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

impl Plugin {
    /// The driver of a kubelet that has this directory. CSI is served where TopoLVM does it.
    pub fn of(kubelet: &Path, personality: Personality) -> Plugin {
        let driver = personality.driver();
        Plugin {
            driver: driver.to_owned(),
            endpoint: kubelet.join("plugins").join(driver).join("node").join("csi-topolvm.sock"),
            directory: kubelet.join("plugins_registry"),
        }
    }

    /// Ours. Its name contains an `@`: the kubelet sends the path as the authority of its request, and what is before
    /// an `@` is not taken for the name of a host, which could not contain `%2F`.
    fn socket(&self) -> PathBuf {
        self.directory.join(format!("{}@reg.sock", self.driver))
    }

    /// That of node-driver-registrar.
    fn predecessor(&self) -> PathBuf {
        self.directory.join(format!("{}-reg.sock", self.driver))
    }

    /// Takes the driver out of the kubelet: it unregisters a driver whose socket disappears, and takes no other one's
    /// socket for the same driver before.
    pub fn leave(&self) -> std::io::Result<()> {
        sockets::remove(&self.socket())
    }

    /// Serves for ever. `known` tells whether the driver is in the CSINode, if that can be seen; `registered` is told
    /// whether the kubelet has taken us.
    pub async fn register(
        self,
        mut known: watch::Receiver<Option<bool>>,
        registered: Arc<watch::Sender<bool>>,
    ) {
        let mut pause = FIRST;
        loop {
            let (told, mut answers) = watch::channel(None);
            let serving = match self.serve(told) {
                Ok(serving) => serving,
                Err(error) => {
                    tracing::error!("the kubelet cannot be told of us: {error:#}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST);
                    continue;
                }
            };
            let answer = tokio::time::timeout(PATIENCE, answers.wait_for(Option::is_some)).await;
            match answer.ok().and_then(|answer| answer.ok().and_then(|answer| answer.clone())) {
                Some(Ok(())) => {
                    registered.send_replace(true);
                    pause = FIRST;
                    unknown_again(&mut known, &mut answers).await;
                    tracing::warn!(driver = self.driver, "the kubelet does not know us any more");
                }
                Some(Err(error)) => {
                    tracing::error!(driver = self.driver, error, "the kubelet refuses us");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST);
                }
                None => tracing::warn!(driver = self.driver, "the kubelet has not asked who we are"),
            }
            registered.send_replace(false);
            // The new socket takes the old one's place: it does not disappear.
            serving.abort();
        }
    }

    fn serve(&self, told: watch::Sender<Option<Result<(), String>>>) -> Result<JoinHandle<()>> {
        let predecessor = self.predecessor();
        sockets::remove(&predecessor).with_context(|| predecessor.display().to_string())?;
        let listener = sockets::bind(&self.socket())?;
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.driver.clone(),
            endpoint: path_text(&self.endpoint),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        let service = RegistrationServer::new(Answers { info, told });
        let serving = Server::builder().add_service(service);
        Ok(tokio::spawn(async move {
            if let Err(error) = serving.serve_with_incoming(sockets::connections(listener)).await {
                tracing::error!(%error, "registration is not served any more");
            }
        }))
    }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Waits until we are not known any more, or the kubelet says so.
async fn unknown_again(
    known: &mut watch::Receiver<Option<bool>>,
    answers: &mut watch::Receiver<Option<Result<(), String>>>,
) {
    let refused = answers.wait_for(|answer| matches!(answer, Some(Err(_))));
    tokio::select! {
        _ = refused => {}
        () = gone(known) => {}
    }
}

/// Waits until our entry is gone from the CSINode.
async fn gone(known: &mut watch::Receiver<Option<bool>>) {
    // Without a cluster to look at, nothing is known.
    if known.wait_for(Option::is_some).await.is_err() {
        return std::future::pending().await;
    }
    let mut patience = UNSEEN;
    loop {
        let seen = tokio::time::timeout(patience, known.wait_for(|known| *known == Some(true))).await;
        let Ok(is_seen) = seen.map(|seen| seen.is_ok()) else { return };
        if !is_seen || known.wait_for(|known| *known != Some(true)).await.is_err() {
            return std::future::pending().await;
        }
        // A kubelet that registers us again takes the entry out for a moment.
        patience = DOUBT;
    }
}

struct Answers {
    info: PluginInfo,
    told: watch::Sender<Option<Result<(), String>>>,
}

#[tonic::async_trait]
impl Registration for Answers {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = self.info.name, "registered with the kubelet");
        }
        let answer = if status.plugin_registered { Ok(()) } else { Err(status.error) };
        self.told.send_replace(Some(answer));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_leaves_takes_its_own_socket_away_and_no_other() {
        let kubelet = std::env::temp_dir().join(format!("lvms-leave-{}", std::process::id()));
        let plugin = Plugin::of(&kubelet, Personality::Topolvm);
        plugin.leave().unwrap();
        let _ours = sockets::bind(&plugin.socket()).unwrap();
        let _others = sockets::bind(&plugin.predecessor()).unwrap();
        plugin.leave().unwrap();
        assert!(!plugin.socket().exists() && plugin.predecessor().exists());
        std::fs::remove_dir_all(kubelet).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_that_is_gone_for_a_moment_is_not_believed_to_be_gone() {
        let (entry, mut known) = watch::channel(Some(true));
        let (_told, mut answers) = watch::channel(Some(Ok(())));
        let waiting = tokio::spawn(async move { unknown_again(&mut known, &mut answers).await });
        entry.send_replace(Some(false));
        tokio::time::sleep(Duration::from_secs(1)).await;
        entry.send_replace(Some(true));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        entry.send_replace(Some(false));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(waiting.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_that_came_and_went_unseen_is_missed() {
        let (entry, mut known) = watch::channel(None);
        let (_told, mut answers) = watch::channel(Some(Ok(())));
        let waiting = tokio::spawn(async move { unknown_again(&mut known, &mut answers).await });
        tokio::time::sleep(Duration::from_secs(600)).await;
        entry.send_replace(Some(false));
        // It may be told of later than the kubelet answers.
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!waiting.is_finished());
        tokio::time::sleep(UNSEEN).await;
        assert!(waiting.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn where_entries_cannot_be_seen_none_is_missed() {
        let (_entry, mut known) = watch::channel(None);
        let (told, mut answers) = watch::channel(Some(Ok(())));
        let waiting = tokio::spawn(async move { unknown_again(&mut known, &mut answers).await });
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!waiting.is_finished());
        told.send_replace(Some(Err("no".to_owned())));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(waiting.is_finished());
    }
}
