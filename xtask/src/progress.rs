//! Telling a person what goes on: one line per step, with its time, and signs of life while it lasts.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A step shorter than this is not worth a line of its own before it ends.
const SHORT: Duration = Duration::from_secs(2);

/// How often a step that lasts says so: often on a terminal, where the line is replaced, seldom in a log.
fn beat() -> Duration {
    if std::io::stderr().is_terminal() { Duration::from_secs(1) } else { Duration::from_secs(20) }
}

/// A step under way. Dropped without [`Step::done`] it counts as failed.
pub(crate) struct Step {
    name: String,
    began: Instant,
    note: Arc<Mutex<String>>,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
    done: bool,
}

/// Begins a step.
pub(crate) fn step(name: impl Into<String>) -> Step {
    let (name, began, note) = (name.into(), Instant::now(), Arc::new(Mutex::new(String::new())));
    let (stop, stopped) = channel();
    let (title, notes) = (name.clone(), Arc::clone(&note));
    let ticker = thread::spawn(move || {
        let mut wait = SHORT;
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let note = notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let note = if note.is_empty() { note } else { format!(": {note}") };
            let seconds = began.elapsed().as_secs();
            if std::io::stderr().is_terminal() {
                eprint!("\r\x1b[K  … {title}{note} ({seconds} s)");
            } else {
                eprintln!("  … {title}{note} ({seconds} s)");
            }
            wait = beat();
        }
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    });
    Step { name, began, note, ticker: Some((stop, ticker)), done: false }
}

impl Step {
    /// What the step is at, for whoever watches.
    pub(crate) fn note(&self, note: impl Into<String>) {
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note.into();
    }

    /// The step has succeeded.
    pub(crate) fn done(mut self) -> Duration {
        self.done = true;
        self.began.elapsed()
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            let _ = ticker.join();
        }
        let sign = if self.done { "✓" } else { "✗" };
        eprintln!("  {sign} {} ({})", self.name, seconds(self.began.elapsed()));
    }
}

/// A time for people: `0.4 s`, `73 s`, `12 min 5 s`.
pub(crate) fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        whole @ 10..120 => format!("{whole} s"),
        whole => format!("{} min {} s", whole / 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_a_person_says_them() {
        assert_eq!(seconds(Duration::from_millis(449)), "0.4 s");
        assert_eq!(seconds(Duration::from_secs(73)), "73 s");
        assert_eq!(seconds(Duration::from_secs(725)), "12 min 5 s");
    }
}
