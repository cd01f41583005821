//! How far the growth of a claim is, and what comes next. Decides, and does nothing.

use lvms_api::logical_volume::LOST;
use lvms_api::{LogicalVolume, Quantity};
use lvms_cluster::slim::{Claim, PersistentVolume};

/// All that a decision depends on.
pub(super) struct View<'a> {
    pub(super) claim: &'a Claim,
    pub(super) persistent: &'a PersistentVolume,
    /// What its status says is about what its spec asks for.
    pub(super) volume: &'a LogicalVolume,
    /// Whether the API keeps how far growth is in the claim: before Kubernetes 1.32 it does so only if asked to.
    pub(super) is_kept: bool,
}

/// How far growth is, in Kubernetes' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    ControllerInProgress,
    ControllerInfeasible,
    NodePending,
    NodeInProgress,
    NodeInfeasible,
}

impl State {
    const ALL: [State; 5] = [
        State::ControllerInProgress,
        State::ControllerInfeasible,
        State::NodePending,
        State::NodeInProgress,
        State::NodeInfeasible,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            State::ControllerInProgress => "ControllerResizeInProgress",
            State::ControllerInfeasible => "ControllerResizeInfeasible",
            State::NodePending => "NodeResizePending",
            State::NodeInProgress => "NodeResizeInProgress",
            State::NodeInfeasible => "NodeResizeInfeasible",
        }
    }

    fn named(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// Conditions of a claim that are about growth.
pub(super) const CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing, until something happens.
    Nothing,
    /// Growth is over: nobody needs to know any more what was before.
    Forget,
    /// Write down to which size it shall grow, before it does.
    Begin(u64),
    /// Ask the node for it.
    Ask(u64),
    /// The LV has grown: the PersistentVolume says so.
    Enlarge(u64),
    /// The rest is the kubelet's.
    HandOver(u64),
    /// There is no rest.
    Finish(u64),
    /// The node has refused it.
    Fail { size: u64, infeasible: bool, message: String },
}

/// gRPC's codes for what cannot be fulfilled as it is: a wrong argument, nothing there, out of range.
const INFEASIBLE: [i32; 3] = [3, 5, 11];

const STORAGE: &str = "storage";

/// On a PersistentVolume: what its claim had before it grew.
const BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

pub(super) fn decide(view: &View<'_>) -> Act {
    let (claim, persistent) = (view.claim, view.persistent);
    let bound = persistent.spec.claim_ref.as_ref().is_some_and(|of| of.uid == claim.uid());
    if claim.status.phase != "Bound" || !bound || claim.metadata.deletion_timestamp.is_some() {
        return Act::Nothing;
    }
    let bytes =
        |quantity: Option<&Quantity>| quantity.and_then(|quantity| quantity.bytes().ok()).unwrap_or(0);
    let (wanted, given) = (bytes(claim.requested()), bytes(claim.given()));
    let (promised, allocated) = (
        bytes(persistent.capacity()),
        claim.status.allocated_resources.get(STORAGE).map(|size| bytes(Some(size))),
    );
    let state = claim.status.allocated_resource_statuses.get(STORAGE).and_then(|name| State::named(name));
    if wanted <= given {
        let before = lvms_cluster::slim::annotation(&persistent.metadata, BEFORE);
        return if before.is_some() && given >= promised { Act::Forget } else { Act::Nothing };
    }
    let refused = view.volume.status.as_ref().filter(|status| status.code != 0);
    let Some(target) = target(wanted, promised, allocated, state, refused.is_some(), claim) else {
        return Act::Nothing;
    };
    let has_begun = if view.is_kept {
        state == Some(State::ControllerInProgress) && allocated == Some(target)
    } else {
        has_condition(claim, "Resizing")
    };
    if !has_begun {
        return Act::Begin(target);
    }
    grow(view, target, promised)
}

/// The size to grow to.
fn target(
    wanted: u64,
    promised: u64,
    allocated: Option<u64>,
    state: Option<State>,
    refused: bool,
    claim: &Claim,
) -> Option<u64> {
    let allocated_or = |other: u64| Some(allocated.unwrap_or(other));
    if promised < wanted {
        return match state {
            Some(State::NodeInfeasible) => allocated_or(wanted),
            Some(State::NodePending | State::NodeInProgress) => {
                allocated.filter(|allocated| promised < *allocated)
            }
            // What was begun is finished first, unless it was refused.
            Some(State::ControllerInProgress) if !refused => allocated_or(wanted),
            Some(State::ControllerInProgress | State::ControllerInfeasible) | None => Some(wanted),
        };
    }
    match state {
        Some(State::NodePending | State::NodeInProgress) => None,
        Some(State::NodeInfeasible | State::ControllerInProgress | State::ControllerInfeasible) => {
            allocated_or(wanted)
        }
        None if allocated.is_some() => allocated,
        None => (!has_condition(claim, "FileSystemResizePending")).then_some(wanted),
    }
}

fn has_condition(claim: &Claim, name: &str) -> bool {
    claim.status.conditions.iter().any(|one| one.r#type == name && one.status == "True")
}

/// What was begun goes on.
fn grow(view: &View<'_>, target: u64, promised: u64) -> Act {
    let status = view.volume.status.clone().unwrap_or_default();
    let size = status.current_size.as_ref().and_then(|size| size.bytes().ok());
    let Some(size) = size else { return Act::Nothing };
    if size < target {
        let asked = view.volume.spec.size.bytes().unwrap_or(0);
        let refused = status.code != 0;
        if status.code == LOST {
            return Act::Fail { size: target, infeasible: false, message: status.message };
        }
        if view.volume.is_deleted() {
            let message = format!(
                "its LogicalVolume {} was deleted: it is kept as long as something names it, and not changed any more: \
                 copy its data to another volume",
                view.volume.name()
            );
            return Act::Fail { size: target, infeasible: false, message };
        }
        if refused && asked != target {
            // The status is about what was asked for before. When nothing is, the node takes it back.
            return if asked > size { Act::Ask(size) } else { Act::Nothing };
        }
        if asked < target {
            return Act::Ask(target);
        }
        if refused {
            let infeasible = INFEASIBLE.contains(&status.code);
            return Act::Fail { size: target, infeasible, message: status.message };
        }
        return Act::Nothing;
    }
    if promised < size {
        return Act::Enlarge(size);
    }
    if view.claim.is_block() { Act::Finish(promised) } else { Act::HandOver(target) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::Personality;
    use lvms_api::logical_volume::{Spec, Status};
    use serde_json::json;

    const GIB: u64 = 1 << 30;

    struct Scene {
        claim: serde_json::Value,
        promised: u64,
        wish: u64,
        status: Status,
        is_kept: bool,
    }

    /// A claim with 1 GiB that asks for 2.
    fn scene() -> Scene {
        Scene {
            claim: json!({
                "metadata": {"name": "data", "namespace": "ns", "uid": "u"},
                "spec": {"volumeName": "pvc-u", "resources": {"requests": {"storage": "2Gi"}}},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            }),
            promised: GIB,
            wish: GIB,
            status: Status {
                volume_id: "h".into(),
                current_size: Some(Quantity::of(GIB)),
                ..Status::default()
            },
            is_kept: true,
        }
    }

    impl Scene {
        fn decide(&self) -> Act {
            self.decide_about(|_| ())
        }

        fn decide_about(&self, change: impl FnOnce(&mut LogicalVolume)) -> Act {
            let persistent: PersistentVolume = serde_json::from_value(json!({
                "metadata": {"name": "pvc-u"},
                "spec": {
                    "csi": {"driver": "topolvm.io", "volumeHandle": "h"},
                    "capacity": {"storage": Quantity::of(self.promised)},
                    "claimRef": {"namespace": "ns", "name": "data", "uid": "u"},
                },
            }))
            .unwrap();
            let spec = Spec { name: "pvc-u".into(), size: Quantity::of(self.wish), ..Spec::default() };
            let mut volume = LogicalVolume::new(Personality::Topolvm, spec);
            volume.status = Some(self.status.clone());
            change(&mut volume);
            let claim: Claim = serde_json::from_value(self.claim.clone()).unwrap();
            decide(&View { claim: &claim, persistent: &persistent, volume: &volume, is_kept: self.is_kept })
        }

        fn begun(mut self, size: &str, state: &str) -> Scene {
            self.claim["status"]["allocatedResources"] = json!({"storage": size});
            self.claim["status"]["allocatedResourceStatuses"] = json!({"storage": state});
            self
        }

        fn has(mut self, size: u64) -> Scene {
            self.status.current_size = Some(Quantity::of(size));
            self.wish = size;
            self
        }
    }

    const RUNNING: &str = "ControllerResizeInProgress";

    #[test]
    fn the_way_of_a_growth() {
        assert_eq!(scene().decide(), Act::Begin(2 * GIB));
        let begun = || scene().begun("2Gi", RUNNING);
        assert_eq!(begun().decide(), Act::Ask(2 * GIB));
        let asked = Scene { wish: 2 * GIB, ..begun() };
        assert_eq!(asked.decide(), Act::Nothing);
        let grown = || begun().has(2 * GIB);
        assert_eq!(grown().decide(), Act::Enlarge(2 * GIB));
        let enlarged = Scene { promised: 2 * GIB, ..grown() };
        assert_eq!(enlarged.decide(), Act::HandOver(2 * GIB));
        let handed_over =
            Scene { promised: 2 * GIB, ..scene().begun("2Gi", "NodeResizePending").has(2 * GIB) };
        assert_eq!(handed_over.decide(), Act::Nothing);
    }

    #[test]
    fn the_way_of_a_growth_where_the_api_keeps_nothing_of_it() {
        let with = |condition: Option<&str>| {
            let mut scene = Scene { is_kept: false, ..scene() };
            let conditions = condition.map(|name| json!({"type": name, "status": "True"}));
            scene.claim["status"]["conditions"] = json!(conditions.as_slice());
            scene
        };
        assert_eq!(with(None).decide(), Act::Begin(2 * GIB));
        let begun = || with(Some("Resizing"));
        assert_eq!(begun().decide(), Act::Ask(2 * GIB));
        assert_eq!(Scene { wish: 2 * GIB, ..begun() }.decide(), Act::Nothing);
        assert_eq!(begun().has(2 * GIB).decide(), Act::Enlarge(2 * GIB));
        let enlarged = Scene { promised: 2 * GIB, ..begun().has(2 * GIB) };
        assert_eq!(enlarged.decide(), Act::HandOver(2 * GIB));
        let handed_over = with(Some("FileSystemResizePending")).has(2 * GIB);
        assert_eq!(Scene { promised: 2 * GIB, ..handed_over }.decide(), Act::Nothing);
    }

    #[test]
    fn a_block_volume_needs_no_kubelet_and_gets_what_it_has_become() {
        let mut block = scene().begun("2Gi", RUNNING).has(2 * GIB + 4096);
        block.claim["spec"]["volumeMode"] = json!("Block");
        assert_eq!(block.decide(), Act::Enlarge(2 * GIB + 4096));
        block.promised = 2 * GIB + 4096;
        assert_eq!(block.decide(), Act::Finish(2 * GIB + 4096));
    }

    #[test]
    fn what_is_refused_is_told() {
        let mut refused = Scene { wish: 2 * GIB, ..scene().begun("2Gi", RUNNING) };
        (refused.status.code, refused.status.message) = (11, "no room".into());
        let expected = Act::Fail { size: 2 * GIB, infeasible: true, message: "no room".into() };
        assert_eq!(refused.decide(), expected);
        refused.wish = 2 * GIB;
        refused.status.code = 13;
        assert!(matches!(refused.decide(), Act::Fail { infeasible: false, .. }));
    }

    #[test]
    fn a_refusal_is_taken_back_by_its_node_before_something_else_is_asked_for() {
        let mut scene = Scene { wish: 100 * GIB, ..scene().begun("2Gi", RUNNING) };
        scene.status.code = 11;
        assert_eq!(scene.decide(), Act::Ask(GIB), "nothing");
        scene.wish = GIB;
        assert_eq!(scene.decide(), Act::Nothing);
        scene.status.code = 0;
        assert_eq!(scene.decide(), Act::Ask(2 * GIB));
    }

    #[test]
    fn growth_of_what_is_only_kept_is_told_to_fail() {
        let begun = scene().begun("2Gi", RUNNING);
        let deleted = |volume: &mut LogicalVolume| {
            let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
            volume.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        };
        let Act::Fail { infeasible: false, message, .. } = begun.decide_about(deleted) else { panic!() };
        assert!(message.contains("LogicalVolume pvc-u was deleted"), "{message}");
    }

    #[test]
    fn growth_of_a_lost_volume_is_told_to_fail() {
        let mut scene = scene().begun("2Gi", RUNNING);
        (scene.status.code, scene.status.message) = (LOST, "Lost: it is not there".into());
        let expected =
            Act::Fail { size: 2 * GIB, infeasible: false, message: "Lost: it is not there".into() };
        assert_eq!(scene.decide(), expected);
    }

    #[test]
    fn after_a_refusal_a_smaller_request_is_tried_and_a_withdrawn_one_ends() {
        let mut smaller = scene().begun("100Gi", "ControllerResizeInfeasible");
        assert_eq!(smaller.decide(), Act::Begin(2 * GIB));
        smaller.claim["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
        assert_eq!(smaller.decide(), Act::Nothing);
    }

    #[test]
    fn what_was_begun_is_finished_before_more_is_begun() {
        let mut more = Scene { wish: 2 * GIB, ..scene().begun("2Gi", RUNNING) };
        more.claim["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
        assert_eq!(more.decide(), Act::Nothing);
        let mut waiting =
            Scene { promised: 2 * GIB, ..scene().begun("2Gi", "NodeResizePending").has(2 * GIB) };
        waiting.claim["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
        assert_eq!(waiting.decide(), Act::Nothing);
    }

    #[test]
    fn what_has_grown_is_left_alone_and_forgets_what_was_before() {
        let mut done = Scene { promised: 2 * GIB, ..scene().has(2 * GIB) };
        done.claim["status"]["capacity"]["storage"] = json!("2Gi");
        assert_eq!(done.decide(), Act::Nothing);
        let mut other = scene();
        other.claim["metadata"]["uid"] = json!("another");
        assert_eq!(other.decide(), Act::Nothing);
    }
}
