//! A program run in a guest.

use std::io::{BufReader, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab_protocol::agent::{Ended, FromGuest, PORT, Run, ToGuest};
use rustix::net::sockopt;

use crate::process::last_lines;

/// How long a program may take unless it is said otherwise. Emulated machines are slow and this one may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// The open connections to a guest, broken when its power is cut: a dead guest does not hang up by itself.
#[derive(Default)]
pub(super) struct Connections(Mutex<Vec<TcpStream>>);

impl Connections {
    /// Counts a connection in until what is returned is dropped, which ends it.
    fn add(self: &Arc<Self>, stream: &TcpStream) -> Result<Connected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream.try_clone()?);
        Ok(Connected { stream: stream.try_clone()?, all: Arc::clone(self) })
    }

    pub(super) fn break_all(&self) {
        for stream in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// An open connection. Its end tells the agent to kill the program, if that still runs.
struct Connected {
    stream: TcpStream,
    all: Arc<Connections>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        let own = self.stream.local_addr().ok();
        let _ = self.stream.shutdown(Shutdown::Both);
        let mut streams = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.local_addr().ok() != own);
    }
}

/// A program to run in a guest.
pub(crate) struct Command {
    guest: String,
    address: Ipv4Addr,
    connections: Arc<Connections>,
    run: Run,
    stdin: Vec<u8>,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Ran {
    what: String,
    /// How it ended.
    pub(crate) ended: Ended,
    /// What it printed.
    pub(crate) stdout: Vec<u8>,
    /// What it complained.
    pub(crate) stderr: Vec<u8>,
}

impl Command {
    pub(super) fn new(
        guest: &str,
        address: Ipv4Addr,
        connections: &Arc<Connections>,
        argv: Vec<String>,
    ) -> Command {
        let run = Run { argv, env: Vec::new(), limit_ms: 0 };
        let connections = Arc::clone(connections);
        Command { guest: guest.to_owned(), address, connections, run, stdin: Vec::new() }.limit(LIMIT)
    }

    /// With this input.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Command {
        self.stdin = bytes.into();
        self
    }

    /// With this variable.
    pub(crate) fn env(mut self, key: &str, value: &str) -> Command {
        self.run.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Killed after this time.
    pub(crate) fn limit(mut self, limit: Duration) -> Command {
        self.run.limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Runs it to its end, whatever that is.
    pub(crate) fn output(self) -> Result<Ran> {
        self.follow(|_| {})
    }

    /// Runs it to its end; a failure is an error.
    pub(crate) fn run(self) -> Result<Ran> {
        self.output()?.success()
    }

    /// Like [`Command::output`], showing output as it comes.
    pub(crate) fn follow(self, mut show: impl FnMut(&FromGuest)) -> Result<Ran> {
        let what = format!("`{}` in {}", self.run.argv.join(" "), self.guest);
        let mut ran = Ran { what, ended: Ended::TimedOut, stdout: Vec::new(), stderr: Vec::new() };
        let mut output = connect(self.address)?;
        let _connected = self.connections.add(&output)?;
        // The agent ends it at its limit; this is for a guest that does not answer any more.
        output.set_read_timeout(Some(
            Duration::from_millis(self.run.limit_ms).saturating_add(Duration::from_secs(60)),
        ))?;
        let mut input = BufReader::new(output.try_clone()?);
        ToGuest::Run(self.run).write(&mut output)?;
        let stdin = self.stdin;
        std::thread::spawn(move || {
            for part in stdin.chunks(256 << 10) {
                ToGuest::Stdin(part.to_vec()).write(&mut output)?;
            }
            ToGuest::StdinEnd.write(&mut output)
        });
        loop {
            let frame =
                FromGuest::read(&mut input).with_context(|| format!("{}: the guest is gone", ran.what))?;
            let Some(frame) = frame else { bail!("{}: the guest hung up", ran.what) };
            show(&frame);
            match frame {
                FromGuest::Stdout(bytes) => ran.stdout.extend_from_slice(&bytes),
                FromGuest::Stderr(bytes) => ran.stderr.extend_from_slice(&bytes),
                FromGuest::Ended(ended) => {
                    ran.ended = ended;
                    return Ok(ran);
                }
            }
        }
    }

    /// Runs it with this process's own input and output, for a person at a terminal.
    pub(crate) fn interactive(self) -> Result<Ended> {
        let mut output = connect(self.address)?;
        let mut input = BufReader::new(output.try_clone()?);
        ToGuest::Run(self.run).write(&mut output)?;
        std::thread::spawn(move || -> std::io::Result<()> {
            let mut buffer = [0; 4096];
            while let count @ 1.. = std::io::stdin().read(&mut buffer)? {
                ToGuest::Stdin(buffer[..count].to_vec()).write(&mut output)?;
            }
            ToGuest::StdinEnd.write(&mut output)
        });
        use std::io::Write;
        while let Some(frame) = FromGuest::read(&mut input)? {
            match frame {
                FromGuest::Stdout(bytes) => std::io::stdout().write_all(&bytes)?,
                FromGuest::Stderr(bytes) => std::io::stderr().write_all(&bytes)?,
                FromGuest::Ended(ended) => return Ok(ended),
            }
            std::io::stdout().flush()?;
        }
        bail!("the guest hung up")
    }
}

fn connect(address: Ipv4Addr) -> Result<TcpStream> {
    let address = SocketAddr::from((address, PORT));
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                notice_death(&stream)?;
                return Ok(stream);
            }
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("the guest cannot be reached");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// A guest that crashes does not hang up: ask it, when it is silent, whether it is there.
fn notice_death(stream: &TcpStream) -> Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 8)?;
    Ok(())
}

impl Ran {
    /// An error unless it exited with 0.
    pub(crate) fn success(self) -> Result<Ran> {
        if self.ended == Ended::Exited(0) {
            return Ok(self);
        }
        let said = [self.stdout.as_slice(), b"\n", self.stderr.as_slice()].concat();
        bail!("{}: {:?}: {}", self.what, self.ended, last_lines(&String::from_utf8_lossy(&said), 15))
    }

    /// What it printed, without white space around.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }

    /// What it complained.
    pub(crate) fn complaint(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim().to_owned()
    }
}

/// The arguments that write standard input to a file of this mode.
pub(super) fn write_file(path: &Path, mode: u32) -> Vec<String> {
    let script = r#"mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1""#;
    let words = ["sh", "-c", script, "sh", &path.to_string_lossy(), &format!("{mode:o}")];
    words.map(str::to_owned).to_vec()
}
