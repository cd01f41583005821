//! What is in the namespace, read once a second for all workers: kubectl costs more than what it reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::suites::stage::Stage;

/// What is there, by kind and name.
type Objects = BTreeMap<(String, String), Value>;

/// Reads it.
pub(super) struct Observer<'a> {
    stage: &'a Stage<'a>,
    /// What was there, and how often it was read.
    seen: Mutex<(u64, Objects)>,
}

impl<'a> Observer<'a> {
    pub(super) fn new(stage: &'a Stage<'a>) -> Observer<'a> {
        Observer { stage, seen: Mutex::default() }
    }

    /// Reads until it is over. While the API server is away, what was seen last stays.
    pub(super) fn run(&self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if let Ok(objects) = self.read() {
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

/// What was there at a moment.
pub(super) struct Seen<'a>(&'a Objects);

impl Seen<'_> {
    pub(super) fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.0.get(&(kind.to_owned(), name.to_owned()))
    }
}
