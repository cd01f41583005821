//! Running programs of this machine.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::progress::seconds;

/// No program takes this long, not even one that builds Kubernetes on a busy machine; one that does hangs.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs a program to its end and returns what it printed. Its failure is an error that ends with its last words.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    run_with_input(command, &[])
}

/// Like [`run`], with input.
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    run_within(command, input, LIMIT)
}

/// Like [`run_with_input`]; killed after `limit`.
pub(crate) fn run_within(command: &mut Command, input: &[u8], limit: Duration) -> Result<String> {
    let output = output_within(command, input, limit)?;
    judge(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program to its end, whatever that is.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    output_within(command, &[], LIMIT)
}

fn output_within(command: &mut Command, input: &[u8], limit: Duration) -> Result<Output> {
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("{} could not be started", name(command)))?;
    let stdin = child.stdin.take();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // A program that ends before it has read all gives its reason by its exit status.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        let stdout = scope.spawn(move || read_all(stdout));
        let stderr = scope.spawn(move || read_all(stderr));
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                child.wait()?;
                bail!("{} was killed: it had not ended after {}", name(command), seconds(limit));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        let join = |reader: ScopedJoinHandle<'_, Vec<u8>>| reader.join().unwrap_or_default();
        Ok(Output { status, stdout: join(stdout), stderr: join(stderr) })
    })
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

fn judge(command: &Command, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout.as_slice(), b"\n", output.stderr.as_slice()].concat();
    let said = String::from_utf8_lossy(&said);
    bail!("{} ended with {}: {}", name(command), output.status, last_lines(&said, 12))
}

/// The last lines that say something.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n    ")
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let arguments: Vec<_> = command.get_args().take(4).map(OsStr::to_string_lossy).collect();
    format!("`{} {}`", program.to_string_lossy(), arguments.join(" "))
}

/// A program of this machine, to be completed. Places for administrators' programs need not be in `PATH`.
pub(crate) fn program(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| name.into()))
}

/// Where a program lies, looked for in `PATH` and the places for administrators' programs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join(program)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_the_program_and_its_last_words() {
        let error =
            run(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"])).unwrap_err().to_string();
        assert!(
            error.contains("`sh -c") && error.contains("exit status: 3") && error.contains("two"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_named() {
        let error =
            run_within(Command::new("sleep").arg("1000"), &[], Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("`sleep 1000` was killed"), "{error}");
    }

    #[test]
    fn input_larger_than_a_pipe_is_passed_whole() {
        let input = vec![b'x'; 1 << 20];
        assert_eq!(run_with_input(Command::new("wc").arg("-c"), &input).unwrap().trim(), "1048576");
    }
}
