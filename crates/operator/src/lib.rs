//! The cluster's part: what TopoLVM's controller and the CSI sidecars do, by the leader alone.
//!
//! - [`stores`]: the objects that are watched, each kind once, and of each kind what is ours.
//! - [`provision`]: a claim becomes a LogicalVolume; when its node has made it, a PersistentVolume.
//! - [`reclaim`]: a released PersistentVolume takes its LogicalVolume along.
//! - [`release`]: the second key: a LogicalVolume goes only if nothing names it any more.
//! - `question`: what is asked of the API itself, for all who ask at the time.
//! - [`orphans`]: LogicalVolumes that nothing names.
//! - [`restore`]: a PersistentVolume whose LogicalVolume is gone gets it back.
//! - [`protect`]: the source of a copy stays until the copy is there.
//! - [`resize`]: a claim that asks for more gets it.
//! - [`snapshot`]: a VolumeSnapshotContent becomes a LogicalVolume.
//! - [`capacity`]: what nodes tell becomes what the scheduler reads.
//! - [`owner`]: what made our pod, with which what is published vanishes.
//! - [`leftovers`]: what predecessors have left on claims, and nodes that leave.
//! - [`predecessor`]: TopoLVM's own controller and sidecars, which must not act beside us.
//! - [`volumes`]: the same for clients of CSI.
//! - [`limits`]: what this cluster cannot hold anybody to.
//! - [`metrics`]: what each has to do, for Prometheus.
//! - [`rollback`]: what TopoLVM could not go on with.
//! - [`role`]: all of it together, as `lvms operator` runs it.
//!
//! Each decides by a pure function and then acts; what happens next is seen through the watches, and nothing is
//! remembered between: a new leader derives all work from the objects.

pub mod capacity;
pub mod leftovers;
pub mod limits;
pub mod metrics;
pub mod orphans;
pub mod owner;
pub mod predecessor;
pub mod protect;
pub mod provision;
mod question;
pub mod reclaim;
pub mod release;
pub mod resize;
pub mod restore;
pub mod role;
pub mod rollback;
#[cfg(test)]
mod scripted;
pub mod snapshot;
pub mod stores;
pub mod volumes;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, Client};
use lvms_api::{LogicalVolume, Personality};
use lvms_cluster::slim::Node;
use lvms_cluster::{Events, pages};

use crate::question::Question;
use crate::stores::Stores;

/// What all parts of the leader's work need.
pub struct Context {
    /// For which driver.
    pub personality: Personality,
    /// The cluster.
    pub client: Client,
    /// Where our own objects are.
    pub namespace: String,
    /// What is watched.
    pub stores: Arc<Stores>,
    /// What people are told.
    pub events: Events,
    /// Which leader we are, as external-provisioner tells it in a volume's attributes.
    pub identity: String,
    /// The names of all LogicalVolumes by their LVs.
    names: Question<BTreeMap<String, String>>,
}

impl Context {
    fn logical_volumes(&self) -> Api<LogicalVolume> {
        Api::all_with(self.client.clone(), &self.personality)
    }

    /// Whether a node is gone, says the API itself.
    async fn is_gone(&self, name: &str) -> Result<bool, kube::Error> {
        if name.is_empty() || self.stores.nodes.named(name).is_some() {
            return Ok(false);
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        Ok(nodes.get_opt(name).await?.is_none())
    }

    /// The LogicalVolume of a handle. That there is none is known from the API itself.
    async fn logical_volume(
        &self,
        name: &str,
        handle: &str,
    ) -> Result<Option<Arc<LogicalVolume>>, kube::Error> {
        if let Some(known) = self.stores.by_handle(handle) {
            return Ok(Some(known));
        }
        let api = self.logical_volumes();
        let named = async |name: &str| {
            let found = api.get_opt(name).await?.filter(|volume| volume.lv() == handle);
            Ok::<_, kube::Error>(found.map(Arc::new))
        };
        if let Some(found) = named(name).await? {
            return Ok(Some(found));
        }
        // It may have another name than its PersistentVolume.
        match self.names.ask(self.all_names()).await?.get(handle) {
            Some(name) => named(name).await,
            None => Ok(None),
        }
    }

    async fn all_names(&self) -> Result<BTreeMap<String, String>, kube::Error> {
        let mut names = BTreeMap::new();
        let look = |volume: LogicalVolume| {
            names.insert(volume.lv().to_owned(), volume.name().to_owned());
            ControlFlow::<()>::Continue(())
        };
        pages::each(&self.logical_volumes(), ListParams::default(), look).await?;
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[tokio::test]
    async fn a_logical_volume_of_another_name_is_found_on_any_page_and_one_answer_serves_all() {
        let volume = |name: &str, lv: &str| {
            json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name, "uid": lv},
            })
        };
        let (context, asked) = scripted::context(move |request| {
            let page =
                |volume: Value, more: &str| (200, json!({"metadata": {"continue": more}, "items": [volume]}));
            match request {
                _ if request.contains("continue=more") => page(volume("other", "lv-2"), ""),
                _ if request.contains("logicalvolumes?") => page(volume("one", "lv-1"), "more"),
                _ if request.ends_with("/other") => (200, volume("other", "lv-2")),
                _ => (404, json!({"code": 404, "reason": "NotFound", "details": {"name": "x"}})),
            }
        })
        .await;
        let found = context.logical_volume("pvc-2", "lv-2").await.unwrap();
        assert_eq!(found.unwrap().name(), "other");
        asked.lock().unwrap().clear();
        let many = (0..9).map(|number| {
            let context = Arc::clone(&context);
            tokio::spawn(async move { context.logical_volume(&format!("pvc-{number}"), "lv-9").await })
        });
        for asking in many.collect::<Vec<_>>() {
            assert!(asking.await.unwrap().unwrap().is_none());
        }
        let lists =
            asked.lock().unwrap().iter().filter(|request| request.contains("logicalvolumes?")).count();
        assert!((2..18).contains(&lists), "{lists} pages were read for nine who asked");
    }
}
