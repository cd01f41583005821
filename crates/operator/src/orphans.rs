//! LogicalVolumes that nothing names: what a claim that was deleted in the middle has left, what was to be retained, and
//! what was restored from a backup beside the LV that its PersistentVolume names.
//!
//! One is collected only if it never had an LV, or its node says that nobody has ever used that; otherwise it is
//! somebody's data, and told.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use lvms_api::LogicalVolume;
use lvms_api::names::{ADOPTS, CLAIM, ORPHANED, UNUSED};
use lvms_cluster::slim::{Claim, PersistentVolume, SnapshotContent};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, is_not_found, passes};
use lvms_cluster::{Outcome, Work, pages};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::Context;
use crate::release::{Kept, Release, Removal};
use crate::snapshot;

const PATIENCE: Patience = Patience { first: Duration::from_secs(5), longest: Duration::from_secs(300) };

const AT_ONCE: usize = 4;

/// What to do next about one.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    /// Nothing: it is told already, or its node is asked.
    Nothing,
    /// Ask its node whether anybody has ever used it; that tells, if somebody has.
    Mark,
    /// Take back what was asked and answered: somebody wants it again, and may use it from now on.
    Unmark,
    /// Delete it.
    Collect,
}

/// Collects what nobody wants.
pub struct Orphans {
    context: Arc<Context>,
    release: Arc<Release>,
    work: Arc<Work<String>>,
}

/// What a LogicalVolume was made for.
#[derive(Debug, PartialEq, Eq)]
enum MadeFor<'a> {
    /// A claim, with this uid.
    Claim(&'a str),
    /// A VolumeSnapshot.
    Snapshot,
}

/// What a LogicalVolume was made for, by us or by TopoLVM; `None` if a client of CSI has asked for it by another name.
fn made_for(volume: &LogicalVolume) -> Option<MadeFor<'_>> {
    let uid =
        |prefix| volume.name().strip_prefix(prefix).filter(|uid: &&str| uuid::Uuid::try_parse(uid).is_ok());
    if volume.is_snapshot() {
        return uid("snapshot-").map(|_| MadeFor::Snapshot);
    }
    uid("pvc-").map(MadeFor::Claim)
}

/// Whether a volume's claim or the PersistentVolume of its name wants it. One that names another LV does not, and then
/// the claim has that.
fn is_named(volume: &LogicalVolume, named: Option<&PersistentVolume>, driver: &str, has_claim: bool) -> bool {
    named.map_or(has_claim, |named| named.handle(driver) == Some(volume.lv()))
}

/// Whether its node was asked about it, or has answered.
fn is_marked(volume: &LogicalVolume) -> bool {
    [ORPHANED, UNUSED].iter().any(|mark| volume.annotation(mark).is_some())
}

/// Whether a content is a snapshot that a LogicalVolume is, or is going to be.
fn is_of(content: &SnapshotContent, volume: &LogicalVolume) -> bool {
    snapshot::handle(content) == Some(volume.lv()) || snapshot::volume_name(content) == volume.name()
}

impl Orphans {
    /// Is told by claims that are gone, and by LogicalVolumes.
    pub fn new(context: Arc<Context>, release: Arc<Release>) -> Orphans {
        let work: Arc<Work<String>> = Work::new("orphans", PATIENCE);
        let driver = context.personality.driver();
        let (told, volumes) = (Arc::clone(&work), Arc::clone(&context.stores.volumes));
        context.stores.claims.listen(move |before, now| {
            if now.is_none()
                && let Some(claim) = before
                && let Some(volume) = volumes.named(&format!("pvc-{}", claim.uid()))
            {
                told.add(volume.name().to_owned());
            }
        });
        let (told, volumes) = (Arc::clone(&work), Arc::clone(&context.stores.volumes));
        context.stores.persistent.listen(move |before, now| {
            let concerned = match (before, now) {
                (_, Some(now)) => {
                    let handle = now.handle(driver);
                    let of_its_name = volumes.named(now.name());
                    of_its_name
                        .filter(|volume| !is_named(volume, Some(now), driver, false))
                        .or_else(|| volumes.find(|volume| is_marked(volume) && handle == Some(volume.lv())))
                }
                (Some(before), None) => {
                    let handle = before.handle(driver);
                    volumes.find(|volume| handle == Some(volume.lv()))
                }
                (None, None) => None,
            };
            if let Some(volume) = concerned {
                told.add(volume.name().to_owned());
            }
        });
        let (told, volumes) = (Arc::clone(&work), Arc::clone(&context.stores.volumes));
        context.stores.contents.listen(move |before, now| {
            if let Some(content) = now.or(before)
                && let Some(volume) =
                    volumes.find(|volume| (now.is_none() || is_marked(volume)) && is_of(content, volume))
            {
                told.add(volume.name().to_owned());
            }
        });
        let told = Arc::clone(&work);
        context.stores.volumes.listen(move |before, now| {
            // A snapshot may be taken long after its content has gone.
            let is_made = |volume: &LogicalVolume| volume.volume_id().is_some();
            if let Some(volume) = now
                && made_for(volume).is_some()
                && !volume.is_deleted()
                && (before.is_none_or(|before| !is_made(before) && is_made(volume)) || volume.is_unused())
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
        let (work, context) = (Arc::clone(&self.work), Arc::clone(&self.context));
        let snapshots = async {
            // What was looked at before they were known has to be looked at again.
            context.stores.contents.complete().await;
            for volume in context.stores.volumes.filter(LogicalVolume::is_snapshot) {
                work.add(volume.name().to_owned());
            }
        };
        tokio::join!(Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE), snapshots);
    }

    async fn act(&self, volume: &LogicalVolume) -> Result<(), kube::Error> {
        let Some(made_for) = made_for(volume).filter(|_| !volume.is_deleted()) else { return Ok(()) };
        let known = self.is_known_to_be_wanted(volume, &made_for);
        let mut act = decide(volume, known);
        if matches!(act, Act::Mark | Act::Collect) && self.is_wanted(volume, &made_for).await? {
            act = decide(volume, true);
        }
        match act {
            Act::Nothing => Ok(()),
            Act::Collect => {
                tracing::info!(
                    volume = volume.name(),
                    claim = volume.annotation(CLAIM),
                    "nobody wants it any more"
                );
                match self.release.remove(volume).await? {
                    Removal::Kept(Kept::Named(_) | Kept::Claimed(_)) => self.mark(volume, None).await,
                    Removal::Kept(Kept::DefinitionGoes) | Removal::Released | Removal::Vanished => Ok(()),
                }
            }
            Act::Mark => self.mark(volume, Some(jiff::Timestamp::now().to_string())).await,
            Act::Unmark => self.mark(volume, None).await,
        }
    }

    /// Writes since when nobody wants it. Whatever its node has said before is about another time.
    async fn mark(&self, volume: &LogicalVolume, orphaned: Option<String>) -> Result<(), kube::Error> {
        let change = json!({ "metadata": { "annotations": { ORPHANED: orphaned, UNUSED: null } } });
        let changed = write::change(&self.context.logical_volumes(), volume, change).await?;
        self.context.stores.volumes.answered(changed);
        Ok(())
    }

    /// Whether something that we have been told of wants it.
    fn is_known_to_be_wanted(&self, volume: &LogicalVolume, made_for: &MadeFor<'_>) -> bool {
        let (stores, driver) = (&self.context.stores, self.context.personality.driver());
        match made_for {
            MadeFor::Snapshot => stores.contents.find(|content| is_of(content, volume)).is_some(),
            MadeFor::Claim(uid) => {
                let of_its_name = stores.persistent.named(volume.name());
                let claim = stores.claims.find(|claim| claim.uid() == *uid).is_some();
                is_named(volume, of_its_name.as_deref(), driver, claim)
                    || stores.persistent.find(|one| one.handle(driver) == Some(volume.lv())).is_some()
            }
        }
    }

    /// Whether something wants it that we may not have been told of: that nothing does is said by the API itself.
    async fn is_wanted(&self, volume: &LogicalVolume, made_for: &MadeFor<'_>) -> Result<bool, kube::Error> {
        let (stores, driver) = (&self.context.stores, self.context.personality.driver());
        match made_for {
            MadeFor::Snapshot => Ok(!stores.contents.is_complete() || self.has_content(volume).await?),
            MadeFor::Claim(uid) => {
                let volumes: Api<PersistentVolume> = Api::all(self.context.client.clone());
                let of_its_name = volumes.get_opt(volume.name()).await?;
                let claim = of_its_name.is_none() && self.has_claim(volume, uid).await?;
                Ok(is_named(volume, of_its_name.as_ref(), driver, claim))
            }
        }
    }

    /// Whether the claim that it was made for is there. TopoLVM does not note which that was.
    async fn has_claim(&self, volume: &LogicalVolume, uid: &str) -> Result<bool, kube::Error> {
        if let Some((namespace, name)) = volume.annotation(CLAIM).and_then(|claim| claim.split_once('/')) {
            let claims: Api<Claim> = Api::namespaced(self.context.client.clone(), namespace);
            return Ok(claims.get_opt(name).await?.is_some_and(|claim| claim.uid() == uid));
        }
        let claims: Api<Claim> = Api::all(self.context.client.clone());
        any(&claims, |claim| claim.uid() == uid).await
    }

    /// Whether there is a VolumeSnapshotContent for it. Without the snapshot API it is not known.
    async fn has_content(&self, volume: &LogicalVolume) -> Result<bool, kube::Error> {
        let contents: Api<SnapshotContent> = Api::all(self.context.client.clone());
        match any(&contents, |content| is_of(content, volume)).await {
            Err(error) if is_not_found(&error) => Ok(true),
            found => found,
        }
    }
}

/// Whether the API has an object that fulfils something.
async fn any<K>(api: &Api<K>, wanted: impl Fn(&K) -> bool) -> Result<bool, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let look = |object: K| if wanted(&object) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    Ok(pages::each(api, ListParams::default(), look).await?.is_some())
}

/// What to do about a LogicalVolume that somebody wants, or nobody any more.
fn decide(volume: &LogicalVolume, wanted: bool) -> Act {
    if wanted {
        return if is_marked(volume) { Act::Unmark } else { Act::Nothing };
    }
    if volume.is_snapshot() {
        let told = volume.volume_id().is_none() || volume.annotation(ORPHANED).is_some();
        return if told { Act::Nothing } else { Act::Mark };
    }
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
                let about = lvms_cluster::Reference::to(volume.as_ref(), &self.context.personality);
                let told = format!("it is not known whether somebody wants it: {}", chain(&error));
                self.context.events.warn(about, "Retained", told);
                Outcome::Failed
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn volume(annotations: &Value, status: &Value) -> LogicalVolume {
        let volume = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "pvc-1", "uid": "own", "annotations": annotations},
            "spec": {"name": "pvc-1", "nodeName": "n1", "size": "1Gi"}, "status": status,
        });
        serde_json::from_value(volume).unwrap()
    }

    fn decided(annotations: &Value, status: &Value) -> Act {
        decide(&volume(annotations, status), false)
    }

    #[test]
    fn what_nobody_wants_is_collected_only_if_it_has_no_lv_or_nobody_has_used_that() {
        let made = json!({"volumeID": "lv", "currentSize": "1Gi"});
        assert_eq!(decided(&json!({}), &Value::Null), Act::Collect);
        assert_eq!(decided(&json!({}), &json!({"code": 8, "message": "no room"})), Act::Collect);
        assert_eq!(decided(&json!({}), &made), Act::Mark);
        assert_eq!(decided(&json!({ORPHANED: "now"}), &made), Act::Nothing);
        assert_eq!(decided(&json!({ORPHANED: "now", UNUSED: "own/now"}), &made), Act::Collect);
        assert_eq!(decided(&json!({ORPHANED: "now", UNUSED: "of a backup/now"}), &made), Act::Nothing);
    }

    #[test]
    fn what_somebody_wants_again_is_not_taken_for_unused_when_nobody_does_any_more() {
        let made = json!({"volumeID": "lv", "currentSize": "1Gi"});
        let wanted = |annotations: &Value| decide(&volume(annotations, &made), true);
        assert_eq!(wanted(&json!({ORPHANED: "then", UNUSED: "own/then"})), Act::Unmark);
        assert_eq!(wanted(&json!({ORPHANED: "then"})), Act::Unmark);
        assert_eq!(wanted(&json!({UNUSED: "own/then"})), Act::Unmark);
        assert_eq!(wanted(&json!({})), Act::Nothing);
        // Then nobody does.
        assert_eq!(decided(&json!({}), &made), Act::Mark);
        assert_eq!(decided(&json!({UNUSED: "own/then"}), &made), Act::Mark);
        assert_eq!(decided(&json!({ORPHANED: "now", UNUSED: "own/then"}), &made), Act::Nothing);
        let mut snapshot = volume(&json!({ORPHANED: "then"}), &made);
        (snapshot.spec.source, snapshot.spec.access_type) = ("pvc-0".into(), "ro".into());
        assert_eq!(decide(&snapshot, true), Act::Unmark);
    }

    #[test]
    fn what_was_retained_is_told_whoever_made_it_and_a_snapshot_is_never_collected() {
        let uid = "4a7f3a60-7b0c-4c1e-9a53-3b8a5f7c2d11";
        let read = |name: &str, spec: Value, status: Value| -> LogicalVolume {
            let mut volume = json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name, "uid": "own"},
                "spec": {"name": name, "nodeName": "n1", "size": "1Gi"}, "status": status,
            });
            for (key, value) in spec.as_object().unwrap() {
                volume["spec"][key] = value.clone();
            }
            serde_json::from_value(volume).unwrap()
        };
        let made = json!({"volumeID": "own", "currentSize": "1Gi"});
        let of_topolvm = read(&format!("pvc-{uid}"), json!({}), made.clone());
        assert_eq!(
            (made_for(&of_topolvm), decide(&of_topolvm, false)),
            (Some(MadeFor::Claim(uid)), Act::Mark)
        );
        let ro = json!({"source": "pvc-0", "accessType": "ro"});
        let mut snapshot = read(&format!("snapshot-{uid}"), ro.clone(), made.clone());
        assert_eq!((made_for(&snapshot), decide(&snapshot, false)), (Some(MadeFor::Snapshot), Act::Mark));
        snapshot.metadata.annotations = Some(
            [(ORPHANED, "now"), (UNUSED, "own/now")].map(|(key, said)| (key.into(), said.into())).into(),
        );
        assert_eq!(decide(&snapshot, false), Act::Nothing);
        assert_eq!(decide(&read(&format!("snapshot-{uid}"), ro, Value::Null), false), Act::Nothing);
        for by_hand in ["data", "pvc-data", uid] {
            assert_eq!(made_for(&read(by_hand, json!({}), made.clone())), None, "{by_hand}");
        }
    }

    #[test]
    fn a_volume_is_wanted_by_what_names_its_lv_or_by_a_claim_that_has_no_other() {
        let volume: LogicalVolume = serde_json::from_value(json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "pvc-1", "uid": "own"},
        }))
        .unwrap();
        let of = |handle: &str| -> PersistentVolume {
            let csi = json!({"driver": "topolvm.io", "volumeHandle": handle});
            serde_json::from_value(json!({"metadata": {"name": "pvc-1"}, "spec": {"csi": csi}})).unwrap()
        };
        let is_named = |named: Option<PersistentVolume>, claim: bool| {
            super::is_named(&volume, named.as_ref(), "topolvm.io", claim)
        };
        assert!(is_named(Some(of("own")), false));
        assert!(is_named(None, true));
        assert!(!is_named(None, false));
        // It was restored from a backup, and its data is in the LV that its PersistentVolume names.
        assert!(!is_named(Some(of("former")), true));
    }

    #[test]
    fn what_adopts_an_lv_is_somebodys_data_though_its_node_has_not_told_of_it() {
        assert_eq!(decided(&json!({ADOPTS: "lv"}), &Value::Null), Act::Mark);
        assert_eq!(decided(&json!({ADOPTS: "lv", ORPHANED: "now"}), &Value::Null), Act::Nothing);
        assert_eq!(
            decided(&json!({ADOPTS: "lv", ORPHANED: "now", UNUSED: "own/now"}), &Value::Null),
            Act::Nothing
        );
    }
}
