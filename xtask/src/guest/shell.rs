//! A prompt in a guest, for a person at a terminal.

use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use lab_protocol::agent::Ended;
use rustix::termios::{self, OptionalActions, Termios};

use super::command::{Command, Connections};

/// A person may think for a while.
const LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Runs a program, or a shell, in the guest with this address.
pub(crate) fn shell(address: Ipv4Addr, program: Vec<String>) -> Result<ExitCode> {
    let (argv, raw) = if program.is_empty() {
        // `script` gives the shell a terminal of its own.
        let words = ["script", "--quiet", "--flush", "--command", "bash --login -i", "/dev/null"];
        (words.map(str::to_owned).to_vec(), Raw::enter()?)
    } else {
        (program, None)
    };
    let command = Command::new("the guest", address, &Arc::<Connections>::default(), argv);
    let ended = command.env("TERM", "xterm").limit(LIMIT).interactive()?;
    drop(raw);
    match ended {
        Ended::Exited(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        other @ (Ended::Killed(_) | Ended::TimedOut | Ended::NotStarted(_)) => bail!("{other:?}"),
    }
}

/// This side's terminal passes every key on, until it is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Option<Raw>> {
        let terminal = std::io::stdin();
        if !terminal.is_terminal() {
            return Ok(None);
        }
        let before = termios::tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        Ok(Some(Raw(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}
