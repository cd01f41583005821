//! Disks that fail, that are slow, and that lie.

use std::fs;

use lab_test::{Fault, GIB, Lab, MIB, Needs, Result, fails, run};

fn an_error_under_a_mounted_filesystem_makes_it_fail_and_is_healed(lab: &Lab) -> Result {
    let place = lab.state().join("mount");
    fs::create_dir_all(&place)?;
    let place = place.to_str().ok_or("a path is text")?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-n", "volume", "-L", "512M", "vg"])?;
    run("mkfs.ext4", ["-q", "/dev/vg/volume"])?;
    run("mount", ["/dev/vg/volume", place])?;
    fs::write(format!("{place}/kept"), "kept")?;
    run("sync", ["-f", place])?;

    lab.fault(0, Fault::Error)?;
    let complaint =
        fails("dd", ["if=/dev/zero", &format!("of={place}/lost"), "bs=4096", "count=1", "conv=fsync"])?;
    assert!(complaint.contains("Input/output error") || complaint.contains("Read-only"), "{complaint}");

    lab.fault(0, Fault::None)?;
    run("umount", [place])?;
    run("fsck.ext4", ["-p", "-f", "/dev/vg/volume"]).or_else(|error| {
        // fsck reports what it mended by its exit code 1.
        if error.to_string().contains("exit status: 1:") { Ok(String::new()) } else { Err(error) }
    })?;
    run("mount", ["/dev/vg/volume", place])?;
    assert_eq!(fs::read_to_string(format!("{place}/kept"))?, "kept");
    fs::write(format!("{place}/new"), "new")?;
    run("sync", ["-f", place])?;
    run("umount", [place])?;
    Ok(())
}

/// Reads the first block past all caches.
fn read_directly(disk: &str) -> Result<String> {
    run("dd", [&format!("if={disk}"), "bs=4096", "count=1", "iflag=direct"])
}

fn a_delayed_disk_does_not_answer_until_it_is_healed(lab: &Lab) -> Result {
    lab.fault(0, Fault::Delay { milliseconds: 3_600_000 })?;
    let slow = lab.disk(0).to_owned();
    let reading = std::thread::spawn(move || read_directly(&slow));
    let requests = format!("/sys/block/{}/inflight", lab.disk(0).trim_start_matches("/dev/"));
    lab.wait_for("the read to be on its way", || {
        let waiting = fs::read_to_string(&requests).ok()?;
        (waiting.split_whitespace().next()? != "0").then_some(())
    })?;
    read_directly(lab.disk(1))?;
    assert!(!reading.is_finished(), "the delayed disk has answered");
    lab.fault(0, Fault::None)?;
    reading.join().map_err(|_| "the reader panicked")??;
    Ok(())
}

fn a_disk_that_drops_writes_says_that_all_is_well(lab: &Lab) -> Result {
    let write = |letter: &str| {
        let place = [&format!("of={}", lab.disk(0)), "bs=4096", "count=1", "oflag=direct", "conv=fsync"];
        lab_test::run_with_input("dd", place, letter.repeat(4096).as_bytes())
    };
    write("a")?;
    lab.fault(0, Fault::DropWrites)?;
    write("b")?;
    assert!(read_directly(lab.disk(0))?.starts_with('a'));
    lab.fault(0, Fault::None)?;
    write("c")?;
    assert!(read_directly(lab.disk(0))?.starts_with('c'));
    Ok(())
}

fn a_disk_without_faults_cannot_be_broken_by_mistake(lab: &Lab) -> Result {
    let refusal = lab.fault(1, Fault::Error).err().ok_or("the lab broke a disk that it cannot break")?;
    assert!(refusal.to_string().contains("ask for a disk with faults"), "{refusal}");
    Ok(())
}

lab_test::main! {
    an_error_under_a_mounted_filesystem_makes_it_fail_and_is_healed: Needs::disks(1, GIB).faults(),
    a_delayed_disk_does_not_answer_until_it_is_healed: Needs::disks(2, 64 * MIB).faults(),
    a_disk_that_drops_writes_says_that_all_is_well: Needs::disks(1, 64 * MIB).faults(),
    a_disk_without_faults_cannot_be_broken_by_mistake: Needs::disks(1, 64 * MIB).faults().disk(lab_test::Disk::new(64 * MIB)),
}
