//! What a test binary does when it is started.

use std::process::ExitCode;

use lab_protocol::needs::{Listed, Needs, Start};

use crate::{Lab, Result};

/// One test.
pub struct Test {
    /// Its name, a sentence with underscores.
    pub name: &'static str,
    /// What it needs.
    pub needs: fn() -> Needs,
    /// What it does.
    pub body: fn(&Lab) -> Result,
}

/// Lists the tests (`--lab-list`), runs one of them (`--lab-run <json>`), or says how they are run.
pub fn main(tests: &[Test]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--lab-list"] => list(tests),
        ["--lab-run", start] => run(tests, start),
        _ => {
            println!("{} tests here run in a guest, with: cargo xtask test host", tests.len());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn list(tests: &[Test]) -> Result {
    let listed = tests.iter().map(|test| Listed { name: test.name.to_owned(), needs: (test.needs)() });
    println!("{}", serde_json::to_string(&listed.collect::<Vec<_>>())?);
    Ok(())
}

fn run(tests: &[Test], start: &str) -> Result {
    let start: Start = serde_json::from_str(start)?;
    let test = tests.iter().find(|test| test.name == start.name);
    let test = test.ok_or_else(|| format!("no test is called {}", start.name))?;
    (test.body)(&Lab::new(start)?)
}
