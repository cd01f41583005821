//! Processes that were started, as the kernel's tracing saw it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::Result;

const TRACING: &str = "/sys/kernel/tracing";

/// A child with this flag is a thread of its parent.
const CLONE_THREAD: u64 = 0x0001_0000;

/// What was started while something was done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Started {
    /// Processes of the driver, and theirs.
    pub(crate) ours: usize,
    /// Processes of others: udev's, for example.
    pub(crate) others: usize,
    /// Programs that ours became.
    pub(crate) programs: Vec<String>,
}

/// Counts what is started while `act` runs, of which the driver's and this program's own do nothing else.
pub(crate) fn count(driver: u32, act: impl FnOnce() -> Result<()>) -> Result<Started> {
    let tracing = Path::new(TRACING);
    let set = |file: &str, value: &str| fs::write(tracing.join(file), value);
    set("tracing_on", "0")?;
    set("trace", "")?;
    set("events/task/task_newtask/enable", "1")?;
    set("events/sched/sched_process_exec/enable", "1")?;
    let threads = fs::read_dir(format!("/proc/{driver}/task"))?;
    let threads: Vec<u32> =
        threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    set("tracing_on", "1")?;
    let done = act();
    set("tracing_on", "0")?;
    done?;
    let trace = fs::read_to_string(tracing.join("trace"))?;
    Ok(read(&trace, &threads))
}

/// What a trace says of the children of these threads.
fn read(trace: &str, threads: &[u32]) -> Started {
    let mut family: BTreeSet<u32> = threads.iter().copied().collect();
    let mut started = Started::default();
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let Some((task, rest)) = line.split_once(" [") else { continue };
        let parent = task.trim().rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
        let field = |name: &str| {
            let found = rest.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_default()
        };
        let pid: u32 = field("pid").parse().unwrap_or_default();
        if rest.contains(" task_newtask: ") {
            let ours = parent.is_some_and(|parent| family.contains(&parent));
            let flags = u64::from_str_radix(field("clone_flags"), 16).unwrap_or_default();
            if ours {
                family.insert(pid);
            }
            if flags & CLONE_THREAD == 0 {
                *(if ours { &mut started.ours } else { &mut started.others }) += 1;
            }
        } else if rest.contains(" sched_process_exec: ") && family.contains(&pid) {
            let program = field("filename");
            started.programs.push(program.rsplit('/').next().unwrap_or(program).to_owned());
        }
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
#
            lvms-100     [000] .....    10.1: task_newtask: pid=110 comm=lvms clone_flags=3d0f00 oom_score_adj=0
 tokio-runtime-w-110     [001] .....    10.2: task_newtask: pid=111 comm=tokio-runtime-w clone_flags=1200000 oom_score_adj=0
             lvm-111     [001] .....    10.3: sched_process_exec: filename=/usr/sbin/lvm pid=111 old_pid=111
             lvm-111     [001] .....    10.4: task_newtask: pid=112 comm=lvm clone_flags=1200011 oom_score_adj=0
    systemd-udevd-50     [000] .....    10.5: task_newtask: pid=113 comm=systemd-udevd clone_flags=1200011 oom_score_adj=0
         dmsetup-113     [000] .....    10.6: sched_process_exec: filename=/sbin/dmsetup pid=113 old_pid=113
";

    #[test]
    fn threads_are_no_processes_and_grandchildren_are() {
        let started = read(TRACE, &[100]);
        assert_eq!((started.ours, started.others), (2, 1));
        assert_eq!(started.programs, ["lvm"]);
    }
}
