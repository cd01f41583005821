//! Who owns our pod: what is owned by it, too, vanishes with it.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// So long it is believed: a Deployment may be deleted without its pods, and made anew.
const BELIEVED: Duration = Duration::from_secs(60);

/// The Deployment that a pod is of, or whatever else made it.
pub struct Owner {
    client: Client,
    namespace: String,
    pod: Option<String>,
    known: Mutex<Option<(Instant, Option<Value>)>>,
}

impl Owner {
    /// Of this pod; of none, if we are not in one.
    pub fn new(client: Client, namespace: &str, pod: Option<&str>) -> Owner {
        let (namespace, pod) = (namespace.to_owned(), pod.map(str::to_owned));
        Owner { client, namespace, pod, known: Mutex::default() }
    }

    /// As a reference to it.
    pub async fn now(&self) -> Result<Option<Value>, kube::Error> {
        let Some(pod) = &self.pod else { return Ok(None) };
        let mut known = self.known.lock().await;
        if let Some((since, owner)) = &*known
            && since.elapsed() < BELIEVED
        {
            return Ok(owner.clone());
        }
        let owner = self.read(pod).await?;
        *known = Some((Instant::now(), owner.clone()));
        Ok(owner)
    }

    async fn read(&self, pod: &str) -> Result<Option<Value>, kube::Error> {
        let controller = |owners: Option<Vec<OwnerReference>>| {
            owners.into_iter().flatten().find(|owner| owner.controller == Some(true))
        };
        let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &self.namespace);
        let Some(pod) = pods.get_opt(pod).await? else { return Ok(None) };
        let Some(mut owner) = controller(pod.metadata.owner_references) else { return Ok(None) };
        if owner.kind == "ReplicaSet" {
            let sets: Api<PartialObjectMeta<ReplicaSet>> =
                Api::namespaced(self.client.clone(), &self.namespace);
            let Some(set) = sets.get_opt(&owner.name).await? else { return Ok(None) };
            owner = controller(set.metadata.owner_references).unwrap_or(owner);
        }
        Ok(Some(json!({
            "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
            "controller": true,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;

    fn owned(by: &str, name: &str) -> Value {
        let owner = |kind: &str, controller| json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": controller});
        json!({"metadata": {"name": "ours", "ownerReferences": [owner("Other", false), owner(by, true)]}})
    }

    #[tokio::test]
    async fn the_deployment_of_our_pod_is_believed_for_a_minute_and_looked_for_again() {
        let made = std::sync::Mutex::new(0);
        let (context, asked) = scripted::context(move |request| {
            let mut made = made.lock().unwrap();
            if request.contains("/replicasets/") {
                *made += 1;
                (200, owned("Deployment", &format!("deployment-{made}")))
            } else {
                (200, owned("ReplicaSet", "set"))
            }
        })
        .await;
        let owner = Owner::new(context.client.clone(), "lvms", Some("ours"));
        let named = async || owner.now().await.unwrap().map(|owner| owner["name"].clone());
        assert_eq!(named().await, Some(json!("deployment-1")));
        assert_eq!(named().await, Some(json!("deployment-1")));
        assert_eq!(asked.lock().unwrap().len(), 2);
        tokio::time::pause();
        tokio::time::advance(BELIEVED).await;
        tokio::time::resume();
        assert_eq!(named().await, Some(json!("deployment-2")));
        let paths = ["/api/v1/namespaces/lvms/pods/ours", "/apis/apps/v1/namespaces/lvms/replicasets/set"];
        for (request, path) in asked.lock().unwrap().iter().zip(paths.repeat(2)) {
            assert!(request.contains(path), "{request}");
        }
    }

    #[tokio::test]
    async fn what_made_our_pod_owns_it_where_there_is_no_deployment() {
        for (maker, owner) in [("DaemonSet", Some(json!("set"))), ("ReplicaSet", None)] {
            let (context, _) = scripted::context(move |request| match request.contains("/pods/") {
                true => (200, owned(maker, "set")),
                false => (404, json!({"code": 404, "reason": "NotFound", "details": {"name": "set"}})),
            })
            .await;
            let named = Owner::new(context.client.clone(), "lvms", Some("ours")).now().await.unwrap();
            assert_eq!(named.map(|owner| owner["name"].clone()), owner);
        }
    }

    #[tokio::test]
    async fn outside_a_pod_nobody_owns_us_and_a_failure_is_not_remembered() {
        let (context, asked) = scripted::context(|_| (500, json!({"kind": "Status", "code": 500}))).await;
        assert_eq!(Owner::new(context.client.clone(), "lvms", None).now().await.unwrap(), None);
        assert!(asked.lock().unwrap().is_empty());
        let owner = Owner::new(context.client.clone(), "lvms", Some("ours"));
        for asked_for in [1, 2] {
            owner.now().await.unwrap_err();
            assert_eq!(asked.lock().unwrap().len(), asked_for);
        }
    }
}
