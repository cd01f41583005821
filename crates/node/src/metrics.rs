//! Figures for Prometheus: what each call took, what there is to do, and how full groups and pools are, under TopoLVM's
//! names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lvms_api::lvm_node::VolumeGroup;
use lvms_cluster::Busy;
use lvms_host::desired::ClassKind;
use lvms_host::lvm::inventory::{Inventory, Kind};
use lvms_host::names::VolumePath;
use lvms_host::runner::{Linux, Runner};
use lvms_host::units::Bytes;
use lvms_host::volumes::{Volumes as Engine, Work};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::configuration::Configuration;

/// Which call, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    method: String,
    code: String,
}

/// Which class on which node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Class {
    node: String,
    device_class: String,
}

/// Which group on which node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupOnNode {
    node: String,
    volume_group: String,
}

/// Which long work on which node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkOnNode {
    node: String,
    volume: String,
    what: &'static str,
}

/// What has to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    queue: &'static str,
}

type Counts = Family<Queue, Counter<u64, AtomicU64>>;

type Gauges = Family<Class, Gauge<f64, AtomicU64>>;

/// All figures.
pub struct Metrics {
    registry: Registry,
    calls: Family<Call, Histogram>,
    available: Gauges,
    size: Gauges,
    pool_size: Gauges,
    pool_data: Gauges,
    pool_metadata: Gauges,
    pool_available: Gauges,
    pool_chunk: Gauges,
    pool_metadata_size: Gauges,
    configuration_wrong: Gauge,
    stuck: Family<GroupOnNode, Gauge>,
    unnamed: Family<GroupOnNode, Gauge>,
    unnamed_bytes: Family<GroupOnNode, Gauge>,
    work_done: Family<WorkOnNode, Gauge>,
    work: Family<WorkOnNode, Gauge>,
    queues: Mutex<Vec<Arc<dyn Busy>>>,
    written: Mutex<()>,
    waiting: Family<Queue, Gauge>,
    looks: Counts,
    failures: Counts,
    node: String,
}

impl Metrics {
    /// Of this node, all zero.
    pub fn new(node: &str) -> Metrics {
        let mut registry = Registry::default();
        let calls = Family::<Call, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.001, 2.0, 18))
        });
        registry.register("lvms_csi_call_seconds", "How long calls took", calls.clone());
        let mut gauges = |name: &str, help: &str| {
            let gauges = Gauges::default();
            registry.register(name, help, gauges.clone());
            gauges
        };
        let available =
            gauges("topolvm_volumegroup_available_bytes", "Free in the volume group, without what is spare");
        let size = gauges("topolvm_volumegroup_size_bytes", "Size of the volume group");
        let pool_size = gauges("topolvm_thinpool_size_bytes", "Size of the thin pool's data");
        let pool_data = gauges("topolvm_thinpool_data_percent", "How full the thin pool's data is");
        let pool_metadata =
            gauges("topolvm_thinpool_metadata_percent", "How full the thin pool's metadata is");
        let pool_available =
            gauges("topolvm_thinpool_overprovisioned_available", "What the thin pool may still promise");
        let pool_chunk = gauges("lvms_thinpool_chunk_bytes", "The unit in which the thin pool gives space");
        let pool_metadata_size =
            gauges("lvms_thinpool_metadata_size_bytes", "Size of the thin pool's metadata");
        let stuck = Family::<GroupOnNode, Gauge>::default();
        registry.register(
            "lvms_volumegroup_stuck",
            "Whether an LVM command has not ended by its deadline and holds the volume group up",
            stuck.clone(),
        );
        let (unnamed, unnamed_bytes) =
            (Family::<GroupOnNode, Gauge>::default(), Family::<GroupOnNode, Gauge>::default());
        registry.register(
            "lvms_volumegroup_unnamed_volumes",
            "How many LVs of ours no LogicalVolume names",
            unnamed.clone(),
        );
        registry.register(
            "lvms_volumegroup_unnamed_bytes",
            "Size of the LVs of ours that no LogicalVolume names",
            unnamed_bytes.clone(),
        );
        let (work_done, work) =
            (Family::<WorkOnNode, Gauge>::default(), Family::<WorkOnNode, Gauge>::default());
        registry.register(
            "lvms_work_done_bytes",
            "What is finished of a long work that runs, a copy or zeros",
            work_done.clone(),
        );
        registry.register("lvms_work_bytes", "All that a long work that runs has to do", work.clone());
        let waiting = Family::<Queue, Gauge>::default();
        let (looks, failures) = (Counts::default(), Counts::default());
        registry.register(
            "lvms_node_queue_waiting",
            "How many objects wait to be looked at",
            waiting.clone(),
        );
        registry.register("lvms_node_queue_looks", "How many looks at objects there were", looks.clone());
        registry.register("lvms_node_queue_failures", "How many looks at objects failed", failures.clone());
        let configuration_wrong = Gauge::default();
        registry.register(
            "lvms_configuration_wrong",
            "Whether the configuration file is wrong, or gone, and an older one in force",
            configuration_wrong.clone(),
        );
        Metrics {
            registry,
            calls,
            available,
            size,
            pool_size,
            pool_data,
            pool_metadata,
            pool_available,
            pool_chunk,
            pool_metadata_size,
            configuration_wrong,
            stuck,
            unnamed,
            unnamed_bytes,
            work_done,
            work,
            queues: Mutex::default(),
            written: Mutex::default(),
            waiting,
            looks,
            failures,
            node: node.to_owned(),
        }
    }

    /// Counts a call.
    pub fn call(&self, method: &str, code: &str, took: Duration) {
        let call = Call { method: method.to_owned(), code: code.to_owned() };
        self.calls.get_or_create(&call).observe(took.as_secs_f64());
    }

    /// Tells from now on how much there is to do here, too.
    pub fn count(&self, queue: Arc<dyn Busy>) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
    }

    /// All figures as they are now, in Prometheus' words.
    pub fn text(&self, engine: &Arc<Engine<Linux>>, configuration: &Configuration) -> String {
        // What one who asks clears and looks at anew, another must not write down in between.
        let _alone = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(engine, configuration);
        self.look_at_queues();
        self.written()
    }

    fn written(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            let _ = writeln!(text, "# figures could not be written");
        }
        text
    }

    fn look_at_queues(&self) {
        for queue in self.queues.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let figures = queue.figures();
            let labels = Queue { queue: figures.name };
            let waiting = i64::try_from(figures.waiting).unwrap_or(i64::MAX);
            self.waiting.get_or_create(&labels).set(waiting);
            self.looks.get_or_create(&labels).inner().store(figures.looks, Ordering::Relaxed);
            self.failures.get_or_create(&labels).inner().store(figures.failed, Ordering::Relaxed);
        }
    }

    fn look(&self, engine: &Arc<Engine<Linux>>, configuration: &Configuration) {
        let inventory = engine.inventory();
        let desired = configuration.desired();
        // A class that is gone has no figures.
        for gauges in [
            &self.available,
            &self.size,
            &self.pool_size,
            &self.pool_data,
            &self.pool_metadata,
            &self.pool_available,
            &self.pool_chunk,
            &self.pool_metadata_size,
        ] {
            gauges.clear();
        }
        self.configuration_wrong.set(i64::from(configuration.is_wrong()));
        self.stuck.clear();
        for group in desired.groups() {
            let labels = GroupOnNode { node: self.node.clone(), volume_group: group.to_string() };
            self.stuck.get_or_create(&labels).set(i64::from(engine.stuck(group).is_some()));
        }
        self.works(&engine.works());
        for class in &desired.classes {
            self.class(engine, &inventory, class);
        }
    }

    /// What no LogicalVolume names, as it was told last.
    pub fn unnamed(&self, groups: &[VolumeGroup]) {
        self.unnamed.clear();
        self.unnamed_bytes.clear();
        for (group, unnamed) in groups.iter().filter_map(|group| Some((group, group.unnamed.as_ref()?))) {
            let labels = GroupOnNode { node: self.node.clone(), volume_group: group.name.clone() };
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            self.unnamed.get_or_create(&labels).set(number(unnamed.count));
            let size = unnamed.size.bytes().unwrap_or_default();
            self.unnamed_bytes.get_or_create(&labels).set(number(size));
        }
    }

    fn works(&self, works: &BTreeMap<VolumePath, Work>) {
        self.work_done.clear();
        self.work.clear();
        for (path, Work { what, done, all }) in works {
            let labels = WorkOnNode { node: self.node.clone(), volume: path.volume.to_string(), what };
            let number = |bytes: &Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
            self.work_done.get_or_create(&labels).set(number(done));
            self.work.get_or_create(&labels).set(number(all));
        }
    }

    fn class(
        &self,
        engine: &Arc<Engine<Linux>>,
        inventory: &Inventory,
        class: &lvms_host::desired::DeviceClass,
    ) {
        let Some(group) = inventory.groups.get(&class.group) else { return };
        let labels = Class { node: self.node.clone(), device_class: class.name.clone() };
        let set = |gauges: &Gauges, value: Bytes| {
            gauges.get_or_create(&labels).set(value.0 as f64);
        };
        let free = group.free.bytes(group.extent);
        set(&self.size, group.extents.bytes(group.extent));
        match &class.kind {
            ClassKind::Thick => set(&self.available, free.minus(class.spare)),
            ClassKind::Thin { pool, .. } => {
                set(&self.available, free);
                if let Some(volume) = group.volumes.get(pool) {
                    set(&self.pool_size, volume.size);
                    if let Kind::Pool { chunk, metadata } = volume.kind {
                        set(&self.pool_chunk, chunk);
                        set(&self.pool_metadata_size, metadata);
                    }
                }
                set(&self.pool_available, engine.capacity(class, &[]).unwrap_or_default());
                if let Ok(Some(state)) = engine.runner().pool(&group.path(pool)) {
                    self.pool_data.get_or_create(&labels).set(state.data.percent());
                    self.pool_metadata.get_or_create(&labels).set(state.metadata.percent());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_api::Quantity;
    use lvms_api::lvm_node::Unnamed;
    use lvms_cluster::work::Patience;
    use lvms_host::names::{LvName, VgName};

    #[test]
    fn a_long_work_is_counted_while_it_runs() {
        let metrics = Metrics::new("here");
        let (group, volume) = (VgName::parse("vg").unwrap(), LvName::parse("v").unwrap());
        let work = Work { what: "copy", done: Bytes::mib(1), all: Bytes::mib(4) };
        metrics.works(&[(VolumePath { group, volume }, work)].into());
        let text = metrics.written();
        for figure in [
            "lvms_work_done_bytes{node=\"here\",volume=\"v\",what=\"copy\"} 1048576\n",
            "lvms_work_bytes{node=\"here\",volume=\"v\",what=\"copy\"} 4194304\n",
        ] {
            assert!(text.contains(figure), "{figure} is not in\n{text}");
        }
        metrics.works(&BTreeMap::new());
        assert!(!metrics.written().contains("volume=\"v\""), "{}", metrics.written());
    }

    #[test]
    fn what_no_object_names_is_counted_until_it_is_gone() {
        let metrics = Metrics::new("here");
        let unnamed = Some(Unnamed { count: 2, size: Quantity::of(4096) });
        metrics.unnamed(&[VolumeGroup { name: "vg".into(), unnamed, ..VolumeGroup::default() }]);
        let text = metrics.written();
        for (figure, value) in [("volumes", 2), ("bytes", 4096)] {
            let told =
                format!("lvms_volumegroup_unnamed_{figure}{{node=\"here\",volume_group=\"vg\"}} {value}\n");
            assert!(text.contains(&told), "{told} is not in\n{text}");
        }
        metrics.unnamed(&[VolumeGroup { name: "vg".into(), ..VolumeGroup::default() }]);
        assert!(!metrics.written().contains("volume_group=\"vg\""), "{}", metrics.written());
    }

    #[test]
    fn what_waits_is_counted_by_its_queue_also_when_figures_are_asked_for_again() {
        let metrics = Metrics::new("here");
        let work = lvms_cluster::Work::new(
            "logicalvolume",
            Patience { first: Duration::ZERO, longest: Duration::ZERO },
        );
        work.add("a");
        metrics.count(work.clone());
        for waiting in [1, 2] {
            metrics.look_at_queues();
            let text = metrics.written();
            let told = format!("lvms_node_queue_waiting{{queue=\"logicalvolume\"}} {waiting}\n");
            assert!(text.contains(&told), "{text}");
            assert!(text.contains("lvms_node_queue_looks_total{queue=\"logicalvolume\"} 0\n"), "{text}");
            assert!(text.contains("lvms_node_queue_failures_total{queue=\"logicalvolume\"} 0\n"), "{text}");
            work.add("b");
        }
    }
}
