//! A life: a claim is mounted, written, grown, snapshotted and copied, its data is compared, and all of it is deleted.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::Chance;
use super::observer::Observer;
use crate::suites::stage::Stage;

/// Claims of a life.
pub(super) const CLAIMS: usize = 2;

/// How a copy is made.
enum Copy {
    Restore,
    Clone,
}

/// One of them.
pub(super) struct Life<'a> {
    stage: &'a Stage<'a>,
    observer: &'a Observer<'a>,
    name: String,
    class: &'static str,
    copy: Copy,
}

/// The first start of a pod writes what no other writes, and its checksum.
const WRITE: &str = "\
if [ ! -e /data/sum ]; then
    dd if=/dev/urandom of=/data/file bs=65536 count=16 2>/dev/null; sync
    sha256sum /data/file > /data/sum.new; sync; mv /data/sum.new /data/sum; sync
fi
exec sleep 2147483647";

impl<'a> Life<'a> {
    pub(super) fn new(
        stage: &'a Stage<'a>,
        observer: &'a Observer<'a>,
        number: usize,
        chance: &mut Chance,
    ) -> Life<'a> {
        let class = if chance.below(2) == 0 { "churn-thick" } else { "churn-thin" };
        let copy = if chance.below(2) == 0 { Copy::Restore } else { Copy::Clone };
        Life { stage, observer, name: format!("life-{number}"), class, copy }
    }

    /// From the claim to its end.
    pub(super) fn live(&self) -> Result<()> {
        let (origin, copy, snapshot) = (self.name.clone(), format!("{}-copy", self.name), self.name.as_str());
        self.again("a claim is made", || self.stage.claim(&origin, self.class, "64Mi"))?;
        let mount = self.start_pod(&origin)?;
        let written = self.checksum(&mount)?;
        self.again("a claim grows", || self.stage.grow(&origin, "96Mi"))?;
        self.await_size(&origin, "96Mi")?;
        self.again("a snapshot is made", || self.stage.snapshot(snapshot, &origin, "lvms"))?;
        self.observer.wait_for(&format!("snapshot {snapshot} to be ready"), |seen| {
            let snapshot = seen.get("VolumeSnapshot", snapshot);
            Ok(snapshot.filter(|snapshot| snapshot["status"]["readyToUse"] == true).map(drop))
        })?;
        self.again("a copy is made", || match self.copy {
            Copy::Restore => self.stage.restore(&copy, snapshot, self.class, "96Mi"),
            Copy::Clone => {
                let source = json!({"kind": "PersistentVolumeClaim", "name": origin});
                self.stage.apply_claim(&copy, self.class, "96Mi", &source)
            }
        })?;
        let copied = self.start_pod(&copy)?;
        for (what, mount) in [("the volume", &mount), ("its copy", &copied)] {
            let found = self.checksum(mount)?;
            ensure!(found == written, "what was written was {written}, and {what} has {found}");
        }
        let all = [
            ("Pod", "pod", &origin),
            ("Pod", "pod", &copy),
            ("PersistentVolumeClaim", "pvc", &origin),
            ("PersistentVolumeClaim", "pvc", &copy),
            ("VolumeSnapshot", "volumesnapshot", &origin),
        ];
        let names: Vec<String> = all.iter().map(|(_, kind, name)| format!("{kind}/{name}")).collect();
        let mut delete = vec!["delete", "--wait=false", "--ignore-not-found"];
        delete.extend(names.iter().map(String::as_str));
        self.again("all is deleted", || self.stage.kubectl(&delete).map(drop))?;
        self.observer.wait_for(&format!("all of {} to be gone", self.name), |seen| {
            Ok(all.iter().all(|(kind, _, name)| seen.get(kind, name).is_none()).then_some(()))
        })
    }

    /// Tries until the API server takes it.
    fn again(&self, what: &str, act: impl Fn() -> Result<()>) -> Result<()> {
        self.stage.cluster.wait_for(what, || act().map(|()| true))
    }

    /// A pod that uses a claim. Returns its node, and where that has the volume.
    fn start_pod(&self, claim: &str) -> Result<Mount> {
        let spec = json!({
            "terminationGracePeriodSeconds": 1, "restartPolicy": "Always", "hostNetwork": true,
            "containers": [{
                "name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never",
                "command": ["sh", "-c", WRITE], "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        });
        self.again("a pod is made", || self.stage.apply("v1", "Pod", claim, &spec))?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a text is missing");
        self.observer.wait_for(&format!("pod {claim} to run"), |seen| {
            let (Some(pod), Some(used)) = (seen.get("Pod", claim), seen.get("PersistentVolumeClaim", claim))
            else {
                return Ok(None);
            };
            if pod["status"]["phase"] != "Running" {
                return Ok(None);
            }
            let (uid, volume) = (text(&pod["metadata"]["uid"])?, text(&used["spec"]["volumeName"])?);
            let path = format!(
                "{}/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount",
                self.stage.cluster.kubelet()
            );
            Ok(Some(Mount { node: text(&pod["spec"]["nodeName"])?, path }))
        })
    }

    fn await_size(&self, claim: &str, size: &str) -> Result<()> {
        self.observer.wait_for(&format!("claim {claim} to have {size}"), |seen| {
            let claim = seen.get("PersistentVolumeClaim", claim);
            Ok(claim.filter(|claim| claim["status"]["capacity"]["storage"] == size).map(drop))
        })
    }

    /// The checksum of what is on a volume, which must be the one that its pod has written beside it.
    fn checksum(&self, mount: &Mount) -> Result<String> {
        let nodes = self.stage.cluster.nodes();
        let node = nodes.iter().find(|node| node.name == mount.node).context("an unknown node")?;
        self.stage.cluster.wait_for("a pod to have written", || {
            node.guest.command(["test", "-e", &format!("{}/sum", mount.path)]).run().map(|_| true)
        })?;
        let sums =
            node.guest.command(["sh", "-c", "cd \"$0\"; sha256sum < file; cat sum", &mount.path]).run()?;
        let sums = sums.text();
        let sums: Vec<&str> = sums.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let [found, told] = sums[..] else { bail!("{} has no checksum: {sums:?}", mount.path) };
        ensure!(found == told, "{} has {found}, and its pod wrote {told}", mount.path);
        Ok(found.to_owned())
    }
}

/// Where a node has a pod's volume.
struct Mount {
    node: String,
    path: String,
}
