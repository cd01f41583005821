//! A node: containerd and kubelet in a guest.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::certificates::Authority;
use super::programs::Programs;
use super::{Options, images};
use crate::guest::{Guest, Spec};
use crate::lab::Lab;

/// Pods have addresses in this range, a part of it on each node.
pub(super) const PODS: &str = "10.89.0.0/16";

/// Programs of a node whose logs tell what went wrong.
const LOGS: [&str; 2] = ["containerd", "kubelet"];

/// One node of a cluster.
pub(crate) struct Node {
    /// Its name, as Kubernetes knows it.
    pub(crate) name: String,
    /// The machine that it is.
    pub(crate) guest: Arc<Guest>,
}

/// The name of the node with this number.
pub(super) fn name(number: u8) -> String {
    format!("node-{number}")
}

/// Boots the guest for the node with this number.
pub(super) fn boot(lab: &Arc<Lab>, programs: &Programs, options: &Options, number: u8) -> Result<Arc<Guest>> {
    let spec = Spec {
        cpus: if options.nodes == 1 { 2 } else { 1 },
        memory_mib: 2048,
        state: true,
        programs: Some(programs.node_image.clone()),
        ..Spec::new(&name(number))
    };
    Guest::boot(lab, spec, Vec::new())
}

/// The addresses of the pods on the node with this number.
fn pods_of(number: u8) -> String {
    format!("10.89.{number}.0/24")
}

impl Node {
    /// Starts the node's programs.
    pub(super) fn join(
        lab: &Lab,
        authority: &Authority,
        server: Ipv4Addr,
        all: &[Arc<Guest>],
        number: u8,
        options: &Options,
    ) -> Result<Node> {
        let guest = Arc::clone(&all[usize::from(number)]);
        let name = guest.name().to_owned();
        lab.network.route(&pods_of(number), guest.address)?;
        let serving = authority.server(&name, &[&name], &[guest.address])?;
        let user = format!("system:node:{name}");
        let files = [
            ("etc/containerd/config.toml", CONTAINERD.to_owned()),
            ("etc/cni/net.d/10-lab.conflist", cni(number)),
            ("etc/kubernetes/ca.crt", authority.certificate.clone()),
            ("etc/kubernetes/kubelet.crt", serving.certificate),
            ("etc/kubernetes/kubelet.key", serving.key),
            ("etc/kubernetes/kubelet.kubeconfig", authority.kubeconfig(server, &user, &["system:nodes"])?),
            ("etc/kubernetes/kubelet.json", kubelet(options)),
            ("etc/kubernetes/start-kubelet", kubelet_script(&name, guest.address, options.kubelet)),
            ("etc/kubernetes/start", start_script(options)),
        ];
        let node = Node { name, guest };
        let guest = &node.guest;
        guest.command(["tar", "--extract", "--directory", "/"]).stdin(archive(&files)?).run()?;
        let others = all.iter().zip(0u8..).filter(|(_, other)| *other != number);
        let routes: Vec<_> = others
            .map(|(other, number)| format!("ip route replace {} via {}", pods_of(number), other.address))
            .collect();
        guest.script(&routes.join("\n")).run()?;
        let started = guest.command(["bash", "/etc/kubernetes/start"]).limit(Duration::from_secs(400)).run();
        started.inspect_err(|_| node.collect_logs())?;
        Ok(node)
    }

    /// Kills the kubelet and starts it again.
    pub(crate) fn restart_kubelet(&self) -> Result<()> {
        self.guest
            .script("pkill -9 -x kubelet; while pgrep -x kubelet; do sleep 0.1; done; sh /etc/kubernetes/start-kubelet")
            .run()?;
        Ok(())
    }

    pub(super) fn collect_logs(&self) {
        for program in LOGS {
            if let Ok(log) = self.guest.get(format!("/var/log/{program}.log")) {
                let _ = fs::write(format!("{}-{program}.log", self.name), log);
            }
        }
    }
}

/// Several files in one go: starting a program in an emulated guest costs more than its bytes.
fn archive(files: &[(&str, String)]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content.as_bytes())?;
    }
    Ok(archive.into_inner()?)
}

const CONTAINERD: &str = r#"
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "lab.lvms.io/busybox:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  # Starts a container with a sixth less work than runc.
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/usr/bin/crun"
"#;

fn cni(number: u8) -> String {
    let plugin = serde_json::json!({
        "type": "ptp",
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods_of(number)}]], "routes": [{"dst": "0.0.0.0/0"}]},
    });
    serde_json::json!({"cniVersion": "0.4.0", "name": "lab", "plugins": [plugin]}).to_string()
}

fn kubelet(options: &Options) -> String {
    let gates: serde_json::Map<String, serde_json::Value> = options
        .feature_gates
        .iter()
        .filter_map(|gate| gate.split_once('='))
        .map(|(name, value)| (name.to_owned(), (value == "true").into()))
        .collect();
    serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": "/etc/kubernetes/kubelet.crt", "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "failSwapOn": false, "resolvConf": "/etc/resolv.conf",
        "imageGCHighThresholdPercent": 100, "evictionHard": {"memory.available": "20Mi", "nodefs.available": "1%"},
        "kubeAPIQPS": 500, "kubeAPIBurst": 1000, "featureGates": gates,
    })
    .to_string()
}

/// Programs that stay must not hold a script's outputs, or the script would not end.
fn kubelet_script(name: &str, address: Ipv4Addr, directory: &str) -> String {
    format!(
        "setsid kubelet --root-dir={directory} --config=/etc/kubernetes/kubelet.json --kubeconfig=/etc/kubernetes/kubelet.kubeconfig \
 --hostname-override={name} --node-ip={address} </dev/null >>/var/log/kubelet.log 2>&1 &
"
    )
}

fn start_script(options: &Options) -> String {
    let images: Vec<String> =
        [images::OWN].into_iter().map(str::to_owned).chain(options.images.iter().cloned()).collect();
    format!(
        "set -eu
for driver in overlay veth loop; do modprobe \"$driver\"; done
stay() {{ name=$1; shift; setsid \"$@\" </dev/null >>\"/var/log/$name.log\" 2>&1 & }}
stay containerd containerd
until ctr version >/dev/null 2>&1; do sleep 0.2; done
for image in {images}; do ctr -n k8s.io images import \"/opt/lab/images/$image\"; done
sh /etc/kubernetes/start-kubelet
",
        images = images.join(" ")
    )
}
