//! `lvms single-node` in a Kubernetes with one node: a claim, a pod, a snapshot, growth, a restore, and what Kubernetes
//! and LVM say of each.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab_protocol::disk::GIB;

use crate::cache::Cache;
use crate::cluster::programs::{NodeFile, Programs};
use crate::cluster::{Cluster, Options};
use crate::deployed::{self, NAMESPACE, Shape};
use crate::lab::Lab;
use crate::suites::stage::{Product, Stage, filesystem_size, on_a_stage};
use crate::{peers, progress};

/// What its node needs.
pub(super) fn node_files(cache: &Cache, run: &Path) -> Result<Vec<NodeFile>> {
    let mut files = peers::node_files(cache)?;
    files.extend(deployed::node_files(run)?);
    Ok(files)
}

/// Shows it.
pub(super) fn show(lab: &Arc<Lab>, cache: &Cache, programs: &Programs) -> Result<()> {
    let images = [deployed::IMAGES, peers::IMAGES[0]].map(str::to_owned).to_vec();
    let cluster = Cluster::start(lab, programs, &Options { images, ..Options::nodes(1) })?;
    let shown = peers::snapshots::install(cache, &cluster)
        .and_then(|()| deployed::install(&cluster, Shape::SingleNode))
        .and_then(|()| Story { cluster: &cluster, steps: Vec::new() }.tell());
    shown.inspect_err(|_| {
        cluster.collect_logs();
        deployed::collect_logs(&cluster, "demo");
    })
}

const LVMS: Product = Product { space: deployed::space, collect_logs: deployed::collect_logs };

const THEN: &str = "Dear diary, today I was stored.";
const NOW: &str = "Never mind.";

/// What is told, step by step.
struct Story<'a> {
    cluster: &'a Cluster,
    /// What was done and how long it took.
    steps: Vec<(&'static str, Duration)>,
}

impl Story<'_> {
    fn tell(mut self) -> Result<()> {
        println!("\nA Kubernetes with one node, and lvms in one pod, without sidecars:");
        self.kubectl(&["get", "nodes"])?;
        self.kubectl(&["--namespace", NAMESPACE, "get", "pods"])?;
        println!("\nThe node says what it has:");
        self.kubectl(&["--namespace", NAMESPACE, "get", "lvmnodes"])?;
        self.lvm("vgs --options vg_name,vg_size,vg_free")?;
        let cluster = self.cluster;
        on_a_stage(cluster, &LVMS, "demo", "", |stage| self.life(stage))?;
        println!("\nEverything was removed again, and all space is free that was free before:");
        self.kubectl(&["get", "pv"])?;
        self.lvm("lvs --options lv_name,lv_size,data_percent thin1")?;
        println!("\nHow long it took, in an emulated machine:");
        for (what, took) in &self.steps {
            println!("   {:>5.1} s  {what}", took.as_secs_f64());
        }
        println!("\nThat was lvms. `docs/kubernetes.md` tells how to use it.");
        Ok(())
    }

    fn life(&mut self, stage: &Stage<'_>) -> Result<()> {
        let cluster = self.cluster;
        self.step("A claim asks for 1 GiB of the thin class.", || stage.claim("diary", "thin", "1Gi"))?;
        println!("   It waits for a pod: the volume is to be where that runs.");
        self.of(stage, &["get", "pvc"])?;

        self.step("A pod wants it: lvms makes the volume, formats it with xfs and mounts it.", || {
            stage.start_pod("writer", "diary", None)
        })?;
        self.of(stage, &["get", "pvc,pods"])?;
        self.kubectl(&["get", "logicalvolumes"])?;
        self.lvm("lvs --options lv_name,lv_size,pool_lv,data_percent,lv_tags thin1")?;
        ensure!(
            stage.get("pvc", "diary")?["status"]["capacity"]["storage"] == "1Gi",
            "the claim has not 1 GiB"
        );

        self.step("Somebody writes.", || write(stage, THEN))?;
        self.in_pod(stage, "writer")?;

        self.step("A snapshot is taken.", || {
            stage.snapshot("monday", "diary", "lvms")?;
            stage.await_snapshot("monday")
        })?;
        self.of(stage, &["get", "volumesnapshots"])?;
        self.lvm("lvs --options lv_name,lv_size,origin,lv_permissions thin1")?;

        self.step("Somebody regrets what was written.", || write(stage, NOW))?;
        self.in_pod(stage, "writer")?;

        let size = || filesystem_size(&stage.run_in("writer", "df -P -k /data")?);
        let before = size()?;
        self.step("The claim asks for 2 GiB: volume and filesystem grow while the pod runs.", || {
            stage.grow("diary", "2Gi")?;
            cluster.wait_for("the claim to have 2 GiB", || {
                Ok(stage.get("pvc", "diary")?["status"]["capacity"]["storage"] == "2Gi")
            })
        })?;
        let after = size()?;
        ensure!(after > before + GIB / 2, "the filesystem had {before} bytes and has {after}");
        self.of(stage, &["get", "pvc"])?;
        self.of(stage, &["exec", "writer", "--", "df", "-h", "/data"])?;
        self.lvm("lvs --options lv_name,lv_size,origin,data_percent thin1")?;

        self.step("The snapshot is restored into a new volume, beside the old one.", || {
            stage.restore("restored", "monday", "thin", "1Gi")?;
            stage.start_pod("reader", "restored", None)
        })?;
        self.of(stage, &["get", "pvc,pods"])?;
        self.kubectl(&["get", "logicalvolumes"])?;
        let (restored, now) = (self.in_pod(stage, "reader")?, self.in_pod(stage, "writer")?);
        ensure!(restored == THEN, "restored is {restored:?}");
        ensure!(now == NOW, "the origin has {now:?}");
        self.lvm("lvs --options lv_name,lv_size,pool_lv,origin,data_percent,lv_tags thin1")?;
        println!("\n{}. Pods, claims and snapshot are deleted.", self.steps.len() + 1);
        Ok(())
    }

    /// Tells what is done, and does it.
    fn step<T>(&mut self, what: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("\n{}. {what}", self.steps.len() + 1);
        let began = Instant::now();
        let step = progress::step("at work");
        let done = act()?;
        step.done();
        self.steps.push((what, began.elapsed()));
        Ok(done)
    }

    /// Shows what Kubernetes says.
    fn kubectl(&self, words: &[&str]) -> Result<()> {
        print("kubectl", words, &self.cluster.kubectl(words)?);
        Ok(())
    }

    /// The same, of the namespace of the story.
    fn of(&self, stage: &Stage<'_>, words: &[&str]) -> Result<()> {
        print("kubectl", words, &stage.kubectl(words)?);
        Ok(())
    }

    /// Shows what LVM says.
    fn lvm(&self, command: &str) -> Result<()> {
        let node = self.cluster.nodes().first().context("a node")?;
        // All of its lines begin with two blanks.
        let text = node.guest.script(command).run()?.text();
        print(
            command,
            &[],
            &text.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect::<Vec<_>>().join("\n"),
        );
        Ok(())
    }

    /// Shows what is written in a pod's volume.
    fn in_pod(&self, stage: &Stage<'_>, pod: &str) -> Result<String> {
        let text = stage.run_in(pod, "cat /data/diary")?;
        print("kubectl", &["exec", pod, "--", "cat", "/data/diary"], &text);
        Ok(text)
    }
}

fn write(stage: &Stage<'_>, text: &str) -> Result<()> {
    stage.run_in("writer", &format!("echo '{text}' > /data/diary && sync")).map(drop)
}

fn print(program: &str, words: &[&str], printed: &str) {
    println!("\n   $ {}", [&[program], words].concat().join(" "));
    for line in printed.lines() {
        println!("   {}", line.trim_end());
    }
}
