//! What this cluster cannot hold anybody to.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use lvms_cluster::store::chain;

/// Since this minor version Kubernetes has ValidatingAdmissionPolicies.
const POLICIES_SINCE: u32 = 30;

/// What holds nodes to their own objects, and the operator to one annotation of pods; the bindings have the same names.
const POLICIES: [&str; 3] = ["lvms-node-volumes", "lvms-node-report", "lvms-operator-pods"];

/// Says what is not enforced.
pub async fn tell(client: &Client) {
    match client.apiserver_version().await {
        Ok(version) if !has_policies(&version.major, &version.minor) => tracing::warn!(
            version = version.git_version,
            "Kubernetes before 1.30 has no ValidatingAdmissionPolicy: any node's token can change the LogicalVolumes of \
             all nodes, and release them for removal"
        ),
        Ok(_) => match missing(client).await {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => tracing::warn!(
                ?missing,
                "policies are not in force: apply deploy/base.yaml and deploy/operator-access.yaml; until then any node's \
                 token may change the objects of all nodes, and release LogicalVolumes for removal, and the operator's \
                 may change pods"
            ),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "whether policies are in force is not known");
            }
        },
        Err(error) => tracing::debug!(error = %chain(&error), "the version of Kubernetes is not known"),
    }
}

/// The policies that are not in force.
async fn missing(client: &Client) -> Result<Vec<&'static str>, kube::Error> {
    let policies: Api<PartialObjectMeta<ValidatingAdmissionPolicy>> = Api::all(client.clone());
    let bindings: Api<PartialObjectMeta<ValidatingAdmissionPolicyBinding>> = Api::all(client.clone());
    let mut missing = Vec::new();
    for name in POLICIES {
        if policies.get_opt(name).await?.is_none() || bindings.get_opt(name).await?.is_none() {
            missing.push(name);
        }
    }
    Ok(missing)
}

/// Some distributions write a plus after the minor version.
fn has_policies(major: &str, minor: &str) -> bool {
    let minor = minor.trim_end_matches(|sign: char| !sign.is_ascii_digit());
    major != "1" || minor.parse::<u32>().map_or(true, |minor| minor >= POLICIES_SINCE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;
    use serde_json::json;

    #[tokio::test]
    async fn a_policy_without_its_binding_holds_nobody_to_anything() {
        let (context, _) = scripted::context(|request| {
            let is_there = !request.ends_with("bindings/lvms-node-report");
            let not_found = json!({"code": 404, "reason": "NotFound", "details": {"name": "x"}});
            if is_there { (200, json!({"metadata": {"name": "x"}})) } else { (404, not_found) }
        })
        .await;
        assert_eq!(missing(&context.client).await.unwrap(), ["lvms-node-report"]);
    }

    /// Whatever grants an account something comes with what limits it, and with the right to look whether it is there.
    #[test]
    fn the_policies_are_beside_the_role_that_they_limit_and_may_be_read() {
        let (base, operator) =
            (include_str!("../../../deploy/base.yaml"), include_str!("../../../deploy/operator-access.yaml"));
        for name in POLICIES {
            let file = if name.starts_with("lvms-node") { base } else { operator };
            assert_eq!(file.matches(&format!("metadata: {{name: {name}}}")).count(), 2, "{name}");
            assert!(file.contains(&format!("policyName: {name}")), "{name}");
        }
        assert!(operator.contains(&format!("resourceNames: [{}]", POLICIES.join(", "))));
    }

    #[test]
    fn clusters_without_admission_policies_are_known_by_their_version() {
        assert!(has_policies("1", "30") && has_policies("1", "35+") && has_policies("2", "0"));
        assert!(!has_policies("1", "29") && !has_policies("1", "27+"));
    }
}
