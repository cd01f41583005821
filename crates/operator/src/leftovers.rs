//! What predecessors have left on other people's objects: finalizers of claims that nobody removes any more, and the
//! finalizer of a node that leaves. And what nodes leave behind: their volumes.
//!
//! Nothing of ours keeps a Node from going. That one has left is seen by what names it: LogicalVolumes, and its LVMNode,
//! which goes last.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, ResourceExt};
use lvms_api::names::OLD_CLAIM_FINALIZERS;
use lvms_api::names::kubernetes::SELECTED_NODE;
use lvms_api::{LogicalVolume, LvmNode, Personality};
use lvms_cluster::slim::{Claim, ClaimReference, ClaimSpec, ClaimStatus, Node, annotation, has_finalizer};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, is_not_found, passes};
use lvms_cluster::{Key, Outcome, Reference, Work};
use serde_json::json;

use crate::Context;

const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

const AT_ONCE: usize = 4;

/// A node may have had a thousand volumes, and more events at once than can wait are lost: who finds no room for its own
/// comes again after this.
const COMES_AGAIN: Duration = Duration::from_secs(1);

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
    /// A LogicalVolume, whose node may have left.
    Volume(String),
}

/// What becomes of the volumes of a node that is not there.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// They are kept, and people are told.
    Kept,
    /// They are deleted, and their claims with them.
    Deleted,
}

/// Whether a node has told of itself. An LVMNode that was restored from a backup has no status before its node is there.
fn has_told_of_itself(told: Option<&LvmNode>) -> bool {
    told.is_some_and(|told| told.status.is_some())
}

/// A node that has not told of itself was never seen in this cluster, or all of its volumes are deleted: in a cluster that
/// was restored from a backup it has perhaps not joined yet.
fn fate(departure: Departure, has_told_of_itself: bool) -> Fate {
    match departure {
        Departure::Delete if has_told_of_itself => Fate::Deleted,
        Departure::Delete | Departure::Keep => Fate::Kept,
    }
}

/// What people are told about a volume whose node has left.
fn told_of(volume: &LogicalVolume, personality: Personality) -> String {
    let (node, lv) = (&volume.spec.node_name, volume.lv());
    if volume.is_deleted() {
        let (kind, name) = (format!("logicalvolumes.{}", personality.driver()), volume.name());
        return format!(
            "node {node} has left the cluster: the logical volume {lv} is removed when a node of that name is back with \
             its disks; if none will be, let it go: kubectl patch {kind} {name} --type=merge --patch \
             '{{\"metadata\":{{\"finalizers\":null}}}}'"
        );
    }
    format!(
        "node {node} has left the cluster: the logical volume {lv} on its disks and the claim are kept, and can be used \
         when a node of that name is back with its disks; if none will be, delete the claim"
    )
}

/// The claim that a volume is bound to, or was, to tell of it.
fn claim_at(reference: &ClaimReference) -> Claim {
    let metadata = ObjectMeta {
        namespace: Some(reference.namespace.clone()),
        name: Some(reference.name.clone()),
        uid: Some(reference.uid.clone()),
        ..ObjectMeta::default()
    };
    Claim { metadata, spec: ClaimSpec::default(), status: ClaimStatus::default() }
}

/// Clears up after predecessors.
pub struct Leftovers {
    context: Arc<Context>,
    departure: Departure,
    work: Arc<Work<Item>>,
}

impl Leftovers {
    /// Is told by claims, nodes, and what nodes have left behind.
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
        let told = Arc::clone(&work);
        context.stores.volumes.listen(move |before, now| {
            if let Some(volume) = now
                && before.is_none_or(|before| volume.is_deleted() && !before.is_deleted())
            {
                told.add(Item::Volume(volume.name().to_owned()));
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

    /// Lets a node go that a predecessor has put its finalizer on.
    async fn depart(&self, name: &str) -> Result<(), kube::Error> {
        let Some(node) = self.context.stores.nodes.named(name) else { return Ok(()) };
        tracing::info!(node = name, departure = ?self.departure, "a node leaves");
        if self.departure == Departure::Delete {
            self.delete_volumes(name).await?;
        }
        let api: Api<Node> = Api::all(self.context.client.clone());
        let change = write::finalizers_without(node.as_ref(), &[&self.context.personality.node_finalizer()]);
        write::change(&api, node.as_ref(), change).await?;
        Ok(())
    }

    /// Decides on what a node has left behind. What it has told of itself goes last: whoever leads after us needs it.
    async fn leave(&self, name: &str) -> Result<(), kube::Error> {
        if !self.context.is_gone(name).await? {
            return Ok(());
        }
        let told = self.context.stores.lvm_nodes.find(|told| told.name() == name);
        match fate(self.departure, has_told_of_itself(told.as_deref())) {
            Fate::Deleted => self.delete_volumes(name).await?,
            Fate::Kept => {
                for volume in self.context.stores.volumes.filter(|volume| volume.spec.node_name == name) {
                    self.work.add(Item::Volume(volume.name().to_owned()));
                }
            }
        }
        let Some(told) = told else { return Ok(()) };
        tracing::info!(node = name, "a node is gone: its LVMNode goes with it");
        let api: Api<LvmNode> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        write::delete(&api, name, told.metadata.uid.as_deref().unwrap_or_default()).await.map(drop)
    }

    /// Tells whoever looks at a volume, or waits for its end, that its node has left.
    async fn tell(&self, name: &str) -> Result<(), kube::Error> {
        let stores = &self.context.stores;
        let Some(volume) = stores.volumes.named(name) else { return Ok(()) };
        let node = &volume.spec.node_name;
        if !self.context.is_gone(node).await? {
            return Ok(());
        }
        let told = stores.lvm_nodes.find(|told| told.name() == node);
        if fate(self.departure, has_told_of_itself(told.as_deref())) == Fate::Deleted {
            return Ok(());
        }
        let told = told_of(&volume, self.context.personality);
        let say = |about: Reference| self.context.events.warn(about, "NodeGone", told.clone());
        say(Reference::to(volume.as_ref(), &self.context.personality));
        let driver = self.context.personality.driver();
        if let Some(named) = stores.persistent.find(|named| named.handle(driver) == Some(volume.lv())) {
            say(Reference::to(named.as_ref(), &()));
            if let Some(claim) = &named.spec.claim_ref {
                say(Reference::to(&claim_at(claim), &()));
            }
        }
        Ok(())
    }

    /// Deletes the claims and the LogicalVolumes of a node, as TopoLVM does.
    async fn delete_volumes(&self, node: &str) -> Result<(), kube::Error> {
        let volumes = self.context.stores.volumes.filter(|volume| volume.spec.node_name == node);
        tracing::info!(node, volumes = volumes.len(), "a node has left: its claims and volumes are deleted");
        self.delete_claims(node).await?;
        for volume in &volumes {
            self.give_up(volume).await?;
        }
        Ok(())
    }

    async fn delete_claims(&self, node: &str) -> Result<(), kube::Error> {
        let stores = &self.context.stores;
        let label = self.context.personality.topology_key();
        // A copy is where its source is, whatever the scheduler has chosen.
        let is_there = |claim: &Claim| match claim.spec.volume_name.as_str() {
            "" => annotation(&claim.metadata, SELECTED_NODE) == Some(node),
            bound => stores.persistent.named(bound).is_some_and(|volume| volume.node(&label) == Some(node)),
        };
        let ours = stores.claims.filter(|claim| {
            is_there(claim) && claim.class().is_some_and(|class| stores.classes.named(class).is_some())
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

impl Leftovers {
    /// Tells of what the API does not take where people look; of a node that has left only the log can.
    fn tell_of_refusal(&self, item: &Item, error: &kube::Error) {
        let (stores, error) = (&self.context.stores, chain(error));
        let about = match item {
            Item::Claim(key) => {
                let claim = stores.claims.get(key);
                claim.map(|claim| (Reference::to(claim.as_ref(), &()), "FinalizerKept"))
            }
            Item::Node(name) => {
                let node = stores.nodes.named(name);
                node.map(|node| (Reference::to(node.as_ref(), &()), "NodeGone"))
            }
            Item::Gone(_) => None,
            Item::Volume(name) => {
                let volume = stores.volumes.named(name);
                volume.map(|volume| (Reference::to(volume.as_ref(), &self.context.personality), "NodeGone"))
            }
        };
        match about {
            Some((about, reason)) => {
                let told = format!("what is left behind could not be dealt with: {error}");
                self.context.events.warn(about, reason, told);
            }
            None => tracing::warn!(?item, error, "what was left behind is still there"),
        }
    }
}

impl Looks<Item> for Leftovers {
    async fn look(&self, item: &Item) -> Outcome {
        let done = match item {
            Item::Claim(key) => self.strip(key).await,
            Item::Node(name) => self.depart(name).await,
            Item::Gone(name) => self.leave(name).await,
            Item::Volume(_) if !self.context.events.has_room() => return Outcome::After(COMES_AGAIN),
            Item::Volume(name) => self.tell(name).await,
        };
        match done {
            Ok(()) => Outcome::Done,
            Err(error) => passes(&error).unwrap_or_else(|| {
                self.tell_of_refusal(item, &error);
                Outcome::Failed
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;
    use serde_json::Value;

    fn volume(deleted: bool) -> LogicalVolume {
        serde_json::from_value(json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "pvc-1", "uid": "u", "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z")},
            "spec": {"name": "pvc-1", "nodeName": "n1", "size": "1Gi"}, "status": {"volumeID": "lv-1"},
        }))
        .unwrap()
    }

    #[test]
    fn volumes_of_a_node_that_has_left_are_kept_unless_deletion_is_asked_for() {
        assert_eq!(fate(Departure::default(), true), Fate::Kept);
        assert_eq!(fate(Departure::Keep, false), Fate::Kept);
        assert_eq!(fate(Departure::Delete, true), Fate::Deleted);
    }

    #[test]
    fn a_node_that_was_never_seen_in_this_cluster_has_not_left_it() {
        assert_eq!(fate(Departure::Delete, false), Fate::Kept);
    }

    #[test]
    fn a_node_whose_lvmnode_came_from_a_backup_has_not_been_seen_before_it_tells_of_itself() {
        let mut restored = LvmNode::new("n1", "lvms");
        assert!(!has_told_of_itself(None) && !has_told_of_itself(Some(&restored)));
        restored.status = Some(lvms_api::lvm_node::Status::default());
        assert!(has_told_of_itself(Some(&restored)));
    }

    #[tokio::test]
    async fn a_claim_goes_with_the_node_that_has_its_volume_not_with_the_one_that_was_chosen_for_it() {
        let (context, asked) = scripted::context(|_| (200, json!({"metadata": {"name": "x"}}))).await;
        let stores = &context.stores;
        let object = |json: Value| serde_json::from_value(json).unwrap();
        stores.classes.answered(
            serde_json::from_value(json!({"metadata": {"name": "ours"}, "provisioner": "topolvm.io"}))
                .unwrap(),
        );
        for (claim, chosen, bound) in [
            ("own", "n1", Some("n1")),
            ("copy-elsewhere", "n1", Some("n2")),
            ("copy-here", "n2", Some("n1")),
            ("waiting", "n1", None),
            ("waiting-elsewhere", "n2", None),
        ] {
            stores.claims.answered(object(json!({
                "metadata": {
                    "namespace": "ns", "name": claim, "uid": claim, "annotations": {SELECTED_NODE: chosen},
                },
                "spec": {"storageClassName": "ours", "volumeName": bound.map(|_| format!("pvc-{claim}"))},
            })));
            let Some(node) = bound else { continue };
            let term = json!({"matchExpressions": [{"key": "topology.topolvm.io/node", "values": [node]}]});
            let volume = json!({
                "metadata": {"name": format!("pvc-{claim}"), "uid": claim},
                "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
            });
            stores.persistent.answered(serde_json::from_value(volume).unwrap());
        }
        let leftovers = Leftovers::new(Arc::clone(&context), Departure::Delete);
        leftovers.delete_claims("n1").await.unwrap();
        let deleted = ["copy-here", "own", "waiting"]
            .map(|claim| format!("DELETE /api/v1/namespaces/ns/persistentvolumeclaims/{claim}?"));
        assert_eq!(*asked.lock().unwrap(), deleted);
    }

    #[test]
    fn whoever_waits_for_a_node_that_has_left_is_told_what_to_do() {
        let told = told_of(&volume(false), Personality::Topolvm);
        assert!(told.contains("node n1 has left") && told.contains("lv-1"), "{told}");
        assert!(told.contains("are kept") && told.contains("delete the claim"), "{told}");
        let told = told_of(&volume(true), Personality::Legacy);
        assert!(told.contains("lv-1 is removed when a node of that name is back"), "{told}");
        let command = r#"kubectl patch logicalvolumes.topolvm.cybozu.com pvc-1 --type=merge --patch '{"metadata":{"finalizers":null}}'"#;
        assert!(told.ends_with(command), "{told}");
    }

    #[tokio::test]
    async fn what_the_api_refuses_is_told_of_what_is_left_behind() {
        let refused = json!({"code": 403, "message": "the lab refuses it"});
        let (context, asked) = scripted::context(move |_| (403, refused.clone())).await;
        let leftovers = Leftovers::new(Arc::clone(&context), Departure::Keep);
        let claim = json!({
            "metadata": {"namespace": "ns", "name": "data", "uid": "u", "finalizers": ["topolvm.io/pvc"]},
        });
        let claim: Claim = serde_json::from_value(claim).unwrap();
        let key = Key::of(&claim);
        context.stores.claims.answered(claim);
        assert_eq!(leftovers.look(&Item::Claim(key)).await, Outcome::Failed);
        let told = scripted::told(&asked, "FinalizerKept").await;
        assert!(told.contains("the lab refuses it") && told.contains("PersistentVolumeClaim"), "{told}");
    }
}
