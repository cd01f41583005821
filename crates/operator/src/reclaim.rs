//! A released PersistentVolume takes its LogicalVolume along.
//!
//! If that is missing, and nobody knows that its node has removed the LV, it is made again and goes the same way: an LV
//! that nothing names any more would never be found.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use lvms_api::names::kubernetes::{PROVISIONED_BY, VOLUME_FINALIZER};
use lvms_api::{LogicalVolume, Personality};
use lvms_cluster::slim::{Node, PersistentVolume, annotation, has_finalizer};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, Created, passes};
use lvms_cluster::{Outcome, Reference, Work};

use crate::Context;
use crate::leftovers::Departure;
use crate::release::{Release, Removal, Removed, claimed, is_given_up};
use crate::restore;

/// What cannot be deleted now is tried again after a second, and later at the most after thirty.
const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

const AT_ONCE: usize = 32;

/// What to do next about a PersistentVolume of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Act {
    Nothing,
    /// Mark that there is something to delete before it may go.
    Mark,
    /// Take the mark away: it may go without its data.
    Unmark,
    /// Delete its LogicalVolume, and it when that is gone.
    Delete,
}

/// Reclaims volumes.
pub struct Reclaim {
    context: Arc<Context>,
    release: Arc<Release>,
    departure: Departure,
    work: Arc<Work<String>>,
    removed: Arc<Removed>,
}

impl Reclaim {
    /// Is told by PersistentVolumes, and by LogicalVolumes that are gone or cannot go.
    pub fn new(context: Arc<Context>, release: Arc<Release>, departure: Departure) -> Reclaim {
        let work: Arc<Work<String>> = Work::new("reclaim", PATIENCE);
        let removed: Arc<Removed> = Arc::default();
        let driver = context.personality.driver();
        let (told, forget) = (Arc::clone(&work), Arc::clone(&removed));
        context.stores.persistent.listen(move |before, now| match (before, now) {
            (_, Some(volume)) => told.add(volume.name().to_owned()),
            (Some(gone), None) => {
                forget.handles().remove(gone.handle(driver).unwrap_or_default());
            }
            (None, None) => {}
        });
        let (told, persistent) = (Arc::clone(&work), Arc::clone(&context.stores.persistent));
        let remember = Arc::clone(&removed);
        context.stores.volumes.listen(move |before, now| {
            if now.is_none_or(|volume| volume.removal_failure().is_some())
                && let Some(handle) = now.or(before).map(|volume| volume.lv())
                && let Some(volume) = persistent.find(|volume| volume.handle(driver) == Some(handle))
            {
                if now.is_none() && before.is_some_and(|gone| Removed::is_seen(gone)) {
                    remember.handles().insert(handle.to_owned());
                }
                told.add(volume.name().to_owned());
            }
        });
        Reclaim { context, release, departure, work, removed }
    }

    /// The names that wait.
    pub fn work(&self) -> Arc<Work<String>> {
        Arc::clone(&self.work)
    }

    /// Reclaims for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    async fn act(&self, volume: &PersistentVolume) -> Result<Outcome, kube::Error> {
        match decide(volume, self.context.personality) {
            Act::Nothing => Ok(Outcome::Done),
            Act::Mark => {
                let change = write::finalizers_with(volume, VOLUME_FINALIZER);
                write::change(&self.api(), volume, change).await?;
                Ok(Outcome::Done)
            }
            Act::Unmark => {
                write::change(&self.api(), volume, write::finalizers_without(volume, &[VOLUME_FINALIZER]))
                    .await?;
                Ok(Outcome::Done)
            }
            Act::Delete => self.delete(volume).await,
        }
    }

    async fn delete(&self, volume: &PersistentVolume) -> Result<Outcome, kube::Error> {
        let handle = volume.handle(self.context.personality.driver()).unwrap_or_default();
        let logical = self.context.stores.volumes.find(|logical| logical.lv() == handle);
        let is_removed = logical.is_none() && self.removed.handles().contains(handle);
        if !is_removed {
            let logical = match logical {
                Some(logical) => Some(logical),
                None => self.context.logical_volume(volume.name(), handle).await?,
            };
            if let Some(logical) = logical {
                if !logical.is_deleted() {
                    return self.remove(volume, &logical).await;
                }
                if let Some(why) = logical.removal_failure() {
                    self.fail(volume, why.to_owned());
                }
                return Ok(Outcome::Done);
            }
            // What stores say may be old.
            let now = self.api().get_opt(volume.name()).await?;
            let Some(now) = now.filter(|now| now.metadata.uid == volume.metadata.uid) else {
                return Ok(Outcome::Done);
            };
            if decide(&now, self.context.personality) != Act::Delete {
                return Ok(Outcome::Done);
            }
            if let Some(claim) = &now.spec.claim_ref
                && let Some(claimed) = claimed(&self.context, now.name(), &claim.key()).await?
            {
                self.fail(&now, claimed.to_string());
                return Ok(Outcome::Failed);
            }
            if let Some(wanted) = self.left_behind(&now).await? {
                return match restore::put_back(&self.context, Reference::to(&now, &()), &wanted).await? {
                    Created::Now(logical) => self.remove(&now, &logical).await,
                    Created::AlreadyThere => Ok(Outcome::Failed),
                };
            }
        }
        let api = self.api();
        let unmarked = if has_finalizer(&volume.metadata, VOLUME_FINALIZER) {
            write::change(&api, volume, write::finalizers_without(volume, &[VOLUME_FINALIZER])).await?
        } else {
            volume.clone()
        };
        if unmarked.metadata.deletion_timestamp.is_none() {
            write::delete(&api, volume.name(), volume.metadata.uid.as_deref().unwrap_or_default()).await?;
        }
        Ok(Outcome::Done)
    }

    /// Lets its node remove the LV of a PersistentVolume.
    async fn remove(
        &self,
        volume: &PersistentVolume,
        logical: &LogicalVolume,
    ) -> Result<Outcome, kube::Error> {
        let claim = volume.spec.claim_ref.as_ref().map(|of| of.key().to_string());
        tracing::info!(volume = volume.name(), claim, node = logical.spec.node_name, "is to be deleted");
        match self.release.remove(logical).await? {
            Removal::Released => {
                self.removed.handles().insert(logical.lv().to_owned());
                // Its node removes the LV, or says why it cannot, and the watch tells.
                Ok(Outcome::Done)
            }
            // The next look finds it missing.
            Removal::Vanished => Ok(Outcome::Failed),
            Removal::Kept(kept) => {
                self.fail(volume, kept.to_string());
                Ok(Outcome::Failed)
            }
        }
    }

    /// The LogicalVolume that is missing, though nobody has seen its node remove the LV: somebody has taken finalizers
    /// away, or another leader has seen it. `None` if no node could remove anything.
    async fn left_behind(&self, volume: &PersistentVolume) -> Result<Option<LogicalVolume>, kube::Error> {
        let class = self.context.stores.classes.named(&volume.spec.storage_class_name);
        let Some(wanted) = restore::named_by(volume, class.as_deref(), self.context.personality) else {
            return Ok(None);
        };
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let node = nodes.get_opt(&wanted.spec.node_name).await?;
        if !could_remove(node.as_ref(), self.departure) {
            tracing::warn!(
                volume = volume.name(),
                node = wanted.spec.node_name,
                lv = wanted.lv(),
                "is forgotten: its node has left, and its LogicalVolume is gone"
            );
            return Ok(None);
        }
        Ok(Some(wanted))
    }

    fn fail(&self, volume: &PersistentVolume, why: String) {
        self.context.events.warn(Reference::to(volume, &()), "VolumeFailedDelete", why);
    }

    fn api(&self) -> Api<PersistentVolume> {
        Api::all(self.context.client.clone())
    }
}

impl Looks<String> for Reclaim {
    async fn look(&self, name: &String) -> Outcome {
        let Some(volume) = self.context.stores.persistent.named(name) else { return Outcome::Done };
        match self.act(&volume).await {
            Ok(outcome) => outcome,
            Err(error) => passes(&error).unwrap_or_else(|| {
                self.fail(&volume, chain(&error));
                Outcome::Failed
            }),
        }
    }
}

/// Whether a node will remove LVs. One that leaves does not where its volumes are given up with it.
pub(crate) fn could_remove(node: Option<&Node>, departure: Departure) -> bool {
    node.is_some_and(|node| departure == Departure::Keep || node.metadata.deletion_timestamp.is_none())
}

fn decide(volume: &PersistentVolume, personality: Personality) -> Act {
    let provisioned_by = annotation(&volume.metadata, PROVISIONED_BY);
    let ours = volume.handle(personality.driver()).is_some()
        && provisioned_by.is_none_or(|driver| driver == personality.driver());
    if !ours {
        return Act::Nothing;
    }
    let marked = has_finalizer(&volume.metadata, VOLUME_FINALIZER);
    let deleted = volume.metadata.deletion_timestamp.is_some();
    let wants_deletion = volume.spec.persistent_volume_reclaim_policy == "Delete";
    if is_given_up(volume) && (marked || !deleted) {
        return Act::Delete;
    }
    if marked && !wants_deletion {
        return Act::Unmark;
    }
    if !marked && wants_deletion && !deleted && volume.status.phase == "Bound" {
        return Act::Mark;
    }
    Act::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;
    use serde_json::{Value, json};
    use std::sync::Mutex;

    fn released() -> Value {
        json!({
            "metadata": {"name": "pvc-1", "uid": "pv", "finalizers": [VOLUME_FINALIZER]},
            "spec": {
                "csi": {"driver": "topolvm.io", "volumeHandle": "lv-1"}, "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Released"},
        })
    }

    async fn reclaim(
        answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Reclaim, Arc<Mutex<Vec<String>>>) {
        reclaim_one(released(), answer).await
    }

    async fn reclaim_one(
        volume: Value,
        answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Reclaim, Arc<Mutex<Vec<String>>>) {
        let now = volume.clone();
        let (context, asked) = scripted::context(move |request| match request {
            _ if request.contains("customresourcedefinitions") => (200, json!({"metadata": {"name": "x"}})),
            _ if request.contains("persistentvolumes?") => {
                (200, json!({"metadata": {}, "items": [volume.clone()]}))
            }
            _ if request.contains("persistentvolumes") => (200, volume.clone()),
            _ if request.contains("logicalvolumes") || request.contains("/data") => answer(request),
            _ => (404, json!({"code": 404})),
        })
        .await;
        context.stores.persistent.answered(serde_json::from_value(now).unwrap());
        let release = Release::new(Arc::clone(&context));
        (Reclaim::new(context, release, Departure::Keep), asked)
    }

    fn logical(deleted: bool) -> Value {
        json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {
                "name": "pvc-1", "uid": "lv-1", "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
            },
            "status": {"volumeID": "lv-1", "currentSize": "1Gi"},
        })
    }

    #[tokio::test]
    async fn that_an_lv_is_removed_is_not_believed_of_an_object_that_vanished_without_its_node() {
        for (kept_by_its_node, outcome) in [(true, Outcome::Done), (false, Outcome::Failed)] {
            let (reclaim, _) = reclaim(move |_| match kept_by_its_node {
                true => (200, logical(true)),
                false => (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
            })
            .await;
            reclaim.context.stores.volumes.answered(serde_json::from_value(logical(false)).unwrap());
            assert_eq!(reclaim.look(&"pvc-1".to_owned()).await, outcome);
            assert_eq!(reclaim.removed.handles().contains("lv-1"), kept_by_its_node);
        }
    }

    #[tokio::test]
    async fn what_was_seen_to_go_is_not_looked_for() {
        let (reclaim, asked) = reclaim(|request| panic!("asked was {request}")).await;
        reclaim.removed.handles().insert("lv-1".to_owned());
        assert_eq!(reclaim.look(&"pvc-1".to_owned()).await, Outcome::Done);
        let verbs: Vec<String> =
            asked.lock().unwrap().iter().map(|request| request[..6].to_owned()).collect();
        assert_eq!(verbs, ["PATCH ", "DELETE"]);
    }

    #[tokio::test]
    async fn what_a_claim_still_names_stays_and_so_does_its_lv() {
        let claim = || {
            let metadata = json!({"namespace": "ns", "name": "data", "uid": "todays"});
            json!({"metadata": metadata, "spec": {"volumeName": "pvc-1"}})
        };
        for is_missing in [false, true] {
            let mut restored = released();
            restored["spec"]["claimRef"] = json!({"namespace": "ns", "name": "data", "uid": "former"});
            restored["spec"]["capacity"] = json!({"storage": "1Gi"});
            restored["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.topolvm.io/node", "operator": "In", "values": ["n1"]},
            ]}]}});
            let (reclaim, asked) = reclaim_one(restored, move |request| match request {
                _ if request.contains("/data") => (200, claim()),
                _ if is_missing && request.contains("logicalvolumes?") => {
                    (200, json!({"metadata": {}, "items": []}))
                }
                _ if is_missing => {
                    (404, json!({"code": 404, "reason": "NotFound", "details": {"name": "x"}}))
                }
                _ => (200, logical(false)),
            })
            .await;
            if !is_missing {
                reclaim.context.stores.volumes.answered(serde_json::from_value(logical(false)).unwrap());
            }
            assert_eq!(reclaim.look(&"pvc-1".to_owned()).await, Outcome::Failed);
            let told = scripted::told(&asked, "VolumeFailedDelete").await;
            assert!(told.contains("claim ns/data") && told.contains("todays"), "{told}");
            let asked = scripted::but_events(&asked);
            assert!(asked.iter().all(|request| request.starts_with("GET")), "{asked:?}");
        }
    }

    fn decided(phase: &str, policy: &str, marked: bool, deleted: bool) -> Act {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {
                "name": "pvc-1",
                "finalizers": if marked { vec![VOLUME_FINALIZER] } else { vec![] },
                "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": {
                "csi": {"driver": "topolvm.io", "volumeHandle": "h"},
                "persistentVolumeReclaimPolicy": policy,
            },
            "status": {"phase": phase},
        }))
        .unwrap();
        decide(&volume, Personality::Topolvm)
    }

    #[test]
    fn what_is_released_for_deletion_is_deleted_also_when_it_was_deleted_first() {
        assert_eq!(decided("Released", "Delete", true, false), Act::Delete);
        assert_eq!(decided("Released", "Delete", true, true), Act::Delete);
        assert_eq!(decided("Released", "Delete", false, false), Act::Delete);
        assert_eq!(decided("Released", "Delete", false, true), Act::Nothing);
    }

    #[test]
    fn what_shall_be_retained_is_never_deleted() {
        for phase in ["Bound", "Released", "Available", "Failed"] {
            assert_eq!(decided(phase, "Retain", true, true), Act::Unmark, "{phase}");
            assert_eq!(decided(phase, "Retain", false, false), Act::Nothing, "{phase}");
        }
    }

    #[test]
    fn what_is_bound_is_marked_and_not_deleted() {
        assert_eq!(decided("Bound", "Delete", false, false), Act::Mark);
        assert_eq!(decided("Bound", "Delete", true, false), Act::Nothing);
        assert_eq!(decided("Bound", "Delete", true, true), Act::Nothing);
        assert_eq!(decided("Bound", "Delete", false, true), Act::Nothing);
    }

    #[test]
    fn nothing_is_put_back_for_a_node_that_leaves_and_gives_its_volumes_up() {
        let node = |deleted: Option<&str>| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n", "deletionTimestamp": deleted}})).unwrap()
        };
        let (stays, leaves) = (node(None), node(Some("2026-01-01T00:00:00Z")));
        for departure in [Departure::Keep, Departure::Delete] {
            assert!(could_remove(Some(&stays), departure) && !could_remove(None, departure));
        }
        assert!(could_remove(Some(&leaves), Departure::Keep));
        assert!(!could_remove(Some(&leaves), Departure::Delete));
    }

    #[test]
    fn what_another_driver_has_provisioned_is_left_alone() {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "x", "annotations": {"pv.kubernetes.io/provisioned-by": "other"}},
            "spec": {"csi": {"driver": "topolvm.io", "volumeHandle": "h"}, "persistentVolumeReclaimPolicy": "Delete"},
            "status": {"phase": "Released"},
        }))
        .unwrap();
        assert_eq!(decide(&volume, Personality::Topolvm), Act::Nothing);
    }
}
