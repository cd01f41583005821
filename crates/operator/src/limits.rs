//! What this cluster cannot hold anybody to.

use kube::Client;
use lvms_cluster::store::chain;

/// Since this minor version Kubernetes has ValidatingAdmissionPolicies.
const POLICIES_SINCE: u32 = 30;

/// Says what is not enforced.
pub async fn tell(client: &Client) {
    match client.apiserver_version().await {
        Ok(version) if !has_policies(&version.major, &version.minor) => tracing::warn!(
            version = version.git_version,
            "Kubernetes before 1.30 has no ValidatingAdmissionPolicy: any node's token can change the LogicalVolumes of \
             all nodes, and release them for removal"
        ),
        Ok(_) => {}
        Err(error) => tracing::debug!(error = %chain(&error), "the version of Kubernetes is not known"),
    }
}

/// Some distributions write a plus after the minor version.
fn has_policies(major: &str, minor: &str) -> bool {
    let minor = minor.trim_end_matches(|sign: char| !sign.is_ascii_digit());
    major != "1" || minor.parse::<u32>().map_or(true, |minor| minor >= POLICIES_SINCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_without_admission_policies_are_known_by_their_version() {
        assert!(has_policies("1", "30") && has_policies("1", "35+") && has_policies("2", "0"));
        assert!(!has_policies("1", "29") && !has_policies("1", "27+"));
    }
}
