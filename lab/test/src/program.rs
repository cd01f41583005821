//! Programs that a test starts. A failure carries what the program said.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::Result;

/// Runs a program that must succeed, and returns what it printed, without white space around.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Result<String> {
    run_with_input(program, arguments, &[])
}

/// Like [`run`], with input.
pub fn run_with_input<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
    input: &[u8],
) -> Result<String> {
    let (words, output) = start(program, arguments, input)?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{words}` ended with {}: {}", output.status, complaint.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a program that must fail, and returns what it complained.
pub fn fails<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Result<String> {
    let (words, output) = start(program, arguments, &[])?;
    if output.status.success() {
        return Err(format!("`{words}` succeeded and should not have").into());
    }
    Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn start<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
    input: &[u8],
) -> Result<(String, Output)> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C");
    let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let words = format!("{program} {}", words.join(" "));
    println!("# {words}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("`{words}` could not be started: {error}"))?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program may end without reading; its exit status tells.
            let _ = stdin.map(|mut stdin| stdin.write_all(input));
        });
        child.wait_with_output()
    })?;
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((words, output))
}
