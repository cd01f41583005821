//! Who may change a volume group: one at a time, in the order of coming.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

/// The queue of one group.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number that the next one to come gets.
    next: u64,
    /// The number whose turn it is.
    serving: u64,
    /// Numbers of those who left before their turn.
    left: Vec<u64>,
    /// What holds the queue up.
    stuck: Option<Stuck>,
    /// Long works that run.
    bytes: usize,
    tools: usize,
}

/// Kinds of long works. Each has places of its own: no pod waits for its filesystem as long as others copy.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Long {
    /// Writes a volume's bytes: copies and zeros.
    Bytes,
    /// Makes, checks or grows a filesystem.
    Tool,
}

/// A command that does not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The number of its process.
    pub pid: u32,
    /// Its words.
    pub program: String,
    /// Devices of its group that are suspended now.
    pub suspended: Vec<String>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stuck { pid, program, suspended } = self;
        write!(out, "process {pid} has not ended and holds its volume group: {program}; ")?;
        if !suspended.is_empty() {
            write!(out, "suspended, so that all I/O to them waits: {}; ", suspended.join(", "))?;
        }
        write!(
            out,
            "the group goes on by itself when the process ends: see in /proc/{pid}/stack and dmesg what it waits for, \
             and mend that, or `kill {pid}`: what it leaves suspended is then resumed"
        )
    }
}

/// Why there is no turn.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoTurn {
    /// A command of ours does not end.
    #[error("{0}")]
    Stuck(Stuck),
    /// Others were busy for too long.
    #[error("others were busy with the volume group until the deadline")]
    TooLate,
}

/// At most so many long works of a kind at the same time in one group.
const MOST_JOBS: usize = 2;

/// Long works may wait for each other as long as that takes; a caller's own deadline ends only its waiting.
const LONG: Duration = Duration::from_secs(24 * 3600);

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Instant) -> Option<MutexGuard<'a, State>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        Some(self.moved.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Waits for its turn, which lasts until the value is dropped.
    pub(crate) fn turn(&self, deadline: Option<Instant>) -> Result<Turn<'_>, NoTurn> {
        let deadline = deadline.unwrap_or_else(|| Instant::now() + LONG);
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        loop {
            if let Some(stuck) = state.stuck.clone() {
                self.leave(state, number);
                return Err(NoTurn::Stuck(stuck));
            }
            if state.serving == number {
                return Ok(Turn { queue: self });
            }
            // Given back if the deadline has passed.
            if deadline <= Instant::now() {
                self.leave(state, number);
                return Err(NoTurn::TooLate);
            }
            match self.wait(state, deadline) {
                Some(awake) => state = awake,
                None => state = self.state(),
            }
        }
    }

    fn leave(&self, mut state: MutexGuard<'_, State>, number: u64) {
        state.left.push(number);
        State::skip_left(&mut state);
        self.moved.notify_all();
    }

    /// Stops the queue; whoever waits is told why.
    pub(crate) fn stop(&self, stuck: Stuck) {
        self.state().stuck = Some(stuck);
        self.moved.notify_all();
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.state().stuck = None;
        self.moved.notify_all();
    }

    /// What holds it up.
    pub(crate) fn stuck(&self) -> Option<Stuck> {
        self.state().stuck.clone()
    }

    /// Waits for one of the places for long works of a kind.
    pub(crate) fn job(&self, kind: Long, deadline: Option<Instant>) -> Result<Job<'_>, NoTurn> {
        let deadline = deadline.unwrap_or_else(|| Instant::now() + LONG);
        let mut state = self.state();
        while *state.running(kind) >= MOST_JOBS {
            state = self.wait(state, deadline).ok_or(NoTurn::TooLate)?;
        }
        *state.running(kind) += 1;
        Ok(Job { queue: self, kind })
    }
}

impl State {
    fn running(&mut self, kind: Long) -> &mut usize {
        match kind {
            Long::Bytes => &mut self.bytes,
            Long::Tool => &mut self.tools,
        }
    }

    fn skip_left(&mut self) {
        while let Some(position) = self.left.iter().position(|number| *number == self.serving) {
            self.left.swap_remove(position);
            self.serving += 1;
        }
    }
}

/// A turn; dropped, the next one has it.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    queue: &'a Queue,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.serving += 1;
        state.skip_left();
        self.queue.moved.notify_all();
    }
}

/// A place for a long work.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    queue: &'a Queue,
    kind: Long,
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        *self.queue.state().running(self.kind) -= 1;
        self.queue.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn turns_are_taken_one_at_a_time_and_none_is_lost() {
        let queue = Queue::default();
        let (inside, most, turns) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _turn = queue.turn(None).unwrap();
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!((most.into_inner(), turns.into_inner()), (1, 400));
    }

    #[test]
    fn one_who_waited_too_long_leaves_and_the_others_go_on() {
        let queue = Queue::default();
        let turn = queue.turn(None).unwrap();
        assert_eq!(queue.turn(Some(Instant::now())).unwrap_err(), NoTurn::TooLate);
        assert_eq!(queue.turn(Some(Instant::now())).unwrap_err(), NoTurn::TooLate);
        drop(turn);
        drop(queue.turn(Some(Instant::now() + LONG)).unwrap());
        drop(queue.turn(Some(Instant::now() + LONG)).unwrap());
    }

    #[test]
    fn whoever_waits_is_told_what_does_not_end_and_goes_on_when_it_has() {
        let queue = Queue::default();
        let turn = queue.turn(None).unwrap();
        let stuck = Stuck { pid: 7, program: "lvm lvcreate".into(), suspended: Vec::new() };
        queue.stop(stuck.clone());
        assert_eq!(queue.turn(None).unwrap_err(), NoTurn::Stuck(stuck));
        drop(turn);
        queue.go_on();
        drop(queue.turn(None).unwrap());
    }

    #[test]
    fn a_command_that_does_not_end_is_told_with_the_way_out() {
        let stuck = |suspended: &[&str]| Stuck {
            pid: 7,
            program: "lvm lvcreate".into(),
            suspended: suspended.iter().map(|name| (*name).to_owned()).collect(),
        };
        let told = stuck(&["vg-a", "vg-b"]).to_string();
        for part in ["process 7", "lvm lvcreate", "waits: vg-a, vg-b;", "/proc/7/stack", "`kill 7`"] {
            assert!(told.contains(part), "{told}");
        }
        assert!(!stuck(&[]).to_string().contains("so that all I/O"));
    }

    #[test]
    fn two_long_works_of_a_kind_run_and_a_third_waits() {
        let queue = Queue::default();
        let job = |kind| queue.job(kind, Some(Instant::now()));
        let (first, _second) = (job(Long::Bytes).unwrap(), job(Long::Bytes).unwrap());
        assert_eq!(job(Long::Bytes).unwrap_err(), NoTurn::TooLate);
        let _tools = (job(Long::Tool).unwrap(), job(Long::Tool).unwrap());
        assert_eq!(job(Long::Tool).unwrap_err(), NoTurn::TooLate);
        drop(first);
        drop(job(Long::Bytes).unwrap());
    }
}
