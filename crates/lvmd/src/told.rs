//! What is told: pure functions of what is there.

use std::sync::Arc;

use lvms_host::desired::{ClassKind, DeviceClass};
use lvms_host::dm::{Device, Pool};
use lvms_host::facts::Facts;
use lvms_host::lvm::Group;
use lvms_host::lvm::inventory::{Kind, Volume};
use lvms_host::names::VolumePath;
use lvms_host::plan::volume::is_half_made;
use lvms_host::runner::{Linux, Runner};
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes as Engine;

use crate::proto::{LogicalVolume, ThinPoolItem, WatchItem};

/// How a volume is now, which LVM's metadata does not tell.
#[derive(Debug, Default)]
pub(crate) struct Now {
    /// Its device, if it has one.
    device: Option<Device>,
    is_degraded: bool,
}

impl Now {
    pub(crate) fn of(engine: &Arc<Engine<Linux>>, path: &VolumePath) -> Now {
        let runner = engine.runner();
        let raid = runner.raid(path).ok().flatten();
        Now {
            device: runner.device(&path.mapper_name()).ok().flatten(),
            is_degraded: raid.is_some_and(|raid| raid.is_degraded()),
        }
    }
}

/// Whether a volume is among those of a class: of a thick one all that are neither pools nor in one. What is not
/// finished is no volume yet: whoever saw it in the list would use it.
pub(crate) fn is_listed(class: &DeviceClass, volume: &Volume) -> bool {
    let of_class = match (&class.kind, &volume.kind) {
        (ClassKind::Thin { pool, .. }, Kind::Thin { pool: other, .. }) => pool == other,
        (ClassKind::Thick, Kind::Thick(_) | Kind::Cow { .. } | Kind::Other(_)) => true,
        (ClassKind::Thick, Kind::Thin { .. } | Kind::Pool { .. }) | (ClassKind::Thin { .. }, _) => false,
    };
    of_class && is_finished(volume) && Facts::of(volume).temporary.is_none()
}

/// Whether a copy or a snapshot was finished: one that was not goes on with the same call.
pub(crate) fn is_finished(volume: &Volume) -> bool {
    let facts = Facts::of(volume);
    !(facts.is_unfinished(volume.size) || facts.snapshot && is_half_made(volume))
}

/// A volume as it is now.
pub(crate) fn volume(path: &VolumePath, volume: &Volume, now: &Now) -> LogicalVolume {
    let device = now.device.as_ref();
    LogicalVolume {
        name: path.volume.to_string(),
        dev_major: device.map_or(0, |device| device.number.major),
        dev_minor: device.map_or(0, |device| device.number.minor),
        tags: volume.tags.clone(),
        size_bytes: signed(volume.size),
        path: format!("/dev/{path}"),
        attr: attributes(volume, now),
    }
}

/// As lvs(8) would print them now: LVM told them once, and what has changed since without LVM the device tells.
fn attributes(volume: &Volume, now: &Now) -> String {
    let device = now.device.as_ref();
    let mut letters: Vec<char> = volume.attributes.chars().collect();
    letters.resize(10, '-');
    // A snapshot that has overflowed says so in the place of its state.
    if !volume.has_overflowed() {
        letters[4] = match device {
            Some(device) if device.suspended => 's',
            Some(_) => 'a',
            None => '-',
        };
    }
    letters[5] = if device.is_some_and(|device| device.open > 0) { 'o' } else { '-' };
    if letters[8] == '-' && now.is_degraded {
        letters[8] = 'r';
    }
    letters.into_iter().collect()
}

/// How full a class is. Of one whose volume group is missing nothing is free: nothing at all would be taken for what was
/// told last.
pub(crate) fn item(
    class: &DeviceClass,
    available: Bytes,
    group: Option<&Group>,
    pool: Option<(&Volume, Option<Pool>)>,
) -> WatchItem {
    let of_group = |extents: fn(&Group) -> Bytes| group.map_or(0, |group| extents(group).0);
    let size_bytes = of_group(|group| group.extents.bytes(group.extent));
    let device_class = class.name.clone();
    match class.kind {
        ClassKind::Thick => WatchItem { free_bytes: available.0, device_class, size_bytes, thin_pool: None },
        ClassKind::Thin { .. } => {
            let state = pool.as_ref().and_then(|(_, state)| state.as_ref());
            let thin_pool = ThinPoolItem {
                data_percent: state.map_or(0.0, |state| state.data.percent()),
                metadata_percent: state.map_or(0.0, |state| state.metadata.percent()),
                overprovision_bytes: available.0,
                size_bytes: pool.as_ref().map_or(0, |(volume, _)| volume.size.0),
            };
            let free_bytes = of_group(|group| group.free.bytes(group.extent));
            WatchItem { free_bytes, device_class, size_bytes, thin_pool: Some(thin_pool) }
        }
    }
}

/// The protocol has signed sizes.
pub(crate) fn signed(size: Bytes) -> i64 {
    i64::try_from(size.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_host::lvm::inventory::{DeviceNumber, Layout};
    use lvms_host::names::{LvName, VgName};

    fn class(pool: Option<&str>) -> DeviceClass {
        DeviceClass {
            name: "c".into(),
            group: VgName::parse("vg").unwrap(),
            default: true,
            spare: Bytes::ZERO,
            kind: match pool {
                None => ClassKind::Thick,
                Some(pool) => {
                    ClassKind::Thin { pool: LvName::parse(pool).unwrap(), overprovision_ratio: 2.0 }
                }
            },
            stripe: 0,
            stripe_size: None,
            options: Vec::new(),
        }
    }

    fn thick() -> Kind {
        Kind::Thick(Layout { segment: "linear".into(), stripes: 1, copies: 1 })
    }

    fn thin(pool: &str) -> Kind {
        Kind::Thin { pool: LvName::parse(pool).unwrap(), origin: None }
    }

    fn lv(kind: Kind, tags: &[&str]) -> Volume {
        Volume {
            name: LvName::parse("v").unwrap(),
            uuid: String::new(),
            kind,
            size: Bytes::mib(4),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            attributes: "-wi-a-----".to_owned(),
            active: true,
            areas: Vec::new(),
        }
    }

    fn opened(open: u32, suspended: bool) -> Now {
        let number = DeviceNumber { major: 253, minor: 7 };
        Now {
            device: Some(Device { number, uuid: String::new(), open, suspended, has_targets: true }),
            is_degraded: false,
        }
    }

    #[test]
    fn a_class_lists_its_own_volumes_that_are_finished() {
        let pool = Kind::Pool { chunk: Bytes::kib(64), metadata: Bytes::mib(4) };
        let listed = |of: Option<&str>, kind: Kind, tags: &[&str]| is_listed(&class(of), &lv(kind, tags));
        assert!(listed(None, thick(), &[]) && listed(None, thick(), &["anybodys"]));
        assert!(!listed(None, thin("pool"), &[]) && !listed(None, pool.clone(), &[]));
        assert!(listed(Some("pool"), thin("pool"), &[]) && !listed(Some("pool"), pool, &[]));
        assert!(!listed(Some("pool"), thin("other"), &[]) && !listed(Some("pool"), thick(), &[]));
        for unfinished in
            ["lvms.io/copying=vg#2fx", "lvms.io/zeroing=0", "lvms.io/temporary=x", "lvms.io/snapshot"]
        {
            assert!(!listed(None, thick(), &[unfinished]), "{unfinished}");
        }
    }

    #[test]
    fn attributes_say_how_the_device_is_now() {
        let mut volume = lv(thick(), &[]);
        let none = Now::default();
        assert_eq!(attributes(&volume, &none), "-wi-------");
        assert_eq!(attributes(&volume, &opened(0, false)), "-wi-a-----");
        assert_eq!(attributes(&volume, &opened(1, true)), "-wi-so----");
        assert_eq!(attributes(&volume, &Now { is_degraded: true, ..opened(0, false) }), "-wi-a---r-");
        volume.attributes = "swi-I-s---".into();
        assert_eq!(attributes(&volume, &opened(0, false)), "swi-I-s---");
        volume.attributes = String::new();
        assert_eq!(attributes(&volume, &none).len(), 10);
    }

    #[test]
    fn a_volume_has_the_numbers_of_its_device_or_none() {
        let volume = |now: &Now| {
            let path =
                VolumePath { group: VgName::parse("vg").unwrap(), volume: LvName::parse("v").unwrap() };
            super::volume(&path, &lv(thick(), &["t"]), now)
        };
        let active = volume(&opened(0, false));
        assert_eq!((active.dev_major, active.dev_minor, active.path.as_str()), (253, 7, "/dev/vg/v"));
        assert_eq!((active.size_bytes, active.tags), (4 << 20, vec!["t".to_owned()]));
        let inactive = volume(&Now::default());
        assert_eq!((inactive.dev_major, inactive.dev_minor), (0, 0));
    }

    #[test]
    fn of_a_missing_group_nothing_is_free() {
        let told = item(&class(Some("pool")), Bytes::ZERO, None, None);
        assert_eq!((told.free_bytes, told.size_bytes), (0, 0));
        assert_eq!(told.thin_pool.map(|pool| pool.overprovision_bytes), Some(0));
    }
}
