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
