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
        ("", "PersistentVolumeClaim") => claim_as_source(context, namespace, source).await?,
        (SNAPSHOTS, "VolumeSnapshot") => snapshot_as_source(context, namespace, source).await?,
        _ => return Ok(Source::Foreign(source.kind.clone())),
    };
    let DataSource { kind, name, .. } = source;
    Ok(judge(context, claim, found)
        .unwrap_or_else(|problem| Source::Problem(format!("spec.dataSource: {kind} {name:?} {problem}"))))
}

/// A source, whichever kind of object it is.
struct Origin {
    /// Whether it is being deleted, and not because of us: one that we have protected waits for us.
    goes: bool,
    /// Whether it is a block device; `None` if it may be copied to either.
    block: Option<bool>,
    /// Its volume, once it has one.
    volume: Option<OriginVolume>,
}

struct OriginVolume {
    /// The driver's name for it; `None` if the driver is another one.
    handle: Option<String>,
    /// The least size of a copy.
    least: Option<u64>,
}

/// Whether a source can be copied now, or what is wrong with it.
fn judge(context: &Context, claim: &Claim, found: Option<Origin>) -> Result<Source, String> {
    let origin = found.ok_or("is not there")?;
    if origin.goes {
        return Err("is being deleted".to_owned());
    }
    let volume = origin.volume.ok_or("is not ready")?;
    let handle = volume.handle.ok_or("is of another driver")?;
    if origin.block.is_some_and(|block| block != claim.is_block()) {
        return Err("has another volumeMode".to_owned());
    }
    by_handle(context, &handle, volume.least)
}

async fn claim_as_source(
    context: &Context,
    namespace: &str,
    source: &DataSource,
) -> Result<Option<Origin>, kube::Error> {
    let claims: Api<Claim> = Api::namespaced(context.client.clone(), namespace);
    let Some(origin) = claims.get_opt(&source.name).await? else { return Ok(None) };
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let bound = match origin.status.phase.as_str() {
        "Bound" => volumes.get_opt(&origin.spec.volume_name).await?,
        _ => None,
    };
    let bound = bound.filter(|bound| bound.spec.claim_ref.as_ref().is_some_and(|of| of.uid == origin.uid()));
    let volume = bound.map(|bound| OriginVolume {
        handle: bound.handle(context.personality.driver()).map(str::to_owned),
        least: origin.requested().and_then(|size| size.bytes().ok()),
    });
    let goes = origin.metadata.deletion_timestamp.is_some() && !has_finalizer(&origin.metadata, CLONED);
    Ok(Some(Origin { goes, block: Some(origin.is_block()), volume }))
}

async fn snapshot_as_source(
    context: &Context,
    namespace: &str,
    source: &DataSource,
) -> Result<Option<Origin>, kube::Error> {
    let snapshots: Api<VolumeSnapshot> = Api::namespaced(context.client.clone(), namespace);
    let Some(snapshot) = snapshots.get_opt(&source.name).await? else { return Ok(None) };
    let VolumeSnapshot { metadata, status } = snapshot;
    let contents: Api<SnapshotContent> = Api::all(context.client.clone());
    let bound = match &status.bound_volume_snapshot_content_name {
        Some(bound) => contents.get_opt(bound).await?,
        None => None,
    };
    // The snapshot-controller tells of a content that is ready a moment later.
    let bound = bound.filter(|bound| {
        Some(&bound.spec.volume_snapshot_ref.uid) == metadata.uid.as_ref()
            && (status.ready_to_use == Some(true) || bound.is_ready())
    });
    let mode = bound.as_ref().and_then(|bound| {
        let free = annotation(&bound.metadata, MODE_CHANGE) == Some("true");
        bound.spec.source_volume_mode.as_deref().filter(|_| !free).map(|mode| mode == "Block")
    });
    let volume = bound.and_then(|bound| {
        let ours = bound.spec.driver == context.personality.driver();
        let content = bound.status.unwrap_or_default();
        let told = status.restore_size.as_ref().and_then(|size| size.bytes().ok());
        let least = told.or_else(|| content.restore_size?.try_into().ok());
        let handle = content.snapshot_handle;
        // One of ours without a handle is not ready.
        (!ours || handle.is_some()).then(|| OriginVolume { handle: handle.filter(|_| ours), least })
    });
    let goes = metadata.deletion_timestamp.is_some() && !has_finalizer(&metadata, RESTORED);
    Ok(Some(Origin { goes, block: mode, volume }))
}

/// The LogicalVolume that a handle names.
fn by_handle(context: &Context, handle: &str, least: Option<u64>) -> Result<Source, String> {
    let volume =
        context.stores.by_handle(handle).ok_or_else(|| format!("has no LogicalVolume, of {handle}"))?;
    let size = |volume: &Arc<LogicalVolume>| {
        volume.status.as_ref().and_then(|status| status.current_size.as_ref()).map(Quantity::bytes)
    };
    let size = match size(&volume) {
        Some(Ok(size)) => size,
        _ => return Err(format!("has a LogicalVolume, {}, of no known size yet", volume.name())),
    };
    Ok(Source::Volume {
        name: volume.name().to_owned(),
        node: volume.spec.node_name.clone(),
        device_class: volume.spec.device_class.clone(),
        size,
        least: least.unwrap_or(size),
    })
}
