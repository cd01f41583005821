//! What every role that serves needs: a runtime, figures and health, and a way to be told to end.

use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Where to serve figures, as TopoLVM's programs take it: `:8080` is that port of every address, `0` is nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(Option<SocketAddr>);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Address, String> {
        let address = match text {
            "" | "0" => return Ok(Address(None)),
            text if text.starts_with(':') => format!("0.0.0.0{text}"),
            text => text.to_owned(),
        };
        let parsed = address.parse().map_err(|_| "write address:port, :port, or 0 for nowhere".to_owned())?;
        Ok(Address(Some(parsed)))
    }
}

/// One thread serves, others block: a host with many processors must not cost many threads.
pub(crate) fn runtime() -> Result<Runtime> {
    /// Each volume may have one that waits for a group or a disk, and none of them may keep the others from theirs. A
    /// node has no more volumes in use, and a thread that is not needed ends.
    const BLOCKING: usize = 1024;
    Ok(tokio::runtime::Builder::new_current_thread().max_blocking_threads(BLOCKING).enable_all().build()?)
}

/// Serves figures, and whether we are ready, at an address.
pub(crate) async fn health(
    address: Address,
    ready: impl Fn() -> bool + Clone + Send + Sync + 'static,
    figures: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Result<()> {
    let Address(Some(address)) = address else { return Ok(()) };
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("--metrics-bind-address {address}"))?;
    let text = move || {
        let figures = figures.clone();
        async move { tokio::task::spawn_blocking(figures).await.unwrap_or_default() }
    };
    let readiness = move || {
        let ready = ready();
        async move { if ready { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "not yet") } }
    };
    let router = Router::new()
        .route("/metrics", get(text))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readiness));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

/// Waits until we are told to end.
pub(crate) async fn told_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be received");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("told to end");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_in_topolvm() {
        let parse = |text: &str| text.parse::<Address>().map(|address| address.0.map(|at| at.to_string()));
        assert_eq!(parse(":8080"), Ok(Some("0.0.0.0:8080".to_owned())));
        assert_eq!(parse("127.0.0.1:1"), Ok(Some("127.0.0.1:1".to_owned())));
        assert_eq!(parse("[::1]:1"), Ok(Some("[::1]:1".to_owned())));
        assert_eq!(parse("0"), Ok(None));
        assert!(parse("8080").is_err());
    }
}
