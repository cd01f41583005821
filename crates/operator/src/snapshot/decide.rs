//! What a VolumeSnapshotContent asks for next. Decides, and does nothing.

use lvms_api::logical_volume::{READ_ONLY, Spec, Status};
use lvms_api::names::{ADOPTS, NODE};
use lvms_api::{LogicalVolume, Personality, Quantity};
use lvms_cluster::slim::{SnapshotContent, annotation, has_finalizer};

/// That it is being made: it is not deleted meanwhile.
pub(super) const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";

/// That its VolumeSnapshot is deleted: it may go.
pub(super) const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

/// That it still has something to delete.
pub(super) const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";

/// That it is one of a group, which we do not make.
const IN_GROUP: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// All that a decision depends on.
pub(super) struct View<'a> {
    pub(super) personality: Personality,
    pub(super) content: &'a SnapshotContent,
    /// The LogicalVolume of the volume that it is a snapshot of.
    pub(super) origin: Option<&'a LogicalVolume>,
    /// The same, or what the PersistentVolume of that volume says of it.
    pub(super) known: Option<&'a LogicalVolume>,
    /// The LogicalVolume that it is.
    pub(super) volume: Option<&'a LogicalVolume>,
    /// Whether its node was seen to remove the LV.
    pub(super) removed: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    /// Nothing, until something happens.
    Nothing,
    /// Mark that it is being made.
    Mark,
    /// Make this LogicalVolume.
    Create(Box<LogicalVolume>),
    /// Say that it is ready.
    Ready {
        handle: String,
        /// In nanoseconds since 1970.
        created: i64,
        size: u64,
    },
    /// Nothing has changed since it was said what is wrong: look again later.
    Later,
    /// It will not be: take the mark away.
    Unmark,
    /// It is ready: take the mark away, and write down which node has it.
    Settle(String),
    /// Make its LogicalVolume again, which is gone: its LV is still there.
    PutBack(Box<LogicalVolume>),
    /// Say that it is gone, and why it is not made again.
    Missing(String),
    /// Say what is wrong; `over` if the LogicalVolume that could not be made is to be taken away.
    Fail { message: String, over: bool },
    /// Delete its LogicalVolume.
    Delete,
    /// Let it go: there is nothing to delete any more.
    LetGo,
}

/// The name of the LogicalVolume for a snapshot.
pub(crate) fn volume_name(content: &SnapshotContent) -> String {
    format!("snapshot-{}", content.spec.volume_snapshot_ref.uid)
}

/// What the driver calls it, if it knows it.
pub(crate) fn handle(content: &SnapshotContent) -> Option<&str> {
    let told = content.status.as_ref().and_then(|status| status.snapshot_handle.as_deref());
    told.or(content.spec.source.snapshot_handle.as_deref()).filter(|handle| !handle.is_empty())
}

/// What to do next about a content of ours.
pub(super) fn decide(view: &View<'_>) -> Act {
    let content = view.content;
    if annotation(&content.metadata, IN_GROUP).is_some() {
        return Act::Nothing;
    }
    let marked = annotation(&content.metadata, BEING_CREATED).is_some();
    if may_go(content) { going(view) } else { making(view, marked) }
}

/// Whether nobody wants a content any more: it is deleted, and so is its VolumeSnapshot.
pub(crate) fn may_go(content: &SnapshotContent) -> bool {
    let is = |mark: &str| annotation(&content.metadata, mark).is_some();
    let made_by_hand =
        content.spec.source.snapshot_handle.is_some() && content.spec.volume_snapshot_ref.uid.is_empty();
    content.metadata.deletion_timestamp.is_some()
        && (made_by_hand || (!is(BEING_CREATED) && is(BEING_DELETED)))
}

fn going(view: &View<'_>) -> Act {
    if !has_finalizer(&view.content.metadata, FINALIZER) {
        return Act::Nothing;
    }
    if view.content.spec.deletion_policy != "Delete" {
        return Act::LetGo;
    }
    match (view.volume, lost(view)) {
        (Some(_), _) => Act::Delete,
        // An LV that nothing names any more would never be found.
        (None, Some(handle)) if !view.removed => put_back(view, handle),
        (None, _) => Act::LetGo,
    }
}

/// The handle of what was there: it was told to be, or somebody says on which node it is.
fn lost<'a>(view: &View<'a>) -> Option<&'a str> {
    let content = view.content;
    let told = content.status.as_ref().and_then(|status| status.snapshot_handle.as_deref());
    let was_there = told.is_some() || annotation(&content.metadata, NODE).is_some();
    handle(content).filter(|_| was_there && view.volume.is_none())
}

/// The LogicalVolume for the LV that a content names.
fn put_back(view: &View<'_>, handle: &str) -> Act {
    let content = view.content;
    let node = annotation(&content.metadata, NODE).or(view.known.map(|known| known.spec.node_name.as_str()));
    let Some(node) = node else {
        return Act::Missing(format!(
            "its LogicalVolume is gone, and which node has the logical volume {handle} is not known: set the \
             annotation {NODE} of this object to the node's name"
        ));
    };
    let told = content.status.as_ref().and_then(|status| status.restore_size);
    let told = told.and_then(|size| u64::try_from(size).ok()).map(Quantity::of);
    let origin = content.spec.source.volume_handle.as_deref().unwrap_or(handle);
    let spec = Spec {
        name: match content.spec.volume_snapshot_ref.uid.as_str() {
            "" => format!("snapshot-{handle}"),
            _ => volume_name(content),
        },
        node_name: node.to_owned(),
        size: told.or_else(|| view.known.map(|known| known.spec.size.clone())).unwrap_or_default(),
        device_class: view.known.map(|known| known.spec.device_class.clone()).unwrap_or_default(),
        lvcreate_option_class: String::new(),
        source: view.known.map_or(origin, LogicalVolume::name).to_owned(),
        access_type: READ_ONLY.to_owned(),
    };
    let mut wanted = LogicalVolume::new(view.personality, spec);
    wanted.metadata.annotations.get_or_insert_default().insert(ADOPTS.to_owned(), handle.to_owned());
    Act::PutBack(Box::new(wanted))
}

fn making(view: &View<'_>, marked: bool) -> Act {
    let content = view.content;
    let ready = content.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true));
    // Another one of today's data would not be it.
    if let Some(handle) = lost(view) {
        return put_back(view, handle);
    }
    if ready {
        let node = view.volume.map(|volume| volume.annotation(NODE).unwrap_or(&volume.spec.node_name));
        return match node {
            Some(node) if marked || annotation(&content.metadata, NODE) != Some(node) => {
                Act::Settle(node.to_owned())
            }
            None if marked => Act::Unmark,
            _ => Act::Nothing,
        };
    }
    if let Some(wanted) = &content.spec.source.snapshot_handle {
        return match view.volume {
            Some(volume) if volume.is_deleted() && volume.is_released() => {
                let message =
                    format!("spec.source.snapshotHandle: LogicalVolume {} is being removed", volume.name());
                fail(content, message, false)
            }
            Some(volume) => match refusal(volume) {
                Some(status) => fail(content, status.message.clone(), false),
                None => ready_as(volume),
            },
            None => {
                let message = format!(
                    "spec.source.snapshotHandle: there is no LogicalVolume with the volumeID {wanted:?}"
                );
                fail(content, message, false)
            }
        };
    }
    match view.volume {
        Some(volume) if volume.is_deleted() => Act::Nothing,
        Some(volume) => match refusal(volume) {
            Some(status) => fail(content, status.message.clone(), true),
            None => ready_as(volume),
        },
        None if content.metadata.deletion_timestamp.is_some() => {
            if marked {
                Act::Unmark
            } else {
                Act::Nothing
            }
        }
        None => new(view, marked),
    }
}

fn new(view: &View<'_>, marked: bool) -> Act {
    let content = view.content;
    let origin = content.spec.source.volume_handle.as_deref().unwrap_or_default();
    if content.spec.volume_snapshot_ref.uid.is_empty() {
        return Act::Nothing;
    }
    let Some(volume) = view.origin else {
        let message =
            format!("spec.source.volumeHandle: there is no LogicalVolume with the volumeID {origin:?}");
        return fail(content, message, false);
    };
    let Some(size) = volume.status.as_ref().and_then(|status| status.current_size.clone()) else {
        return fail(content, format!("the size of LogicalVolume {} is not known yet", volume.name()), false);
    };
    if !marked {
        return Act::Mark;
    }
    let spec = Spec {
        name: volume_name(content),
        node_name: volume.spec.node_name.clone(),
        size,
        device_class: volume.spec.device_class.clone(),
        lvcreate_option_class: String::new(),
        source: volume.name().to_owned(),
        access_type: READ_ONLY.to_owned(),
    };
    Act::Create(Box::new(LogicalVolume::new(view.personality, spec)))
}

/// What its node has said that went wrong.
fn refusal(volume: &LogicalVolume) -> Option<&Status> {
    volume.status.as_ref().filter(|status| status.code != 0)
}

fn ready_as(volume: &LogicalVolume) -> Act {
    let size = volume.status.as_ref().and_then(|status| status.current_size.as_ref()?.bytes().ok());
    let (Some(handle), Some(size)) = (volume.volume_id(), size) else { return Act::Nothing };
    let created = volume.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_nanosecond());
    Act::Ready { handle: handle.to_owned(), created: i64::try_from(created).unwrap_or(0), size }
}

/// The same is not said twice.
fn fail(content: &SnapshotContent, message: String, over: bool) -> Act {
    let said = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.clone());
    if said.as_ref() == Some(&message) && !over { Act::Later } else { Act::Fail { message, over } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::Quantity;
    use lvms_api::names::RELEASED;
    use serde_json::{Value, json};

    const P: Personality = Personality::Topolvm;

    fn content() -> Value {
        json!({
            "metadata": {"name": "snapcontent-1", "finalizers": [FINALIZER], "annotations": {}},
            "spec": {
                "driver": "topolvm.io", "deletionPolicy": "Delete",
                "source": {"volumeHandle": "origin"},
                "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "su"},
            },
        })
    }

    fn volume(name: &str, id: &str) -> LogicalVolume {
        let spec =
            Spec { name: name.into(), node_name: "n1".into(), size: Quantity::of(5), ..Spec::default() };
        let mut volume = LogicalVolume::new(P, spec);
        let current_size = Some(Quantity::of(4096));
        volume.status = Some(Status { volume_id: id.into(), current_size, ..Status::default() });
        volume
    }

    fn decided(content: &Value, volume: Option<&LogicalVolume>) -> Act {
        let origin = self::volume("pvc-0", "origin");
        with(content, Some(&origin), volume, false)
    }

    fn with(
        content: &Value,
        origin: Option<&LogicalVolume>,
        volume: Option<&LogicalVolume>,
        removed: bool,
    ) -> Act {
        let content: SnapshotContent = serde_json::from_value(content.clone()).unwrap();
        decide(&View { personality: P, content: &content, origin, known: origin, volume, removed })
    }

    fn ready() -> Value {
        let mut content = content();
        content["status"] = json!({"readyToUse": true, "snapshotHandle": "h", "restoreSize": 4096});
        content
    }

    #[test]
    fn the_way_of_a_snapshot() {
        let mut content = content();
        assert_eq!(decided(&content, None), Act::Mark);
        content["metadata"]["annotations"][BEING_CREATED] = json!("yes");
        let Act::Create(made) = decided(&content, None) else { panic!() };
        assert_eq!((made.spec.name.as_str(), made.spec.source.as_str()), ("snapshot-su", "pvc-0"));
        assert_eq!((made.spec.access_type.as_str(), made.spec.size.bytes()), ("ro", Ok(4096)));
        assert_eq!(decided(&content, Some(&LogicalVolume { status: None, ..*made })), Act::Nothing);
        let ready = Act::Ready { handle: "h".into(), created: 0, size: 4096 };
        assert_eq!(decided(&content, Some(&volume("snapshot-su", "h"))), ready);
        content["status"] = json!({"readyToUse": true, "snapshotHandle": "h"});
        assert_eq!(decided(&content, Some(&volume("snapshot-su", "h"))), Act::Settle("n1".into()));
        content["metadata"]["annotations"] = json!({NODE: "n1"});
        assert_eq!(decided(&content, Some(&volume("snapshot-su", "h"))), Act::Nothing);
    }

    #[test]
    fn one_that_was_there_before_becomes_ready_or_is_told_to_be_missing() {
        let mut content = content();
        content["spec"]["source"] = json!({"snapshotHandle": "h"});
        let made = volume("snapshot-x", "h");
        assert!(matches!(decided(&content, Some(&made)), Act::Ready { .. }));
        let Act::Fail { message, over: false } = decided(&content, None) else { panic!() };
        assert!(message.contains("spec.source.snapshotHandle"), "{message}");
        content["status"] = json!({"readyToUse": false, "error": {"message": message}});
        assert_eq!(decided(&content, None), Act::Later);
        // What is lost, or about to go, is not promised.
        let mut lost = made.clone();
        let told = lost.status.get_or_insert_default();
        (told.code, told.message) = (15, "Lost: it is not there".into());
        let fail = |message: &str| Act::Fail { message: message.into(), over: false };
        assert_eq!(decided(&content, Some(&lost)), fail("Lost: it is not there"));
        let mut going = made;
        going.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert!(matches!(decided(&content, Some(&going)), Act::Ready { .. }));
        going.metadata.uid = Some("own".into());
        going.metadata.annotations.get_or_insert_default().insert(RELEASED.to_owned(), "own".into());
        let message = "spec.source.snapshotHandle: LogicalVolume snapshot-x is being removed";
        assert_eq!(decided(&content, Some(&going)), fail(message));
    }

    #[test]
    fn what_its_node_has_refused_is_told_and_taken_away() {
        let mut content = content();
        content["metadata"]["annotations"][BEING_CREATED] = json!("yes");
        let mut refused = volume("snapshot-su", "");
        refused.status = Some(Status { code: 8, message: "no room".into(), ..Status::default() });
        assert_eq!(decided(&content, Some(&refused)), Act::Fail { message: "no room".into(), over: true });
    }

    #[test]
    fn it_goes_when_its_snapshot_goes_and_not_while_it_is_made() {
        let made = volume("snapshot-su", "h");
        let mut content = content();
        content["status"] = json!({"readyToUse": true, "snapshotHandle": "h"});
        content["metadata"]["annotations"][NODE] = json!("n1");
        content["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(decided(&content, Some(&made)), Act::Nothing);
        content["metadata"]["annotations"][BEING_DELETED] = json!("yes");
        assert_eq!(decided(&content, Some(&made)), Act::Delete);
        assert_eq!(with(&content, None, None, true), Act::LetGo);
        content["metadata"]["annotations"][BEING_CREATED] = json!("yes");
        assert_eq!(decided(&content, Some(&made)), Act::Settle("n1".into()));
        content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
        content["spec"]["deletionPolicy"] = json!("Retain");
        assert_eq!(decided(&content, Some(&made)), Act::LetGo);
    }

    #[test]
    fn a_snapshot_whose_logical_volume_is_gone_gets_it_back_and_none_is_taken_anew() {
        let mut content = ready();
        let Act::PutBack(wanted) = decided(&content, None) else { panic!() };
        assert_eq!((wanted.lv(), wanted.name()), ("h", "snapshot-su"));
        assert_eq!((wanted.spec.node_name.as_str(), wanted.spec.size.bytes()), ("n1", Ok(4096)));
        assert!(wanted.is_snapshot() && wanted.spec.source == "pvc-0");
        assert_eq!(decided(&content, Some(&wanted)), Act::Settle("n1".into()));
        // Also while it is not told to be ready.
        content["status"]["readyToUse"] = json!(false);
        assert_eq!(decided(&content, None), Act::PutBack(wanted));
    }

    #[test]
    fn one_whose_origin_is_gone_is_where_it_was_written_down_to_be_or_kept_and_told() {
        let mut content = ready();
        let Act::Missing(told) = with(&content, None, None, false) else { panic!() };
        assert!(told.contains("lvms.io/node"), "{told}");
        content["metadata"]["annotations"][NODE] = json!("n7");
        let Act::PutBack(wanted) = with(&content, None, None, false) else { panic!() };
        assert_eq!((wanted.spec.node_name.as_str(), wanted.lv()), ("n7", "h"));
        assert!(wanted.is_snapshot(), "it is one of {}", wanted.spec.source);
    }

    #[test]
    fn a_content_that_goes_takes_its_lv_along_though_its_logical_volume_is_gone() {
        let mut content = ready();
        content["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
        assert!(matches!(decided(&content, None), Act::PutBack(_)));
        assert!(matches!(with(&content, None, None, false), Act::Missing(_)));
        assert_eq!(with(&content, None, None, true), Act::LetGo);
        content["spec"]["deletionPolicy"] = json!("Retain");
        assert_eq!(decided(&content, None), Act::LetGo);
        // What never was there leaves nothing.
        content["spec"]["deletionPolicy"] = json!("Delete");
        content["status"] = Value::Null;
        assert_eq!(decided(&content, None), Act::LetGo);
    }

    #[test]
    fn groups_are_left_alone() {
        let mut content = content();
        content["metadata"]["annotations"][IN_GROUP] = json!("g");
        assert_eq!(decided(&content, None), Act::Nothing);
    }
}
