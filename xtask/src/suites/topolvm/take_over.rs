//! lvms takes TopoLVM's place under running pods, TopoLVM takes it back, and lvms comes again, all by the commands of
//! `docs/migrate-from-topolvm.md`.

mod page;
mod states;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use lab_protocol::disk::GIB;
use serde_json::Value;

use self::page::Page;
use super::{collect_logs, space};
use crate::cluster::Cluster;
use crate::deployed;
use crate::peers::topolvm::{NAMESPACE, Name, THICK, THIN};
use crate::suites::books::lvs;
use crate::suites::stage::{Product, READ, Stage, WRITE, await_event, filesystem_size, on_a_stage};

/// Whoever has the place.
const WHOEVER: Product = Product {
    space,
    collect_logs: |cluster, test| {
        collect_logs(cluster, test);
        deployed::collect_logs(cluster, test);
    },
};

/// Claims with pods that write for as long as the test lasts.
const WRITERS: [(&str, &str); 2] = [("thick", THICK), ("thin", THIN)];

/// Adds a line with the next number to a file, again and again. A failure would end it.
const APPEND: &str =
    "i=0; (while i=$((i+1)); do echo $i >>/data/log || exit 1; sleep 1; done) >/dev/null 2>&1 &";

pub(super) fn run(cluster: &Cluster, name: Name) -> Result<()> {
    deployed::manifests()?;
    on_a_stage(cluster, &WHOEVER, "take-over", "", |stage| {
        let test = Test { cluster, stage, name, page: Page::read()? };
        let live = test.begin()?;
        test.lvms_waits()?;
        test.is_undisturbed(&live)?;
        test.without_a_loss(|| test.nobody())?;
        test.change_what_nobody_acts_on()?;
        test.without_a_loss(|| {
            test.lvms()?;
            test.is_undisturbed(&live)
        })?;
        test.states_were_taken_over(&live)?;
        test.lvms_goes_on()?;
        test.clear_the_way_back()?;
        test.without_a_loss(|| {
            test.topolvm()?;
            test.is_undisturbed(&live)
        })?;
        test.topolvm_goes_on()?;
        test.without_a_loss(|| {
            test.nobody()?;
            test.lvms()?;
            test.is_undisturbed(&live)
        })?;
        test.grows("thick", "4Gi", 4 * GIB)
    })
}

struct Test<'a> {
    cluster: &'a Cluster,
    stage: &'a Stage<'a>,
    name: Name,
    page: Page,
}

/// What must not change while others come and go.
struct Live {
    /// The pods, by name, with their uids.
    pods: BTreeMap<String, String>,
    /// What the node has mounted for them.
    mounts: BTreeSet<String>,
    /// What is in the volume whose class will be gone.
    stray: String,
}

impl Test<'_> {
    /// Volumes in TopoLVM's hands, and pods that write to them.
    fn begin(&self) -> Result<Live> {
        let stage = self.stage;
        for (claim, class) in WRITERS {
            stage.claim(claim, class, "1Gi")?;
            stage.make_pod(claim, claim, None)?;
        }
        stage.block_claim("block", THICK, "1Gi")?;
        stage.make_block_pod("block", "block")?;
        // Not mounted later: its pod goes.
        for claim in ["idle", "going", "stray"] {
            stage.claim(claim, THICK, "1Gi")?;
            stage.make_pod(claim, claim, None)?;
        }
        for (claim, _) in WRITERS {
            stage.await_pod(claim)?;
            stage.run_in(claim, WRITE)?;
            stage.run_in(claim, APPEND)?;
        }
        for pod in ["block", "idle", "going", "stray"] {
            stage.await_pod(pod)?;
        }
        let stray = stage.run_in("stray", WRITE)?;
        stage.run_in("block", "echo precious >/dev/data && sync")?;
        stage.snapshot("before", "thin", THIN)?;
        self.stage.await_snapshot("before")?;
        for pod in ["idle", "going", "stray"] {
            stage.remove_pod(pod)?;
        }
        let pods = ["thick", "thin", "block"];
        let uid = |pod: &str| Ok((pod.to_owned(), text(&stage.get("pod", pod)?["metadata"]["uid"])?));
        let pods = pods.into_iter().map(uid).collect::<Result<BTreeMap<_, _>>>()?;
        let mounts = self.mounts()?;
        ensure!(mounts.len() >= pods.len(), "for {} pods the node has mounted {mounts:?}", pods.len());
        Ok(Live { pods, mounts, stray })
    }

    /// What the node has mounted for this driver.
    fn mounts(&self) -> Result<BTreeSet<String>> {
        let mut all = BTreeSet::new();
        for node in self.cluster.nodes() {
            let text = node.guest.command(["cat", "/proc/mounts"]).run()?.text();
            let ours = text
                .lines()
                .filter(|line| line.contains("kubernetes.io~csi/pvc-") || line.contains("volumeDevices"));
            // Device, place and filesystem: one that has grown may tell other options.
            let mounted = |line: &str| line.split(' ').take(3).collect::<Vec<_>>().join(" ");
            all.extend(ours.map(|line| format!("{} {}", node.name, mounted(line))));
        }
        Ok(all)
    }

    /// Begun too early, lvms says for what it waits, and TopoLVM goes on as if it were alone.
    fn lvms_waits(&self) -> Result<()> {
        let begin = usize::try_from(fs::metadata(AUDIT)?.len())?;
        let early = "kubectl apply --server-side -f deploy/operator.yaml".to_owned();
        self.follow(&[&self.page.take_over[..3], &[early]].concat())?;
        let lease = self.name.driver().replace('.', "-");
        await_event(self.cluster, NAMESPACE, &lease, "WaitsForPredecessor", "lvms waits until")?;
        self.stage.claim("early", THICK, "1Gi")?;
        self.stage.start_pod("early", "early", None)?;
        self.stage.remove_pod("early")?;
        self.vanishes("early")?;
        let end = ["delete", "deployment", "lvms-operator", "--wait"];
        self.cluster.kubectl(["--namespace", deployed::NAMESPACE].iter().chain(&end))?;
        let log = fs::read(AUDIT)?;
        let written = written_by_lvms(&String::from_utf8_lossy(&log[begin..]));
        let foreign: Vec<_> = written.iter().filter(|what| !OWN.contains(&what.as_str())).collect();
        ensure!(written.len() > foreign.len(), "the audit log tells of nothing that lvms writes");
        ensure!(foreign.is_empty(), "lvms has written before its turn: {foreign:?}");
        Ok(())
    }

    /// The page's way, up to the moment in which nobody acts.
    fn nobody(&self) -> Result<()> {
        self.follow(&self.page.take_over[..4]).map(drop)
    }

    /// The rest of it.
    fn lvms(&self) -> Result<()> {
        let blocks = &self.page.take_over;
        let shown = self.follow([&blocks[..1], &blocks[4..]].concat().as_slice())?;
        ensure!(shown.contains("Ready"), "nodes are shown as\n{shown}");
        Ok(())
    }

    /// What stands in the way back is listed and mended, as the page says.
    fn clear_the_way_back(&self) -> Result<()> {
        // A thick snapshot stands in the way, and can be mended; that other kinds are listed is for unit tests.
        let first = [&self.page.take_over[..1], &self.page.roll_back[..1]].concat();
        let Err(listed) = self.follow(&first) else { bail!("a thick snapshot does not stand in the way") };
        let listed = format!("{listed:#}");
        ensure!(listed.contains("a snapshot of the thick volume"), "it says {listed}");
        self.stage.kubectl(&["delete", "volumesnapshot", "thick", "--wait"])?;
        self.cluster.wait_for("the list to be empty", || {
            ensure!(self.follow(&first)?.contains("TopoLVM can go on"), "it is not");
            Ok(true)
        })
    }

    /// The rest of it. What lvms has published vanishes with its Deployment.
    fn topolvm(&self) -> Result<()> {
        let blocks = [&self.page.take_over[..1], &["replicas=1".to_owned()], &self.page.roll_back[1..]];
        self.follow(&blocks.concat())?;
        self.cluster.wait_for("what lvms has published to be gone", || {
            let publishers = self.publishers()?;
            ensure!(!publishers.contains("lvms"), "capacities are by {publishers:?}");
            Ok(true)
        })
    }

    /// Who has published what this driver's nodes have.
    fn publishers(&self) -> Result<BTreeSet<String>> {
        let driver = format!("--selector=csi.storage.k8s.io/drivername={}", self.name.driver());
        let managers = "--output=jsonpath={.items[*].metadata.labels.csi\\.storage\\.k8s\\.io/managed-by}";
        let kind = ["get", "csistoragecapacities", "--all-namespaces"];
        let managers = self.cluster.kubectl(kind.into_iter().chain([driver.as_str(), managers]))?;
        Ok(managers.split_whitespace().map(str::to_owned).collect())
    }

    /// Changes hands. Whatever somebody wanted before is there afterwards, and is no other object.
    fn without_a_loss(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.wanted()?;
        change()?;
        let now = self.wanted()?;
        let lost: Vec<_> = before.difference(&now).collect();
        ensure!(lost.is_empty(), "not there any more: {lost:?}");
        Ok(())
    }

    /// Volumes, claims, LogicalVolumes and snapshots that nobody has deleted, with their uids.
    fn wanted(&self) -> Result<BTreeSet<String>> {
        let kinds = format!("pv,pvc,{},volumesnapshotcontents", self.kind());
        let list = self.cluster.get([kinds.as_str(), "--all-namespaces"])?;
        let all = list["items"].as_array().context("a list has items")?.iter().filter(|object| {
            // The volume of a deleted claim is not deleted itself before its data is gone.
            object["metadata"]["deletionTimestamp"].is_null() && object["status"]["phase"] != "Released"
        });
        let name = |object: &Value| {
            format!("{} {} {}", object["kind"], object["metadata"]["name"], object["metadata"]["uid"])
        };
        Ok(all.map(name).collect())
    }

    /// Runs blocks of the page, in one shell.
    fn follow(&self, blocks: &[String]) -> Result<String> {
        let script =
            blocks.join("\n").replace("driver=topolvm.io", &format!("driver={}", self.name.driver()));
        self.cluster.script(&script)
    }

    /// Pods were not started again, have what they had mounted, and go on writing without a gap.
    fn is_undisturbed(&self, live: &Live) -> Result<()> {
        for (pod, uid) in &live.pods {
            let now = self.stage.get("pod", pod)?;
            let status = &now["status"]["containerStatuses"][0];
            ensure!(text(&now["metadata"]["uid"])? == *uid, "{pod} is another pod");
            ensure!(
                now["status"]["phase"] == "Running" && status["restartCount"] == 0,
                "{pod} is {}",
                now["status"]
            );
        }
        let now = self.mounts()?;
        let gone: Vec<_> = live.mounts.difference(&now).collect();
        ensure!(gone.is_empty(), "not mounted any more: {gone:?}");
        for (pod, _) in WRITERS {
            let before = self.lines_of(pod)?;
            self.cluster.wait_for(&format!("{pod} to go on writing"), || Ok(self.lines_of(pod)? > before))?;
        }
        let device = self.stage.run_in("block", "dd if=/dev/data bs=8 count=1 2>/dev/null")?;
        ensure!(device == "precious", "the device has {device:?}");
        Ok(())
    }

    /// How many lines a pod has written, all of them in their order.
    fn lines_of(&self, pod: &str) -> Result<usize> {
        let log = self.stage.run_in(pod, "cat /data/log")?;
        let gap = log.lines().zip(1..).find(|(line, number)| line.parse() != Ok::<usize, _>(*number));
        ensure!(gap.is_none(), "{pod} has written {gap:?}");
        Ok(log.lines().count())
    }

    /// Old volumes are lvms' own.
    fn lvms_goes_on(&self) -> Result<()> {
        let stage = self.stage;
        stage.snapshot("thick", "thick", THIN)?;
        stage.restore("restored", "before", THIN, "1Gi")?;
        stage.make_pod("restored", "restored", None)?;
        self.grows("thin", "2Gi", 2 * GIB)?;
        self.stage.await_snapshot("thick")?;
        stage.await_pod("restored")?;
        let (then, now) = (stage.run_in("restored", READ)?, stage.run_in("thin", READ)?);
        ensure!(then == now, "the snapshot has {then}, its origin {now}");
        self.vanishes("idle")
    }

    /// Volumes that lvms has made or grown are TopoLVM's own.
    fn topolvm_goes_on(&self) -> Result<()> {
        let stage = self.stage;
        stage.snapshot("after", "thin", THIN)?;
        stage.claim("new", THICK, "1Gi")?;
        stage.make_pod("new", "new", None)?;
        self.grows("thick", "3Gi", 3 * GIB)?;
        self.stage.await_snapshot("after")?;
        stage.await_pod("new")?;
        for pod in ["meanwhile", "restored"] {
            stage.remove_pod(pod)?;
            self.vanishes(pod)?;
        }
        Ok(())
    }

    /// Deletes a claim, and waits until its LV is gone, too.
    fn vanishes(&self, claim: &str) -> Result<()> {
        let volume = self.cluster.get([self.kind().as_str(), &self.volume_of(claim)?])?;
        let id = text(&volume["status"]["volumeID"])?;
        self.stage.kubectl(&["delete", "pvc", claim, "--wait=false"])?;
        self.cluster
            .wait_for(&format!("the volume of {claim} to be gone"), || Ok(!lvs(self.cluster)?.contains(&id)))
    }

    fn grows(&self, claim: &str, size: &str, bytes: u64) -> Result<()> {
        self.stage.grow(claim, size)?;
        self.cluster.wait_for(&format!("{claim} to have {size}"), || self.has_grown(claim, size, bytes))
    }

    /// Whether the claim says so, and its filesystem is nearly as large.
    fn has_grown(&self, claim: &str, size: &str, bytes: u64) -> Result<bool> {
        let told = self.stage.get("pvc", claim)?;
        ensure!(told["status"]["capacity"]["storage"] == size, "the claim has {}", told["status"]);
        Ok(filesystem_size(&self.stage.run_in(claim, "df -P -k /data")?)? > bytes / 10 * 9)
    }

    /// The name of a claim's PersistentVolume and LogicalVolume.
    fn volume_of(&self, claim: &str) -> Result<String> {
        text(&self.stage.get("pvc", claim)?["spec"]["volumeName"])
    }

    fn kind(&self) -> String {
        format!("logicalvolumes.{}", self.name.driver())
    }

    fn patch(&self, volume: &str, patch: &Value, status: bool) -> Result<()> {
        let (kind, patch) = (self.kind(), patch.to_string());
        let arguments = ["patch", &kind, volume, "--type=merge", "--patch", &patch];
        let part = status.then_some("--subresource=status");
        self.cluster.kubectl(arguments.into_iter().chain(part)).map(drop)
    }
}

/// What every change that the API was asked for is written to.
const AUDIT: &str = "audit.log";

/// What lvms may write before it leads: who of its own is to lead, and what it waits for.
const OWN: [&str; 2] = ["lvms-system leases", "topolvm-system events"];

/// What lvms has changed, by namespace and kind.
fn written_by_lvms(log: &str) -> BTreeSet<String> {
    let requests = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let written = requests.filter(|request| {
        let user = request["user"]["username"].as_str().unwrap_or_default();
        let verb = request["verb"].as_str().unwrap_or_default();
        user.starts_with("system:serviceaccount:lvms-system:") && !["get", "list", "watch"].contains(&verb)
    });
    let place = |request: Value| {
        let part = |name: &str| request["objectRef"][name].as_str().unwrap_or_default().to_owned();
        format!("{} {}", part("namespace"), part("resource"))
    };
    written.map(place).collect()
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().with_context(|| format!("{value} is no text"))?.to_owned())
}
