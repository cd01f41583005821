//! One process per command: by argv, in the host's namespaces and a control group of the host's, with a deadline.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use super::following::{Following, is_unanswered};
use super::spawn::{Born, NotBorn, Prepared, on_broken_pipe};
use super::surroundings::{ControlGroup, Namespaces};

/// Where the host's programs lie; NixOS has its own place.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin";

/// What a program may do to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// It only looks, and may be killed at its deadline.
    Looks,
    /// It changes something. It is never killed: a kill between suspend and resume freezes the host.
    Changes,
}

/// A program to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Variables beside `PATH` and `LC_ALL`.
    pub env: Vec<(&'static str, OsString)>,
    /// What it may do.
    pub intent: Intent,
    /// How long it may take.
    pub limit: Duration,
}

impl Program {
    /// A program that only looks.
    pub fn looks<S: Into<OsString>>(argv: impl IntoIterator<Item = S>, limit: Duration) -> Program {
        let argv = argv.into_iter().map(Into::into).collect();
        Program { argv, env: Vec::new(), intent: Intent::Looks, limit }
    }

    /// A program that changes something.
    pub fn changes<S: Into<OsString>>(argv: impl IntoIterator<Item = S>, limit: Duration) -> Program {
        Program { intent: Intent::Changes, ..Program::looks(argv, limit) }
    }

    /// With this variable.
    pub fn env(mut self, key: &'static str, value: impl Into<OsString>) -> Program {
        self.env.push((key, value.into()));
        self
    }

    /// Its words, for people.
    pub fn words(&self) -> String {
        self.argv.iter().map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }
}

fn quote(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "%+,-./:=@_".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained.
    pub stderr: Vec<u8>,
}

impl Finished {
    /// Whether it ended well; otherwise an error with its complaint.
    pub fn success(self, program: &Program) -> Result<Finished, ProcessError> {
        if self.status.success() {
            return Ok(self);
        }
        Err(ProcessError::Failed {
            program: program.words(),
            status: self.status,
            complaint: last_lines(&[self.stdout, self.stderr].concat()),
        })
    }

    /// What it printed, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}

fn last_lines(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join("; ")
}

/// Why a program brought no result.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// It is not there, or may not be run.
    #[error("{program} could not be started")]
    NotStarted {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// Its end could not be awaited.
    #[error("{program} could not be followed")]
    NotFollowed {
        /// Its words.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It only looked, and was killed at its deadline.
    #[error("{program} had not answered after {} s and was ended", limit.as_secs())]
    TooSlow {
        /// Its words.
        program: String,
        /// Its deadline.
        limit: Duration,
    },
    /// The same was asked before, and those who asked cannot even be killed.
    #[error(
        "{program} was asked before and is not answered: a disk that it reads does not answer, dmesg may say which; it is \
         asked again when the commands that wait for it have ended"
    )]
    Unanswered {
        /// Its words.
        program: String,
    },
    /// It changes something, is past its deadline, and goes on.
    #[error("{program} (process {pid}) has not ended after {} s and still runs", limit.as_secs())]
    StillRunning {
        /// Its words.
        program: String,
        /// Its number.
        pid: u32,
        /// Its deadline.
        limit: Duration,
        /// To follow it on.
        rest: Box<Following>,
    },
    /// It ended badly.
    #[error("{program} ended with {status}: {complaint}")]
    Failed {
        /// Its words.
        program: String,
        /// How.
        status: ExitStatus,
        /// Its last words.
        complaint: String,
    },
}

/// Starts programs.
#[derive(Debug)]
pub(crate) struct Processes {
    pub(super) namespaces: Namespaces,
    /// The host's control group for our children, where there is one.
    pub(super) group: Option<ControlGroup>,
    /// What each of them keeps open.
    pub(super) held: Option<OwnedFd>,
}

impl Processes {
    #[cfg(test)]
    pub(crate) fn here() -> Processes {
        Processes { namespaces: Namespaces::default(), group: None, held: None }
    }

    /// The same, and what is started keeps this open.
    pub(super) fn holding(&self, held: OwnedFd) -> io::Result<Processes> {
        let group = self.group.as_ref().map(ControlGroup::try_clone).transpose()?;
        Ok(Processes { namespaces: self.namespaces.try_clone()?, group, held: Some(held) })
    }

    /// Runs a program to its end or its deadline.
    pub(crate) fn run(&self, program: &Program) -> Result<Finished, ProcessError> {
        if program.intent == Intent::Looks && is_unanswered(&program.words()) {
            return Err(ProcessError::Unanswered { program: program.words() });
        }
        let following = self.start(program)?;
        following.follow(program)
    }

    fn start(&self, program: &Program) -> Result<Following, ProcessError> {
        let not_started = |source| ProcessError::NotStarted {
            program: program.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            source,
        };
        let born = match self.start_there(program) {
            // An old kernel, or one that was told not to: the child moves by itself.
            Err(NotBorn::Clone(error)) => {
                tracing::debug!(%error, "clone3 is not to be had");
                self.start_and_move(program).map_err(not_started)?
            }
            Err(NotBorn::Exec(source)) => return Err(not_started(source)),
            Ok(born) => born,
        };
        Following::new(born).map_err(|source| ProcessError::NotFollowed { program: program.words(), source })
    }

    /// Starts a program in its control group.
    fn start_there(&self, program: &Program) -> Result<Born, NotBorn> {
        let mut environment = vec![("PATH", OsStr::new(PATH)), ("LC_ALL", OsStr::new("C"))];
        environment.extend(program.env.iter().map(|(key, value)| (*key, value.as_os_str())));
        let prepared =
            Prepared::new(&program.argv, &environment, PATH, program.intent).map_err(NotBorn::Exec)?;
        let group = self.group.as_ref().map(|group| group.directory.as_fd());
        prepared.start(group, &self.namespaces, self.held.as_ref().map(AsFd::as_fd))
    }

    /// Starts a program, which moves to its control group: slower, and possible on every kernel.
    #[expect(unsafe_code)]
    fn start_and_move(&self, program: &Program) -> io::Result<Born> {
        let (name, arguments) =
            program.argv.split_first().ok_or_else(|| io::Error::other("no program was named"))?;
        let group = self.group.as_ref().map(|group| group.members.try_clone()).transpose()?;
        let mut command = Command::new(name);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("LC_ALL", "C")
            .envs(program.env.iter().map(|(key, value)| (OsStr::new(*key), value.as_os_str())))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What a terminal or a service manager sends to our group is not for LVM.
            .process_group(0);
        let namespaces = self.namespaces.try_clone()?;
        let held = self.held.as_ref().map(OwnedFd::try_clone).transpose()?;
        let broken_pipe = on_broken_pipe(program.intent);
        // SAFETY: between fork and exec the child only makes system calls on descriptors opened before the fork
        // (write, fcntl, setns, sigaction); nothing allocates, locks or touches memory shared with the parent's threads.
        unsafe {
            command.pre_exec(move || {
                libc::signal(libc::SIGPIPE, broken_pipe);
                if let Some(mut group) = group.as_ref() {
                    group.write_all(b"0")?;
                }
                if let Some(held) = &held {
                    rustix::io::fcntl_setfd(held, rustix::io::FdFlags::empty())?;
                }
                namespaces.enter()
            });
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let lost = || io::Error::other("a piped child has outputs");
        Ok(Born {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            stdout: child.stdout.take().ok_or_else(lost)?.into(),
            stderr: child.stderr.take().ok_or_else(lost)?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lvm::inventory::DeviceNumber;
    use crate::runner::claim::Claim;
    use rustix::process::Signal;
    use std::os::fd::AsRawFd;

    const SOON: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Program {
        Program::looks(["sh", "-c", script], SOON)
    }

    #[test]
    fn output_complaint_and_status_are_kept_apart() {
        let finished = Processes::here().run(&sh("echo out; echo err >&2; exit 3")).unwrap();
        assert_eq!((finished.stdout.as_slice(), finished.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(finished.status.code(), Some(3));
    }

    #[test]
    fn output_larger_than_a_pipe_is_read_whole() {
        let finished =
            Processes::here().run(&sh("head -c 3000000 /dev/zero; head -c 300000 /dev/zero >&2")).unwrap();
        assert_eq!((finished.stdout.len(), finished.stderr.len()), (3_000_000, 300_000));
    }

    #[test]
    fn the_environment_is_ours_alone() {
        let text = Processes::here().run(&sh("env").env("LVM_SYSTEM_DIR", "/x")).unwrap().text();
        let mut keys: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["LC_ALL", "LVM_SYSTEM_DIR", "PATH", "PWD"]);
    }

    #[test]
    fn a_kernel_that_makes_no_children_in_groups_is_served_too() {
        let program = sh("echo out; echo err >&2; exit 3").env("KEY", "value");
        for born in [
            Processes::here().start_there(&program).unwrap(),
            Processes::here().start_and_move(&program).unwrap(),
        ] {
            let finished = Following::new(born).unwrap().to_the_end().unwrap();
            assert_eq!((finished.text().as_str(), finished.stderr.as_slice()), ("out", &b"err\n"[..]));
            assert_eq!(finished.status.code(), Some(3));
        }
    }

    #[test]
    fn what_a_child_was_given_to_hold_is_held_until_it_ends() {
        let directory = std::env::temp_dir().join(format!("lvms-held-{}", std::process::id()));
        let take = || Claim::try_take(&directory, DeviceNumber { major: 253, minor: 7 }).unwrap();
        type Start = fn(&Processes, &Program) -> Born;
        let ways: [Start; 2] = [
            |processes, program| processes.start_there(program).unwrap(),
            |processes, program| processes.start_and_move(program).unwrap(),
        ];
        for start in ways {
            let claim = take().unwrap();
            let (reader, writer) = std::io::pipe().unwrap();
            // It ends when nothing of the pipe is left with us.
            let reads = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
            let waits = Program::looks(["cat", &reads], SOON);
            let born = start(&Processes::here().holding(claim.share().unwrap()).unwrap(), &waits);
            drop(claim);
            assert!(take().is_none());
            let following = Following::new(born).unwrap();
            drop(writer);
            drop(reader);
            following.to_the_end().unwrap();
            // A child of another test's may have it for the moment before it becomes its program.
            while take().is_none() {
                std::thread::yield_now();
            }
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_child_has_a_group_of_its_own_and_no_input_and_dies_of_a_broken_pipe_only_if_it_changes_nothing() {
        const BROKEN_PIPE: u64 = 1 << 12;
        let script = "cat; pwd; ps -o pgid= -p $$; echo $$; grep -E 'Sig(Ign|Blk)' /proc/self/status";
        let changes = Program::changes(["sh", "-c", script], SOON);
        for (program, ignored) in [(sh(script), 0), (changes, BROKEN_PIPE)] {
            for born in [
                Processes::here().start_there(&program).unwrap(),
                Processes::here().start_and_move(&program).unwrap(),
            ] {
                let text = Following::new(born).unwrap().to_the_end().unwrap().text();
                let words: Vec<&str> = text.split_whitespace().collect();
                let signals = |position: usize| u64::from_str_radix(words[position], 16).unwrap();
                assert_eq!((words[0], words[1]), ("/", words[2]), "{text}");
                assert_eq!((signals(4), signals(6) & BROKEN_PIPE), (0, ignored), "{text}");
            }
        }
    }

    #[test]
    fn what_changes_something_goes_on_though_nobody_hears_it_any_more() {
        let script = "read _ < \"$0\"; echo said; echo complained >&2; echo changed > \"$0.done\"";
        let way = std::env::temp_dir().join(format!("lvms-unheard-{}", std::process::id()));
        let done = way.with_added_extension("done");
        std::fs::remove_file(&done).ok();
        rustix::fs::mkfifoat(rustix::fs::CWD, &way, rustix::fs::Mode::RWXU).unwrap();
        let argv = [OsStr::new("sh"), OsStr::new("-c"), OsStr::new(script), way.as_os_str()];
        let Born { pid, stdout, stderr, .. } =
            Processes::here().start_there(&Program::changes(argv, SOON)).unwrap();
        drop((stdout, stderr));
        std::fs::write(&way, "now\n").unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        assert_eq!(std::fs::read_to_string(&done).unwrap(), "changed\n");
        for file in [way, done] {
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn a_program_that_looks_is_killed_at_its_deadline() {
        let mut program = sh("sleep 1000 & sleep 1000");
        program.limit = Duration::from_millis(50);
        assert!(matches!(Processes::here().run(&program), Err(ProcessError::TooSlow { .. })));
    }

    #[test]
    fn a_program_that_changes_something_is_never_killed_and_can_be_followed_on() {
        let mut program = sh("sleep 0.3; echo done");
        (program.intent, program.limit) = (Intent::Changes, Duration::ZERO);
        let Err(ProcessError::StillRunning { rest, .. }) = Processes::here().run(&program) else {
            panic!("it ended early")
        };
        let finished = rest.to_the_end().unwrap();
        assert!(finished.status.success());
        assert_eq!(finished.text(), "done");
    }

    #[test]
    fn a_daemon_left_behind_does_not_hold_its_parent_up() {
        let finished = Processes::here().run(&sh("sleep 30 & echo $!")).unwrap();
        let daemon: i32 = finished.text().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Processes::here().run(&Program::looks(["no-such-program"], SOON)).unwrap_err();
        assert_eq!(error.to_string(), "no-such-program could not be started");
    }

    #[test]
    fn words_are_quoted_for_people() {
        let program = Program::looks(["lvs", "--select", "lv_name = \"x\"", ""], SOON);
        assert_eq!(program.words(), "lvs --select 'lv_name = \"x\"' ''");
    }
}
