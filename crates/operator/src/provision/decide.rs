//! What a claim asks for next. Decides, and does nothing.

use lvms_api::logical_volume::{READ_WRITE, Spec};
use lvms_api::names::kubernetes::SELECTED_NODE;
use lvms_api::names::{ADOPTS, CLAIM, VOLUME_MODE};
use lvms_api::{LogicalVolume, Personality, Quantity};
use lvms_cluster::slim::{Claim, StorageClass, annotation};
use serde_json::Value;

use super::class::Parameters;
use super::node::{Nodes, is_allowed, spelled};
use super::persistent::Persistent;
use crate::stores::provisioner;

/// All that a decision depends on.
pub(super) struct View<'a> {
    /// For which driver.
    pub(super) personality: Personality,
    /// The claim.
    pub(super) claim: &'a Claim,
    /// Its class, if there is one of ours with that name.
    pub(super) class: Option<&'a StorageClass>,
    /// Whether a PersistentVolume for it is there.
    pub(super) persistent: bool,
    /// The LogicalVolume for it.
    pub(super) volume: Option<&'a LogicalVolume>,
    /// Whether that one's node has left the cluster, and has not told of an LV.
    pub(super) is_left_behind: bool,
    /// What its volume shall be a copy of.
    pub(super) source: Source,
    /// What is known of all nodes.
    pub(super) nodes: Nodes<'a>,
    /// Which leader we are.
    pub(super) identity: &'a str,
}

/// What a volume shall be a copy of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// Of nothing.
    Nothing,
    /// Of something that somebody else fills volumes from.
    Foreign(String),
    /// Of this LogicalVolume.
    Volume {
        /// Its name.
        name: String,
        /// Its node.
        node: String,
        /// The device class that it was asked of.
        device_class: String,
        /// How large it is.
        size: u64,
        /// The least that may be requested of a copy.
        least: u64,
    },
    /// It cannot be had now.
    Problem(String),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    /// Nothing, until something happens.
    Nothing,
    /// Wait for its node, and say so if that says nothing for long.
    Await,
    /// Say that somebody else fills the volume.
    LeaveAlone(String),
    /// Say what is wrong, and look again later.
    Refuse(String),
    /// Make this LogicalVolume.
    Create(Box<LogicalVolume>),
    /// Make this PersistentVolume.
    Publish(Box<Value>),
    /// Take the LogicalVolume away that could not be made, and say why.
    Discard(String),
    /// The same, and let the scheduler choose another node.
    Reschedule(String),
    /// Let the name go of the LogicalVolume that is deleted and whose node has left: another one has to have it.
    MakeWay,
}

/// gRPC's code for too little room.
const NO_ROOM: i32 = 8;

/// The name of the volume for a claim.
pub(super) fn volume_name(claim: &Claim) -> String {
    format!("pvc-{}", claim.uid())
}

/// Whether a claim still waits for a volume of ours.
pub(super) fn is_waiting(claim: &Claim, personality: Personality) -> bool {
    claim.spec.volume_name.is_empty() && provisioner(claim) == Some(personality.driver())
}

/// Whether there may be an LV that nobody has told of, if the node of a LogicalVolume has left.
pub(super) fn may_be_left_behind(volume: &LogicalVolume) -> bool {
    let refused = volume.status.as_ref().is_some_and(|status| status.code != 0) && !volume.is_deleted();
    volume.volume_id().is_none() && volume.annotation(ADOPTS).is_none() && !refused
}

/// What keeps the LV of a LogicalVolume in mind whose node has left without telling of it: deleted at once, it lets the
/// node remove the LV, if there is one, when it is back.
pub(super) fn left_behind(volume: &LogicalVolume, personality: Personality) -> LogicalVolume {
    let spec = Spec {
        name: format!("left-{}", volume.uid()),
        source: String::new(),
        access_type: String::new(),
        ..volume.spec.clone()
    };
    let mut left = LogicalVolume::new(personality, spec);
    let annotations = left.metadata.annotations.get_or_insert_default();
    annotations.insert(ADOPTS.to_owned(), volume.uid().to_owned());
    annotations.extend(volume.annotation(CLAIM).map(|claim| (CLAIM.to_owned(), claim.to_owned())));
    left
}

/// What to do next about a claim.
pub(super) fn decide(view: &View<'_>) -> Act {
    let claim = view.claim;
    if !is_waiting(claim, view.personality) || view.persistent {
        return Act::Nothing;
    }
    match view.volume {
        Some(volume) => made(view, volume),
        None if claim.metadata.deletion_timestamp.is_some() => Act::Nothing,
        None => new(view).unwrap_or_else(|act| act),
    }
}

fn made(view: &View<'_>, volume: &LogicalVolume) -> Act {
    let is_wanted = view.claim.metadata.deletion_timestamp.is_none();
    if volume.is_deleted() {
        return if view.is_left_behind && is_wanted { Act::MakeWay } else { Act::Nothing };
    }
    if view.is_left_behind && is_wanted {
        let node = &volume.spec.node_name;
        if !volume.spec.source.is_empty() {
            return Act::Refuse(format!("node {node}, which has the source, has left the cluster"));
        }
        let why = format!("node {node} has left the cluster before it has made the volume");
        let chosen = selected(view.claim) == Some(node);
        return if chosen { Act::Reschedule(why) } else { Act::Discard(why) };
    }
    let status = volume.status.clone().unwrap_or_default();
    let size = status.current_size.as_ref().and_then(|size| size.bytes().ok());
    match (volume.volume_id(), size) {
        (Some(handle), Some(size)) if status.code == 0 => {
            if !is_wanted {
                return Act::Nothing;
            }
            let Some(class) = view.class else { return Act::Refuse(no_class(view.claim)) };
            let filesystem = match Parameters::read(&class.parameters, view.personality) {
                Ok(parameters) => parameters.filesystem,
                Err(problem) => return Act::Refuse(told(class, &problem)),
            };
            let persistent = Persistent {
                personality: view.personality,
                claim: view.claim,
                class,
                name: volume.name(),
                handle,
                size,
                node: &volume.spec.node_name,
                filesystem: &filesystem,
                identity: view.identity,
            };
            Act::Publish(Box::new(persistent.object()))
        }
        (None, _) if status.code == NO_ROOM && is_sent_where_selected(view.claim, volume) => {
            Act::Reschedule(status.message)
        }
        (None, _) if status.code != 0 => Act::Discard(status.message),
        (None, _) => Act::Await,
        // Its LV was made, and is lost.
        (Some(_), _) if status.code != 0 && is_wanted => Act::Refuse(status.message),
        (Some(_), _) => Act::Nothing,
    }
}

/// Whether a volume is on the node that the scheduler has chosen, and could as well be on another.
fn is_sent_where_selected(claim: &Claim, volume: &LogicalVolume) -> bool {
    selected(claim) == Some(&volume.spec.node_name) && volume.spec.source.is_empty()
}

fn new(view: &View<'_>) -> Result<Act, Act> {
    let claim = view.claim;
    let class = view.class.ok_or_else(|| Act::Refuse(no_class(claim)))?;
    if claim.spec.selector.is_some() {
        return Err(Act::Refuse("spec.selector: claim Selector is not supported: remove it".to_owned()));
    }
    if claim.spec.volume_attributes_class_name.as_deref().is_some_and(|name| !name.is_empty()) {
        let problem =
            "spec.volumeAttributesClassName: a volume has no attributes that could be changed: remove it";
        return Err(Act::Refuse(problem.to_owned()));
    }
    access_modes(&claim.spec.access_modes).map_err(Act::Refuse)?;
    let parameters = Parameters::read(&class.parameters, view.personality)
        .map_err(|problem| Act::Refuse(told(class, &problem)))?;
    let requested = claim.requested().map_or(Ok(0), Quantity::bytes);
    let requested =
        requested.map_err(|error| Act::Refuse(format!("spec.resources.requests.storage: {error}")))?;
    let size = parameters
        .size(requested, claim.is_block())
        .map_err(|problem| Act::Refuse(format!("spec.resources.requests.storage: {problem}")))?;
    if class.waits_for_consumer() && selected(claim).is_none() {
        return Ok(Act::Nothing);
    }
    let mut spec = Spec {
        name: volume_name(claim),
        device_class: parameters.device_class.clone(),
        lvcreate_option_class: parameters.option_class.clone(),
        ..Spec::default()
    };
    match &view.source {
        Source::Nothing => {
            spec.node_name = place(view, class, &parameters, size)?;
            spec.size = Quantity::of(size);
        }
        Source::Foreign(kind) => return Ok(Act::LeaveAlone(kind.clone())),
        Source::Problem(problem) => return Err(Act::Refuse(problem.clone())),
        Source::Volume { name, node, device_class, size: source, least } => {
            if !is_allowed(class, &view.personality.topology_key(), node) {
                let problem = format!(
                    "the source is on node {node}, which allowedTopologies of {} exclude",
                    class.name()
                );
                return Err(Act::Refuse(problem));
            }
            if requested < *least {
                let problem = format!(
                    "spec.resources.requests.storage: the source has {}, request at least as much",
                    Quantity::of(*least)
                );
                return Err(Act::Refuse(problem));
            }
            if parameters.device_class.is_empty() {
                spec.device_class.clone_from(device_class);
            }
            spec.node_name.clone_from(node);
            spec.source.clone_from(name);
            spec.access_type = READ_WRITE.to_owned();
            spec.size = Quantity::of(size.max(*source));
        }
    }
    let mut volume = LogicalVolume::new(view.personality, spec);
    let metadata = &claim.metadata;
    let of = format!(
        "{}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    );
    let mode = if claim.is_block() { "Block" } else { "Filesystem" };
    let annotations = volume.metadata.annotations.get_or_insert_default();
    annotations.extend([(CLAIM.to_owned(), of), (VOLUME_MODE.to_owned(), mode.to_owned())]);
    Ok(Act::Create(Box::new(volume)))
}

/// The node for a volume that is a copy of nothing.
fn place(view: &View<'_>, class: &StorageClass, parameters: &Parameters, size: u64) -> Result<String, Act> {
    let Some(node) = selected(view.claim) else {
        return view.nodes.roomiest(class, parameters, size).map_err(Act::Refuse);
    };
    if view.nodes.offers(node, parameters) {
        return Ok(node.to_owned());
    }
    Err(Act::Reschedule(format!("node {node} does not offer device class {}", spelled(parameters))))
}

/// The node that the scheduler has chosen.
pub(super) fn selected(claim: &Claim) -> Option<&str> {
    annotation(&claim.metadata, SELECTED_NODE).filter(|node| !node.is_empty())
}

/// A volume is on one node: who wants to use it from several is told.
fn access_modes(modes: &[String]) -> Result<(), String> {
    for mode in modes {
        if mode != "ReadWriteOnce" && mode != "ReadWriteOncePod" {
            return Err(format!(
                "spec.accessModes: {mode} is not supported, because a volume is on one node: \
                 use ReadWriteOnce or ReadWriteOncePod"
            ));
        }
    }
    Ok(())
}

fn no_class(claim: &Claim) -> String {
    format!("storageclass.storage.k8s.io {:?} not found", claim.class().unwrap_or_default())
}

fn told(class: &StorageClass, problem: &str) -> String {
    format!("StorageClass {}: {problem}", class.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::Stores;
    use lvms_api::LvmNode;
    use lvms_api::logical_volume::{LOST, Status};
    use lvms_api::lvm_node::{self, DeviceClass};
    use lvms_cluster::slim::Node;
    use serde_json::json;

    const GIB: u64 = 1 << 30;

    struct Scene {
        claim: Value,
        class: Value,
        volume: Option<LogicalVolume>,
        is_left_behind: bool,
        persistent: bool,
        source: Source,
    }

    fn scene() -> Scene {
        Scene {
            claim: json!({
                "metadata": {
                    "name": "data", "namespace": "ns", "uid": "u1", "resourceVersion": "7",
                    "annotations": {
                        "volume.kubernetes.io/storage-provisioner": "topolvm.io",
                        "volume.kubernetes.io/selected-node": "n1",
                    },
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }),
            class: json!({
                "metadata": {"name": "fast"}, "provisioner": "topolvm.io",
                "volumeBindingMode": "WaitForFirstConsumer",
                "parameters": {"topolvm.io/device-class": "ssd", "csi.storage.k8s.io/fstype": "xfs"},
            }),
            volume: None,
            is_left_behind: false,
            persistent: false,
            source: Source::Nothing,
        }
    }

    impl Scene {
        fn decide(&self) -> Act {
            let class = DeviceClass {
                name: "ssd".into(),
                available: Quantity::of(10 * GIB),
                ..DeviceClass::default()
            };
            let mut told = LvmNode::new("n1", "lvms");
            told.status =
                Some(lvm_node::Status { device_classes: vec![class], ..lvm_node::Status::default() });
            let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
            let stores = Stores::default();
            stores.nodes.answered(node);
            stores.lvm_nodes.answered(told);
            let claim: Claim = serde_json::from_value(self.claim.clone()).unwrap();
            let class: Option<StorageClass> = serde_json::from_value(self.class.clone()).unwrap();
            decide(&View {
                personality: Personality::Topolvm,
                claim: &claim,
                class: class.as_ref(),
                persistent: self.persistent,
                volume: self.volume.as_ref(),
                is_left_behind: self.is_left_behind,
                source: self.source.clone(),
                nodes: Nodes { personality: Personality::Topolvm, stores: &stores },
                identity: "1-2-topolvm.io",
            })
        }

        fn refusal(&self) -> String {
            let act = self.decide();
            let Act::Refuse(message) = act else { panic!("not refused: {act:?}") };
            message
        }

        fn created(&self) -> LogicalVolume {
            let act = self.decide();
            let Act::Create(volume) = act else { panic!("not created: {act:?}") };
            *volume
        }

        fn with_volume(mut self, status: Status) -> Scene {
            let mut volume = self.created();
            volume.metadata.uid = Some("lv".into());
            volume.status = Some(status);
            self.volume = Some(volume);
            self
        }
    }

    fn ready() -> Status {
        Status { volume_id: "lv".into(), current_size: Some(Quantity::of(GIB)), ..Status::default() }
    }

    #[test]
    fn a_claim_with_a_node_becomes_a_logical_volume_on_it() {
        let volume = scene().created();
        let spec = Spec {
            name: "pvc-u1".into(),
            node_name: "n1".into(),
            size: Quantity::of(GIB),
            device_class: "ssd".into(),
            ..Spec::default()
        };
        assert_eq!(volume.spec, spec);
        assert_eq!(volume.annotation(CLAIM), Some("ns/data"));
        assert_eq!(volume.annotation(VOLUME_MODE), Some("Filesystem"));
    }

    #[test]
    fn a_claim_that_waits_for_its_pod_is_left_alone() {
        let mut scene = scene();
        scene.claim["metadata"]["annotations"].as_object_mut().unwrap().remove(SELECTED_NODE);
        assert_eq!(scene.decide(), Act::Nothing);
        scene.class["volumeBindingMode"] = json!("Immediate");
        assert_eq!(scene.created().spec.node_name, "n1");
    }

    #[test]
    fn what_is_bound_or_another_drivers_or_published_already_is_left_alone() {
        let mut bound = scene();
        bound.claim["spec"]["volumeName"] = json!("pv");
        assert_eq!(bound.decide(), Act::Nothing);
        let mut other = scene();
        other.claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = json!("other");
        assert_eq!(other.decide(), Act::Nothing);
        let mut published = scene().with_volume(ready());
        published.persistent = true;
        assert_eq!(published.decide(), Act::Nothing);
        let mut deleted = scene();
        deleted.claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(deleted.decide(), Act::Nothing);
    }

    #[test]
    fn every_mistake_names_its_field() {
        let with = |pointer: &str, value: Value| {
            let mut scene = scene();
            scene.claim["spec"][pointer] = value;
            scene.refusal()
        };
        assert!(with("selector", json!({"matchLabels": {}})).contains("spec.selector"));
        assert!(with("accessModes", json!(["ReadWriteMany"])).contains("spec.accessModes: ReadWriteMany"));
        assert!(with("accessModes", json!(["ReadOnlyMany"])).contains("spec.accessModes"));
        assert!(with("volumeAttributesClassName", json!("gold")).contains("spec.volumeAttributesClassName"));
        let huge = json!({"requests": {"storage": "15Ei"}});
        assert!(with("resources", huge).contains("spec.resources.requests.storage"));
        let mut class = scene();
        class.class["parameters"]["topolvm.io/devise-class"] = json!("x");
        assert!(class.refusal().starts_with("StorageClass fast: parameters"));
        let mut missing = scene();
        missing.class = Value::Null;
        assert_eq!(missing.refusal(), "storageclass.storage.k8s.io \"fast\" not found");
    }

    #[test]
    fn a_node_without_the_class_is_given_back_to_the_scheduler() {
        let mut scene = scene();
        scene.class["parameters"]["topolvm.io/device-class"] = json!("hdd");
        let expected = "node n1 does not offer device class \"hdd\"".to_owned();
        assert_eq!(scene.decide(), Act::Reschedule(expected));
        scene.claim["metadata"]["annotations"].as_object_mut().unwrap().remove(SELECTED_NODE);
        scene.class["volumeBindingMode"] = json!("Immediate");
        assert!(scene.refusal().contains("\"hdd\""));
    }

    #[test]
    fn what_its_node_has_made_is_published_with_the_size_that_it_has() {
        let status = Status { current_size: Some(Quantity::of(2 * GIB)), ..ready() };
        let Act::Publish(persistent) = scene().with_volume(status).decide() else { panic!() };
        assert_eq!(persistent["spec"]["capacity"]["storage"], "2Gi");
        assert_eq!(persistent["spec"]["csi"]["volumeHandle"], "lv");
        assert_eq!(persistent["spec"]["csi"]["fsType"], "xfs");
        let unfinished = Status { current_size: None, ..ready() };
        assert_eq!(scene().with_volume(unfinished).decide(), Act::Nothing);
    }

    #[test]
    fn what_its_node_has_refused_is_taken_away_and_goes_elsewhere_if_there_was_no_room() {
        let refused = |code: i32| Status { code, message: "why".into(), ..Status::default() };
        assert_eq!(scene().with_volume(refused(8)).decide(), Act::Reschedule("why".into()));
        assert_eq!(scene().with_volume(refused(3)).decide(), Act::Discard("why".into()));
        let mut elsewhere = scene().with_volume(refused(8));
        elsewhere.claim["metadata"]["annotations"][SELECTED_NODE] = json!("n2");
        assert_eq!(elsewhere.decide(), Act::Discard("why".into()));
        let mut anywhere = scene().with_volume(refused(8));
        anywhere.claim["metadata"]["annotations"].as_object_mut().unwrap().remove(SELECTED_NODE);
        assert_eq!(anywhere.decide(), Act::Discard("why".into()));
    }

    #[test]
    fn what_its_node_has_made_and_lost_is_not_published_and_says_why() {
        let lost = Status { code: LOST, message: "Lost: why".into(), ..ready() };
        let mut scene = scene().with_volume(lost);
        assert_eq!(scene.refusal(), "Lost: why");
        scene.claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(scene.decide(), Act::Nothing);
    }

    #[test]
    fn what_a_node_has_not_made_before_it_left_goes_elsewhere() {
        let mut left = scene().with_volume(Status::default());
        left.is_left_behind = true;
        let Act::Reschedule(why) = left.decide() else { panic!("{:?}", left.decide()) };
        assert!(why.contains("node n1 has left the cluster"), "{why}");
        // It is given back to the scheduler already, or has chosen no node.
        left.claim["metadata"]["annotations"][SELECTED_NODE] = json!("n2");
        assert!(matches!(left.decide(), Act::Discard(_)));
        let volume = left.volume.as_mut().unwrap();
        volume.spec.source = "pvc-0".into();
        let Act::Refuse(why) = left.decide() else { panic!("{:?}", left.decide()) };
        assert!(why.contains("which has the source"), "{why}");
        let volume = left.volume.as_mut().unwrap();
        volume.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(left.decide(), Act::MakeWay);
        left.is_left_behind = false;
        assert_eq!(left.decide(), Act::Nothing);
        left.is_left_behind = true;
        left.claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(left.decide(), Act::Nothing);
    }

    #[test]
    fn what_its_node_has_told_of_or_refused_or_adopts_an_lv_is_not_left_behind() {
        let volume = |status: Status| scene().with_volume(status).volume.unwrap();
        assert!(may_be_left_behind(&volume(Status::default())));
        assert!(!may_be_left_behind(&volume(ready())));
        assert!(!may_be_left_behind(&volume(Status { code: 8, ..Status::default() })));
        let mut adopts = volume(Status::default());
        adopts.metadata.annotations.get_or_insert_default().insert(ADOPTS.to_owned(), "lv".to_owned());
        assert!(!may_be_left_behind(&adopts));
    }

    #[test]
    fn a_copy_is_made_where_its_source_is_and_is_not_smaller() {
        let mut scene = scene();
        let source = |size: u64| Source::Volume {
            name: "pvc-0".into(),
            node: "n7".into(),
            device_class: "thin".into(),
            size: size + 4096,
            least: size,
        };
        scene.source = source(GIB);
        let spec = scene.created().spec;
        assert_eq!((spec.node_name.as_str(), spec.source.as_str()), ("n7", "pvc-0"));
        assert_eq!((spec.access_type.as_str(), spec.device_class.as_str()), ("rw", "ssd"));
        assert_eq!(spec.size.bytes(), Ok(GIB + 4096));
        scene.source = source(2 * GIB);
        assert!(scene.refusal().contains("request at least as much"));
        scene.source = Source::Problem("the snapshot is not ready".into());
        assert_eq!(scene.refusal(), "the snapshot is not ready");
        scene.source = Source::Foreign("Populator".into());
        assert_eq!(scene.decide(), Act::LeaveAlone("Populator".into()));
    }
}
