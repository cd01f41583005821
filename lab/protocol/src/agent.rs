//! Running a program in a guest, over one connection.
//!
//! The lab sends [`ToGuest::Run`], then input; the agent sends output as it comes and [`FromGuest::Ended`] last.
//! When the connection breaks, the program and its process group are killed.
//!
//! A frame is one byte for its kind, four bytes for the length (big endian), and the payload.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// The port of the guest at which the agent listens.
pub const PORT: u16 = 1021;

/// What the agent prints on the console when it listens.
pub const READY: &str = "lab-agent: ready";

/// A payload longer than this is refused: no honest side sends one.
const LONGEST: u32 = 16 << 20;

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables beside the guest's own few.
    pub env: Vec<(String, String)>,
    /// After this many milliseconds it is killed with its process group.
    pub limit_ms: u64,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// By itself, with this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// By the agent, at its time limit.
    TimedOut,
    /// It never began.
    NotStarted(String),
}

/// From the lab to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToGuest {
    /// The first frame: what to run.
    Run(Run),
    /// Some input for it.
    Stdin(Vec<u8>),
    /// No more input.
    StdinEnd,
}

/// From the agent to the lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromGuest {
    /// Some output.
    Stdout(Vec<u8>),
    /// Some error output.
    Stderr(Vec<u8>),
    /// The last frame.
    Ended(Ended),
}

impl ToGuest {
    /// Writes the frame.
    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        match self {
            ToGuest::Run(run) => frame(stream, 1, &serde_json::to_vec(run)?),
            ToGuest::Stdin(bytes) => frame(stream, 2, bytes),
            ToGuest::StdinEnd => frame(stream, 3, &[]),
        }
    }

    /// Reads a frame; `None` at the end of the stream.
    pub fn read(stream: &mut impl Read) -> io::Result<Option<ToGuest>> {
        let Some((kind, payload)) = unframe(stream)? else { return Ok(None) };
        match kind {
            1 => Ok(Some(ToGuest::Run(serde_json::from_slice(&payload)?))),
            2 => Ok(Some(ToGuest::Stdin(payload))),
            3 => Ok(Some(ToGuest::StdinEnd)),
            other => Err(unknown(other)),
        }
    }
}

impl FromGuest {
    /// Writes the frame.
    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        match self {
            FromGuest::Stdout(bytes) => frame(stream, 1, bytes),
            FromGuest::Stderr(bytes) => frame(stream, 2, bytes),
            FromGuest::Ended(ended) => frame(stream, 3, &serde_json::to_vec(ended)?),
        }
    }

    /// Reads a frame; `None` at the end of the stream.
    pub fn read(stream: &mut impl Read) -> io::Result<Option<FromGuest>> {
        let Some((kind, payload)) = unframe(stream)? else { return Ok(None) };
        match kind {
            1 => Ok(Some(FromGuest::Stdout(payload))),
            2 => Ok(Some(FromGuest::Stderr(payload))),
            3 => Ok(Some(FromGuest::Ended(serde_json::from_slice(&payload)?))),
            other => Err(unknown(other)),
        }
    }
}

fn frame(stream: &mut impl Write, kind: u8, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| invalid(format!("a frame of {} bytes is too long", payload.len())))?;
    let mut bytes = Vec::with_capacity(payload.len() + 5);
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(payload);
    stream.write_all(&bytes)?;
    stream.flush()
}

fn unframe(stream: &mut impl Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut kind = [0];
    if stream.read(&mut kind)? == 0 {
        return Ok(None);
    }
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > LONGEST {
        return Err(invalid(format!("a frame of {length} bytes is too long")));
    }
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    Ok(Some((kind[0], payload)))
}

fn unknown(kind: u8) -> io::Error {
    invalid(format!("unknown frame kind {kind}"))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let run =
            Run { argv: vec!["a b".into(), "ü".into()], env: vec![("K".into(), "v".into())], limit_ms: 5 };
        let sent = [ToGuest::Run(run), ToGuest::Stdin(vec![0, 255, b'\n']), ToGuest::StdinEnd];
        let mut wire = Vec::new();
        for message in &sent {
            message.write(&mut wire).unwrap();
        }
        let mut stream = wire.as_slice();
        for message in sent {
            assert_eq!(ToGuest::read(&mut stream).unwrap(), Some(message));
        }
        assert_eq!(ToGuest::read(&mut stream).unwrap(), None);
    }

    #[test]
    fn a_frame_cut_in_the_middle_is_an_error_and_not_an_end() {
        let mut wire = Vec::new();
        FromGuest::Stdout(vec![1, 2, 3]).write(&mut wire).unwrap();
        wire.pop();
        assert!(FromGuest::read(&mut wire.as_slice()).is_err());
    }

    #[test]
    fn an_absurd_length_is_refused_before_memory_is_taken() {
        let wire = [2, 0xff, 0xff, 0xff, 0xff];
        let error = ToGuest::read(&mut wire.as_slice()).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
