//! What a claim that was deleted in the middle has left: a LogicalVolume without claim and PersistentVolume.
//!
//! It is collected only if it never had an LV, or its node says that nobody has ever used that; otherwise it is
//! somebody's data, and told.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use lvms_api::LogicalVolume;
use lvms_api::names::{ADOPTS, CLAIM, ORPHANED};
use lvms_cluster::slim::{Claim, PersistentVolume};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, passes};
use lvms_cluster::{Outcome, Work};
use serde_json::json;

use crate::Context;
use crate::release::Release;

const PATIENCE: Patience = Patience { first: Duration::from_secs(5), longest: Duration::from_secs(300) };

const AT_ONCE: usize = 4;

/// What to do next about one.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    /// Nothing: it is told already, or its node is asked.
    Nothing,
    /// Ask its node whether anybody has ever used it; that tells, if somebody has.
    Mark,
    /// Delete it.
    Collect,
}

/// Collects what nobody wants.
pub struct Orphans {
    context: Arc<Context>,
    release: Arc<Release>,
    work: Arc<Work<String>>,
}

/// The uid of the claim that a LogicalVolume was made for.
fn claim_of(volume: &LogicalVolume) -> Option<&str> {
    volume.annotation(CLAIM)?;
    volume.name().strip_prefix("pvc-")
}

impl Orphans {
    /// Is told by claims that are gone, and by LogicalVolumes.
    pub fn new(context: Arc<Context>, release: Arc<Release>) -> Orphans {
        let work: Arc<Work<String>> = Work::new("orphans", PATIENCE);
        let (told, volumes) = (Arc::clone(&work), Arc::clone(&context.stores.volumes));
        context.stores.claims.listen(move |before, now| {
            if now.is_none()
                && let Some(claim) = before
                && let Some(volume) = volumes.named(&format!("pvc-{}", claim.uid()))
            {
                told.add(volume.name().to_owned());
            }
        });
        let told = Arc::clone(&work);
        context.stores.persistent.listen(move |before, now| {
            if now.is_none()
                && let Some(volume) = before
            {
                told.add(volume.name().to_owned());
            }
        });
        let told = Arc::clone(&work);
        context.stores.volumes.listen(move |before, now| {
            if let Some(volume) = now
                && claim_of(volume).is_some()
                && !volume.is_deleted()
                && (before.is_none() || volume.is_unused())
            {
                told.add(volume.name().to_owned());
            }
        });
        Orphans { context, release, work }
    }

    /// The names that wait.
    pub fn work(&self) -> Arc<Work<String>> {
        Arc::clone(&self.work)
    }

    /// Collects for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    async fn act(&self, volume: &LogicalVolume) -> Result<(), kube::Error> {
        let stores = &self.context.stores;
        let Some(uid) = claim_of(volume).filter(|_| !volume.is_deleted()) else { return Ok(()) };
        let known = stores.claims.find(|claim| claim.uid() == uid).is_some()
            || stores.persistent.named(volume.name()).is_some();
        if known || self.is_wanted(volume, uid).await? {
            return Ok(());
        }
        match decide(volume) {
            Act::Nothing => {}
            Act::Collect => {
                tracing::info!(
                    volume = volume.name(),
                    claim = volume.annotation(CLAIM),
                    "nobody wants it any more"
                );
                self.release.remove(volume).await?;
            }
            Act::Mark => {
                let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let change = json!({ "metadata": { "annotations": { ORPHANED: now } } });
                let changed = write::change(&self.context.logical_volumes(), volume, change).await?;
                stores.volumes.answered(changed);
            }
        }
        Ok(())
    }

    /// Whether the API itself knows somebody who wants it.
    async fn is_wanted(&self, volume: &LogicalVolume, uid: &str) -> Result<bool, kube::Error> {
        let (namespace, name) =
            volume.annotation(CLAIM).and_then(|claim| claim.split_once('/')).unwrap_or_default();
        let claims: Api<Claim> = Api::namespaced(self.context.client.clone(), namespace);
        if claims.get_opt(name).await?.is_some_and(|claim| claim.uid() == uid) {
            return Ok(true);
        }
        let volumes: Api<PersistentVolume> = Api::all(self.context.client.clone());
        Ok(volumes.get_opt(volume.name()).await?.is_some())
    }
}

/// What to do about a LogicalVolume that nobody wants any more.
fn decide(volume: &LogicalVolume) -> Act {
    // What adopts an LV has one, with somebody's data, though its node has not told of it yet.
    let never_had_one = volume.volume_id().is_none() && volume.annotation(ADOPTS).is_none();
    if never_had_one || (volume.is_unused() && volume.volume_id().is_some()) {
        Act::Collect
    } else if volume.annotation(ORPHANED).is_none() {
        Act::Mark
    } else {
        Act::Nothing
    }
}

impl Looks<String> for Orphans {
    async fn look(&self, name: &String) -> Outcome {
        let Some(volume) = self.context.stores.volumes.named(name) else { return Outcome::Done };
        match self.act(&volume).await {
            Ok(()) => Outcome::Done,
            Err(error) => passes(&error).unwrap_or_else(|| {
                tracing::warn!(volume = name, error = %chain(&error), "whether somebody wants it is not known");
                Outcome::Failed
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::names::UNUSED;
    use serde_json::Value;

    fn decided(annotations: &Value, status: &Value) -> Act {
        let volume = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "pvc-1", "uid": "own", "annotations": annotations},
            "spec": {"name": "pvc-1", "nodeName": "n1", "size": "1Gi"}, "status": status,
        });
        decide(&serde_json::from_value(volume).unwrap())
    }

    #[test]
    fn what_nobody_wants_is_collected_only_if_it_has_no_lv_or_nobody_has_used_that() {
        let made = json!({"volumeID": "lv", "currentSize": "1Gi"});
        assert_eq!(decided(&json!({}), &Value::Null), Act::Collect);
        assert_eq!(decided(&json!({}), &json!({"code": 8, "message": "no room"})), Act::Collect);
        assert_eq!(decided(&json!({}), &made), Act::Mark);
        assert_eq!(decided(&json!({ORPHANED: "now"}), &made), Act::Nothing);
        assert_eq!(decided(&json!({ORPHANED: "now", UNUSED: "own"}), &made), Act::Collect);
        assert_eq!(decided(&json!({ORPHANED: "now", UNUSED: "of a backup"}), &made), Act::Nothing);
    }

    #[test]
    fn what_adopts_an_lv_is_somebodys_data_though_its_node_has_not_told_of_it() {
        assert_eq!(decided(&json!({ADOPTS: "lv"}), &Value::Null), Act::Mark);
        assert_eq!(decided(&json!({ADOPTS: "lv", ORPHANED: "now"}), &Value::Null), Act::Nothing);
        assert_eq!(
            decided(&json!({ADOPTS: "lv", ORPHANED: "now", UNUSED: "own"}), &Value::Null),
            Act::Nothing
        );
    }
}
