//! What every role that serves needs: a runtime, figures and health, and a way to be told to end.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::{fmt, io};

use anyhow::{Context, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Where to serve figures, as TopoLVM's programs take it: `:8080` is that port of every address, `0` is nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    Nowhere,
    Everywhere(u16),
    At(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Address, String> {
        let wrong = || "write address:port, :port, or 0 for nowhere".to_owned();
        match (text, text.strip_prefix(':')) {
            ("" | "0", _) => Ok(Address::Nowhere),
            (_, Some(port)) => port.parse().map(Address::Everywhere).map_err(|_| wrong()),
            (text, None) => text.parse().map(Address::At).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Nowhere => out.write_str("0"),
            Address::Everywhere(port) => write!(out, ":{port}"),
            Address::At(address) => address.fmt(out),
        }
    }
}

impl Address {
    async fn listen(self) -> io::Result<Option<TcpListener>> {
        match self {
            Address::Nowhere => Ok(None),
            Address::At(address) => TcpListener::bind(address).await.map(Some),
            Address::Everywhere(port) => match listen_to_both(port) {
                // A host without IPv6.
                Err(error) if is_without(&error) => {
                    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map(Some)
                }
                listener => listener.map(Some),
            },
        }
    }
}

/// Listens at every address, of IPv4 too, whatever the host makes of that by itself: a cluster may have either.
fn listen_to_both(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(1024)
}

fn is_without(error: &io::Error) -> bool {
    let without = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL, Errno::NOPROTOOPT];
    without.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
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
    let listening = address.listen().await.with_context(|| format!("--metrics-bind-address {address}"))?;
    let Some(listener) = listening else { return Ok(()) };
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
        let parse = |text: &str| text.parse::<Address>();
        assert_eq!(parse(":8080"), Ok(Address::Everywhere(8080)));
        assert_eq!(parse("127.0.0.1:1"), Ok(Address::At(([127, 0, 0, 1], 1).into())));
        assert_eq!(parse("[::1]:1"), Ok(Address::At((Ipv6Addr::LOCALHOST, 1).into())));
        assert_eq!([parse("0"), parse("")], [Ok(Address::Nowhere), Ok(Address::Nowhere)]);
        for wrong in ["8080", ":", ":x", ":65536", "localhost:1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn everywhere_is_every_address_that_the_host_has() {
        let listener = Address::Everywhere(0).listen().await.unwrap().unwrap();
        let port = listener.local_addr().unwrap().port();
        let with_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok();
        let addresses = [Some(Ipv4Addr::LOCALHOST.into()), with_ipv6.then_some(Ipv6Addr::LOCALHOST.into())];
        for address in addresses.into_iter().flatten() {
            let address: std::net::IpAddr = address;
            tokio::net::TcpStream::connect((address, port)).await.unwrap();
        }
    }
}
