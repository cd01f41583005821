//! `lvms standalone` as a client sees it: where volumes are published, other drivers, changed configuration, figures,
//! its end.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
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
        "lvms_thinpool_chunk_bytes{node=\"here\",device_class=\"thin\"} 65536.0",
        "lvms_thinpool_metadata_size_bytes{node=\"here\",device_class=\"thin\"} 4194304.0",
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
    // Nobody but root can hold the lock that tells it so.
    assert_eq!(fs::metadata("/run/lvms")?.permissions().mode() & 0o777, 0o700);
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

/// LVM sees no disk any more, though all of them are there.
fn hide_all_disks() -> Result<String> {
    let policy = fs::read_to_string("/etc/lvm/lvm.conf")?;
    fs::write("/etc/lvm/lvm.conf", format!("{policy}\ndevices {{ global_filter = [ \"r|.*|\" ] }}\n"))?;
    Ok(policy)
}

fn a_volume_whose_group_is_not_found_is_not_taken_for_gone(lab: &Lab) -> Result {
    let (driver, client) = start(lab)?;
    let id = client.create("hidden", "thick", 64 << 20, Access::Block, None)?.volume_id;
    let snapshot = client.snapshot("moment", &id)?.snapshot_id;
    let refused = Expected(Code::FailedPrecondition, "volume group vg");
    let policy = hide_all_disks()?;
    let other = "b5a6cf0e-6a1e-4f0c-9a5e-0a3c1d5f9b11";
    // One driver knows them from before, and the next has never seen them.
    expect("known snapshot", client.delete_snapshot(&snapshot), &refused);
    expect("known volume", client.delete(&id), &refused);
    expect("never known", client.delete(other), &refused);
    drop((driver, client));
    let driver = Driver::start(&mut command(), Path::new(SOCKET))?;
    let client = driver.connect()?;
    expect("snapshot, at first", client.delete_snapshot(&snapshot), &refused);
    expect("volume, at first", client.delete(&id), &refused);
    fs::write("/etc/lvm/lvm.conf", policy)?;
    let there = run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?;
    assert!(there.contains(&id) && there.contains(&snapshot), "{there}");
    client.delete(other)?;
    client.delete_snapshot(&snapshot)?;
    client.delete(&id)?;
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    Ok(())
}

fn what_a_newer_version_made_is_left_alone(lab: &Lab) -> Result {
    let (_driver, client) = start(lab)?;
    for (class, access) in [("thick", Access::Filesystem("ext4")), ("thin", Access::Block)] {
        let id = client.create(class, class, 64 << 20, access, None)?.volume_id;
        let volume = format!("vg/{id}");
        run("lvchange", ["-qq", "--addtag", "lvms.io/format=2", &volume])?;
        let (before, newer) = (state()?, Expected(Code::FailedPrecondition, "newer lvms"));
        let target = Path::new("/run/test/newer");
        let source = Source::Volume(id.clone());
        expect("delete", client.delete(&id), &newer);
        expect("grow", client.grow(&id, 96 << 20, access, None), &newer);
        expect("publish", client.publish(&id, target, access), &newer);
        expect("snapshot", client.snapshot("moment", &id), &newer);
        expect("clone", client.create("copy", class, 64 << 20, access, Some(&source)), &newer);
        assert!(!target.exists());
        assert_eq!(state()?, before);
        run("lvchange", ["-qq", "--deltag", "lvms.io/format=2", &volume])?;
        client.delete(&id)?;
    }
    Ok(())
}

fn a_volume_of_which_somebody_makes_something_else_serves_on_or_is_told_and_never_taken_for_gone(
    lab: &Lab,
) -> Result {
    let (_driver, client) = start(lab)?;
    run("vgextend", ["-qq", "vg", lab.disk(1)])?;
    let (access, target) = (Access::Filesystem("ext4"), Path::new("/run/test/converted"));
    let create = || client.create("converted", "thick", 64 << 20, access, None);
    let make = || -> Result<String> {
        let id = create()?.volume_id;
        client.publish(&id, target, access)?;
        fs::write(target.join("file"), "kept")?;
        client.unpublish(&id, target)?;
        Ok(id)
    };
    let left = || run("lvs", ["--noheadings", "-o", "lv_name", "vg"]);
    for (kind, options) in [
        ("cache", &["--cachevol", "fast"][..]),
        ("writecache", &["--cachevol", "fast"]),
        ("mirror", &["--mirrors", "1", "--mirrorlog", "core"]),
    ] {
        let id = make()?;
        let volume = format!("vg/{id}");
        if kind != "mirror" {
            run("lvcreate", ["-qq", "-y", "-n", "fast", "-L", "16m", "vg", lab.disk(1)])?;
            run("lvchange", ["-qq", "-an", "vg/fast"])?;
        }
        run("lvchange", ["-qq", "-an", &volume])?;
        run("lvconvert", [&["-qq", "-y", "--type", kind], options, &[&volume]].concat())?;
        assert_eq!(create()?.volume_id, id, "{kind}");
        client.publish(&id, target, access)?;
        assert_eq!(fs::read_to_string(target.join("file"))?, "kept", "{kind}");
        assert!(client.stats(&id, target).is_ok(), "{kind}");
        let only_serves = Expected(Code::FailedPrecondition, "neither grown nor copied");
        let source = Source::Volume(id.clone());
        expect(kind, client.grow(&id, 96 << 20, access, None), &only_serves);
        expect(kind, client.snapshot("moment", &id), &only_serves);
        expect(kind, client.create("copy", "thick", 64 << 20, access, Some(&source)), &only_serves);
        client.unpublish(&id, target)?;
        client.delete(&id)?;
        assert_eq!(left()?, "pool", "{kind}");
    }
    let id = make()?;
    run("lvconvert", ["-qq", "-y", "--type", "thin-pool", &format!("vg/{id}")])?;
    // Whoever looks first finds what it has become, and the others know.
    expect("first", client.delete(&id), &Expected(Code::FailedPrecondition, "vg/"));
    let told = Expected(Code::FailedPrecondition, "type thin-pool");
    expect("publish", client.publish(&id, target, access), &told);
    expect("stats", client.stats(&id, target), &told);
    expect("grow", client.grow(&id, 96 << 20, access, None), &told);
    expect("delete", client.delete(&id), &told);
    assert!(left()?.contains(&id));
    Ok(())
}

/// Puts other programs where the host has its own, and becomes the driver: what it sees of them is seen in its own mount
/// namespace alone, like a pod's. Each notes that it was used.
const POD: &str = r#"
set -e
mkdir -p /run/test/others
for name in lvm mkfs.ext4 mkfs.xfs mkfs.btrfs blkid e2fsck resize2fs xfs_growfs btrfs btrfstune tune2fs udevadm; do
    printf '#!/bin/sh\necho %s >> /run/test/used\nexit 1\n' $name > /run/test/others/$name
    chmod 755 /run/test/others/$name
done
mount --bind /run/test/others /usr/sbin
mount --bind /run/test/others /usr/bin
exec "$@"
"#;

fn programs_are_the_hosts_own_whatever_the_driver_has_in_its_root(lab: &Lab) -> Result {
    drop(start(lab)?);
    let mut pod = Command::new("unshare");
    pod.args(["--mount", "sh", "-c", POD, "sh"]);
    let driver = command();
    pod.arg(driver.get_program()).args(driver.get_args());
    let driver = Driver::start(&mut pod, Path::new(SOCKET))?;
    let client = driver.connect()?;
    let others = format!("/proc/{}/root/usr/sbin/mkfs.ext4", driver.process.id());
    assert!(fs::read_to_string(others)?.contains("/run/test/used"));
    for kind in ["ext4", "xfs", "btrfs"] {
        let access = Access::Filesystem(kind);
        let id = client.create(kind, "thin", 320 << 20, access, None)?.volume_id;
        let target = Path::new("/run/test").join(kind);
        client.publish(&id, &target, access)?;
        fs::write(target.join("file"), kind)?;
        client.grow(&id, 352 << 20, access, Some(&target))?;
        client.unpublish(&id, &target)?;
        client.publish(&id, &target, access)?;
        assert_eq!(fs::read_to_string(target.join("file"))?, kind);
        client.unpublish(&id, &target)?;
        client.delete(&id)?;
    }
    assert_eq!(fs::read_to_string("/run/test/used").unwrap_or_default(), "");
    Ok(())
}

lab_test::main! {
    programs_are_the_hosts_own_whatever_the_driver_has_in_its_root: Needs::disks(1, GIB).guest(),
    a_volume_whose_group_is_not_found_is_not_taken_for_gone: Needs::disks(1, GIB).guest(),
    what_a_newer_version_made_is_left_alone: Needs::disks(1, GIB).guest(),
    a_volume_of_which_somebody_makes_something_else_serves_on_or_is_told_and_never_taken_for_gone:
        Needs::disks(2, GIB).guest(),
    a_volume_for_a_single_writer_is_published_on_one_path: Needs::disks(1, GIB).guest(),
    a_target_behind_a_symbolic_link_is_the_place_that_it_leads_to: Needs::disks(1, GIB).guest(),
    a_changed_configuration_takes_effect_and_a_wrong_one_is_told: Needs::disks(1, GIB).guest(),
    a_second_driver_is_refused_and_an_ended_one_leaves_nothing_half_done: Needs::disks(1, GIB).guest(),
    a_volume_deleted_while_it_is_made_leaves_nothing: Needs::disks(1, GIB).guest(),
}
