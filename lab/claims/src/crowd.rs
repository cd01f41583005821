//! Objects that are not the driver's business: many pods, claims and volumes of others.

use anyhow::Result;
use futures::stream::{StreamExt, TryStreamExt, iter};
use serde_json::json;

use crate::{CLAIM, Cluster, POD, VOLUME};

/// So many requests are on their way at once.
const AT_ONCE: usize = 16;

/// Makes so many of each.
pub(crate) async fn gather(cluster: &Cluster, count: usize) -> Result<()> {
    let made = iter(0..count).map(|number| async move {
        let name = format!("foreign-{number}");
        let volume = json!({
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "foreign",
            "csi": {"driver": "foreign.example.com", "volumeHandle": name},
        });
        cluster.create(&VOLUME, &name, volume).await?;
        let claim = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "foreign", "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        });
        cluster.create(&CLAIM, &name, claim).await?;
        // Of a scheduler that there is not: they stay as they are, and cost nobody anything.
        let pod = json!({
            "schedulerName": "foreign",
            "containers": [{"name": "shell", "image": "lab.lvms.io/busybox:1", "imagePullPolicy": "Never"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        });
        cluster.create(&POD, &name, pod).await
    });
    made.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(())
}
