//! What nodes tell becomes what the scheduler reads: a CSIStorageCapacity per class and node, and TopoLVM's annotations
//! of nodes. Written when it changes, at most once a second each.
//!
//! For a class that no node can serve there is nothing to tell the scheduler, and claims that wait for their pods are
//! sent to nobody: that is told of the class.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::{Api, ResourceExt};
use lvms_api::names::DEFAULT_CLASS;
use lvms_api::{LvmNode, Personality, Quantity};
use lvms_cluster::slim::{Capacity as Published, Node, StorageClass, label};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, Created, passes};
use lvms_cluster::{Outcome, Reference, Work};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Context;
use crate::owner::Owner;
use crate::provision::{Parameters, spelled};
use crate::stores::DRIVER_NAME;

const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

const AT_ONCE: usize = 8;

/// Between two writes of one object.
const INTERVAL: Duration = Duration::from_secs(1);

/// An event is kept for an hour: what is still wrong is told again before.
const REMINDED: Duration = Duration::from_secs(1800);

/// Who keeps an object up to date, in external-provisioner's words; that of others is stale.
const MANAGED_BY: (&str, &str) = ("csi.storage.k8s.io/managed-by", "lvms");

/// What has to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// A class on a node.
    Pair {
        /// The StorageClass.
        class: String,
        /// The node.
        node: String,
    },
    /// The annotations of a node.
    Annotations(String),
    /// Whether a StorageClass can be served at all.
    Class(String),
}

/// Publishes capacity.
pub struct Capacity {
    context: Arc<Context>,
    /// What our objects go with.
    owner: Owner,
    work: Arc<Work<Item>>,
    written: Mutex<BTreeMap<Item, Instant>>,
}

impl Capacity {
    /// Is told by nodes, by classes, and by what is published.
    pub fn new(context: Arc<Context>, owner: Owner) -> Capacity {
        let work: Arc<Work<Item>> = Work::new("capacity", PATIENCE);
        let stores = &context.stores;
        let (told, nodes) = (Arc::clone(&work), Arc::clone(&stores.lvm_nodes));
        stores.classes.listen(move |before, now| {
            if let Some(class) = now.or(before) {
                told.add(Item::Class(class.name().to_owned()));
                for node in nodes.all() {
                    told.add(Item::Pair { class: class.name().to_owned(), node: node.name().to_owned() });
                }
            }
        });
        let (told, classes) = (Arc::clone(&work), Arc::clone(&stores.classes));
        let personality = context.personality;
        stores.lvm_nodes.listen(move |before, now| {
            if let Some(node) = now.or(before) {
                told.add(Item::Annotations(node.name().to_owned()));
                for class in classes.all() {
                    let says = |node: Option<&Arc<LvmNode>>| tells_to_serve(node?, &class, personality);
                    if says(before) != says(now) {
                        told.add(Item::Class(class.name().to_owned()));
                    }
                    told.add(Item::Pair { class: class.name().to_owned(), node: node.name().to_owned() });
                }
            }
        });
        let (told, key) = (Arc::clone(&work), context.personality.topology_key());
        stores.capacities.listen(move |before, now| {
            if let Some(published) = now.or(before) {
                let node = place(published, &key).unwrap_or_default().to_owned();
                told.add(Item::Pair { class: published.storage_class_name.clone(), node });
            }
        });
        let (told, prefix) = (Arc::clone(&work), context.personality.capacity_prefix());
        stores.nodes.listen(move |before, now| {
            let annotated = |node: Option<&Arc<Node>>| node.map(|node| annotations(node, &prefix));
            if let Some(node) = now
                && annotated(before) != annotated(now)
            {
                told.add(Item::Annotations(node.name_any()));
            }
        });
        Capacity { context, owner, work, written: Mutex::default() }
    }

    /// What waits.
    pub fn work(&self) -> Arc<Work<Item>> {
        Arc::clone(&self.work)
    }

    /// Publishes for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    fn written(&self) -> std::sync::MutexGuard<'_, BTreeMap<Item, Instant>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what is published about a class on a node true. Says whether something was written.
    async fn publish(&self, class: &str, node: &str) -> Result<bool, kube::Error> {
        let stores = &self.context.stores;
        let personality = self.context.personality;
        let (known, told) = (stores.classes.named(class), stores.lvm_nodes.find(|told| told.name() == node));
        let wanted = offered(known.as_deref(), told.as_deref(), personality);
        let key = personality.topology_key();
        let mut present = stores
            .capacities
            .filter(|one| one.storage_class_name == class && place(one, &key).unwrap_or_default() == node);
        present.sort_by_key(|one| one.name_any());
        let is_ours = |one: &Published| {
            one.metadata.namespace.as_deref() == Some(&self.context.namespace)
                && label(&one.metadata, MANAGED_BY.0) == Some(MANAGED_BY.1)
        };
        let kept = present.iter().position(|one| wanted.is_some() && is_ours(one));
        let mut changed = false;
        for (number, one) in present.iter().enumerate() {
            if Some(number) != kept {
                self.withdraw(one).await?;
                changed = true;
            }
        }
        let Some(available) = wanted else { return Ok(changed) };
        let api = self.api(&self.context.namespace);
        let Some(one) = kept.and_then(|number| present.get(number)) else {
            let owner = self.owner.now().await?;
            let object = self.object(class, node, available, owner.as_ref());
            if let Created::Now(created) = write::create(&api, &object).await? {
                stores.capacities.answered(created);
            }
            return Ok(true);
        };
        if one.capacity.as_ref().and_then(|capacity| capacity.bytes().ok()) == Some(available) {
            return Ok(changed);
        }
        let change = json!({
            "capacity": Quantity::of(available), "maximumVolumeSize": Quantity::of(available),
        });
        stores.capacities.answered(write::change(&api, one, change).await?);
        Ok(true)
    }

    async fn withdraw(&self, one: &Published) -> Result<(), kube::Error> {
        let namespace = one.metadata.namespace.as_deref().unwrap_or_default();
        let uid = one.metadata.uid.as_deref().unwrap_or_default();
        tracing::info!(
            name = one.name_any(),
            namespace,
            class = one.storage_class_name,
            "a stale capacity is removed"
        );
        write::delete(&self.api(namespace), &one.name_any(), uid).await.map(drop)
    }

    fn object(&self, class: &str, node: &str, available: u64, owner: Option<&Value>) -> Value {
        let personality = self.context.personality;
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {
                "generateName": "csisc-", "namespace": self.context.namespace,
                "labels": { DRIVER_NAME: personality.driver(), MANAGED_BY.0: MANAGED_BY.1 },
                "ownerReferences": owner.iter().collect::<Vec<_>>(),
            },
            "storageClassName": class,
            "nodeTopology": { "matchLabels": { personality.topology_key(): node } },
            "capacity": Quantity::of(available), "maximumVolumeSize": Quantity::of(available),
        })
    }

    /// Makes TopoLVM's annotations of a node true.
    async fn annotate(&self, name: &str) -> Result<bool, kube::Error> {
        let stores = &self.context.stores;
        let personality = self.context.personality;
        let (Some(node), Some(told)) =
            (stores.nodes.named(name), stores.lvm_nodes.find(|told| told.name() == name))
        else {
            return Ok(false);
        };
        if node.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let wanted = annotations_of(&told, personality);
        let present = annotations(&node, &personality.capacity_prefix());
        if wanted == present {
            return Ok(false);
        }
        let mut changes: BTreeMap<&str, Option<&str>> =
            present.keys().map(|key| (key.as_str(), None)).collect();
        changes.extend(wanted.iter().map(|(key, value)| (key.as_str(), Some(value.as_str()))));
        let api: Api<Node> = Api::all(self.context.client.clone());
        write::merge(&api, name, json!({ "metadata": { "annotations": changes } })).await?;
        Ok(true)
    }

    /// Tells people of a class that cannot be served.
    fn tell(&self, class: &str) -> Outcome {
        let stores = &self.context.stores;
        let Some(class) = stores.classes.named(class) else { return Outcome::Done };
        let Some(problem) = unusable(&class, &stores.lvm_nodes.all(), self.context.personality) else {
            return Outcome::Done;
        };
        self.context.events.warn(Reference::to(class.as_ref(), &()), "UnusableClass", problem);
        Outcome::After(REMINDED)
    }

    /// Tells of what the API does not take where people look: at the class or the node.
    fn tell_of_refusal(&self, item: &Item, error: &kube::Error) {
        let stores = &self.context.stores;
        let about = match item {
            Item::Pair { class, .. } | Item::Class(class) => {
                stores.classes.named(class).map(|class| Reference::to(class.as_ref(), &()))
            }
            Item::Annotations(node) => stores.nodes.named(node).map(|node| Reference::to(node.as_ref(), &())),
        };
        let error = chain(error);
        match about {
            Some(about) => {
                let told = format!("what can be had of it could not be published: {error}");
                self.context.events.warn(about, "CapacityNotPublished", told);
            }
            None => tracing::warn!(?item, error, "capacity could not be published"),
        }
    }

    fn api(&self, namespace: &str) -> Api<Published> {
        Api::namespaced(self.context.client.clone(), namespace)
    }
}

impl Looks<Item> for Capacity {
    async fn look(&self, item: &Item) -> Outcome {
        let last = self.written().get(item).copied();
        if let Some(rest) = last.and_then(|last| INTERVAL.checked_sub(last.elapsed()))
            && !rest.is_zero()
        {
            return Outcome::After(rest);
        }
        let done = match item {
            Item::Pair { class, node } => self.publish(class, node).await,
            Item::Annotations(node) => self.annotate(node).await,
            Item::Class(class) => return self.tell(class),
        };
        match done {
            Ok(true) => {
                let mut written = self.written();
                written.retain(|_, last| last.elapsed() < INTERVAL);
                written.insert(item.clone(), Instant::now());
                Outcome::Done
            }
            Ok(false) => Outcome::Done,
            Err(error) => passes(&error).unwrap_or_else(|| {
                self.tell_of_refusal(item, &error);
                Outcome::Failed
            }),
        }
    }
}

/// The node that a published capacity is about.
fn place<'a>(published: &'a Published, key: &str) -> Option<&'a str> {
    published.node_topology.as_ref()?.match_labels.get(key).map(String::as_str)
}

/// How much the scheduler may count on; nothing is published where nothing is offered.
fn offered(class: Option<&StorageClass>, node: Option<&LvmNode>, personality: Personality) -> Option<u64> {
    let class = class.filter(|class| class.waits_for_consumer())?;
    let parameters = Parameters::read(&class.parameters, personality).ok()?;
    node?.available(&parameters.device_class, &parameters.option_class)
}

/// Whether a node offers what a class asks for.
fn serves(node: &LvmNode, class: &StorageClass, personality: Personality) -> bool {
    Parameters::read(&class.parameters, personality)
        .is_ok_and(|asked| node.available(&asked.device_class, &asked.option_class).is_some())
}

/// Whether a node says that it offers what a class asks for. One that has not told what it has yet says nothing.
fn tells_to_serve(node: &LvmNode, class: &StorageClass, personality: Personality) -> Option<bool> {
    node.status.as_ref().map(|_| serves(node, class, personality))
}

/// Why a class cannot be served, however much is free. Before a node has told what it has, only the class itself can be
/// wrong.
fn unusable(class: &StorageClass, nodes: &[Arc<LvmNode>], personality: Personality) -> Option<String> {
    let asked = match Parameters::read(&class.parameters, personality) {
        Ok(asked) => asked,
        Err(problem) => return Some(problem),
    };
    let told = || nodes.iter().filter(|node| node.status.is_some());
    if told().next().is_none() || told().any(|node| serves(node, class, personality)) {
        return None;
    }
    Some(format!(
        "no node offers device class {}: add it to lvmd.yaml of a node, or make this class anew with other parameters",
        spelled(&asked)
    ))
}

/// The annotations that a node has about capacity.
fn annotations(node: &Node, prefix: &str) -> BTreeMap<String, String> {
    let all = node.metadata.annotations.iter().flatten();
    all.filter(|(key, _)| key.starts_with(prefix)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Those that it shall have.
fn annotations_of(told: &LvmNode, personality: Personality) -> BTreeMap<String, String> {
    let classes = told.status.iter().flat_map(|status| &status.device_classes);
    let bytes = |available: &Quantity| available.bytes().unwrap_or_default().to_string();
    let mut annotations: BTreeMap<String, String> = classes
        .map(|class| (personality.capacity_annotation(&class.name), bytes(&class.available)))
        .collect();
    let default = told.available("", "").unwrap_or_default();
    annotations.insert(personality.capacity_annotation(DEFAULT_CLASS), default.to_string());
    annotations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;
    use lvms_api::lvm_node::{DeviceClass, Status};

    const P: Personality = Personality::Topolvm;

    fn node() -> LvmNode {
        let class = |name: &str, available: u64, default: bool| DeviceClass {
            name: name.into(),
            available: Quantity::of(available),
            default,
            ..DeviceClass::default()
        };
        let mut node = LvmNode::new("n1", "lvms");
        node.status = Some(Status {
            device_classes: vec![class("ssd", 4096, true), class("hdd", 0, false)],
            ..Status::default()
        });
        node
    }

    fn class(mode: &str, device_class: &str) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": "c"}, "provisioner": "topolvm.io", "volumeBindingMode": mode,
            "parameters": {"topolvm.io/device-class": device_class},
        }))
        .unwrap()
    }

    #[test]
    fn a_full_class_is_published_as_nothing_and_one_that_is_not_offered_not_at_all() {
        let of = |mode: &str, device_class: &str| offered(Some(&class(mode, device_class)), Some(&node()), P);
        assert_eq!(of("WaitForFirstConsumer", "ssd"), Some(4096));
        assert_eq!(of("WaitForFirstConsumer", ""), Some(4096));
        assert_eq!(of("WaitForFirstConsumer", "hdd"), Some(0));
        assert_eq!(of("WaitForFirstConsumer", "nvme"), None);
        assert_eq!(of("Immediate", "ssd"), None);
        assert_eq!(offered(None, Some(&node()), P), None);
        assert_eq!(offered(Some(&class("WaitForFirstConsumer", "ssd")), None, P), None);
    }

    #[test]
    fn a_class_that_no_node_can_serve_is_told_whatever_it_waits_for() {
        let told = |class: &StorageClass, nodes: &[Arc<LvmNode>]| unusable(class, nodes, P);
        let (node, silent) = (Arc::new(node()), Arc::new(LvmNode::new("n2", "lvms")));
        for mode in ["WaitForFirstConsumer", "Immediate"] {
            // One that is full is served, later.
            for offered in ["ssd", "hdd", ""] {
                assert_eq!(told(&class(mode, offered), &[Arc::clone(&node)]), None, "{offered:?}");
            }
            let unknown = told(&class(mode, "nvme"), &[Arc::clone(&silent), Arc::clone(&node)]).unwrap();
            assert!(unknown.starts_with("no node offers device class \"nvme\""), "{unknown}");
            assert_eq!(told(&class(mode, "nvme"), &[Arc::clone(&silent)]), None);
            // Its first report is a change, though it offers the class as little as before.
            let says = |node: &Arc<LvmNode>| tells_to_serve(node, &class(mode, "nvme"), P);
            assert_eq!([says(&silent), says(&node)], [None, Some(false)]);
            let mut wrong = class(mode, "ssd");
            wrong.parameters.insert("topolvm.io/lvcreate-option-class".into(), "raid9".into());
            assert!(told(&wrong, &[Arc::clone(&node)]).unwrap().contains("\"raid9\""));
            wrong.parameters.insert("topolvm.io/devise-class".into(), "ssd".into());
            assert!(told(&wrong, &[]).unwrap().contains("parameters[\"topolvm.io/devise-class\"]"));
        }
    }

    #[test]
    fn annotations_are_those_of_topolvm() {
        let expected = [
            ("capacity.topolvm.io/00default", "4096"),
            ("capacity.topolvm.io/hdd", "0"),
            ("capacity.topolvm.io/ssd", "4096"),
        ];
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        assert_eq!(annotations_of(&node(), P), expected);
    }

    /// A node that offers so much of a class, and what is published of that.
    fn offering(bytes: u64) -> LvmNode {
        let mut node = LvmNode::new("n1", "lvms");
        let ssd =
            DeviceClass { name: "ssd".into(), available: Quantity::of(bytes), ..DeviceClass::default() };
        node.status = Some(Status { device_classes: vec![ssd], ..Status::default() });
        node
    }

    fn published(bytes: &str) -> Value {
        json!({
            "metadata": {
                "namespace": "lvms", "name": "csisc-1", "uid": "u", "resourceVersion": "1",
                "labels": { MANAGED_BY.0: MANAGED_BY.1 },
            },
            "storageClassName": "c", "capacity": bytes,
            "nodeTopology": {"matchLabels": {"topology.topolvm.io/node": "n1"}},
        })
    }

    async fn publisher(
        answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Capacity, Item, scripted::Asked) {
        let (context, asked) = scripted::context(answer).await;
        context.stores.classes.answered(class("WaitForFirstConsumer", "ssd"));
        context.stores.capacities.answered(serde_json::from_value(published("1")).unwrap());
        let item = Item::Pair { class: "c".into(), node: "n1".into() };
        let owner = Owner::new(context.client.clone(), "lvms", None);
        (Capacity::new(context, owner), item, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn changes_within_a_second_are_published_with_one_write() {
        let (capacity, item, asked) = publisher(|_| (200, published("4Ki"))).await;
        let writes = || asked.lock().unwrap().len();
        let tell = |bytes: u64| capacity.context.stores.lvm_nodes.answered(offering(bytes));
        tell(4096);
        assert_eq!(capacity.look(&item).await, Outcome::Done);
        assert_eq!(writes(), 1);
        for bytes in [2048, 1024] {
            tell(bytes);
            let Outcome::After(rest) = capacity.look(&item).await else { panic!("written at once") };
            assert!(rest <= INTERVAL);
        }
        assert_eq!(writes(), 1);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(capacity.look(&item).await, Outcome::Done);
        assert_eq!(writes(), 2);
    }

    #[tokio::test]
    async fn what_the_api_refuses_is_told_of_the_class() {
        let (capacity, item, asked) =
            publisher(|_| (403, json!({"code": 403, "message": "the lab refuses it"}))).await;
        capacity.context.stores.lvm_nodes.answered(offering(4096));
        assert_eq!(capacity.look(&item).await, Outcome::Failed);
        let told = scripted::told(&asked, "CapacityNotPublished").await;
        assert!(told.contains("the lab refuses it") && told.contains("StorageClass"), "{told}");
    }
}
