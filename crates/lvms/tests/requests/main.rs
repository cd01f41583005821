//! Wrong requests: the right code, a message with the field, no effect. One table for each call.

#[path = "../driver/mod.rs"]
mod driver;
mod making;
mod using;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use driver::{Driver, MIB};
use lab_csi::proto::volume_capability::AccessType;
use lab_csi::proto::volume_capability::access_mode::Mode;
use lab_csi::{Access, Client, Code, Source, Status, proto};
use lab_test::{GIB, Lab, Needs, Result, run};
use making::{wrong_creations, wrong_for_now, wrong_growth};
use using::{wrong_publications, wrong_questions, wrong_questions_for_capacity};

const CLASSES: &str = "
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
  - {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}
lvcreate-option-classes:
  - {name: odd, options: [--no-such-option]}
  - {name: mirror, options: [-m1]}
  - {name: old, options: [--type=mirror, -m1]}
";

const EXT4: Access = Access::Filesystem("ext4");

fn start(lab: &Lab) -> Result<Driver> {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "300m", "vg"])?;
    Driver::start(lab, CLASSES, &[])
}

fn state() -> Result<String> {
    run("lvs", ["--noheadings", "-o", "vg_name,lv_name,lv_size,lv_tags,vg_free_count"])
}

/// What must be answered: a code, and a part of the message.
#[derive(Clone, Copy)]
struct Expected(Code, &'static str);

const fn invalid(field: &'static str) -> Expected {
    Expected(Code::InvalidArgument, field)
}

const fn not_found(field: &'static str) -> Expected {
    Expected(Code::NotFound, field)
}

fn expect<T>(what: &str, answer: std::result::Result<T, Status>, expected: Expected) {
    let Err(status) = answer else { panic!("{what}: succeeded, expected {:?}", expected.0) };
    assert_eq!(status.code(), expected.0, "{what}: {}", status.message());
    assert!(status.message().contains(expected.1), "{what}: {:?} lacks {:?}", status.message(), expected.1);
}

/// One row: what is wrong, how, and the answer.
type Row<R> = (&'static str, fn(&mut R), Expected);

/// Each change of a good request must be answered as its row says, and change nothing.
fn table<R: Clone, T>(
    call: &str,
    good: &R,
    rows: &[Row<R>],
    ask: impl Fn(R) -> std::result::Result<T, Status>,
) -> Result {
    let before = state()?;
    for (what, change, expected) in rows {
        let mut request = good.clone();
        change(&mut request);
        expect(&format!("{call}, {what}"), ask(request), *expected);
    }
    assert_eq!(state()?, before, "{call}");
    Ok(())
}

fn sized(required_bytes: i64, limit_bytes: i64) -> Option<proto::CapacityRange> {
    Some(proto::CapacityRange { required_bytes, limit_bytes })
}

fn mode(mode: Mode) -> proto::VolumeCapability {
    let mut capability = EXT4.capability();
    capability.access_mode = Some(proto::volume_capability::AccessMode { mode: mode.into() });
    capability
}

fn flagged(flag: &str) -> proto::VolumeCapability {
    let mut capability = EXT4.capability();
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = vec![flag.to_owned()];
    }
    capability
}

/// One that says neither mount nor block.
fn of_no_kind() -> proto::VolumeCapability {
    proto::VolumeCapability { access_type: None, ..EXT4.capability() }
}

fn topology(key: &str, node: &str) -> proto::Topology {
    proto::Topology { segments: HashMap::from([(key.to_owned(), node.to_owned())]) }
}

const HERE: &str = "topology.topolvm.io/node";
const CLASS: &str = "topolvm.io/device-class";
const OPTIONS: &str = "topolvm.io/lvcreate-option-class";

fn grow_on_node(
    client: &Client,
    id: &str,
    target: &Path,
    access: Option<Access>,
) -> std::result::Result<proto::NodeExpandVolumeResponse, Status> {
    let request = proto::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: target.to_string_lossy().into_owned(),
        capacity_range: sized(1 << 30, 0),
        volume_capability: access.map(Access::capability),
        ..Default::default()
    };
    client.node(async |mut node| node.node_expand_volume(request).await)
}

/// Ids that were never ours.
const STRANGE: [&str; 9] = [
    "../../etc",
    "-f",
    "--yes",
    "a'b\"c",
    "new\nline",
    "pool",
    "vg/pool",
    "no such",
    "b5a6cf0e-6a1e-4f0c-9a5e-0a3c1d5f9b11",
];

fn wrong_requests_get_the_right_code_name_the_field_and_change_nothing(lab: &Lab) -> Result {
    let driver = start(lab)?;
    let client = &driver.client;
    run("lvcreate", ["-qq", "-y", "-n", "somebodys", "-L", "8m", "vg"])?;
    let good = client.create("good", "thick", 64 * MIB, EXT4, None)?.volume_id;
    let before = state()?;
    let target = Path::new("/run/test/target");
    wrong_creations(client)?;
    wrong_growth(client, &good, target)?;
    wrong_publications(client, &good, target)?;
    wrong_questions_for_capacity(lab, client)?;
    for strange in STRANGE {
        for source in [Source::Snapshot(strange.into()), Source::Volume(strange.into())] {
            let answer = client.create("copy", "thick", 64 * MIB, Access::Block, Some(&source));
            expect(strange, answer, not_found("volume_content_source"));
        }
        // What is not there is removed already; what is not ours is not there.
        client.delete(strange)?;
        client.delete_snapshot(strange)?;
        expect(strange, client.snapshot("s", strange), not_found("source_volume_id"));
        expect(strange, client.grow(strange, 1 << 30, Access::Block, None), not_found("volume_id"));
        expect(strange, client.publish(strange, target, Access::Block), not_found("volume_id"));
        expect(strange, client.stats(strange, target), not_found("volume_id"));
        for access in [None, Some(EXT4), Some(Access::Block)] {
            expect(strange, grow_on_node(client, strange, target, access), not_found("volume_id"));
        }
        client.unpublish(strange, target)?;
    }
    client.delete("somebodys")?;
    expect("no id", client.delete(""), invalid("volume_id"));
    expect("no snapshot id", client.delete_snapshot(""), invalid("snapshot_id"));
    expect("no source", client.snapshot("s", ""), invalid("source_volume_id"));
    expect("no name", client.snapshot("", &good), invalid("name"));
    expect("a long name", client.snapshot(&"x".repeat(129), &good), invalid("name"));
    assert_eq!(state()?, before);
    assert!(!target.exists());
    let snapshot = client.snapshot("moment", &good)?.snapshot_id;
    let other = client.create("other", "thin", 8 * MIB, Access::Block, None)?.volume_id;
    let taken = client.snapshot("moment", &other);
    expect("the name of another snapshot", taken, Expected(Code::AlreadyExists, "moment"));
    expect("a snapshot's id", client.publish(&snapshot, target, EXT4), not_found("volume_id"));
    client.delete(&other)?;
    wrong_questions(client, &good, &snapshot)?;
    wrong_for_now(client, &good, &snapshot, target)
}

fn names_of_every_kind_come_back_as_they_were(lab: &Lab) -> Result {
    let driver = start(lab)?;
    let client = &driver.client;
    // All that ASCII has, and 128 bytes of what takes two, three and four each.
    let ascii: String = (' '..='~').chain(['\t', '\n', '\r']).chain("x".repeat(30).chars()).collect();
    let wide = format!("{}{}🦀", "ü".repeat(32), "日".repeat(20));
    let names = ["plain", "über/../$(reboot)", &"x".repeat(128), "#23 %n \\ tab\t", &ascii, &wide];
    assert_eq!((ascii.len(), wide.len()), (128, 128));
    for name in names {
        let first = client.create(name, "thin", 8 * MIB, Access::Block, None)?;
        let again = client.create(name, "thin", 8 * MIB, Access::Block, None)?;
        assert_eq!(first.volume_id, again.volume_id, "{name:?}");
        let snapshot = client.snapshot(name, &first.volume_id)?.snapshot_id;
        assert_eq!(client.snapshot(name, &first.volume_id)?.snapshot_id, snapshot, "{name:?}");
        // The name itself is in LVM's metadata, on both.
        let tag = format!("lvms.io/name={}", lvms_host::names::escape(name));
        for id in [&first.volume_id, &snapshot] {
            let tags = run("lvs", ["--noheadings", "-o", "lv_tags", &format!("vg/{id}")])?;
            assert!(tags.split(',').any(|present| present.trim() == tag), "{tags} lacks {tag}");
        }
        client.delete_snapshot(&snapshot)?;
        client.delete(&first.volume_id)?;
    }
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name"])?, "pool");
    Ok(())
}

fn a_volume_that_is_wished_in_both_ways_is_used_in_both(lab: &Lab) -> Result {
    let driver = start(lab)?;
    let client = &driver.client;
    let both = || vec![Access::Block.capability(), EXT4.capability()];
    for class in ["thick", "thin"] {
        let request = proto::CreateVolumeRequest {
            name: class.to_owned(),
            capacity_range: sized(64 * MIB, 0),
            volume_capabilities: both(),
            parameters: HashMap::from([(CLASS.to_owned(), class.to_owned())]),
            ..Default::default()
        };
        let made = client.controller(async |mut controller| controller.create_volume(request).await)?;
        let id = made.volume.ok_or("no volume was answered")?.volume_id;
        let request = proto::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: both(),
            ..Default::default()
        };
        let validate =
            client.controller(async |mut controller| controller.validate_volume_capabilities(request).await);
        assert!(validate?.confirmed.is_some());
        let target = lab.state().join(class);
        client.publish(&id, &target, EXT4)?;
        fs::write(target.join("file"), "bytes")?;
        client.unpublish(&id, &target)?;
        client.publish(&id, &target, Access::Block)?;
        client.unpublish(&id, &target)?;
        client.publish(&id, &target, EXT4)?;
        assert_eq!(fs::read_to_string(target.join("file"))?, "bytes");
        client.unpublish(&id, &target)?;
        client.delete(&id)?;
    }
    Ok(())
}

lab_test::main! {
    a_volume_that_is_wished_in_both_ways_is_used_in_both: Needs::disks(1, GIB).guest(),
    wrong_requests_get_the_right_code_name_the_field_and_change_nothing: Needs::disks(1, GIB).guest(),
    names_of_every_kind_come_back_as_they_were: Needs::disks(1, GIB).guest(),
}
