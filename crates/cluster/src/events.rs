//! What people see in `kubectl describe`. What is said again is counted and not written anew.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::slim::Event;
use crate::store::chain;
use crate::work::Outcome;
use crate::write::{self, is_not_found, passes};

/// The object that something is said about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

impl Reference {
    /// To an object of a kind.
    pub fn to<K: Resource>(object: &K, kind: &K::DynamicType) -> Reference {
        let metadata = object.meta();
        Reference {
            api_version: K::api_version(kind).into_owned(),
            kind: K::kind(kind).into_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    about: Reference,
    warning: bool,
    reason: &'static str,
    message: String,
}

/// Says things about objects. Never waits and never fails: what cannot be said is in the log.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Said>,
}

/// So much can wait to be said while the API is slow.
const WAITING: usize = 200;

/// Whoever has much to say waits until there is room for so much: what others have to say finds some.
const ROOM: usize = 100;

/// So many are remembered, to be counted if they are said again.
const REMEMBERED: usize = 1000;

/// What was said so recently is not said again.
const RECENTLY: Duration = Duration::from_secs(600);

/// So many are written at once, and then one each time this has passed: a thousand volumes may be in trouble for days.
const BURST: u32 = 50;
const ONE_IN: Duration = Duration::from_millis(500);

/// So often it is tried to write one that the API does not take now.
const ATTEMPTS: u32 = 3;

/// Longer texts are refused by the API.
const LONGEST: usize = 1000;

impl Events {
    /// In the name of a component, as `kubectl describe` shows it under From.
    pub fn new(client: Client, component: &str, host: &str) -> Events {
        let (sender, receiver) = mpsc::channel(WAITING);
        let speaker = Speaker {
            client,
            component: component.to_owned(),
            host: host.to_owned(),
            remembered: Remembered::default(),
            pace: Pace { until: Instant::now() },
        };
        tokio::spawn(speaker.run(receiver));
        Events { sender }
    }

    /// Says that something went as it should.
    pub fn normal(&self, about: Reference, reason: &'static str, message: impl Into<String>) {
        self.say(about, false, reason, message.into());
    }

    /// Says that something is wrong.
    pub fn warn(&self, about: Reference, reason: &'static str, message: impl Into<String>) {
        self.say(about, true, reason, message.into());
    }

    /// Whether much more can be said now, and be written.
    pub fn has_room(&self) -> bool {
        self.sender.capacity() >= ROOM
    }

    fn say(&self, about: Reference, warning: bool, reason: &'static str, mut message: String) {
        if message.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        let said = Said { about, warning, reason, message };
        let Reference { kind, name, .. } = &said.about;
        // Only what has one has the field.
        let namespace = Some(&said.about.namespace).filter(|namespace| !namespace.is_empty());
        if warning {
            tracing::warn!(kind, namespace, name, reason, "{}", said.message);
        } else {
            tracing::info!(kind, namespace, name, reason, "{}", said.message);
        }
        if self.sender.try_send(said).is_err() {
            tracing::debug!("too many events wait: one is in the log only");
        }
    }
}

struct Speaker {
    client: Client,
    component: String,
    host: String,
    remembered: Remembered,
    pace: Pace,
}

/// What was said.
#[derive(Default)]
struct Remembered(BTreeMap<Said, Memory>);

struct Memory {
    /// The event's name.
    name: String,
    count: i32,
    when: Instant,
}

impl Remembered {
    /// Whether something was said so recently that it need not be said again.
    fn is_recent(&self, said: &Said) -> bool {
        self.0.get(said).is_some_and(|memory| memory.when.elapsed() < RECENTLY)
    }

    /// It was said, as an event of this name, so many times by now.
    fn remember(&mut self, said: Said, name: String, count: i32) {
        self.0.insert(said, Memory { name, count, when: Instant::now() });
        if self.0.len() > REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, memory)| memory.when);
            if let Some(oldest) = oldest.map(|(said, _)| said.clone()) {
                self.0.remove(&oldest);
            }
        }
    }
}

/// How fast is written.
struct Pace {
    /// When all that was written would have been, had each waited for its turn.
    until: Instant,
}

impl Pace {
    /// Waits until one more may be written.
    async fn turn(&mut self) {
        let now = Instant::now();
        let ahead = self.until.saturating_duration_since(now);
        self.until = now + ahead + ONE_IN;
        tokio::time::sleep((ahead + ONE_IN).saturating_sub(ONE_IN * BURST)).await;
    }
}

impl Speaker {
    async fn run(mut self, mut receiver: mpsc::Receiver<Said>) {
        while let Some(said) = receiver.recv().await {
            if self.remembered.is_recent(&said) {
                continue;
            }
            for attempt in 1.. {
                self.pace.turn().await;
                let Err(error) = self.say(&said).await else { break };
                tracing::debug!(error = %chain(&error), "an event could not be written");
                match passes(&error) {
                    Some(Outcome::After(pause)) if attempt < ATTEMPTS => tokio::time::sleep(pause).await,
                    _ => break,
                }
            }
        }
    }

    async fn say(&mut self, said: &Said) -> Result<(), kube::Error> {
        // An object without a namespace has its events in this one.
        let namespace = if said.about.namespace.is_empty() { "default" } else { &said.about.namespace };
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if let Some(memory) = self.remembered.0.get(said) {
            let (name, count) = (memory.name.clone(), memory.count.saturating_add(1));
            let change = json!({ "count": count, "lastTimestamp": now });
            match write::merge(&api, &name, change).await {
                Ok(_) => {
                    self.remembered.remember(said.clone(), name, count);
                    return Ok(());
                }
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let suffix = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("{}.{}", said.about.name, &suffix[..16]);
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": said.about.api_version, "kind": said.about.kind,
                "namespace": said.about.namespace, "name": said.about.name, "uid": said.about.uid,
            },
            "reason": said.reason, "message": said.message,
            "type": if said.warning { "Warning" } else { "Normal" },
            "source": {"component": self.component, "host": self.host},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        write::create(&api, &event).await?;
        self.remembered.remember(said.clone(), name, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(number: usize) -> Said {
        let about = Reference {
            api_version: "v1".into(),
            kind: "LogicalVolume".into(),
            namespace: String::new(),
            name: format!("pvc-{number}"),
            uid: String::new(),
        };
        Said { about, warning: true, reason: "VolumeGroupMissing", message: "it is missing".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_wrong_with_a_thousand_volumes_is_written_slowly_and_not_again_soon() {
        let (mut remembered, mut pace) = (Remembered::default(), Pace { until: Instant::now() });
        let (began, mut writes) = (Instant::now(), 0);
        for _ in 0..3 {
            for number in 0..REMEMBERED {
                if remembered.is_recent(&said(number)) {
                    continue;
                }
                pace.turn().await;
                writes += 1;
                remembered.remember(said(number), String::new(), 1);
                if writes == 50 {
                    assert_eq!(began.elapsed(), Duration::ZERO, "a claim's own refusals are written at once");
                }
            }
        }
        assert_eq!(writes, REMEMBERED);
        // More than can be remembered is not written faster either.
        for number in REMEMBERED..3 * REMEMBERED {
            pace.turn().await;
            remembered.remember(said(number), String::new(), 1);
        }
        assert!(began.elapsed() >= ONE_IN * 2900, "3000 were written in {:?}", began.elapsed());
        assert_eq!(remembered.0.len(), REMEMBERED);
        tokio::time::advance(RECENTLY).await;
        assert!(!remembered.is_recent(&said(3 * REMEMBERED - 1)));
    }
}
