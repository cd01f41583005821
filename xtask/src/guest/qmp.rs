//! QEMU's monitor: JSON over a unix socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Every command is answered within this time, or QEMU hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A connection to a running QEMU.
pub(crate) struct Qmp {
    input: BufReader<UnixStream>,
    output: UnixStream,
    /// Events that arrived while an answer was awaited.
    events: Vec<Value>,
}

impl Qmp {
    /// Connects, as soon as QEMU listens.
    pub(crate) fn connect(socket: &Path) -> Result<Qmp> {
        let deadline = Instant::now() + LIMIT;
        let output = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => return Err(error).context("QEMU's monitor"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        output.set_read_timeout(Some(LIMIT))?;
        let mut qmp = Qmp { input: BufReader::new(output.try_clone()?), output, events: Vec::new() };
        qmp.next()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command of the monitor.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut line = serde_json::to_vec(&json!({"execute": command, "arguments": arguments}))?;
        line.push(b'\n');
        self.output.write_all(&line)?;
        loop {
            let mut message = self.next()?;
            if let Some(error) = message.get("error") {
                bail!("QEMU refused {command}: {}", error["desc"].as_str().unwrap_or("no reason given"));
            }
            match message.get_mut("return") {
                Some(answer) => return Ok(answer.take()),
                None => self.events.push(message),
            }
        }
    }

    /// Waits for the event that a device is gone.
    pub(crate) fn await_deleted(&mut self, device: &str) -> Result<()> {
        let is_it = |event: &Value| event["event"] == "DEVICE_DELETED" && event["data"]["device"] == device;
        loop {
            if let Some(position) = self.events.iter().position(is_it) {
                self.events.remove(position);
                return Ok(());
            }
            let message = self.next().with_context(|| format!("{device} was not released"))?;
            self.events.push(message);
        }
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.input.read_line(&mut line).context("QEMU's monitor does not answer")? == 0 {
            bail!("QEMU has ended");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
