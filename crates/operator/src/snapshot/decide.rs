//! What a VolumeSnapshotContent asks for next. Decides, and does nothing.

use lvms_api::logical_volume::{READ_ONLY, Spec};
use lvms_api::{LogicalVolume, Personality};
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
    /// The LogicalVolume that it is.
    pub(super) volume: Option<&'a LogicalVolume>,
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
    /// It is ready, or will not be: take the mark away.
    Unmark,
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
    if content.metadata.deletion_timestamp.is_some() {
        let made_by_hand =
            content.spec.source.snapshot_handle.is_some() && content.spec.volume_snapshot_ref.uid.is_empty();
        let may_go = made_by_hand || (!marked && annotation(&content.metadata, BEING_DELETED).is_some());
        return if may_go { going(view) } else { making(view, marked) };
    }
    making(view, marked)
}

fn going(view: &View<'_>) -> Act {
    if !has_finalizer(&view.content.metadata, FINALIZER) {
        return Act::Nothing;
    }
    match view.volume {
        Some(_) if view.content.spec.deletion_policy == "Delete" => Act::Delete,
        _ => Act::LetGo,
    }
}

fn making(view: &View<'_>, marked: bool) -> Act {
    let content = view.content;
    let ready = content.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true));
    if ready {
        return if marked { Act::Unmark } else { Act::Nothing };
    }
    if let Some(wanted) = &content.spec.source.snapshot_handle {
        return match view.volume {
            Some(volume) => ready_as(volume),
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
        Some(volume) => match volume.status.as_ref().filter(|status| status.code != 0) {
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
    use lvms_api::logical_volume::Status;
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
        let content: SnapshotContent = serde_json::from_value(content.clone()).unwrap();
        let origin = self::volume("pvc-0", "origin");
        decide(&View { personality: P, content: &content, origin: Some(&origin), volume })
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
        assert_eq!(decided(&content, Some(&volume("snapshot-su", "h"))), Act::Unmark);
        content["metadata"]["annotations"] = json!({});
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
        content["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(decided(&content, Some(&made)), Act::Nothing);
        content["metadata"]["annotations"][BEING_DELETED] = json!("yes");
        assert_eq!(decided(&content, Some(&made)), Act::Delete);
        assert_eq!(decided(&content, None), Act::LetGo);
        content["metadata"]["annotations"][BEING_CREATED] = json!("yes");
        assert_eq!(decided(&content, Some(&made)), Act::Unmark);
        content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
        content["spec"]["deletionPolicy"] = json!("Retain");
        assert_eq!(decided(&content, Some(&made)), Act::LetGo);
    }

    #[test]
    fn groups_are_left_alone() {
        let mut content = content();
        content["metadata"]["annotations"][IN_GROUP] = json!("g");
        assert_eq!(decided(&content, None), Act::Nothing);
    }
}
