//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler, on this machine.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::certificates::{Authority, token_keys};
use super::programs::Programs;
use super::{Options, kubectl};
use crate::lab::Lab;
use crate::process;

/// Services have addresses in this range; the first is the API server's.
pub(super) const SERVICES: &str = "10.96.0.0/16";

/// The running programs; killed when dropped.
pub(super) struct ControlPlane {
    /// Where the API server is.
    pub(super) address: Ipv4Addr,
    programs: Vec<(String, Child)>,
}

impl ControlPlane {
    /// Starts all four. Returns when the API server is ready.
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
        plane.spawn(&mut Command::new(programs.etcd.join("server")), "etcd", etcd, "")?;
        let mut apiserver = format!(
            "--etcd-servers=http://127.0.0.1:2379 --advertise-address={address} --secure-port=6443 \
             --cert-dir=pki --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key \
             --client-ca-file=pki/ca.crt --kubelet-certificate-authority=pki/ca.crt \
             --kubelet-client-certificate=pki/kubelet-client.crt --kubelet-client-key=pki/kubelet-client.key \
             --kubelet-preferred-address-types=InternalIP \
             --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=pki/tokens.pub \
             --service-account-signing-key-file=pki/tokens.key --service-cluster-ip-range={SERVICES} \
             --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged \
             --enable-aggregator-routing --watch-cache=true"
        );
        if options.audit {
            fs::write(
                "audit-policy.json",
                r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}"#,
            )?;
            apiserver += " --audit-policy-file=audit-policy.json --audit-log-path=audit.log";
        }
        let program = |name: &str| Command::new(programs.kubernetes.join(name));
        plane.spawn(&mut program("kube-apiserver"), "kube-apiserver", &apiserver, &gates)?;
        plane.await_apiserver(programs)?;
        // The usual rate limits would make them, and not a driver, what a benchmark measures.
        let client = "--leader-elect=false --kube-api-qps=500 --kube-api-burst=1000 --bind-address=127.0.0.1";
        let manager = format!(
            "{client} --kubeconfig=pki/controller-manager.kubeconfig --use-service-account-credentials \
             --service-account-private-key-file=pki/tokens.key --root-ca-file=pki/ca.crt \
             --node-monitor-grace-period=120s"
        );
        plane.spawn(&mut program("kube-controller-manager"), "kube-controller-manager", &manager, &gates)?;
        let scheduler = format!("{client} --kubeconfig=pki/scheduler.kubeconfig");
        plane.spawn(&mut program("kube-scheduler"), "kube-scheduler", &scheduler, &gates)?;
        Ok(plane)
    }

    fn spawn(&mut self, command: &mut Command, name: &str, arguments: &str, gates: &str) -> Result<()> {
        // Appended to: a run may have one cluster after the other.
        let log = File::options().create(true).append(true).open(format!("{name}.log"))?;
        command.args(arguments.split_whitespace());
        if !gates.is_empty() {
            command.arg(format!("--feature-gates={gates}"));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.programs.push((name.to_owned(), command.spawn().with_context(|| name.to_owned())?));
        Ok(())
    }

    fn await_apiserver(&mut self, programs: &Programs) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            if process::run(kubectl(programs).args(["get", "--raw", "/readyz"])).is_ok() {
                return Ok(());
            }
            for program in &mut self.programs {
                if let Some(status) = program.1.try_wait()? {
                    let log = fs::read_to_string(format!("{}.log", program.0)).unwrap_or_default();
                    bail!("{} ended with {status}: {}", program.0, process::last_lines(&log, 8));
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
        for (_, program) in self.programs.iter_mut().rev() {
            let _ = program.kill();
            let _ = program.wait();
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
    for (file, user) in
        [("controller-manager", "system:kube-controller-manager"), ("scheduler", "system:kube-scheduler")]
    {
        fs::write(format!("pki/{file}.kubeconfig"), authority.kubeconfig(address, user, &[])?)?;
    }
    fs::write(super::ADMIN, authority.kubeconfig(address, "admin", &["system:masters"])?)?;
    Ok(())
}
