//! Volumes as block devices: who may see which bytes.

mod stage;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use lab_test::{Error, GIB, Lab, MIB, Needs, Result, run};
use lvms_host::desired::DeviceClass;
use lvms_host::facts::Facts;
use lvms_host::filesystem::Filesystem;
use lvms_host::names::LvName;
use lvms_host::plan::Refusal;
use lvms_host::publish::{Access, PublishError};
use lvms_host::units::Bytes;
use lvms_host::volumes;
use stage::*;

fn block_devices_never_show_former_bytes(lab: &Lab) -> Result {
    fill_with_former_bytes(lab)?;
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), true)?;
    let block = Access::Block { read_only: false };
    let at = publish(&engine, &volume, "v", &block)?;
    publish(&engine, &volume, "v", &block)?;
    assert!(fs::metadata(&at)?.file_type().is_block_device());
    let number = engine.runner().device("vg-v")?.ok_or("no device")?.number;
    let published = fs::metadata(&at)?.rdev();
    assert_eq!((rustix::fs::major(published), rustix::fs::minor(published)), (number.major, number.minor));
    let mounts = run("cat", ["/proc/mounts"])?;
    assert_eq!(mounts.lines().filter(|line| line.contains("/run/test/v")).count(), 1, "mounted twice");
    let occupied = engine.publish(&volume, &at, &Access::Block { read_only: true }, None);
    assert!(matches!(occupied, Err(PublishError::Occupied { .. })), "{occupied:?}");
    assert!(has_only_zeros(&at, 0, 64 * MIB)?);
    run("dd", ["if=/dev/urandom", &format!("of={}", at.display()), "bs=1M", "count=64", "oflag=direct"])?;
    let sum = |count: u64| run("sh", ["-c", &format!("head -c {count} {} | sha256sum", at.display())]);
    let before = sum(64 * MIB)?;
    // While it is in use, new extents are zeroed before anybody sees them.
    let grown = engine.grow(&class(false)?, &volume, Bytes::mib(128), None)?;
    assert_eq!(grown.size, Bytes::mib(128));
    assert_eq!(sum(64 * MIB)?, before);
    assert!(has_only_zeros(&at, 64 * MIB, 128 * MIB)?);
    assert_eq!(
        run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?.split_whitespace().count(),
        2,
        "room is left"
    );
    engine.unpublish("v", &at)?;
    // While it is not, they are zeroed after.
    engine.grow(&class(false)?, &volume, Bytes::mib(192), None)?;
    publish(&engine, &volume, "v", &block)?;
    assert!(has_only_zeros(&at, 64 * MIB, 192 * MIB)?);
    engine.unpublish("v", &at)?;
    // A growth that was marked and came to nothing keeps nobody from it, and leaves nothing that could be zeroed later.
    run("lvchange", ["-qq", "--addtag", "lvms.io/zeroing=201326592", "vg/v"])?;
    publish(&engine, &volume, "v", &block)?;
    assert!(!run("lvs", ["--noheadings", "-o", "lv_tags", "vg/v"])?.contains("zeroing"));
    engine.unpublish("v", &at)?;
    run("lvchange", ["-qq", "--addtag", "lvms.io/zeroing=134217728", "vg/v"])?;
    let refused = engine.publish(&volume, &at, &block, None);
    assert!(matches!(refused, Err(PublishError::Unfinished(_))), "{refused:?}");
    engine.grow(&class(false)?, &volume, Bytes::mib(192), None)?;
    // One made for a filesystem was never zeroed.
    let other = make(&engine, "other", false, Bytes::mib(64), false)?;
    let refused = engine.publish(&other, &target("other"), &block, None);
    assert!(matches!(refused, Err(PublishError::NotZeroed(_))));
    // Nor is it zeroed by having been used: most of it nobody has written.
    let at = publish(&engine, &other, "other", &filesystem(Filesystem::Ext4))?;
    engine.unpublish("other", &at)?;
    let refused = engine.publish(&other, &target("other"), &block, None);
    assert!(matches!(refused, Err(PublishError::NotZeroed(_))), "{refused:?}");
    let refused = make_from(&engine, "of-other", false, Bytes::mib(64), true, Some(&other));
    assert!(refused.is_err_and(|error: Error| error.to_string().contains("made for a filesystem")));
    // One of TopoLVM's is a block device if its user says so.
    let theirs = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01";
    run("lvcreate", ["-qq", "-n", theirs, "-L", "16m", "-W", "y", "-y", "vg"])?;
    let at = publish(&engine, &path(theirs)?, "theirs", &block)?;
    engine.grow(&class(false)?, &path(theirs)?, Bytes::mib(32), None)?;
    assert!(has_only_zeros(&at, 16 * MIB, 32 * MIB)?);
    engine.unpublish(theirs, &at)?;
    engine.grow(&class(false)?, &path(theirs)?, Bytes::mib(48), None)?;
    publish(&engine, &path(theirs)?, "theirs", &block)?;
    assert!(has_only_zeros(&at, 16 * MIB, 48 * MIB)?);
    engine.unpublish(theirs, &at)?;
    // A copy is as long as asked for, and zero behind its source.
    let copy = make_from(&engine, "copy", false, Bytes::mib(256), true, Some(&volume))?;
    let at = publish(&engine, &copy, "copy", &block)?;
    assert_eq!(run("sh", ["-c", &format!("head -c {} {} | sha256sum", 64 * MIB, at.display())])?, before);
    assert!(has_only_zeros(&at, 64 * MIB, 256 * MIB)?);
    engine.unpublish("copy", &at)?;
    Ok(())
}

fn raid_volumes_in_use_as_block_devices_grow_and_never_show_former_bytes(lab: &Lab) -> Result {
    fill_with_former_bytes(lab)?;
    run("vgcreate", ["vg"].into_iter().chain(lab.disks().iter().map(String::as_str)))?;
    let engine = open()?;
    let block = Access::Block { read_only: false };
    for options in [
        &["--type=raid1", "-m1"][..],
        &["--type=raid10", "-i2", "-m1"],
        &["--type=raid5", "-i2"],
        &["--type=raid6", "-i3"],
    ] {
        let words = options.iter().map(|option| (*option).to_owned()).collect();
        let class = DeviceClass { options: words, ..class(false)? };
        let wish = wish(&class, "v", Bytes::mib(24), true)?;
        engine.create(&wish, None)?;
        let volume = path("v")?;
        let at = publish(&engine, &volume, "v", &block)?;
        let images = || -> Result<Vec<String>> {
            let report = run(
                "pvs",
                ["--segments", "--noheadings", "--sort", "lv_name,pv_name", "-o", "lv_name,pv_name"],
            )?;
            let mut images: Vec<String> =
                report.lines().filter(|line| line.contains("_rimage_")).map(str::to_owned).collect();
            images.dedup();
            Ok(images)
        };
        let before_growth = images()?;
        run("dd", ["if=/dev/urandom", &format!("of={}", at.display()), "bs=1M", "count=24", "oflag=direct"])?;
        let sum = || run("sh", ["-c", &format!("head -c {} {} | sha256sum", 24 * MIB, at.display())]);
        let before = sum()?;
        let user = fs::File::open(&at)?;
        assert_eq!(engine.grow(&class, &volume, Bytes::mib(48), None)?.size, Bytes::mib(48), "{options:?}");
        drop(user);
        assert_eq!(sum()?, before, "{options:?}");
        assert!(has_only_zeros(&at, 24 * MIB, 48 * MIB)?, "{options:?}");
        assert_eq!(images()?, before_growth, "{options:?}: each image is on its own disk");
        engine.unpublish("v", &at)?;
        engine.remove(&volume, None)?;
        assert_eq!(run("lvs", ["--noheadings", "vg"])?, "", "{options:?}");
    }
    Ok(())
}

fn a_published_block_device_is_in_use_though_nobody_has_it_open(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), true)?;
    let at = publish(&engine, &volume, "v", &Access::Block { read_only: false })?;
    let facts = Facts { name: Some("s".into()), snapshot: true, ..Facts::default() };
    engine.snapshot(&class(false)?, &volume, &LvName::parse("s")?, &facts, None)?;
    let bare = make(&engine, "bare", false, Bytes::mib(4), true)?;
    let given = publish(&engine, &bare, "bare", &Access::Block { read_only: false })?;
    let refused = engine.remove(&bare, None);
    assert!(matches!(refused, Err(volumes::Error::Refused(Refusal::Published { .. }))), "{refused:?}");
    engine.unpublish("bare", &given)?;
    engine.remove(&bare, None)?;
    // To grow it, its device would have to go away under whoever may open it.
    let refused = engine.grow(&class(false)?, &volume, Bytes::mib(128), None);
    assert!(matches!(refused, Err(volumes::Error::Refused(Refusal::GrowsOnlyUnused { .. }))), "{refused:?}");
    engine.unpublish("v", &at)?;
    assert_eq!(engine.grow(&class(false)?, &volume, Bytes::mib(128), None)?.size, Bytes::mib(128));
    Ok(())
}

fn a_bare_node_of_another_boot_gives_its_place_to_the_block_device(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), true)?;
    let other = make(&engine, "other", false, Bytes::mib(4), true)?;
    let block = Access::Block { read_only: false };
    let at = publish(&engine, &volume, "v", &block)?;
    let ours = fs::metadata(&at)?.rdev();
    let others = engine.runner().device(&other.mapper_name())?.ok_or("no device")?.number;
    let node = |major: u32, minor: u32| -> Result {
        engine.unpublish("v", &at)?;
        run("mknod", [&at.to_string_lossy(), "b", &major.to_string(), &minor.to_string()])?;
        Ok(())
    };
    for minor in [others.minor, 4242] {
        node(others.major, minor)?;
        publish(&engine, &volume, "v", &block)?;
        assert_eq!(fs::metadata(&at)?.rdev(), ours);
    }
    // What device-mapper has never dealt is nobody's leftover.
    let disk = fs::metadata(lab.disk(0))?.rdev();
    node(rustix::fs::major(disk), rustix::fs::minor(disk))?;
    let refused = engine.publish(&volume, &at, &block, None);
    assert!(matches!(refused, Err(PublishError::Occupied { .. })), "{refused:?}");
    assert_eq!(fs::metadata(&at)?.rdev(), disk);
    Ok(())
}

lab_test::main! {
    a_bare_node_of_another_boot_gives_its_place_to_the_block_device: Needs::disks(1, GIB).guest(),
    block_devices_never_show_former_bytes: Needs::disks(1, 1400 * MIB).without_udev(),
    raid_volumes_in_use_as_block_devices_grow_and_never_show_former_bytes: Needs::disks(6, 64 * MIB).without_udev(),
    a_published_block_device_is_in_use_though_nobody_has_it_open: Needs::disks(1, GIB).guest(),
}
