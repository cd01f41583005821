//! Runs programs for the lab.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use lab_protocol::agent::{Ended, FromGuest, PORT, READY, Run, ToGuest};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::Result;

pub(crate) fn forever() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    println!("{READY}");
    for connection in listener.incoming() {
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                eprintln!("lab-agent: {error}");
                continue;
            }
        };
        thread::spawn(move || {
            if let Err(error) = serve(connection) {
                eprintln!("lab-agent: {error}");
            }
        });
    }
    Ok(())
}

fn serve(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut requests = BufReader::new(connection.try_clone()?);
    let Some(ToGuest::Run(run)) = ToGuest::read(&mut requests)? else { return Ok(()) };
    match start(&run) {
        Ok(child) => attend(child, &run, requests, connection),
        Err(error) => FromGuest::Ended(Ended::NotStarted(error.to_string())).write(&mut connection),
    }
}

fn start(run: &Run) -> io::Result<Child> {
    let (program, arguments) =
        run.argv.split_first().ok_or_else(|| io::Error::other("no program was named"))?;
    Command::new(program)
        .args(arguments)
        .envs(run.env.iter().map(|(key, value)| (key, value)))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// What can happen while a program runs.
enum Event {
    Output(FromGuest),
    /// One of its two outputs is at its end.
    OutputEnd,
    Exited(io::Result<std::process::ExitStatus>),
    /// The lab is gone.
    Hangup,
}

fn attend(
    mut child: Child,
    run: &Run,
    requests: BufReader<TcpStream>,
    mut connection: TcpStream,
) -> io::Result<()> {
    let group = Pid::from_child(&child);
    let (events, happened) = channel();
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, FromGuest::Stdout, events.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, FromGuest::Stderr, events.clone());
    }
    let stdin = child.stdin.take();
    let hangup = events.clone();
    thread::spawn(move || {
        feed(requests, stdin);
        let _ = hangup.send(Event::Hangup);
    });
    thread::spawn(move || {
        let _ = events.send(Event::Exited(child.wait()));
    });
    let ended = follow(&happened, group, Duration::from_millis(run.limit_ms), &mut connection)?;
    FromGuest::Ended(ended).write(&mut connection)
}

/// Sends output on until the program has exited. Its outputs may stay open in a daemon that it left behind: they
/// are then read for a moment more, not for ever.
fn follow(
    happened: &Receiver<Event>,
    group: Pid,
    limit: Duration,
    connection: &mut TcpStream,
) -> io::Result<Ended> {
    const AFTERWARDS: Duration = Duration::from_millis(500);
    let kill = || {
        let _ = kill_process_group(group, Signal::KILL);
    };
    let mut deadline = Instant::now() + limit;
    let (mut ended, mut open, mut late) = (None, 2, false);
    loop {
        if open == 0
            && let Some(ended) = ended
        {
            return Ok(ended);
        }
        match happened.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Output(output)) => {
                if let Err(error) = output.write(connection) {
                    kill();
                    return Err(error);
                }
            }
            Ok(Event::OutputEnd) => open -= 1,
            Ok(Event::Hangup) => kill(),
            Ok(Event::Exited(status)) => {
                let status = status?;
                ended = Some(match (late, status.code(), status.signal()) {
                    (true, _, _) => Ended::TimedOut,
                    (false, Some(code), _) => Ended::Exited(code),
                    (false, None, signal) => Ended::Killed(signal.unwrap_or_default()),
                });
                deadline = Instant::now() + AFTERWARDS;
            }
            Err(RecvTimeoutError::Timeout) => match ended {
                Some(ended) => return Ok(ended),
                // Killed before, and still there: it waits uninterruptibly, in a driver.
                None if late => return Ok(Ended::TimedOut),
                None => {
                    late = true;
                    kill();
                    deadline = Instant::now() + Duration::from_secs(20);
                }
            },
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the program was lost")),
        }
    }
}

fn forward(mut output: impl Read + Send + 'static, wrap: fn(Vec<u8>) -> FromGuest, events: Sender<Event>) {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            if events.send(Event::Output(wrap(buffer[..count].to_vec()))).is_err() {
                return;
            }
        }
        let _ = events.send(Event::OutputEnd);
    });
}

/// Passes input on until the lab hangs up.
fn feed(mut requests: BufReader<TcpStream>, mut stdin: Option<ChildStdin>) {
    while let Ok(Some(request)) = ToGuest::read(&mut requests) {
        match request {
            ToGuest::Stdin(bytes) => {
                // A program may end without having read all of its input.
                if stdin.as_mut().is_some_and(|stdin| stdin.write_all(&bytes).is_err()) {
                    stdin = None;
                }
            }
            ToGuest::StdinEnd => stdin = None,
            ToGuest::Run(_) => return,
        }
    }
}
