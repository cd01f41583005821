//! A test in a guest asks the lab for what only the outside can do.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::disk::{Cut, Disk, Fault};

/// The port of the lab's address at which it listens.
pub const PORT: u16 = 1022;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// From now on this is wrong with the disk.
    Fault {
        /// The disk's serial number.
        serial: String,
        /// What is wrong.
        fault: Fault,
    },
    /// Plug in a fresh disk.
    Plug {
        /// What it looks like.
        disk: Disk,
    },
    /// Pull out a disk.
    Unplug {
        /// The disk's serial number.
        serial: String,
    },
    /// Plug in again, with its bytes, a disk that was pulled out.
    PlugBack {
        /// The disk's serial number.
        serial: String,
    },
    /// Cut the power now; the answer never arrives. The test begins again with one boot more.
    CutPower {
        /// How.
        cut: Cut,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// Plugged in, with this serial number.
    Plugged {
        /// The disk's serial number.
        serial: String,
    },
    /// Not done, for this reason.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Writes one message as a line.
pub fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    stream.flush()
}

/// Reads one message; `None` at the end of the stream.
pub fn receive<T: DeserializeOwned>(stream: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}
