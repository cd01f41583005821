//! One call at a time on one volume. A second one waits until its own deadline and is then told that the first is busy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tonic::metadata::MetadataMap;
use tracing::Instrument;

use crate::error::{Error, Kind};

/// Locks by name. A name that nobody holds or waits for costs nothing.
#[derive(Debug, Default)]
pub struct Locks {
    names: Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>>,
}

/// A held lock.
#[derive(Debug)]
pub struct Held {
    _guard: OwnedMutexGuard<()>,
}

/// A caller that names no deadline waits no longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

impl Locks {
    /// Waits for a name.
    pub async fn hold(&self, name: &str, deadline: Instant) -> Result<Held, Error> {
        let lock = {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            names.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(names.entry(name.to_owned()).or_default())
        };
        match tokio::time::timeout_at(deadline.into(), lock.lock_owned()).await {
            Ok(guard) => Ok(Held { _guard: guard }),
            Err(_) => Err(Error::new(Kind::Busy, format!("another call is busy with {name}"))),
        }
    }
}

impl Held {
    /// Does the work to its end though the caller may leave, and holds the lock until then: a dropped call must not let
    /// a second one in while the first still works.
    pub async fn to_the_end<T: Send + 'static>(
        self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let held = async move {
            let done = work.await;
            drop(self);
            done
        };
        let ended = tokio::spawn(held.in_current_span()).await;
        ended.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the call panicked: the log says more")))
    }
}

/// When the caller gives up. A little earlier, so that the answer reaches it.
pub fn deadline(metadata: &MetadataMap) -> Instant {
    let asked = metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse_timeout);
    let patience = asked.unwrap_or(PATIENCE).min(Duration::from_secs(24 * 3600));
    Instant::now() + patience.saturating_sub(patience / 20)
}

/// At most eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_second_call_on_a_volume_waits_and_one_on_another_does_not() {
        runtime().block_on(async {
            let locks = Locks::default();
            let soon = || Instant::now() + Duration::from_millis(20);
            let held = locks.hold("a", soon()).await.unwrap();
            assert_eq!(locks.hold("a", soon()).await.unwrap_err().kind, Kind::Busy);
            drop(locks.hold("b", soon()).await.unwrap());
            drop(held);
            drop(locks.hold("a", soon()).await.unwrap());
            drop(locks.hold("c", soon()).await.unwrap());
            assert!(locks.names.lock().unwrap().len() <= 1, "names that nobody holds are forgotten");
        });
    }

    #[test]
    fn a_caller_that_leaves_does_not_let_a_second_one_in() {
        runtime().block_on(async {
            let locks = Locks::default();
            let soon = || Instant::now() + Duration::from_millis(50);
            let (finish, finished) = tokio::sync::oneshot::channel::<()>();
            let held = locks.hold("a", soon()).await.unwrap();
            let call = held.to_the_end(async move {
                finished.await.unwrap();
                Ok(())
            });
            // The caller waits for a moment and leaves; the work goes on.
            assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
            assert_eq!(locks.hold("a", soon()).await.unwrap_err().kind, Kind::Busy);
            finish.send(()).unwrap();
            drop(locks.hold("a", Instant::now() + Duration::from_secs(60)).await.unwrap());
        });
    }

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(parse_timeout("10S"), Some(Duration::from_secs(10)));
        assert_eq!(parse_timeout("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for text in ["", "S", "1", "1x", "-1S", "123456789S", "é", "+1S"] {
            assert_eq!(parse_timeout(text), None, "{text:?}");
        }
    }
    proptest! {
        #[test]
        fn no_timeout_makes_reading_panic(text in "\\PC{0,12}|[-+0-9]{0,9}[HMSmun]?") {
            let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).unwrap_or_default();
            let is_one = (1..=8).contains(&digits.len())
                && digits.bytes().all(|digit| digit.is_ascii_digit())
                && "HMSmun".contains(unit);
            prop_assert_eq!(parse_timeout(&text).is_some(), is_one);
        }

        #[test]
        fn a_timeout_is_as_long_as_it_says(number in 0u64..100_000_000, unit in 0usize..6) {
            let (unit, nanoseconds) = [
                ('H', 3_600_000_000_000), ('M', 60_000_000_000), ('S', 1_000_000_000), ('m', 1_000_000), ('u', 1_000), ('n', 1u128),
            ][unit];
            let read = parse_timeout(&format!("{number}{unit}")).unwrap();
            prop_assert_eq!(read.as_nanos(), u128::from(number) * nanoseconds);
        }
    }
}
