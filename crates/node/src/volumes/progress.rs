//! How far long works are, on the LogicalVolumes that wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lvms_api::LogicalVolume;
use lvms_api::names::PROGRESS;
use lvms_cluster::store::chain;
use lvms_cluster::write;
use lvms_host::facts::Facts;
use lvms_host::lvm::Inventory;
use lvms_host::names::{LvName, VolumePath};
use lvms_host::units::Bytes;
use lvms_host::volumes::Work;
use serde_json::json;

use super::Volumes;

/// A work is told of when it was seen twice so far apart, and then at the most so often.
const INTERVAL: Duration = Duration::from_secs(5);

impl Volumes {
    /// Tells it for ever.
    pub(super) async fn tell_progress(self: Arc<Self>) {
        let mut seen = BTreeSet::new();
        loop {
            tokio::time::sleep(INTERVAL).await;
            let works = self.host.engine.works();
            let told = told(&self.host.engine.inventory(), &works, &seen);
            seen = works.into_keys().collect();
            for (object, progress) in self.untold(&told) {
                let change = json!({ "metadata": { "annotations": { PROGRESS: progress } } });
                match write::change(&self.api(), &object, change).await {
                    Ok(object) => self.objects.answered(object),
                    // It is told the next time.
                    Err(error) => {
                        tracing::debug!(volume = object.name(), error = %chain(&error), "no progress was told");
                    }
                }
            }
        }
    }

    /// What says something else than how far it is.
    fn untold(&self, told: &BTreeMap<LvName, String>) -> Vec<(Arc<LogicalVolume>, Option<String>)> {
        let progress = |object: &LogicalVolume| {
            let (_, text) = told.iter().find(|(volume, _)| volume.as_str() == object.lv())?;
            Some(text.clone())
        };
        let differs = |object: &LogicalVolume| {
            object.spec.node_name == self.node && object.annotation(PROGRESS) != progress(object).as_deref()
        };
        let objects = self.objects.filter(differs);
        objects.into_iter().map(|object| (Arc::clone(&object), progress(&object))).collect()
    }
}

/// What is told of which LV. What is done to a temporary one is done for the one that it is there for.
fn told(
    inventory: &Inventory,
    works: &BTreeMap<VolumePath, Work>,
    seen: &BTreeSet<VolumePath>,
) -> BTreeMap<LvName, String> {
    let lv = |path: &VolumePath| {
        let volume = inventory.groups.get(&path.group).and_then(|group| group.volumes.get(&path.volume));
        volume.and_then(|volume| Facts::of(volume).temporary).unwrap_or_else(|| path.volume.clone())
    };
    let long = works.iter().filter(|(path, _)| seen.contains(path));
    long.map(|(path, work)| (lv(path), text(work))).collect()
}

/// Whole percents: each change is a write. A tool does not tell how far it is.
fn text(Work { what, done, all }: &Work) -> String {
    if *done == Bytes::ZERO {
        return format!("{what} of {} MiB", all.0 >> 20);
    }
    let percent = u128::from(done.0) * 100 / u128::from(all.0.max(1));
    format!("{what}: {percent}% of {} MiB", all.0 >> 20)
}

#[cfg(test)]
mod tests {
    use lvms_host::lvm::Volume;
    use lvms_host::lvm::inventory::{Group, Kind, Layout};
    use lvms_host::names::VgName;
    use lvms_host::units::Extents;

    use super::*;

    #[test]
    fn a_work_that_lasts_is_told_of_the_volume_that_it_is_for() {
        let name = |name: &str| LvName::parse(name).unwrap();
        let room = Volume {
            name: name("lvms-room-grows"),
            uuid: String::new(),
            kind: Kind::Thick(Layout { segment: "linear".to_owned(), stripes: 1, copies: 1 }),
            size: Bytes::mib(8),
            tags: vec!["lvms.io/temporary=grows".to_owned()],
            attributes: String::new(),
            active: true,
            areas: Vec::new(),
        };
        let group = Group {
            name: VgName::parse("vg").unwrap(),
            uuid: String::new(),
            seqno: 1,
            checksum: None,
            attributes: String::new(),
            tags: Vec::new(),
            extent: Bytes::mib(4),
            extents: Extents(9),
            free: Extents(7),
            metadata: (Bytes::mib(1), Bytes::mib(1)),
            disks: Vec::new(),
            measured: true,
            placed: true,
            volumes: [(room.name.clone(), room)].into(),
        };
        let path = |volume: &str| group.path(&name(volume));
        let works = BTreeMap::from([
            (path("copied"), Work { what: "copy", done: Bytes::mib(43), all: Bytes::mib(100) }),
            (path("lvms-room-grows"), Work { what: "zero", done: Bytes::mib(8), all: Bytes::mib(8) }),
            (path("made"), Work { what: "format", done: Bytes::ZERO, all: Bytes::mib(64) }),
            (path("young"), Work { what: "copy", done: Bytes::mib(1), all: Bytes::mib(2) }),
        ]);
        let seen = [path("copied"), path("lvms-room-grows"), path("made"), path("ended")].into();
        let inventory = Inventory::of(group.clone());
        let expected = [
            ("copied", "copy: 43% of 100 MiB"),
            ("grows", "zero: 100% of 8 MiB"),
            ("made", "format of 64 MiB"),
        ];
        let expected = expected.map(|(volume, text)| (name(volume), text.to_owned()));
        assert_eq!(told(&inventory, &works, &seen), expected.into());
    }
}
