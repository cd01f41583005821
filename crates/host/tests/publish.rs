//! Volumes with filesystems and without, mounted, bound, grown, copied and hidden, on a real kernel.

mod stage;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use lab_test::{Cut, Error, Fault, GIB, Lab, MIB, Needs, Result, fails, run};
use lvms_host::desired::DeviceClass;
use lvms_host::facts::Facts;
use lvms_host::filesystem::{Filesystem, NotMountable};
use lvms_host::mount::{self, Difference};
use lvms_host::names::{LvName, VgName};
use lvms_host::plan::Refusal;
use lvms_host::publish::{Access, PublishError};
use lvms_host::runner::ProbeError;
use lvms_host::units::Bytes;
use lvms_host::volumes;
use stage::*;

fn size_of(target: &Path) -> Result<u64> {
    let blocks = run("stat", ["--file-system", "--format", "%b %S", &target.to_string_lossy()])?;
    let mut numbers = blocks.split(' ').map(|number| number.parse::<u64>());
    Ok(numbers.next().ok_or("no blocks")?? * numbers.next().ok_or("no size")??)
}

fn every_filesystem_is_made_filled_grown_and_kept(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    for kind in Filesystem::ALL {
        for thin in [false, true] {
            let name = format!("{kind}-{thin}");
            let volume = make(&engine, &name, thin, Bytes::mib(320), false)?;
            let at = publish(&engine, &volume, &name, &filesystem(kind))?;
            assert_eq!(fs::metadata(&at)?.mode() & 0o7777, 0o2777, "{name}");
            fs::write(at.join("file"), &name)?;
            // Somebody sets another mode, and it stays.
            run("chmod", ["00750", &at.to_string_lossy()])?;
            engine.unpublish(&name, &at)?;
            assert!(!at.exists());
            publish(&engine, &volume, &name, &filesystem(kind))?;
            // Again is as good.
            publish(&engine, &volume, &name, &filesystem(kind))?;
            assert_eq!(fs::metadata(&at)?.mode() & 0o7777, 0o750, "{name}");
            assert_eq!(fs::read_to_string(at.join("file"))?, name);
            let before = size_of(&at)?;
            let grown = engine.grow(&class(thin)?, &volume, Bytes::mib(640), None)?;
            assert_eq!(grown.size, Bytes::mib(640));
            assert_eq!(engine.grow_published(&volume, &at, None)?, Bytes::mib(640));
            assert!(size_of(&at)? > before + 250 * MIB, "{name}: {before} grew to {}", size_of(&at)?);
            assert_eq!(fs::read_to_string(at.join("file"))?, name);
            engine.unpublish(&name, &at)?;
            engine.remove(&volume, None)?;
        }
    }
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    Ok(())
}

fn a_volume_grown_while_nobody_uses_it_is_grown_at_the_next_mount(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    for kind in Filesystem::ALL {
        let volume = make(&engine, kind.name(), false, Bytes::mib(320), false)?;
        let at = publish(&engine, &volume, "at", &filesystem(kind))?;
        let before = size_of(&at)?;
        engine.unpublish(kind.name(), &at)?;
        engine.grow(&class(false)?, &volume, Bytes::mib(640), None)?;
        publish(&engine, &volume, "at", &filesystem(kind))?;
        assert!(size_of(&at)? > before + 250 * MIB, "{kind}");
        engine.unpublish(kind.name(), &at)?;
    }
    Ok(())
}

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

fn whatever_is_on_a_volume_is_never_formatted(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let cases: [(&str, &str); 5] = [
        ("partitions", "printf 'label: gpt\\n,\\n' | sfdisk --quiet"),
        ("pv", "pvcreate --quiet --yes --config devices/scan_lvs=1"),
        ("luks", "printf 'LUKS\\272\\276\\0\\1' | dd conv=notrunc status=none of="),
        ("ext4", "mkfs.ext4 -q -F"),
        ("swap", "mkswap --quiet"),
    ];
    for (name, command) in cases {
        let volume = make(&engine, name, false, Bytes::mib(320), false)?;
        let device = format!("/dev/vg/{name}");
        let glue = if command.ends_with('=') { "" } else { " " };
        run("sh", ["-c", &format!("{command}{glue}{device}")])?;
        let before = run("sh", ["-c", &format!("head -c 8388608 {device} | sha256sum")])?;
        let refused = engine.publish(&volume, &target(name), &filesystem(Filesystem::Xfs), None);
        assert!(matches!(refused, Err(PublishError::NotMountable { .. })), "{name}: {refused:?}");
        assert_eq!(run("sh", ["-c", &format!("head -c 8388608 {device} | sha256sum")])?, before, "{name}");
        assert!(!target(name).join("lost+found").exists());
    }
    Ok(())
}

fn a_read_only_mount_makes_no_filesystem(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let access = Access::Filesystem { kind: Filesystem::Ext4, flags: Vec::new(), read_only: true };
    let refused = engine.publish(&volume, &target("v"), &access, None);
    assert!(
        matches!(&refused, Err(PublishError::NotMountable { reason: NotMountable::ReadOnly, .. })),
        "{refused:?}"
    );
    fails("blkid", ["--probe", "/dev/vg/v"])?;
    Ok(())
}

fn a_used_volume_whose_filesystem_is_gone_is_not_formatted_again(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    engine.unpublish("v", &at)?;
    run("wipefs", ["--all", "--quiet", "/dev/vg/v"])?;
    let refused = engine.publish(&volume, &at, &filesystem(Filesystem::Ext4), None);
    assert!(matches!(&refused, Err(PublishError::NotMountable { reason: NotMountable::Vanished, .. })));
    Ok(())
}

fn volumes_of_topolvm_are_published_grown_and_removed(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let name = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01";
    // As TopoLVM makes them, formats them and mounts them.
    run("lvcreate", ["-n", name, "-L", "335544320b", "-W", "y", "-y", "vg"])?;
    run("mkfs.xfs", ["-f", "-q", &format!("/dev/vg/{name}")])?;
    let at = target("topolvm");
    run("mount", ["--mkdir", "-o", "nouuid", &format!("/dev/vg/{name}"), &at.to_string_lossy()])?;
    fs::write(at.join("file"), "theirs")?;
    let volume = path(name)?;
    publish(&engine, &volume, "topolvm", &filesystem(Filesystem::Xfs))?;
    engine.grow(&class(false)?, &volume, Bytes::mib(640), None)?;
    engine.grow_published(&volume, &at, None)?;
    assert!(size_of(&at)? > 500 * MIB);
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish(name, &at)?;
    publish(&engine, &volume, "topolvm", &filesystem(Filesystem::Xfs))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish(name, &at)?;
    // A device node of an older one's, and a target that is a bare node.
    let number = engine.runner().device(&volume.mapper_name())?.ok_or("no device")?.number;
    let (major, minor) = (number.major.to_string(), number.minor.to_string());
    fs::create_dir_all("/dev/topolvm")?;
    for node in [format!("/dev/topolvm/{name}"), "/run/test/bare".to_owned()] {
        run("mknod", [&node, "b", &major, &minor])?;
    }
    engine.unpublish(name, Path::new("/run/test/bare"))?;
    assert!(!Path::new("/run/test/bare").exists() && !Path::new("/dev/topolvm").join(name).exists());
    engine.remove(&volume, None)?;
    // Never formatted by anybody: it is ours to format.
    run("lvcreate", ["-n", name, "-L", "64m", "-W", "y", "-y", "vg"])?;
    engine.look(&VgName::parse("vg")?)?;
    publish(&engine, &volume, "topolvm", &filesystem(Filesystem::Ext4))?;
    engine.unpublish(name, &at)?;
    Ok(())
}

fn a_volume_of_ours_that_topolvm_formatted_and_filled_is_kept(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(320), false)?;
    run("wipefs", ["-a", "/dev/vg/v"])?;
    run("mkfs.ext4", ["-F", "-m0", "-q", "/dev/vg/v"])?;
    run("mount", ["--mkdir", "/dev/vg/v", "/run/test/v"])?;
    fs::write("/run/test/v/file", "theirs")?;
    run("umount", ["/run/test/v"])?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish("v", &at)?;
    let another = engine.publish(&volume, &at, &filesystem(Filesystem::Xfs), None);
    assert!(matches!(another, Err(PublishError::NotMountable { reason: NotMountable::Another { .. }, .. })));
    publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish("v", &at)?;
    Ok(())
}

fn copies_of_mounted_volumes_are_mounted_beside_them(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    for kind in Filesystem::ALL {
        let (thick, thin) = (false, true);
        let ways: &[(bool, bool)] = match kind {
            Filesystem::Ext4 => &[(thick, thick), (thick, thin), (thin, thick), (thin, thin)],
            Filesystem::Xfs => &[(thin, thin)],
            Filesystem::Btrfs => &[(thick, thick)],
        };
        let size = if kind == Filesystem::Ext4 { Bytes::mib(64) } else { Bytes::mib(320) };
        for (from, to) in ways.iter().copied() {
            let volume = make(&engine, "origin", from, size, false)?;
            let at = publish(&engine, &volume, "origin", &filesystem(kind))?;
            fs::write(at.join("file"), "then")?;
            run("sync", ["--file-system", &at.to_string_lossy()])?;
            let copy = make_from(&engine, "copy", to, size + Bytes::mib(80), false, Some(&volume))?;
            fs::write(at.join("file"), "now")?;
            let beside = publish(&engine, &copy, "copy", &filesystem(kind))?;
            assert_eq!(fs::read_to_string(beside.join("file"))?, "then", "{kind} {from} {to}");
            assert_eq!(fs::read_to_string(at.join("file"))?, "now", "{kind} {from} {to}");
            fs::write(beside.join("file"), "copy")?;
            assert_eq!(fs::read_to_string(at.join("file"))?, "now", "{kind} {from} {to}");
            engine.unpublish("copy", &beside)?;
            engine.unpublish("origin", &at)?;
            engine.remove(&copy, None)?;
            engine.remove(&volume, None)?;
        }
    }
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    Ok(())
}

fn read_only(kind: Filesystem) -> Access {
    Access::Filesystem { kind, flags: Vec::new(), read_only: true }
}

fn ext4_is_checked_before_it_is_mounted_whoever_may_write(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    fs::write(at.join("file"), "bytes")?;
    engine.unpublish("v", &at)?;
    let checked = || run("sh", ["-c", "dumpe2fs -h /dev/vg/v 2>&1 | grep 'Last checked'"]);
    for access in [filesystem(Filesystem::Ext4), read_only(Filesystem::Ext4)] {
        // As a crash leaves it: not valid, with wrong sums.
        for value in ["lastcheck 20010101", "free_blocks_count 1", "state 0"] {
            run("debugfs", ["-w", "-R", &format!("set_super_value {value}"), "/dev/vg/v"])?;
        }
        assert!(checked()?.contains("2001"), "{}", checked()?);
        publish(&engine, &volume, "v", &access)?;
        assert_eq!(fs::read_to_string(at.join("file"))?, "bytes");
        assert!(!checked()?.contains("2001"), "{access:?}: {}", checked()?);
        engine.unpublish("v", &at)?;
    }
    // What is clean is not checked again.
    run("debugfs", ["-w", "-R", "set_super_value lastcheck 20010101", "/dev/vg/v"])?;
    publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    assert!(checked()?.contains("2001"), "{}", checked()?);
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

fn a_copy_has_its_own_identity_though_its_first_target_is_read_only(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    for kind in Filesystem::ALL {
        let origin = make(&engine, "origin", true, Bytes::mib(320), false)?;
        let at = publish(&engine, &origin, "origin", &filesystem(kind))?;
        fs::write(at.join("file"), "then")?;
        run("sync", ["--file-system", &at.to_string_lossy()])?;
        let copy = make_from(&engine, "copy", true, Bytes::mib(320), false, Some(&origin))?;
        fs::write(at.join("file"), "now")?;
        let beside = publish(&engine, &copy, "copy", &read_only(kind))?;
        assert_eq!(fs::read_to_string(beside.join("file"))?, "then", "{kind}");
        assert!(fs::write(beside.join("file"), "x").is_err(), "{kind}");
        if kind == Filesystem::Btrfs {
            let identity = |name| run("blkid", ["-p", "-o", "value", "-s", "UUID", name]);
            assert_ne!(identity("/dev/vg/origin")?, identity("/dev/vg/copy")?);
        }
        engine.unpublish("copy", &beside)?;
        engine.unpublish("origin", &at)?;
        engine.remove(&copy, None)?;
        engine.remove(&origin, None)?;
    }
    Ok(())
}

fn nothing_is_written_to_a_read_only_volume_that_was_not_unmounted(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    for kind in Filesystem::ALL {
        let origin = make(&engine, "origin", false, Bytes::mib(320), false)?;
        let at = publish(&engine, &origin, "origin", &filesystem(kind))?;
        fs::write(at.join("file"), "bytes")?;
        run("sync", ["--file-system", &at.to_string_lossy()])?;
        // Its journal has something to tell.
        let copy = make_from(&engine, "copy", false, Bytes::mib(320), false, Some(&origin))?;
        engine.unpublish("origin", &at)?;
        run("lvchange", ["-qq", "--permission", "r", "vg/copy"])?;
        let sum = || run("sh", ["-c", "sha256sum < /dev/vg/copy"]);
        let before = sum()?;
        let beside = publish(&engine, &copy, "copy", &read_only(kind))?;
        let options = run("findmnt", ["--noheadings", "--output", "FS-OPTIONS", &beside.to_string_lossy()])?;
        assert!(options.split(',').any(|option| option == "ro"), "{kind}: {options}");
        assert!(fs::read_to_string(beside.join("file")).is_ok_and(|text| text == "bytes"), "{kind}");
        engine.unpublish("copy", &beside)?;
        assert_eq!(sum()?, before, "{kind}");
        engine.remove(&copy, None)?;
        engine.remove(&origin, None)?;
    }
    Ok(())
}

fn what_is_ambivalent_is_neither_mounted_nor_formatted(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let other = make(&engine, "other", false, Bytes::mib(320), false)?;
    let at = publish(&engine, &other, "other", &filesystem(Filesystem::Xfs))?;
    engine.unpublish("other", &at)?;
    let volume = make(&engine, "v", false, Bytes::mib(320), false)?;
    run("mkfs.ext4", ["-q", "-F", "/dev/vg/v"])?;
    // The superblock of an xfs beside that of an ext4: whoever chose one would destroy the other.
    run("dd", ["if=/dev/vg/other", "of=/dev/vg/v", "bs=512", "count=1", "conv=notrunc,fsync"])?;
    let sum = || run("sh", ["-c", "head -c 8388608 /dev/vg/v | sha256sum"]);
    let before = sum()?;
    for kind in Filesystem::ALL {
        let refused = engine.publish(&volume, &target("v"), &filesystem(kind), None);
        let ambivalent = matches!(&refused, Err(PublishError::Probe(ProbeError::Ambivalent(..))));
        assert!(ambivalent, "{kind}: {refused:?}");
    }
    assert_eq!(sum()?, before);
    Ok(())
}

fn thick_snapshots_keep_their_moment_and_hold_their_origin(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(128), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    fs::write(at.join("file"), "then")?;
    run("sync", ["--file-system", &at.to_string_lossy()])?;
    let facts =
        Facts { name: Some("s".into()), snapshot: true, source: Some("volume:v".into()), ..Facts::default() };
    engine.snapshot(&class(false)?, &volume, &LvName::parse("s")?, &facts, None)?;
    engine.snapshot(&class(false)?, &volume, &LvName::parse("s")?, &facts, None)?;
    fs::write(at.join("file"), "now")?;
    run("sync", ["--file-system", &at.to_string_lossy()])?;
    // Neither removed nor grown over its snapshot.
    let removed = engine.remove(&volume, None);
    assert!(matches!(&removed, Err(volumes::Error::Refused(Refusal::HasSnapshots { .. }))), "{removed:?}");
    let grown = engine.grow(&class(false)?, &volume, Bytes::mib(256), None);
    assert!(matches!(&grown, Err(volumes::Error::Refused(Refusal::GrowsOnlyUnused { .. }))), "{grown:?}");
    let restored = make_from(&engine, "r", false, Bytes::mib(128), false, Some(&path("s")?))?;
    let beside = publish(&engine, &restored, "r", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(beside.join("file"))?, "then");
    engine.unpublish("r", &beside)?;
    engine.unpublish("v", &at)?;
    // While nobody uses it, it grows, and keeps its snapshot.
    engine.grow(&class(false)?, &volume, Bytes::mib(256), None)?;
    publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "now");
    engine.unpublish("v", &at)?;
    engine.remove(&path("s")?, None)?;
    engine.remove(&volume, None)?;
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

fn a_full_pool_and_a_lost_disk_are_told(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let thin = make(&engine, "thin", true, Bytes::gib(1), false)?;
    assert!(!engine.condition(&thin).abnormal, "{:?}", engine.condition(&thin));
    let before = engine.capacity(&class(true)?, &[])?;
    assert!(before > Bytes::gib(5));
    let _ = run("dd", ["if=/dev/urandom", "of=/dev/vg/thin", "bs=1M", "count=670", "oflag=direct"]);
    // Above 90 % nothing new is admitted, and no capacity is told.
    let refused = engine.capacity(&class(true)?, &[]);
    assert!(matches!(refused, Err(Refusal::PoolFull { .. })), "{refused:?}");
    let made = make(&engine, "more", true, Bytes::mib(4), false);
    assert!(made.is_err_and(|error: Error| error.to_string().contains("too full")));
    let _ = run("dd", ["if=/dev/urandom", "of=/dev/vg/thin", "bs=1M", "count=900", "oflag=direct,nonblock"]);
    let thick = make(&engine, "thick", false, Bytes::mib(64), false)?;
    lab.unplug(lab.serial(0))?;
    let condition = lab.wait_for("the condition to be abnormal", || {
        let condition = engine.condition(&thick);
        condition.abnormal.then_some(condition)
    })?;
    assert!(condition.message.contains("missing"), "{}", condition.message);
    lab.plug_back(lab.serial(0))?;
    Ok(())
}

fn a_filesystem_that_has_just_grown_is_mounted_after_a_power_cut(lab: &Lab) -> Result {
    let kinds = Filesystem::ALL.map(|kind| (kind, format!("grown-{kind}")));
    if lab.boots() == 0 {
        let engine = engine(lab)?;
        for (kind, name) in &kinds {
            let volume = make(&engine, name, false, Bytes::mib(320), false)?;
            let at = publish(&engine, &volume, name, &filesystem(*kind))?;
            // What comes later lies behind the former end.
            let filler = at.join("filler").to_string_lossy().into_owned();
            run("sh", ["-c", &format!("until fallocate -l ${{n:=320}}M {filler}; do n=$((n - 4)); done")])?;
            engine.grow(&class(false)?, &volume, Bytes::mib(448), None)?;
            engine.grow_published(&volume, &at, None)?;
            let file = at.join("file").to_string_lossy().into_owned();
            run("dd", ["if=/dev/zero", &format!("of={file}"), "bs=1M", "count=32", "conv=fsync"])?;
        }
        run("sync", ["-f", "/state"])?;
        return lab.cut_power(Cut::Kill);
    }
    let engine = open()?;
    for (kind, name) in &kinds {
        let at = publish(&engine, &path(name)?, name, &filesystem(*kind))?;
        assert_eq!(fs::metadata(at.join("file"))?.len(), 32 * MIB, "{kind}");
        assert!(size_of(&at)? > 340 * MIB, "{kind} has {}", size_of(&at)?);
    }
    Ok(())
}

lab_test::main! {
    a_filesystem_that_has_just_grown_is_mounted_after_a_power_cut: Needs::disks(1, 3 * GIB).power_cut(),
    every_filesystem_is_made_filled_grown_and_kept: Needs::disks(1, 2 * GIB).guest(),
    a_volume_grown_while_nobody_uses_it_is_grown_at_the_next_mount: Needs::disks(1, 3 * GIB).guest(),
    two_targets_of_one_volume_have_their_own_flags_in_any_order: Needs::disks(1, GIB).guest(),
    differing_flags_and_occupied_targets_are_refused_by_name: Needs::disks(1, GIB).guest(),
    equal_flags_are_equal_however_the_kernel_tells_them: Needs::disks(1, 2 * GIB).guest(),
    block_devices_never_show_former_bytes: Needs::disks(1, 1400 * MIB).without_udev(),
    raid_volumes_in_use_as_block_devices_grow_and_never_show_former_bytes: Needs::disks(6, 64 * MIB).without_udev(),
    a_published_block_device_is_in_use_though_nobody_has_it_open: Needs::disks(1, GIB).guest(),
    whatever_is_on_a_volume_is_never_formatted: Needs::disks(1, 3 * GIB).guest(),
    a_read_only_mount_makes_no_filesystem: Needs::disks(1, GIB).guest(),
    a_used_volume_whose_filesystem_is_gone_is_not_formatted_again: Needs::disks(1, GIB).guest(),
    volumes_of_topolvm_are_published_grown_and_removed: Needs::disks(1, 2 * GIB).guest(),
    a_volume_of_ours_that_topolvm_formatted_and_filled_is_kept: Needs::disks(1, 2 * GIB).guest(),
    copies_of_mounted_volumes_are_mounted_beside_them: Needs::disks(1, 2 * GIB).guest(),
    ext4_is_checked_before_it_is_mounted_whoever_may_write: Needs::disks(1, GIB).guest(),
    a_filesystem_that_is_mounted_in_another_namespace_is_mounted_again: Needs::disks(1, GIB).guest(),
    a_copy_has_its_own_identity_though_its_first_target_is_read_only: Needs::disks(1, GIB).guest(),
    nothing_is_written_to_a_read_only_volume_that_was_not_unmounted: Needs::disks(1, 2 * GIB).guest(),
    what_is_ambivalent_is_neither_mounted_nor_formatted: Needs::disks(1, 2 * GIB).guest(),
    thick_snapshots_keep_their_moment_and_hold_their_origin: Needs::disks(1, 2 * GIB).guest(),
    stacked_mounts_and_dead_disks_are_unpublished: Needs::disks(1, 2 * GIB).faults().guest(),
    a_full_pool_and_a_lost_disk_are_told: Needs::disks(1, GIB).hotplug().guest(),
}
