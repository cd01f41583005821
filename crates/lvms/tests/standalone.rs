//! `lvms standalone` as a client sees it: wrong requests, other drivers, changed configuration, figures, its end.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use lab_csi::proto::volume_capability::access_mode::Mode;
use lab_csi::{Access, Client, Code, Driver, Source, Status, proto};
use lab_test::{GIB, Lab, Needs, Result, run};

/// Where the lab puts the driver.
const PROGRAM: &str = "/lab/lvms";
const SOCKET: &str = "/run/test/csi.sock";
const CONFIGURATION: &str = "/run/test/lvmd.yaml";
const FIGURES: &str = "127.0.0.1:9809";

const CLASSES: &str = "\
device-classes:
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
  - {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}
lvcreate-option-classes:
  - {name: odd, options: [--no-such-option]}
";

fn command() -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["standalone", "--config", CONFIGURATION, "--endpoint", &format!("unix://{SOCKET}")]);
    command.args(["--node-id", "here", "--metrics-bind-address", FIGURES]);
    command
}

fn start(lab: &Lab) -> Result<(Driver, Client)> {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "300m", "vg"])?;
    fs::write(CONFIGURATION, CLASSES)?;
    let driver = Driver::start(&mut command(), Path::new(SOCKET))?;
    let client = driver.connect()?;
    Ok((driver, client))
}

fn state() -> Result<String> {
    run("lvs", ["--noheadings", "-o", "vg_name,lv_name,lv_size,lv_tags,vg_free_count"])
}

/// What must be answered.
struct Expected(Code, &'static str);

fn expect<T>(what: &str, answer: std::result::Result<T, Status>, expected: &Expected) {
    match answer {
        Ok(_) => panic!("{what}: succeeded, expected {:?}", expected.0),
        Err(status) => {
            assert_eq!(status.code(), expected.0, "{what}: {}", status.message());
            assert!(
                status.message().contains(expected.1),
                "{what}: {:?} lacks {:?}",
                status.message(),
                expected.1
            );
        }
    }
}

fn create(
    client: &Client,
    change: impl FnOnce(&mut proto::CreateVolumeRequest),
) -> std::result::Result<(), Status> {
    let mut request = proto::CreateVolumeRequest {
        name: "wrong".into(),
        capacity_range: Some(proto::CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![Access::Filesystem("ext4").capability()],
        ..Default::default()
    };
    change(&mut request);
    client.controller(async |mut controller| controller.create_volume(request).await).map(drop)
}

fn sized(required_bytes: i64, limit_bytes: i64) -> Option<proto::CapacityRange> {
    Some(proto::CapacityRange { required_bytes, limit_bytes })
}

fn mode(mode: Mode) -> proto::VolumeCapability {
    let mut capability = Access::Block.capability();
    capability.access_mode = Some(proto::volume_capability::AccessMode { mode: mode.into() });
    capability
}

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
    let (_driver, client) = start(lab)?;
    run("lvcreate", ["-qq", "-y", "-n", "somebodys", "-L", "8m", "vg"])?;
    let good = client.create("good", "thick", 64 << 20, Access::Filesystem("ext4"), None)?;
    let before = state()?;
    let invalid = |field| Expected(Code::InvalidArgument, field);

    type Change = fn(&mut proto::CreateVolumeRequest);
    let cases: [(&str, Change, Expected); 18] = [
        ("no name", |r| r.name.clear(), invalid("name")),
        ("long name", |r| r.name = "x".repeat(129), invalid("name")),
        ("no way of access", |r| r.volume_capabilities.clear(), invalid("volume_capabilities")),
        (
            "empty access",
            |r| r.volume_capabilities[0].access_type = None,
            invalid("volume_capabilities[0].access_type"),
        ),
        (
            "many nodes",
            |r| r.volume_capabilities[0] = mode(Mode::MultiNodeMultiWriter),
            invalid("access_mode"),
        ),
        (
            "unknown filesystem",
            |r| r.volume_capabilities = vec![Access::Filesystem("ntfs").capability()],
            invalid("fs_type"),
        ),
        ("negative", |r| r.capacity_range = sized(-1, 0), invalid("required_bytes")),
        ("negative limit", |r| r.capacity_range = sized(64 << 20, -1), invalid("limit_bytes")),
        ("limit below", |r| r.capacity_range = sized(64 << 20, 1 << 20), invalid("required_bytes")),
        ("too large for a number", |r| r.capacity_range = sized(i64::MAX, 0), invalid("required_bytes")),
        ("too large", |r| r.capacity_range = sized(1 << 50, 0), Expected(Code::ResourceExhausted, "vg")),
        (
            "odd limit",
            |r| r.capacity_range = sized(33 << 20, (33 << 20) + 5000),
            Expected(Code::OutOfRange, "36 MiB"),
        ),
        (
            "unknown class",
            |r| drop(r.parameters.insert("topolvm.io/device-class".into(), "none".into())),
            invalid("topolvm.io/device-class"),
        ),
        (
            "unknown option class",
            |r| drop(r.parameters.insert("topolvm.io/lvcreate-option-class".into(), "none".into())),
            invalid("topolvm.io/lvcreate-option-class"),
        ),
        (
            "an option that lvm2 does not know",
            |r| drop(r.parameters.insert("topolvm.io/lvcreate-option-class".into(), "odd".into())),
            invalid("lvm2 refused"),
        ),
        (
            "elsewhere",
            |r| {
                let segments = HashMap::from([("topology.topolvm.io/node".to_owned(), "there".to_owned())]);
                let requisite = vec![proto::Topology { segments }];
                r.accessibility_requirements =
                    Some(proto::TopologyRequirement { requisite, preferred: Vec::new() });
            },
            invalid("accessibility_requirements"),
        ),
        (
            "a source of no kind",
            |r| r.volume_content_source = Some(Default::default()),
            invalid("volume_content_source"),
        ),
        (
            "a mount flag",
            |r| {
                if let Some(proto::volume_capability::AccessType::Mount(mount)) =
                    &mut r.volume_capabilities[0].access_type
                {
                    mount.mount_flags = vec!["bind".into()];
                }
            },
            invalid("mount_flags"),
        ),
    ];
    for (what, change, expected) in cases {
        expect(what, create(&client, change), &expected);
        assert_eq!(state()?, before, "{what}");
    }
    expect(
        "another size",
        client.create("good", "thick", 128 << 20, Access::Filesystem("ext4"), None),
        &Expected(Code::AlreadyExists, "64 MiB"),
    );
    expect(
        "another class",
        client.create("good", "thin", 64 << 20, Access::Filesystem("ext4"), None),
        &Expected(Code::AlreadyExists, "class"),
    );
    let target = Path::new("/run/test/target");
    for strange in STRANGE {
        for source in [Source::Snapshot(strange.into()), Source::Volume(strange.into())] {
            let answer = client.create("copy", "thick", 64 << 20, Access::Block, Some(&source));
            expect(strange, answer, &Expected(Code::NotFound, "volume_content_source"));
        }
        // What is not there is removed already; what is not ours is not there.
        client.delete(strange)?;
        client.delete_snapshot(strange)?;
        expect(strange, client.snapshot("s", strange), &Expected(Code::NotFound, "source_volume_id"));
        expect(
            strange,
            client.grow(strange, 1 << 30, Access::Block, None),
            &Expected(Code::NotFound, "volume_id"),
        );
        expect(
            strange,
            client.publish(strange, target, Access::Block),
            &Expected(Code::NotFound, "volume_id"),
        );
        expect(strange, client.stats(strange, target), &Expected(Code::NotFound, "volume_id"));
        client.unpublish(strange, target)?;
    }
    client.delete("somebodys")?;
    let id = good.volume_id.as_str();
    for path in ["relative", "/run/../etc"] {
        expect(path, client.publish(id, Path::new(path), Access::Block), &invalid("target_path"));
        expect(path, client.unpublish(id, Path::new(path)), &invalid("target_path"));
    }
    expect("no id", client.delete(""), &invalid("volume_id"));
    expect("no snapshot id", client.delete_snapshot(""), &invalid("snapshot_id"));
    expect("no source", client.snapshot("s", ""), &invalid("source_volume_id"));
    expect("no name", client.snapshot("", id), &invalid("name"));
    expect("no path", client.stats(id, Path::new("")), &invalid("volume_path"));
    expect("not published", client.stats(id, target), &Expected(Code::NotFound, "not published"));
    expect("too large", client.grow(id, 1 << 50, Access::Block, None), &Expected(Code::OutOfRange, "vg"));
    assert_eq!(state()?, before);
    assert!(!target.exists());
    Ok(())
}

fn names_of_every_kind_come_back_as_they_were(lab: &Lab) -> Result {
    let (_driver, client) = start(lab)?;
    for name in ["plain", "with space", "über/../$(reboot)", "'quoted\"", &"x".repeat(128), "#23 %n \\ tab\t"]
    {
        let first = client.create(name, "thin", 8 << 20, Access::Block, None)?;
        let again = client.create(name, "thin", 8 << 20, Access::Block, None)?;
        assert_eq!(first.volume_id, again.volume_id, "{name:?}");
        client.delete(&first.volume_id)?;
    }
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name"])?, "pool");
    Ok(())
}

fn a_volume_for_a_single_writer_is_published_on_one_path(lab: &Lab) -> Result {
    let (_driver, client) = start(lab)?;
    for access in [Access::Block, Access::Filesystem("ext4")] {
        let id = client.create("single", "thin", 64 << 20, access, None)?.volume_id;
        let publish = |target: &str| {
            let mut capability = access.capability();
            let mode = Mode::SingleNodeSingleWriter.into();
            capability.access_mode = Some(proto::volume_capability::AccessMode { mode });
            let request = proto::NodePublishVolumeRequest {
                volume_id: id.clone(),
                target_path: target.to_owned(),
                volume_capability: Some(capability),
                ..Default::default()
            };
            client.node(async |mut node| node.node_publish_volume(request).await)
        };
        publish("/run/test/one")?;
        publish("/run/test/one")?;
        let refused = Expected(Code::FailedPrecondition, "/run/test/one");
        expect("a second path", publish("/run/test/two"), &refused);
        client.unpublish(&id, Path::new("/run/test/one"))?;
        client.delete(&id)?;
    }
    Ok(())
}

fn a_target_behind_a_symbolic_link_is_the_place_that_it_leads_to(lab: &Lab) -> Result {
    let (_driver, client) = start(lab)?;
    fs::create_dir_all("/run/test/real/pods")?;
    std::os::unix::fs::symlink("/run/test/real", "/run/test/kubelet")?;
    for access in [Access::Filesystem("ext4"), Access::Block] {
        let id = client.create("linked", "thin", 64 << 20, access, None)?.volume_id;
        let target = Path::new("/run/test/kubelet/pods/volume");
        client.publish(&id, target, access)?;
        client.publish(&id, target, access)?;
        client.stats(&id, target)?;
        client.grow(&id, 96 << 20, access, Some(target))?;
        let real = Path::new("/run/test/real/pods/volume");
        assert!(real.exists());
        if access != Access::Block {
            let mounts = fs::read_to_string("/proc/mounts")?;
            assert_eq!(mounts.matches(" /run/test/real/pods/volume ").count(), 1, "{mounts}");
        }
        client.unpublish(&id, target)?;
        assert!(!real.exists() && !fs::read_to_string("/proc/mounts")?.contains("/run/test/real"));
        client.unpublish(&id, target)?;
        client.delete(&id)?;
    }
    Ok(())
}

fn figures(path: &str) -> Result<String> {
    let mut connection = TcpStream::connect(FIGURES)?;
    write!(connection, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

fn a_changed_configuration_takes_effect_and_a_wrong_one_is_told(lab: &Lab) -> Result {
    let (_driver, client) = start(lab)?;
    assert!(client.capacity("thick")? > 500 << 20);
    assert!(client.capacity("later").is_err());
    fs::write(CONFIGURATION, CLASSES.replace("name: thick", "name: later"))?;
    lab.wait_for("the new class", || client.capacity("later").ok())?;
    fs::write(CONFIGURATION, "device-classes: [{name: later, volume-group: ''}]")?;
    lab.wait_for("the figure", || {
        figures("/metrics").ok().filter(|text| text.contains("lvms_configuration_wrong 1"))
    })?;
    assert!(client.capacity("later")? > 500 << 20);
    let told = figures("/metrics")?;
    for figure in [
        "topolvm_volumegroup_size_bytes{node=\"here\",device_class=\"later\"}",
        "topolvm_volumegroup_available_bytes{node=\"here\",device_class=\"thin\"}",
        "topolvm_thinpool_size_bytes{node=\"here\",device_class=\"thin\"} 314572800.0",
        "topolvm_thinpool_data_percent{node=\"here\",device_class=\"thin\"} 0.0",
        "topolvm_thinpool_overprovisioned_available{node=\"here\",device_class=\"thin\"} 629145600.0",
        "lvms_csi_call_seconds_count{method=\"GetCapacity\",code=\"0\"}",
    ] {
        assert!(told.contains(figure), "{figure} is not in\n{told}");
    }
    assert!(figures("/healthz")?.contains("200 OK") && figures("/readyz")?.contains("200 OK"));
    Ok(())
}

fn a_second_driver_is_refused_and_an_ended_one_leaves_nothing_half_done(lab: &Lab) -> Result {
    let (mut driver, client) = start(lab)?;
    let second = command().output()?;
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another lvms serves this host"), "{said}");
    // Told to end in the middle of a call, it finishes it.
    let pid = driver.process.id().to_string();
    let made = std::thread::scope(|scope| {
        let call = scope.spawn(|| client.create("last", "thick", 64 << 20, Access::Block, None));
        let begun = lab.wait_for("the call to begin", || {
            let volumes = run("lvs", ["--noheadings", "-o", "lv_name", "vg"]).ok()?;
            (volumes.split_whitespace().count() > 1).then_some(())
        });
        let ended = run("kill", ["-TERM", &pid]);
        begun.and(ended)?;
        call.join().map_err(|_| "the call panicked")?.map_err(lab_test::Error::from)
    })?;
    assert!(driver.process.wait()?.success());
    assert_eq!(made.capacity_bytes, 64 << 20);
    assert!(!state()?.contains("zeroing"), "{}", state()?);
    // Started again, it finds what it made.
    let again = Driver::start(&mut command(), Path::new(SOCKET))?;
    let found = again.connect()?.create("last", "thick", 64 << 20, Access::Block, None)?;
    assert_eq!(found.volume_id, made.volume_id);
    Ok(())
}

fn a_volume_deleted_while_it_is_made_leaves_nothing(lab: &Lab) -> Result {
    let (driver, client) = start(lab)?;
    let make = |client: &Client| client.create("short-lived", "thick", 128 << 20, Access::Block, None);
    // Its id is known from an earlier life.
    let id = make(&client)?.volume_id;
    client.delete(&id)?;
    let maker = driver.connect()?;
    std::thread::scope(|scope| -> Result {
        let made = scope.spawn(|| make(&maker));
        let begun = lab.wait_for("the volume to be made", || {
            run("lvs", ["--noheadings", "-o", "lv_name", "vg"]).ok()?.contains(&id).then_some(())
        });
        let deleted = client.delete(&id);
        let _ = made.join();
        begun?;
        Ok(deleted?)
    })?;
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    Ok(())
}

lab_test::main! {
    wrong_requests_get_the_right_code_name_the_field_and_change_nothing: Needs::disks(1, GIB).guest(),
    names_of_every_kind_come_back_as_they_were: Needs::disks(1, GIB).guest(),
    a_volume_for_a_single_writer_is_published_on_one_path: Needs::disks(1, GIB).guest(),
    a_target_behind_a_symbolic_link_is_the_place_that_it_leads_to: Needs::disks(1, GIB).guest(),
    a_changed_configuration_takes_effect_and_a_wrong_one_is_told: Needs::disks(1, GIB).guest(),
    a_second_driver_is_refused_and_an_ended_one_leaves_nothing_half_done: Needs::disks(1, GIB).guest(),
    a_volume_deleted_while_it_is_made_leaves_nothing: Needs::disks(1, GIB).guest(),
}
