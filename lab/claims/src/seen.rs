//! Objects of a kind, kept up to date by a watch.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{Stream, TryStreamExt};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};

/// What is awaited this long has not come.
const LIMIT: Duration = Duration::from_secs(1200);

type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>;

/// What was seen.
pub(crate) struct Seen {
    api: Api<DynamicObject>,
    all: BTreeMap<String, DynamicObject>,
    version: String,
    events: Events,
}

impl Seen {
    /// What is there now, and from now on.
    pub(crate) async fn begin(api: Api<DynamicObject>) -> Result<Seen> {
        let list = api.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.clone().context("a list without a version")?;
        let all = list.items.into_iter().map(|object| (object.name_any(), object)).collect();
        let events = watch(&api, &version).await?;
        Ok(Seen { api, all, version, events })
    }

    /// By name.
    pub(crate) fn all(&self) -> &BTreeMap<String, DynamicObject> {
        &self.all
    }

    /// Waits until what is there is as wanted.
    pub(crate) async fn until(
        &mut self,
        wanted: impl Fn(&BTreeMap<String, DynamicObject>) -> bool,
    ) -> Result<()> {
        let reached = tokio::time::timeout(LIMIT, async {
            while !wanted(&self.all) {
                self.next().await?;
            }
            anyhow::Ok(())
        });
        match reached.await {
            Ok(reached) => reached,
            Err(_) => bail!("waited {} s in vain", LIMIT.as_secs()),
        }
    }

    async fn next(&mut self) -> Result<()> {
        match self.events.try_next().await? {
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                self.version = object.resource_version().unwrap_or_default();
                self.all.insert(object.name_any(), object);
            }
            Some(WatchEvent::Deleted(object)) => {
                self.version = object.resource_version().unwrap_or_default();
                self.all.remove(&object.name_any());
            }
            Some(WatchEvent::Bookmark(mark)) => self.version = mark.metadata.resource_version,
            Some(WatchEvent::Error(error)) => bail!("the watch says {error}"),
            // The API server ends watches now and then.
            None => self.events = watch(&self.api, &self.version).await?,
        }
        Ok(())
    }
}

async fn watch(api: &Api<DynamicObject>, version: &str) -> Result<Events> {
    Ok(Box::pin(api.watch(&WatchParams::default(), version).await?))
}
