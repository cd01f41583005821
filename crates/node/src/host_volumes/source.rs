//! What a volume is copied from: looked for only until it is copied.

use lvms_csi::volumes::Source;
use lvms_csi::{Error, Kind};
use lvms_host::desired::Desired;
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory::{Inventory, Volume};
use lvms_host::names::{LvName, VgName, VolumePath};

use crate::known::{Found, named, source_of};

/// What a volume was copied from, once all its bytes are there.
pub(crate) fn copied_from(found: &Found<'_>) -> Option<Source> {
    source_of(&found.facts).filter(|_| found.facts.copying.is_none())
}

/// How facts name a source.
pub(super) fn told(source: &Source) -> String {
    match source {
        Source::Snapshot(id) => format!("snapshot:{id}"),
        Source::Volume(id) => format!("volume:{id}"),
    }
}

/// The source that a field of a request names, if its bytes can be copied; nothing if it is not there and `present`, the
/// wished volume, was copied from it: it is nobody's concern any more, and a snapshot may have overflowed since.
pub(super) fn find_source<'a>(
    desired: &'a Desired,
    inventory: &'a Inventory,
    (field, wished): (&str, &Source),
    present: Option<&Found<'_>>,
    is_ready: impl Fn(&Found<'_>) -> bool,
) -> Result<Option<Found<'a>>, Error> {
    let (id, is_snapshot) = match wished {
        Source::Snapshot(id) => (id, true),
        Source::Volume(id) => (id, false),
    };
    let is_copied = present.and_then(copied_from).as_ref() == Some(wished);
    let found = match named(desired, inventory, field, id, is_snapshot) {
        Err(_) if is_copied => return Ok(None),
        found => found?,
    };
    if is_snapshot && !is_copied && !is_ready(&found) {
        let message =
            format!("{field}: {id} has overflowed, or was not finished, and its bytes are lost: delete it");
        return Err(Error::new(Kind::Precondition, message));
    }
    Ok(Some(found))
}

/// Where a source was that is gone: what was made for the copy, if anything of it is left, is in the same group.
pub(super) fn former_place(
    inventory: &Inventory,
    copy: &VolumePath,
    (field, source): (&str, &Source),
) -> Result<VolumePath, Error> {
    let (Source::Snapshot(id) | Source::Volume(id)) = source;
    let volume = LvName::parse(id).map_err(|error| Error::invalid(field, error))?;
    let is_left = |volume: &Volume| Facts::of(volume).temporary.as_ref() == Some(&copy.volume);
    let left = inventory.groups.values().find(|group| group.volumes.values().any(is_left));
    let group: &VgName = left.map_or(&copy.group, |group| &group.name);
    Ok(VolumePath { group: group.clone(), volume })
}

#[cfg(test)]
mod tests {
    use lvms_host::lvm::inventory::Kind as Made;
    use lvms_host::simulated;

    use super::*;
    use crate::known::find;

    fn thin(name: &str, facts: &Facts) -> Volume {
        Volume {
            name: LvName::parse(name).unwrap(),
            uuid: String::new(),
            kind: Made::Thin { pool: LvName::parse("pool").unwrap(), origin: None },
            size: Default::default(),
            tags: facts.tags().iter().map(ToString::to_string).collect(),
            attributes: "Vwi---tz--".to_owned(),
            active: false,
            areas: Vec::new(),
        }
    }

    fn named_facts(name: &str) -> Facts {
        Facts { name: Some(name.into()), ..Facts::default() }
    }

    fn desired() -> Desired {
        let read = lvms_host::desired::lvmd::read(
            "device-classes: [{name: a, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}]",
        );
        read.unwrap().desired
    }

    fn inventory(volumes: &[Volume]) -> Inventory {
        let mut group = simulated::group(&[10]);
        group.volumes.extend(volumes.iter().map(|volume| (volume.name.clone(), volume.clone())));
        Inventory::of(group)
    }

    /// Whether the source is found, gone and not needed, or refused; with a snapshot whose bytes are lost.
    fn looked_for(volumes: &[Volume], source: &Source) -> Result<bool, Kind> {
        let (desired, inventory) = (desired(), inventory(volumes));
        let present = find(&desired, &inventory, "copy", false);
        let found = find_source(&desired, &inventory, ("field", source), present.as_ref(), |_| false);
        found.map(|found| found.is_some()).map_err(|error| error.kind)
    }

    #[test]
    fn what_was_copied_needs_its_source_no_more() {
        let copy = |source: &str, copying: Option<&str>| {
            let (source, copying) = (Some(source.to_owned()), copying.map(str::to_owned));
            thin("copy", &Facts { source, copying, ..named_facts("copy") })
        };
        let lost = thin("source", &Facts { snapshot: true, ..named_facts("source") });
        let volume = thin("source", &named_facts("source"));
        for (source, there) in
            [(Source::Volume("source".into()), &volume), (Source::Snapshot("source".into()), &lost)]
        {
            let of_it = told(&source);
            let copied = copy(&of_it, None);
            assert_eq!(looked_for(&[copied.clone(), there.clone()], &source), Ok(true));
            assert_eq!(looked_for(&[copied], &source), Ok(false));
            let unfinished = copy(&of_it, Some("vg/source"));
            let of_another = copy(&format!("{of_it}-2"), None);
            for others in [vec![], vec![unfinished.clone()], vec![of_another]] {
                assert_eq!(looked_for(&others, &source), Err(Kind::NotFound), "{others:?}");
            }
            let expected =
                if told(&source).starts_with("snapshot") { Err(Kind::Precondition) } else { Ok(true) };
            assert_eq!(looked_for(&[unfinished, there.clone()], &source), expected);
            assert_eq!(looked_for(std::slice::from_ref(there), &source), expected);
        }
    }

    #[test]
    fn a_source_that_is_gone_was_where_something_is_left_of_the_copy() {
        let temporary = Facts { temporary: LvName::parse("copy").ok(), ..Facts::default() };
        let group = simulated::group(&[1]).name;
        let elsewhere =
            VolumePath { group: VgName::parse("other").unwrap(), volume: LvName::parse("copy").unwrap() };
        let source = Source::Volume("source".into());
        let place =
            |volumes: &[Volume]| former_place(&inventory(volumes), &elsewhere, ("field", &source)).unwrap();
        assert_eq!(place(&[thin("left", &temporary)]).group, group);
        assert_eq!(place(&[]).to_string(), "other/source");
    }
}
