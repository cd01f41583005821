//! What goes wrong on the host, told to a CSI client: one exhaustive match per kind of failure.

use lvms_csi::{Error, Kind};
use lvms_host::NoTurn;
use lvms_host::causes;
use lvms_host::lvm::Failure;
use lvms_host::plan::Refusal;
use lvms_host::plan::volume::Wish;
use lvms_host::publish::PublishError;
use lvms_host::volumes;

/// For everything but new volumes and growth.
pub fn of_volumes(error: &volumes::Error) -> Error {
    let kind = match error {
        volumes::Error::Refused(refusal) => of_refusal(refusal),
        volumes::Error::Lvm(failure) => of_failure(failure),
        volumes::Error::NoTurn(reason) => of_no_turn(reason),
        volumes::Error::Bytes { .. } | volumes::Error::Endless(_) => Kind::Internal,
    };
    let told = causes::told(error);
    // Only this one is about a field of every request that can meet it.
    let is_limit = matches!(error, volumes::Error::Refused(Refusal::AboveLimit { .. }));
    Error::new(kind, if is_limit { format!("capacity_range.limit_bytes: {told}") } else { told })
}

/// For a new volume: if it is not made because of its options, told is where these come from.
pub fn of_creation(error: &volumes::Error, wish: &Wish<'_>, options_from: &str) -> Error {
    let told = of_volumes(error);
    if told.kind == Kind::Invalid && !wish.options.is_empty() {
        return Error::invalid(options_from, told.message);
    }
    told
}

/// Too little room for a growth is told as out of range: the user may then ask for less.
pub fn of_growth(error: &volumes::Error) -> Error {
    let mut told = of_volumes(error);
    if told.kind == Kind::NoSpace {
        told.kind = Kind::OutOfRange;
    }
    told
}

fn of_refusal(refusal: &Refusal) -> Kind {
    match refusal {
        // Somebody has to bring these back first.
        Refusal::NoGroup(_)
        | Refusal::NoPool(_)
        | Refusal::PoolUnusable { .. }
        | Refusal::GroupClosed { .. }
        | Refusal::DisksMissing { .. }
        | Refusal::BadSource { .. }
        | Refusal::Published { .. }
        | Refusal::HasSnapshots { .. }
        | Refusal::BeingCopied { .. }
        | Refusal::GrowsOnlyAlone { .. }
        | Refusal::GrowsOnlyUnused { .. }
        | Refusal::BlockGrowsOnlyUnused { .. }
        | Refusal::LongNameGrowsOnlyUnused(_)
        | Refusal::UsedBeforeZeros { .. }
        | Refusal::OnlyServes { .. }
        // It is there, and is not taken for gone.
        | Refusal::NotAVolume(_)
        | Refusal::Newer { .. } => Kind::Precondition,
        Refusal::ForeignType(_) => Kind::Invalid,
        Refusal::PublishedUnseen { .. } => Kind::Internal,
        Refusal::PerhapsNeeded { .. } | Refusal::Synchronising { .. } => Kind::Unavailable,
        Refusal::NoVolume(_) | Refusal::NoSource(_) => Kind::NotFound,
        Refusal::NoSpace { .. } | Refusal::PoolFull { .. } | Refusal::MetadataFull(_) => Kind::NoSpace,
        Refusal::AboveLimit { .. } | Refusal::SmallerThanSource { .. } => Kind::OutOfRange,
        Refusal::Another { .. } => Kind::AlreadyExists,
    }
}

fn of_failure(failure: &Failure) -> Kind {
    match failure {
        Failure::NoSpace(_) | Failure::MetadataFull(_) => Kind::NoSpace,
        Failure::InUse(_) | Failure::MissingDevice(_) | Failure::Foreign(_) | Failure::Unsupported(_) => {
            Kind::Precondition
        }
        // Options of a class that lvm2 does not know.
        Failure::Refused(_) => Kind::Invalid,
        Failure::Locked(_) => Kind::Busy,
        Failure::Stuck { .. } | Failure::Silent { .. } => Kind::Unavailable,
        // The plan has looked before: these mean that somebody else was quicker, and a retry finds out.
        Failure::NotFound(_) | Failure::AlreadyThere(_) | Failure::NotLarger(_) => Kind::Busy,
        Failure::Process(_) | Failure::Unreadable(_) | Failure::Other(_) => Kind::Internal,
    }
}

fn of_no_turn(reason: &NoTurn) -> Kind {
    match reason {
        NoTurn::Stuck(_) => Kind::Unavailable,
        NoTurn::TooLate => Kind::Busy,
    }
}

/// For publishing and what is done to published volumes.
pub fn of_publish(error: &PublishError) -> Error {
    let kind = match error {
        PublishError::Volume(error) => return of_volumes(error),
        PublishError::Flag(_) => Kind::Invalid,
        // "Published already, in a way that does not fit."
        PublishError::Occupied { .. } => Kind::AlreadyExists,
        PublishError::Orphaned(_)
        | PublishError::Unfinished(_)
        | PublishError::NotMountable { .. }
        | PublishError::NotZeroed(_)
        | PublishError::NotAVolume(_)
        | PublishError::Hidden { .. }
        | PublishError::Differs { .. } => Kind::Precondition,
        PublishError::Busy(_) => Kind::Busy,
        PublishError::Probe(_) | PublishError::Tool(..) | PublishError::System { .. } => Kind::Internal,
    };
    Error::new(kind, causes::told(error))
}

#[cfg(test)]
mod tests {
    use std::io;

    use lvms_host::facts::Facts;
    use lvms_host::filesystem::NotMountable;
    use lvms_host::mount::{BadFlag, Difference};
    use lvms_host::names::{LvName, VolumePath};
    use lvms_host::units::Bytes;

    use super::*;
    use crate::known::options_from;

    fn path() -> VolumePath {
        lvms_host::simulated::group(&[1]).path(&LvName::parse("v").unwrap())
    }

    #[test]
    fn each_refusal_has_its_code() {
        let path = path();
        let (group, snapshots) = (path.group.clone(), vec![path.volume.clone()]);
        for (refusal, kind) in [
            (Refusal::NoGroup(group.clone()), Kind::Precondition),
            (Refusal::NoPool(path.clone()), Kind::Precondition),
            (Refusal::PoolUnusable { pool: path.clone(), reason: "" }, Kind::Precondition),
            (Refusal::GroupClosed { group: group.clone(), reason: "" }, Kind::Precondition),
            (Refusal::DisksMissing { group: group.clone(), disks: Vec::new() }, Kind::Precondition),
            (Refusal::BadSource { path: path.clone(), reason: "" }, Kind::Precondition),
            (Refusal::Published { path: path.clone(), target: "/t".into() }, Kind::Precondition),
            (Refusal::HasSnapshots { path: path.clone(), snapshots: snapshots.clone() }, Kind::Precondition),
            (Refusal::BeingCopied { path: path.clone(), copies: vec![path.clone()] }, Kind::Precondition),
            (
                Refusal::GrowsOnlyAlone { path: path.clone(), snapshots: snapshots.clone() },
                Kind::Precondition,
            ),
            (Refusal::GrowsOnlyUnused { path: path.clone(), snapshots }, Kind::Precondition),
            (Refusal::BlockGrowsOnlyUnused { path: path.clone(), disks: 1, images: 2 }, Kind::Precondition),
            (Refusal::Newer { path: path.clone(), format: 2 }, Kind::Precondition),
            (Refusal::OnlyServes { path: path.clone(), segment: "cache".into() }, Kind::Precondition),
            (Refusal::ForeignType("--type mirror".into()), Kind::Invalid),
            (Refusal::PublishedUnseen { path: path.clone(), reason: String::new() }, Kind::Internal),
            (Refusal::PerhapsNeeded { left: path.clone(), groups: Vec::new() }, Kind::Unavailable),
            (
                Refusal::Synchronising { path: path.clone(), origin: path.clone(), state: String::new() },
                Kind::Unavailable,
            ),
            (Refusal::NoVolume(path.clone()), Kind::NotFound),
            (Refusal::NoSource(path.clone()), Kind::NotFound),
            (Refusal::NotAVolume(path.clone()), Kind::Precondition),
            (Refusal::NoSpace { place: String::new(), free: Bytes(0), wanted: Bytes(1) }, Kind::NoSpace),
            (Refusal::PoolFull { pool: path.clone(), data: 91.0, metadata: 1.0 }, Kind::NoSpace),
            (Refusal::MetadataFull(group), Kind::NoSpace),
            (Refusal::AboveLimit { size: Bytes(2), limit: Bytes(1) }, Kind::OutOfRange),
            (Refusal::SmallerThanSource { source_size: Bytes(2), wanted: Bytes(1) }, Kind::OutOfRange),
            (Refusal::Another { path, difference: String::new() }, Kind::AlreadyExists),
        ] {
            let is_limit = matches!(refusal, Refusal::AboveLimit { .. });
            let growth = if kind == Kind::NoSpace { Kind::OutOfRange } else { kind };
            let refused = refusal.into();
            assert_eq!(of_growth(&refused).kind, growth, "{refused}");
            let error = of_volumes(&refused);
            assert_eq!(error.kind, kind, "{error}");
            assert_eq!(error.message.starts_with("capacity_range.limit_bytes: "), is_limit, "{error}");
        }
    }

    #[test]
    fn options_that_make_no_volume_are_told_with_where_they_come_from() {
        let text = "device-classes: [{name: a, volume-group: vg, lvcreate-options: [--odd]}]";
        let desired = lvms_host::desired::lvmd::read(text).unwrap().desired;
        let (class, from) = (&desired.classes[0], options_from(&desired.classes[0], "", ""));
        let wish = |options: &[String]| Wish {
            name: path().volume,
            class,
            options: options.to_vec(),
            size: Bytes::mib(1),
            limit: None,
            facts: Facts::default(),
            source: None,
        };
        let (odd, none) = (wish(&class.options), wish(&[]));
        let refused = || volumes::Error::from(Failure::Refused("unrecognized option '--odd'".into()));
        let told = |error: volumes::Error, wish| of_creation(&error, wish, &from).message;
        assert_eq!(
            told(refused(), &odd),
            "device class \"a\" in lvmd.yaml: lvm2 refused the command: unrecognized option '--odd'"
        );
        let foreign = told(Refusal::ForeignType("--type mirror".into()).into(), &odd);
        assert!(foreign.starts_with("device class \"a\" in lvmd.yaml: --type mirror makes"), "{foreign}");
        // What has nothing to do with them.
        for (error, wish) in [(refused(), &none), (Failure::NoSpace("full".into()).into(), &odd)] {
            assert_eq!(of_creation(&error, wish, &from), of_volumes(&error));
        }
    }

    #[test]
    fn each_failure_of_lvm_has_its_code() {
        let said = String::new;
        for (failure, kind) in [
            (Failure::NoSpace(said()), Kind::NoSpace),
            (Failure::MetadataFull(said()), Kind::NoSpace),
            (Failure::InUse(said()), Kind::Precondition),
            (Failure::MissingDevice(said()), Kind::Precondition),
            (Failure::Unsupported(said()), Kind::Precondition),
            (Failure::Refused(said()), Kind::Invalid),
            (Failure::Locked(said()), Kind::Busy),
            (Failure::NotFound(said()), Kind::Busy),
            (Failure::AlreadyThere(said()), Kind::Busy),
            (Failure::NotLarger(said()), Kind::Busy),
            (Failure::Other(said()), Kind::Internal),
        ] {
            let growth = if kind == Kind::NoSpace { Kind::OutOfRange } else { kind };
            let error = failure.into();
            assert_eq!((of_volumes(&error).kind, of_growth(&error).kind), (kind, growth), "{error}");
        }
        for (error, kind) in [
            (NoTurn::TooLate.into(), Kind::Busy),
            (volumes::Error::Endless(path()), Kind::Internal),
            (volumes::Error::Bytes { what: said(), source: io::Error::other("a disk") }, Kind::Internal),
        ] {
            assert_eq!(of_volumes(&error).kind, kind, "{error}");
        }
    }

    #[test]
    fn what_is_not_finished_is_told_with_the_way_on() {
        let told = of_publish(&PublishError::Unfinished(path())).message;
        assert!(told.ends_with("repeat the call that made or grew it"), "{told}");
    }

    #[test]
    fn each_failure_to_publish_has_its_code() {
        let at = || std::path::PathBuf::from("/t");
        let difference = Difference::With("sync".into());
        for (error, kind) in [
            (PublishError::Volume(Refusal::NoVolume(path()).into()), Kind::NotFound),
            (PublishError::NotAVolume(path()), Kind::Precondition),
            (PublishError::Flag(BadFlag::Contradiction), Kind::Invalid),
            (PublishError::Occupied { target: at(), found: String::new() }, Kind::AlreadyExists),
            (PublishError::Orphaned(path()), Kind::Precondition),
            (PublishError::Unfinished(path()), Kind::Precondition),
            (PublishError::NotMountable { path: path(), reason: NotMountable::Vanished }, Kind::Precondition),
            (PublishError::NotZeroed(path()), Kind::Precondition),
            (PublishError::Differs { path: path(), at: at(), difference }, Kind::Precondition),
            (PublishError::Busy(path()), Kind::Busy),
            (
                PublishError::System { what: "mounting on", place: at(), source: io::Error::other("no") },
                Kind::Internal,
            ),
        ] {
            assert_eq!(of_publish(&error).kind, kind, "{error}");
        }
    }
}
