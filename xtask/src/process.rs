//! Running programs of this machine.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program to its end and returns what it printed. Its failure is an error that ends with its last words.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = output(command.stdin(Stdio::null()))?;
    judge(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Like [`run`], with input.
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| name(command))?;
    let mut stdin = child.stdin.take().context("a piped child has an input")?;
    let output = std::thread::scope(|scope| {
        // A program that ends before it has read all gives its reason by its exit status.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output()
    })?;
    judge(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program to its end, whatever that is.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("{} could not be started", name(command)))
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
    fn input_larger_than_a_pipe_is_passed_whole() {
        let input = vec![b'x'; 1 << 20];
        assert_eq!(run_with_input(Command::new("wc").arg("-c"), &input).unwrap().trim(), "1048576");
    }
}
