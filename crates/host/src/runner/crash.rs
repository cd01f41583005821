//! Points at which a build for tests ends itself, as if the power had gone: before and after every effect.

/// Marks the moment before or after an effect.
///
/// `LVMS_CRASH_FILE` names a file with a word and a number. Points are counted from the moment the word changes; at the
/// one with this number the process is killed. Each point passed is appended to the file's neighbour with `.log`.
#[cfg(feature = "crash-points")]
pub(super) fn point(effect: &str, moment: &str) {
    use std::io::Write as _;
    use std::sync::{Mutex, PoisonError};

    static PASSED: Mutex<(String, u64)> = Mutex::new((String::new(), 0));

    let Some(file) = std::env::var_os("LVMS_CRASH_FILE") else { return };
    let armed = std::fs::read_to_string(&file).unwrap_or_default();
    let (word, number) = armed.trim().split_once(' ').unwrap_or_default();
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    if passed.0 != word {
        *passed = (word.to_owned(), 0);
    }
    passed.1 += 1;
    let mut log = file;
    log.push(".log");
    if let Ok(mut log) = std::fs::File::options().create(true).append(true).open(log) {
        let _ = writeln!(log, "{word} {} {moment} {effect}", passed.1);
    }
    if number.parse() == Ok(passed.1) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}

#[cfg(not(feature = "crash-points"))]
pub(super) fn point(_effect: &str, _moment: &str) {}
