//! Points at which a build for tests ends itself, as if the power had gone: before and after every write to the API.

/// Marks the moment before or after a write.
///
/// `LVMS_CRASH_WRITES` names a file with a word. At a point that was not passed since the word is there the process is
/// killed; all such points are lines in the file's neighbour with `.log`.
#[cfg(feature = "crash-points")]
pub(crate) fn point(moment: &str, verb: &str, kind: &str, site: &std::panic::Location<'_>) {
    use std::io::Write as _;

    let Some(file) = std::env::var_os("LVMS_CRASH_WRITES") else { return };
    let word = std::fs::read_to_string(&file).unwrap_or_default();
    let word = word.trim();
    if word.is_empty() {
        return;
    }
    let mut log = file;
    log.push(".log");
    let passed = std::fs::read_to_string(&log).unwrap_or_default();
    let point = format!("{word} {moment} {verb} {kind} {}:{}", site.file(), site.line());
    if passed.lines().any(|line| line == point) {
        return;
    }
    if let Ok(mut log) = std::fs::File::options().create(true).append(true).open(log) {
        let _ = writeln!(log, "{point}");
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

#[cfg(not(feature = "crash-points"))]
pub(crate) fn point(_moment: &str, _verb: &str, _kind: &str, _site: &std::panic::Location<'_>) {}

/// Held from before a write until after it: a process that is killed at a point of one is at no point of another.
#[cfg(feature = "crash-points")]
pub(crate) type Turn = tokio::sync::MutexGuard<'static, ()>;

/// Waits for it.
#[cfg(feature = "crash-points")]
pub(crate) fn turn() -> impl Future<Output = Turn> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    TURN.lock()
}

#[cfg(not(feature = "crash-points"))]
pub(crate) struct Turn;

#[cfg(not(feature = "crash-points"))]
pub(crate) fn turn() -> impl Future<Output = Turn> {
    std::future::ready(Turn)
}
