//! Several targets of a volume, and what is on them already.

mod stage;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lab_test::{Fault, GIB, Lab, Needs, Result, fails, run};
use lvms_host::filesystem::Filesystem;
use lvms_host::mount::{self, Difference};
use lvms_host::publish::{Access, PublishError};
use lvms_host::units::Bytes;
use stage::*;

fn two_targets_of_one_volume_have_their_own_flags_in_any_order(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let first = publish(&engine, &volume, "first", &filesystem(Filesystem::Ext4))?;
    fs::write(first.join("file"), "bytes")?;
    engine.unpublish("v", &first)?;
    let ways = [
        (&["ro"][..], &["ro", "relatime"][..]),
        (&[], &["rw", "relatime"]),
        (&["ro", "noatime"], &["ro", "noatime"]),
        (&["noatime"], &["rw", "noatime"]),
        (
            &["nosuid", "nodev", "noexec", "nodiratime"],
            &["rw", "nosuid", "nodev", "noexec", "nodiratime", "relatime"],
        ),
        (&["strictatime", "nosymfollow"], &["rw", "nosymfollow"]),
    ];
    for (one_way, two_way) in ways.iter().flat_map(|one| ways.iter().map(move |two| (one, two))) {
        for (at, (flags, told)) in [("one", one_way), ("two", two_way), ("one", one_way), ("two", two_way)] {
            let (read_only, flags) = (flags.contains(&"ro"), flags.iter().filter(|flag| **flag != "ro"));
            let flags = flags.map(|flag| (*flag).to_owned()).collect();
            // The second time it is there already.
            let at = publish(
                &engine,
                &volume,
                at,
                &Access::Filesystem { kind: Filesystem::Ext4, flags, read_only },
            )?;
            assert_eq!(own_options(&engine, &at)?, *told, "{one_way:?} {two_way:?} {}", at.display());
            assert_eq!(fs::read_to_string(at.join("file"))?, "bytes");
            assert_eq!(fs::write(at.join("new"), "x").is_err(), read_only, "{}", at.display());
        }
        // The one that mounted the device goes first; the other stays.
        engine.unpublish("v", &target("one"))?;
        assert_eq!(own_options(&engine, &target("two"))?, two_way.1);
        engine.unpublish("v", &target("two"))?;
        assert!(!run("cat", ["/proc/mounts"])?.contains("vg-v"));
    }
    let block = make(&engine, "block", false, Bytes::mib(8), true)?;
    for read_only in [true, false] {
        let at = publish(&engine, &block, "block", &Access::Block { read_only })?;
        let access = if read_only { "ro" } else { "rw" };
        assert_eq!(own_options(&engine, &at)?, [access, "relatime"]);
        engine.unpublish("block", &at)?;
    }
    Ok(())
}

/// The options of one mount, as the kernel tells them.
fn own_options(engine: &Engine, target: &Path) -> Result<Vec<String>> {
    let mounts = engine.runner().mounts()?;
    let mounted = mount::at(&mounts, target).last().ok_or("nothing is mounted there")?;
    Ok(mounted.options.clone())
}

fn differing_flags_and_occupied_targets_are_refused_by_name(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let (one, two) = (
        make(&engine, "one", false, Bytes::mib(64), false)?,
        make(&engine, "two", false, Bytes::mib(64), false)?,
    );
    let with = |flags: &[&str]| Access::Filesystem {
        kind: Filesystem::Ext4,
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        read_only: false,
    };
    publish(&engine, &one, "one", &with(&[]))?;
    let differs = engine.publish(&one, &target("else"), &with(&["data=journal"]), None);
    let without = Difference::Without("data=journal".into());
    assert!(matches!(&differs, Err(PublishError::Differs { difference, .. }) if *difference == without));
    let occupied = engine.publish(&two, &target("one"), &with(&[]), None);
    assert!(matches!(occupied, Err(PublishError::Occupied { .. })), "{occupied:?}");
    // This volume, and in another way.
    for access in [filesystem(Filesystem::Xfs), filesystem(Filesystem::Btrfs), read_only(Filesystem::Ext4)] {
        let occupied = engine.publish(&one, &target("one"), &access, None);
        assert!(matches!(occupied, Err(PublishError::Occupied { .. })), "{access:?}: {occupied:?}");
    }
    for flags in [&["data=journal"][..], &["commit=60"], &["nosuid"], &["noatime", "nodev"]] {
        let occupied = engine.publish(&one, &target("one"), &with(flags), None);
        assert!(matches!(occupied, Err(PublishError::Occupied { .. })), "{flags:?}: {occupied:?}");
    }
    publish(&engine, &one, "one", &with(&["data=ordered", "suid"]))?;
    let forbidden = engine.publish(&two, &target("two"), &with(&["loop"]), None);
    assert!(matches!(forbidden, Err(PublishError::Flag(_))));
    let unknown = engine.publish(&two, &target("two"), &with(&["no-such-option"]), None);
    assert!(matches!(unknown, Err(PublishError::System { .. })), "{unknown:?}");
    publish(&engine, &two, "two", &with(&["nosuid,nodev", "data=writeback"]))?;
    let mounted = run("findmnt", ["--noheadings", "--output", "OPTIONS", "/run/test/two"])?;
    for option in ["nosuid", "nodev", "data=writeback"] {
        assert!(mounted.contains(option), "{mounted}");
    }
    Ok(())
}

fn equal_flags_are_equal_however_the_kernel_tells_them(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    for (kind, flags) in [
        (Filesystem::Ext4, &["data=journal", "commit=60", "sync", "barrier=1"][..]),
        (Filesystem::Ext4, &["async", "data=ordered", "commit=5", "nodiscard", "errors=remount-ro"]),
        (Filesystem::Xfs, &["allocsize=64m", "logbsize=256k", "largeio", "uquota"]),
        (Filesystem::Btrfs, &["compress=zstd", "autodefrag", "commit=60"]),
        (Filesystem::Btrfs, &["compress", "discard=sync", "lazytime"]),
    ] {
        let volume = make(&engine, "v", false, Bytes::mib(320), false)?;
        let with = |flags: &[&str]| Access::Filesystem {
            kind,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            read_only: false,
        };
        let one = publish(&engine, &volume, "one", &with(flags))?;
        publish(&engine, &volume, "one", &with(flags))?;
        let two = publish(&engine, &volume, "two", &with(flags))?;
        let differs = engine.publish(&volume, &target("three"), &with(&["commit=7"]), None);
        assert!(matches!(&differs, Err(PublishError::Differs { .. })), "{flags:?}: {differs:?}");
        let differs = engine.publish(&volume, &target("three"), &with(&[]), None);
        let is_default = flags.contains(&"data=ordered");
        let expected = matches!(&differs, Err(PublishError::Differs { difference: Difference::With(_), .. }));
        assert_eq!(expected, !is_default, "{flags:?}: {differs:?}");
        for at in [one, two, target("three")] {
            engine.unpublish("v", &at)?;
        }
        engine.remove(&volume, None)?;
    }
    Ok(())
}

fn a_filesystem_that_is_mounted_in_another_namespace_is_mounted_again(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    // As a container does that outlives its pod.
    let holder = "unshare --mount --propagation private sleep infinity >/dev/null 2>&1 & echo $!";
    let holder = run("sh", ["-c", holder])?;
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    lab.wait_for("another namespace", || (namespace(&holder)? != namespace("self")?).then_some(()))?;
    fs::write(at.join("file"), "bytes")?;
    engine.unpublish("v", &at)?;
    let again = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4));
    run("kill", ["-9", &holder])?;
    assert_eq!(fs::read_to_string(again?.join("file"))?, "bytes");
    engine.unpublish("v", &at)?;
    Ok(())
}

fn what_is_another_s_at_a_path_stays_there(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    let block = make(&engine, "block", false, Bytes::mib(8), true)?;
    let device = publish(&engine, &block, "block", &Access::Block { read_only: false })?;
    let others = |place: &str| target(&format!("others-{place}"));
    run("mount", ["--mkdir", "-t", "tmpfs", "others", &others("mount").to_string_lossy()])?;
    fs::write(others("file"), "kept")?;
    fs::create_dir_all(others("directory").join("in it"))?;
    let number = fs::metadata(lab.disk(0))?.rdev();
    let (major, minor) = (rustix::fs::major(number).to_string(), rustix::fs::minor(number).to_string());
    run("mknod", [&others("disk").to_string_lossy(), "b", &major, &minor])?;
    // Another volume, no volume at all, and nothing that a name could be.
    for name in ["v", "block", "other", "-f", "../../etc", "vg"] {
        for place in [&at, &device, &others("mount"), &others("file"), &others("directory"), &others("disk")]
        {
            if *place == target(name) {
                continue;
            }
            let refused = engine.unpublish(name, place);
            assert!(refused.is_err(), "{name:?} at {}", place.display());
        }
    }
    assert!(mount::at(&engine.runner().mounts()?, &others("mount")).next().is_some());
    assert_eq!(fs::read_to_string(others("file"))?, "kept");
    assert!(others("directory").join("in it").exists() && others("disk").exists());
    // Something of others above ours is in the way, and named.
    run("mount", ["-t", "tmpfs", "others", &at.to_string_lossy()])?;
    let refused = engine.unpublish("v", &at);
    assert!(
        matches!(&refused, Err(PublishError::Occupied { found, .. }) if found == "others (tmpfs)"),
        "{refused:?}"
    );
    run("umount", [&at])?;
    engine.unpublish("v", &at)?;
    engine.unpublish("block", &device)?;
    assert!(!at.exists() && !device.exists());
    run("umount", [&others("mount")])?;
    Ok(())
}

fn a_target_that_another_mount_hides_is_told_and_neither_shown_nor_tried_for_ever(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let block = make(&engine, "block", false, Bytes::mib(8), true)?;
    let (ext4, device) = (filesystem(Filesystem::Ext4), Access::Block { read_only: false });
    let at = publish(&engine, &volume, "pod/v", &ext4)?;
    let node = publish(&engine, &block, "pod/block", &device)?;
    fs::write(at.join("file"), "bytes")?;
    run("mount", ["-t", "tmpfs", "cover", &target("pod").to_string_lossy()])?;
    let told = |answer: std::result::Result<(), PublishError>| {
        let hidden = matches!(&answer, Err(PublishError::Hidden { by, .. })
            if by.contains("cover") && by.ends_with("/run/test/pod"));
        assert!(hidden, "{answer:?}");
    };
    // Whether there is such a place in what covers it, or not.
    for _ in 0..2 {
        told(engine.publish(&volume, &at, &ext4, None));
        told(engine.publish(&block, &node, &device, None));
        told(engine.unpublish("v", &at));
        told(engine.unpublish("block", &node));
        fs::create_dir_all(&at)?;
        fs::write(&node, "")?;
    }
    // Another target shows the volume, and not what hides the first.
    let elsewhere = publish(&engine, &volume, "elsewhere", &ext4)?;
    assert_eq!(fs::read_to_string(elsewhere.join("file"))?, "bytes");
    engine.unpublish("v", &elsewhere)?;
    run("umount", [target("pod")])?;
    engine.publish(&volume, &at, &ext4, None)?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "bytes");
    engine.unpublish("v", &at)?;
    engine.unpublish("block", &node)?;
    assert!(!at.exists() && !node.exists());
    Ok(())
}

fn a_node_of_an_older_topolvm_goes_though_its_number_is_another_s_since_a_boot(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    make(&engine, "other", false, Bytes::mib(8), true)?;
    let kernels = fs::canonicalize("/dev/mapper/vg-other")?;
    let number = fs::metadata(&kernels)?.rdev();
    let (major, minor) = (rustix::fs::major(number).to_string(), rustix::fs::minor(number).to_string());
    let bare = target("bare");
    run("mknod", [&bare.to_string_lossy(), "b", &major, &minor])?;
    engine.unpublish("v", &bare)?;
    assert!(!bare.exists());
    let refused = engine.unpublish("v", &kernels);
    assert!(matches!(refused, Err(PublishError::Occupied { .. })), "{refused:?}");
    assert!(kernels.exists());
    Ok(())
}

fn stacked_mounts_and_dead_disks_are_unpublished(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    // An older driver has mounted it twice.
    run("mount", ["--bind", &at.to_string_lossy(), &at.to_string_lossy()])?;
    engine.unpublish("v", &at)?;
    engine.unpublish("v", &at)?;
    assert!(!at.exists());
    let volume = make(&engine, "dead", false, Bytes::mib(320), false)?;
    let at = publish(&engine, &volume, "dead", &filesystem(Filesystem::Xfs))?;
    fs::write(at.join("file"), "bytes")?;
    run("sync", ["--file-system", &at.to_string_lossy()])?;
    lab.fault(0, Fault::Error)?;
    // An xfs that cannot write its journal is shut down, and whoever looks at the target gets an error.
    fs::write(at.join("file"), "lost").ok();
    fails("sync", ["--file-system", &at.to_string_lossy()])?;
    let looked = lab.wait_for("the target to answer with an error", || fs::metadata(&at).err())?;
    assert_eq!(looked.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{looked}");
    // Who only wants it gone gets that.
    engine.unpublish("dead", &at)?;
    assert!(!run("cat", ["/proc/mounts"])?.contains("vg-dead"));
    lab.fault(0, Fault::None)?;
    Ok(())
}

lab_test::main! {
    two_targets_of_one_volume_have_their_own_flags_in_any_order: Needs::disks(1, GIB).guest(),
    differing_flags_and_occupied_targets_are_refused_by_name: Needs::disks(1, GIB).guest(),
    equal_flags_are_equal_however_the_kernel_tells_them: Needs::disks(1, 2 * GIB).guest(),
    a_filesystem_that_is_mounted_in_another_namespace_is_mounted_again: Needs::disks(1, GIB).guest(),
    what_is_another_s_at_a_path_stays_there: Needs::disks(1, GIB).guest(),
    a_target_that_another_mount_hides_is_told_and_neither_shown_nor_tried_for_ever: Needs::disks(1, GIB).guest(),
    a_node_of_an_older_topolvm_goes_though_its_number_is_another_s_since_a_boot: Needs::disks(1, GIB).guest(),
    stacked_mounts_and_dead_disks_are_unpublished: Needs::disks(1, 2 * GIB).faults().guest(),
}
