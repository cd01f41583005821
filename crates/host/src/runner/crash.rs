//! Points at which a build for tests ends itself, as if the power had gone: before and after every effect.

/// Marks the moment before or after an effect.
#[cfg(feature = "crash-points")]
pub(super) fn point(effect: &str, moment: &str) {
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Which point shall be the last one, counted from 1.
    const VARIABLE: &str = "LVMS_CRASH_AT";
    static PASSED: AtomicU64 = AtomicU64::new(0);

    let number = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
    let at: u64 = std::env::var(VARIABLE).ok().and_then(|at| at.parse().ok()).unwrap_or(u64::MAX);
    eprintln!("crash point {number}: {moment} {effect}");
    if number == at {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}

#[cfg(not(feature = "crash-points"))]
pub(super) fn point(_effect: &str, _moment: &str) {}
