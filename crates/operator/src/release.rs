//! The second key: a LogicalVolume goes only if nothing names it any more.
//!
//! Its node removes an LV only if the object is deleted and carries an annotation that only the leader may write. It
//! is written after the API itself, not a store, has said that nothing names the volume. One question answers for all
//! that ask at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use lvms_api::LogicalVolume;
use lvms_api::names::{CLAIM, RELEASED};
use lvms_cluster::slim::{Claim, PersistentVolume, SnapshotContent};
use lvms_cluster::store::chain;
use lvms_cluster::work::Patience;
use lvms_cluster::write::{self, is_not_found, passes};
use lvms_cluster::{Key, Outcome, Reference, Work, pages};
use serde_json::json;

use crate::Context;
use crate::question::Question;
use crate::snapshot::may_go;

/// What still names a volume is looked at again after ten seconds, and later at the most after five minutes.
const PATIENCE: Patience = Patience { first: Duration::from_secs(10), longest: Duration::from_secs(300) };

const AT_ONCE: usize = 8;

/// So long a node has to let go what has no LV.
const NODES_TURN: Duration = Duration::from_secs(10);

/// Why a volume is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// The definition of its kind is being deleted, and all objects with it.
    DefinitionGoes,
    /// A PersistentVolume or a VolumeSnapshotContent names it.
    Named(String),
    /// A claim names its PersistentVolume, which was released from another one.
    Claimed(Claimed),
}

/// A claim and a PersistentVolume that name each other, but for the claim's uid: Kubernetes counts a volume as released
/// that is restored from a backup with the uid that its claim had then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    persistent: String,
    claim: Key,
    uid: String,
}

impl std::fmt::Display for Claimed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Claimed { persistent, claim, uid } = self;
        write!(
            out,
            "claim {claim} names PersistentVolume {persistent}, whose spec.claimRef.uid is that of a claim which is gone: its \
             data is kept; write this claim's uid there, {uid}, and they are bound again, or delete the claim"
        )
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kept::DefinitionGoes => out.write_str(
                "the CustomResourceDefinition is being deleted: logical volumes are not removed with it",
            ),
            Kept::Named(name) => {
                write!(out, "{name} names this volume and is not released for deletion: its data is kept")
            }
            Kept::Claimed(claimed) => claimed.fmt(out),
        }
    }
}

/// What has become of a LogicalVolume that was to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// Its node may remove the LV, and lets it go then.
    Released,
    /// It was gone before that was said: no node has removed the LV.
    Vanished,
    /// It stays.
    Kept(Kept),
}

/// Handles of what is being deleted whose LogicalVolume was let go with both keys: if it is not there any more, its node
/// has removed the LV. Of others that is not known.
#[derive(Default)]
pub(crate) struct Removed(Mutex<BTreeSet<String>>);

impl Removed {
    pub(crate) fn handles(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a LogicalVolume that is gone has gone with its LV.
    pub(crate) fn is_seen(gone: &LogicalVolume) -> bool {
        gone.is_deleted() && gone.is_released()
    }
}

/// What the API says names volumes, by handle.
struct Answer {
    definition_goes: bool,
    /// Those that must be kept, with the name of what names them.
    named: BTreeMap<String, String>,
    /// Those that PersistentVolumes have given up, with their names and the claims that they were bound to.
    given_up: BTreeMap<String, (String, Key)>,
}

/// Decides what may go.
pub struct Release {
    context: Arc<Context>,
    work: Arc<Work<String>>,
    question: Question<Answer>,
    /// What we are deleting ourselves.
    removing: Mutex<BTreeSet<String>>,
}

impl Release {
    /// Is told by LogicalVolumes that are deleted, and by what named them.
    pub fn new(context: Arc<Context>) -> Arc<Release> {
        let work: Arc<Work<String>> = Work::new("release", PATIENCE);
        let told = Arc::clone(&work);
        context.stores.volumes.listen(move |_, now| {
            if let Some(volume) = now
                && volume.is_deleted()
                && !volume.is_released()
            {
                told.add(volume.name().to_owned());
            }
        });
        let (told, volumes) = (Arc::clone(&work), Arc::clone(&context.stores.volumes));
        let driver = context.personality.driver();
        context.stores.persistent.listen(move |before, now| {
            if let Some(handle) = now.or(before).and_then(|volume| volume.handle(driver))
                && let Some(volume) = volumes.find(|volume| volume.lv() == handle && volume.is_deleted())
            {
                told.add(volume.name().to_owned());
            }
        });
        let (told, volumes) = (Arc::clone(&work), Arc::clone(&context.stores.volumes));
        context.stores.contents.listen(move |before, _| {
            let handle = before.and_then(|content| content.status.as_ref()?.snapshot_handle.clone());
            let named =
                |volume: &LogicalVolume| volume.is_deleted() && volume.volume_id() == handle.as_deref();
            if handle.is_some()
                && let Some(volume) = volumes.find(named)
            {
                told.add(volume.name().to_owned());
            }
        });
        Arc::new(Release { context, work, question: Question::default(), removing: Mutex::default() })
    }

    /// The names that wait.
    pub fn work(&self) -> Arc<Work<String>> {
        Arc::clone(&self.work)
    }

    /// Looks at what was deleted by others than us, for ever.
    pub async fn run(self: Arc<Self>) {
        let work = Arc::clone(&self.work);
        work.run(AT_ONCE, move |name| {
            let release = Arc::clone(&self);
            async move { release.look(&name).await }
        })
        .await;
    }

    async fn look(&self, name: &str) -> Outcome {
        let Some(volume) = self.context.stores.volumes.named(name) else { return Outcome::Done };
        if !volume.is_deleted() || volume.is_released() {
            return Outcome::Done;
        }
        if volume.volume_id().is_none() && age_of_deletion(&volume) < NODES_TURN {
            // Most likely there is no LV, and its node lets it go without us.
            return Outcome::After(NODES_TURN);
        }
        if self.removing().contains(name) {
            return Outcome::After(NODES_TURN);
        }
        let kept = match self.kept(volume.lv()).await {
            Ok(None) => self.write(&volume).await.map(|()| None),
            kept => kept,
        };
        match kept {
            Ok(None) => Outcome::Done,
            Ok(Some(kept)) => {
                let about = Reference::to(volume.as_ref(), &self.context.personality);
                self.context.events.warn(about, "Retained", kept.to_string());
                Outcome::Failed
            }
            Err(error) => passes(&error).unwrap_or_else(|| {
                let told = format!("it cannot be let go, and its data is kept: {}", chain(&error));
                let about = Reference::to(volume.as_ref(), &self.context.personality);
                self.context.events.warn(about, "Retained", told);
                Outcome::Failed
            }),
        }
    }

    /// Deletes a LogicalVolume and releases it if nothing names it any more. The release is written last: on an object
    /// that lives on it would be a key that somebody finds later.
    pub async fn remove(&self, volume: &LogicalVolume) -> Result<Removal, kube::Error> {
        if let Some(kept) = self.kept(volume.lv()).await? {
            return Ok(Removal::Kept(kept));
        }
        let name = volume.name().to_owned();
        self.removing().insert(name.clone());
        let removed = self.delete_and_release(volume).await;
        self.removing().remove(&name);
        if removed.is_err() {
            // It may be deleted by now, and is looked at like what others have deleted.
            self.work.add(name);
        }
        removed
    }

    async fn delete_and_release(&self, volume: &LogicalVolume) -> Result<Removal, kube::Error> {
        let api = self.context.logical_volumes();
        match write::delete(&api, volume.name(), volume.uid()).await? {
            Some(deleted) => self.write(&deleted).await.map(|()| Removal::Released),
            None => Ok(Removal::Vanished),
        }
    }

    async fn write(&self, deleted: &LogicalVolume) -> Result<(), kube::Error> {
        if deleted.is_released() {
            return Ok(());
        }
        let change = json!({ "metadata": { "annotations": { RELEASED: deleted.uid() } } });
        let claim = deleted.annotation(CLAIM);
        tracing::info!(volume = deleted.name(), claim, "nothing names it any more: it is released");
        let changed = write::change(&self.context.logical_volumes(), deleted, change).await?;
        self.context.stores.volumes.answered(changed);
        Ok(())
    }

    fn removing(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.removing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn kept(&self, handle: &str) -> Result<Option<Kept>, kube::Error> {
        let answer = self.question.ask(self.look_at_all()).await?;
        if answer.definition_goes {
            return Ok(Some(Kept::DefinitionGoes));
        }
        if let Some(named) = answer.named.get(handle) {
            return Ok(Some(Kept::Named(named.clone())));
        }
        let Some((persistent, claim)) = answer.given_up.get(handle) else { return Ok(None) };
        Ok(claimed(&self.context, persistent, claim).await?.map(Kept::Claimed))
    }

    async fn look_at_contents(&self, named: &mut BTreeMap<String, String>) -> Result<(), kube::Error> {
        let api: Api<SnapshotContent> = Api::all(self.context.client.clone());
        let look = |content: SnapshotContent| {
            let goes = may_go(&content) && content.spec.deletion_policy == "Delete";
            let told = content.status.as_ref().and_then(|status| status.snapshot_handle.as_ref());
            if content.spec.driver == self.context.personality.driver() && !goes {
                for handle in told.into_iter().chain(&content.spec.source.snapshot_handle) {
                    named.insert(handle.clone(), format!("VolumeSnapshotContent {}", content.name_any()));
                }
            }
            ControlFlow::<()>::Continue(())
        };
        match pages::each(&api, ListParams::default(), look).await {
            // A cluster without the snapshot API has no snapshots.
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    async fn look_at_all(&self) -> Result<Answer, kube::Error> {
        let personality = self.context.personality;
        let definitions: Api<PartialObjectMeta<CustomResourceDefinition>> =
            Api::all(self.context.client.clone());
        let name = format!("{}.{}", LogicalVolume::plural(&personality), personality.driver());
        let definition = definitions.get(&name).await?;
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let (mut named, mut given_up) = (BTreeMap::new(), BTreeMap::new());
        let look = |volume: PersistentVolume| {
            if let Some(handle) = volume.handle(personality.driver()) {
                if !is_given_up(&volume) {
                    named.insert(handle.to_owned(), format!("PersistentVolume {}", volume.name()));
                } else if let Some(claim) = &volume.spec.claim_ref {
                    given_up.insert(handle.to_owned(), (volume.name().to_owned(), claim.key()));
                }
            }
            ControlFlow::<()>::Continue(())
        };
        pages::each(&api, ListParams::default(), look).await?;
        self.look_at_contents(&mut named).await?;
        Ok(Answer { definition_goes: definition.metadata.deletion_timestamp.is_some(), named, given_up })
    }
}

/// How long ago an object was deleted; long enough if the clock of the API server says something else than ours.
fn age_of_deletion(volume: &LogicalVolume) -> Duration {
    let deleted = volume.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let age = deleted.map(|deleted| jiff::Timestamp::now().duration_since(deleted));
    age.and_then(|age| Duration::try_from(age).ok()).unwrap_or(NODES_TURN)
}

/// The claim that names a PersistentVolume though that was released from one, says the API itself. One that was only
/// made again under the name of a deleted one names no volume, or another.
pub(crate) async fn claimed(
    context: &Context,
    persistent: &str,
    claim: &Key,
) -> Result<Option<Claimed>, kube::Error> {
    let claims: Api<Claim> = Api::namespaced(context.client.clone(), &claim.namespace);
    let found = claims.get_opt(&claim.name).await?.filter(|found| found.spec.volume_name == persistent);
    Ok(found.map(|found| Claimed {
        persistent: persistent.to_owned(),
        claim: claim.clone(),
        uid: found.uid().to_owned(),
    }))
}

/// Whether a PersistentVolume has given its data up.
pub fn is_given_up(volume: &PersistentVolume) -> bool {
    volume.status.phase == "Released" && volume.spec.persistent_volume_reclaim_policy == "Delete"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;

    #[tokio::test]
    async fn what_cannot_be_let_go_is_told_of_the_logical_volume() {
        let (context, asked) =
            scripted::context(|_| (403, json!({"code": 403, "message": "the lab refuses it"}))).await;
        let release = Release::new(Arc::clone(&context));
        let deleted = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "pvc-1", "uid": "lv-1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"volumeID": "lv-1"},
        });
        context.stores.volumes.answered(serde_json::from_value(deleted).unwrap());
        assert_eq!(release.look("pvc-1").await, Outcome::Failed);
        let told = scripted::told(&asked, "Retained").await;
        assert!(told.contains("the lab refuses it") && told.contains("pvc-1"), "{told}");
    }

    /// A LogicalVolume that is being deleted is looked at, while the API has this, too. Whether it was released, and what
    /// was asked.
    async fn look_at(
        name: &'static str,
        answer: impl Fn(&str) -> Option<(u16, serde_json::Value)> + Send + Sync + 'static,
    ) -> (bool, scripted::Asked) {
        let deleted = move |version: &str, annotations: serde_json::Value| {
            json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
                "metadata": {
                    "name": name, "uid": "lv-1", "resourceVersion": version,
                    "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations,
                },
                "status": {"volumeID": "lv-1"},
            })
        };
        let (context, asked) = scripted::context(move |request| match request {
            _ if request.starts_with("PATCH") => (200, deleted("2", json!({ RELEASED: "lv-1" }))),
            _ if request.contains("customresourcedefinitions/") => (200, json!({"metadata": {"name": "x"}})),
            _ => answer(request).unwrap_or((200, json!({"metadata": {}, "items": []}))),
        })
        .await;
        context.stores.volumes.answered(serde_json::from_value(deleted("1", json!({}))).unwrap());
        Release::new(context).look(name).await;
        let is_released = asked.lock().unwrap().iter().any(|request| request.starts_with("PATCH"));
        (is_released, asked)
    }

    #[tokio::test]
    async fn a_content_names_its_snapshot_until_its_volumesnapshot_is_deleted_too() {
        for goes_too in [false, true] {
            let annotations = if goes_too {
                json!({"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"})
            } else {
                json!({})
            };
            let content = json!({
                "metadata": {"name": "content", "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations},
                "spec": {
                    "driver": "topolvm.io", "deletionPolicy": "Delete", "source": {"volumeHandle": "origin"},
                    "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "su"},
                },
                "status": {"snapshotHandle": "lv-1"},
            });
            let (is_released, asked) = look_at("snapshot-1", move |request| {
                let is_asked = request.contains("volumesnapshotcontents");
                is_asked.then(|| (200, json!({"metadata": {}, "items": [content]})))
            })
            .await;
            assert_eq!(is_released, goes_too);
            if !is_released {
                assert!(scripted::told(&asked, "Retained").await.contains("VolumeSnapshotContent content"));
            }
        }
    }

    #[tokio::test]
    async fn what_a_claim_still_names_is_kept_though_its_persistentvolume_was_released_from_another() {
        for (names, is_kept) in [(Some("pvc-1"), true), (Some("pvc-2"), false), (None, false)] {
            let persistent = json!({
                "metadata": {"name": "pvc-1"},
                "spec": {
                    "csi": {"driver": "topolvm.io", "volumeHandle": "lv-1"}, "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": {"namespace": "ns", "name": "data", "uid": "former"},
                },
                "status": {"phase": "Released"},
            });
            let claim = names.map(|volume| {
                let metadata = json!({"namespace": "ns", "name": "data", "uid": "todays"});
                json!({"metadata": metadata, "spec": {"volumeName": volume}})
            });
            let (is_released, asked) = look_at("pvc-1", move |request| match request {
                _ if request.contains("/persistentvolumes?") => {
                    Some((200, json!({"metadata": {}, "items": [persistent]})))
                }
                _ if request.contains("/namespaces/ns/persistentvolumeclaims/data") => {
                    let gone = json!({"code": 404, "reason": "NotFound", "details": {"name": "data"}});
                    Some(claim.clone().map_or((404, gone), |claim| (200, claim)))
                }
                _ => None,
            })
            .await;
            assert_eq!(is_released, !is_kept, "{names:?}");
            if is_kept {
                let told = scripted::told(&asked, "Retained").await;
                assert!(told.contains("claim ns/data") && told.contains("todays"), "{told}");
            }
        }
    }
}
