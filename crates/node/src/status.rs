//! What goes wrong on the host, told to a CSI client: one exhaustive match per kind of failure.

use lvms_csi::{Error, Kind};
use lvms_host::NoTurn;
use lvms_host::causes;
use lvms_host::lvm::Failure;
use lvms_host::plan::Refusal;
use lvms_host::publish::PublishError;
use lvms_host::volumes;

/// For everything but growth.
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
        | Refusal::GrowsOnlyAlone { .. }
        | Refusal::GrowsOnlyUnused { .. }
        | Refusal::BlockGrowsOnlyUnused { .. }
        | Refusal::Newer { .. } => Kind::Precondition,
        Refusal::PublishedUnseen { .. } => Kind::Internal,
        Refusal::PerhapsNeeded { .. } => Kind::Unavailable,
        Refusal::NoVolume(_) | Refusal::NoSource(_) | Refusal::NotAVolume(_) => Kind::NotFound,
        Refusal::NoSpace { .. } | Refusal::PoolFull { .. } | Refusal::MetadataFull(_) => Kind::NoSpace,
        Refusal::AboveLimit { .. } | Refusal::SmallerThanSource { .. } => Kind::OutOfRange,
        Refusal::Another { .. } => Kind::AlreadyExists,
    }
}

fn of_failure(failure: &Failure) -> Kind {
    match failure {
        Failure::NoSpace(_) | Failure::MetadataFull(_) => Kind::NoSpace,
        Failure::InUse(_) | Failure::MissingDevice(_) | Failure::Unsupported(_) => Kind::Precondition,
        // Options of a class that lvm2 does not know.
        Failure::Refused(_) => Kind::Invalid,
        Failure::Locked(_) => Kind::Busy,
        Failure::Stuck { .. } => Kind::Unavailable,
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
        PublishError::NotAVolume(_) => Kind::NotFound,
        PublishError::Flag(_) => Kind::Invalid,
        // "Published already, in a way that does not fit."
        PublishError::Occupied { .. } => Kind::AlreadyExists,
        PublishError::Orphaned(_)
        | PublishError::Unfinished(_)
        | PublishError::NotMountable { .. }
        | PublishError::NotZeroed(_)
        | PublishError::Differs { .. } => Kind::Precondition,
        PublishError::Busy(_) => Kind::Busy,
        PublishError::Probe(_) | PublishError::Tool(..) | PublishError::System { .. } => Kind::Internal,
    };
    Error::new(kind, causes::told(error))
}
