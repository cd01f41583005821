//! What people see in `kubectl describe`. What is said again is counted and not written anew.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::slim::Event;
use crate::store::chain;
use crate::write::{self, is_not_found};

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

/// So many are remembered, to be counted if they are said again.
const REMEMBERED: usize = 200;

/// What was said so recently is not said again.
const RECENTLY: Duration = Duration::from_secs(30);

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
            remembered: BTreeMap::new(),
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

    fn say(&self, about: Reference, warning: bool, reason: &'static str, mut message: String) {
        if message.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        let said = Said { about, warning, reason, message };
        if warning {
            tracing::warn!(kind = said.about.kind, name = said.about.name, reason, "{}", said.message);
        } else {
            tracing::info!(kind = said.about.kind, name = said.about.name, reason, "{}", said.message);
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
    remembered: BTreeMap<Said, Memory>,
}

struct Memory {
    /// The event's name.
    name: String,
    count: i32,
    when: Instant,
}

impl Speaker {
    async fn run(mut self, mut receiver: mpsc::Receiver<Said>) {
        while let Some(said) = receiver.recv().await {
            if let Err(error) = self.say(said).await {
                tracing::debug!(error = %chain(&error), "an event could not be written");
            }
        }
    }

    async fn say(&mut self, said: Said) -> Result<(), kube::Error> {
        // An object without a namespace has its events in this one.
        let namespace = if said.about.namespace.is_empty() { "default" } else { &said.about.namespace };
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if let Some(memory) = self.remembered.get_mut(&said) {
            if memory.when.elapsed() < RECENTLY {
                return Ok(());
            }
            memory.count = memory.count.saturating_add(1);
            memory.when = Instant::now();
            let change = json!({ "count": memory.count, "lastTimestamp": now });
            match write::merge(&api, &memory.name, change).await {
                Ok(_) => return Ok(()),
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
        self.remembered.insert(said, Memory { name, count: 1, when: Instant::now() });
        if self.remembered.len() > REMEMBERED {
            let oldest = self.remembered.iter().min_by_key(|(_, memory)| memory.when);
            if let Some(oldest) = oldest.map(|(said, _)| said.clone()) {
                self.remembered.remove(&oldest);
            }
        }
        Ok(())
    }
}
