//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler, on this machine. Each can be killed and started
//! again.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::certificates::{Authority, token_keys};
use super::node::{self, PODS};
use super::programs::Programs;
use super::{Options, kubectl};
use crate::lab::Lab;
use crate::process;

/// Services have addresses in this range; the first is the API server's.
pub(super) const SERVICES: &str = "10.96.0.0/16";

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    /// One for all nodes: what they send to a service's address comes by the lab, and goes on to a pod from here.
    Proxy,
}

impl Part {
    /// What it is called, and its log.
    fn name(self) -> &'static str {
        match self {
            Part::Etcd => "etcd",
            Part::ApiServer => "kube-apiserver",
            Part::ControllerManager => "kube-controller-manager",
            Part::Scheduler => "kube-scheduler",
            Part::Proxy => "kube-proxy",
        }
    }
}

/// One of the programs, and its process while it runs.
struct Program {
    part: Part,
    command: Command,
    process: Option<Child>,
}

/// The running programs; killed when dropped.
pub(super) struct ControlPlane {
    /// Where the API server is.
    pub(super) address: Ipv4Addr,
    programs: Vec<Program>,
}

impl ControlPlane {
    /// Starts all of them. Returns when the API server is ready.
    pub(super) fn start(
        lab: &Lab,
        programs: &Programs,
        options: &Options,
        authority: &Authority,
    ) -> Result<ControlPlane> {
        let address = lab.network.gateway();
        let mut plane = ControlPlane { address, programs: Vec::new() };
        write_files(address, authority)?;
        let gates = options.feature_gates.join(",");
        let etcd = "--data-dir=etcd --unsafe-no-fsync --log-level=warn \
                    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
                    --listen-peer-urls=http://127.0.0.1:2380";
        plane.add(Part::Etcd, Command::new(programs.etcd.join("server")), etcd, "")?;
        // Events outlive the longest run: what looks at its end whether there were any must find them.
        let mut apiserver = format!(
            "--etcd-servers=http://127.0.0.1:2379 --advertise-address={address} --secure-port=6443 \
             --cert-dir=pki --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key \
             --client-ca-file=pki/ca.crt --kubelet-certificate-authority=pki/ca.crt \
             --kubelet-client-certificate=pki/kubelet-client.crt --kubelet-client-key=pki/kubelet-client.key \
             --kubelet-preferred-address-types=InternalIP \
             --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=pki/tokens.pub \
             --service-account-signing-key-file=pki/tokens.key --service-cluster-ip-range={SERVICES} \
             --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged \
             --enable-aggregator-routing --watch-cache=true --event-ttl=24h"
        );
        if options.audit {
            fs::write(
                "audit-policy.json",
                r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[
                    {"level":"Metadata","verbs":["watch"],"userGroups":["system:serviceaccounts:lvms-system"]},
                    {"level":"None","verbs":["get","list","watch"]},{"level":"Metadata"}]}"#,
            )?;
            apiserver +=
                " --audit-policy-file=audit-policy.json --audit-log-path=audit.log --audit-log-maxsize=4096";
        }
        let program = |part: Part| Command::new(programs.kubernetes.join(part.name()));
        plane.add(Part::ApiServer, program(Part::ApiServer), &apiserver, &gates)?;
        plane.await_apiserver(programs)?;
        // The usual rate limits would make them, and not a driver, what a benchmark measures.
        let client = "--leader-elect=false --kube-api-qps=500 --kube-api-burst=1000 --bind-address=127.0.0.1";
        let manager = format!(
            "{client} --kubeconfig=pki/controller-manager.kubeconfig --use-service-account-credentials \
             --service-account-private-key-file=pki/tokens.key --root-ca-file=pki/ca.crt \
             --node-monitor-grace-period=120s --vmodule=pvc_protection_controller=4"
        );
        plane.add(Part::ControllerManager, program(Part::ControllerManager), &manager, &gates)?;
        let scheduler = format!("{client} --kubeconfig=pki/scheduler.kubeconfig");
        plane.add(Part::Scheduler, program(Part::Scheduler), &scheduler, &gates)?;
        let proxy = format!(
            "--kubeconfig=pki/proxy.kubeconfig --hostname-override={} --cluster-cidr={PODS} --proxy-mode=iptables \
             --masquerade-all --bind-address={address} --conntrack-max-per-core=0 --conntrack-min=0",
            node::name(0)
        );
        plane.add(Part::Proxy, program(Part::Proxy), &proxy, &gates)?;
        Ok(plane)
    }

    fn add(&mut self, part: Part, mut command: Command, arguments: &str, gates: &str) -> Result<()> {
        // Appended to: a run may have one cluster after the other, and a program may be started again.
        let log = File::options().create(true).append(true).open(format!("{}.log", part.name()))?;
        command.args(arguments.split_whitespace());
        if !gates.is_empty() {
            command.arg(format!("--feature-gates={gates}"));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.programs.push(Program { part, command, process: None });
        self.start_again(part)
    }

    fn program(&mut self, part: Part) -> Result<&mut Program> {
        let found = self.programs.iter_mut().find(|program| program.part == part);
        found.with_context(|| format!("there is no {}", part.name()))
    }

    /// Kills a program, if it runs.
    pub(super) fn kill(&mut self, part: Part) -> Result<()> {
        if let Some(mut process) = self.program(part)?.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Starts a program that does not run.
    pub(super) fn start_again(&mut self, part: Part) -> Result<()> {
        let program = self.program(part)?;
        if program.process.is_none() {
            program.process = Some(program.command.spawn().with_context(|| part.name())?);
        }
        Ok(())
    }

    /// Waits until the API server answers.
    pub(super) fn await_apiserver(&mut self, programs: &Programs) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            if process::run(kubectl(programs).args(["get", "--raw", "/readyz"])).is_ok() {
                return Ok(());
            }
            for Program { part, process, .. } in &mut self.programs {
                let ended = process.as_mut().map(Child::try_wait).transpose()?.flatten();
                if let Some(status) = ended {
                    let log = fs::read_to_string(format!("{}.log", part.name())).unwrap_or_default();
                    bail!("{} ended with {status}: {}", part.name(), process::last_lines(&log, 8));
                }
            }
            if Instant::now() > deadline {
                let log = fs::read_to_string("kube-apiserver.log").unwrap_or_default();
                bail!("the API server is not ready: {}", process::last_lines(&log, 8));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for process in self.programs.iter_mut().rev().filter_map(|program| program.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all("etcd");
    }
}

fn write_files(address: Ipv4Addr, authority: &Authority) -> Result<()> {
    fs::create_dir_all("pki")?;
    fs::write("pki/ca.crt", &authority.certificate)?;
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let addresses = [address, Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 96, 0, 1)];
    for (file, identity) in [
        ("apiserver", authority.server("kube-apiserver", &names, &addresses)?),
        ("kubelet-client", authority.client("kube-apiserver", &["system:masters"])?),
    ] {
        fs::write(format!("pki/{file}.crt"), identity.certificate)?;
        fs::write(format!("pki/{file}.key"), identity.key)?;
    }
    let (private, public) = token_keys()?;
    fs::write("pki/tokens.key", private)?;
    fs::write("pki/tokens.pub", public)?;
    for (file, user) in [
        ("controller-manager", "system:kube-controller-manager"),
        ("scheduler", "system:kube-scheduler"),
        ("proxy", "system:kube-proxy"),
    ] {
        fs::write(format!("pki/{file}.kubeconfig"), authority.kubeconfig(address, user, &[])?)?;
    }
    fs::write(super::ADMIN, authority.kubeconfig(address, "admin", &["system:masters"])?)?;
    Ok(())
}
