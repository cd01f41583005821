//! Volumes are made and grown.

use std::path::Path;

use lab_csi::proto::volume_capability::access_mode::Mode;
use lab_csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use lab_csi::{Access, Client, Code, Source, proto};
use lab_test::Result;

use crate::driver::{MIB, refused};
use crate::{
    CLASS, EXT4, Expected, HERE, OPTIONS, Row, STRANGE, expect, flagged, invalid, mode, not_found,
    of_no_kind, sized, state, table, topology,
};

fn requisite(key: &str, node: &str) -> Option<proto::TopologyRequirement> {
    Some(proto::TopologyRequirement { requisite: vec![topology(key, node)], preferred: Vec::new() })
}

fn source(kind: Type) -> Option<proto::VolumeContentSource> {
    Some(proto::VolumeContentSource { r#type: Some(kind) })
}

pub(crate) fn wrong_creations(client: &Client) -> Result {
    let good = proto::CreateVolumeRequest {
        name: "wrong".into(),
        capacity_range: sized(64 * MIB, 0),
        volume_capabilities: vec![EXT4.capability()],
        ..Default::default()
    };
    let exhausted = |part| Expected(Code::ResourceExhausted, part);
    let rows: [Row<proto::CreateVolumeRequest>; 31] = [
        ("no name", |r| r.name.clear(), invalid("name")),
        ("long name", |r| r.name = "x".repeat(129), invalid("name")),
        ("a banned character", |r| r.name = "nul\0".into(), invalid("name")),
        ("no way of access", |r| r.volume_capabilities.clear(), invalid("volume_capabilities")),
        (
            "empty access",
            |r| r.volume_capabilities.push(of_no_kind()),
            invalid("volume_capabilities[1].access_type"),
        ),
        (
            "many nodes",
            |r| r.volume_capabilities[0] = mode(Mode::MultiNodeMultiWriter),
            invalid("volume_capabilities[0].access_mode"),
        ),
        (
            "unknown filesystem",
            |r| r.volume_capabilities = vec![Access::Filesystem("ntfs").capability()],
            invalid("volume_capabilities[0].mount.fs_type"),
        ),
        (
            "a mount flag",
            |r| r.volume_capabilities[0] = flagged("bind"),
            invalid("volume_capabilities[0].mount.mount_flags"),
        ),
        ("no size, which is 1 GiB", |r| r.capacity_range = None, exhausted("1 GiB")),
        ("size 0", |r| r.capacity_range = sized(0, 0), exhausted("1 GiB")),
        ("negative", |r| r.capacity_range = sized(-1, 0), invalid("capacity_range.required_bytes")),
        (
            "the least number",
            |r| r.capacity_range = sized(i64::MIN, 0),
            invalid("capacity_range.required_bytes"),
        ),
        ("negative limit", |r| r.capacity_range = sized(64 * MIB, -1), invalid("capacity_range.limit_bytes")),
        (
            "limit below",
            |r| r.capacity_range = sized(64 * MIB, MIB),
            invalid("capacity_range.required_bytes"),
        ),
        ("a small limit alone", |r| r.capacity_range = sized(0, 5000), invalid("capacity_range.limit_bytes")),
        (
            "the largest number",
            |r| r.capacity_range = sized(i64::MAX, 0),
            invalid("capacity_range.required_bytes"),
        ),
        (
            "the largest number twice",
            |r| r.capacity_range = sized(i64::MAX, i64::MAX),
            invalid("capacity_range.required_bytes"),
        ),
        ("too large", |r| r.capacity_range = sized(1 << 50, 0), exhausted("vg")),
        (
            "no whole unit",
            |r| r.capacity_range = sized(64 * MIB + 1, 64 * MIB + 1),
            invalid("capacity_range.required_bytes"),
        ),
        (
            "odd limit",
            |r| r.capacity_range = sized(33 * MIB, 33 * MIB + 5000),
            Expected(Code::OutOfRange, "capacity_range.limit_bytes: the volume would have 36 MiB"),
        ),
        ("unknown class", |r| drop(r.parameters.insert(CLASS.into(), "none".into())), invalid(CLASS)),
        (
            "unknown option class",
            |r| drop(r.parameters.insert(OPTIONS.into(), "none".into())),
            invalid(OPTIONS),
        ),
        (
            "an option that lvm2 does not know",
            |r| drop(r.parameters.insert(OPTIONS.into(), "odd".into())),
            invalid("parameters[\"topolvm.io/lvcreate-option-class\"]: \"odd\" in lvmd.yaml: lvm2 refused"),
        ),
        (
            "an option for what is not managed",
            |r| drop(r.parameters.insert(OPTIONS.into(), "old".into())),
            invalid("parameters[\"topolvm.io/lvcreate-option-class\"]: \"old\" in lvmd.yaml: --type mirror"),
        ),
        (
            "elsewhere",
            |r| r.accessibility_requirements = requisite(HERE, "there"),
            invalid("accessibility_requirements"),
        ),
        (
            "another topology",
            |r| r.accessibility_requirements = requisite("zone", "here"),
            invalid("accessibility_requirements"),
        ),
        (
            "a source of no kind",
            |r| r.volume_content_source = Some(Default::default()),
            invalid("volume_content_source"),
        ),
        (
            "no snapshot",
            |r| r.volume_content_source = source(Type::Snapshot(SnapshotSource::default())),
            not_found("volume_content_source.snapshot.snapshot_id"),
        ),
        (
            "no volume",
            |r| r.volume_content_source = source(Type::Volume(VolumeSource::default())),
            not_found("volume_content_source.volume.volume_id"),
        ),
        (
            "the name of another",
            |r| (r.name, r.capacity_range) = ("good".into(), sized(128 * MIB, 0)),
            Expected(Code::AlreadyExists, "64 MiB"),
        ),
        (
            "the name of another, with redundancy",
            |r| {
                r.name = "good".into();
                r.parameters.insert(OPTIONS.into(), "mirror".into());
            },
            Expected(Code::AlreadyExists, "linear on 1 disks"),
        ),
    ];
    table("CreateVolume", &good, &rows, |request| {
        client.controller(async |mut controller| controller.create_volume(request).await)
    })?;
    let another = client.create("good", "thin", 64 * MIB, EXT4, None);
    expect("another class", another, Expected(Code::AlreadyExists, "class"));
    Ok(())
}

pub(crate) fn wrong_growth(client: &Client, id: &str, target: &Path) -> Result {
    let good = proto::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: sized(96 * MIB, 0),
        volume_capability: Some(EXT4.capability()),
        ..Default::default()
    };
    let rows: [Row<proto::ControllerExpandVolumeRequest>; 13] = [
        ("no id", |r| r.volume_id.clear(), invalid("volume_id")),
        ("not there", |r| r.volume_id = STRANGE[8].into(), not_found("volume_id")),
        ("no size", |r| r.capacity_range = None, invalid("capacity_range")),
        ("size 0", |r| r.capacity_range = sized(0, 0), invalid("capacity_range.required_bytes")),
        ("negative", |r| r.capacity_range = sized(-1, 0), invalid("capacity_range.required_bytes")),
        ("negative limit", |r| r.capacity_range = sized(96 * MIB, -1), invalid("capacity_range.limit_bytes")),
        (
            "limit below",
            |r| r.capacity_range = sized(96 * MIB, MIB),
            invalid("capacity_range.required_bytes"),
        ),
        (
            "the largest number",
            |r| r.capacity_range = sized(i64::MAX, 0),
            invalid("capacity_range.required_bytes"),
        ),
        ("too large", |r| r.capacity_range = sized(1 << 50, 0), Expected(Code::OutOfRange, "vg")),
        (
            "odd limit",
            |r| r.capacity_range = sized(97 * MIB, 98 * MIB),
            Expected(Code::OutOfRange, "capacity_range.limit_bytes: the volume would have 100 MiB"),
        ),
        (
            "larger already",
            |r| r.capacity_range = sized(32 * MIB, 48 * MIB),
            Expected(Code::OutOfRange, "capacity_range.limit_bytes: the volume would have 64 MiB"),
        ),
        (
            "empty access",
            |r| r.volume_capability = Some(of_no_kind()),
            invalid("volume_capability.access_type"),
        ),
        (
            "many nodes",
            |r| r.volume_capability = Some(mode(Mode::MultiNodeSingleWriter)),
            invalid("volume_capability.access_mode"),
        ),
    ];
    table("ControllerExpandVolume", &good, &rows, |request| {
        client.controller(async |mut controller| controller.controller_expand_volume(request).await)
    })?;
    let good = proto::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: target.to_string_lossy().into_owned(),
        capacity_range: sized(64 * MIB, 0),
        volume_capability: Some(EXT4.capability()),
        ..Default::default()
    };
    let rows: [Row<proto::NodeExpandVolumeRequest>; 10] = [
        ("no id", |r| r.volume_id.clear(), invalid("volume_id")),
        ("not there", |r| r.volume_id = STRANGE[8].into(), not_found("volume_id")),
        (
            "not there, as a device",
            |r| (r.volume_id, r.volume_capability) = ("no such".into(), Some(Access::Block.capability())),
            not_found("volume_id"),
        ),
        ("no path", |r| r.volume_path.clear(), invalid("volume_path")),
        ("a relative path", |r| r.volume_path = "relative".into(), not_found("volume_path")),
        ("not published", |_| {}, not_found("volume_path")),
        ("negative", |r| r.capacity_range = sized(-1, 0), invalid("capacity_range.required_bytes")),
        ("negative limit", |r| r.capacity_range = sized(1, -1), invalid("capacity_range.limit_bytes")),
        (
            "the largest number",
            |r| r.capacity_range = sized(i64::MAX, 0),
            invalid("capacity_range.required_bytes"),
        ),
        (
            "empty access",
            |r| r.volume_capability = Some(of_no_kind()),
            invalid("volume_capability.access_type"),
        ),
    ];
    table("NodeExpandVolume", &good, &rows, |request| {
        client.node(async |mut node| node.node_expand_volume(request).await)
    })
}

/// What depends on what else there is, and on who uses it: with a snapshot, and published.
pub(crate) fn wrong_for_now(client: &Client, id: &str, snapshot: &str, target: &Path) -> Result {
    let before = state()?;
    for source in [Source::Volume(id.to_owned()), Source::Snapshot(snapshot.to_owned())] {
        let smaller = client.create("smaller", "thick", 32 * MIB, EXT4, Some(&source));
        refused(smaller, Code::OutOfRange, &["64 MiB", "32 MiB"]);
    }
    refused(client.delete(id), Code::FailedPrecondition, &["snapshots", snapshot]);
    assert_eq!(state()?, before);
    client.publish(id, target, EXT4)?;
    refused(client.grow(id, 96 * MIB, EXT4, None), Code::FailedPrecondition, &["in use", snapshot]);
    client.delete_snapshot(snapshot)?;
    let told = target.to_string_lossy();
    refused(client.delete(id), Code::FailedPrecondition, &["published", &told]);
    let other = client.create("other", "thin", 64 * MIB, EXT4, None)?.volume_id;
    for (volume, access) in [(&*other, EXT4), (id, Access::Filesystem("btrfs"))] {
        refused(client.publish(volume, target, access), Code::AlreadyExists, &[&told]);
    }
    client.delete(&other)?;
    client.unpublish(id, target)?;
    client.delete(id)?;
    Ok(())
}
