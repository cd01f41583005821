//! Which volumes are ours, and which class a request or a volume belongs to.

use lvms_csi::volumes::Source;
use lvms_csi::{Error, Kind};
use lvms_host::desired::{ClassKind, Desired, DeviceClass};
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory::{self, Inventory};
use lvms_host::names::{LvName, VgName, VolumePath};
use uuid::Uuid;

/// The parameter that names a device class, under both names that TopoLVM had.
pub const DEVICE_CLASS: [&str; 2] = ["topolvm.io/device-class", "topolvm.cybozu.com/device-class"];
/// The parameter that names a class of options for lvcreate.
pub const OPTION_CLASS: [&str; 2] =
    ["topolvm.io/lvcreate-option-class", "topolvm.cybozu.com/lvcreate-option-class"];

/// A volume or snapshot of ours: in a group of a class, and named or tagged like one.
pub struct Found<'a> {
    /// Where it is.
    pub path: VolumePath,
    /// As LVM has it.
    pub volume: &'a inventory::Volume,
    /// What we know of it.
    pub facts: Facts,
}

/// All of them.
pub fn all<'a>(desired: &'a Desired, inventory: &'a Inventory) -> impl Iterator<Item = Found<'a>> {
    let groups = desired.groups().into_iter().filter_map(|name| inventory.groups.get(name));
    groups.flat_map(|group| group.volumes.values().filter_map(|volume| ours(group, volume)))
}

fn ours<'a>(group: &inventory::Group, volume: &'a inventory::Volume) -> Option<Found<'a>> {
    let facts = Facts::of(volume);
    let ours = is_named(volume, &facts) && volume.is_volume() && facts.temporary.is_none();
    ours.then(|| Found { path: group.path(&volume.name), volume, facts })
}

/// TopoLVM's volumes have no tags, but names that nobody else gives.
fn is_named(volume: &inventory::Volume, facts: &Facts) -> bool {
    facts.name.is_some() || Uuid::try_parse(volume.name.as_str()).is_ok()
}

/// What somebody has made of a volume of ours that is none any more: where it is, and LVM's type.
fn converted(inventory: &Inventory, id: &str) -> Option<(VolumePath, String)> {
    let name = LvName::parse(id).ok()?;
    let here = |group: &std::sync::Arc<inventory::Group>| {
        let volume = group.volumes.get(&name).filter(|volume| is_named(volume, &Facts::of(volume)))?;
        let kind = match &volume.kind {
            inventory::Kind::Pool { .. } => "thin-pool".to_owned(),
            inventory::Kind::Other(segment) if !volume.is_volume() => segment.clone(),
            inventory::Kind::Other(_)
            | inventory::Kind::Thick(_)
            | inventory::Kind::Thin { .. }
            | inventory::Kind::Cow { .. } => return None,
        };
        Some((group.path(&name), kind))
    };
    inventory.groups.values().find_map(here)
}

/// The volume group that has an LV of this name, whatever that is.
pub fn has<'a>(inventory: &'a Inventory, id: &str) -> Option<&'a VgName> {
    let name = LvName::parse(id).ok()?;
    inventory.groups.values().find(|group| group.volumes.contains_key(&name)).map(|group| &group.name)
}

/// The volume or snapshot with this id, whatever it is: TopoLVM's snapshots do not say that they are some. None if there
/// are two.
pub fn find_any<'a>(desired: &'a Desired, inventory: &'a Inventory, id: &str) -> Option<Found<'a>> {
    let mut every = every(desired, inventory, id);
    every.pop().filter(|_| every.is_empty())
}

/// All with this id. A copy of a group that somebody has imported (vgimportclone) has the same.
fn every<'a>(desired: &'a Desired, inventory: &'a Inventory, id: &str) -> Vec<Found<'a>> {
    let Ok(name) = LvName::parse(id) else { return Vec::new() };
    let groups = desired.groups().into_iter().filter_map(|group| inventory.groups.get(group));
    groups.filter_map(|group| ours(group, group.volumes.get(&name)?)).collect()
}

/// What to say of an id that is in several volume groups: which is meant nobody knows.
pub fn ambiguous(desired: &Desired, inventory: &Inventory, id: &str) -> Option<String> {
    let every = every(desired, inventory, id);
    let groups: Vec<&str> = every.iter().map(|found| found.path.group.as_str()).collect();
    (groups.len() > 1).then(|| {
        format!(
            "{id} is in several volume groups, {}, and which is meant is not known: take the device classes of all but \
             one out of lvmd.yaml",
            groups.join(" and ")
        )
    })
}

/// The volume, or the snapshot, with this id. What may be a snapshot of TopoLVM's is both: TopoLVM tells them apart as
/// little.
pub fn find<'a>(
    desired: &'a Desired,
    inventory: &'a Inventory,
    id: &str,
    snapshot: bool,
) -> Option<Found<'a>> {
    let is_one = |found: &Found<'_>| {
        found.facts.snapshot == snapshot || snapshot && may_be_a_snapshot_of_topolvm(found)
    };
    find_any(desired, inventory, id).filter(is_one)
}

/// TopoLVM's snapshots have a UUID for a name, as all that is ours and has no name in its tags, and nothing that says what
/// they are. They may only be read, and have an origin until that is removed.
fn may_be_a_snapshot_of_topolvm(found: &Found<'_>) -> bool {
    let is_untold = !found.facts.is_ours() && found.facts.source.is_none();
    match &found.volume.kind {
        inventory::Kind::Thin { origin, .. } => {
            is_untold && (origin.is_some() || found.volume.attribute(2) == 'r')
        }
        inventory::Kind::Thick(_)
        | inventory::Kind::Cow { .. }
        | inventory::Kind::Pool { .. }
        | inventory::Kind::Other(_) => false,
    }
}

/// The volume, or the snapshot, that a field of a request names.
pub fn named<'a>(
    desired: &'a Desired,
    inventory: &'a Inventory,
    field: &str,
    id: &str,
    snapshot: bool,
) -> Result<Found<'a>, Error> {
    find(desired, inventory, id, snapshot).ok_or_else(|| match unknown(desired, inventory, field, id) {
        Some(error) => error,
        None => Error::new(Kind::NotFound, format!("{field}: there is no {id:?}")),
    })
}

/// The group that has a volume of ours with this id, though no class of this node is in it: one may have been taken out of
/// the configuration.
pub fn elsewhere<'a>(desired: &Desired, inventory: &'a Inventory, id: &str) -> Option<&'a VgName> {
    let name = LvName::parse(id).ok()?;
    let configured = desired.groups();
    let groups = inventory.groups.values().filter(|group| !configured.contains(&&group.name));
    let has = |group: &&std::sync::Arc<inventory::Group>| {
        group.volumes.get(&name).is_some_and(|volume| ours(group, volume).is_some())
    };
    groups.into_iter().find(has).map(|group| &group.name)
}

/// What is not found may be in a group that is not there, or of which no class is: that it does not exist is not known
/// then.
pub fn unknown(desired: &Desired, inventory: &Inventory, field: &str, id: &str) -> Option<Error> {
    if desired.classes.is_empty() {
        let message =
            format!("{field}: lvmd.yaml is wrong since we started: where {id:?} may be is not known");
        return Some(Error::new(Kind::Precondition, message));
    }
    if let Some(told) = ambiguous(desired, inventory, id) {
        return Some(Error::new(Kind::Precondition, format!("{field}: {told}")));
    }
    if let Some((path, kind)) = converted(inventory, id) {
        let message = format!(
            "{field}: somebody has made an LV of type {kind} of {path}, with which nothing is done here: make it a volume \
             again with lvconvert, or remove it with lvremove"
        );
        return Some(Error::new(Kind::Precondition, message));
    }
    if let Some(group) = elsewhere(desired, inventory, id) {
        let message = format!(
            "{field}: {id} is in volume group {group}, of which no device class is any more: add one to lvmd.yaml"
        );
        return Some(Error::new(Kind::Precondition, message));
    }
    let unseen = desired.groups().into_iter().find_map(|group| inventory.unseen.get_key_value(group));
    if let Some((group, reason)) = unseen {
        let message = format!(
            "{field}: whether {id:?} is in volume group {group} is not known, LVM does not tell: {reason}"
        );
        return Some(Error::new(Kind::Unavailable, message));
    }
    let group = desired.groups().into_iter().find(|group| !inventory.groups.contains_key(*group))?;
    let message = format!("{field}: volume group {group} is not there: whether {id:?} is in it is not known");
    Some(Error::new(Kind::Precondition, message))
}

/// Where something is left that was made for a volume that is not there: the snapshot of a copy that was given up.
pub fn left_for(inventory: &Inventory, id: &str) -> Option<VolumePath> {
    let name = LvName::parse(id).ok().filter(|_| has(inventory, id).is_none())?;
    let is_left = |volume: &inventory::Volume| Facts::of(volume).temporary.as_ref() == Some(&name);
    let group = inventory.groups.values().find(|group| group.volumes.values().any(is_left))?;
    Some(group.path(&name))
}

/// The class that a volume belongs to by where it lies.
pub fn class_of<'a>(desired: &'a Desired, found: &Found<'_>) -> Result<&'a DeviceClass, Error> {
    let pool = match &found.volume.kind {
        inventory::Kind::Thin { pool, .. } => Some(pool),
        inventory::Kind::Thick(_)
        | inventory::Kind::Cow { .. }
        | inventory::Kind::Pool { .. }
        | inventory::Kind::Other(_) => None,
    };
    let class = desired.classes.iter().find(|class| class.group == found.path.group && class.pool() == pool);
    class.ok_or_else(|| {
        let message = format!("no device class has {}: add one with its volume group or pool", found.path);
        Error::new(Kind::Precondition, message)
    })
}

/// How a parameter is called in what is told.
pub(crate) fn parameter(names: [&str; 2]) -> String {
    format!("parameters[{:?}]", names[0])
}

/// The class of this name, and the options for lvcreate that a class of options, or the device class itself, has.
pub fn class<'a>(
    desired: &'a Desired,
    name: &str,
    option_class: &str,
) -> Result<(&'a DeviceClass, Vec<String>), Error> {
    let class = desired.class(name).ok_or_else(|| {
        let known: Vec<&str> = desired.classes.iter().map(|class| class.name.as_str()).collect();
        let problem = match name {
            "" => format!("is missing, and no device class is the default: name one of {}", known.join(", ")),
            name => format!("there is no device class {name:?}: use one of {}", known.join(", ")),
        };
        Error::invalid(&parameter(DEVICE_CLASS), problem)
    })?;
    let options = match option_class {
        "" => options(class),
        name => desired.option_classes.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = desired.option_classes.keys().map(String::as_str).collect();
            let problem =
                format!("unsupported lvcreate-option-class target: {name}: known are {}", known.join(", "));
            Error::invalid(&parameter(OPTION_CLASS), problem)
        })?,
    };
    Ok((class, options))
}

/// Where the options for lvcreate of a new volume come from: the field that names a class of options, or the device class.
pub fn options_from(class: &DeviceClass, field: &str, option_class: &str) -> String {
    match option_class {
        "" => format!("device class {:?} in lvmd.yaml", class.name),
        name => format!("{field}: {name:?} in lvmd.yaml"),
    }
}

/// The options for lvcreate of a device class itself.
pub fn options(class: &DeviceClass) -> Vec<String> {
    let mut options = Vec::new();
    if class.stripe != 0 {
        options.extend(["--stripes".to_owned(), class.stripe.to_string()]);
        if let Some(size) = &class.stripe_size {
            options.extend(["--stripesize".to_owned(), size.clone()]);
        }
    }
    options.extend(class.options.iter().cloned());
    options
}

/// Thin volumes lie in their pool as it is, whatever the class says of disks.
pub fn options_for(class: &DeviceClass, options: Vec<String>) -> Vec<String> {
    match class.kind {
        ClassKind::Thick => options,
        ClassKind::Thin { .. } => Vec::new(),
    }
}

/// What a volume was made from.
pub fn source_of(facts: &Facts) -> Option<Source> {
    let (kind, id) = facts.source.as_ref()?.split_once(':')?;
    match kind {
        "snapshot" => Some(Source::Snapshot(id.to_owned())),
        "volume" => Some(Source::Volume(id.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_configuration_nothing_counts_as_gone() {
        let desired = Desired::default();
        let inventory = Inventory::default();
        let error = named(&desired, &inventory, "volume_id", "x", false).err().unwrap();
        assert_eq!(error.kind, Kind::Precondition, "{error}");
        assert!(error.message.contains("lvmd.yaml"), "{error}");
    }

    #[test]
    fn stripes_of_a_class_and_their_size_are_options_unless_a_class_of_options_is_named() {
        let text = "device-classes:\n\
            - {name: plain, volume-group: a, default: true}\n\
            - {name: sized, volume-group: b, stripe-size: 64k}\n\
            - {name: striped, volume-group: c, stripe: 2, stripe-size: 64k, lvcreate-options: [--nosync]}\n\
            lvcreate-option-classes: [{name: mirror, options: [-m1]}]";
        let desired = lvms_host::desired::lvmd::read(text).unwrap().desired;
        for (name, option_class, expected) in [
            ("", "", &[][..]),
            ("sized", "", &[]),
            ("striped", "", &["--stripes", "2", "--stripesize", "64k", "--nosync"]),
            ("striped", "mirror", &["-m1"]),
        ] {
            let (class, options) = class(&desired, name, option_class).unwrap();
            assert_eq!(options_for(class, options), expected, "{name} {option_class}");
            let from = options_from(class, &parameter(OPTION_CLASS), option_class);
            match option_class {
                "" => assert_eq!(from, format!("device class {:?} in lvmd.yaml", class.name)),
                name => assert_eq!(
                    from,
                    format!("parameters[\"topolvm.io/lvcreate-option-class\"]: {name:?} in lvmd.yaml")
                ),
            }
        }
    }

    #[test]
    fn a_volume_that_is_in_two_groups_is_none_of_them() {
        let id = LvName::parse("0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01").unwrap();
        let text =
            "device-classes: [{name: a, volume-group: vg, default: true}, {name: b, volume-group: copy}]";
        let desired = lvms_host::desired::lvmd::read(text).unwrap().desired;
        let mut inventory = Inventory::default();
        for name in ["vg", "copy"] {
            let mut group = lvms_host::simulated::group(&[10]);
            group.name = VgName::parse(name).unwrap();
            let volume = inventory::Volume {
                name: id.clone(),
                uuid: String::new(),
                kind: inventory::Kind::Other("cache".to_owned()),
                size: Default::default(),
                tags: Vec::new(),
                attributes: String::new(),
                active: true,
                areas: Vec::new(),
            };
            assert_eq!(find_any(&desired, &inventory, id.as_str()).is_some(), !inventory.groups.is_empty());
            group.volumes.insert(id.clone(), volume);
            inventory.groups.insert(group.name.clone(), group.into());
        }
        let error = named(&desired, &inventory, "volume_id", id.as_str(), false).err().unwrap();
        assert_eq!(error.kind, Kind::Precondition, "{error}");
        assert!(error.message.contains("several volume groups"), "{error}");
    }

    #[test]
    fn what_somebody_has_made_of_a_volume_is_found_if_it_serves_and_told_otherwise() {
        let id = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01";
        let of = |kind: inventory::Kind, name: &str, tags: &[&str]| {
            let mut group = lvms_host::simulated::group(&[10]);
            let name = LvName::parse(name).unwrap();
            let volume = inventory::Volume {
                name: name.clone(),
                uuid: String::new(),
                kind,
                size: Default::default(),
                tags: tags.iter().map(ToString::to_string).collect(),
                attributes: String::new(),
                active: true,
                areas: Vec::new(),
            };
            group.volumes.insert(name.clone(), volume);
            let inventory = Inventory::of(group);
            let desired = lvms_host::desired::lvmd::read("device-classes: [{name: a, volume-group: vg}]");
            let desired = desired.unwrap().desired;
            let found = named(&desired, &inventory, "volume_id", name.as_str(), false);
            found.map(|_| ()).map_err(|error| (error.kind, error.message))
        };
        let other = |segment: &str| inventory::Kind::Other(segment.to_owned());
        for served in ["cache", "writecache", "mirror"] {
            assert_eq!(of(other(served), id, &[]), Ok(()), "{served}");
            assert_eq!(of(other(served), "named", &["lvms.io/name=a"]), Ok(()), "{served}");
            assert!(matches!(of(other(served), "somebodys", &[]), Err((Kind::NotFound, _))));
        }
        let pool = inventory::Kind::Pool { chunk: Default::default(), metadata: Default::default() };
        for (kind, segment) in
            [(pool, "thin-pool"), (other("cache-pool"), "cache-pool"), (other("vdo"), "vdo")]
        {
            for (name, tags) in [(id, &[][..]), ("named", &["lvms.io/name=a"])] {
                let told = of(kind.clone(), name, tags);
                let named = matches!(&told, Err((Kind::Precondition, message)) if message.contains(segment));
                assert!(named, "{told:?}");
            }
            assert!(matches!(of(kind, "somebodys", &[]), Err((Kind::NotFound, _))));
        }
    }

    #[test]
    fn a_snapshot_of_topolvms_is_found_as_one_and_nothing_of_others() {
        let id = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01";
        let of = |name: &str, origin: Option<&str>, attributes: &str, tags: &[&str]| {
            let mut group = lvms_host::simulated::group(&[10]);
            let lv = |name: &str| LvName::parse(name).unwrap();
            let volume = inventory::Volume {
                name: lv(name),
                uuid: String::new(),
                kind: inventory::Kind::Thin { pool: lv("pool"), origin: origin.map(lv) },
                size: Default::default(),
                tags: tags.iter().map(ToString::to_string).collect(),
                attributes: attributes.to_owned(),
                active: true,
                areas: Vec::new(),
            };
            group.volumes.insert(volume.name.clone(), volume);
            let inventory = Inventory::of(group);
            let text = "device-classes: [{name: a, volume-group: vg, type: thin, \
                        thin-pool: {name: pool, overprovision-ratio: 1}}]";
            let desired = lvms_host::desired::lvmd::read(text).unwrap().desired;
            [true, false].map(|snapshot| find(&desired, &inventory, name, snapshot).is_some())
        };
        let (writable, read_only) = ("Vwi---tz--", "Vri---tz--");
        // As a snapshot, and as a volume.
        assert_eq!(of(id, Some("origin"), read_only, &[]), [true, true]);
        assert_eq!(of(id, Some("origin"), writable, &["theirs"]), [true, true]);
        assert_eq!(of(id, None, read_only, &[]), [true, true], "its origin is gone");
        assert_eq!(of(id, None, writable, &[]), [false, true], "a volume");
        assert_eq!(of(id, Some("origin"), read_only, &["lvms.io/snapshot"]), [true, false], "one of ours");
        assert_eq!(of(id, Some("origin"), writable, &["lvms.io/name=a"]), [false, true], "a clone of ours");
        assert_eq!(of(id, Some("origin"), writable, &["lvms.io/source=volume:origin"]), [false, true]);
        for (origin, attributes) in
            [(Some("origin"), read_only), (Some("origin"), writable), (None, read_only)]
        {
            assert_eq!(of("somebodys", origin, attributes, &[]), [false, false]);
        }
    }

    #[test]
    fn what_a_given_up_copy_has_left_is_found_by_the_volume_that_it_was_for() {
        let mut group = lvms_host::simulated::group(&[10]);
        let left = inventory::Volume {
            name: LvName::parse("lvms-copy-x").unwrap(),
            uuid: String::new(),
            kind: inventory::Kind::Cow {
                origin: LvName::parse("origin").unwrap(),
                store: Default::default(),
            },
            size: Default::default(),
            tags: vec!["lvms.io/temporary=x".to_owned()],
            attributes: "swi-a-s---".to_owned(),
            active: true,
            areas: Vec::new(),
        };
        group.volumes.insert(left.name.clone(), left.clone());
        let inventory = |group: &inventory::Group| Inventory::of(group.clone());
        assert_eq!(left_for(&inventory(&group), "x").map(|path| path.to_string()), Some("vg/x".to_owned()));
        assert_eq!(left_for(&inventory(&group), "y"), None);
        // A volume that is there may still be copied to, or be another one: nothing is left by it.
        let x = LvName::parse("x").unwrap();
        group.volumes.insert(x.clone(), inventory::Volume { name: x, tags: Vec::new(), ..left });
        assert_eq!(left_for(&inventory(&group), "x"), None);
    }
}
