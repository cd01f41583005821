//! The objects that the leader watches: each kind once, and of each kind what is ours.

use std::future::Future;
use std::sync::Arc;

use kube::Api;
use lvms_api::names::OLD_CLAIM_FINALIZERS;
use lvms_api::names::kubernetes::{PROVISIONED_BY, STORAGE_PROVISIONER};
use lvms_api::{LogicalVolume, LvmNode, Personality};
use lvms_cluster::slim::{
    Capacity, Claim, Node, PersistentVolume, SnapshotContent, StorageClass, annotation, has_finalizer,
};
use lvms_cluster::store::{self, Keep};
use lvms_cluster::{Connection, Store};
use tokio::task::JoinSet;

use crate::snapshot;

/// What is watched.
#[derive(Default)]
pub struct Stores {
    /// Claims that we shall provision or have.
    pub claims: Arc<Store<Claim>>,
    /// PersistentVolumes of our driver.
    pub persistent: Arc<Store<PersistentVolume>>,
    /// StorageClasses of our driver.
    pub classes: Arc<Store<StorageClass>>,
    /// All nodes.
    pub nodes: Arc<Store<Node>>,
    /// What nodes tell of themselves.
    pub lvm_nodes: Arc<Store<LvmNode>>,
    /// All LogicalVolumes.
    pub volumes: Arc<Store<LogicalVolume>>,
    /// What the scheduler reads about our driver.
    pub capacities: Arc<Store<Capacity>>,
    /// Contents of snapshots of our driver, where a cluster has such things.
    pub contents: Arc<Store<SnapshotContent>>,
    /// Whether somebody else in this process follows the LogicalVolumes, whether we lead or not.
    pub are_volumes_followed: bool,
}

/// The label of a CSIStorageCapacity that names its driver.
pub const DRIVER_NAME: &str = "csi.storage.k8s.io/drivername";

/// The driver that shall provision a claim.
pub fn provisioner(claim: &Claim) -> Option<&str> {
    STORAGE_PROVISIONER.iter().find_map(|key| annotation(&claim.metadata, key))
}

/// Who listens to stores until this is dropped. Each of them may hold others of these stores: none would ever go.
pub(crate) struct Listening(Arc<Stores>);

impl Drop for Listening {
    fn drop(&mut self) {
        let Stores { claims, persistent, classes, nodes, lvm_nodes, volumes, capacities, contents, .. } =
            self.0.as_ref();
        claims.hush();
        persistent.hush();
        classes.hush();
        nodes.hush();
        lvm_nodes.hush();
        volumes.hush();
        capacities.hush();
        contents.hush();
    }
}

impl Stores {
    /// For another time as the leader, which begins with nothing: what a former one has left may be old. What somebody
    /// else follows all the time is not.
    pub(crate) fn anew(&self) -> Stores {
        let volumes = if self.are_volumes_followed { Arc::new(self.volumes.share()) } else { Arc::default() };
        Stores { volumes, are_volumes_followed: self.are_volumes_followed, ..Stores::default() }
    }

    /// Whoever begins to listen stops when this is dropped.
    pub(crate) fn listening(self: &Arc<Stores>) -> Listening {
        Listening(Arc::clone(self))
    }

    /// Follows all of them, in tasks that end with the set.
    pub fn follow(
        &self,
        connection: &Connection,
        personality: Personality,
        namespace: &str,
        tasks: &mut JoinSet<()>,
    ) {
        let client = || connection.watching.clone();
        let driver = personality.driver();
        let volumes = Arc::clone(&self.persistent);
        let claims: Keep<Claim> = Box::new(move |claim| {
            let old = || OLD_CLAIM_FINALIZERS.iter().any(|old| has_finalizer(&claim.metadata, old));
            // A volume made by hand has a claim that nobody was to provision.
            let bound = || volumes.named(&claim.spec.volume_name).is_some();
            provisioner(claim) == Some(driver) || old() || bound()
        });
        tasks.spawn(Arc::clone(&self.claims).follow(Api::all(client()), store::config(), claims));
        let persistent: Keep<PersistentVolume> = Box::new(move |volume| {
            volume.handle(driver).is_some() || annotation(&volume.metadata, PROVISIONED_BY) == Some(driver)
        });
        tasks.spawn(Arc::clone(&self.persistent).follow(Api::all(client()), store::config(), persistent));
        let classes: Keep<StorageClass> = Box::new(move |class| class.provisioner == driver);
        tasks.spawn(Arc::clone(&self.classes).follow(Api::all(client()), store::config(), classes));
        let (topology, capacity) = (personality.topology_key(), personality.capacity_prefix());
        let nodes: Keep<Node> = Box::new(move |node| {
            if let Some(labels) = &mut node.metadata.labels {
                labels.retain(|key, _| *key == topology);
            }
            if let Some(annotations) = &mut node.metadata.annotations {
                annotations.retain(|key, _| key.starts_with(&capacity));
            }
            true
        });
        tasks.spawn(Arc::clone(&self.nodes).follow(Api::all(client()), store::config(), nodes));
        let lvm_nodes = Api::namespaced(client(), namespace);
        tasks.spawn(Arc::clone(&self.lvm_nodes).follow(lvm_nodes, store::config(), all()));
        if !self.are_volumes_followed {
            tasks.spawn(self.follow_volumes(connection, personality));
        }
        let ours = store::config().labels(&format!("{DRIVER_NAME}={driver}"));
        tasks.spawn(Arc::clone(&self.capacities).follow(Api::all(client()), ours, all()));
        tasks.spawn(snapshot::follow(Arc::clone(&self.contents), connection.clone(), driver));
    }

    /// Follows the LogicalVolumes alone, for ever.
    pub fn follow_volumes(
        &self,
        connection: &Connection,
        personality: Personality,
    ) -> impl Future<Output = ()> + use<> {
        let volumes = Api::all_with(connection.watching.clone(), &personality);
        Arc::clone(&self.volumes).follow(volumes, store::config(), all())
    }

    /// Waits until all objects that were there at first are known; contents of snapshots may come later.
    pub fn complete(&self) -> impl Future<Output = ()> {
        let Stores { claims, persistent, classes, nodes, lvm_nodes, volumes, capacities, .. } = self;
        async move {
            tokio::join!(
                claims.complete(),
                persistent.complete(),
                classes.complete(),
                nodes.complete(),
                lvm_nodes.complete(),
                volumes.complete(),
                capacities.complete(),
            );
        }
    }

    /// The LogicalVolume that a handle names.
    pub fn by_handle(&self, handle: &str) -> Option<Arc<LogicalVolume>> {
        self.volumes.find(|volume| volume.volume_id() == Some(handle))
    }
}

fn all<K>() -> Keep<K> {
    Box::new(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::logical_volume::Spec;

    fn volume(name: &str) -> LogicalVolume {
        LogicalVolume::new(Personality::Topolvm, Spec { name: name.into(), ..Spec::default() })
    }

    #[test]
    fn a_time_as_the_leader_leaves_nothing_behind_in_what_others_follow() {
        let ours = Stores { are_volumes_followed: true, ..Stores::default() };
        for round in 0..3 {
            let term = Arc::new(ours.anew());
            assert!(term.are_volumes_followed);
            let listening = term.listening();
            let (told, claims) = (Arc::new(()), Arc::clone(&term.claims));
            let held = Arc::clone(&told);
            term.volumes.listen(move |_, _| {
                let _held = (&held, &claims);
            });
            let (held, volumes) = (Arc::clone(&told), Arc::clone(&term.volumes));
            term.claims.listen(move |_, _| {
                let _held = (&held, &volumes);
            });
            ours.volumes.answered(volume(&format!("pvc-{round}")));
            assert_eq!(term.volumes.all().len(), round + 1);
            let former = Arc::downgrade(&term);
            drop(term);
            drop(listening);
            assert_eq!(Arc::strong_count(&told), 1, "somebody still listens");
            assert!(former.upgrade().is_none());
        }
    }

    #[test]
    fn what_nobody_else_follows_is_not_known_to_the_next_time_as_the_leader() {
        let former = Stores::default();
        former.volumes.answered(volume("pvc-1"));
        assert_eq!(former.anew().volumes.all().len(), 0);
        assert!(!former.anew().are_volumes_followed);
    }
}
