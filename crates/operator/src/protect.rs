//! The source of a copy stays until the copy is there: finalizers on claims and VolumeSnapshots, as external-provisioner
//! puts them there.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, Resource};
use lvms_cluster::slim::{
    Claim, DataSource, PersistentVolume, SnapshotContent, VolumeSnapshot, has_finalizer,
};
use lvms_cluster::store::chain;
use lvms_cluster::work::Patience;
use lvms_cluster::write::{self, is_not_found, passes};
use lvms_cluster::{Key, Outcome, Reference, Work, pages};
use serde::de::DeserializeOwned;
use tokio::sync::RwLock;

use crate::Context;

const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

const AT_ONCE: usize = 4;

/// So often VolumeSnapshots are looked through: one may have been left protected by a leader that was killed.
const SWEEP: Duration = Duration::from_secs(600);

/// What copies are made from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// A claim.
    Claim(Key),
    /// A VolumeSnapshot.
    Snapshot(Key),
}

impl Item {
    /// What a claim is a copy of.
    fn of(claim: &Claim) -> Option<Item> {
        let DataSource { api_group, kind, name, .. } = claim.source()?;
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        let key = Key { namespace, name: name.clone() };
        match (api_group.as_deref().unwrap_or_default(), kind.as_str()) {
            ("", "PersistentVolumeClaim") => Some(Item::Claim(key)),
            ("snapshot.storage.k8s.io", "VolumeSnapshot") => Some(Item::Snapshot(key)),
            _ => None,
        }
    }
}

/// On a claim that is cloned.
pub(crate) const CLONED: &str = "provisioner.storage.kubernetes.io/cloning-protection";

/// On a VolumeSnapshot that is restored.
pub(crate) const RESTORED: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

/// Protects sources.
pub struct Protect {
    context: Arc<Context>,
    work: Arc<Work<Item>>,
    /// Who lets a source go is alone: a claim that comes meanwhile protects it afterwards, and is not content with what is
    /// just taken away.
    turn: RwLock<()>,
}

impl Protect {
    /// Is told by claims.
    pub fn new(context: Arc<Context>) -> Arc<Protect> {
        let work: Arc<Work<Item>> = Work::new("protect", PATIENCE);
        let told = Arc::clone(&work);
        context.stores.claims.listen(move |before, now| {
            if let Some(item) = now.or(before).and_then(|claim| Item::of(claim)) {
                told.add(item);
            }
            if let Some(claim) = now
                && has_finalizer(&claim.metadata, CLONED)
            {
                told.add(Item::Claim(Key::of(claim.as_ref())));
            }
        });
        Arc::new(Protect { context, work, turn: RwLock::default() })
    }

    /// What waits.
    pub fn work(&self) -> Arc<Work<Item>> {
        Arc::clone(&self.work)
    }

    /// Lets sources go that nobody copies any more, for ever.
    pub async fn run(self: Arc<Self>) {
        let work = Arc::clone(&self.work);
        let sweeps = Arc::clone(&self).sweep();
        let looks = work.run(AT_ONCE, move |item| {
            let protect = Arc::clone(&self);
            async move { protect.look(&item).await }
        });
        tokio::join!(looks, sweeps);
    }

    /// Keeps the source of a claim's volume from going, before the copy is begun.
    pub async fn protect(&self, claim: &Claim) -> Result<(), kube::Error> {
        let _turn = self.turn.read().await;
        match Item::of(claim) {
            None => Ok(()),
            Some(Item::Claim(ref key)) => protect::<Claim>(&self.api(key), key, CLONED).await,
            Some(Item::Snapshot(ref key)) => protect::<VolumeSnapshot>(&self.api(key), key, RESTORED).await,
        }
    }

    async fn look(&self, item: &Item) -> Outcome {
        let turn = self.turn.write().await;
        let waiting = self
            .context
            .stores
            .claims
            .find(|claim| claim.spec.volume_name.is_empty() && Item::of(claim).as_ref() == Some(item));
        if waiting.is_some() {
            return Outcome::Done;
        }
        let done = match item {
            Item::Claim(key) => self.unprotect_claim(key).await,
            Item::Snapshot(key) => self.unprotect_snapshot(key).await,
        };
        drop(turn);
        match done {
            Ok(()) => Outcome::Done,
            Err(error) => match passes(&error) {
                Some(outcome) => outcome,
                None => {
                    self.tell_of_refusal(item, &error).await;
                    Outcome::Failed
                }
            },
        }
    }

    /// Tells of what the API does not take where people look: at the source.
    async fn tell_of_refusal(&self, item: &Item, error: &kube::Error) {
        let about = match item {
            Item::Claim(key) => {
                let claim = self.context.stores.claims.get(key);
                claim.map(|claim| Reference::to(claim.as_ref(), &()))
            }
            Item::Snapshot(key) => {
                let snapshot = self.api::<VolumeSnapshot>(key).get_opt(&key.name).await;
                snapshot.ok().flatten().map(|snapshot| Reference::to(&snapshot, &()))
            }
        };
        let error = chain(error);
        match about {
            Some(about) => {
                let told = format!("it is not copied any more, and cannot be let go: {error}");
                self.context.events.warn(about, "StillProtected", told);
            }
            None => tracing::warn!(?item, error, "a source is still protected"),
        }
    }

    /// Other provisioners use the same finalizers: theirs are left alone.
    async fn unprotect_claim(&self, key: &Key) -> Result<(), kube::Error> {
        let api: Api<Claim> = self.api(key);
        let volumes: Api<PersistentVolume> = Api::all(self.context.client.clone());
        // What is not bound is not copied by us.
        let claim = api.get_opt(&key.name).await?.filter(|claim| !claim.spec.volume_name.is_empty());
        let Some(claim) = claim.filter(|claim| has_finalizer(&claim.metadata, CLONED)) else { return Ok(()) };
        let bound = volumes.get_opt(&claim.spec.volume_name).await?;
        if !may_be_ours(bound.as_ref(), self.context.personality.driver()) {
            return Ok(());
        }
        unprotect(&api, &claim, CLONED).await
    }

    async fn unprotect_snapshot(&self, key: &Key) -> Result<(), kube::Error> {
        let api: Api<VolumeSnapshot> = self.api(key);
        let contents: Api<SnapshotContent> = Api::all(self.context.client.clone());
        let Some(snapshot) = api.get_opt(&key.name).await? else { return Ok(()) };
        let Some(bound) = &snapshot.status.bound_volume_snapshot_content_name else { return Ok(()) };
        let content = contents.get_opt(bound).await?;
        // Of what is gone nobody knows better.
        if content.is_some_and(|one| one.spec.driver != self.context.personality.driver()) {
            return Ok(());
        }
        unprotect(&api, &snapshot, RESTORED).await
    }

    async fn sweep(self: Arc<Self>) {
        loop {
            let api: Api<VolumeSnapshot> = Api::all(self.context.client.clone());
            let look = |snapshot: VolumeSnapshot| {
                if has_finalizer(&snapshot.metadata, RESTORED) {
                    self.work.add(Item::Snapshot(Key::of(&snapshot)));
                }
                ControlFlow::<()>::Continue(())
            };
            match pages::each(&api, ListParams::default(), look).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => {
                    tracing::debug!(error = %chain(&error), "VolumeSnapshots cannot be looked through");
                }
            }
            tokio::time::sleep(SWEEP).await;
        }
    }

    fn api<K>(&self, key: &Key) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.context.client.clone(), &key.namespace)
    }
}

async fn protect<K>(api: &Api<K>, key: &Key, finalizer: &str) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let Some(object) = api.get_opt(&key.name).await? else { return Ok(()) };
    if !has_finalizer(object.meta(), finalizer) {
        write::change(api, &object, write::finalizers_with(&object, finalizer)).await?;
    }
    Ok(())
}

async fn unprotect<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    if has_finalizer(object.meta(), finalizer) {
        write::change(api, object, write::finalizers_without(object, &[finalizer])).await?;
    }
    Ok(())
}

/// Whether a claim that is bound to this may have been copied by us. Of one whose volume is gone nobody knows better.
fn may_be_ours(bound: Option<&PersistentVolume>, driver: &str) -> bool {
    bound.is_none_or(|bound| bound.handle(driver).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;
    use serde_json::json;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::sync::mpsc;

    #[test]
    fn what_another_driver_protects_stays_protected() {
        let of = |driver: &str| -> PersistentVolume {
            let csi = json!({"driver": driver, "volumeHandle": "h"});
            serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": {"csi": csi}})).unwrap()
        };
        assert!(may_be_ours(Some(&of("topolvm.io")), "topolvm.io"));
        assert!(!may_be_ours(Some(&of("other")), "topolvm.io"));
        assert!(may_be_ours(None, "topolvm.io"));
    }

    #[tokio::test]
    async fn a_snapshot_is_let_go_though_its_content_is_gone_and_that_of_another_driver_is_not() {
        for (content, is_let_go) in [(None, true), (Some("topolvm.io"), true), (Some("other"), false)] {
            let answer = move |asked: &str| match (asked, content) {
                (asked, Some(driver)) if asked.contains("volumesnapshotcontents") => {
                    let spec = json!({
                        "driver": driver, "deletionPolicy": "Delete", "source": {}, "volumeSnapshotRef": {},
                    });
                    (200, json!({"metadata": {"name": "content"}, "spec": spec}))
                }
                (asked, None) if asked.contains("volumesnapshotcontents") => {
                    (404, json!({"code": 404, "reason": "NotFound"}))
                }
                _ => {
                    let metadata =
                        json!({"namespace": "ns", "name": "s", "uid": "u", "finalizers": [RESTORED]});
                    let status = json!({"boundVolumeSnapshotContentName": "content"});
                    (200, json!({"metadata": metadata, "status": status}))
                }
            };
            let (context, asked) = scripted::context(answer).await;
            let key = Key { namespace: "ns".to_owned(), name: "s".to_owned() };
            Protect::new(context).unprotect_snapshot(&key).await.unwrap();
            let changed = scripted::but_events(&asked).iter().any(|asked| asked.starts_with("PATCH"));
            assert_eq!(changed, is_let_go, "{content:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_source_that_is_let_go_while_another_copy_is_begun_is_protected_again() {
        let is_protected = Arc::new(AtomicBool::new(true));
        let (reached, mut let_go) = mpsc::unbounded_channel();
        let (begun, is_begun) = std::sync::mpsc::channel::<()>();
        let (is_begun, now) = (Mutex::new(is_begun), Arc::clone(&is_protected));
        let (context, _) = scripted::context(move |request| {
            if request.contains("/persistentvolumes/") {
                // Nobody is known to wait, and the finalizer is still there.
                reached.send(()).unwrap();
                let _ = is_begun.lock().unwrap().recv_timeout(Duration::from_secs(1));
                return (404, json!({"code": 404, "reason": "NotFound", "details": {"name": "pvc-1"}}));
            }
            let before = now.load(Ordering::SeqCst);
            if request.starts_with("PATCH") {
                now.store(!before, Ordering::SeqCst);
            }
            let finalizers = if before { vec![CLONED] } else { vec![] };
            let metadata = json!({"namespace": "ns", "name": "data", "uid": "u", "finalizers": finalizers});
            (200, json!({"metadata": metadata, "spec": {"volumeName": "pvc-1"}}))
        })
        .await;
        let protect = Protect::new(Arc::clone(&context));
        let looking = {
            let protect = Arc::clone(&protect);
            let source = Item::Claim(Key { namespace: "ns".to_owned(), name: "data".to_owned() });
            tokio::spawn(async move { protect.look(&source).await })
        };
        let_go.recv().await.unwrap();
        let copy = json!({
            "metadata": {"namespace": "ns", "name": "copy", "uid": "c"},
            "spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "data"}},
        });
        let copy: Claim = serde_json::from_value(copy).unwrap();
        context.stores.claims.answered(copy.clone());
        protect.protect(&copy).await.unwrap();
        let _ = begun.send(());
        assert_eq!(looking.await.unwrap(), Outcome::Done);
        assert!(is_protected.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn what_cannot_be_let_go_is_told_of_the_source() {
        let (context, asked) =
            scripted::context(|_| (403, json!({"code": 403, "message": "the lab refuses it"}))).await;
        let protect = Protect::new(Arc::clone(&context));
        let claim = json!({
            "metadata": {"namespace": "ns", "name": "data", "uid": "u", "finalizers": [CLONED]},
            "spec": {"volumeName": "pvc-1"},
        });
        let claim: Claim = serde_json::from_value(claim).unwrap();
        let key = Key::of(&claim);
        context.stores.claims.answered(claim);
        assert_eq!(protect.look(&Item::Claim(key)).await, Outcome::Failed);
        let told = scripted::told(&asked, "StillProtected").await;
        assert!(told.contains("the lab refuses it"), "{told}");
    }
}
