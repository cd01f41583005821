//! VolumeSnapshotContents become LogicalVolumes, as csi-snapshotter does it; VolumeSnapshots themselves are the
//! cluster's snapshot-controller's. One whose LogicalVolume is gone gets it back, also to go with it.

mod decide;

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use lvms_api::LogicalVolume;
use lvms_api::names::NODE;
use lvms_cluster::slim::{Node, SnapshotContent};
use lvms_cluster::store::{self, Keep, chain};
use lvms_cluster::work::{Looks, Patience, Refusals};
use lvms_cluster::write::{self, Created, is_not_found, passes};
use lvms_cluster::{Connection, Outcome, Reference, Store, Work};
use serde_json::{Value, json};

use self::decide::{Act, BEING_CREATED, FINALIZER, View, decide};
pub(crate) use self::decide::{handle, may_go, volume_name};
use crate::Context;
use crate::leftovers::Departure;
use crate::reclaim::could_remove;
use crate::release::{Release, Removal, Removed};
use crate::restore;

const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(300) };

const AT_ONCE: usize = 16;

/// A cluster without the snapshot API is asked again after so long.
const WITHOUT_API: Duration = Duration::from_secs(60);

/// Follows the contents of our driver, if the cluster has such things.
pub async fn follow(contents: Arc<Store<SnapshotContent>>, connection: Connection, driver: &'static str) {
    let api: Api<SnapshotContent> = Api::all(connection.watching);
    let keep: Keep<SnapshotContent> = Box::new(move |content| content.spec.driver == driver);
    let is_missing = |error: &watcher::Error| {
        matches!(error, watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)
            if is_not_found(error))
    };
    loop {
        contents.follow_stream(watcher(api.clone(), store::config()), &keep, is_missing).await;
        tracing::debug!("the cluster has no snapshot API");
        tokio::time::sleep(WITHOUT_API).await;
    }
}

/// Makes snapshots.
pub struct Snapshots {
    context: Arc<Context>,
    release: Arc<Release>,
    departure: Departure,
    work: Arc<Work<String>>,
    removed: Arc<Removed>,
    /// Contents whose snapshots were refused.
    refusals: Refusals<String>,
}

impl Snapshots {
    /// Is told by contents and by their LogicalVolumes.
    pub fn new(context: Arc<Context>, release: Arc<Release>, departure: Departure) -> Snapshots {
        let work: Arc<Work<String>> = Work::new("snapshot", PATIENCE);
        let removed: Arc<Removed> = Arc::default();
        let (told, forget) = (Arc::clone(&work), Arc::clone(&removed));
        context.stores.contents.listen(move |before, now| match (before, now) {
            (_, Some(content)) => told.add(content.name_any()),
            (Some(gone), None) => {
                forget.handles().remove(handle(gone).unwrap_or_default());
            }
            (None, None) => {}
        });
        let (told, contents) = (Arc::clone(&work), Arc::clone(&context.stores.contents));
        let remember = Arc::clone(&removed);
        context.stores.volumes.listen(move |before, now| {
            let Some(volume) = now.or(before) else { return };
            let concerned = contents.filter(|content| {
                volume_name(content) == volume.name()
                    || (volume.volume_id().is_some()
                        && content.spec.source.volume_handle.as_deref() == volume.volume_id())
                    || handle(content) == Some(volume.lv())
            });
            for content in concerned {
                if now.is_none() && Removed::is_seen(volume) && handle(&content) == Some(volume.lv()) {
                    remember.handles().insert(volume.lv().to_owned());
                }
                told.add(content.name_any());
            }
        });
        Snapshots { context, release, departure, work, removed, refusals: Refusals::new(PATIENCE) }
    }

    /// The names that wait.
    pub fn work(&self) -> Arc<Work<String>> {
        Arc::clone(&self.work)
    }

    /// Makes them for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    async fn act(&self, content: &SnapshotContent) -> Result<Outcome, kube::Error> {
        let volumes = &self.context.stores.volumes;
        let origin = content.spec.source.volume_handle.as_deref();
        let origin = origin.and_then(|handle| self.context.stores.by_handle(handle));
        let volume = match handle(content) {
            Some(handle) => volumes.find(|volume| volume.lv() == handle),
            None => volumes.named(&volume_name(content)),
        };
        let known = if volume.is_some() { None } else { origin.clone().or_else(|| self.origin_of(content)) };
        let act = decide(&View {
            personality: self.context.personality,
            content,
            origin: origin.as_deref(),
            known: known.as_deref(),
            volume: volume.as_deref(),
            removed: handle(content).is_some_and(|handle| self.removed.handles().contains(handle)),
        });
        tracing::debug!(content = content.name_any(), ?act, "looked at");
        match act {
            Act::Nothing => {}
            Act::Mark => self.mark(content, &[(BEING_CREATED, Some("yes"))]).await?,
            Act::Unmark => self.mark(content, &[(BEING_CREATED, None)]).await?,
            Act::Settle(node) => {
                self.mark(content, &[(BEING_CREATED, None), (NODE, Some(node.as_str()))]).await?;
            }
            Act::PutBack(wanted) => return self.put_back(content, &wanted).await,
            Act::Missing(why) => {
                if content.metadata.deletion_timestamp.is_some() {
                    self.tell_of_deletion(content, &why).await?;
                } else {
                    self.context.events.warn(self.about(content), "LogicalVolumeMissing", why);
                }
                return Ok(Outcome::Failed);
            }
            Act::Later => return Ok(Outcome::Failed),
            Act::Create(object) => {
                if let Some(rest) = self.refusals.rest(&content.name_any()) {
                    return Ok(Outcome::After(rest));
                }
                tracing::info!(
                    content = content.name_any(),
                    volume = object.name(),
                    source = object.spec.source,
                    "is sent to its node"
                );
                if let Created::Now(created) =
                    write::create(&self.context.logical_volumes(), &json!(object)).await?
                {
                    volumes.answered(created);
                }
            }
            Act::Ready { handle, created, size } => {
                self.refusals.forget(&content.name_any());
                let size = i64::try_from(size).unwrap_or(i64::MAX);
                let status = json!({
                    "snapshotHandle": handle, "creationTime": created, "restoreSize": size, "readyToUse": true,
                    "error": null,
                });
                self.tell(content, status).await?;
            }
            Act::Fail { message, over } => {
                let reason = if content.spec.source.snapshot_handle.is_some() {
                    "SnapshotContentCheckandUpdateFailed"
                } else {
                    "SnapshotCreationFailed"
                };
                self.context.events.warn(self.about(content), reason, message.clone());
                let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let status = json!({ "readyToUse": false, "error": { "message": message, "time": now } });
                self.tell(content, status).await?;
                if over && let Some(volume) = &volume {
                    self.refusals.refuse(&content.name_any());
                    self.mark(content, &[(BEING_CREATED, None)]).await?;
                    write::delete(&self.context.logical_volumes(), volume.name(), volume.uid()).await?;
                }
                return Ok(Outcome::Failed);
            }
            Act::Delete => return self.delete(content, volume.as_deref()).await,
            Act::LetGo => self.let_go(content).await?,
        }
        Ok(Outcome::Done)
    }

    async fn let_go(&self, content: &SnapshotContent) -> Result<(), kube::Error> {
        if content.spec.deletion_policy == "Delete" && content.status.is_some() {
            let gone = json!({
                "snapshotHandle": null, "creationTime": null, "restoreSize": null, "readyToUse": false,
            });
            self.tell(content, gone).await?;
        }
        let content = self.context.stores.contents.named(&content.name_any());
        if let Some(content) = content {
            let change = write::finalizers_without(content.as_ref(), &[FINALIZER]);
            write::change(&self.api(), content.as_ref(), change).await?;
        }
        Ok(())
    }

    /// What the PersistentVolume of its origin says of that.
    fn origin_of(&self, content: &SnapshotContent) -> Option<Arc<LogicalVolume>> {
        let (stores, personality) = (&self.context.stores, self.context.personality);
        let origin = content.spec.source.volume_handle.as_deref()?;
        let volume = stores.persistent.find(|volume| volume.handle(personality.driver()) == Some(origin))?;
        let class = stores.classes.named(&volume.spec.storage_class_name);
        restore::named_by(&volume, class.as_deref(), personality).map(Arc::new)
    }

    /// Makes a LogicalVolume again that is gone.
    async fn put_back(
        &self,
        content: &SnapshotContent,
        wanted: &LogicalVolume,
    ) -> Result<Outcome, kube::Error> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let node = nodes.get_opt(&wanted.spec.node_name).await?;
        if !could_remove(node.as_ref(), self.departure) {
            if content.metadata.deletion_timestamp.is_none() {
                // What becomes of the volumes of a node that leaves is decided elsewhere.
                return Ok(Outcome::Failed);
            }
            let (node, lv) = (&wanted.spec.node_name, wanted.lv());
            let content_name = content.name_any();
            tracing::warn!(
                content = content_name,
                node,
                lv,
                "is forgotten: its node has left, and its LogicalVolume is gone"
            );
            return self.let_go(content).await.map(|()| Outcome::Done);
        }
        // What stores say may be old.
        let now = self.api().get_opt(&content.name_any()).await?;
        if now.is_none_or(|now| now.metadata.resource_version != content.metadata.resource_version)
            || self.context.logical_volume(wanted.name(), wanted.lv()).await?.is_some()
        {
            return Ok(Outcome::Failed);
        }
        if let Created::Now(made) = restore::put_back(&self.context, self.about(content), wanted).await? {
            self.context.events.warn(self.about(content), "LogicalVolumeRestored", restore::is_back(&made));
            return Ok(Outcome::Done);
        }
        Ok(Outcome::Failed)
    }

    async fn delete(
        &self,
        content: &SnapshotContent,
        volume: Option<&LogicalVolume>,
    ) -> Result<Outcome, kube::Error> {
        let Some(volume) = volume else { return Ok(Outcome::Done) };
        if volume.is_deleted() {
            // Its node removes the LV, or says why it cannot, and the watch tells.
            if let Some(why) = volume.removal_failure() {
                self.tell_of_deletion(content, why).await?;
            }
            return Ok(Outcome::Done);
        }
        let of = &content.spec.volume_snapshot_ref;
        let snapshot = format!("{}/{}", of.namespace, of.name);
        tracing::info!(content = content.name_any(), snapshot, volume = volume.name(), "is to be deleted");
        match self.release.remove(volume).await? {
            Removal::Released => {
                self.removed.handles().insert(volume.lv().to_owned());
                Ok(Outcome::Done)
            }
            // The next look finds it missing.
            Removal::Vanished => Ok(Outcome::Failed),
            Removal::Kept(kept) => {
                self.tell_of_deletion(content, &kept.to_string()).await?;
                Ok(Outcome::Failed)
            }
        }
    }

    /// Says why a snapshot cannot be deleted; the same is not written twice.
    async fn tell_of_deletion(&self, content: &SnapshotContent, why: &str) -> Result<(), kube::Error> {
        self.context.events.warn(self.about(content), "SnapshotDeleteError", why);
        let said = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
        if said != Some(why) {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            self.tell(content, json!({ "error": { "message": why, "time": now } })).await?;
        }
        Ok(())
    }

    async fn mark(&self, content: &SnapshotContent, marks: &[Mark<'_>]) -> Result<(), kube::Error> {
        let changed = write::merge(&self.api(), &content.name_any(), marked(marks)).await?;
        self.context.stores.contents.answered(changed);
        Ok(())
    }

    async fn tell(&self, content: &SnapshotContent, status: Value) -> Result<(), kube::Error> {
        let patch = json!({ "metadata": { "uid": content.metadata.uid }, "status": status });
        let written = write::merge_status(&self.api(), &content.name_any(), patch).await?;
        self.context.stores.contents.answered(written);
        Ok(())
    }

    fn about(&self, content: &SnapshotContent) -> Reference {
        Reference::to(content, &())
    }

    fn api(&self) -> Api<SnapshotContent> {
        Api::all(self.context.client.clone())
    }
}

impl Looks<String> for Snapshots {
    async fn look(&self, name: &String) -> Outcome {
        let Some(content) = self.context.stores.contents.named(name) else { return Outcome::Done };
        match self.act(&content).await {
            Ok(outcome) => outcome,
            Err(error) => passes(&error).unwrap_or_else(|| {
                let told = format!("the snapshot could not be written: {}", chain(&error));
                self.context.events.warn(self.about(&content), "SnapshotContentCheckandUpdateFailed", told);
                Outcome::Failed
            }),
        }
    }
}

/// An annotation, and what it shall be; none if it shall not be.
type Mark<'a> = (&'a str, Option<&'a str>);

/// Changes these annotations, and leaves all others.
fn marked(marks: &[Mark<'_>]) -> Value {
    let marks: serde_json::Map<String, Value> =
        marks.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({ "metadata": { "annotations": marks } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;

    fn content() -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content", "uid": "c", "resourceVersion": "7", "annotations": {NODE: "n1"}},
            "spec": {
                "driver": "topolvm.io", "deletionPolicy": "Delete", "source": {"volumeHandle": "origin"},
                "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "su"},
            },
            "status": {"readyToUse": true, "snapshotHandle": "h", "restoreSize": 4096},
        })
    }

    fn logical() -> Value {
        json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "snapshot-su", "uid": "l", "annotations": {"lvms.io/adopts": "h"}},
            "spec": {"name": "snapshot-su", "nodeName": "n1", "size": "4Ki"},
        })
    }

    #[test]
    fn a_mark_that_is_taken_away_takes_no_other_annotation_along() {
        let change = marked(&[(BEING_CREATED, None), (NODE, Some("n1"))]);
        assert_eq!(change, json!({ "metadata": { "annotations": { BEING_CREATED: null, NODE: "n1" } } }));
    }

    #[tokio::test]
    async fn a_logical_volume_is_made_again_once_and_only_if_the_api_has_none_and_its_node_is_there() {
        for (is_there, has_node, made) in [(false, true, 1), (true, true, 0), (false, false, 0)] {
            let (context, asked) = scripted::context(move |request| match request {
                _ if request.starts_with("POST") => (201, logical()),
                _ if request.contains("/nodes/") && has_node => (200, json!({"metadata": {"name": "n1"}})),
                _ if request.contains("volumesnapshotcontents/") => (200, content()),
                _ if request.contains("logicalvolumes/") && is_there => (200, logical()),
                _ if request.contains("logicalvolumes?") => (200, json!({"metadata": {}, "items": []})),
                _ => (404, json!({"code": 404, "reason": "NotFound", "details": {"name": "x"}})),
            })
            .await;
            context.stores.contents.answered(serde_json::from_value(content()).unwrap());
            let release = Release::new(Arc::clone(&context));
            let snapshots = Snapshots::new(context, release, Departure::Keep);
            for _ in 0..2 {
                snapshots.look(&"content".to_owned()).await;
            }
            let posts = asked.lock().unwrap().iter().filter(|request| request.starts_with("POST")).count();
            assert_eq!(posts, made, "there: {is_there}, its node: {has_node}");
        }
    }
}
