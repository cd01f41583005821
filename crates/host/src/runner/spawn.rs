//! A child that is born in a control group.
//!
//! Moving a process (a write to `cgroup.procs`) waits for a grace period of the kernel's RCU: 46 ms and more were measured
//! in a guest, a fifth of the command itself. `clone3` puts a child there for nothing. The standard library does not
//! have it, so the little that it does between fork and exec is done here.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::process::Intent;
use super::surroundings::Namespaces;

/// libc's constant of this name has too few bits.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What is run, with everything that the child would otherwise have to allocate.
pub(super) struct Prepared {
    /// Where the program may lie; the first that can be run is.
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    broken_pipe: libc::sighandler_t,
}

/// A child that runs its program.
pub(super) struct Born {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum NotBorn {
    /// The kernel does not make children in this way, or may not here.
    Clone(io::Error),
    /// It could not become its program.
    Exec(io::Error),
}

/// Who reads what a program says may die before it: one that changes something goes on, unheard.
pub(super) fn on_broken_pipe(intent: Intent) -> libc::sighandler_t {
    match intent {
        Intent::Looks => libc::SIG_DFL,
        Intent::Changes => libc::SIG_IGN,
    }
}

fn text(word: &OsStr) -> io::Result<CString> {
    Ok(CString::new(word.as_bytes())?)
}

impl Prepared {
    /// `path` is where a program without a slash in its name is looked for.
    pub(super) fn new(
        argv: &[OsString],
        environment: &[(&str, &OsStr)],
        path: &str,
        intent: Intent,
    ) -> io::Result<Prepared> {
        let name = argv.first().ok_or_else(|| io::Error::other("no program was named"))?;
        let candidates = if name.as_bytes().contains(&b'/') {
            vec![text(name)?]
        } else {
            let place = |place: &str| text(&[OsStr::new(place), name].join(OsStr::new("/")));
            path.split(':').map(place).collect::<io::Result<_>>()?
        };
        let variable = |(key, value): &(&str, &OsStr)| text(&[OsStr::new(key), value].join(OsStr::new("=")));
        Ok(Prepared {
            candidates,
            arguments: argv.iter().map(|word| text(word)).collect::<io::Result<_>>()?,
            environment: environment.iter().map(variable).collect::<io::Result<_>>()?,
            broken_pipe: on_broken_pipe(intent),
        })
    }

    /// Starts it: in this control group, in these namespaces and a process group of its own, without input, and with
    /// this open for as long as it runs.
    pub(super) fn start(
        &self,
        group: Option<BorrowedFd<'_>>,
        namespaces: &Namespaces,
        held: Option<BorrowedFd<'_>>,
    ) -> Result<Born, NotBorn> {
        let failed = |error: Errno| NotBorn::Exec(error.into());
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(failed);
        let ((stdout, out), (stderr, err), (trouble, tell)) = (pipe()?, pipe()?, pipe()?);
        let null = File::open("/dev/null").map_err(NotBorn::Exec)?;
        let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
            words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        let mut pidfd: libc::c_int = -1;
        // SAFETY: without CLONE_VM the child has a copy of this thread's memory and continues on the copied stack. Until
        // it execs or exits it only makes system calls on what was prepared above: it neither allocates nor locks.
        #[expect(unsafe_code)]
        let pid = unsafe {
            let mut wanted: libc::clone_args = std::mem::zeroed();
            wanted.flags = libc::CLONE_PIDFD as u64;
            wanted.pidfd = &raw mut pidfd as u64;
            wanted.exit_signal = libc::SIGCHLD as u64;
            if let Some(group) = group {
                wanted.flags |= CLONE_INTO_CGROUP;
                wanted.cgroup = group.as_raw_fd() as u64;
            }
            let pid = libc::syscall(libc::SYS_clone3, &raw const wanted, size_of_val(&wanted));
            if pid == 0 {
                let error = self.become_program(
                    [&null.as_fd(), &out.as_fd(), &err.as_fd()],
                    namespaces,
                    held,
                    &arguments,
                    &environment,
                );
                let number = error.raw_os_error().to_ne_bytes();
                libc::write(tell.as_raw_fd(), number.as_ptr().cast(), number.len());
                libc::_exit(127);
            }
            pid
        };
        if pid < 0 {
            return Err(NotBorn::Clone(io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just made this descriptor for us.
        #[expect(unsafe_code)]
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        drop((out, err, tell));
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| NotBorn::Exec(io::Error::other("clone3 returned no process")))?;
        let mut number = [0; 4];
        match File::from(trouble).read_exact(&mut number) {
            // Closed by exec.
            Err(_) => Ok(Born { pid, pidfd, stdout, stderr }),
            Ok(()) => {
                let _ = waitpid(Some(pid), WaitOptions::empty());
                Err(NotBorn::Exec(io::Error::from_raw_os_error(i32::from_ne_bytes(number))))
            }
        }
    }

    /// Runs in the child; returns only if it cannot.
    ///
    /// # Safety
    /// The pointers are those of null-terminated lists of strings.
    #[expect(unsafe_code)]
    unsafe fn become_program(
        &self,
        streams: [&BorrowedFd<'_>; 3],
        namespaces: &Namespaces,
        held: Option<BorrowedFd<'_>>,
        arguments: &[*const libc::c_char],
        environment: &[*const libc::c_char],
    ) -> Errno {
        let prepare = || -> Result<(), Errno> {
            rustix::process::setpgid(None, None)?;
            rustix::process::chdir(c"/")?;
            if let Some(held) = held {
                rustix::io::fcntl_setfd(held, rustix::io::FdFlags::empty())?;
            }
            namespaces.enter().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        // SAFETY: system calls on descriptors that are open and strings that are there.
        unsafe {
            for (number, stream) in (0..).zip(streams) {
                if libc::dup2(stream.as_raw_fd(), number) < 0 {
                    return Errno::BADF;
                }
            }
            // What the runtime has set for itself is not for others.
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            libc::signal(libc::SIGPIPE, self.broken_pipe);
            if let Err(error) = prepare() {
                return error;
            }
            let mut denied = Errno::NOENT;
            for candidate in &self.candidates {
                libc::execve(CStr::as_ptr(candidate), arguments.as_ptr(), environment.as_ptr());
                match *libc::__errno_location() {
                    libc::ENOENT | libc::ENOTDIR => {}
                    libc::EACCES => denied = Errno::ACCESS,
                    other => return Errno::from_raw_os_error(other),
                }
            }
            denied
        }
    }
}
