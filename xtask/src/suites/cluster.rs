//! A Kubernetes with three nodes: pods, services, a webhook served from a pod.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};

use super::parts::Parts;
use super::{Choice, Results, Suite};
use crate::cluster::programs::Programs;
use crate::cluster::{Cluster, Options};
use crate::lab::Lab;

/// A test that shares a cluster with others.
#[derive(Clone, Copy)]
pub(super) enum Case {
    One(&'static str, fn(&Cluster) -> Result<()>),
    /// Several, each of which goes on with what those before it have left: whoever asks for one gets all.
    Several(&'static [&'static str], fn(&Cluster, &Parts) -> Result<()>),
}

impl Case {
    fn names(&self) -> &[&'static str] {
        match self {
            Case::One(name, _) => std::slice::from_ref(name),
            Case::Several(names, _) => names,
        }
    }

    fn run(&self, suite: &str, cluster: &Cluster, results: &mut Results) -> bool {
        match self {
            Case::One(name, body) => results.run(suite, name, || body(cluster)),
            Case::Several(names, body) => results.run_parts(suite, names, |parts| body(cluster, parts)),
        }
    }
}

const CASES: &[Case] = &[
    Case::One("three_nodes_are_ready", three_nodes_are_ready),
    Case::One("feature_gates_and_the_audit_log_are_as_asked", feature_gates_and_the_audit_log_are_as_asked),
    Case::One("a_pod_on_each_node_reaches_a_service", a_pod_on_each_node_reaches_a_service),
    Case::One("a_webhook_served_from_a_pod_rejects_an_object", a_webhook_served_from_a_pod_rejects_an_object),
];

/// A feature gate that every program of every version in the lab knows and has on by itself.
const GATE: &str = "ContextualLogging";

/// Their names.
pub(crate) fn list() -> Vec<String> {
    names(CASES).collect()
}

/// Runs them.
pub(crate) fn run(lab: &Arc<Lab>, programs: &Programs, choice: &Choice, results: &mut Results) -> Result<()> {
    let options = Options { feature_gates: vec![format!("{GATE}=false")], audit: true, ..Options::nodes(3) };
    let suite = InOneCluster { suite: Suite::Cluster, part: "cluster", options, cases: CASES };
    suite.run(lab, programs, choice, results, |_| Ok(()))
}

/// The names of all of them.
pub(super) fn names(cases: &[Case]) -> impl Iterator<Item = String> {
    cases.iter().flat_map(Case::names).map(|name| (*name).to_owned())
}

/// Tests that share a cluster.
pub(super) struct InOneCluster<'a> {
    pub(super) suite: Suite,
    /// What a lab claims to run them.
    pub(super) part: &'static str,
    pub(super) options: Options,
    pub(super) cases: &'a [Case],
}

impl InOneCluster<'_> {
    /// Starts and prepares the cluster if there is a test to run, and runs them.
    pub(super) fn run(
        &self,
        lab: &Arc<Lab>,
        programs: &Programs,
        choice: &Choice,
        results: &mut Results,
        prepare: impl FnOnce(&Cluster) -> Result<()>,
    ) -> Result<()> {
        let suite = self.suite.name();
        if !names(self.cases).any(|name| choice.matches(&name)) || !choice.claim(suite, self.part)? {
            return Ok(());
        }
        let cluster = match Cluster::start(lab, programs, &self.options) {
            Ok(cluster) => cluster,
            Err(error) => {
                results.add_failure(suite, "the cluster starts", &format!("{error:#}"));
                return Ok(());
            }
        };
        if let Err(error) = prepare(&cluster) {
            cluster.collect_logs();
            results.add_failure(suite, "the cluster is prepared", &format!("{error:#}"));
            return Ok(());
        }
        let asked = |case: &&Case| case.names().iter().any(|name| choice.matches(name));
        for case in self.cases.iter().filter(asked) {
            if !case.run(suite, &cluster, results) {
                cluster.collect_logs();
            }
        }
        Ok(())
    }
}

fn three_nodes_are_ready(cluster: &Cluster) -> Result<()> {
    let nodes = cluster.get(["nodes"])?;
    let mut names: Vec<&str> = nodes["items"]
        .as_array()
        .context("items")?
        .iter()
        .filter_map(|node| node["metadata"]["name"].as_str())
        .collect();
    names.sort_unstable();
    ensure!(names == ["node-0", "node-1", "node-2"], "the nodes are {names:?}");
    // The Node authorizer is at work: a node may read its own object and not another's secrets.
    let kubelet = ["--as=system:node:node-0", "--as-group=system:nodes"];
    ensure!(
        cluster.kubectl(["auth", "can-i", "get", "nodes/node-0"].iter().chain(&kubelet))?.trim() == "yes"
    );
    let refusal = cluster.kubectl(["auth", "can-i", "list", "secrets"].iter().chain(&kubelet)).err();
    ensure!(
        refusal.is_some_and(|refusal| refusal.to_string().contains(": no")),
        "a node may list all secrets"
    );
    Ok(())
}

fn feature_gates_and_the_audit_log_are_as_asked(cluster: &Cluster) -> Result<()> {
    let metrics = cluster.kubectl(["get", "--raw", "/metrics"])?;
    let gate = format!("kubernetes_feature_enabled{{name=\"{GATE}\",");
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&gate))
        .context("the API server does not know the gate")?;
    ensure!(line.ends_with(" 0"), "{line}");
    let kubelet = cluster.kubectl(["get", "--raw", "/api/v1/nodes/node-2/proxy/configz"])?;
    let kubelet: serde_json::Value = serde_json::from_str(&kubelet)?;
    ensure!(
        kubelet["kubeletconfig"]["featureGates"][GATE] == false,
        "the kubelet has {}",
        kubelet["kubeletconfig"]["featureGates"]
    );
    cluster.kubectl(["create", "configmap", "audited"])?;
    cluster.wait_for("the request to be in the audit log", || {
        let log = std::fs::read_to_string("audit.log")?;
        let writes = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let mut writes = writes
            .filter(|event| event["verb"] == "create" && event["objectRef"]["resource"] == "configmaps");
        Ok(writes.any(|event| event["objectRef"]["name"] == "audited"))
    })?;
    cluster.kubectl(["delete", "configmap", "audited"])?;
    Ok(())
}

/// A pod that serves its node's name, on each node, and a service before all of them.
const SERVERS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web, namespace: pods}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: lab.lvms.io/busybox:1
        imagePullPolicy: Never
        command: [sh, -c, 'mkdir -p /tmp/www && echo "$NODE" > /tmp/www/index.html && exec busybox httpd -f -p 8080 -h /tmp/www']
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: pods}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
"#;

pub(super) fn a_pod_on_each_node_reaches_a_service(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(["create", "namespace", "pods"])?;
    cluster.apply(SERVERS)?;
    let nodes = cluster.nodes().len();
    cluster.wait_for("a pod on each node to run", || {
        let set = cluster.get(["--namespace=pods", "daemonset", "web"])?;
        Ok(set["status"]["numberReady"] == nodes)
    })?;
    let service = cluster.get(["--namespace=pods", "service", "web"])?;
    let address = service["spec"]["clusterIP"].as_str().context("the service has no address")?.to_owned();
    let pods = cluster.get(["--namespace=pods", "pods", "--selector=app=web"])?;
    for pod in pods["items"].as_array().context("items")? {
        let name = pod["metadata"]["name"].as_str().context("a pod has a name")?;
        // The service picks a pod by chance: after many tries each has answered, from whichever node one asks.
        let ask = format!("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do lab-pod get {address}:80; done");
        let mut answered = std::collections::BTreeSet::new();
        cluster.wait_for("the service to answer from every node", || {
            let answers = cluster.kubectl(["--namespace=pods", "exec", name, "--", "sh", "-c", &ask])?;
            answered.extend(answers.split_whitespace().map(str::to_owned));
            Ok(answered.len() == nodes)
        })?;
    }
    cluster.kubectl(["delete", "namespace", "pods", "--wait=true"])?;
    Ok(())
}

fn a_webhook_served_from_a_pod_rejects_an_object(cluster: &Cluster) -> Result<()> {
    let identity = cluster.authority().server("webhook", &["webhook.hooks.svc"], &[])?;
    let text = |text: &str| serde_json::Value::String(text.to_owned());
    let authority = crate::cluster::base64(&cluster.authority().certificate);
    let labels = serde_json::json!({"app": "webhook"});
    let pod = serde_json::json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "webhook", "image": "lab.lvms.io/webhook:1", "imagePullPolicy": "Never",
            "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
            "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
        }],
        "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
    });
    let objects = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": "hooks"}, "type": "kubernetes.io/tls",
         "stringData": {"tls.crt": text(&identity.certificate), "tls.key": text(&identity.key)}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "webhook", "namespace": "hooks"},
         "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "webhook", "namespace": "hooks"},
         "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 8443}]}},
    ]});
    cluster.kubectl(["create", "namespace", "hooks"])?;
    cluster.apply(&objects.to_string())?;
    cluster.wait_for("the webhook's pod to be ready", || {
        Ok(cluster.get(["--namespace=hooks", "deployment", "webhook"])?["status"]["readyReplicas"] == 1)
    })?;
    let hook = serde_json::json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "lab"},
        "webhooks": [{
            "name": "webhook.hooks.svc", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "timeoutSeconds": 30, "clientConfig": {"caBundle": authority, "service": {"name": "webhook", "namespace": "hooks"}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hooks"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        }],
    });
    cluster.apply(&hook.to_string())?;
    let create = |name: &str, labels: serde_json::Value| {
        let metadata = serde_json::json!({"name": name, "namespace": "hooks", "labels": labels});
        cluster.apply(
            &serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}).to_string(),
        )
    };
    // The API server learns of a new webhook by its watch: until then it lets everything through.
    let mut number = 0;
    cluster.wait_for("the webhook to reject an object", || {
        number += 1;
        match create(&format!("bad-{number}"), serde_json::json!({"lab/reject": "on-purpose"})) {
            Ok(()) => Ok(false),
            Err(error) if format!("{error:#}").contains("rejected by the lab: on-purpose") => Ok(true),
            Err(error) => Err(error),
        }
    })?;
    create("good", serde_json::json!({"harmless": "yes"})).context("a harmless object was rejected")?;
    cluster.kubectl(["delete", "validatingwebhookconfiguration", "lab"])?;
    cluster.kubectl(["delete", "namespace", "hooks", "--wait=true"])?;
    if cluster.get(["--namespace=hooks", "configmap", "good"]).is_ok() {
        bail!("the namespace is still there");
    }
    Ok(())
}
