//! Who of several is the leader: a Lease, as client-go keeps it.
//!
//! Clocks of others are not trusted: a lease has run out when it was not seen to change for as long as it lasts.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::store::chain;
use crate::write::{self, Created, is_conflict, is_not_found};

/// How long a lease lasts, and how it is kept.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Who has not renewed it for so long has lost it.
    pub duration: Duration,
    /// Who could not renew it for so long gives it up.
    pub renew_deadline: Duration,
    /// So often it is renewed.
    pub renew: Duration,
    /// So often it is tried to be had.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            renew: Duration::from_secs(2),
            retry: Duration::from_secs(2),
        }
    }
}

/// One of those who want to lead.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    timing: Timing,
    seen: Option<Seen>,
    /// Why the last attempt failed, if it did.
    trouble: Option<String>,
}

/// A state of the lease, and since when it is known.
struct Seen {
    version: Option<String>,
    since: Instant,
}

/// What to do about a lease.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is ours: renew it.
    Renew,
    /// It is free, or has run out: take it.
    Take,
    /// Somebody else has it.
    Wait,
}

impl Candidate {
    /// For the lease of this name. The identity must be that of nobody else.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str, timing: Timing) -> Candidate {
        Candidate {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            timing,
            seen: None,
            trouble: None,
        }
    }

    /// Leads whenever it can: `act` runs while the lease is ours and is dropped when it is not. Ends when `stop` does,
    /// and says whether the lease is ours then: it is for the caller to give it up.
    pub async fn lead<Act: Future<Output = ()>>(
        &mut self,
        stop: impl Future<Output = ()>,
        act: impl Fn() -> Act,
    ) -> bool {
        let mut stop = std::pin::pin!(stop);
        loop {
            let since = tokio::select! {
                since = self.acquire() => since,
                () = &mut stop => return false,
            };
            tracing::info!(lease = self.name, identity = self.identity, "leads");
            let stopped = tokio::select! {
                () = act() => false,
                () = self.keep(since) => false,
                () = &mut stop => true,
            };
            if stopped {
                return true;
            }
            tracing::warn!(lease = self.name, identity = self.identity, "does not lead any more");
        }
    }

    /// Since when it is ours, at the earliest: others count from what the API had then, whenever its answer came.
    async fn acquire(&mut self) -> Instant {
        loop {
            let began = Instant::now();
            if self.attempt(self.timing.renew_deadline).await {
                return began;
            }
            tokio::time::sleep(self.timing.retry).await;
        }
    }

    /// Ends when the lease is lost.
    async fn keep(&mut self, mut renewed: Instant) {
        let mut pause = self.timing.renew;
        loop {
            let left = |renewed: Instant| self.timing.renew_deadline.saturating_sub(renewed.elapsed());
            tokio::time::sleep(pause.min(left(renewed))).await;
            let (began, left) = (Instant::now(), left(renewed));
            if self.attempt(left).await {
                renewed = began;
                pause = self.timing.renew;
            } else if renewed.elapsed() >= self.timing.renew_deadline {
                return;
            } else {
                pause = self.timing.retry;
            }
        }
    }

    /// Tries to have the lease, or to renew it, for so long. Says whether it is ours.
    async fn attempt(&mut self, limit: Duration) -> bool {
        let (ours, trouble) = match timeout(limit, self.try_once()).await {
            Ok(Ok(ours)) => (ours, None),
            Ok(Err(error)) if is_conflict(&error) => (false, None),
            Ok(Err(error)) => (false, Some(chain(&error))),
            Err(_) => (false, Some("the API does not answer".to_owned())),
        };
        // Told once, however long it lasts.
        if trouble != self.trouble {
            match &trouble {
                Some(error) => tracing::warn!(lease = self.name, error, "the lease cannot be had"),
                None => tracing::info!(lease = self.name, "the API answers about the lease again"),
            }
            self.trouble = trouble;
        }
        ours
    }

    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        let present = match self.api.get(&self.name).await {
            Ok(present) => present,
            Err(error) if is_not_found(&error) => {
                let lease = Lease { metadata: self.metadata(), spec: Some(self.held(None)) };
                return match write::create(&self.api, &json!(lease)).await? {
                    Created::Now(created) => {
                        self.see(&created);
                        Ok(true)
                    }
                    Created::AlreadyThere => Ok(false),
                };
            }
            Err(error) => return Err(error),
        };
        self.see(&present);
        let since = self.seen.as_ref().map_or(Duration::ZERO, |seen| seen.since.elapsed());
        match judge(present.spec.as_ref(), &self.identity, since) {
            Verdict::Wait => Ok(false),
            Verdict::Renew | Verdict::Take => {
                let mut lease = present;
                lease.spec = Some(self.held(lease.spec.as_ref()));
                // The version in it makes this fail if somebody else was quicker.
                let written = write::replace(&self.api, &self.name, &lease).await?;
                self.see(&written);
                Ok(true)
            }
        }
    }

    fn metadata(&self) -> ObjectMeta {
        ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() }
    }

    fn see(&mut self, lease: &Lease) {
        let version = &lease.metadata.resource_version;
        if self.seen.as_ref().is_none_or(|seen| seen.version != *version) {
            self.seen = Some(Seen { version: version.clone(), since: Instant::now() });
        }
    }

    /// The lease as ours.
    fn held(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        let before = before.cloned().unwrap_or_default();
        let ours = before.holder_identity.as_deref() == Some(&self.identity);
        let transitions = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.timing.duration.as_secs()).ok(),
            acquire_time: if ours { before.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
            ..before
        }
    }

    /// Gives it up, so that another need not wait.
    pub async fn release(&self) {
        let released = async {
            let mut lease = self.api.get(&self.name).await?;
            let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(&self.identity) {
                return Ok(());
            }
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            write::replace(&self.api, &self.name, &lease).await.map(drop)
        };
        match timeout(self.timing.retry, released).await {
            Ok(Ok(())) => tracing::info!(lease = self.name, "the lease is given up"),
            Ok(Err(error)) => tracing::warn!(error = %chain(&error), "the lease could not be given up"),
            Err(_) => tracing::warn!("the lease could not be given up: the API does not answer"),
        }
    }
}

/// What to do about a lease that has been as it is for so long.
fn judge(lease: Option<&LeaseSpec>, identity: &str, unchanged: Duration) -> Verdict {
    let Some(lease) = lease else { return Verdict::Take };
    match lease.holder_identity.as_deref() {
        None | Some("") => Verdict::Take,
        Some(holder) if holder == identity => Verdict::Renew,
        Some(_) => {
            let lasts = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let lasts = Duration::from_secs(lasts.unwrap_or(Timing::default().duration.as_secs()));
            if unchanged > lasts { Verdict::Take } else { Verdict::Wait }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_lease_is_taken_only_when_it_was_seen_unchanged_for_as_long_as_it_lasts() {
        let of = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(20),
            // The holder's clock is an hour behind; nobody looks at it.
            renew_time: Some(MicroTime(jiff::Timestamp::now() - jiff::SignedDuration::from_hours(1))),
            ..LeaseSpec::default()
        };
        let seconds = Duration::from_secs;
        assert_eq!(judge(None, "me", seconds(0)), Verdict::Take);
        assert_eq!(judge(Some(&of("")), "me", seconds(0)), Verdict::Take);
        assert_eq!(judge(Some(&of("me")), "me", seconds(100)), Verdict::Renew);
        assert_eq!(judge(Some(&of("other")), "me", seconds(0)), Verdict::Wait);
        assert_eq!(judge(Some(&of("other")), "me", seconds(20)), Verdict::Wait);
        assert_eq!(judge(Some(&of("other")), "me", seconds(21)), Verdict::Take);
        let endless = LeaseSpec { lease_duration_seconds: None, ..of("other") };
        assert_eq!(judge(Some(&endless), "me", seconds(14)), Verdict::Wait);
        assert_eq!(judge(Some(&endless), "me", seconds(16)), Verdict::Take);
    }

    /// An API that takes a while for so many answers, and gives no more. It notes when it was asked.
    fn dying(answers: usize, asked: &Arc<Mutex<Vec<Instant>>>) -> Client {
        let asked = Arc::clone(asked);
        let lease = move |_: http::Request<kube::client::Body>| {
            let mut asked = asked.lock().unwrap();
            asked.push(Instant::now());
            let takes = Duration::from_millis(if asked.len() > answers { 60_000 } else { 1500 });
            async move {
                tokio::time::sleep(takes).await;
                let spec = json!({"holderIdentity": "me"});
                let lease = json!({"metadata": {"name": "l", "resourceVersion": "1"}, "spec": spec});
                let body = kube::client::Body::from(lease.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            }
        };
        Client::new(tower::service_fn(lease), "ns")
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_given_up_before_others_may_take_it_however_late_its_answers_come() {
        let (timing, asked) = (Timing::default(), Arc::default());
        // Each time it is read and then written; it is had and renewed once.
        let mut candidate = Candidate::new(dying(4, &asked), "ns", "l", "me", timing);
        let since = candidate.acquire().await;
        assert_eq!(since, asked.lock().unwrap()[0], "nobody knows when in that time it was written");
        candidate.keep(since).await;
        let renewed = asked.lock().unwrap()[2];
        assert!(renewed.elapsed() <= timing.renew_deadline, "{:?}", renewed.elapsed());
    }
}
