//! A PersistentVolume whose LogicalVolume is gone gets it back: somebody has deleted the definition of LogicalVolumes,
//! and all objects with it, or has taken finalizers away. The LV is still there, and its node finds it by the handle.
//! Those of snapshots come back by their VolumeSnapshotContents, in [`crate::snapshot`].

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use lvms_api::logical_volume::Spec;
use lvms_api::names::{ADOPTS, CLAIM, VOLUME_MODE};
use lvms_api::{LogicalVolume, Personality};
use lvms_cluster::slim::{PersistentVolume, StorageClass};
use lvms_cluster::store::chain;
use lvms_cluster::work::{Looks, Patience};
use lvms_cluster::write::{self, Created, passes};
use lvms_cluster::{Outcome, Reference, Work};
use serde_json::json;

use crate::Context;
use crate::provision::Parameters;

const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

const AT_ONCE: usize = 4;

/// Restores LogicalVolumes.
pub struct Restore {
    context: Arc<Context>,
    work: Arc<Work<String>>,
}

impl Restore {
    /// Is told by PersistentVolumes, and by LogicalVolumes that are gone.
    pub fn new(context: Arc<Context>) -> Restore {
        let work: Arc<Work<String>> = Work::new("restore", PATIENCE);
        let told = Arc::clone(&work);
        context.stores.persistent.listen(move |_, now| {
            if let Some(volume) = now {
                told.add(volume.name().to_owned());
            }
        });
        let (told, persistent) = (Arc::clone(&work), Arc::clone(&context.stores.persistent));
        let driver = context.personality.driver();
        context.stores.volumes.listen(move |before, now| {
            if now.is_none()
                && let Some(gone) = before
            {
                // What had the name of another's LogicalVolume kept that from coming back.
                let concerns = |volume: &PersistentVolume| {
                    volume.name() == gone.name() || volume.handle(driver) == Some(gone.lv())
                };
                for volume in persistent.filter(concerns) {
                    told.add(volume.name().to_owned());
                }
            }
        });
        Restore { context, work }
    }

    /// The names that wait.
    pub fn work(&self) -> Arc<Work<String>> {
        Arc::clone(&self.work)
    }

    /// Restores for ever.
    pub async fn run(self) {
        Arc::clone(&self.work).looked_at_by(Arc::new(self), AT_ONCE).await;
    }

    async fn act(&self, volume: &PersistentVolume) -> Result<Outcome, kube::Error> {
        let (stores, personality) = (&self.context.stores, self.context.personality);
        let class = stores.classes.named(&volume.spec.storage_class_name);
        let Some(wanted) = lost(volume, class.as_deref(), personality) else { return Ok(Outcome::Done) };
        let present = |found: Arc<LogicalVolume>| found.lv() == wanted.lv();
        if stores.volumes.named(volume.name()).is_some_and(present) || stores.by_handle(wanted.lv()).is_some()
        {
            return Ok(Outcome::Done);
        }
        let stays = stores.nodes.named(&wanted.spec.node_name);
        if stays.is_none_or(|node| node.metadata.deletion_timestamp.is_some()) {
            // What becomes of the volumes of a node that leaves is decided elsewhere.
            return Ok(Outcome::Failed);
        }
        // What stores say may be old.
        let persistent: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let now = persistent.get_opt(volume.name()).await?;
        if now.and_then(|now| lost(&now, class.as_deref(), personality)).is_none()
            || self.context.logical_volume(volume.name(), wanted.lv()).await?.is_some()
        {
            return Ok(Outcome::Done);
        }
        let about = Reference::to(volume, &());
        if let Created::Now(made) = put_back(&self.context, about.clone(), &wanted).await? {
            self.context.events.warn(about, "LogicalVolumeRestored", is_back(&made));
            return Ok(Outcome::Done);
        }
        Ok(Outcome::Failed)
    }
}

/// What is said of a LogicalVolume that is made again.
pub(crate) fn is_back(made: &LogicalVolume) -> String {
    format!(
        "its LogicalVolume was gone and is made again, for the logical volume {} on node {}",
        made.lv(),
        made.spec.node_name
    )
}

/// Makes the LogicalVolume of a PersistentVolume or a VolumeSnapshotContent again, if no other one has its name.
pub(crate) async fn put_back(
    context: &Context,
    about: Reference,
    wanted: &LogicalVolume,
) -> Result<Created<LogicalVolume>, kube::Error> {
    let made = write::create(&context.logical_volumes(), &json!(wanted)).await?;
    match &made {
        Created::Now(created) => {
            tracing::info!(volume = wanted.name(), lv = wanted.lv(), "its LogicalVolume is made again");
            context.stores.volumes.answered(created.clone());
        }
        Created::AlreadyThere => {
            let told = format!(
                "its LogicalVolume is gone, and another one with the name {} is there, which is not that of {}",
                wanted.name(),
                wanted.lv()
            );
            context.events.warn(about, "LogicalVolumeMissing", told);
        }
    }
    Ok(made)
}

/// The LogicalVolume that a PersistentVolume in use must have; none if its data is not wanted any more.
fn lost(
    volume: &PersistentVolume,
    class: Option<&StorageClass>,
    personality: Personality,
) -> Option<LogicalVolume> {
    let used = matches!(volume.status.phase.as_str(), "Bound" | "Available");
    if !used || volume.metadata.deletion_timestamp.is_some() {
        return None;
    }
    named_by(volume, class, personality)
}

/// The LogicalVolume for the LV that a PersistentVolume names.
pub(crate) fn named_by(
    volume: &PersistentVolume,
    class: Option<&StorageClass>,
    personality: Personality,
) -> Option<LogicalVolume> {
    let handle = volume.handle(personality.driver())?;
    let parameters = class.and_then(|class| Parameters::read(&class.parameters, personality).ok());
    let parameters = parameters.unwrap_or_default();
    let spec = Spec {
        name: volume.name().to_owned(),
        node_name: volume.node(&personality.topology_key())?.to_owned(),
        size: volume.capacity()?.clone(),
        device_class: parameters.device_class,
        lvcreate_option_class: parameters.option_class,
        ..Spec::default()
    };
    let mut wanted = LogicalVolume::new(personality, spec);
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    annotations.insert(ADOPTS.to_owned(), handle.to_owned());
    if let Some(claim) = &volume.spec.claim_ref {
        annotations.insert(CLAIM.to_owned(), format!("{}/{}", claim.namespace, claim.name));
    }
    let mode = volume.spec.volume_mode.as_deref().unwrap_or("Filesystem");
    annotations.insert(VOLUME_MODE.to_owned(), mode.to_owned());
    Some(wanted)
}

impl Looks<String> for Restore {
    async fn look(&self, name: &String) -> Outcome {
        let Some(volume) = self.context.stores.persistent.named(name) else { return Outcome::Done };
        match self.act(&volume).await {
            Ok(outcome) => outcome,
            Err(error) => passes(&error).unwrap_or_else(|| {
                let told =
                    format!("its LogicalVolume is not known, and cannot be made again: {}", chain(&error));
                self.context.events.warn(Reference::to(volume.as_ref(), &()), "LogicalVolumeMissing", told);
                Outcome::Failed
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const P: Personality = Personality::Topolvm;

    fn volume() -> Value {
        json!({
            "metadata": {"name": "pvc-1", "uid": "u"},
            "spec": {
                "csi": {"driver": "topolvm.io", "volumeHandle": "lv-1"}, "capacity": {"storage": "2Gi"},
                "storageClassName": "fast", "volumeMode": "Block", "claimRef": {"namespace": "ns", "name": "data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.topolvm.io/node", "operator": "In", "values": ["n1"]},
                ]}]}},
            },
            "status": {"phase": "Bound"},
        })
    }

    fn restored(volume: Value) -> Option<LogicalVolume> {
        let class = json!({
            "metadata": {"name": "fast"}, "provisioner": "topolvm.io", "parameters": {"topolvm.io/device-class": "ssd"},
        });
        let class: StorageClass = serde_json::from_value(class).unwrap();
        lost(&serde_json::from_value(volume).unwrap(), Some(&class), P)
    }

    #[test]
    fn a_volume_that_is_used_names_the_lv_that_its_logical_volume_is_about() {
        let wanted = restored(volume()).unwrap();
        assert_eq!(wanted.lv(), "lv-1");
        assert_eq!((wanted.name(), wanted.spec.node_name.as_str()), ("pvc-1", "n1"));
        assert_eq!(wanted.spec.size.bytes(), Ok(2 << 30));
        assert_eq!(wanted.spec.device_class, "ssd");
        assert_eq!(wanted.annotation(CLAIM), Some("ns/data"));
        assert_eq!(wanted.annotation(VOLUME_MODE), Some("Block"));
    }

    #[test]
    fn what_goes_names_the_lv_that_has_to_go_with_it() {
        let mut released = volume();
        released["status"]["phase"] = json!("Released");
        let wanted = named_by(&serde_json::from_value(released.clone()).unwrap(), None, P).unwrap();
        assert_eq!((wanted.lv(), wanted.spec.node_name.as_str()), ("lv-1", "n1"));
        released["spec"]["nodeAffinity"] = Value::Null;
        assert!(named_by(&serde_json::from_value(released).unwrap(), None, P).is_none(), "no node has it");
    }

    #[test]
    fn what_goes_and_what_is_of_others_is_not_restored() {
        let with = |pointer: &str, value: Value| {
            let mut volume = volume();
            *volume.pointer_mut(pointer).unwrap() = value;
            restored(volume)
        };
        assert!(with("/status/phase", json!("Released")).is_none());
        assert!(with("/status/phase", json!("Failed")).is_none());
        assert!(
            with("/metadata", json!({"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"})).is_none()
        );
        assert!(with("/spec/csi/driver", json!("other")).is_none());
        assert!(with("/spec/nodeAffinity", Value::Null).is_none());
    }
}
