//! The cluster's part: what TopoLVM's controller and the CSI sidecars do, by the leader alone.
//!
//! - [`stores`]: the objects that are watched, each kind once, and of each kind what is ours.
//! - [`provision`]: a claim becomes a LogicalVolume; when its node has made it, a PersistentVolume.
//! - [`reclaim`]: a released PersistentVolume takes its LogicalVolume along.
//! - [`release`]: the second key: a LogicalVolume goes only if nothing names it any more.
//! - [`orphans`]: LogicalVolumes that nothing names.
//! - [`restore`]: a PersistentVolume whose LogicalVolume is gone gets it back.
//! - [`protect`]: the source of a copy stays until the copy is there.
//! - [`resize`]: a claim that asks for more gets it.
//! - [`snapshot`]: a VolumeSnapshotContent becomes a LogicalVolume.
//! - [`capacity`]: what nodes tell becomes what the scheduler reads.
//! - [`leftovers`]: what predecessors have left on claims, and nodes that leave.
//! - [`predecessor`]: TopoLVM's own controller and sidecars, which must not act beside us.
//! - [`volumes`]: the same for clients of CSI.
//! - [`metrics`]: what each has to do, for Prometheus.
//! - [`rollback`]: what TopoLVM could not go on with.
//! - [`role`]: all of it together, as `lvms operator` runs it.
//!
//! Each decides by a pure function and then acts; what happens next is seen through the watches, and nothing is
//! remembered between: a new leader derives all work from the objects.

pub mod capacity;
pub mod leftovers;
pub mod metrics;
pub mod orphans;
pub mod predecessor;
pub mod protect;
pub mod provision;
pub mod reclaim;
pub mod release;
pub mod resize;
pub mod restore;
pub mod role;
pub mod rollback;
pub mod snapshot;
pub mod stores;
pub mod volumes;

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, Client};
use lvms_api::{LogicalVolume, Personality};
use lvms_cluster::Events;

use crate::stores::Stores;

/// What all parts of the leader's work need.
pub struct Context {
    /// For which driver.
    pub personality: Personality,
    /// The cluster.
    pub client: Client,
    /// Where our own objects are.
    pub namespace: String,
    /// What is watched.
    pub stores: Arc<Stores>,
    /// What people are told.
    pub events: Events,
    /// Which leader we are, as external-provisioner tells it in a volume's attributes.
    pub identity: String,
}

impl Context {
    fn logical_volumes(&self) -> Api<LogicalVolume> {
        Api::all_with(self.client.clone(), &self.personality)
    }

    /// The LogicalVolume of a handle. That there is none is known from the API itself.
    async fn logical_volume(
        &self,
        name: &str,
        handle: &str,
    ) -> Result<Option<Arc<LogicalVolume>>, kube::Error> {
        if let Some(known) = self.stores.by_handle(handle) {
            return Ok(Some(known));
        }
        let api = self.logical_volumes();
        let is_it = |volume: &LogicalVolume| volume.lv() == handle;
        match api.get_opt(name).await?.filter(|volume| is_it(volume)) {
            Some(volume) => Ok(Some(Arc::new(volume))),
            // It may have another name than its PersistentVolume.
            None => {
                let all = api.list(&ListParams::default()).await?;
                Ok(all.items.into_iter().find(is_it).map(Arc::new))
            }
        }
    }
}
