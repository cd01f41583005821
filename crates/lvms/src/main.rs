//! lvms: Kubernetes storage from Linux LVM, in one binary.
//!
//! This crate wires: it parses the command line, reads the configuration and follows it ([`configuration`]), starts
//! what a role needs, and ends it in order. `lvms standalone` is a complete CSI driver without Kubernetes
//! ([`standalone`]): its volumes are those of this host ([`local`]), its only state is in LVM's metadata.

mod check;
mod configuration;
mod local;
mod metrics;
mod standalone;
mod status;
mod telemetry;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// Storage from Linux LVM.
#[derive(Parser)]
#[command(name = "lvms", version, about, long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// How log lines are written.
    #[arg(long, global = true, default_value = "text", value_name = "FORM")]
    log: LogForm,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogForm {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Serve volumes of this host by CSI on a unix socket, without Kubernetes.
    Standalone(standalone::Options),
    /// Say what is wrong with a configuration, and with this host for it.
    Check(check::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Command::Check(options) => check::run(options),
        Command::Standalone(options) => {
            log(arguments.log);
            standalone::run(options).map(|()| ExitCode::SUCCESS)
        }
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Log lines go to standard error; `LVMS_LOG` chooses, in the words of tracing's filters.
fn log(form: LogForm) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("LVMS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match form {
        LogForm::Text => lines.with_ansi(false).init(),
        LogForm::Json => lines.json().flatten_event(true).init(),
    }
}
