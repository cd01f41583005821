//! A real Kubernetes: the control plane on this machine, inside the lab's namespaces; each node a guest.
//!
//! - [`programs`]: which version, its programs, and the image that nodes run them from.
//! - [`certificates`]: made for the run.
//! - [`control_plane`]: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy.
//! - [`node`]: containerd, kubelet in a guest.
//! - [`images`]: container images without a registry.

mod certificates;
mod control_plane;
pub(crate) mod images;
mod node;
pub(crate) mod programs;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use lab_protocol::disk::{Disk, link_by_id};

pub(crate) use certificates::{Authority, base64};
pub(crate) use control_plane::Part;
pub(crate) use node::Node;

use crate::cluster::control_plane::ControlPlane;
use crate::cluster::programs::Programs;
use crate::guest::Guest;
use crate::lab::Lab;
use crate::{process, progress};

/// Conditions are awaited this long: emulated nodes are slow, and this machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(420);

/// Where a kubelet has its directory, if nobody says otherwise.
pub(crate) const KUBELET: &str = "/var/lib/kubelet";

/// What a cluster shall be.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// How many nodes, 1 to 3.
    pub(crate) nodes: u8,
    /// Feature gates, as `Name=true`, for all programs.
    pub(crate) feature_gates: Vec<String>,
    /// Whether every change that the API is asked for is written to `audit.log`, and what lvms watches.
    pub(crate) audit: bool,
    /// Container images that nodes get beside the lab's own, by file name in `/opt/lab/images`.
    pub(crate) images: Vec<String>,
    /// The kubelets' directory.
    pub(crate) kubelet: &'static str,
}

impl Options {
    /// A cluster of so many nodes.
    pub(crate) fn nodes(nodes: u8) -> Options {
        Options { nodes, feature_gates: Vec::new(), audit: false, images: Vec::new(), kubelet: KUBELET }
    }
}

/// A cluster. Dropped, its nodes lose their power and the control plane is killed.
pub(crate) struct Cluster {
    programs: Programs,
    authority: Authority,
    nodes: Vec<Node>,
    control_plane: Mutex<ControlPlane>,
    kubelet: &'static str,
}

/// The administrator's way in, in the run's directory.
pub(crate) const ADMIN: &str = "admin.kubeconfig";

impl Cluster {
    /// Starts one, and returns when all nodes are Ready.
    pub(crate) fn start(lab: &Arc<Lab>, programs: &Programs, options: &Options) -> Result<Cluster> {
        if !(1..=3).contains(&options.nodes) {
            bail!("a cluster has 1 to 3 nodes, not {}", options.nodes);
        }
        let step = progress::step(format!(
            "starting Kubernetes {} with {} node(s)",
            programs.version, options.nodes
        ));
        // What kubectl remembers of another cluster of this run, at the same address, is not true of this one.
        let _ = std::fs::remove_dir_all(".kube");
        let authority = Authority::new("lab")?;
        let numbers: Vec<u8> = (0..options.nodes).collect();
        let (control_plane, guests) = std::thread::scope(|scope| {
            let boots: Vec<_> = numbers
                .iter()
                .map(|number| scope.spawn(|| node::boot(lab, programs, options, *number)))
                .collect();
            let control_plane = ControlPlane::start(lab, programs, options, &authority)?;
            let guests =
                boots.into_iter().map(|boot| boot.join().map_err(|_| anyhow::anyhow!("a boot panicked"))?);
            Ok::<_, anyhow::Error>((control_plane, guests.collect::<Result<Vec<_>>>()?))
        })?;
        step.note("nodes have booted");
        let address = control_plane.address;
        let nodes = std::thread::scope(|scope| {
            let (authority, all) = (&authority, &guests);
            let joins: Vec<_> = numbers
                .iter()
                .map(|number| scope.spawn(move || Node::join(lab, authority, address, all, *number, options)))
                .collect();
            let nodes =
                joins.into_iter().map(|join| join.join().map_err(|_| anyhow::anyhow!("a node panicked"))?);
            nodes.collect::<Result<Vec<_>>>()
        })?;
        let cluster = Cluster {
            programs: programs.clone(),
            authority,
            nodes,
            control_plane: Mutex::new(control_plane),
            kubelet: options.kubelet,
        };
        step.note("waiting for nodes to be Ready");
        cluster.await_nodes().inspect_err(|_| cluster.collect_logs())?;
        step.done();
        Ok(cluster)
    }

    /// Its nodes.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The directory of its kubelets.
    pub(crate) fn kubelet(&self) -> &'static str {
        self.kubelet
    }

    /// Who signs its certificates.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A way in for a user.
    pub(crate) fn kubeconfig(&self, user: &str, groups: &[&str]) -> Result<String> {
        let address = self.control_plane().address;
        self.authority.kubeconfig(address, user, groups)
    }

    /// Kills a program of the control plane.
    pub(crate) fn kill(&self, part: Part) -> Result<()> {
        self.control_plane().kill(part)
    }

    /// Starts it again, and returns when the API server is ready.
    pub(crate) fn start_again(&self, part: Part) -> Result<()> {
        let mut plane = self.control_plane();
        plane.start_again(part)?;
        plane.await_apiserver(&self.programs)
    }

    fn control_plane(&self) -> MutexGuard<'_, ControlPlane> {
        self.control_plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs kubectl and returns what it printed.
    pub(crate) fn kubectl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        process::run_within(kubectl(&self.programs).args(arguments), &[], PATIENCE)
    }

    /// Runs a script as an administrator would, with `kubectl` and the programs of the run's directory. Returns what it
    /// printed.
    pub(crate) fn script(&self, script: &str) -> Result<String> {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", script]).env("KUBECONFIG", ADMIN).env("HOME", ".");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = [std::env::current_dir()?, self.programs.kubernetes.clone()];
        bash.env("PATH", std::env::join_paths(places.into_iter().chain(std::env::split_paths(&path)))?);
        process::run_within(&mut bash, &[], 4 * PATIENCE)
    }

    /// What kubectl's `-o json` shows.
    pub(crate) fn get<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<serde_json::Value> {
        let text = process::run(kubectl(&self.programs).arg("get").args(arguments).args(["-o", "json"]))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Plugs a disk into a node's machine, and returns its path when it is there.
    pub(crate) fn plug(&self, guest: &Guest, disk: Disk) -> Result<String> {
        let disk = link_by_id(&guest.plug_new(disk)?);
        self.wait_for(&format!("udev to find {disk}"), || {
            guest.command(["test", "-b", &disk]).run()?;
            Ok(true)
        })?;
        Ok(disk)
    }

    /// Applies manifests.
    pub(crate) fn apply(&self, yaml: &str) -> Result<()> {
        let mut kubectl = kubectl(&self.programs);
        kubectl.args(["apply", "--server-side", "--force-conflicts", "-f", "-"]);
        process::run_with_input(&mut kubectl, yaml.as_bytes())?;
        Ok(())
    }

    /// Waits until `condition` holds. It may fail meanwhile; the last failure is told if it never holds.
    pub(crate) fn wait_for(&self, what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = None;
        loop {
            match condition() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => last = Some(error),
            }
            if Instant::now() > deadline {
                return Err(last.unwrap_or_else(|| anyhow::anyhow!("it never failed, and never held")))
                    .with_context(|| format!("waited in vain for {what}"));
            }
            // Each look starts kubectl, which the guests pay for.
            std::thread::sleep(Duration::from_millis(700));
        }
    }

    fn await_nodes(&self) -> Result<()> {
        self.wait_for("all nodes to be Ready", || {
            let path = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
            let ready = self.kubectl(["get", "nodes", "-o", path])?;
            Ok(ready.split_whitespace().filter(|status| *status == "True").count() == self.nodes.len())
        })?;
        // Made by the controller manager a moment after the namespace; without it no pod can be.
        self.wait_for("the default service account", || Ok(self.get(["serviceaccount", "default"]).is_ok()))
    }

    /// Brings the logs of all nodes into the run's directory.
    pub(crate) fn collect_logs(&self) {
        for node in &self.nodes {
            node.collect_logs();
        }
    }
}

/// kubectl as the administrator, from within the lab.
pub(crate) fn kubectl(programs: &Programs) -> Command {
    let mut kubectl = Command::new(programs.kubernetes.join("kubectl"));
    kubectl.env("KUBECONFIG", ADMIN).env("HOME", PathBuf::from("."));
    kubectl
}
