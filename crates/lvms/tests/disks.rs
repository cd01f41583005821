//! Disks that vanish, fail and change their names under `lvms standalone`: each is told, others go on, nothing is lost,
//! and all goes on when it is healed.

mod driver;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use driver::{Driver, FIGURES, MIB, device, figures, refused};
use lab_csi::{Access, Client, Code, Source};
use lab_test::{Cut, Fault, GIB, Lab, MIB as MEBIBYTE, Needs, Result, run};

const EXT4: Access = Access::Filesystem("ext4");

const TWO_GROUPS: &str = "
  - {name: a, volume-group: a, spare-gb: 0, default: true}
  - {name: b, volume-group: b, spare-gb: 0}
";

/// Publishes it, and writes a file that says whose it is.
fn publish_with_file(client: &Client, id: &str, target: &Path) -> Result {
    client.publish(id, target, EXT4)?;
    fs::write(target.join("file"), id)?;
    run("sync", ["--file-system", &target.to_string_lossy()])?;
    Ok(())
}

fn condition(client: &Client, id: &str, target: &Path) -> Result<(bool, String)> {
    let condition = client.stats(id, target)?.volume_condition.ok_or("no condition was told")?;
    Ok((condition.abnormal, condition.message))
}

fn missing_disks(group: &str) -> Result<String> {
    run("vgs", ["--noheadings", "-o", "vg_missing_pv_count", group])
}

fn a_disk_vanishes_under_a_mounted_volume_and_others_go_on(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = Driver::start(lab, TWO_GROUPS, &[])?;
    let client = &driver.client;
    let lost = client.create("lost", "a", 64 * MIB, EXT4, None)?.volume_id;
    let kept = client.create("kept", "b", 64 * MIB, EXT4, None)?.volume_id;
    let held = client.create("held", "a", 64 * MIB, EXT4, None)?.volume_id;
    let (at_lost, at_kept) = (lab.state().join("lost"), lab.state().join("kept"));
    let at_held = lab.state().join("held");
    publish_with_file(client, &lost, &at_lost)?;
    publish_with_file(client, &held, &at_held)?;
    publish_with_file(client, &kept, &at_kept)?;

    lab.unplug(lab.serial(0))?;
    let told = lab.wait_for("the condition to be abnormal", || {
        let (abnormal, told) = condition(client, &lost, &at_lost).ok()?;
        abnormal.then_some(told)
    })?;
    assert!(told.contains("missing") && told.contains(lab.disk(0)) && !told.contains("is back"), "{told}");
    assert_eq!(client.capacity("a")?, 0);
    let more = || client.create("more", "a", 8 * MIB, Access::Block, None);
    refused(more(), Code::FailedPrecondition, &["volume group a", lab.disk(0), "until they are back"]);
    // Looked at again, its volumes are still known.
    assert!(condition(client, &lost, &at_lost)?.0);
    refused(client.delete(&lost), Code::FailedPrecondition, &["volume group a", "until they are back"]);
    assert_eq!(
        condition(client, &kept, &at_kept)?,
        (false, "volume is healthy and operating normally".into())
    );
    fs::write(at_kept.join("file"), "still written")?;
    client.delete(&client.create("beside", "b", 8 * MIB, Access::Block, None)?.volume_id)?;
    client.unpublish(&lost, &at_lost)?;
    assert!(!at_lost.exists());

    lab.plug_back(lab.serial(0))?;
    lab.wait_for("LVM to have the group again", || missing_disks("a").ok())?;
    client.publish(&lost, &at_lost, EXT4)?;
    assert_eq!(fs::read_to_string(at_lost.join("file"))?, lost);
    assert!(!condition(client, &lost, &at_lost)?.0);
    // What stayed mounted still leads to the device that is gone, and is told the way out.
    let way_out = "is back as another device: unpublish it everywhere, then it works again";
    let told = condition(client, &held, &at_held)?;
    assert!(told.0 && told.1.contains(way_out) && !told.1.contains("missing"), "{told:?}");
    client.unpublish(&held, &at_held)?;
    client.publish(&held, &at_held, EXT4)?;
    assert_eq!(fs::read_to_string(at_held.join("file"))?, held);
    assert!(!condition(client, &held, &at_held)?.0);
    client.unpublish(&held, &at_held)?;
    client.delete(&held)?;
    client.delete(&more()?.volume_id)?;
    assert!(client.capacity("a")? > 0);
    assert_eq!(missing_disks("a")?, "0");
    client.unpublish(&lost, &at_lost)?;
    client.delete(&lost)?;
    client.unpublish(&kept, &at_kept)?;
    Ok(())
}

fn a_block_device_whose_disk_was_pulled_never_becomes_another_volume(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = Driver::start(lab, TWO_GROUPS, &[])?;
    let client = &driver.client;
    let id = client.create("v", "a", 8 * MIB, Access::Block, None)?.volume_id;
    let (one, two) = (lab.state().join("one"), lab.state().join("two"));
    client.publish(&id, &one, Access::Block)?;
    let number = || Ok::<_, lab_test::Error>(fs::metadata(&one)?.rdev());
    let before = number()?;
    lab.unplug(lab.serial(0))?;
    lab.wait_for("the disk to be missing", || condition(client, &id, &one).ok()?.0.then_some(()))?;
    lab.plug_back(lab.serial(0))?;
    lab.wait_for("LVM to have the group again", || missing_disks("a").ok())?;
    // Nobody has it open, and somebody may at any time.
    refused(client.publish(&id, &two, Access::Block), Code::FailedPrecondition, &["pulled out"]);
    let other = client.create("other", "b", 8 * MIB, Access::Block, None)?.volume_id;
    assert_ne!(fs::metadata(device("b", &other))?.rdev(), before);
    assert_eq!(number()?, before);
    client.unpublish(&id, &one)?;
    client.publish(&id, &two, Access::Block)?;
    client.unpublish(&id, &two)?;
    client.delete(&id)?;
    client.delete(&other)?;
    Ok(())
}

fn a_mirror_serves_without_one_of_its_disks_and_takes_it_back(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1)])?;
    let mirrored = "
  - {name: mirrored, volume-group: vg, spare-gb: 0, default: true, lvcreate-options: [\"--type=raid1\"]}
";
    let driver = Driver::start(lab, mirrored, &[])?;
    let client = &driver.client;
    let id = client.create("v", "mirrored", 64 * MIB, EXT4, None)?.volume_id;
    let (one, two) = (lab.state().join("one"), lab.state().join("two"));
    publish_with_file(client, &id, &one)?;
    let write = |name: &str, target: &Path| -> Result {
        fs::write(target.join(name), name)?;
        run("sync", ["--file-system", &target.to_string_lossy()])?;
        Ok(())
    };
    let healthy = || {
        let (abnormal, told) = condition(client, &id, &one).ok()?;
        (!abnormal && !told.contains("RAID")).then_some(())
    };
    lab.wait_for("both images to be the same", healthy)?;
    // With a snapshot, the mirror is a layer beneath what its user sees.
    let snapshot = client.snapshot("moment", &id)?.snapshot_id;
    let mirror = format!("vg-{}-real", id.replace('-', "--"));
    let events = || -> Result<u64> {
        Ok(run("dmsetup", ["info", "-c", "--noheadings", "-o", "events", &mirror])?.trim().parse()?)
    };
    // Each is taken away and given back in turn: what was written without one is read without the other.
    for (taken, other) in [(0, 1), (1, 0)] {
        lab.unplug(lab.serial(taken))?;
        let name = format!("without-{taken}");
        write(&name, &one)?;
        let told = lab.wait_for("the mirror to be degraded", || {
            let (abnormal, told) = condition(client, &id, &one).ok()?;
            (abnormal && told.contains("degraded")).then_some(told)
        })?;
        assert!(told.contains("missing") && !told.contains("is back"), "{told}");
        // The same target again, as after a start of the kubelet, and a further one.
        client.publish(&id, &one, EXT4)?;
        client.publish(&id, &two, EXT4)?;
        assert_eq!(fs::read_to_string(two.join(&name))?, name);
        client.unpublish(&id, &two)?;
        if taken == 1 {
            client.unpublish(&id, &one)?;
            client.publish(&id, &one, EXT4)?;
            assert_eq!(fs::read_to_string(one.join(format!("without-{other}")))?, format!("without-{other}"));
        }
        let before = events()?;
        lab.plug_back(lab.serial(taken))?;
        // The kernel shows good images before it has written down that they are. Then it tells.
        lab.wait_for("the disk to have what it has missed", || {
            healthy().filter(|()| events().is_ok_and(|now| now > before))
        })?;
    }
    assert_eq!(missing_disks("vg")?, "0");
    client.unpublish(&id, &one)?;
    client.delete_snapshot(&snapshot)?;
    client.delete(&id)?;
    Ok(())
}

fn a_group_without_one_of_its_disks_is_not_changed_and_none_stays_missing(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0), lab.disk(1)])?;
    run("vgcreate", ["b", lab.disk(2)])?;
    let driver = Driver::start(lab, TWO_GROUPS, &[])?;
    let client = &driver.client;
    // LVM takes extents of the first disk first: one lies there alone, and one on both.
    let whole = client.create("whole", "a", 64 * MIB, EXT4, None)?.volume_id;
    let half = client.create("half", "a", 480 * MIB, EXT4, None)?.volume_id;
    let (at_whole, at_half) = (lab.state().join("whole"), lab.state().join("half"));
    publish_with_file(client, &whole, &at_whole)?;
    publish_with_file(client, &half, &at_half)?;
    client.unpublish(&whole, &at_whole)?;
    client.unpublish(&half, &at_half)?;
    let disk = run("pvs", ["--noheadings", "-o", "pv_uuid", lab.disk(1)])?;

    lab.unplug(lab.serial(1))?;
    lab.wait_for("LVM to miss the disk", || (missing_disks("a").ok()? == "1").then_some(()))?;
    let parts = &["volume group a", disk.as_str(), "until they are back"];
    let create = || client.create("more", "a", 8 * MIB, Access::Block, None);
    refused(create(), Code::FailedPrecondition, parts);
    refused(client.delete(&whole), Code::FailedPrecondition, parts);
    refused(client.grow(&whole, 128 * MIB, EXT4, None), Code::FailedPrecondition, parts);
    refused(client.snapshot("moment", &whole), Code::FailedPrecondition, parts);
    refused(client.publish(&half, &at_half, EXT4), Code::FailedPrecondition, &[&half]);
    assert_eq!(client.capacity("a")?, 0);
    // What lies on the other disk is served, and so is the other group.
    client.publish(&whole, &at_whole, EXT4)?;
    assert_eq!(fs::read_to_string(at_whole.join("file"))?, whole);
    client.unpublish(&whole, &at_whole)?;
    client.delete(&client.create("beside", "b", 8 * MIB, Access::Block, None)?.volume_id)?;

    lab.plug_back(lab.serial(1))?;
    lab.wait_for("LVM to have the disk again", || (missing_disks("a").ok()? == "0").then_some(()))?;
    client.delete(&create()?.volume_id)?;
    client.delete_snapshot(&client.snapshot("moment", &whole)?.snapshot_id)?;
    client.grow(&whole, 128 * MIB, EXT4, None)?;
    client.publish(&half, &at_half, EXT4)?;
    assert_eq!(fs::read_to_string(at_half.join("file"))?, half);
    client.unpublish(&half, &at_half)?;
    client.delete(&half)?;
    client.delete(&whole)?;
    assert_eq!(missing_disks("a")?, "0");
    run("vgck", ["a"])?;
    Ok(())
}

/// A copy whose source, or target, fails while it is made.
fn goes_on_when_errors_are_over(lab: &Lab, failing: usize) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let start = || Driver::start(lab, TWO_GROUPS, &["--metrics-bind-address", FIGURES]);
    let driver = start()?;
    let client = &driver.client;
    let source = client.create("source", "a", 64 * MIB, Access::Block, None)?.volume_id;
    let original = device("a", &source);
    let of = format!("of={}", original.display());
    run("dd", ["if=/dev/urandom", &of, "bs=1M", "count=64", "oflag=direct"])?;
    let bytes = |device: &Path| run("sh", ["-c", &format!("sha256sum < {}", device.display())]);
    let at_first = bytes(&original)?;
    let from = Source::Volume(source.clone());
    let other = driver.connect()?;
    let copy = |client: &Client| client.create("copy", "b", 64 * MIB, Access::Block, Some(&from));
    let (well, message) = [("b", "reading /dev/mapper/a-"), ("a", "writing /dev/mapper/b-")][failing];

    // The target is slow, so that the copy is still being made when a disk fails.
    lab.fault(1, Fault::Delay { milliseconds: 100 })?;
    let unfinished = std::thread::scope(|scope| -> Result<String> {
        let copying = scope.spawn(|| copy(&other));
        let begun = lab.wait_for("a part of the copy", || {
            let told = figures("/metrics").ok()?;
            let figure = |name: &str| {
                let line = told.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
                assert!(line.contains(",what=\"copy\"}"), "{line}");
                line.split_whitespace().last()?.parse::<i64>().ok()
            };
            assert!(figure("lvms_work_bytes").is_none_or(|all| all == 64 * MIB), "{told}");
            (figure("lvms_work_done_bytes")? > 4 * MIB).then_some(())
        });
        let unfinished = name_of_the_only_device("b");
        lab.fault(failing, Fault::Error)?;
        lab.fault(1 - failing, Fault::None)?;
        begun?;
        let answer = copying.join().map_err(|_| "the call panicked")?;
        refused(answer, Code::Internal, &["copy of b/", message, "Input/output error", "same call"]);
        unfinished
    })?;
    let target = lab.state().join("copy");
    refused(client.publish(&unfinished, &target, Access::Block), Code::FailedPrecondition, &["not finished"]);
    assert!(!target.exists());
    refused(copy(client), Code::Internal, &["copy of b/", message, "Input/output error"]);
    client.delete(&client.create("beside", well, 8 * MIB, Access::Block, None)?.volume_id)?;

    lab.fault(failing, Fault::None)?;
    drop((other, driver));
    // The copy goes on from the moment at which it was begun, whatever is written to its source meanwhile, and whoever
    // began it.
    run("dd", ["if=/dev/urandom", &of, "bs=1M", "count=4", "oflag=direct"])?;
    assert_ne!(bytes(&original)?, at_first);
    let driver = start()?;
    let client = &driver.client;
    let made = copy(client)?.volume_id;
    assert_eq!(made, unfinished);
    assert_eq!(bytes(&device("b", &made))?, at_first);
    // The hints of the host's own LVM are from when a disk could not be read.
    for (group, left) in [("a", &source), ("b", &made)] {
        let listed = run("lvs", ["--nohints", "--noheadings", "-o", "lv_name", group])?;
        assert_eq!(&listed, left, "the copy has left something");
    }
    client.publish(&made, &target, Access::Block)?;
    client.unpublish(&made, &target)?;
    Ok(())
}

/// LVM would read a disk that is slow.
fn name_of_the_only_device(group: &str) -> Result<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/dev/mapper")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        found.extend(name.strip_prefix(&format!("{group}-")).map(|volume| volume.replace("--", "-")));
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.pop().ok_or_else(|| "no device".into())
}

fn a_copy_whose_source_fails_is_told_and_the_same_call_goes_on_from_its_moment(lab: &Lab) -> Result {
    goes_on_when_errors_are_over(lab, 0)
}

fn a_copy_whose_target_fails_is_told_and_the_same_call_goes_on_from_its_moment(lab: &Lab) -> Result {
    goes_on_when_errors_are_over(lab, 1)
}

fn volumes_are_found_on_disks_that_have_each_others_names_after_a_boot(lab: &Lab) -> Result {
    let (note, state) = (lab.state().join("names"), lab.state());
    let (at_a, at_b) = (state.join("a"), state.join("b"));
    let ids = |client: &Client| -> Result<(String, String)> {
        let a = client.create("in a", "a", 64 * MIB, EXT4, None)?.volume_id;
        Ok((a, client.create("in b", "b", 64 * MIB, EXT4, None)?.volume_id))
    };
    if lab.boots() == 0 {
        run("vgcreate", ["a", lab.disk(0)])?;
        run("vgcreate", ["b", lab.disk(1)])?;
        let driver = Driver::start(lab, TWO_GROUPS, &[])?;
        let (a, b) = ids(&driver.client)?;
        publish_with_file(&driver.client, &a, &at_a)?;
        publish_with_file(&driver.client, &b, &at_b)?;
        driver.client.unpublish(&a, &at_a)?;
        driver.client.unpublish(&b, &at_b)?;
        fs::write(note, lab.disks().join(" "))?;
        // Whoever is plugged in last is mostly the last at the next boot.
        run("vgchange", ["-an", "a"])?;
        lab.unplug(lab.serial(0))?;
        lab.plug_back(lab.serial(0))?;
        run("sync", [""; 0])?;
        return lab.cut_power(Cut::Kill);
    }
    // The kernel looks at disks at the same time, so most boots swap the names, and not all.
    if fs::read_to_string(&note)? != format!("{} {}", lab.disk(1), lab.disk(0)) {
        assert!(lab.boots() < 20, "the names were never swapped");
        return lab.cut_power(Cut::Kill);
    }
    let driver = Driver::start(lab, TWO_GROUPS, &[])?;
    let client = &driver.client;
    let (a, b) = ids(client)?;
    for (id, target) in [(&a, &at_a), (&b, &at_b)] {
        client.publish(id, target, EXT4)?;
        assert_eq!(&fs::read_to_string(target.join("file"))?, id);
        assert!(!condition(client, id, target)?.0);
        client.grow(id, 128 * MIB, EXT4, Some(target))?;
        client.unpublish(id, target)?;
    }
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "a"])?, a, "one volume each, none made anew");
    client.delete(&a)?;
    client.delete(&b)?;
    Ok(())
}

lab_test::main! {
    a_disk_vanishes_under_a_mounted_volume_and_others_go_on: Needs::disks(2, GIB / 2).hotplug().guest(),
    a_block_device_whose_disk_was_pulled_never_becomes_another_volume: Needs::disks(2, GIB / 2).hotplug().guest(),
    a_mirror_serves_without_one_of_its_disks_and_takes_it_back: Needs::disks(2, GIB / 2).hotplug().guest(),
    a_group_without_one_of_its_disks_is_not_changed_and_none_stays_missing: Needs::disks(3, GIB / 2).hotplug().guest(),
    a_copy_whose_source_fails_is_told_and_the_same_call_goes_on_from_its_moment: Needs::disks(2, 256 * MEBIBYTE).faults().guest(),
    a_copy_whose_target_fails_is_told_and_the_same_call_goes_on_from_its_moment: Needs::disks(2, 256 * MEBIBYTE).faults().guest(),
    volumes_are_found_on_disks_that_have_each_others_names_after_a_boot: Needs::disks(2, GIB / 2).power_cut().hotplug(),
}
