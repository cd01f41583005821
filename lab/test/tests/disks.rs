//! Disks as a guest sees them, and disks that come and go.

use std::fs;
use std::path::Path;

use lab_test::{Disk, GIB, Lab, MIB, Needs, Result, link_by_id, run};

fn attribute(device: &str, name: &str) -> Result<String> {
    let device = device.trim_start_matches("/dev/");
    Ok(fs::read_to_string(format!("/sys/block/{device}/{name}"))?.trim().to_owned())
}

fn disks_have_the_size_the_sectors_and_the_kind_that_were_asked_for(lab: &Lab) -> Result {
    for (position, size, sector, rotational) in
        [(0, 300 * MIB, "512", "0"), (1, GIB, "4096", "0"), (2, GIB, "512", "1")]
    {
        let disk = lab.disk(position);
        assert_eq!(run("blockdev", ["--getsize64", disk])?, size.to_string());
        assert_eq!(attribute(disk, "queue/logical_block_size")?, sector);
        assert_eq!(attribute(disk, "queue/rotational")?, rotational);
    }
    assert_eq!(run("lsblk", ["--nodeps", "--noheadings", "-o", "SERIAL", lab.disk(2)])?, "platters");
    Ok(())
}

fn a_disk_is_plugged_in_appears_by_id_and_is_pulled_out(lab: &Lab) -> Result {
    let (serial, path) = lab.plug(Disk::new(64 * MIB).serial("plugged-in"))?;
    assert_eq!(serial, "plugged-in");
    let link = link_by_id(&serial);
    let link = Path::new(&link);
    let target = lab.wait_for("the link by id", || fs::canonicalize(link).ok())?;
    assert_eq!(target, Path::new(&path));
    run("dd", ["if=/dev/zero", &format!("of={path}"), "bs=1M", "count=1", "oflag=direct"])?;
    lab.unplug(&serial)?;
    lab.wait_for("the link to vanish", || (!link.exists() && !Path::new(&path).exists()).then_some(()))?;
    Ok(())
}

fn each_test_gets_blank_disks(lab: &Lab) -> Result {
    assert_eq!(run("wipefs", ["--noheadings", lab.disk(0)])?, "");
    run("vgcreate", ["left-behind", lab.disk(0)])?;
    run("lvcreate", ["-n", "volume", "-L", "32M", "left-behind"])?;
    Ok(())
}

fn each_test_gets_blank_disks_again(lab: &Lab) -> Result {
    assert_eq!(run("vgs", ["--noheadings"])?, "");
    each_test_gets_blank_disks(lab)
}

fn a_program_of_the_guest_is_not_the_machines(_: &Lab) -> Result {
    assert_eq!(run("hostname", [""; 0])?, "guest");
    assert!(Path::new("/sys/class/misc/device-mapper").exists() || run("modprobe", ["dm_mod"]).is_ok());
    Ok(())
}

lab_test::main! {
    disks_have_the_size_the_sectors_and_the_kind_that_were_asked_for: Needs::disks(1, 300 * MIB)
        .disk(Disk::new(GIB).sector_4096())
        .disk(Disk::new(GIB).rotational().serial("platters")),
    a_disk_is_plugged_in_appears_by_id_and_is_pulled_out: Needs::nothing().hotplug(),
    each_test_gets_blank_disks: Needs::disks(1, GIB),
    each_test_gets_blank_disks_again: Needs::disks(1, GIB),
    a_program_of_the_guest_is_not_the_machines: Needs::nothing().guest(),
}
