//! Every call gets a number, a context for its log lines, and is counted; the end waits for those that run.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tonic::codegen::http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use crate::metrics::Metrics;

/// An answer has reached its client, and one who was about to ask has asked, after this long.
const MOMENT: Duration = Duration::from_secs(1);

/// Wraps a service.
#[derive(Clone)]
pub struct Telemetry {
    metrics: Arc<Metrics>,
    /// How many calls run.
    running: Arc<watch::Sender<usize>>,
}

impl Telemetry {
    /// What counts calls.
    pub fn new(metrics: Arc<Metrics>) -> Telemetry {
        Telemetry { metrics, running: Arc::new(watch::Sender::new(0)) }
    }

    /// Two futures from one that ends when we are told to end: what a server stops with, and the end of all calls. A
    /// server waits for its clients to go, too; one that keeps a connection and asks nothing may never do so.
    pub fn ending<S: Future<Output = ()>>(
        &self,
        stop: S,
    ) -> (impl Future<Output = ()> + use<S>, impl Future<Output = ()> + use<S>) {
        let (tell, told) = oneshot::channel();
        let stopped = async move {
            stop.await;
            let _ = tell.send(());
        };
        let mut running = self.running.subscribe();
        let all_ended = async move {
            // Without a word the server has ended by itself, and says why.
            if told.await.is_err() {
                return std::future::pending().await;
            }
            tokio::time::sleep(MOMENT).await;
            let _ = running.wait_for(|running| *running == 0).await;
            tokio::time::sleep(MOMENT).await;
        };
        (stopped, all_ended)
    }
}

impl<S> Layer<S> for Telemetry {
    type Service = Told<S>;

    fn layer(&self, inner: S) -> Told<S> {
        Told { inner, telemetry: self.clone() }
    }
}

/// A service whose calls are told.
#[derive(Clone)]
pub struct Told<S> {
    inner: S,
    telemetry: Telemetry,
}

/// A call that runs.
struct Running(Arc<watch::Sender<usize>>);

impl Running {
    fn begin(running: &Arc<watch::Sender<usize>>) -> Running {
        running.send_modify(|running| *running += 1);
        Running(Arc::clone(running))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

impl<S, B, R> Service<Request<B>> for Told<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send,
    R: Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let span = tracing::info_span!(
            "call",
            method,
            request = number,
            volume = tracing::field::Empty,
            claim = tracing::field::Empty,
            called = tracing::field::Empty
        );
        let (began, metrics) = (Instant::now(), Arc::clone(&self.telemetry.metrics));
        let running = Running::begin(&self.telemetry.running);
        let answer = self.inner.call(request);
        let told = async move {
            let _running = running;
            let answer = answer.await;
            let code = answer.as_ref().ok().and_then(|answer| answer.headers().get("grpc-status"));
            let code = code.and_then(|code| code.to_str().ok()).unwrap_or("0").to_owned();
            let reason = answer.as_ref().ok().and_then(|answer| answer.headers().get("grpc-message"));
            let reason = reason.map(|reason| readable(reason.as_bytes())).unwrap_or_default();
            let took = began.elapsed();
            metrics.call(&method, &code, took);
            // Callers probe and measure all the time: what only looks is told only to those who ask.
            let quiet = method.contains("Get")
                || method.contains("List")
                || matches!(method.as_str(), "Probe" | "Check");
            let milliseconds = took.as_millis();
            match code.as_str() {
                "0" if quiet => tracing::debug!(milliseconds, "done"),
                "0" => tracing::info!(milliseconds, "done"),
                code => tracing::warn!(code, milliseconds, reason, "refused"),
            }
            answer
        };
        Box::pin(told.instrument(span))
    }
}

/// A message as it was before gRPC wrote special characters as `%` and two digits.
fn readable(message: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(message.len());
    let mut rest = message;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        let digits =
            tail.get(..2).filter(|_| *byte == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &tail[2..];
            }
            None => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_calls_that_run_and_for_nobody_else() {
        let telemetry = Telemetry::new(Arc::new(Metrics::new("here")));
        let call = Running::begin(&telemetry.running);
        let (stopped, all_ended) = telemetry.ending(async {});
        let mut all_ended = std::pin::pin!(all_ended);
        let long = Duration::from_secs(3600);
        assert!(tokio::time::timeout(long, &mut all_ended).await.is_err(), "nobody was told to end");
        stopped.await;
        assert!(tokio::time::timeout(long, &mut all_ended).await.is_err(), "a call runs");
        drop(call);
        all_ended.await;
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        assert_eq!(readable(b"name%3A is %22%C3%A4%22, 5% of it %"), "name: is \"ä\", 5% of it %");
    }
}
