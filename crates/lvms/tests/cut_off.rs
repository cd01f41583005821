//! Volumes whose making was cut off, by whatever ends LVM's own command or keeps zeros from being finished.

mod driver;

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;

use driver::{Driver, MIB, refused};
use lab_csi::{Access, Code};
use lab_test::{GIB, Lab, Needs, Result, run};

const CLASSES: &str = "
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
";

const EXT4: Access = Access::Filesystem("ext4");

fn what_a_former_volume_left_is_given_to_nobody_though_lvm_was_ended_before_it_wiped_it(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let driver = Driver::start(lab, CLASSES, &[])?;
    let client = &driver.client;
    let create = |name: &str| client.create(name, "thick", 64 * MIB, EXT4, None);
    let id = create("v")?.volume_id;
    let tags = run("lvs", ["--noheadings", "-o", "lv_tags", &format!("vg/{id}")])?;
    client.delete(&id)?;
    let former = create("former")?.volume_id;
    let target = lab.state().join("target");
    client.publish(&former, &target, EXT4)?;
    fs::write(target.join("secret"), "of a former tenant")?;
    client.unpublish(&former, &target)?;
    client.delete(&former)?;

    // As LVM leaves it if it is ended after it has written that the volume is there.
    let mut words = vec!["-qq", "-y", "-Zn", "-Wn", "-L", "64m", "-n", &id];
    words.extend(tags.trim().split(',').flat_map(|tag| ["--addtag", tag]));
    words.push("vg");
    run("lvcreate", words)?;
    let left =
        run("blkid", ["--probe", "--output", "value", "--match-tag", "TYPE", &format!("/dev/vg/{id}")])?;
    assert_eq!(left.trim(), "ext4", "the former volume was elsewhere: nothing is tested");

    refused(create("v"), Code::FailedPrecondition, &[&id, "former volume"]);
    client.delete(&id)?;
    assert_eq!(create("v")?.volume_id, id);
    client.publish(&id, &target, EXT4)?;
    assert!(!target.join("secret").exists());
    // Asked for again, it is what it was.
    assert_eq!(create("v")?.volume_id, id);
    client.unpublish(&id, &target)?;
    client.delete(&id)?;
    Ok(())
}

fn zeros_that_were_begun_go_over_nothing_that_somebody_uses(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let driver = Driver::start(lab, CLASSES, &[])?;
    let client = &driver.client;
    let create = || client.create("v", "thick", 16 * MIB, Access::Block, None);
    let id = create()?.volume_id;
    let (volume, device) = (format!("vg/{id}"), format!("/dev/vg/{id}"));
    // Its zeros were begun, and it was given to its user by somebody to whom that says nothing.
    run("lvchange", ["-qq", "--addtag", "lvms.io/zeroing=0", &volume])?;
    let user = File::options().read(true).write(true).open(&device)?;
    let written = [7; 4096];
    user.write_all_at(&written, 0)?;
    user.sync_all()?;
    let read = |file: &File| -> Result<[u8; 4096]> {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    for answer in [create().map(drop), client.grow(&id, 32 * MIB, Access::Block, None).map(drop)] {
        refused(
            answer,
            Code::FailedPrecondition,
            &["somebody uses it", "lvchange --deltag lvms.io/zeroing=0"],
        );
        assert_eq!(read(&user)?, written);
    }
    drop(user);
    create()?;
    assert_eq!(
        read(&File::open(&device)?)?,
        [0; 4096],
        "nobody used it any more, and it was promised to be empty"
    );
    client.delete(&id)?;
    Ok(())
}

lab_test::main! {
    what_a_former_volume_left_is_given_to_nobody_though_lvm_was_ended_before_it_wiped_it: Needs::disks(1, GIB).guest(),
    zeros_that_were_begun_go_over_nothing_that_somebody_uses: Needs::disks(1, GIB).guest(),
}
