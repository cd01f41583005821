//! What is in the namespace, read once a second for all workers: kubectl costs more than what it reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::suites::stage::Stage;

/// What is there, by kind and name.
type Objects = BTreeMap<(String, String), Value>;

/// Reads it.
pub(super) struct Observer<'a> {
    stage: &'a Stage<'a>,
    /// What was there, and how often it was read.
    seen: Mutex<(u64, Objects)>,
    reminders: AtomicUsize,
}

/// So many reads after which Kubernetes has forgotten a claim.
const FORGOTTEN: u32 = 90;

impl<'a> Observer<'a> {
    pub(super) fn new(stage: &'a Stage<'a>) -> Observer<'a> {
        Observer { stage, seen: Mutex::default(), reminders: AtomicUsize::new(0) }
    }

    /// Reads until it is over. While the API server is away, what was seen last stays.
    pub(super) fn run(&self, over: &AtomicBool) {
        let mut unused = BTreeMap::new();
        while !over.load(Ordering::Relaxed) {
            if let Ok(objects) = self.read() {
                self.remind(&objects, &mut unused);
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                *seen = (seen.0 + 1, objects);
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn read(&self) -> Result<Objects> {
        let text = self.stage.kubectl(&["get", "pods,pvc,volumesnapshots", "--output=json"])?;
        let list: Value = serde_json::from_str(&text)?;
        let objects = list["items"].as_array().context("a list has items")?.iter().filter_map(|object| {
            let kind = object["kind"].as_str()?.to_owned();
            Some(((kind, object["metadata"]["name"].as_str()?.to_owned()), object.clone()))
        });
        Ok(objects.collect())
    }

    /// Kubernetes' own controller keeps a deleted claim as long as a pod uses it, and looks at it again when it is told
    /// that the pod is gone. It is not told of a pod that came and went while it waited to watch pods again, which can
    /// take a minute after the API server is back; then it has to be told of the claim once more. `unused` counts how
    /// often each claim was seen so.
    fn remind(&self, objects: &Objects, unused: &mut BTreeMap<String, u32>) {
        let now: Vec<String> = unused_claims(objects).map(str::to_owned).collect();
        unused.retain(|claim, _| now.contains(claim));
        for claim in now {
            let seen = unused.entry(claim.clone()).or_default();
            *seen += 1;
            let reminder = format!("reminder={seen}");
            if seen.is_multiple_of(FORGOTTEN)
                && self.stage.kubectl(&["annotate", "--overwrite", "pvc", &claim, &reminder]).is_ok()
            {
                self.reminders.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How often Kubernetes had to be reminded of a claim.
    pub(super) fn reminders(&self) -> usize {
        self.reminders.load(Ordering::Relaxed)
    }

    /// Waits until what is there, read after now, shows something.
    pub(super) fn wait_for<T>(
        &self,
        what: &str,
        mut shown: impl FnMut(&Seen<'_>) -> Result<Option<T>>,
    ) -> Result<T> {
        // What is read at this moment may have been asked for before.
        let after = self.seen.lock().unwrap_or_else(PoisonError::into_inner).0 + 1;
        let mut found = None;
        self.stage.cluster.wait_for(what, || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.0 > after {
                found = shown(&Seen(&seen.1)).transpose();
            }
            Ok(found.is_some())
        })?;
        found.context("it was shown")?
    }
}

/// Deleted claims that nobody but Kubernetes keeps, though no pod uses them.
fn unused_claims(objects: &Objects) -> impl Iterator<Item = &str> {
    let used = |claim: &str| {
        objects.iter().filter(|((kind, _), _)| kind == "Pod").any(|(_, pod)| {
            let volumes = pod["spec"]["volumes"].as_array();
            volumes.into_iter().flatten().any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim)
        })
    };
    let claims = objects.iter().filter(|((kind, _), _)| kind == "PersistentVolumeClaim");
    let kept = claims.filter(|(_, claim)| {
        let metadata = &claim["metadata"];
        metadata["deletionTimestamp"].is_string()
            && metadata["finalizers"] == json!(["kubernetes.io/pvc-protection"])
    });
    kept.map(|((_, name), _)| name.as_str()).filter(move |name| !used(name))
}

/// What was there at a moment.
pub(super) struct Seen<'a>(&'a Objects);

impl Seen<'_> {
    pub(super) fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.0.get(&(kind.to_owned(), name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_claim_that_only_kubernetes_keeps_and_no_pod_uses_is_unused() {
        let claim = |name: &str, deleted: bool, finalizers: &[&str]| {
            let deleted = deleted.then_some("2026-01-01T00:00:00Z");
            let metadata = json!({"deletionTimestamp": deleted, "finalizers": finalizers});
            (("PersistentVolumeClaim".to_owned(), name.to_owned()), json!({ "metadata": metadata }))
        };
        let protection = "kubernetes.io/pvc-protection";
        let pod = json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "used"}}]}});
        let objects = Objects::from([
            claim("forgotten", true, &[protection]),
            claim("lives", false, &[protection]),
            claim("ours", true, &[protection, "ours"]),
            claim("used", true, &[protection]),
            (("Pod".to_owned(), "pod".to_owned()), pod),
        ]);
        assert_eq!(unused_claims(&objects).collect::<Vec<_>>(), ["forgotten"]);
    }
}
