//! Asks a Kubernetes for volumes, as its users do, and prints how long it took, in milliseconds.
//!
//! All that is waited for is seen by a watch that was there before: nothing is polled, and the API server tells a change
//! once.

mod crowd;
mod seen;

use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use futures::future::try_join_all;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::{Value, json};

use self::seen::Seen;

/// What to ask for.
#[derive(Parser)]
struct Arguments {
    /// How to reach the API server.
    #[arg(long)]
    kubeconfig: String,
    /// Where claims and pods are made.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// The driver, whose name its LogicalVolumes have.
    #[arg(long, default_value = "topolvm.io")]
    driver: String,
    /// The StorageClass of claims.
    #[arg(long, default_value = "")]
    class: String,
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// One claim after the other: from its creation to Bound.
    Bound { count: usize },
    /// Claims at once: until all are Bound, and until all of their volumes are gone. Prints two lines.
    Burst { count: usize },
    /// A claim and a pod: until the pod runs.
    Pod,
    /// A claim and a pod: until the pod runs, until the claim has grown, until a snapshot is ready. Prints three lines.
    Life {
        /// The VolumeSnapshotClass; no snapshot without one.
        #[arg(long, default_value = "")]
        snapshots: String,
    },
    /// So many claims, and one pod that has mounted them all. They stay.
    Mount { count: usize },
    /// Removes that pod and those claims.
    Unmount { count: usize },
    /// Objects that are not the driver's business: pods, claims and volumes.
    Crowd { count: usize },
    /// Warnings of the driver, one line each.
    Warnings,
}

struct Cluster {
    client: Client,
    namespace: String,
    driver: String,
    class: String,
}

/// A kind in a namespace, or of the whole cluster.
struct Kind {
    version: &'static str,
    name: &'static str,
    plural: &'static str,
    namespaced: bool,
}

const CLAIM: Kind =
    Kind { version: "v1", name: "PersistentVolumeClaim", plural: "persistentvolumeclaims", namespaced: true };
const VOLUME: Kind =
    Kind { version: "v1", name: "PersistentVolume", plural: "persistentvolumes", namespaced: false };
const POD: Kind = Kind { version: "v1", name: "Pod", plural: "pods", namespaced: true };
const EVENT: Kind = Kind { version: "v1", name: "Event", plural: "events", namespaced: true };
const SNAPSHOT: Kind = Kind {
    version: "snapshot.storage.k8s.io/v1",
    name: "VolumeSnapshot",
    plural: "volumesnapshots",
    namespaced: true,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let kubeconfig = kube::config::Kubeconfig::read_from(&arguments.kubeconfig)?;
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
    let cluster = Cluster {
        client: Client::try_from(config)?,
        namespace: arguments.namespace,
        driver: arguments.driver,
        class: arguments.class,
    };
    match arguments.act {
        Act::Bound { count } => {
            for number in 0..count {
                println!("{:.1}", cluster.bound(&format!("bound-{number}")).await?);
            }
        }
        Act::Burst { count } => {
            let (bound, gone) = cluster.burst(count).await?;
            println!("{bound:.1}\n{gone:.1}");
        }
        Act::Pod => {
            println!("{:.1}", cluster.mount(&["pod".to_owned()]).await?);
            cluster.unmount(&["pod".to_owned()]).await?;
        }
        Act::Life { snapshots } => {
            for taken in cluster.life(&snapshots).await? {
                println!("{taken:.1}");
            }
        }
        Act::Mount { count } => println!("{:.1}", cluster.mount(&mounted(count)).await?),
        Act::Unmount { count } => cluster.unmount(&mounted(count)).await?,
        Act::Crowd { count } => crowd::gather(&cluster, count).await?,
        Act::Warnings => {
            for event in cluster.api(&EVENT).list(&kube::api::ListParams::default()).await? {
                let by = event.data["source"]["component"].as_str().unwrap_or_default();
                if event.data["type"] == "Warning" && by.contains(&cluster.driver) {
                    println!(
                        "{} {}: {}",
                        event.data["involvedObject"]["name"], event.data["reason"], event.data["message"]
                    );
                }
            }
        }
    }
    Ok(())
}

fn since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

fn mounted(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("mounted-{number}")).collect()
}

fn is_bound(claim: &DynamicObject) -> bool {
    claim.data["status"]["phase"] == "Bound"
}

impl Cluster {
    fn api(&self, kind: &Kind) -> Api<DynamicObject> {
        let (group, version) = kind.version.rsplit_once('/').unwrap_or(("", kind.version));
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.name), kind.plural);
        if kind.namespaced {
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    fn logical_volumes(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(&self.driver, "v1", "LogicalVolume");
        Api::all_with(self.client.clone(), &ApiResource::from_gvk_with_plural(&kind, "logicalvolumes"))
    }

    async fn create(&self, kind: &Kind, name: &str, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": kind.version, "kind": kind.name, "metadata": {"name": name}, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object)?;
        self.api(kind).create(&PostParams::default(), &object).await.with_context(|| name.to_owned())?;
        Ok(())
    }

    async fn claim(&self, name: &str) -> Result<()> {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": self.class,
            "resources": {"requests": {"storage": "64Mi"}},
        });
        self.create(&CLAIM, name, spec).await
    }

    /// How long one claim takes; it is gone afterwards.
    async fn bound(&self, name: &str) -> Result<f64> {
        let mut claims = Seen::begin(self.api(&CLAIM)).await?;
        let began = Instant::now();
        self.claim(name).await?;
        claims.until(|all| all.get(name).is_some_and(is_bound)).await?;
        let taken = since(began);
        self.delete_all(&[name.to_owned()], &mut claims).await?;
        Ok(taken)
    }

    /// How long many take that come at once, and how long they take to go.
    async fn burst(&self, count: usize) -> Result<(f64, f64)> {
        let names: Vec<String> = (0..count).map(|number| format!("burst-{number}")).collect();
        let mut claims = Seen::begin(self.api(&CLAIM)).await?;
        let began = Instant::now();
        try_join_all(names.iter().map(|name| self.claim(name))).await?;
        claims.until(|all| names.iter().all(|name| all.get(name).is_some_and(is_bound))).await?;
        let bound = since(began);
        Ok((bound, self.delete_all(&names, &mut claims).await?))
    }

    /// Deletes claims; done when their PersistentVolumes and LogicalVolumes are gone.
    async fn delete_all(&self, claims: &[String], seen: &mut Seen) -> Result<f64> {
        let volumes: Vec<String> = claims
            .iter()
            .filter_map(|name| seen.all().get(name)?.data["spec"]["volumeName"].as_str().map(str::to_owned))
            .collect();
        let mut persistent = Seen::begin(self.api(&VOLUME)).await?;
        let mut logical = Seen::begin(self.logical_volumes()).await?;
        let began = Instant::now();
        let api = self.api(&CLAIM);
        let parameters = DeleteParams::default();
        try_join_all(claims.iter().map(|name| api.delete(name, &parameters))).await?;
        let (one, other) = tokio::join!(
            persistent.until(|all| !volumes.iter().any(|name| all.contains_key(name))),
            logical.until(|all| !volumes.iter().any(|name| all.contains_key(name))),
        );
        one.and(other)?;
        Ok(since(began))
    }

    /// A pod on new claims of these names, and the pod has the first one's.
    async fn mount(&self, claims: &[String]) -> Result<f64> {
        let name = claims.first().context("a pod without claims")?;
        let mut pods = Seen::begin(self.api(&POD)).await?;
        let began = Instant::now();
        try_join_all(claims.iter().map(|claim| self.claim(claim))).await?;
        let mounts: Vec<_> = claims
            .iter()
            .map(|claim| json!({"name": claim, "mountPath": format!("/data/{claim}")}))
            .collect();
        let volumes: Vec<_> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        let spec = json!({
            // With 0 it would be gone from the API before it is gone from its node.
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never", "volumeMounts": mounts,
            }],
            "volumes": volumes,
        });
        self.create(&POD, name, spec).await?;
        pods.until(|all| all.get(name).is_some_and(|pod| pod.data["status"]["phase"] == "Running")).await?;
        Ok(since(began))
    }

    /// Removes it and them.
    async fn unmount(&self, claims: &[String]) -> Result<()> {
        let name = claims.first().context("a pod without claims")?;
        let mut pods = Seen::begin(self.api(&POD)).await?;
        self.api(&POD).delete(name, &DeleteParams::default()).await?;
        pods.until(|all| !all.contains_key(name)).await?;
        let mut seen = Seen::begin(self.api(&CLAIM)).await?;
        self.delete_all(claims, &mut seen).await?;
        Ok(())
    }

    /// A pod on a volume, its growth, a snapshot.
    async fn life(&self, snapshots: &str) -> Result<Vec<f64>> {
        let name = ["life".to_owned()];
        let mut taken = vec![self.mount(&name).await?];
        let mut claims = Seen::begin(self.api(&CLAIM)).await?;
        let began = Instant::now();
        let larger = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        self.api(&CLAIM).patch("life", &PatchParams::default(), &Patch::Merge(larger)).await?;
        let grown = |claim: &DynamicObject| claim.data["status"]["capacity"]["storage"] == "1Gi";
        claims.until(|all| all.get("life").is_some_and(grown)).await?;
        taken.push(since(began));
        if !snapshots.is_empty() {
            taken.push(self.snapshot(snapshots).await?);
        }
        self.unmount(&name).await?;
        Ok(taken)
    }

    async fn snapshot(&self, class: &str) -> Result<f64> {
        let mut snapshots = Seen::begin(self.api(&SNAPSHOT)).await?;
        let began = Instant::now();
        let source = json!({"persistentVolumeClaimName": "life"});
        self.create(&SNAPSHOT, "life", json!({"volumeSnapshotClassName": class, "source": source})).await?;
        let ready = |snapshot: &DynamicObject| snapshot.data["status"]["readyToUse"] == true;
        snapshots.until(|all| all.get("life").is_some_and(ready)).await?;
        let taken = since(began);
        self.api(&SNAPSHOT).delete("life", &DeleteParams::default()).await?;
        snapshots.until(|all| !all.contains_key("life")).await?;
        Ok(taken)
    }
}
