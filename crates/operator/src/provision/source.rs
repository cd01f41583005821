//! What the volume of a claim shall be a copy of. Asked of the API itself: a source may belong to anybody.

use std::sync::Arc;

use kube::Api;
use lvms_api::{LogicalVolume, Quantity};
use lvms_cluster::slim::{
    Claim, DataSource, PersistentVolume, SnapshotContent, VolumeSnapshot, annotation, has_finalizer,
};

use super::decide::Source;
use crate::Context;
use crate::protect::{CLONED, RESTORED};

/// Makes a change of the volume mode between snapshot and copy allowed.
const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// What the volume of a claim shall be a copy of.
pub(super) async fn of(context: &Context, claim: &Claim) -> Result<Source, kube::Error> {
    let Some(source) = claim.source() else { return Ok(Source::Nothing) };
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    if source.namespace.as_deref().is_some_and(|other| !other.is_empty() && other != namespace) {
        let problem = "spec.dataSourceRef.namespace: a source in another namespace is not supported";
        return Ok(Source::Problem(problem.to_owned()));
    }
    let group = source.api_group.as_deref().unwrap_or_default();
    let found = match (group, source.kind.as_str()) {
        ("", "PersistentVolumeClaim") => of_claim(context, claim, namespace, source).await?,
        (SNAPSHOTS, "VolumeSnapshot") => of_snapshot(context, claim, namespace, source).await?,
        _ => return Ok(Source::Foreign(source.kind.clone())),
    };
    Ok(found.unwrap_or_else(|problem| Source::Problem(format!("spec.dataSource: {problem}"))))
}

async fn of_claim(
    context: &Context,
    claim: &Claim,
    namespace: &str,
    source: &DataSource,
) -> Result<Result<Source, String>, kube::Error> {
    let name = &source.name;
    let claims: Api<Claim> = Api::namespaced(context.client.clone(), namespace);
    let Some(origin) = claims.get_opt(name).await? else {
        return Ok(Err(format!("there is no PersistentVolumeClaim {name:?}")));
    };
    // One that we have protected waits for us.
    if origin.metadata.deletion_timestamp.is_some() && !has_finalizer(&origin.metadata, CLONED) {
        return Ok(Err(format!("PersistentVolumeClaim {name:?} is being deleted")));
    }
    if origin.status.phase != "Bound" {
        return Ok(Err(format!("PersistentVolumeClaim {name:?} is not bound")));
    }
    if origin.is_block() != claim.is_block() {
        return Ok(Err(format!("PersistentVolumeClaim {name:?} has another volumeMode")));
    }
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let volume = volumes.get_opt(&origin.spec.volume_name).await?;
    let ours =
        volume.filter(|volume| volume.spec.claim_ref.as_ref().is_some_and(|of| of.uid == origin.uid()));
    let Some(handle) = ours.as_ref().and_then(|volume| volume.handle(context.personality.driver())) else {
        return Ok(Err(format!("PersistentVolumeClaim {name:?} is bound to a volume of another driver")));
    };
    let least = origin.requested().and_then(|size| size.bytes().ok());
    Ok(by_handle(context, handle, least))
}

async fn of_snapshot(
    context: &Context,
    claim: &Claim,
    namespace: &str,
    source: &DataSource,
) -> Result<Result<Source, String>, kube::Error> {
    let name = &source.name;
    let snapshots: Api<VolumeSnapshot> = Api::namespaced(context.client.clone(), namespace);
    let Some(snapshot) = snapshots.get_opt(name).await? else {
        return Ok(Err(format!("there is no VolumeSnapshot {name:?}")));
    };
    if snapshot.metadata.deletion_timestamp.is_some() && !has_finalizer(&snapshot.metadata, RESTORED) {
        return Ok(Err(format!("VolumeSnapshot {name:?} is being deleted")));
    }
    let not_ready = || Ok(Err(format!("VolumeSnapshot {name:?} is not ready")));
    let Some(bound) = &snapshot.status.bound_volume_snapshot_content_name else { return not_ready() };
    let contents: Api<SnapshotContent> = Api::all(context.client.clone());
    let Some(content) = contents.get_opt(bound).await? else { return not_ready() };
    let of = &content.spec.volume_snapshot_ref;
    if of.uid != snapshot.metadata.uid.as_deref().unwrap_or_default() {
        return Ok(Err(format!("VolumeSnapshotContent {bound:?} is bound to another VolumeSnapshot")));
    }
    if content.spec.driver != context.personality.driver() {
        return Ok(Err(format!("VolumeSnapshot {name:?} is of another driver, {}", content.spec.driver)));
    }
    if snapshot.status.ready_to_use != Some(true) {
        return not_ready();
    }
    let mode = if claim.is_block() { "Block" } else { "Filesystem" };
    let same_mode = content.spec.source_volume_mode.as_deref().is_none_or(|of| of == mode);
    if !same_mode && annotation(&content.metadata, MODE_CHANGE) != Some("true") {
        return Ok(Err(format!("VolumeSnapshot {name:?} is of a volume with another volumeMode")));
    }
    let Some(handle) = content.status.as_ref().and_then(|status| status.snapshot_handle.as_deref()) else {
        return not_ready();
    };
    let least = snapshot.status.restore_size.as_ref().and_then(|size| size.bytes().ok());
    Ok(by_handle(context, handle, least))
}

/// The LogicalVolume that a handle names.
fn by_handle(context: &Context, handle: &str, least: Option<u64>) -> Result<Source, String> {
    let volume =
        context.stores.by_handle(handle).ok_or_else(|| format!("there is no LogicalVolume of {handle}"))?;
    let size = |volume: &Arc<LogicalVolume>| {
        volume.status.as_ref().and_then(|status| status.current_size.as_ref()).map(Quantity::bytes)
    };
    let size = match size(&volume) {
        Some(Ok(size)) => size,
        _ => return Err(format!("the size of LogicalVolume {} is not known yet", volume.name())),
    };
    Ok(Source::Volume {
        name: volume.name().to_owned(),
        node: volume.spec.node_name.clone(),
        device_class: volume.spec.device_class.clone(),
        size,
        least: least.unwrap_or(size),
    })
}
