//! A claim becomes a LogicalVolume; when its node has made it, a PersistentVolume.

mod class;
mod decide;
mod node;
mod persistent;
mod scheduler;
mod source;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::{Api, ResourceExt};
use lvms_api::LogicalVolume;
use lvms_api::names::kubernetes::SELECTED_NODE;
use lvms_cluster::slim::{Claim, DataSource, Node, PersistentVolume, SnapshotContent, StorageClass};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience, Refusals};
use lvms_cluster::write::{self, Created, is_not_found, passes};
use lvms_cluster::{Key, Outcome, Reference, Work};
use serde_json::json;
use tokio::time::Instant;

pub use self::class::Parameters;
use self::decide::{Act, View, decide, is_waiting, left_behind, may_be_left_behind, selected, volume_name};
use self::node::Nodes;
pub(crate) use self::node::spelled;
pub use self::persistent::identity;
use self::scheduler::{Choice, Room};
use crate::Context;
use crate::protect::Protect;

/// A claim that cannot be provisioned is looked at again after a second, and later at the most after five minutes.
const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(300) };

/// So long a node and the leader need at the most to tell the scheduler what is left.
const UNTIL_TOLD: Duration = Duration::from_millis(2500);

/// A node that has not said anything about a volume for so long is told of.
const NODES_TURN: Duration = Duration::from_secs(60);

/// An event is kept for an hour: that it still waits is told again before.
const REMINDED: Duration = Duration::from_secs(1800);

/// So many claims are worked on at once.
const AT_ONCE: usize = 32;

/// Provisions claims.
pub struct Provision {
    context: Arc<Context>,
    protect: Arc<Protect>,
    work: Arc<Work<Key>>,
    /// Claims whose volumes were refused, by uid.
    refusals: Refusals<String>,
    /// When a node first said that it has no room for a claim.
    no_room: Mutex<BTreeMap<String, Instant>>,
}

impl Provision {
    /// Is told by claims, and by what they become.
    pub fn new(context: Arc<Context>, protect: Arc<Protect>) -> Provision {
        let work: Arc<Work<Key>> = Work::new("provision", PATIENCE);
        let stores = &context.stores;
        let told = Arc::clone(&work);
        stores.claims.listen(move |_, now| {
            if let Some(claim) = now {
                told.add(Key::of(claim.as_ref()));
            }
        });
        let (told, claims) = (Arc::clone(&work), Arc::clone(&stores.claims));
        let claim_named = move |name: &str| {
            let uid = name.strip_prefix("pvc-")?;
            claims.find(|claim| claim.uid() == uid).map(|claim| Key::of(claim.as_ref()))
        };
        let named = claim_named.clone();
        stores.volumes.listen(move |before, now| {
            if let Some(key) = now.or(before).and_then(|volume| named(volume.name())) {
                told.add(key);
            }
        });
        let (told, volumes, named) = (Arc::clone(&work), Arc::clone(&stores.volumes), claim_named.clone());
        stores.nodes.listen(move |before, now| {
            let Some(gone) = before.filter(|_| now.is_none()) else { return };
            let is_there = |volume: &LogicalVolume| {
                volume.spec.node_name == gone.name_any() && may_be_left_behind(volume)
            };
            for key in volumes.filter(is_there).iter().filter_map(|volume| named(volume.name())) {
                told.add(key);
            }
        });
        let told = Arc::clone(&work);
        stores.persistent.listen(move |before, now| {
            // One that is gone may have been deleted by mistake, and its claim is still there.
            if now.is_none()
                && let Some(key) = before.and_then(|volume| claim_named(volume.name()))
            {
                told.add(key);
            }
        });
        // A class that appears, or a node with room, may be what claims wait for; a copy waits for its source.
        let (told, claims) = (Arc::clone(&work), Arc::clone(&stores.claims));
        let pending = move |is_concerned: fn(&Claim) -> bool| {
            for claim in claims.filter(|claim| claim.spec.volume_name.is_empty() && is_concerned(claim)) {
                told.add(Key::of(claim.as_ref()));
            }
        };
        let (told, claims) = (Arc::clone(&work), Arc::clone(&stores.claims));
        let copies_of = move |kind: &str, namespace: &str, name: &str| {
            let is_copy = |claim: &Claim| {
                let of_it = |source: &DataSource| source.kind == kind && source.name == name;
                claim.spec.volume_name.is_empty()
                    && claim.metadata.namespace.as_deref() == Some(namespace)
                    && claim.source().is_some_and(of_it)
            };
            for claim in claims.filter(is_copy) {
                told.add(Key::of(claim.as_ref()));
            }
        };
        let copies = copies_of.clone();
        stores.claims.listen(move |before, now| {
            let is_bound = |claim: Option<&Arc<Claim>>| claim.is_some_and(|one| one.status.phase == "Bound");
            if let Some(claim) = now.filter(|_| is_bound(now) && !is_bound(before)) {
                let Key { namespace, name } = Key::of(claim.as_ref());
                copies("PersistentVolumeClaim", &namespace, &name);
            }
        });
        stores.contents.listen(move |before, now| {
            let is_ready = |content: Option<&Arc<SnapshotContent>>| content.is_some_and(|one| one.is_ready());
            if let Some(content) = now.filter(|_| is_ready(now) && !is_ready(before)) {
                let snapshot = &content.spec.volume_snapshot_ref;
                copies_of("VolumeSnapshot", &snapshot.namespace, &snapshot.name);
            }
        });
        let is_new = |claim: &Claim| claim.source().is_none();
        let again = pending.clone();
        stores.classes.listen(move |_, _| again(|_| true));
        let again = pending.clone();
        stores.nodes.listen(move |before, now| {
            let answers = |node: Option<&Arc<Node>>| node.is_some_and(|node| node.answers());
            if answers(now) && before.is_some() && !answers(before) {
                again(is_new);
            }
        });
        stores.lvm_nodes.listen(move |before, now| {
            let classes = |node: Option<&Arc<lvms_api::LvmNode>>| {
                node.and_then(|node| Some(node.status.as_ref()?.device_classes.clone()))
            };
            if classes(before) != classes(now) {
                pending(is_new);
            }
        });
        Provision { context, protect, work, refusals: Refusals::new(PATIENCE), no_room: Mutex::default() }
    }

    /// The names that wait.
    pub fn work(&self) -> Arc<Work<Key>> {
        Arc::clone(&self.work)
    }

    /// Provisions for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    async fn act(&self, claim: &Claim) -> Result<Outcome, kube::Error> {
        let (stores, personality) = (&self.context.stores, self.context.personality);
        if !is_waiting(claim, personality) {
            return Ok(Outcome::Done);
        }
        let name = volume_name(claim);
        let volume = stores.volumes.named(&name);
        let class = claim.class().and_then(|class| stores.classes.named(class));
        let source = match &volume {
            // Where it comes from was decided when it was sent to its node.
            Some(_) => decide::Source::Nothing,
            None => source::of(&self.context, claim).await?,
        };
        let is_left_behind = match &volume {
            Some(volume) if may_be_left_behind(volume) => {
                self.context.is_gone(&volume.spec.node_name).await?
            }
            _ => false,
        };
        let view = View {
            personality,
            claim,
            class: class.as_deref(),
            persistent: stores.persistent.named(&name).is_some(),
            volume: volume.as_deref(),
            is_left_behind,
            source,
            nodes: Nodes { personality, stores },
            identity: &self.context.identity,
        };
        let act = decide(&view);
        tracing::debug!(claim = %Key::of(claim), ?act, "looked at");
        match act {
            Act::Nothing => Ok(Outcome::Done),
            Act::Await => Ok(volume.map_or(Outcome::Done, |volume| self.await_node(claim, &volume))),
            Act::LeaveAlone(kind) => {
                let message = format!("Assuming an external populator will provision the volume from {kind}");
                self.context.events.normal(self.about(claim), "Provisioning", message);
                Ok(Outcome::Done)
            }
            Act::Refuse(why) => {
                self.fail(claim, why);
                Ok(Outcome::Failed)
            }
            Act::Create(volume) => {
                // Its former volume that goes tells of itself, and must not be followed by the next at once.
                if let Some(rest) = self.refusals.rest(&claim.uid().to_owned()) {
                    return Ok(Outcome::After(rest));
                }
                self.warn_of_unknown(claim, class.as_deref());
                tracing::info!(
                    claim = %Key::of(claim), volume = name, node = volume.spec.node_name,
                    class = volume.spec.device_class, size = %volume.spec.size, "is sent to its node"
                );
                self.protect.protect(claim).await?;
                if let Created::Now(created) =
                    write::create(&self.context.logical_volumes(), &json!(volume)).await?
                {
                    stores.volumes.answered(created);
                }
                Ok(Outcome::Done)
            }
            Act::Publish(object) => {
                let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
                if let Created::Now(created) = write::create(&api, &object).await? {
                    stores.persistent.answered(created);
                }
                self.refusals.forget(&claim.uid().to_owned());
                let message = format!("Successfully provisioned volume {name}");
                self.context.events.normal(self.about(claim), "ProvisioningSucceeded", message);
                Ok(Outcome::Done)
            }
            Act::Discard(why) => {
                self.refusals.refuse(&claim.uid().to_owned());
                self.fail(claim, why);
                self.discard(volume.as_deref()).await?;
                Ok(Outcome::Failed)
            }
            Act::Reschedule(why) => {
                if !is_left_behind && self.would_be_chosen_again(claim, volume.as_deref()) {
                    return Ok(Outcome::After(Duration::from_millis(300)));
                }
                self.fail(claim, why);
                // In this order: without it, a claim that is still sent to the node would be tried there again.
                self.reschedule(claim).await?;
                self.discard(volume.as_deref()).await?;
                Ok(Outcome::Failed)
            }
            Act::MakeWay => {
                self.make_way(volume.as_deref()).await?;
                Ok(Outcome::Done)
            }
        }
    }

    /// Lets the name of a LogicalVolume go. Nothing is made for it any more: it is deleted. If its node has made an LV
    /// and has not told of it, it removes that when it is back.
    async fn make_way(&self, volume: Option<&LogicalVolume>) -> Result<(), kube::Error> {
        let Some(volume) = volume else { return Ok(()) };
        let (api, personality) = (self.context.logical_volumes(), self.context.personality);
        let left = left_behind(volume, personality);
        tracing::info!(volume = volume.name(), node = volume.spec.node_name, left = left.name(), "makes way");
        let left = match write::create(&api, &json!(left)).await? {
            Created::Now(created) => created,
            Created::AlreadyThere => api.get(left.name()).await?,
        };
        write::delete(&api, left.name(), left.uid()).await?;
        let change = write::finalizers_without(volume, &[&personality.volume_finalizer()]);
        write::change(&api, volume, change).await.map(drop)
    }

    /// Its node may not run, or may not be able to say anything: whoever looks at the claim is told where to look.
    fn await_node(&self, claim: &Claim, volume: &LogicalVolume) -> Outcome {
        let age = age(volume);
        if let Some(rest) = NODES_TURN.checked_sub(age).filter(|rest| !rest.is_zero()) {
            return Outcome::After(rest);
        }
        let message = format!(
            "node {} has not told yet that it has made LogicalVolume {}: kubectl describe says of that whether anything \
             holds it up",
            volume.spec.node_name,
            volume.name()
        );
        self.context.events.warn(self.about(claim), "WaitsForNode", message);
        Outcome::After(REMINDED)
    }

    /// Takes away what could not be made: its node finds no LV and lets it go.
    async fn discard(&self, volume: Option<&LogicalVolume>) -> Result<(), kube::Error> {
        let Some(volume) = volume else { return Ok(()) };
        write::delete(&self.context.logical_volumes(), volume.name(), volume.uid()).await.map(drop)
    }

    /// Whether the scheduler still believes in room that the node says it has not: it would choose the same node.
    fn would_be_chosen_again(&self, claim: &Claim, volume: Option<&LogicalVolume>) -> bool {
        let stores = &self.context.stores;
        let (Some(node), Some(volume), Some(class)) = (selected(claim), volume, claim.class()) else {
            return false;
        };
        let Ok(size) = volume.spec.size.bytes() else { return false };
        let spec = &volume.spec;
        let told = stores.lvm_nodes.find(|told| told.name() == node);
        let told = told.and_then(|told| told.available(&spec.device_class, &spec.lvcreate_option_class));
        let key = self.context.personality.topology_key();
        let published = stores.capacities.filter(|one| {
            let of = one.node_topology.as_ref().and_then(|topology| topology.match_labels.get(&key));
            one.storage_class_name == class && of.is_some_and(|of| of == node)
        });
        let published = published.iter().filter_map(|one| one.capacity.as_ref()?.bytes().ok()).max();
        match scheduler::choice(Room { size, told, published }) {
            Choice::Elsewhere => return false,
            Choice::Here => return true,
            Choice::HereUntilTold => {}
        }
        // What the node has left may not be told yet.
        let mut no_room = self.no_room.lock().unwrap_or_else(PoisonError::into_inner);
        no_room.retain(|_, since| since.elapsed() < 2 * UNTIL_TOLD);
        no_room.entry(volume.uid().to_owned()).or_insert_with(Instant::now).elapsed() < UNTIL_TOLD
    }

    /// Tells of parameters that nobody knows; TopoLVM leaves them out, and so do we.
    fn warn_of_unknown(&self, claim: &Claim, class: Option<&StorageClass>) {
        let Some(class) = class else { return };
        let unknown = Parameters::read(&class.parameters, self.context.personality).map(|read| read.unknown);
        if let Some(unknown) = unknown.ok().filter(|unknown| !unknown.is_empty()) {
            let told = format!(
                "StorageClass {}: parameters {} are not known and left out: did you mean {:?}?",
                class.name(),
                unknown.join(", "),
                self.context.personality.device_class_parameter()
            );
            self.context.events.warn(self.about(claim), "UnknownParameter", told);
        }
    }

    /// Lets the scheduler choose again.
    async fn reschedule(&self, claim: &Claim) -> Result<(), kube::Error> {
        let Some(node) = selected(claim) else { return Ok(()) };
        tracing::info!(claim = %Key::of(claim), node, "is given back to the scheduler");
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Claim> = Api::namespaced(self.context.client.clone(), namespace);
        let change = json!({ "metadata": { "annotations": { SELECTED_NODE: null } } });
        match write::change(&api, claim, change).await {
            Ok(changed) => {
                self.context.stores.claims.answered(changed);
                Ok(())
            }
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn fail(&self, claim: &Claim, why: String) {
        let message = match claim.class() {
            Some(class) => format!("failed to provision volume with StorageClass {class:?}: {why}"),
            None => why,
        };
        self.context.events.warn(self.about(claim), "ProvisioningFailed", message);
    }

    fn about(&self, claim: &Claim) -> Reference {
        Reference::to(claim, &())
    }
}

/// How long there has been an object; nothing if the clock of the API server is ahead of ours.
fn age(volume: &LogicalVolume) -> Duration {
    let made = volume.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let age = made.map(|made| jiff::Timestamp::now().duration_since(made));
    age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
}

impl Looks<Key> for Provision {
    async fn look(&self, key: &Key) -> Outcome {
        let Some(claim) = self.context.stores.claims.get(key) else { return Outcome::Done };
        match self.act(&claim).await {
            Ok(outcome) => outcome,
            Err(error) => passes(&error).unwrap_or_else(|| {
                self.fail(&claim, chain(&error));
                Outcome::Failed
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;
    use lvms_cluster::work::Busy;
    use serde_json::Value;

    fn object<T: serde::de::DeserializeOwned>(json: Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn claim(name: &str, source: &Value) -> Claim {
        object(json!({
            "metadata": {
                "namespace": "ns", "name": name, "uid": name,
                "annotations": {"volume.kubernetes.io/storage-provisioner": "topolvm.io"},
            },
            "spec": {"storageClassName": "ours", "accessModes": ["ReadWriteOnce"], "dataSource": source},
        }))
    }

    fn missing() -> (u16, Value) {
        (404, json!({"code": 404, "reason": "NotFound", "details": {"name": "x"}}))
    }

    /// Waits until something is shown.
    async fn until(mut shown: impl FnMut() -> bool) {
        while !shown() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A node tells that it has so much left.
    fn tell_room(stores: &crate::stores::Stores, bytes: u64) {
        let class = lvms_api::lvm_node::DeviceClass {
            name: "ssd".into(),
            available: lvms_api::Quantity::of(bytes),
            ..Default::default()
        };
        let mut node = lvms_api::LvmNode::new("n1", "lvms");
        node.status = Some(lvms_api::lvm_node::Status { device_classes: vec![class], ..Default::default() });
        stores.lvm_nodes.answered(node);
    }

    #[tokio::test]
    async fn a_copy_is_looked_at_when_its_source_is_ready() {
        let (context, _) = scripted::context(|_| missing()).await;
        let stores = &context.stores;
        stores.classes.answered(object(json!({"metadata": {"name": "ours"}, "provisioner": "topolvm.io"})));
        stores.claims.answered(claim("restore", &json!({"kind": "VolumeSnapshot", "name": "moment"})));
        stores.claims.answered(claim("clone", &json!({"kind": "PersistentVolumeClaim", "name": "origin"})));
        let provision = Provision::new(Arc::clone(&context), Protect::new(Arc::clone(&context)));
        let work = provision.work();
        work.clear();
        let waiting = || work.figures().waiting;
        let content = |version: &str, is_ready: bool| {
            object(json!({
                "metadata": {"name": "content", "uid": "c", "resourceVersion": version},
                "spec": {
                    "driver": "topolvm.io", "deletionPolicy": "Delete", "source": {},
                    "volumeSnapshotRef": {"namespace": "ns", "name": "moment"},
                },
                "status": {"readyToUse": is_ready},
            }))
        };
        stores.contents.answered(content("1", false));
        assert_eq!(waiting(), 0);
        stores.contents.answered(content("2", true));
        assert_eq!(waiting(), 1);
        let mut origin = claim("origin", &Value::Null);
        (origin.spec.volume_name, origin.status.phase) = ("pvc-origin".into(), "Bound".into());
        stores.claims.answered(origin);
        // Both, and the origin itself.
        assert_eq!(waiting(), 3);
    }

    #[tokio::test]
    async fn room_that_comes_and_goes_asks_nothing_about_copies() {
        let (context, asked) = scripted::context(|_| missing()).await;
        let stores = &context.stores;
        stores.classes.answered(object(json!({"metadata": {"name": "ours"}, "provisioner": "topolvm.io"})));
        stores.claims.answered(claim("copy", &json!({"kind": "PersistentVolumeClaim", "name": "x"})));
        stores.claims.answered(claim("new", &Value::Null));
        let provision = Provision::new(Arc::clone(&context), Protect::new(Arc::clone(&context)));
        let work = provision.work();
        let running = tokio::spawn(provision.run());
        until(|| work.figures().looks >= 2).await;
        for room in 1..=100 {
            let before = work.figures().looks;
            tell_room(stores, room);
            until(|| work.figures().looks > before).await;
        }
        running.abort();
        // It is asked again after a while, and later each time.
        let asked = scripted::but_events(&asked).len();
        assert!(asked < 20, "the API was asked {asked} times");
    }

    #[tokio::test]
    async fn claims_that_wait_are_looked_at_when_a_node_answers_again() {
        let (context, _) = scripted::context(|_| missing()).await;
        let stores = &context.stores;
        stores.claims.answered(claim("new", &Value::Null));
        let provision = Provision::new(Arc::clone(&context), Protect::new(Arc::clone(&context)));
        let work = provision.work();
        let running = tokio::spawn(provision.run());
        until(|| work.figures().looks >= 1).await;
        // So often in vain that it is not looked at by itself for minutes.
        for room in 1..=10 {
            let before = work.figures().looks;
            tell_room(stores, room);
            until(|| work.figures().looks > before).await;
        }
        let node = |taints: Value| object(json!({"metadata": {"name": "n1"}, "spec": {"taints": taints}}));
        stores.nodes.answered(node(json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])));
        let before = work.figures().looks;
        stores.nodes.answered(node(Value::Null));
        let looked = until(|| work.figures().looks > before);
        tokio::time::timeout(Duration::from_secs(60), looked).await.expect("nobody looks at the claim");
        running.abort();
    }

    #[tokio::test]
    async fn a_logical_volume_whose_node_left_before_it_was_made_makes_way_and_what_it_may_have_left_is_known()
     {
        let (context, asked) = scripted::context(|request| {
            let volume = |name: &str, uid: &str| {
                let metadata = json!({"name": name, "uid": uid, "deletionTimestamp": "2026-01-01T00:00:00Z"});
                let spec = json!({"name": name, "nodeName": "n1", "size": "1Gi"});
                json!({
                    "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": metadata, "spec": spec,
                })
            };
            match request {
                _ if request.starts_with("POST") => (201, volume("left-lv", "left")),
                _ if request.contains("/left-lv") => (200, volume("left-lv", "left")),
                _ if request.contains("/pvc-data") => (200, volume("pvc-data", "lv")),
                _ => missing(),
            }
        })
        .await;
        let stores = &context.stores;
        stores.classes.answered(object(json!({"metadata": {"name": "ours"}, "provisioner": "topolvm.io"})));
        stores.claims.answered(claim("data", &Value::Null));
        let mut volume = LogicalVolume::new(
            context.personality,
            lvms_api::logical_volume::Spec {
                name: "pvc-data".into(),
                node_name: "n1".into(),
                ..Default::default()
            },
        );
        volume.metadata.uid = Some("lv".into());
        let provision = Provision::new(Arc::clone(&context), Protect::new(Arc::clone(&context)));
        let look = async |volume: &LogicalVolume| {
            stores.volumes.answered(volume.clone());
            asked.lock().unwrap().clear();
            provision.look(&Key { namespace: "ns".into(), name: "data".into() }).await;
            scripted::but_events(&asked)
        };
        let all = "/apis/topolvm.io/v1/logicalvolumes";
        let is_there = "GET /api/v1/nodes/n1".to_owned();
        assert_eq!(look(&volume).await, [is_there.clone(), format!("DELETE {all}/pvc-data?")]);
        volume.metadata.deletion_timestamp = object(json!("2026-01-01T00:00:00Z"));
        let made_way = [
            is_there,
            format!("POST {all}?"),
            format!("DELETE {all}/left-lv?"),
            format!("PATCH {all}/pvc-data?"),
        ];
        assert_eq!(look(&volume).await, made_way);
        let left = left_behind(&volume, context.personality);
        assert_eq!((left.name(), left.lv(), left.spec.node_name.as_str()), ("left-lv", "lv", "n1"));
        stores.nodes.answered(object(json!({"metadata": {"name": "n1"}})));
        assert_eq!(look(&volume).await, [""; 0]);
    }

    fn logical(made: jiff::Timestamp) -> Value {
        json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "pvc-data", "uid": "l", "creationTimestamp": made.to_string()},
            "spec": {"name": "pvc-data", "nodeName": "n1", "size": "1Gi"},
        })
    }

    #[tokio::test]
    async fn a_claim_whose_node_says_nothing_is_told_where_to_look() {
        let (context, asked) = scripted::context(|_| (404, json!({"code": 404}))).await;
        let provision = Provision::new(Arc::clone(&context), Protect::new(Arc::clone(&context)));
        let claim = claim("data", &Value::Null);
        let key = Key::of(&claim);
        context.stores.claims.answered(claim);
        context.stores.nodes.answered(object(json!({"metadata": {"name": "n1"}})));
        let now = jiff::Timestamp::now();
        context.stores.volumes.answered(serde_json::from_value(logical(now)).unwrap());
        assert!(matches!(provision.look(&key).await, Outcome::After(rest) if rest <= NODES_TURN));
        let long_ago = now - jiff::SignedDuration::from_hours(1);
        context.stores.volumes.answered(serde_json::from_value(logical(long_ago)).unwrap());
        assert_eq!(provision.look(&key).await, Outcome::After(REMINDED));
        let told = scripted::told(&asked, "WaitsForNode").await;
        assert!(told.contains("\"kind\":\"PersistentVolumeClaim\"") && told.contains("node n1"), "{told}");
    }
}
