//! VolumeSnapshotContents become LogicalVolumes, as csi-snapshotter does it; VolumeSnapshots themselves are the
//! cluster's snapshot-controller's.

mod decide;

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use lvms_api::LogicalVolume;
use lvms_cluster::slim::SnapshotContent;
use lvms_cluster::store::{self, Keep, chain};
use lvms_cluster::work::{Looks, Patience, Refusals};
use lvms_cluster::write::{self, Created, is_not_found, passes};
use lvms_cluster::{Connection, Outcome, Reference, Store, Work};
use serde_json::{Value, json};

use self::decide::{Act, BEING_CREATED, FINALIZER, View, decide};
pub(crate) use self::decide::{handle, volume_name};
use crate::Context;
use crate::release::{Release, Removal};

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
    work: Arc<Work<String>>,
    /// Contents whose snapshots were refused.
    refusals: Refusals<String>,
}

impl Snapshots {
    /// Is told by contents and by their LogicalVolumes.
    pub fn new(context: Arc<Context>, release: Arc<Release>) -> Snapshots {
        let work: Arc<Work<String>> = Work::new("snapshot", PATIENCE);
        let told = Arc::clone(&work);
        context.stores.contents.listen(move |_, now| {
            if let Some(content) = now {
                told.add(content.name_any());
            }
        });
        let (told, contents) = (Arc::clone(&work), Arc::clone(&context.stores.contents));
        context.stores.volumes.listen(move |before, now| {
            let Some(volume) = now.or(before) else { return };
            let concerned = contents.filter(|content| {
                volume_name(content) == volume.name()
                    || (volume.volume_id().is_some()
                        && content.spec.source.volume_handle.as_deref() == volume.volume_id())
                    || (handle(content).is_some() && handle(content) == volume.volume_id())
            });
            for content in concerned {
                told.add(content.name_any());
            }
        });
        Snapshots { context, release, work, refusals: Refusals::new(PATIENCE) }
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
            Some(handle) => self.context.stores.by_handle(handle),
            None => volumes.named(&volume_name(content)),
        };
        let act = decide(&View {
            personality: self.context.personality,
            content,
            origin: origin.as_deref(),
            volume: volume.as_deref(),
        });
        tracing::debug!(content = content.name_any(), ?act, "looked at");
        match act {
            Act::Nothing => {}
            Act::Mark => self.mark(content, json!("yes")).await?,
            Act::Unmark => self.mark(content, Value::Null).await?,
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
                    self.mark(content, Value::Null).await?;
                    write::delete(&self.context.logical_volumes(), volume.name(), volume.uid()).await?;
                }
                return Ok(Outcome::Failed);
            }
            Act::Delete => return self.delete(content, volume.as_deref()).await,
            Act::LetGo => {
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
            }
        }
        Ok(Outcome::Done)
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
        tracing::info!(content = content.name_any(), volume = volume.name(), "is to be deleted");
        if let Removal::Kept(kept) = self.release.remove(volume).await? {
            self.tell_of_deletion(content, &kept.to_string()).await?;
            return Ok(Outcome::Failed);
        }
        Ok(Outcome::Done)
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

    async fn mark(&self, content: &SnapshotContent, value: Value) -> Result<(), kube::Error> {
        let change = json!({ "metadata": { "annotations": { BEING_CREATED: value } } });
        let changed = write::merge(&self.api(), &content.name_any(), change).await?;
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
