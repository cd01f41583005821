//! Volumes are published, measured and looked at.

use std::collections::HashMap;
use std::path::Path;

use lab_csi::proto::volume_capability::access_mode::Mode;
use lab_csi::{Access, Client, Code, proto};
use lab_test::{Lab, Result, run};

use crate::driver::MIB;
use crate::{
    CLASS, EXT4, Expected, HERE, OPTIONS, Row, STRANGE, expect, flagged, invalid, mode, not_found,
    of_no_kind, state, table, topology,
};

pub(crate) fn wrong_publications(client: &Client, id: &str, target: &Path) -> Result {
    let good = proto::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: target.to_string_lossy().into_owned(),
        volume_capability: Some(EXT4.capability()),
        ..Default::default()
    };
    let rows: [Row<proto::NodePublishVolumeRequest>; 12] = [
        ("no id", |r| r.volume_id.clear(), invalid("volume_id")),
        ("not there", |r| r.volume_id = STRANGE[8].into(), not_found("volume_id")),
        ("no path", |r| r.target_path.clear(), invalid("target_path")),
        ("a relative path", |r| r.target_path = "relative".into(), invalid("target_path")),
        ("a path that leads back", |r| r.target_path = "/run/../etc".into(), invalid("target_path")),
        ("no way of access", |r| r.volume_capability = None, invalid("volume_capability")),
        (
            "empty access",
            |r| r.volume_capability = Some(of_no_kind()),
            invalid("volume_capability.access_type"),
        ),
        (
            "many nodes",
            |r| r.volume_capability = Some(mode(Mode::MultiNodeReaderOnly)),
            Expected(Code::FailedPrecondition, "volume_capability.access_mode"),
        ),
        (
            "unknown filesystem",
            |r| r.volume_capability = Some(Access::Filesystem("ntfs").capability()),
            invalid("volume_capability.mount.fs_type"),
        ),
        (
            "a mount flag",
            |r| r.volume_capability = Some(flagged("bind")),
            invalid("volume_capability.mount.mount_flags"),
        ),
        (
            "written and read-only",
            |r| (r.volume_capability, r.readonly) = (Some(flagged("rw")), true),
            invalid("volume_capability.mount.mount_flags"),
        ),
        (
            "as a device, made for a filesystem",
            |r| r.volume_capability = Some(Access::Block.capability()),
            Expected(Code::FailedPrecondition, "made for a filesystem"),
        ),
    ];
    table("NodePublishVolume", &good, &rows, |request| {
        client.node(async |mut node| node.node_publish_volume(request).await)
    })?;
    expect("unpublish, no id", client.unpublish("", target), invalid("volume_id"));
    for path in ["", "relative", "/run/../etc"] {
        expect(path, client.unpublish(id, Path::new(path)), invalid("target_path"));
    }
    expect("stats, no id", client.stats("", target), invalid("volume_id"));
    expect("stats, no path", client.stats(id, Path::new("")), invalid("volume_path"));
    expect("stats, a relative path", client.stats(id, Path::new("relative")), not_found("volume_path"));
    expect("stats, not published", client.stats(id, target), not_found("volume_path"));
    assert!(!target.exists());
    Ok(())
}

/// What only looks.
pub(crate) fn wrong_questions(client: &Client, id: &str, snapshot: &str) -> Result {
    let before = state()?;
    let get = |id: &str| {
        let request = proto::ControllerGetVolumeRequest { volume_id: id.to_owned() };
        client.controller(async |mut controller| controller.controller_get_volume(request).await)
    };
    let get_snapshot = |id: &str| {
        let request = proto::GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        client.controller(async |mut controller| controller.get_snapshot(request).await)
    };
    let validate = |id: &str, volume_capabilities: Vec<proto::VolumeCapability>| {
        let request = proto::ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities,
            ..Default::default()
        };
        client.controller(async |mut controller| controller.validate_volume_capabilities(request).await)
    };
    let list = |max_entries: i32, token: &str| {
        let request = proto::ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        client.controller(async |mut controller| controller.list_volumes(request).await)
    };
    let list_snapshots = |change: fn(&mut proto::ListSnapshotsRequest)| {
        let mut request = proto::ListSnapshotsRequest::default();
        change(&mut request);
        client.controller(async |mut controller| controller.list_snapshots(request).await)
    };
    expect("ControllerGetVolume, no id", get(""), invalid("volume_id"));
    expect("ControllerGetVolume, a snapshot", get(snapshot), not_found("volume_id"));
    expect("GetSnapshot, no id", get_snapshot(""), invalid("snapshot_id"));
    expect("GetSnapshot, a volume", get_snapshot(id), not_found("snapshot_id"));
    let ways = || vec![EXT4.capability()];
    expect("ValidateVolumeCapabilities, no id", validate("", ways()), invalid("volume_id"));
    expect("ValidateVolumeCapabilities, nothing", validate(id, Vec::new()), invalid("volume_capabilities"));
    refuses_what_it_lacks(client, id)?;
    for strange in STRANGE {
        let named =
            list_snapshots_of(client, strange, "")?.len() + list_snapshots_of(client, "", strange)?.len();
        assert_eq!(named, 0, "{strange:?}");
        expect(strange, get(strange), not_found("volume_id"));
        expect(strange, get_snapshot(strange), not_found("snapshot_id"));
        expect(strange, validate(strange, ways()), not_found("volume_id"));
    }
    assert!(validate(id, ways())?.confirmed.is_some());
    for (wrong, field) in [
        (of_no_kind(), "access_type"),
        (mode(Mode::MultiNodeMultiWriter), "access_mode"),
        (Access::Filesystem("ntfs").capability(), "mount.fs_type"),
        (flagged("bind"), "mount.mount_flags"),
    ] {
        let answer = validate(id, vec![EXT4.capability(), wrong])?;
        let told = format!("volume_capabilities[1].{field}");
        assert!(answer.confirmed.is_none() && answer.message.contains(&told), "{field}: {answer:?}");
    }
    let block = client.create("block", "thin", 8 * MIB, Access::Block, None)?.volume_id;
    let as_device = || vec![Access::Block.capability()];
    assert!(validate(&block, as_device())?.confirmed.is_some());
    for (id, asked, told) in [
        (id, as_device(), format!("volume_capabilities[0].block: vg/{id} was made for a filesystem")),
        (&block, ways(), format!("volume_capabilities[0].mount: vg/{block}: it was made as a block device")),
    ] {
        let answer = validate(id, asked)?;
        assert!(answer.confirmed.is_none() && answer.message.contains(&told), "{told}: {answer:?}");
    }
    client.delete(&block)?;
    expect("ListVolumes, negative", list(-1, ""), invalid("max_entries"));
    expect("ListVolumes, a token of others", list(1, "no token"), Expected(Code::Aborted, "starting_token"));
    assert_eq!(list(i32::MAX, "")?.entries.len(), 1);
    expect("ListSnapshots, negative", list_snapshots(|r| r.max_entries = -1), invalid("max_entries"));
    let foreign = list_snapshots(|r| r.starting_token = "no token".into());
    expect("ListSnapshots, a token of others", foreign, Expected(Code::Aborted, "starting_token"));
    assert_eq!(list_snapshots(|_| {})?.entries.len(), 1);
    assert_eq!(state()?, before);
    Ok(())
}

fn list_snapshots_of(
    client: &Client,
    id: &str,
    source: &str,
) -> Result<Vec<proto::list_snapshots_response::Entry>> {
    let request = proto::ListSnapshotsRequest {
        snapshot_id: id.to_owned(),
        source_volume_id: source.to_owned(),
        ..Default::default()
    };
    Ok(client.controller(async |mut controller| controller.list_snapshots(request).await)?.entries)
}

/// Calls of services that the driver does not have.
fn refuses_what_it_lacks(client: &Client, id: &str) -> Result {
    let volume_id = || id.to_owned();
    let lacks = |what: &str, answer: std::result::Result<(), lab_csi::Status>, why: &'static str| {
        expect(what, answer, Expected(Code::Unimplemented, why));
    };
    let request = proto::ControllerPublishVolumeRequest { volume_id: volume_id(), ..Default::default() };
    let answer = client.controller(async |mut to| to.controller_publish_volume(request).await);
    lacks("ControllerPublishVolume", answer.map(drop), "attached");
    let request = proto::ControllerUnpublishVolumeRequest { volume_id: volume_id(), ..Default::default() };
    let answer = client.controller(async |mut to| to.controller_unpublish_volume(request).await);
    lacks("ControllerUnpublishVolume", answer.map(drop), "attached");
    let request = proto::ControllerModifyVolumeRequest { volume_id: volume_id(), ..Default::default() };
    let answer = client.controller(async |mut to| to.controller_modify_volume(request).await);
    lacks("ControllerModifyVolume", answer.map(drop), "");
    let request = proto::NodeStageVolumeRequest { volume_id: volume_id(), ..Default::default() };
    let answer = client.node(async |mut to| to.node_stage_volume(request).await);
    lacks("NodeStageVolume", answer.map(drop), "staged");
    let request = proto::NodeUnstageVolumeRequest { volume_id: volume_id(), ..Default::default() };
    let answer = client.node(async |mut to| to.node_unstage_volume(request).await);
    lacks("NodeUnstageVolume", answer.map(drop), "staged");
    Ok(())
}

pub(crate) fn wrong_questions_for_capacity(lab: &Lab, client: &Client) -> Result {
    let capacity = |change: fn(&mut proto::GetCapacityRequest)| {
        let mut request = proto::GetCapacityRequest::default();
        change(&mut request);
        client.controller(async |mut controller| controller.get_capacity(request).await)
    };
    let class = capacity(|r| drop(r.parameters.insert(CLASS.into(), "none".into())));
    expect("GetCapacity, unknown class", class, invalid(CLASS));
    let options = capacity(|r| drop(r.parameters.insert(OPTIONS.into(), "none".into())));
    expect("GetCapacity, unknown option class", options, invalid(OPTIONS));
    assert!(capacity(|r| r.accessible_topology = Some(topology(HERE, "here")))?.available_capacity > 0);
    assert!(capacity(|r| r.volume_capabilities = vec![EXT4.capability()])?.available_capacity > 0);
    // What is never granted has no capacity.
    type Change = fn(&mut proto::GetCapacityRequest);
    let never: [Change; 5] = [
        |r| r.accessible_topology = Some(topology(HERE, "there")),
        |r| r.accessible_topology = Some(topology("zone", "here")),
        |r| r.volume_capabilities = vec![of_no_kind()],
        |r| r.volume_capabilities = vec![mode(Mode::MultiNodeMultiWriter)],
        |r| r.volume_capabilities = vec![Access::Filesystem("ntfs").capability()],
    ];
    for (position, change) in never.into_iter().enumerate() {
        assert_eq!(capacity(change)?.available_capacity, 0, "row {position}");
    }
    // Nor has a pool that does not zero, for block devices.
    let thin = |access: Access| {
        let request = proto::GetCapacityRequest {
            parameters: HashMap::from([(CLASS.into(), "thin".into())]),
            volume_capabilities: vec![access.capability()],
            ..Default::default()
        };
        client.controller(async |mut controller| controller.get_capacity(request).await)
    };
    for (zeroes, is_none) in [("n", true), ("y", false)] {
        run("lvchange", ["-qq", "--zero", zeroes, "vg/pool"])?;
        let made = client.create("block", "thin", 8 * MIB, Access::Block, None);
        assert_eq!(made.is_err(), is_none);
        assert_eq!(thin(Access::Block)?.available_capacity == 0, is_none);
        assert!(thin(EXT4)?.available_capacity > 0);
        if let Ok(volume) = made {
            client.delete(&volume.volume_id)?;
        }
    }
    // Room for less than the least that is made of it is no room.
    let least = |r: &mut proto::GetCapacityRequest| {
        r.parameters.insert(CLASS.into(), "thick".into());
        r.volume_capabilities = vec![Access::Filesystem("").capability()];
    };
    let free = capacity(least)?.available_capacity;
    let fill = format!("{}b", free - 200 * MIB);
    run("lvcreate", ["-qq", "-y", "-n", "fills", "-L", &fill, "vg"])?;
    // What others do is told by the kernel, a moment later.
    let now = lab.wait_for("what others have made to count", || {
        let now = capacity(|r| drop(r.parameters.insert(CLASS.into(), "thick".into()))).ok()?;
        (now.available_capacity < free).then_some(now)
    })?;
    assert_eq!((now.available_capacity, now.minimum_volume_size), (200 * MIB, Some(8 * MIB)));
    assert_eq!(capacity(least)?.available_capacity, 200 * MIB);
    // xfs needs more, whether the capability names it or the class.
    type Xfs = fn(&mut proto::GetCapacityRequest);
    let xfs: [Xfs; 2] = [
        |r| r.volume_capabilities = vec![Access::Filesystem("xfs").capability()],
        |r| {
            r.volume_capabilities = vec![Access::Filesystem("").capability()];
            r.parameters.insert("csi.storage.k8s.io/fstype".into(), "xfs".into());
        },
    ];
    for change in xfs {
        assert_eq!(capacity(change)?.available_capacity, 0);
    }
    run("lvremove", ["-qq", "-y", "vg/fills"])?;
    Ok(())
}
