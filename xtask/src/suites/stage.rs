//! A namespace for one test, with claims, pods and snapshots; when it is gone, all space it took must be free again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Whose volumes a test is about.
pub(crate) struct Product {
    /// What is free and what is taken, in bytes, by names that begin with the node's.
    pub(crate) space: fn(&Cluster) -> Result<BTreeMap<String, u64>>,
    /// Puts what it has logged into the run's directory, under the name of a test.
    pub(crate) collect_logs: fn(&Cluster, &str),
}

/// Fills a file with new random bytes and prints their checksum.
pub(super) const WRITE: &str =
    "dd if=/dev/urandom of=/data/bytes bs=1M count=8 && sync && sha256sum /data/bytes";

/// Prints the checksum again.
pub(super) const READ: &str = "sha256sum /data/bytes";

/// What a test acts on.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a Cluster,
    product: &'a Product,
    namespace: &'a str,
    /// The volume group from which it takes space.
    group: &'a str,
    /// What was free in it before the test, by node.
    before: BTreeMap<String, u64>,
    /// Volumes and snapshots that were there before the test.
    others: BTreeSet<String>,
}

/// What is made for claims and snapshots, and belongs to no namespace.
const MADE: &str = "persistentvolumes,logicalvolumes,volumesnapshotcontents";

/// Lets a test act in a namespace of its own, which is removed in any case.
pub(crate) fn on_a_stage(
    cluster: &Cluster,
    product: &Product,
    namespace: &str,
    group: &str,
    act: impl FnOnce(&Stage<'_>) -> Result<()>,
) -> Result<()> {
    let (before, others) = (space(product, cluster, group)?, made(cluster)?);
    let stage = Stage { cluster, product, namespace, group, before, others };
    cluster.kubectl(["create", "namespace", namespace])?;
    let acted = stage.await_account().and_then(|()| act(&stage)).inspect_err(|_| stage.collect_logs());
    let cleared = stage.clear();
    acted.and(cleared)
}

/// Lets a test act, and then waits until all space is free that was free before.
pub(crate) fn returning_all_space(
    cluster: &Cluster,
    product: &Product,
    test: &str,
    act: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let before = space(product, cluster, "")?;
    act().inspect_err(|_| (product.collect_logs)(cluster, test))?;
    await_space(product, cluster, "", &before)
}

impl Stage<'_> {
    /// A claim on an empty volume.
    pub(crate) fn claim(&self, name: &str, class: &str, size: &str) -> Result<()> {
        self.apply_claim(name, class, size, &Value::Null)
    }

    /// Waits until a claim has a volume.
    pub(crate) fn await_bound(&self, claim: &str) -> Result<()> {
        self.cluster.wait_for(&format!("{claim} to be bound"), || {
            Ok(self.get("pvc", claim)?["status"]["phase"] == "Bound")
        })
    }

    /// A claim on a volume with what is in a snapshot.
    pub(crate) fn restore(&self, name: &str, snapshot: &str, class: &str, size: &str) -> Result<()> {
        let source =
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot});
        self.apply_claim(name, class, size, &source)
    }

    pub(crate) fn apply_claim(&self, name: &str, class: &str, size: &str, source: &Value) -> Result<()> {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": size}},
        });
        if !source.is_null() {
            spec["dataSource"] = source.clone();
        }
        self.apply("v1", "PersistentVolumeClaim", name, &spec)
    }

    /// A claim's new size.
    pub(crate) fn grow(&self, claim: &str, size: &str) -> Result<()> {
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
        self.kubectl(&["patch", "pvc", claim, "--patch", &patch])?;
        Ok(())
    }

    /// A snapshot of a claim's volume, not awaited.
    pub(crate) fn snapshot(&self, name: &str, claim: &str, class: &str) -> Result<()> {
        let spec = json!({"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": claim}});
        self.apply("snapshot.storage.k8s.io/v1", "VolumeSnapshot", name, &spec)
    }

    /// Waits until a snapshot is ready.
    pub(crate) fn await_snapshot(&self, name: &str) -> Result<()> {
        self.cluster.wait_for(&format!("the snapshot {name} to be ready"), || {
            Ok(self.get("volumesnapshot", name)?["status"]["readyToUse"] == true)
        })
    }

    /// A claim on a device.
    pub(crate) fn block_claim(&self, name: &str, class: &str, size: &str) -> Result<()> {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": class,
            "resources": {"requests": {"storage": size}},
        });
        self.apply("v1", "PersistentVolumeClaim", name, &spec)
    }

    /// A pod that has a claim's volume at `/data`, on this node or on any, not awaited.
    pub(crate) fn make_pod(&self, name: &str, claim: &str, node: Option<&str>) -> Result<()> {
        self.apply_pod(name, claim, node, &json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}))
    }

    /// The same, running.
    pub(crate) fn start_pod(&self, name: &str, claim: &str, node: Option<&str>) -> Result<()> {
        self.make_pod(name, claim, node)?;
        self.await_pod(name)
    }

    /// A pod that has a claim's device at `/dev/data`, not awaited.
    pub(crate) fn make_block_pod(&self, name: &str, claim: &str) -> Result<()> {
        let device = json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]});
        self.apply_pod(name, claim, None, &device)
    }

    /// The same, running.
    pub(crate) fn start_block_pod(&self, name: &str, claim: &str) -> Result<()> {
        self.make_block_pod(name, claim)?;
        self.await_pod(name)
    }

    fn apply_pod(&self, name: &str, claim: &str, node: Option<&str>, volumes: &Value) -> Result<()> {
        let mut container = volumes.clone();
        container["name"] = json!("shell");
        container["image"] = json!("lab.lvms.io/busybox:1");
        container["imagePullPolicy"] = json!("Never");
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            // A network of its own is a third of a pod's start, and has nothing to do with volumes.
            "hostNetwork": true,
            "nodeSelector": node.map_or(json!({}), |node| json!({"kubernetes.io/hostname": node})),
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        });
        self.apply("v1", "Pod", name, &spec)
    }

    /// Waits until a pod runs.
    pub(crate) fn await_pod(&self, name: &str) -> Result<()> {
        self.cluster.wait_for(&format!("the pod {name} to run"), || {
            Ok(self.get("pod", name)?["status"]["phase"] == "Running")
        })
    }

    /// Deletes a pod and waits until it is gone.
    pub(crate) fn remove_pod(&self, name: &str) -> Result<()> {
        self.kubectl(&["delete", "pod", name, "--wait=false"])?;
        self.cluster.wait_for(&format!("the pod {name} to be gone"), || {
            Ok(self.kubectl(&["get", "pod", name, "--ignore-not-found"])?.is_empty())
        })
    }

    /// Runs a script in a pod and returns what it printed.
    pub(crate) fn run_in(&self, pod: &str, script: &str) -> Result<String> {
        let printed = self.kubectl(&["exec", pod, "--", "sh", "-c", script])?;
        Ok(printed.trim().to_owned())
    }

    /// The node that a pod is on.
    pub(crate) fn node_of(&self, pod: &str) -> Result<String> {
        let pod = self.get("pod", pod)?;
        Ok(pod["spec"]["nodeName"].as_str().context("the pod is on no node")?.to_owned())
    }

    /// By how much something has become less since the test began.
    pub(crate) fn taken(&self, what: &str) -> Result<u64> {
        let (before, now) =
            (self.before.get(what), space(self.product, self.cluster, self.group)?.get(what).copied());
        let (before, now) = (*before.context(what.to_owned())?, now.context(what.to_owned())?);
        before.checked_sub(now).with_context(|| format!("{what} has grown from {before} to {now}"))
    }

    /// An object of the namespace.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.cluster.get(["--namespace", self.namespace, kind, name])
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl(["--namespace", self.namespace].iter().chain(arguments))
    }

    pub(crate) fn apply(&self, version: &str, kind: &str, name: &str, spec: &Value) -> Result<()> {
        let metadata = json!({"name": name, "namespace": self.namespace});
        let object = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec});
        self.cluster.apply(&object.to_string())
    }

    /// Waits for an event about an object of the namespace, for a reason, or any if it is empty, that says something.
    pub(super) fn await_event(&self, object: &str, reason: &str, text: &str) -> Result<()> {
        await_event(self.cluster, self.namespace, object, reason, text)
    }

    /// Made by the controller manager a moment after the namespace; without it no pod can be.
    fn await_account(&self) -> Result<()> {
        self.cluster
            .wait_for("the namespace's service account", || Ok(self.get("serviceaccount", "default").is_ok()))
    }

    fn clear(&self) -> Result<()> {
        let kinds = "pods,persistentvolumeclaims,volumesnapshots";
        self.kubectl(&["delete", kinds, "--all", "--wait=false"])?;
        self.cluster.wait_for(&format!("{kinds} of {} to be gone", self.namespace), || {
            let left = self.kubectl(&["get", kinds, "--output=name"])?;
            ensure!(left.is_empty(), "there are still {}", left.replace('\n', " "));
            Ok(true)
        })?;
        self.cluster.wait_for(&format!("{MADE} made for {} to be gone", self.namespace), || {
            let left = made(self.cluster)?;
            let left: Vec<_> = left.difference(&self.others).map(String::as_str).collect();
            ensure!(left.is_empty(), "there are still {}", left.join(" "));
            Ok(true)
        })?;
        await_space(self.product, self.cluster, self.group, &self.before)?;
        // Nothing is left in it: nobody has to wait for its end.
        self.kubectl(&["delete", "namespace", self.namespace, "--wait=false"])?;
        Ok(())
    }

    fn collect_logs(&self) {
        let state = self.kubectl(&["describe", "pods,persistentvolumeclaims,volumesnapshots"]);
        keep(&format!("{}-state.log", self.namespace), state);
        (self.product.collect_logs)(self.cluster, self.namespace);
    }
}

/// Waits for an event about an object, for a reason, or any if it is empty, that says something. Events about objects
/// without a namespace are in `default`.
pub(super) fn await_event(
    cluster: &Cluster,
    namespace: &str,
    object: &str,
    reason: &str,
    text: &str,
) -> Result<()> {
    let mut fields = format!("--field-selector=involvedObject.name={object}");
    if !reason.is_empty() {
        fields += &format!(",reason={reason}");
    }
    cluster.wait_for(&format!("an event about {object} that says {text:?}"), || {
        let messages = "--output=jsonpath={.items[*].message}";
        let told = cluster.kubectl(["--namespace", namespace, "get", "events", &fields, messages])?;
        ensure!(told.contains(text), "it says {told:?}");
        Ok(true)
    })
}

/// Puts what tells why a test failed into the run's directory, as far as it is to be had.
pub(crate) fn keep(name: &str, text: Result<String>) {
    let text = text.unwrap_or_else(|error| format!("{error:#}"));
    let _ = fs::write(name, text);
}

/// The names of all volumes and snapshots.
fn made(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let names = cluster.kubectl(["get", MADE, "--output=name"])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// The space with this in its name.
fn space(product: &Product, cluster: &Cluster, group: &str) -> Result<BTreeMap<String, u64>> {
    let mut space = (product.space)(cluster)?;
    space.retain(|what, _| what.contains(group));
    Ok(space)
}

fn await_space(
    product: &Product,
    cluster: &Cluster,
    group: &str,
    before: &BTreeMap<String, u64>,
) -> Result<()> {
    cluster.wait_for("all space to be as before", || {
        let now = space(product, cluster, group)?;
        ensure!(now == *before, "before {}, now {}", except(before, &now), except(&now, before));
        Ok(true)
    })
}

/// What is in one and not in the other.
fn except(one: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>) -> String {
    let different = one.iter().filter(|(what, bytes)| other.get(*what) != Some(bytes));
    different.map(|(what, bytes)| format!("{what}: {bytes}")).collect::<Vec<_>>().join(", ")
}

/// The second line of `df -P -k` has it in its second column.
pub(crate) fn filesystem_size(df: &str) -> Result<u64> {
    let size = df
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|size| size.parse::<u64>().ok());
    Ok(size.with_context(|| format!("df printed {df}"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_filesystem_is_in_the_second_column_of_the_second_line() {
        let df = "Filesystem           1024-blocks    Used Available Capacity Mounted on\n\
                  /dev/mapper/x            996780      24    928964   0% /data\n";
        assert_eq!(filesystem_size(df).unwrap(), 996_780 * 1024);
        assert!(filesystem_size("df: /data: can't find mount point").is_err());
    }
}
