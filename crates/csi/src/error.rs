//! What went wrong, and the code that says so to a container orchestrator.
//!
//! The code is behaviour: some make a caller wait for ever, some make it try elsewhere at once.

use std::fmt;

use tonic::{Code, Status};

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A field of the request is missing or wrong.
    Invalid,
    /// What the request names is not there.
    NotFound,
    /// Something else has the name.
    AlreadyExists,
    /// A size that cannot be had, whatever the state.
    OutOfRange,
    /// Too little room now.
    NoSpace,
    /// The state forbids it; somebody has to change it first.
    Precondition,
    /// Another call is busy with it.
    Busy,
    /// Nobody can do this here.
    Unsupported,
    /// The host does not answer.
    Unavailable,
    /// A page token that is none.
    BadToken,
    /// Anything else.
    Internal,
}

/// A failure with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Its kind.
    pub kind: Kind,
    /// Its reason, for people.
    pub message: String,
}

impl Error {
    /// A failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// A field of a request is wrong.
    pub fn invalid(field: &str, problem: impl fmt::Display) -> Error {
        Error::new(Kind::Invalid, format!("{field}: {problem}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Invalid,
        Kind::NotFound,
        Kind::AlreadyExists,
        Kind::OutOfRange,
        Kind::NoSpace,
        Kind::Precondition,
        Kind::Busy,
        Kind::Unsupported,
        Kind::Unavailable,
        Kind::BadToken,
        Kind::Internal,
    ];

    fn code(self) -> Code {
        match self {
            Kind::Invalid => Code::InvalidArgument,
            Kind::NotFound => Code::NotFound,
            Kind::AlreadyExists => Code::AlreadyExists,
            // The resizer marks the request infeasible and lets the user lower it.
            Kind::OutOfRange => Code::OutOfRange,
            // The provisioner tries another node.
            Kind::NoSpace => Code::ResourceExhausted,
            Kind::Precondition => Code::FailedPrecondition,
            // "In progress": the caller comes again. So does it for a token that is none, by the specification.
            Kind::Busy | Kind::BadToken => Code::Aborted,
            Kind::Unsupported => Code::Unimplemented,
            Kind::Unavailable => Code::Unavailable,
            Kind::Internal => Code::Internal,
        }
    }

    /// The number of its code.
    pub fn number(self) -> i32 {
        self.code().into()
    }

    /// The kind that has this number; a number that nobody has given means that something is wrong inside.
    pub fn numbered(number: i32) -> Kind {
        Kind::ALL.into_iter().find(|kind| kind.number() == number).unwrap_or(Kind::Internal)
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status::new(error.kind.code(), error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_number() {
        assert_eq!(Kind::numbered(8), Kind::NoSpace);
        assert_eq!(Kind::numbered(Kind::OutOfRange.number()), Kind::OutOfRange);
        assert_eq!(Kind::numbered(15), Kind::Internal);
    }
}
