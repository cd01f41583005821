//! What this node has, as an LVMNode: written a second after it has changed.

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use lvms_api::lvm_node::{
    Condition, Device, DeviceClass, Devices, OptionClass, Pool, State, Status, VolumeGroup,
};
use lvms_api::{LogicalVolume, LvmNode, Quantity};
use lvms_cluster::Store;
use lvms_cluster::store::chain;
use lvms_cluster::write::{self, is_not_found};
use lvms_csi::Error;
use lvms_host::desired::{self, Desired};
use lvms_host::lvm::inventory::{Group, Inventory};
use lvms_host::names::VgName;
use lvms_host::runner::{Linux, Runner};
use lvms_host::volumes::Volumes as Engine;
use serde_json::json;
use tokio::sync::watch;

use crate::host_volumes::HostVolumes;
use crate::known::{options, options_for};
use crate::metrics::Metrics;
use crate::unnamed::{self, named, unnamed};

/// From a change to its write: what whoever waits for the change needs is written first, and others that follow are
/// told with it.
const INTERVAL: Duration = Duration::from_secs(1);

/// Pools fill without LVM's knowledge: they are looked at so often, without a process.
const LOOK: Duration = Duration::from_secs(60);

/// A write that failed is tried again after this long.
const AGAIN: Duration = Duration::from_secs(5);

/// Tells the cluster what this node has.
pub struct Report {
    /// The cluster.
    pub client: Client,
    /// Where LVMNodes are.
    pub namespace: String,
    /// This node.
    pub node: String,
    /// The host.
    pub host: Arc<HostVolumes>,
    /// The LogicalVolumes of this node.
    pub objects: Arc<Store<LogicalVolume>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Report {
    /// Tells it for ever. `told` has what was told last.
    pub async fn run(self, told: Arc<watch::Sender<Option<Status>>>) {
        let mut changes = self.host.engine.watch();
        let mut configuration = self.host.configuration.watch();
        let mut last = None;
        loop {
            match self.write(&mut last).await {
                Ok(()) => {
                    told.send_replace(last.clone());
                    if !is_to_be_told(&mut changes, &mut configuration).await {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error, "what this node has could not be told");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    async fn write(&self, last: &mut Option<Status>) -> Result<(), String> {
        let before = last.clone();
        let mistakes = self.host.configuration.mistakes();
        let objects = Arc::clone(&self.objects);
        let look = move |engine: &Arc<Engine<Linux>>, desired: &Desired| {
            Ok(status(engine, desired, &objects, &mistakes, before.as_ref()))
        };
        let status = self.host.blocking(look).await;
        let status = status.map_err(|Error { message, .. }| message)?;
        self.metrics.unnamed(&status.volume_groups);
        let api: Api<LvmNode> = Api::namespaced(self.client.clone(), &self.namespace);
        if last.as_ref() == Some(&status) {
            // Somebody may have deleted or changed it, or a write that failed was heard nevertheless.
            let present = api.get_opt(&self.node).await.map_err(|error| chain(&error))?;
            if present.is_some_and(|present| present.status == *last) {
                return Ok(());
            }
        }
        let change = json!({ "status": status });
        let tell = || write::merge_status(&api, &self.node, change.clone());
        let mut patched = tell().await;
        if patched.as_ref().is_err_and(is_not_found) {
            let node = json!(LvmNode::new(&self.node, &self.namespace));
            write::create(&api, &node).await.map_err(|error| chain(&error))?;
            patched = tell().await;
        }
        *last = patched.map_err(|error| chain(&error))?.status;
        Ok(())
    }
}

/// Waits until there is something to tell again; not if nothing can change any more.
async fn is_to_be_told<A, B>(
    changes: &mut watch::Receiver<A>,
    configuration: &mut watch::Receiver<B>,
) -> bool {
    let changed = tokio::select! {
        changed = changes.changed() => changed.is_ok(),
        changed = configuration.changed() => changed.is_ok(),
        () = tokio::time::sleep(LOOK) => true,
    };
    tokio::time::sleep(INTERVAL).await;
    // What is told now has all of it.
    changes.mark_unchanged();
    configuration.mark_unchanged();
    changed
}

/// What this node has now.
fn status(
    engine: &Arc<Engine<Linux>>,
    desired: &Desired,
    objects: &Store<LogicalVolume>,
    mistakes: &[String],
    before: Option<&Status>,
) -> Status {
    // An object is there before its LV, and as long as that: asked before and after, none is missed.
    let mut named = named(objects);
    let inventory = engine.inventory();
    if let (Some(named), Some(now)) = (&mut named, unnamed::named(objects)) {
        named.extend(now);
    }
    let volume_group = |name| {
        let unnamed = named.as_ref().and_then(|named| unnamed(desired, &inventory, name, named));
        VolumeGroup { unnamed, ..volume_group(engine, desired, &inventory, name) }
    };
    let volume_groups: Vec<VolumeGroup> = desired.groups().into_iter().map(volume_group).collect();
    let device_classes: Vec<DeviceClass> =
        desired.classes.iter().map(|class| device_class(engine, desired, &volume_groups, class)).collect();
    let states = volume_groups.iter().map(|group| group.state);
    let states = states.chain(device_classes.iter().map(|class| class.state));
    // Without any class the configuration is wrong since we started.
    let states = states.chain(device_classes.is_empty().then_some(State::Failed));
    let state = states.chain((!mistakes.is_empty()).then_some(State::Degraded)).max().unwrap_or_default();
    let mut messages: Vec<&str> =
        volume_groups.iter().map(|group| group.message.as_str()).filter(|text| !text.is_empty()).collect();
    if desired.classes.is_empty() {
        messages.push("lvmd.yaml is wrong: the log of this node's pod says what, and lvms check");
    }
    let healthy = condition(before, "VolumeGroupsHealthy", messages.is_empty(), &messages.join("; "));
    let told = if mistakes.is_empty() {
        String::new()
    } else {
        format!("{}: the last good configuration stays in force", mistakes.join("; "))
    };
    let valid = condition(before, "ConfigurationValid", mistakes.is_empty(), &told);
    Status {
        state,
        used: used(&device_classes, &volume_groups),
        volume_groups,
        device_classes,
        conditions: vec![healthy, valid],
    }
}

fn volume_group(
    engine: &Arc<Engine<Linux>>,
    desired: &Desired,
    inventory: &Inventory,
    name: &VgName,
) -> VolumeGroup {
    let Some(group) = inventory.groups.get(name) else {
        return VolumeGroup {
            name: name.to_string(),
            state: State::Failed,
            message: format!("volume group {name} is not there"),
            ..VolumeGroup::default()
        };
    };
    let missing: Vec<String> = group
        .disks
        .iter()
        .filter(|disk| disk.missing || disk.is_gone())
        .map(|disk| format!("{} is missing", disk.told()))
        .collect();
    let stuck = engine.stuck(name).map(|stuck| stuck.to_string());
    let state = match (&stuck, missing.is_empty()) {
        (Some(_), _) => State::Failed,
        (None, false) => State::Degraded,
        (None, true) => State::Ready,
    };
    let included =
        group.disks.iter().filter(|disk| !disk.missing).map(|disk| Device { kname: disk.path.clone() });
    VolumeGroup {
        name: name.to_string(),
        state,
        message: stuck.into_iter().chain(missing).collect::<Vec<_>>().join("; "),
        size: Quantity::of(group.extents.bytes(group.extent).0),
        free: Quantity::of(group.free.bytes(group.extent).0),
        unnamed: None,
        devices: Devices { included: included.collect(), excluded: Vec::new() },
        volumes: desired.classes_of(name).filter_map(|class| pool(engine, group, class)).collect(),
    }
}

fn pool(engine: &Arc<Engine<Linux>>, group: &Group, class: &desired::DeviceClass) -> Option<Pool> {
    let name = class.pool()?;
    let volume = group.volumes.get(name)?;
    let state = engine.runner().pool(&group.path(name)).ok().flatten();
    // Whole percents: a pool that is written to must not make a write of ours each time.
    let percent = |fill: f64| format!("{fill:.0}");
    Some(Pool {
        name: name.to_string(),
        size: Quantity::of(volume.size.0),
        data_percent: state.as_ref().map(|state| percent(state.data.percent())).unwrap_or_default(),
        metadata_percent: state.as_ref().map(|state| percent(state.metadata.percent())).unwrap_or_default(),
    })
}

fn device_class(
    engine: &Arc<Engine<Linux>>,
    desired: &Desired,
    groups: &[VolumeGroup],
    class: &desired::DeviceClass,
) -> DeviceClass {
    let group = groups.iter().find(|group| group.name == class.group.as_str());
    let mut state = group.map(|group| group.state).unwrap_or_default();
    let mut message = group.map(|group| group.message.clone()).unwrap_or_default();
    let capacity = |options: Vec<String>| engine.capacity(class, &options_for(class, options));
    let available = capacity(options(class)).unwrap_or_else(|refusal| {
        if state == State::Ready {
            state = State::Degraded;
            message = refusal.to_string();
        }
        lvms_host::units::Bytes::ZERO
    });
    let options = desired.option_classes.iter().map(|(name, options)| OptionClass {
        name: name.clone(),
        available: Quantity::of(capacity(options.clone()).unwrap_or_default().0),
    });
    DeviceClass {
        name: class.name.clone(),
        volume_group: class.group.to_string(),
        thin_pool: class.pool().map(ToString::to_string).unwrap_or_default(),
        default: class.default,
        state,
        message,
        available: Quantity::of(available.0),
        lvcreate_option_classes: options.collect(),
    }
}

/// How full each class is, in one line: of a thin one its pool, of a thick one its volume group.
fn used(classes: &[DeviceClass], groups: &[VolumeGroup]) -> String {
    let one = |class: &DeviceClass| {
        let group = groups.iter().find(|group| group.name == class.volume_group)?;
        let percent = if class.thin_pool.is_empty() {
            let (size, free) = (group.size.bytes().ok()?, group.free.bytes().ok()?);
            (size > 0).then(|| (size.saturating_sub(free).saturating_mul(100) / size).to_string())?
        } else {
            group.volumes.iter().find(|pool| pool.name == class.thin_pool)?.data_percent.clone()
        };
        Some(format!("{} {percent}%", class.name))
    };
    let all: Vec<String> =
        classes.iter().map(|class| one(class).unwrap_or_else(|| format!("{} ?", class.name))).collect();
    all.join(", ")
}

/// As Kubernetes writes it.
fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A condition, whose time is that of its last change.
fn condition(before: Option<&Status>, kind: &str, holds: bool, message: &str) -> Condition {
    let status = if holds { "True" } else { "False" };
    let present =
        before.and_then(|before| before.conditions.iter().find(|condition| condition.r#type == kind));
    let since = present
        .filter(|present| present.status == status)
        .map(|present| present.last_transition_time.clone());
    Condition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        reason: if holds { "Healthy" } else { "Unhealthy" }.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or_else(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_full_a_node_is_fits_in_one_line() {
        let groups = [VolumeGroup {
            name: "vg".into(),
            size: Quantity::of(200),
            free: Quantity::of(150),
            volumes: vec![Pool { name: "pool".into(), data_percent: "63".into(), ..Pool::default() }],
            ..VolumeGroup::default()
        }];
        let class = |name: &str, group: &str, pool: &str| DeviceClass {
            name: name.into(),
            volume_group: group.into(),
            thin_pool: pool.into(),
            ..DeviceClass::default()
        };
        let classes = [class("ssd", "vg", ""), class("thin", "vg", "pool"), class("gone", "other", "")];
        assert_eq!(used(&classes, &groups), "ssd 25%, thin 63%, gone ?");
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let first = Condition {
            last_transition_time: "2026-01-01T00:00:00Z".into(),
            ..condition(None, "X", true, "")
        };
        let status = Status { conditions: vec![first.clone()], ..Status::default() };
        let same = condition(Some(&status), "X", true, "");
        assert_eq!(same.last_transition_time, first.last_transition_time);
        let other = condition(Some(&status), "X", false, "gone");
        assert_ne!(other.last_transition_time, first.last_transition_time);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_within_a_second_are_told_with_one_write() {
        let (inventory, mut changes) = watch::channel(());
        let (desired, mut configuration) = watch::channel(());
        let writes = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        let telling = tokio::spawn(async move {
            while is_to_be_told(&mut changes, &mut configuration).await {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        });
        let after = |pause: Duration| {
            let writes = Arc::clone(&writes);
            async move {
                tokio::time::sleep(pause).await;
                writes.load(std::sync::atomic::Ordering::SeqCst)
            }
        };
        inventory.send_replace(());
        assert_eq!(after(INTERVAL / 2).await, 0);
        desired.send_replace(());
        inventory.send_replace(());
        assert_eq!(after(LOOK / 2).await, 1, "two changes within a second");
        inventory.send_replace(());
        assert_eq!(after(2 * INTERVAL).await, 2, "one more, later");
        telling.abort();
    }
}
