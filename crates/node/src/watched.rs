//! What a node watches: the LogicalVolumes that are its own, and whether the kubelet knows its driver.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use lvms_api::{LogicalVolume, Personality};
use lvms_cluster::Store;
use lvms_cluster::slim::CsiNode;
use lvms_cluster::store::{self, Keep};
use tokio::sync::watch;

/// Follows the LogicalVolumes of a node for ever. Where the definition has selectable fields the API server sends no
/// others; where it has not (an older API server, or another product has applied its own definition) they are left out
/// while they are read, until the definition changes.
pub async fn own_volumes(
    store: Arc<Store<LogicalVolume>>,
    client: Client,
    personality: Personality,
    node: String,
) {
    let api: Api<LogicalVolume> = Api::all_with(client.clone(), &personality);
    let name = node.clone();
    let keep: Keep<LogicalVolume> = Box::new(move |object| object.spec.node_name == name);
    loop {
        let selected = store::config().fields(&format!("spec.nodeName={node}"));
        store.follow_stream(watcher(api.clone(), selected), &keep, is_unknown_field).await;
        tracing::info!("LogicalVolumes cannot be selected by their node: all are read");
        tokio::select! {
            _ = store.follow_stream(watcher(api.clone(), store::config()), &keep, |_| false) => {}
            () = can_be_selected(&api, &client, personality, &node) => {}
        }
    }
}

/// Whether the API server does not know the field by which was selected.
fn is_unknown_field(error: &watcher::Error) -> bool {
    if let watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status) = error
    {
        return status.code == 400;
    }
    false
}

/// The API server serves a changed definition a moment after it tells of it: so often, and so far apart, is asked.
const ASKED: (u32, Duration) = (12, Duration::from_secs(5));

/// Ends when the API server selects LogicalVolumes by their node.
async fn can_be_selected(api: &Api<LogicalVolume>, client: &Client, personality: Personality, node: &str) {
    let selected = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(1);
    loop {
        for _ in 0..ASKED.0 {
            tokio::time::sleep(ASKED.1).await;
            if api.list(&selected).await.is_ok() {
                return;
            }
        }
        definition_changed(client.clone(), personality).await;
    }
}

/// Ends when somebody has changed the definition of LogicalVolumes.
async fn definition_changed(client: Client, personality: Personality) {
    let name = format!("{}.{}", LogicalVolume::plural(&personality), personality.driver());
    let definitions: Arc<Store<PartialObjectMeta<CustomResourceDefinition>>> = Arc::default();
    let config = store::config().fields(&format!("metadata.name={name}"));
    let follow = Arc::clone(&definitions).follow(Api::all(client), config, Box::new(|_| true));
    let changed = async {
        let generation = |definitions: &Store<PartialObjectMeta<CustomResourceDefinition>>| {
            definitions.named(&name).and_then(|definition| definition.metadata.generation)
        };
        definitions.complete().await;
        let first = generation(&definitions);
        definitions.until(|definitions| (generation(definitions) != first).then_some(())).await;
    };
    tokio::select! {
        () = follow => {}
        () = changed => {}
    }
}

/// Follows whether the kubelet of a node has written a driver into its CSINode; `None` until that is known.
pub async fn driver_known(
    client: Client,
    driver: String,
    node: String,
    known: Arc<watch::Sender<Option<bool>>>,
) {
    let store: Arc<Store<CsiNode>> = Arc::default();
    let told = Arc::clone(&known);
    store.listen(move |_, now| {
        let there = now.is_some_and(|node| node.spec.drivers.iter().any(|present| present.name == driver));
        told.send_if_modified(|known| known.replace(there) != Some(there));
    });
    let read = async {
        store.complete().await;
        // Without an object nobody has told anything.
        known.send_if_modified(|known| known.is_none() && known.replace(false).is_none());
    };
    let config = store::config().fields(&format!("metadata.name={node}"));
    tokio::join!(read, Arc::clone(&store).follow(Api::all(client), config, Box::new(|_| true)));
}
