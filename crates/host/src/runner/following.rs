//! A child followed to its end: what it says is read, its deadline is kept.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};

use super::process::{Finished, Intent, ProcessError, Program};
use super::spawn::Born;

/// How long a killed program may take to end: one that waits for a disk which does not answer takes as long as that.
const DYING: Duration = Duration::from_secs(1);

/// Programs that were killed and have not ended, by their words: they wait for a disk that does not answer.
static UNANSWERED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// So often the same is asked while nobody answers.
const ASKED: usize = 2;

/// Whether asking once more would only add a process that cannot be killed.
pub(super) fn is_unanswered(words: &str) -> bool {
    let unanswered = UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    unanswered.iter().filter(|one| *one == words).count() >= ASKED
}

/// One of them, until it ends.
#[derive(Debug)]
struct Unanswered(String);

impl Unanswered {
    fn new(words: &str) -> Unanswered {
        UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner).push(words.to_owned());
        Unanswered(words.to_owned())
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut unanswered = UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = unanswered.iter().position(|one| *one == self.0) {
            unanswered.swap_remove(one);
        }
    }
}

/// A program that runs, and what it has said so far.
#[derive(Debug)]
pub struct Following {
    pid: Pid,
    ended: OwnedFd,
    stdout: Pipe,
    stderr: Pipe,
}

#[derive(Debug)]
struct Pipe {
    end: Option<File>,
    said: Vec<u8>,
}

impl Pipe {
    fn new(end: OwnedFd) -> io::Result<Pipe> {
        fcntl_setfl(&end, OFlags::NONBLOCK)?;
        Ok(Pipe { end: Some(File::from(end)), said: Vec::new() })
    }

    /// Takes what is there.
    fn read(&mut self) -> io::Result<()> {
        let Some(end) = &mut self.end else { return Ok(()) };
        match end.read_to_end(&mut self.said) {
            Ok(_) => self.end = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Following {
    pub(super) fn new(born: Born) -> io::Result<Following> {
        let (stdout, stderr) = (Pipe::new(born.stdout)?, Pipe::new(born.stderr)?);
        Ok(Following { pid: born.pid, ended: born.pidfd, stdout, stderr })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// To its end or its deadline.
    pub(super) fn follow(mut self, program: &Program) -> Result<Finished, ProcessError> {
        let not_followed = |source| ProcessError::NotFollowed { program: program.words(), source };
        if self.await_end(Some(Instant::now() + program.limit)).map_err(not_followed)? {
            return self.finish().map_err(not_followed);
        }
        let (words, limit) = (program.words(), program.limit);
        match program.intent {
            Intent::Looks => {
                let _ = kill_process_group(self.pid, Signal::KILL);
                if self.await_end(Some(Instant::now() + DYING)).map_err(not_followed)? {
                    self.finish().map_err(not_followed)?;
                } else {
                    tracing::warn!(pid = self.pid(), program = words, "a killed command does not end");
                    let unanswered = Unanswered::new(&words);
                    std::thread::spawn(move || {
                        let _ended = self.to_the_end();
                        drop(unanswered);
                    });
                }
                Err(ProcessError::TooSlow { program: words, limit })
            }
            Intent::Changes => Err(ProcessError::StillRunning {
                program: words,
                pid: self.pid(),
                limit,
                rest: Box::new(self),
            }),
        }
    }

    /// Follows it to its end, however long that takes.
    pub fn to_the_end(mut self) -> io::Result<Finished> {
        self.await_end(None)?;
        self.finish()
    }

    /// Whether it ended before the deadline.
    fn await_end(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        loop {
            let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(false),
                Some(left) => Some(Timespec::try_from(left).map_err(io::Error::other)?),
                None => None,
            };
            let pipes = [&self.stdout, &self.stderr].into_iter().filter_map(|pipe| pipe.end.as_ref());
            let mut waited: Vec<PollFd<'_>> = vec![PollFd::new(&self.ended, PollFlags::IN)];
            waited.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            match poll(&mut waited, timeout.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ended = !waited[0].revents().is_empty();
            self.stdout.read()?;
            self.stderr.read()?;
            if ended {
                return Ok(true);
            }
        }
    }

    /// Takes the exit status of one that has ended. A daemon that it left behind may hold its outputs open: what is in
    /// them now is all that is read.
    fn finish(mut self) -> io::Result<Finished> {
        self.stdout.read()?;
        self.stderr.read()?;
        let waited = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty())?;
        let (_, status) = waited.ok_or_else(|| io::Error::other("the process has not ended"))?;
        let status = ExitStatus::from_raw(status.as_raw());
        Ok(Finished { status, stdout: self.stdout.said, stderr: self.stderr.said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::process::Processes;

    #[test]
    fn what_nobody_answers_is_not_asked_for_ever() {
        let ask = |word: &str| {
            Processes::here()
                .run(&Program::looks(["echo", word], Duration::from_secs(60)))
                .map(|done| done.text())
        };
        let (first, second) = (Unanswered::new("echo silent"), Unanswered::new("echo silent"));
        let refused = ask("silent").unwrap_err();
        assert!(matches!(refused, ProcessError::Unanswered { .. }), "{refused}");
        assert_eq!(ask("other").unwrap(), "other");
        drop(first);
        assert_eq!(ask("silent").unwrap(), "silent");
        drop(second);
    }
}
