//! lvms: Kubernetes storage from Linux LVM, in one binary.
//!
//! This crate wires: it parses the command line, opens the host ([`host`]), starts what a role needs, and ends it in
//! order. `lvms standalone` is a complete CSI driver without Kubernetes ([`standalone`]): its volumes are those of this
//! host ([`local`]), its only state is in LVM's metadata. `lvms vgmanager` ([`vgmanager`]) is one node of a
//! cluster, `lvms operator` ([`operator`]) what a cluster has once, and
//! `lvms single-node` ([`single_node`]) both in one process.

mod before_rollback;
mod check;
mod cluster;
mod host;
mod leave;
mod local;
mod operator;
mod serving;
mod single_node;
mod standalone;
mod vgmanager;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tracing::Level;

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
    /// Be the part of a Kubernetes cluster that is there once: claims become volumes, and volumes go.
    Operator(operator::Options),
    /// Be one node of a Kubernetes cluster: its volumes, its kubelet's driver, its capacity.
    Vgmanager(vgmanager::Options),
    /// Be all of a Kubernetes cluster with one node: what it has once, and its node.
    SingleNode(single_node::Options),
    /// Say what is wrong with a configuration, and with this host for it.
    Check(check::Options),
    /// Take this node's driver out of its kubelet, so that another can take its place, and wait to be ended.
    Leave(leave::Options),
    /// List what TopoLVM could not go on with, before it is put back in the place of lvms.
    BeforeRollback(before_rollback::Options),
    /// Print the CustomResourceDefinitions, for `kubectl apply --server-side -f -`.
    Crd(cluster::Name),
}

fn main() -> ExitCode {
    lvms_host::runner::share_one_heap();
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Command::Check(options) => check::run(options),
        Command::BeforeRollback(options) => before_rollback::run(options),
        Command::Crd(name) => {
            print!("{}", lvms_api::definitions::all(name.personality()));
            Ok(ExitCode::SUCCESS)
        }
        Command::Leave(options) => {
            log(arguments.log);
            leave::run(options).map(|()| ExitCode::SUCCESS)
        }
        Command::Standalone(options) => {
            log(arguments.log);
            standalone::run(options).map(|()| ExitCode::SUCCESS)
        }
        Command::Operator(options) => {
            log(arguments.log);
            operator::run(options).map(|()| ExitCode::SUCCESS)
        }
        Command::SingleNode(options) => {
            log(arguments.log);
            single_node::run(options).map(|()| ExitCode::SUCCESS)
        }
        Command::Vgmanager(options) => {
            log(arguments.log);
            vgmanager::run(options).map(|()| ExitCode::SUCCESS)
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

/// Log lines go to standard error; `LVMS_LOG` chooses, as in `info,lvms_host=debug`.
fn log(form: LogForm) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::prelude::*;
    let chosen = std::env::var("LVMS_LOG").ok().and_then(|chosen| chosen.parse::<Targets>().ok());
    // The Kubernetes client writes whole answers into the log that it cannot read, and each failure that we tell of.
    let filter = chosen.unwrap_or_else(|| {
        Targets::new().with_default(Level::INFO).with_target("kube_client", LevelFilter::OFF)
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry();
    match form {
        LogForm::Text => registry.with(lines.with_ansi(false).with_filter(filter)).init(),
        LogForm::Json => registry.with(lines.json().flatten_event(true).with_filter(filter)).init(),
    }
}
