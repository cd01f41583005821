//! Processes that were started, as strace saw it: it is there whatever runs the guest, and needs nothing of the kernel.

use std::collections::BTreeMap;

/// The calls that start a process, and those by which it becomes a program; nothing else, of all descendants.
pub const STRACE: [&str; 7] =
    ["strace", "-f", "-qq", "--signal=none", "--trace=fork,vfork,clone,clone3,execve", "-o", OUTPUT];

/// Where strace writes.
pub const OUTPUT: &str = "/run/strace";

/// What was started.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Processes; threads are none.
    pub processes: usize,
    /// Programs that they became at last, with how many of them did.
    pub programs: BTreeMap<String, usize>,
}

impl Started {
    /// What the output says.
    pub fn read(output: &str) -> Started {
        let (mut processes, mut became) = (0, BTreeMap::new());
        for line in output.lines() {
            let Some((process, call)) = line.trim_start().split_once(' ') else { continue };
            let call = call.trim_start();
            let failed = call.contains(" = -1 ");
            let starts = ["fork(", "vfork(", "clone(", "clone3("].iter().any(|name| call.starts_with(name));
            if starts && !failed && !call.contains("CLONE_THREAD") {
                processes += 1;
            }
            if let Some(rest) = call.strip_prefix("execve(\"")
                && !failed
                && let Some((path, _)) = rest.split_once('"')
            {
                became.insert(process.to_owned(), path.rsplit('/').next().unwrap_or(path).to_owned());
            }
        }
        let mut programs = BTreeMap::new();
        for program in became.into_values() {
            *programs.entry(program).or_default() += 1;
        }
        Started { processes, programs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
825   vfork( <unfinished ...>
889   execve(\"/usr/local/bin/lvm\", [\"lvm\", \"lvs\"], 0x550000023728 /* 7 vars */) = -1 ENOENT (No such file or directory)
889   execve(\"/usr/bin/nsenter\", [\"nsenter\", \"lvm\"], 0x550000023728 /* 7 vars */ <unfinished ...>
825   <... vfork resumed>)              = 889
889   <... execve resumed>)             = 0
889   execve(\"/usr/sbin/lvm\", [\"lvm\", \"lvs\"], 0x550000023728 /* 7 vars */) = 0
825   clone3({flags=CLONE_VM|CLONE_FS|CLONE_THREAD, child_tid=0x7f}, 88) = 890
890   clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7) = 891
890   clone(child_stack=NULL, flags=SIGCHLD, child_tidptr=0x7) = -1 EAGAIN (Resource temporarily unavailable)
";

    #[test]
    fn threads_and_failures_are_no_processes_and_the_last_program_counts() {
        let started = Started::read(OUTPUT);
        assert_eq!(started.processes, 2);
        assert_eq!(started.programs, [("lvm".to_owned(), 1)].into());
    }
}
