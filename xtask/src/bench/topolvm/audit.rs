//! The API server's audit log: who has written what, and when.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

const LOG: &str = "audit.log";

/// A place in the log from which it is read.
pub(super) struct Audit {
    begin: u64,
}

/// Requests that were answered.
pub(super) struct Requests(Vec<Value>);

impl Audit {
    pub(super) fn begin() -> Result<Audit> {
        Ok(Audit { begin: fs::metadata(LOG)?.len() })
    }

    /// All that was answered since.
    pub(super) fn end(&self) -> Result<Requests> {
        let bytes = fs::read(LOG)?;
        let begin = usize::try_from(self.begin)?;
        let text = String::from_utf8_lossy(bytes.get(begin..).context("the audit log was replaced")?);
        Ok(Requests::read(&text))
    }
}

impl Requests {
    fn read(text: &str) -> Requests {
        let requests = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Requests(requests.filter(|request| request["stage"] == "ResponseComplete").collect())
    }

    /// Those of pods in a namespace that have changed something.
    fn writes(&self, namespace: &str) -> impl Iterator<Item = &Value> {
        let user = format!("system:serviceaccount:{namespace}:");
        self.0.iter().filter(move |request| {
            let verb = request["verb"].as_str().unwrap_or_default();
            let code = request["responseStatus"]["code"].as_u64().unwrap_or_default();
            matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection")
                && code < 400
                && request["user"]["username"].as_str().is_some_and(|name| name.starts_with(&user))
                // Asking what one may do changes nothing.
                && request["objectRef"]["apiGroup"] != "authorization.k8s.io"
        })
    }

    /// How many they are. Leases are kept by the time, not by the volume.
    pub(super) fn writes_but_leases_of(&self, namespace: &str) -> usize {
        self.writes(namespace).filter(|request| request["objectRef"]["resource"] != "leases").count()
    }

    /// How many milliseconds a namespace's pods took from the moment at which Kubernetes asked for the volume of a claim in
    /// that namespace until they had made it.
    pub(super) fn asked_to_made(&self, namespace: &str) -> Result<f64> {
        let asked = self.0.iter().find(|request| {
            let object = &request["objectRef"];
            let user = request["user"]["username"].as_str().unwrap_or_default();
            request["verb"] == "update"
                && object["resource"] == "persistentvolumeclaims"
                && object["namespace"] == namespace
                && user.ends_with(":persistent-volume-binder")
        });
        let made = self.writes(namespace).find(|request| {
            request["verb"] == "create" && request["objectRef"]["resource"] == "persistentvolumes"
        });
        let asked = asked.with_context(|| format!("nobody has asked for a volume in {namespace}"))?;
        let made = made.with_context(|| format!("{namespace} has made no volume"))?;
        Ok((time(made, ANSWERED) - time(asked, ANSWERED)) * 1000.0)
    }

    /// All that a namespace's pods, the kubelet and the control plane have written, and what those pods have logged
    /// meanwhile: each command is logged when it begins and when it ends, with how long it took. With the time since the first.
    pub(super) fn story(&self, namespace: &str, log: &str) -> String {
        let writes = self.0.iter().filter(|request| {
            let verb = request["verb"].as_str().unwrap_or_default();
            matches!(verb, "create" | "update" | "patch" | "delete")
                && request["objectRef"]["resource"] != "leases"
                && !request["objectRef"]["apiGroup"].as_str().unwrap_or_default().starts_with("auth")
        });
        let mut lines = Vec::new();
        for request in writes {
            let (received, answered) = (time(request, RECEIVED), time(request, ANSWERED));
            let user = request["user"]["username"].as_str().unwrap_or_default();
            let who = if user.contains(namespace) { "lvms" } else { user.rsplit(':').next().unwrap_or(user) };
            let object = &request["objectRef"];
            let part = |name: &str| object[name].as_str().unwrap_or_default();
            let what = format!(
                "{:>5.0}  {who:<28} {} {}{} {}",
                (answered - received) * 1000.0,
                request["verb"].as_str().unwrap_or_default(),
                part("resource"),
                if part("subresource").is_empty() {
                    String::new()
                } else {
                    format!("/{}", part("subresource"))
                },
                part("name"),
            );
            lines.push((received, what));
        }
        let first = lines.iter().map(|(when, _)| *when).fold(f64::INFINITY, f64::min);
        let logged = log.lines().filter_map(|line| line.split_once(' '));
        let logged = logged.map(|(when, line)| (clock(when), format!("       log: {line}")));
        lines.extend(logged.filter(|(when, _)| *when >= first));
        lines.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut text = String::from("one volume, write by write (ms since the first, ms taken, who, what):");
        for (when, what) in lines {
            text += &format!("\n{:>8.0} {what}", (when - first) * 1000.0);
        }
        text
    }
}

const RECEIVED: &str = "requestReceivedTimestamp";
const ANSWERED: &str = "stageTimestamp";

/// A time of a request, in seconds of its day.
fn time(request: &Value, field: &str) -> f64 {
    clock(request[field].as_str().unwrap_or_default())
}

/// The seconds of its day.
fn clock(text: &str) -> f64 {
    let clock = text.split_once('T').map_or("", |(_, clock)| clock.trim_end_matches('Z'));
    clock.split(':').fold(0.0, |seconds, part| seconds * 60.0 + part.parse::<f64>().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_namespaces_pods_are_counted_and_their_story_is_told() {
        let line = |user: &str, verb: &str, resource: &str, code: u64| {
            serde_json::json!({
                "stage": "ResponseComplete", "verb": verb, "user": {"username": user},
                "objectRef": {"resource": resource, "name": "x"}, "responseStatus": {"code": code},
                "requestReceivedTimestamp": "2026-01-01T10:00:01.500000Z", "stageTimestamp": "2026-01-01T10:00:01.502000Z",
            })
            .to_string()
        };
        let ours = "system:serviceaccount:lvms-system:lvms";
        let log = [
            line(ours, "create", "logicalvolumes", 201),
            line(ours, "patch", "logicalvolumes", 409),
            line(ours, "update", "leases", 200),
            line(ours, "get", "nodes", 200),
            line("system:node:n", "patch", "pods", 200),
            "cut o".to_owned(),
        ];
        let requests = Requests::read(&log.join("\n"));
        assert_eq!(requests.writes_but_leases_of("lvms-system"), 1);
        let log = "2026-01-01T09:59:59.000000000Z before\n2026-01-01T10:00:01.501000000Z changes command=\"lvcreate\"\n";
        let story = requests.story("lvms-system", log);
        assert!(story.contains("0     2  lvms") && story.contains("create logicalvolumes x"), "{story}");
        let after = story.split_once("create logicalvolumes x").unwrap().1;
        assert!(after.contains("       1        log: changes command=\"lvcreate\""), "{story}");
        assert!(!story.contains("before"), "{story}");
    }
    #[test]
    fn a_volume_is_waited_for_from_the_moment_at_which_kubernetes_asks_for_it() {
        let line = |user: &str, verb: &str, resource: &str, namespace: &str, second: u64| {
            serde_json::json!({
                "stage": "ResponseComplete", "verb": verb, "user": {"username": user},
                "objectRef": {"resource": resource, "namespace": namespace, "name": "x"},
                "responseStatus": {"code": 200}, "stageTimestamp": format!("2026-01-01T10:00:{second:02}.5Z"),
            })
            .to_string()
        };
        let (binder, ours) = (
            "system:serviceaccount:kube-system:persistent-volume-binder",
            "system:serviceaccount:lvms-system:lvms",
        );
        let log = [
            line("admin", "update", "persistentvolumeclaims", "lvms-system", 1),
            line(binder, "update", "persistentvolumeclaims", "other", 2),
            line(binder, "update", "persistentvolumeclaims", "lvms-system", 3),
            line(ours, "create", "logicalvolumes", "", 4),
            line(ours, "create", "persistentvolumes", "", 5),
            line(binder, "update", "persistentvolumeclaims", "lvms-system", 6),
        ];
        let requests = Requests::read(&log.join("\n"));
        assert_eq!(requests.asked_to_made("lvms-system").unwrap(), 2000.0);
        assert!(requests.asked_to_made("other").is_err());
    }
}
