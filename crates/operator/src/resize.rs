//! A claim that asks for more gets it: its LogicalVolume grows on its node, then its PersistentVolume says so, then the
//! kubelet grows the filesystem. As external-resizer does it, with recovery from requests that cannot be fulfilled.

mod decide;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, ResourceExt};
use lvms_api::names::RESIZE_REQUESTED;
use lvms_api::{LogicalVolume, Personality, Quantity};
use lvms_cluster::slim::{Claim, ClaimCondition, ClaimReference, PersistentVolume, Pod};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, is_not_found, passes};
use lvms_cluster::{Key, Outcome, Reference, Work, pages};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::decide::{Act, CONDITIONS, State, View, decide};
use crate::Context;

/// What failed is tried again after a second, and later at the most after five minutes.
const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(300) };

/// What cannot be fulfilled is tried again after so long; a smaller request is looked at at once.
const INFEASIBLE: Duration = Duration::from_secs(600);

const AT_ONCE: usize = 16;

/// On a PersistentVolume: what its claim had before it grew.
const BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// On a claim: that no node has anything to do.
const NOTHING_ON_NODE: &str = "volume.kubernetes.io/node-expansion-not-required";

/// Grows volumes.
pub struct Resize {
    context: Arc<Context>,
    work: Arc<Work<Key>>,
    /// Sizes that claims were refused, by their uids, and until when they are not tried again.
    refused: Mutex<BTreeMap<String, (u64, Instant)>>,
    /// Whether the API does not keep how far growth is.
    forgets: AtomicBool,
}

impl Resize {
    /// Is told by claims and by their volumes.
    pub fn new(context: Arc<Context>) -> Resize {
        let work: Arc<Work<Key>> = Work::new("resize", PATIENCE);
        let stores = &context.stores;
        let told = Arc::clone(&work);
        stores.claims.listen(move |_, now| {
            if let Some(claim) = now
                && !claim.spec.volume_name.is_empty()
            {
                told.add(Key::of(claim.as_ref()));
            }
        });
        let of = |volume: &PersistentVolume| volume.spec.claim_ref.as_ref().map(ClaimReference::key);
        let told = Arc::clone(&work);
        stores.persistent.listen(move |_, now| {
            if let Some(key) = now.and_then(|volume| of(volume)) {
                told.add(key);
            }
        });
        let (told, persistent) = (Arc::clone(&work), Arc::clone(&stores.persistent));
        let driver = context.personality.driver();
        stores.volumes.listen(move |_, now| {
            if let Some(handle) = now.and_then(|volume| volume.volume_id())
                && let Some(key) =
                    persistent.find(|one| one.handle(driver) == Some(handle)).and_then(|one| of(&one))
            {
                told.add(key);
            }
        });
        Resize { context, work, refused: Mutex::default(), forgets: AtomicBool::new(false) }
    }

    /// The names that wait.
    pub fn work(&self) -> Arc<Work<Key>> {
        Arc::clone(&self.work)
    }

    /// Grows for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    async fn act(&self, key: &Key) -> Result<Outcome, kube::Error> {
        let stores = &self.context.stores;
        let claim = match stores.claims.get(key) {
            Some(claim) => claim,
            // One that was bound to a volume made by hand; nobody has told us of it yet.
            None => match self.claims(&key.namespace).get_opt(&key.name).await? {
                Some(claim) => Arc::new(claim),
                None => return Ok(Outcome::Done),
            },
        };
        let Some(persistent) = stores.persistent.named(&claim.spec.volume_name) else {
            return Ok(Outcome::Done);
        };
        let driver = self.context.personality.driver();
        let Some(volume) = persistent.handle(driver).and_then(|handle| stores.by_handle(handle)) else {
            return Ok(Outcome::Done);
        };
        if claim.spec.volume_attributes_class_name.as_deref().is_some_and(|name| !name.is_empty()) {
            let problem = "spec.volumeAttributesClassName: a volume has no attributes that could be changed: it stays as it is";
            self.context.events.warn(Reference::to(claim.as_ref(), &()), "VolumeModifyFailed", problem);
        }
        let is_kept = !self.forgets.load(Ordering::Relaxed);
        let act = decide(&View { claim: &claim, persistent: &persistent, volume: &volume, is_kept });
        tracing::debug!(claim = %key, ?act, "looked at");
        match act {
            Act::Nothing => Ok(Outcome::Done),
            Act::Forget => {
                let change = json!({ "metadata": { "annotations": { BEFORE: null } } });
                let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
                stores.persistent.answered(write::change(&api, &persistent, change).await?);
                Ok(Outcome::Done)
            }
            Act::Begin(size) => {
                let refused = lock(&self.refused).get(claim.uid()).copied();
                let refused = refused.filter(|(refused, _)| *refused == size);
                if let Some((_, until)) = refused
                    && until > Instant::now()
                {
                    return Ok(Outcome::After(until - Instant::now()));
                }
                let message = format!("External resizer is resizing volume {}", persistent.name());
                self.context.events.normal(Reference::to(claim.as_ref(), &()), "Resizing", message);
                let mut change =
                    status(&claim, &[("Resizing", "")], Some((size, State::ControllerInProgress)));
                change["metadata"]["annotations"] = json!({ NOTHING_ON_NODE: null });
                let is_kept = self.write(&claim, change, true).await?;
                if !is_kept && !self.forgets.swap(true, Ordering::Relaxed) {
                    tracing::info!("the API does not keep in a claim how far its growth is");
                    // What did not change nobody tells.
                    return Ok(Outcome::After(Duration::from_secs(1)));
                }
                Ok(Outcome::Done)
            }
            Act::Ask(size) => {
                tracing::info!(claim = %key, volume = volume.name(), size, "is to grow on its node");
                self.ask(&volume, size).await?;
                Ok(Outcome::Done)
            }
            Act::Enlarge(size) => {
                let mut change = json!({ "spec": { "capacity": { "storage": Quantity::of(size) } } });
                let before = lvms_cluster::slim::annotation(&persistent.metadata, BEFORE);
                if !claim.is_block() && before.is_none() {
                    change["metadata"]["annotations"] = json!({ BEFORE: claim.given() });
                }
                let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
                stores.persistent.answered(write::change(&api, &persistent, change).await?);
                Ok(Outcome::Done)
            }
            Act::HandOver(size) => {
                let message =
                    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
                let conditions = [("FileSystemResizePending", message)];
                let change = status(&claim, &conditions, Some((size, State::NodePending)));
                self.write(&claim, change, true).await?;
                let about = Reference::to(claim.as_ref(), &());
                let message = "Require file system resize of volume on node";
                self.context.events.normal(about, "FileSystemResizeRequired", message);
                self.nudge(&claim).await?;
                Ok(Outcome::Done)
            }
            Act::Finish(size) => {
                let mut change = status(&claim, &[], None);
                change["status"]["capacity"] = json!({ "storage": Quantity::of(size) });
                change["metadata"]["annotations"] = json!({ NOTHING_ON_NODE: "true" });
                self.write(&claim, change, true).await?;
                lock(&self.refused).remove(claim.uid());
                let about = Reference::to(claim.as_ref(), &());
                self.context.events.normal(about, "VolumeResizeSuccessful", "Resize volume succeeded");
                Ok(Outcome::Done)
            }
            Act::Fail { size, infeasible, message } => {
                let about = Reference::to(claim.as_ref(), &());
                let told = format!("resize volume {} failed: {message}", persistent.name());
                self.context.events.warn(about, "VolumeResizeFailed", told);
                if infeasible {
                    // Or its node would go on trying, and take the space when nobody wants it any more.
                    let now =
                        volume.status.as_ref().and_then(|status| status.current_size.as_ref()?.bytes().ok());
                    self.ask(&volume, now.unwrap_or_default()).await?;
                }
                let state =
                    if infeasible { State::ControllerInfeasible } else { State::ControllerInProgress };
                let said = claim.status.conditions.iter().any(|one| {
                    one.r#type == "ControllerResizeError" && one.message.as_ref() == Some(&message)
                });
                if infeasible || !said {
                    let change = failure(&claim, &message, (size, state), is_kept);
                    self.write(&claim, change, false).await?;
                }
                if infeasible {
                    let mut refused = lock(&self.refused);
                    refused.retain(|_, (_, until)| *until > Instant::now());
                    refused.insert(claim.uid().to_owned(), (size, Instant::now() + INFEASIBLE));
                    return Ok(Outcome::After(INFEASIBLE));
                }
                Ok(Outcome::Failed)
            }
        }
    }

    /// Asks the node of a LogicalVolume for a size.
    async fn ask(&self, volume: &LogicalVolume, size: u64) -> Result<(), kube::Error> {
        let changed =
            write::change(&self.context.logical_volumes(), volume, asks(self.context.personality, size))
                .await?;
        self.context.stores.volumes.answered(changed);
        Ok(())
    }

    /// The kubelet looks at a pod's volumes when the pod changes, and otherwise once in a minute or two.
    async fn nudge(&self, claim: &Claim) -> Result<(), kube::Error> {
        let namespace = claim.namespace().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &namespace);
        let running = ListParams::default().fields("status.phase=Running");
        let mut concerned = Vec::new();
        let look = |pod: Pod| {
            concerned.extend(pod.uses(&claim.name_any()).then(|| pod.name_any()));
            ControlFlow::<()>::Continue(())
        };
        pages::each(&pods, running, look).await?;
        for name in concerned {
            let now = jiff::Timestamp::now().to_string();
            let change = json!({ "metadata": { "annotations": { RESIZE_REQUESTED: now } } });
            match write::merge(&pods, &name, change).await {
                Err(error) if passes(&error).is_some() && !is_not_found(&error) => return Err(error),
                // Somebody refuses it: the kubelet looks later.
                Err(error) => {
                    tracing::debug!(pod = name, error = %chain(&error), "the kubelet is not asked to look");
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Writes the status of a claim; a success only if nobody else has written it meanwhile. Says whether the API keeps
    /// how far growth is.
    async fn write(&self, claim: &Claim, mut change: Value, guarded: bool) -> Result<bool, kube::Error> {
        change["metadata"]["uid"] = json!(claim.uid());
        if guarded {
            change["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
        }
        let namespace = claim.namespace().unwrap_or_default();
        let written = write::merge_status(&self.claims(&namespace), &claim.name_any(), change).await?;
        let is_kept = !written.status.allocated_resource_statuses.is_empty();
        self.context.stores.claims.answered(written);
        Ok(is_kept)
    }

    fn claims(&self, namespace: &str) -> Api<Claim> {
        Api::namespaced(self.context.client.clone(), namespace)
    }
}

impl Looks<Key> for Resize {
    async fn look(&self, key: &Key) -> Outcome {
        match self.act(key).await {
            Ok(outcome) => outcome,
            Err(error) => passes(&error).unwrap_or_else(|| {
                if let Some(claim) = self.context.stores.claims.get(key) {
                    let told = format!("its growth could not be written: {}", chain(&error));
                    self.context.events.warn(Reference::to(claim.as_ref(), &()), "VolumeResizeFailed", told);
                }
                Outcome::Failed
            }),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The change that asks the node of a LogicalVolume for a size.
pub fn asks(personality: Personality, size: u64) -> Value {
    json!({
        "metadata": { "annotations": { personality.resize_requested(): resize_time() } },
        "spec": { "size": Quantity::of(size) },
    })
}

/// The time as TopoLVM writes it when it asks for more; it only has to differ from the one before.
fn resize_time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S.%f +0000 UTC").to_string()
}

/// What is told of a growth that failed. One that goes on stays begun: where the API keeps nothing else that says so, it
/// would be begun anew at once, and fail again.
fn failure(claim: &Claim, message: &str, allocated: (u64, State), is_kept: bool) -> Value {
    let error = ("ControllerResizeError", message);
    if is_kept || allocated.1 == State::ControllerInfeasible {
        status(claim, &[error], Some(allocated))
    } else {
        status(claim, &[("Resizing", ""), error], Some(allocated))
    }
}

/// A change of a claim's status: these conditions instead of all that are about growth, and how far it is.
fn status(claim: &Claim, conditions: &[(&str, &str)], allocated: Option<(u64, State)>) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let present = &claim.status.conditions;
    let mut all: Vec<ClaimCondition> =
        present.iter().filter(|one| !CONDITIONS.contains(&one.r#type.as_str())).cloned().collect();
    for (kind, message) in conditions {
        let before = present.iter().find(|one| one.r#type == *kind && one.status == "True");
        all.push(ClaimCondition {
            r#type: (*kind).to_owned(),
            status: "True".to_owned(),
            last_transition_time: before
                .and_then(|one| one.last_transition_time.clone())
                .or_else(|| Some(now.clone())),
            last_probe_time: None,
            reason: None,
            message: (!message.is_empty()).then(|| (*message).to_owned()),
        });
    }
    let mut status = json!({ "conditions": all });
    match allocated {
        Some((size, state)) => {
            status["allocatedResources"] = json!({ "storage": Quantity::of(size) });
            status["allocatedResourceStatuses"] = json!({ "storage": state.name() });
        }
        None => status["allocatedResourceStatuses"] = json!({ "storage": null }),
    }
    json!({ "status": status })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;

    #[tokio::test]
    async fn whoever_keeps_the_kubelet_from_being_asked_keeps_no_claim_from_growing() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        });
        let (context, asked) = scripted::context(move |request| {
            if request.starts_with("PATCH") {
                return (403, json!({"code": 403, "reason": "Forbidden"}));
            }
            (200, json!({"metadata": {}, "items": [pod]}))
        })
        .await;
        let claim = json!({"metadata": {"namespace": "ns", "name": "data"}});
        let claim: Claim = serde_json::from_value(claim).unwrap();
        Resize::new(Arc::clone(&context)).nudge(&claim).await.unwrap();
        assert_eq!(asked.lock().unwrap().len(), 2);
    }

    /// Looks at a claim whose volume is as it was made.
    async fn look_at(claim: Value, resize: &Resize) -> Outcome {
        let uid = claim["metadata"]["uid"].clone();
        let persistent = json!({
            "metadata": {"name": "pvc-1"},
            "spec": {
                "csi": {"driver": "topolvm.io", "volumeHandle": "lv-1"}, "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "ns", "name": "data", "uid": uid},
            },
        });
        let volume = json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "pvc-1", "uid": "lv-1"},
            "spec": {"name": "pvc-1", "nodeName": "n1", "size": "2Gi"},
            "status": {"volumeID": "lv-1", "currentSize": "1Gi"},
        });
        let stores = &resize.context.stores;
        stores.claims.answered(serde_json::from_value(claim).unwrap());
        stores.persistent.answered(serde_json::from_value(persistent).unwrap());
        stores.volumes.answered(serde_json::from_value(volume).unwrap());
        let key = Key { namespace: "ns".to_owned(), name: "data".to_owned() };
        resize.act(&key).await.unwrap()
    }

    /// One that asks for more.
    fn claim(uid: &str) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": "data", "uid": uid},
            "spec": {"volumeName": "pvc-1", "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        })
    }

    #[tokio::test]
    async fn what_a_claim_was_refused_is_not_refused_to_the_next_one_with_its_name() {
        let (context, asked) = scripted::context(|_| (200, claim("next"))).await;
        let resize = Resize::new(context);
        lock(&resize.refused).insert("former".to_owned(), (2 << 30, Instant::now() + INFEASIBLE));
        assert!(matches!(look_at(claim("former"), &resize).await, Outcome::After(_)));
        assert_eq!(scripted::but_events(&asked), [""; 0]);
        assert!(
            !matches!(look_at(claim("next"), &resize).await, Outcome::After(left) if left > INFEASIBLE / 2)
        );
        let asked = scripted::but_events(&asked);
        assert!(asked.iter().any(|asked| asked.starts_with("PATCH")), "{asked:?}");
    }

    #[test]
    fn a_growth_that_fails_for_now_is_not_begun_anew_where_the_api_keeps_nothing_of_it() {
        let mut claim = claim("u");
        claim["status"]["conditions"] = json!([{"type": "Resizing", "status": "True"}]);
        let claim: Claim = serde_json::from_value(claim).unwrap();
        let told = |state, is_kept| {
            let told = failure(&claim, "not now", (2 << 30, state), is_kept);
            let conditions = told["status"]["conditions"].as_array().unwrap();
            conditions.iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(told(State::ControllerInProgress, false), ["Resizing", "ControllerResizeError"]);
        assert_eq!(told(State::ControllerInProgress, true), ["ControllerResizeError"]);
        assert_eq!(told(State::ControllerInfeasible, false), ["ControllerResizeError"]);
    }

    #[tokio::test]
    async fn a_bound_claim_that_names_a_class_of_attributes_is_told_that_there_are_none() {
        let (context, asked) = scripted::context(|_| (200, json!({}))).await;
        let mut named = claim("u");
        named["spec"]["volumeAttributesClassName"] = json!("gold");
        named["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
        let resize = Resize::new(context);
        assert_eq!(look_at(named, &resize).await, Outcome::Done);
        let told = scripted::told(&asked, "VolumeModifyFailed").await;
        assert!(told.contains("spec.volumeAttributesClassName"), "{told}");
    }
}
