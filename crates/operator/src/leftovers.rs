//! What predecessors have left on other people's objects: finalizers of claims that nobody removes any more, and the
//! finalizer of a node that leaves.

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, ResourceExt};
use lvms_api::names::OLD_CLAIM_FINALIZERS;
use lvms_api::names::kubernetes::SELECTED_NODE;
use lvms_api::{LogicalVolume, LvmNode};
use lvms_cluster::slim::{Claim, Node, annotation, has_finalizer};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, is_not_found, passes};
use lvms_cluster::{Key, Outcome, Reference, Work};
use serde_json::json;

use crate::Context;

const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

const AT_ONCE: usize = 4;

/// What becomes of the volumes of a node that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Departure {
    /// Claims and objects are kept, and it is told: the node, or its disks, may come back.
    #[default]
    Keep,
    /// They are deleted, as TopoLVM does.
    Delete,
}

/// What has to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// A claim with an old finalizer.
    Claim(Key),
    /// A node that leaves.
    Node(String),
    /// A node that has left.
    Gone(String),
}

/// Clears up after predecessors.
pub struct Leftovers {
    context: Arc<Context>,
    departure: Departure,
    work: Arc<Work<Item>>,
}

impl Leftovers {
    /// Is told by claims and nodes.
    pub fn new(context: Arc<Context>, departure: Departure) -> Leftovers {
        let work: Arc<Work<Item>> = Work::new("leftovers", PATIENCE);
        let told = Arc::clone(&work);
        context.stores.claims.listen(move |_, now| {
            if let Some(claim) = now
                && OLD_CLAIM_FINALIZERS.iter().any(|old| has_finalizer(&claim.metadata, old))
            {
                told.add(Item::Claim(Key::of(claim.as_ref())));
            }
        });
        let (told, finalizer) = (Arc::clone(&work), context.personality.node_finalizer());
        context.stores.nodes.listen(move |before, now| match (before, now) {
            (Some(before), None) => told.add(Item::Gone(before.name_any())),
            (_, Some(node))
                if node.metadata.deletion_timestamp.is_some()
                    && has_finalizer(&node.metadata, &finalizer) =>
            {
                told.add(Item::Node(node.name_any()));
            }
            _ => {}
        });
        // A node may have gone while nobody led.
        let told = Arc::clone(&work);
        context.stores.lvm_nodes.listen(move |before, now| {
            if let (None, Some(node)) = (before, now) {
                told.add(Item::Gone(node.name().to_owned()));
            }
        });
        Leftovers { context, departure, work }
    }

    /// What waits.
    pub fn work(&self) -> Arc<Work<Item>> {
        Arc::clone(&self.work)
    }

    /// Clears up for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    async fn strip(&self, key: &Key) -> Result<(), kube::Error> {
        let Some(claim) = self.context.stores.claims.get(key) else { return Ok(()) };
        tracing::info!(claim = %key, "an old finalizer is removed");
        let api: Api<Claim> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let change = write::finalizers_without(claim.as_ref(), &OLD_CLAIM_FINALIZERS);
        let changed = write::change(&api, claim.as_ref(), change).await?;
        if changed.metadata.deletion_timestamp.is_none() {
            self.context.stores.claims.answered(changed);
        }
        Ok(())
    }

    async fn depart(&self, name: &str) -> Result<(), kube::Error> {
        let Some(node) = self.context.stores.nodes.named(name) else { return Ok(()) };
        let volumes = self.context.stores.volumes.filter(|volume| volume.spec.node_name == name);
        tracing::info!(node = name, volumes = volumes.len(), departure = ?self.departure, "a node leaves");
        match self.departure {
            Departure::Keep => {
                for volume in &volumes {
                    let about = Reference::to(volume.as_ref(), &self.context.personality);
                    let told =
                        format!("node {name} has left the cluster: its volumes and their claims are kept");
                    self.context.events.warn(about, "NodeGone", told);
                }
            }
            Departure::Delete => {
                self.delete_claims(name).await?;
                for volume in &volumes {
                    self.give_up(volume).await?;
                }
            }
        }
        let api: Api<Node> = Api::all(self.context.client.clone());
        let change = write::finalizers_without(node.as_ref(), &[&self.context.personality.node_finalizer()]);
        write::change(&api, node.as_ref(), change).await?;
        Ok(())
    }

    /// What a node that is gone has told of itself does not hold any more.
    async fn forget(&self, name: &str) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let told = self.context.stores.lvm_nodes.find(|told| told.name() == name);
        let Some(told) = told.filter(|_| self.context.stores.nodes.named(name).is_none()) else {
            return Ok(());
        };
        if nodes.get_opt(name).await?.is_some() {
            return Ok(());
        }
        tracing::info!(node = name, "a node is gone: its LVMNode goes with it");
        let api: Api<LvmNode> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        write::delete(&api, name, told.metadata.uid.as_deref().unwrap_or_default()).await.map(drop)
    }

    async fn delete_claims(&self, node: &str) -> Result<(), kube::Error> {
        let stores = &self.context.stores;
        let ours = stores.claims.filter(|claim| {
            annotation(&claim.metadata, SELECTED_NODE) == Some(node)
                && claim.class().is_some_and(|class| stores.classes.named(class).is_some())
        });
        for claim in ours {
            let api: Api<Claim> =
                Api::namespaced(self.context.client.clone(), &claim.namespace().unwrap_or_default());
            write::delete(&api, &claim.name_any(), claim.uid()).await?;
        }
        Ok(())
    }

    /// Lets a LogicalVolume go whose LV is on a disk that is gone.
    async fn give_up(&self, volume: &LogicalVolume) -> Result<(), kube::Error> {
        let api = self.context.logical_volumes();
        let mut change = write::finalizers_without(volume, &[&self.context.personality.volume_finalizer()]);
        change["metadata"]["annotations"] = json!({ self.context.personality.pending_deletion(): "true" });
        match write::change(&api, volume, change).await {
            Err(error) if is_not_found(&error) => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        write::delete(&api, volume.name(), volume.uid()).await.map(drop)
    }
}

impl Looks<Item> for Leftovers {
    async fn look(&self, item: &Item) -> Outcome {
        let done = match item {
            Item::Claim(key) => self.strip(key).await,
            Item::Node(name) => self.depart(name).await,
            Item::Gone(name) => self.forget(name).await,
        };
        match done {
            Ok(()) => Outcome::Done,
            Err(error) => passes(&error).unwrap_or_else(|| {
                tracing::warn!(?item, error = %chain(&error), "what a predecessor has left is still there");
                Outcome::Failed
            }),
        }
    }
}
