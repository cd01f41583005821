//! What the log tells: every line of a call with its number and its volume, every command that changes something with
//! its exact words. And by which words lvm2 is run.

mod driver;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use driver::{Driver, MIB};
use lab_csi::{Access, Code, Source, Status, proto};
use lab_test::{GIB, Lab, Needs, Result, run};
use serde_json::Value;

const CLASSES: &str = "
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
  - {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}
";

const EXT4: Access = Access::Filesystem("ext4");

/// Between two words.
const APART: char = '\u{1f}';

/// Stands for lvm2's program, and writes down the words of each call, in a line.
fn place_lvm(lab: &Lab) -> Result<(String, PathBuf)> {
    let (script, calls) = (lab.state().join("lvm"), lab.state().join("calls"));
    let text = format!(
        "#!/bin/sh\nprintf '%s\\037' \"$0\" \"$@\" >> {calls}\necho >> {calls}\nexec /sbin/lvm \"$@\"\n",
        calls = calls.display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok((script.to_string_lossy().into_owned(), calls))
}

/// The words of calls that change something.
fn changes(calls: &Path) -> Result<Vec<String>> {
    let looks = ["fullreport", "lvmconfig", "version"].map(|verb| format!("{APART}{verb}{APART}"));
    let all = fs::read_to_string(calls)?;
    Ok(all.lines().filter(|line| !looks.iter().any(|verb| line.contains(verb))).map(str::to_owned).collect())
}

fn lines(lab: &Lab) -> Result<Vec<Value>> {
    let log = fs::read_to_string(lab.state().join("driver.log"))?;
    log.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn every_line_of_a_call_has_its_number_and_its_volume(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "300m", "vg"])?;
    let (lvm, calls) = place_lvm(lab)?;
    let driver = Driver::start(lab, CLASSES, &["--lvm-path", &lvm, "--log", "json"])?;
    let client = &driver.client;
    let begun = lines(lab)?.len();
    let before = changes(&calls)?.len();
    let target = lab.state().join("target");
    let origin = client.create("its name", "thick", 64 * MIB, EXT4, None)?.volume_id;
    client.publish(&origin, &target, EXT4)?;
    client.grow(&origin, 96 * MIB, EXT4, Some(&target))?;
    client.unpublish(&origin, &target)?;
    let snapshot = client.snapshot("moment", &origin)?.snapshot_id;
    let from = Source::Snapshot(snapshot.clone());
    let copy = client.create("a 'copy'", "thin", 96 * MIB, EXT4, Some(&from))?.volume_id;
    let refused = client.create("a 'copy'", "thin", 128 * MIB, EXT4, Some(&from));
    assert_eq!(refused.err().map(|status| status.code()), Some(Code::AlreadyExists));
    client.delete_snapshot(&snapshot)?;
    client.delete(&origin)?;
    client.delete(&copy)?;

    let known = [&origin, &snapshot, &copy];
    let lines = lines(lab)?;
    let (mut commands, mut numbers) = (Vec::new(), Vec::new());
    for line in &lines[begun..] {
        let (method, number) = (&line["span"]["method"], &line["span"]["request"]);
        let volume = line["span"]["volume"].as_str().unwrap_or_default();
        assert!(method.is_string() && known.iter().any(|id| *id == volume), "{line}");
        numbers.push(number.as_u64().ok_or_else(|| format!("{line} has no number"))?);
        if line["message"] == "changes" {
            commands.push(line["command"].as_str().ok_or("a command without words")?.to_owned());
        }
        if method == "CreateVolume" {
            let name = if volume == origin { "its name" } else { "a 'copy'" };
            assert_eq!(line["span"]["called"], name, "{line}");
        }
    }
    numbers.dedup();
    let told = |line: &&Value| {
        line["message"] == "refused" && line["reason"].as_str().is_some_and(|it| it.contains("96 MiB"))
    };
    assert_eq!(lines[begun..].iter().filter(told).count(), 1, "what is refused is told with its reason");
    let calls_done =
        lines[begun..].iter().filter(|line| line["message"] == "done" || line["message"] == "refused");
    assert_eq!(numbers.len(), calls_done.count(), "one number for each call: {numbers:?}");
    // As a shell reads them, the words are those that lvm2 was given.
    let mut told = Vec::new();
    for command in commands.iter().filter(|command| command.starts_with(&lvm)) {
        told.push(run("sh", ["-c", &format!("printf '%s\\037' {command}")])?);
    }
    let given = changes(&calls)?.split_off(before);
    assert!(given.iter().any(|words| words.contains(&format!("{APART}lvcreate{APART}"))), "{given:?}");
    assert_eq!(told, given);
    assert!(commands.iter().any(|command| command.starts_with("mkfs.ext4 ")), "{commands:?}");
    Ok(())
}

fn lvm2_is_run_by_the_words_of_the_configuration(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let (lvm, calls) = place_lvm(lab)?;
    let classes = "
  - {name: a, volume-group: vg, spare-gb: 0, default: true}
";
    let prefixed = format!("{classes}lvm-command-prefix: [/usr/bin/env, A=1, {lvm}]\n");
    let driver = Driver::start(lab, &prefixed, &["--log", "json"])?;
    let client = &driver.client;
    let life = |class: &str| -> Result {
        fs::write(&calls, "")?;
        client.delete(&client.create("v", class, 64 * MIB, Access::Block, None)?.volume_id)?;
        let given = changes(&calls)?;
        for verb in ["lvcreate", "lvchange", "lvremove"] {
            let begin = format!("{lvm}{APART}{verb}{APART}");
            assert!(given.iter().any(|words| words.starts_with(&begin)), "{verb} is not in {given:?}");
        }
        Ok(())
    };
    life("a")?;
    // Another class is in force at once; other words are not, and that is told.
    let changed = "
  - {name: b, volume-group: vg, spare-gb: 0, default: true}
lvm-command-prefix: [/no/such/lvm]
";
    fs::write(lab.state().join("driver.yaml"), format!("device-classes:{changed}"))?;
    lab.wait_for("the new class", || client.capacity("b").ok())?;
    lab.wait_for("what is not in force to be told", || {
        let told = lines(lab).ok()?;
        let told = told.iter().find(|line| line["field"] == "lvm-command-prefix")?;
        assert!(told["level"] == "WARN" && told["message"].as_str()?.contains("started again"), "{told}");
        Some(())
    })?;
    life("b")
}

/// All calls of lvm2, once nothing has come after the last for a while: what was made is looked at afterwards.
fn calls_in_peace(lab: &Lab, calls: &Path) -> Result<usize> {
    let count = || -> Result<usize> { Ok(fs::read_to_string(calls)?.lines().count()) };
    lab.wait_for("peace", || {
        let before = count().ok()?;
        std::thread::sleep(Duration::from_secs(3));
        (count().ok()? == before).then_some(before)
    })
}

fn what_only_looks_runs_no_command(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "300m", "vg"])?;
    let (lvm, calls) = place_lvm(lab)?;
    let driver = Driver::start(lab, CLASSES, &["--lvm-path", &lvm])?;
    let (client, target) = (&driver.client, lab.state().join("target"));
    let volume = client.create("v", "thick", 64 * MIB, EXT4, None)?.volume_id;
    let thin = client.create("t", "thin", 64 * MIB, EXT4, None)?.volume_id;
    client.publish(&volume, &target, EXT4)?;
    let snapshot = client.snapshot("moment", &thin)?.snapshot_id;
    let before = calls_in_peace(lab, &calls)?;
    assert!(before > 0, "no call is written down");
    for _ in 0..10 {
        assert!(!client.stats(&volume, &target)?.usage.is_empty());
        assert!(client.capacity("thick")? > 0 && client.capacity("thin")? > 0);
        let request = proto::ListVolumesRequest::default();
        let listed = client.controller(async |mut controller| controller.list_volumes(request).await)?;
        assert_eq!(listed.entries.len(), 2);
        let request = proto::ListSnapshotsRequest { snapshot_id: snapshot.clone(), ..Default::default() };
        let listed = client.controller(async |mut controller| controller.list_snapshots(request).await)?;
        assert_eq!(listed.entries.len(), 1);
        let request = proto::ControllerGetVolumeRequest { volume_id: volume.clone() };
        client.controller(async |mut controller| controller.controller_get_volume(request).await)?;
    }
    assert_eq!(calls_in_peace(lab, &calls)?, before);
    client.unpublish(&volume, &target)?;
    client.delete_snapshot(&snapshot)?;
    client.delete(&volume)?;
    client.delete(&thin)?;
    Ok(())
}

fn secrets_are_neither_logged_nor_kept(lab: &Lab) -> Result {
    const SECRET: &str = "hunter-2-and-nothing-else";
    run("vgcreate", ["vg", lab.disk(0)])?;
    let driver = Driver::start(lab, CLASSES, &["--log", "json"])?;
    let (client, target) = (&driver.client, lab.state().join("target"));
    let secrets = || HashMap::from([("key".to_owned(), SECRET.to_owned())]);
    let make = |size: i64| -> std::result::Result<String, Status> {
        let request = proto::CreateVolumeRequest {
            name: "v".to_owned(),
            capacity_range: Some(proto::CapacityRange { required_bytes: size, limit_bytes: 0 }),
            volume_capabilities: vec![EXT4.capability()],
            secrets: secrets(),
            ..Default::default()
        };
        let made = client.controller(async |mut controller| controller.create_volume(request).await)?;
        Ok(made.volume.map(|volume| volume.volume_id).unwrap_or_default())
    };
    let publish = |id: &str, target: &Path| {
        let request = proto::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: target.to_string_lossy().into_owned(),
            volume_capability: Some(EXT4.capability()),
            secrets: secrets(),
            ..Default::default()
        };
        client.node(async |mut node| node.node_publish_volume(request).await)
    };
    let id = make(64 * MIB)?;
    // What is refused is told at length.
    assert!(make(1024 * MIB).is_err() && publish(&id, Path::new("relative")).is_err());
    publish(&id, &target)?;
    let request = proto::CreateSnapshotRequest {
        name: "moment".to_owned(),
        source_volume_id: id.clone(),
        secrets: secrets(),
        ..Default::default()
    };
    let made = client.controller(async |mut controller| controller.create_snapshot(request).await)?;
    let snapshot = made.snapshot.ok_or("no snapshot")?.snapshot_id;
    let log = fs::read_to_string(lab.state().join("driver.log"))?;
    assert!(log.contains(&id) && !log.contains(SECRET), "{log}");
    assert!(!run("lvs", ["--noheadings", "-o", "lv_name,lv_tags", "vg"])?.contains(SECRET));
    client.delete_snapshot(&snapshot)?;
    client.unpublish(&id, &target)?;
    client.delete(&id)?;
    Ok(())
}

lab_test::main! {
    what_only_looks_runs_no_command: Needs::disks(1, GIB).guest(),
    secrets_are_neither_logged_nor_kept: Needs::disks(1, GIB).guest(),
    every_line_of_a_call_has_its_number_and_its_volume: Needs::disks(1, GIB).guest(),
    lvm2_is_run_by_the_words_of_the_configuration: Needs::disks(1, GIB).guest(),
}
