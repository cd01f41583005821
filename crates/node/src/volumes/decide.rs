//! What a LogicalVolume and its LV ask for next. Decides, and does nothing.

use lvms_api::logical_volume::{READ_ONLY, READ_WRITE, Status};
use lvms_api::names::{ADOPTS, NODE, ORPHANED, VOLUME_MODE};
use lvms_api::{LogicalVolume, Personality, Quantity};
use lvms_csi::{Error, Kind};
use lvms_host::units::Bytes;

/// The LV of a LogicalVolume, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lv {
    /// It is there.
    Present {
        /// How large it is.
        size: Bytes,
        /// Whether it was finished: a copy may have been interrupted.
        finished: bool,
        /// Whether it waits for zeros that were begun.
        awaits_zeros: bool,
        /// Whether we made it for a filesystem, and have not made one yet.
        unused: bool,
    },
    /// It is in none of our volume groups, and all of them are there.
    Absent,
    /// It is not there, but the snapshot that was taken for a former object of the same name is.
    Taken {
        /// Its name.
        id: String,
        /// How large it is.
        size: Bytes,
    },
    /// It may be in a volume group that is not there.
    Unknown(String),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    /// Nothing, until something happens.
    Nothing,
    /// Mark the object as ours before anything is made for it.
    Mark,
    /// Make the LV.
    Make(Making),
    /// Grow it.
    Grow(Bytes),
    /// Keep what is on it: zeros that were begun are not wanted any more.
    KeepBytes,
    /// Write the status, if it is as it was made: nobody has heard that it was finished.
    Adopt(Status),
    /// Remove it, and let the object go.
    Remove,
    /// Let the object go: there is no LV.
    LetGo,
    /// Look whether anybody else has used it; if not, say so: nobody wants it any more.
    Vouch,
    /// Say that it is somebody's data though nobody names it any more.
    Retain,
    /// Say that it is another node's.
    LeaveTo(String),
    /// Write the status.
    Tell(Status),
    /// Refuse what the object asks for, and say why.
    Refuse(Error),
    /// Look again later, and say why.
    Later(String),
}

impl Act {
    /// Whether it may take as long as its volume is large: bytes are copied, or zeros written.
    pub(super) fn may_be_long(&self, object: &LogicalVolume) -> bool {
        match self {
            Act::Make(Making::Copy(..)) => true,
            Act::Make(Making::Volume(_)) | Act::Grow(_) => is_for_block(object),
            Act::Make(Making::Snapshot(_))
            | Act::Nothing
            | Act::Mark
            | Act::Remove
            | Act::LetGo
            | Act::Vouch
            | Act::Retain
            | Act::LeaveTo(_)
            | Act::KeepBytes
            | Act::Adopt(_)
            | Act::Tell(_)
            | Act::Refuse(_)
            | Act::Later(_) => false,
        }
    }
}

/// Whether the LV of an object is zeroed. Who does not say gets zeros: it may become a block device.
pub(super) fn is_for_block(object: &LogicalVolume) -> bool {
    object.annotation(VOLUME_MODE) != Some("Filesystem")
}

/// Whether an LV may get a filesystem. Who does not say may want one.
pub(super) fn is_for_filesystem(object: &LogicalVolume) -> bool {
    object.annotation(VOLUME_MODE) != Some("Block")
}

/// How an LV is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Making {
    /// As a new volume.
    Volume(Bytes),
    /// As a copy of the LogicalVolume with this name.
    Copy(Bytes, String),
    /// As a snapshot of it.
    Snapshot(String),
}

pub(super) use lvms_api::logical_volume::LOST;

/// What to do next about an object of this node.
pub(super) fn decide(object: &LogicalVolume, personality: Personality, lv: &Lv) -> Act {
    if object.annotation(&personality.pending_deletion()).is_some() {
        return Act::Nothing;
    }
    let here = &object.spec.node_name;
    if let Some(node) = object.annotation(NODE).filter(|node| node != here) {
        return Act::LeaveTo(format!(
            "spec.nodeName was changed to {here}: the logical volume is on {node}, and stays there; change it back"
        ));
    }
    let marked = object.has_finalizer(&personality.volume_finalizer());
    if object.is_deleted() {
        return if marked { going(object, lv) } else { Act::Nothing };
    }
    // TopoLVM does not say for which node it made one.
    let is_here = matches!(lv, Lv::Present { .. });
    if !marked || (is_here && object.annotation(NODE).is_none()) {
        return Act::Mark;
    }
    let status = object.status.clone().unwrap_or_default();
    let size = match object.spec.size.bytes() {
        Ok(size) => Bytes(size),
        Err(error) => return Act::Refuse(Error::invalid("spec.size", error)),
    };
    if object.volume_id().is_none() {
        coming(object, &status, size, lv)
    } else {
        staying(object, &status, size, lv)
    }
}

fn going(object: &LogicalVolume, lv: &Lv) -> Act {
    match lv {
        Lv::Absent | Lv::Taken { .. } => Act::LetGo,
        Lv::Unknown(why) => Act::Later(why.clone()),
        // It was to go because nobody had used it; by now somebody has.
        Lv::Present { unused: false, .. } if object.is_released() && object.is_unused() => Act::Retain,
        Lv::Present { .. } if object.is_released() => Act::Remove,
        // The leader looks whether anything still names it.
        Lv::Present { .. } => Act::Nothing,
    }
}

fn coming(object: &LogicalVolume, status: &Status, size: Bytes, lv: &Lv) -> Act {
    if let Some(id) = object.annotation(ADOPTS) {
        return match lv {
            // What is told is zeroed.
            Lv::Present { size, awaits_zeros: true, .. } => Act::Grow(*size),
            Lv::Present { size, .. } => Act::Tell(well(id, *size)),
            Lv::Unknown(why) => Act::Later(why.clone()),
            Lv::Absent | Lv::Taken { .. } => Act::Tell(lost(id, status)),
        };
    }
    if status.code != 0 {
        // It was refused, and whoever wanted it takes it away.
        return Act::Nothing;
    }
    match lv {
        // Its making may have been cut off before LVM had wiped what was there.
        Lv::Present { size, finished: true, unused: true, .. } if object.spec.source.is_empty() => {
            return Act::Adopt(well(object.uid(), *size));
        }
        Lv::Present { size, finished: true, .. } => return Act::Tell(well(object.uid(), *size)),
        // One of today's data would not be it.
        Lv::Taken { id, size } => return Act::Tell(well(id, *size)),
        Lv::Unknown(why) => return Act::Later(why.clone()),
        Lv::Present { finished: false, .. } | Lv::Absent => {}
    }
    if object.spec.source.is_empty() {
        return Act::Make(Making::Volume(size));
    }
    match object.spec.access_type.as_str() {
        READ_ONLY => Act::Make(Making::Snapshot(object.spec.source.clone())),
        READ_WRITE => Act::Make(Making::Copy(size, object.spec.source.clone())),
        other => {
            let problem =
                format!("{other:?} is neither {READ_ONLY:?}, a snapshot, nor {READ_WRITE:?}, a copy");
            Act::Refuse(Error::invalid("spec.accessType", problem))
        }
    }
}

fn staying(object: &LogicalVolume, status: &Status, wanted: Bytes, lv: &Lv) -> Act {
    let id = object.volume_id().unwrap_or_default();
    let known = status.current_size.as_ref().and_then(|size| size.bytes().ok());
    match lv {
        // We tell what is zeroed. Somebody else has told of it, who knows no zeros, and given it to its user.
        Lv::Present { size, awaits_zeros: true, .. } if known >= Some(size.0) => Act::KeepBytes,
        // A growth of a block volume that was interrupted: what came to it is not zeroed yet.
        Lv::Present { size, finished: false, .. } if !object.is_snapshot() => Act::Grow(wanted.max(*size)),
        Lv::Present { size, unused, .. } => {
            let lost_and_found = status.code == LOST;
            if known != Some(size.0) || lost_and_found {
                return Act::Tell(Status { code: 0, message: String::new(), ..well(id, *size) });
            }
            if wanted > *size && !object.is_snapshot() {
                return Act::Grow(wanted);
            }
            if status.code != 0 {
                // What was refused is not asked for any more.
                return Act::Tell(well(id, *size));
            }
            match object.annotation(ORPHANED) {
                Some(_) if *unused && object.is_unused() => Act::Nothing,
                // A snapshot is what somebody asked for, whether anything is on it or not.
                Some(_) if *unused && !object.is_snapshot() => Act::Vouch,
                Some(_) => Act::Retain,
                None => Act::Nothing,
            }
        }
        Lv::Unknown(why) => Act::Later(why.clone()),
        Lv::Absent | Lv::Taken { .. } => {
            let lost = lost(id, status);
            if lost == *status { Act::Nothing } else { Act::Tell(lost) }
        }
    }
}

/// The status of what is not there any more.
fn lost(id: &str, status: &Status) -> Status {
    let message = format!(
        "Lost: the logical volume {id} is in no volume group of this node any more; it is not made again, because it \
         would be empty"
    );
    Status { volume_id: id.to_owned(), code: LOST, message, ..status.clone() }
}

/// What to say about a size that was lowered below what is there: nothing shrinks.
pub(super) fn lowered(before: &LogicalVolume, now: &LogicalVolume) -> Option<String> {
    let size = |object: &LogicalVolume| object.spec.size.bytes().ok();
    let has = now.status.as_ref()?.current_size.as_ref()?;
    let (was, is) = (size(before)?, size(now)?);
    (is < was && is < has.bytes().ok()?).then(|| {
        format!(
            "spec.size was lowered to {}: a logical volume is not made smaller, this one keeps its {has}",
            now.spec.size
        )
    })
}

/// The status of what is as it should be.
pub(super) fn well(id: &str, size: Bytes) -> Status {
    Status {
        volume_id: id.to_owned(),
        current_size: Some(Quantity::of(size.0)),
        code: 0,
        message: String::new(),
    }
}

/// Whether a failure is told to nobody who decides, because the next look may go well: what others are busy with, and a
/// host that does not answer while somebody waits for a volume or its end.
pub(super) fn is_tried_again(failure: Kind, object: &LogicalVolume) -> bool {
    let is_grown = !object.is_deleted() && object.volume_id().is_some();
    failure == Kind::Busy || (failure == Kind::Unavailable && !is_grown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::logical_volume::Spec;

    const P: Personality = Personality::Topolvm;
    const GIB: u64 = 1 << 30;

    fn object() -> LogicalVolume {
        let spec =
            Spec { name: "pvc-1".into(), node_name: "n1".into(), size: Quantity::of(GIB), ..Spec::default() };
        let mut object = LogicalVolume::new(P, spec);
        object.metadata.uid = Some("uid".into());
        object
    }

    fn settled() -> LogicalVolume {
        LogicalVolume { status: Some(well("uid", Bytes(GIB))), ..object() }
    }

    fn present(size: u64) -> Lv {
        Lv::Present { size: Bytes(size), finished: true, awaits_zeros: false, unused: false }
    }

    fn unused() -> Lv {
        Lv::Present { size: Bytes(GIB), finished: true, awaits_zeros: false, unused: true }
    }

    /// An orphan of which its node has said that nobody has used it.
    fn vouched() -> LogicalVolume {
        let mut orphan = annotated(settled(), ORPHANED);
        let vouch = orphan.vouch().unwrap();
        orphan.metadata.annotations.as_mut().unwrap().insert(lvms_api::names::UNUSED.to_owned(), vouch);
        orphan
    }

    fn deleted(mut object: LogicalVolume) -> LogicalVolume {
        let now =
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        object.metadata.deletion_timestamp = Some(now);
        object
    }

    fn annotated(mut object: LogicalVolume, key: &str) -> LogicalVolume {
        // What is said of an object says of which.
        object.metadata.annotations.get_or_insert_default().insert(key.to_owned(), "uid".to_owned());
        object
    }

    #[test]
    fn what_others_are_busy_with_is_no_refusal() {
        for object in [object(), settled(), deleted(settled())] {
            assert!(is_tried_again(Kind::Busy, &object));
            assert!(!is_tried_again(Kind::NoSpace, &object) && !is_tried_again(Kind::Internal, &object));
        }
        assert!(is_tried_again(Kind::Unavailable, &object()));
        assert!(is_tried_again(Kind::Unavailable, &deleted(settled())));
        // Whoever asked for growth may ask for something else.
        assert!(!is_tried_again(Kind::Unavailable, &settled()));
    }

    #[test]
    fn a_new_object_gets_an_lv_and_one_made_by_hand_is_marked_first() {
        assert_eq!(decide(&object(), P, &Lv::Absent), Act::Make(Making::Volume(Bytes(GIB))));
        let mut by_hand = object();
        by_hand.metadata.finalizers = None;
        assert_eq!(decide(&by_hand, P, &Lv::Absent), Act::Mark);
    }

    #[test]
    fn an_lv_whose_making_was_not_told_is_adopted_and_an_interrupted_one_goes_on() {
        assert_eq!(decide(&object(), P, &present(GIB)), Act::Tell(well("uid", Bytes(GIB))));
        let half = Lv::Present { size: Bytes(GIB), finished: false, awaits_zeros: true, unused: false };
        assert_eq!(decide(&object(), P, &half), Act::Make(Making::Volume(Bytes(GIB))));
        // What may have a former volume's filesystem on it is looked at.
        assert_eq!(decide(&object(), P, &unused()), Act::Adopt(well("uid", Bytes(GIB))));
        let mut copy = object();
        copy.spec.source = "pvc-0".into();
        assert_eq!(decide(&copy, P, &unused()), Act::Tell(well("uid", Bytes(GIB))));
    }

    #[test]
    fn copies_and_snapshots_are_told_apart_and_anything_else_is_refused() {
        let with = |access: &str| {
            let mut object = object();
            object.spec.source = "pvc-0".into();
            object.spec.access_type = access.into();
            decide(&object, P, &Lv::Absent)
        };
        assert_eq!(with("rw"), Act::Make(Making::Copy(Bytes(GIB), "pvc-0".into())));
        assert_eq!(with("ro"), Act::Make(Making::Snapshot("pvc-0".into())));
        assert!(matches!(with("rx"), Act::Refuse(error) if error.message.contains("spec.accessType")));
    }

    #[test]
    fn a_snapshot_from_a_backup_is_the_one_that_was_taken_and_no_other() {
        let mut object = object();
        (object.spec.source, object.spec.access_type) = ("pvc-0".into(), READ_ONLY.into());
        let taken = Lv::Taken { id: "former".into(), size: Bytes(GIB) };
        assert_eq!(decide(&object, P, &taken), Act::Tell(well("former", Bytes(GIB))));
        assert_eq!(decide(&deleted(object), P, &taken), Act::LetGo);
    }

    #[test]
    fn copies_and_zeros_may_be_long() {
        let mut filesystem = object();
        filesystem.metadata.annotations = Some([(VOLUME_MODE.to_owned(), "Filesystem".to_owned())].into());
        let size = Bytes(GIB);
        for (act, of_block, of_filesystem) in [
            (Act::Make(Making::Volume(size)), true, false),
            (Act::Grow(size), true, false),
            (Act::Make(Making::Copy(size, "x".into())), true, true),
            (Act::Make(Making::Snapshot("x".into())), false, false),
            (Act::Remove, false, false),
        ] {
            assert_eq!(act.may_be_long(&object()), of_block, "{act:?}");
            assert_eq!(act.may_be_long(&filesystem), of_filesystem, "{act:?}");
        }
    }

    #[test]
    fn what_was_refused_is_left_to_whoever_wanted_it() {
        let refused = Status { code: 8, message: "no room".into(), ..Status::default() };
        let object = LogicalVolume { status: Some(refused), ..object() };
        assert_eq!(decide(&object, P, &Lv::Absent), Act::Nothing);
    }

    #[test]
    fn a_missing_size_is_filled_from_the_lv_before_it_grows() {
        let mut object = settled();
        object.spec.size = Quantity::of(2 * GIB);
        object.status.as_mut().unwrap().current_size = None;
        assert_eq!(decide(&object, P, &present(GIB)), Act::Tell(well("uid", Bytes(GIB))));
        object.status = Some(well("uid", Bytes(GIB)));
        assert_eq!(decide(&object, P, &present(GIB)), Act::Grow(Bytes(2 * GIB)));
        object.status = Some(well("uid", Bytes(2 * GIB)));
        assert_eq!(decide(&object, P, &present(2 * GIB)), Act::Nothing);
    }

    #[test]
    fn a_growth_that_was_interrupted_goes_on() {
        let half = Lv::Present { size: Bytes(2 * GIB), finished: false, awaits_zeros: true, unused: false };
        assert_eq!(decide(&settled(), P, &half), Act::Grow(Bytes(2 * GIB)));
    }

    #[test]
    fn what_others_have_given_away_before_it_was_zeroed_is_kept() {
        let mut object = settled();
        let half = Lv::Present { size: Bytes(GIB), finished: false, awaits_zeros: true, unused: false };
        assert_eq!(decide(&object, P, &half), Act::KeepBytes);
        // A copy that is not finished is another matter.
        let copy = Lv::Present { size: Bytes(GIB), finished: false, awaits_zeros: false, unused: false };
        assert_eq!(decide(&object, P, &copy), Act::Grow(Bytes(GIB)));
        // What comes back has told nothing yet.
        object.status = None;
        let adopts = annotated(object, ADOPTS);
        assert_eq!(decide(&adopts, P, &half), Act::Grow(Bytes(GIB)));
    }

    #[test]
    fn a_lowered_size_changes_nothing_and_ends_a_refused_growth() {
        let mut object = settled();
        object.spec.size = Quantity::of(GIB / 2);
        assert_eq!(decide(&object, P, &present(GIB)), Act::Nothing);
        let status = object.status.as_mut().unwrap();
        (status.code, status.message) = (11, "too large".into());
        assert_eq!(decide(&object, P, &present(GIB)), Act::Tell(well("uid", Bytes(GIB))));
    }

    #[test]
    fn an_lv_that_is_missing_is_lost_and_never_made_again() {
        let Act::Tell(status) = decide(&settled(), P, &Lv::Absent) else { panic!() };
        assert_eq!((status.code, status.volume_id.as_str()), (LOST, "uid"));
        let lost = LogicalVolume { status: Some(status), ..settled() };
        assert_eq!(decide(&lost, P, &Lv::Absent), Act::Nothing);
        assert_eq!(decide(&lost, P, &present(GIB)), Act::Tell(well("uid", Bytes(GIB))));
        let unknown = Lv::Unknown("vg is not there".into());
        assert_eq!(decide(&settled(), P, &unknown), Act::Later("vg is not there".into()));
        assert_eq!(decide(&object(), P, &unknown), Act::Later("vg is not there".into()));
    }

    #[test]
    fn an_object_whose_node_was_changed_by_hand_is_neither_lost_nor_let_go() {
        let mut moved = settled();
        moved.spec.node_name = "n2".into();
        for object in [moved.clone(), deleted(moved.clone())] {
            let Act::LeaveTo(why) = decide(&object, P, &Lv::Absent) else { panic!() };
            assert!(why.contains("changed to n2") && why.contains("is on n1"), "{why}");
        }
        // One that TopoLVM has made does not say where, until the node that has it does.
        moved.metadata.annotations = None;
        assert!(matches!(decide(&moved, P, &Lv::Absent), Act::Tell(_)));
        assert_eq!(decide(&moved, P, &present(GIB)), Act::Mark);
    }

    #[test]
    fn what_adopts_an_lv_takes_it_as_it_is_and_never_makes_one() {
        let adopts = || {
            let mut object = annotated(object(), ADOPTS);
            object.metadata.annotations.as_mut().unwrap().insert(ADOPTS.to_owned(), "old".to_owned());
            object
        };
        assert_eq!(decide(&adopts(), P, &present(2 * GIB)), Act::Tell(well("old", Bytes(2 * GIB))));
        let Act::Tell(status) = decide(&adopts(), P, &Lv::Absent) else { panic!() };
        assert_eq!((status.code, status.volume_id.as_str()), (LOST, "old"));
        assert_eq!(decide(&adopts(), P, &Lv::Unknown("vg".into())), Act::Later("vg".into()));
    }

    #[test]
    fn a_size_lowered_by_hand_is_told_and_one_taken_back_is_not() {
        let with = |size: u64| {
            let mut object = settled();
            object.spec.size = Quantity::of(size);
            object
        };
        let told = lowered(&with(GIB), &with(GIB / 2)).unwrap();
        assert!(told.contains("lowered to 512Mi") && told.contains("keeps its 1Gi"), "{told}");
        assert_eq!(lowered(&with(100 * GIB), &with(GIB)), None);
        assert_eq!(lowered(&with(GIB / 2), &with(GIB / 2)), None);
        assert_eq!(lowered(&with(GIB / 4), &with(GIB / 2)), None);
        assert_eq!(lowered(&object(), &object()), None);
    }

    #[test]
    fn an_lv_is_removed_with_both_keys_only() {
        assert_eq!(decide(&deleted(settled()), P, &present(GIB)), Act::Nothing);
        let released = annotated(settled(), lvms_api::names::RELEASED);
        assert_eq!(decide(&released, P, &present(GIB)), Act::Nothing);
        assert_eq!(decide(&deleted(released.clone()), P, &present(GIB)), Act::Remove);
        assert_eq!(decide(&deleted(released), P, &Lv::Absent), Act::LetGo);
        let unknown = Lv::Unknown("vg".into());
        let released = annotated(settled(), lvms_api::names::RELEASED);
        assert_eq!(decide(&deleted(released), P, &unknown), Act::Later("vg".into()));
    }

    #[test]
    fn a_key_from_a_backup_opens_nothing() {
        let mut restored = annotated(settled(), lvms_api::names::RELEASED);
        restored.metadata.uid = Some("another".into());
        assert_eq!(decide(&deleted(restored), P, &present(GIB)), Act::Nothing);
    }

    #[test]
    fn an_orphan_is_vouched_for_only_if_nobody_has_used_it() {
        let orphan = annotated(settled(), ORPHANED);
        assert_eq!(decide(&orphan, P, &present(GIB)), Act::Retain);
        assert_eq!(decide(&orphan, P, &unused()), Act::Vouch);
        assert_eq!(decide(&vouched(), P, &unused()), Act::Nothing);
        assert_eq!(decide(&settled(), P, &unused()), Act::Nothing);
        let mut snapshot = annotated(settled(), ORPHANED);
        (snapshot.spec.source, snapshot.spec.access_type) = ("pvc-0".into(), READ_ONLY.into());
        assert_eq!(decide(&snapshot, P, &unused()), Act::Retain);
    }

    #[test]
    fn what_was_used_after_it_was_vouched_for_is_kept() {
        assert_eq!(decide(&vouched(), P, &present(GIB)), Act::Retain);
        let going = deleted(annotated(vouched(), lvms_api::names::RELEASED));
        assert_eq!(decide(&going, P, &unused()), Act::Remove);
        assert_eq!(decide(&going, P, &present(GIB)), Act::Retain);
        // Orphaned once more, of which nobody has said anything.
        let mut again = vouched();
        again.metadata.annotations.as_mut().unwrap().insert(ORPHANED.to_owned(), "later".to_owned());
        assert_eq!(decide(&again, P, &unused()), Act::Vouch);
    }

    #[test]
    fn an_object_whose_node_has_left_is_not_touched() {
        let pending = annotated(object(), "topolvm.io/pendingdeletion");
        assert_eq!(decide(&pending, P, &Lv::Absent), Act::Nothing);
        let mut gone = deleted(pending);
        gone.metadata.finalizers = None;
        assert_eq!(decide(&gone, P, &present(GIB)), Act::Nothing);
    }

    #[test]
    fn a_finalizer_is_never_added_to_what_is_being_deleted() {
        let mut object = deleted(object());
        object.metadata.finalizers = Some(vec!["somebody/else".into()]);
        assert_eq!(decide(&object, P, &Lv::Absent), Act::Nothing);
    }

    #[test]
    fn a_size_that_makes_no_sense_is_refused_with_the_field() {
        let mut object = object();
        object.spec.size = Quantity::from("-1Gi");
        let Act::Refuse(error) = decide(&object, P, &Lv::Absent) else { panic!() };
        assert!(error.message.starts_with("spec.size:"), "{}", error.message);
    }
}
