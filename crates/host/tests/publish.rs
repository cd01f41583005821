//! Volumes with filesystems and without, mounted, bound, grown, copied and hidden, on a real kernel.

mod stage;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use lab_test::{Cut, Error, GIB, Lab, MIB, Needs, Result, fails, run};
use lvms_host::facts::Facts;
use lvms_host::filesystem::{Filesystem, NotMountable};
use lvms_host::names::LvName;
use lvms_host::plan::Refusal;
use lvms_host::publish::{Access, PublishError};
use lvms_host::runner::ProbeError;
use lvms_host::units::Bytes;
use lvms_host::volumes;
use stage::*;

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
            if kind == Filesystem::Xfs {
                // That it has grown is seen, or each further call would suspend it and grow it again.
                let device = Path::new("/dev/mapper").join(volume.mapper_name());
                let told = engine.runner().superblock(&device, kind)?;
                let size = told.ok_or("it has no superblock")?.size;
                assert!(size + Bytes::mib(1) > Bytes::mib(640), "{name}: its superblock says {size:?}");
            }
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

fn what_wipefs_alone_finds_is_not_formatted(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(320), false)?;
    let directory = lab.state().join("first");
    fs::create_dir(&directory)?;
    let wipefs = directory.join("wipefs");
    fs::write(&wipefs, "#!/bin/sh\necho ext4\n")?;
    fs::set_permissions(&wipefs, fs::Permissions::from_mode(0o755))?;
    // Over the host's own: programs are found as the host finds them.
    let own = run("sh", ["-c", "command -v wipefs"])?;
    run("mount", ["--bind", &wipefs.to_string_lossy(), &own])?;
    let sum = || run("sh", ["-c", "head -c 8388608 /dev/vg/v | sha256sum"]);
    let before = sum()?;
    for kind in Filesystem::ALL {
        let refused = engine.publish(&volume, &target("v"), &filesystem(kind), None);
        let ambivalent = matches!(&refused, Err(PublishError::Probe(ProbeError::Ambivalent(_, why))) if why.contains("ext4"));
        assert!(ambivalent, "{kind}: {refused:?}");
    }
    assert_eq!(sum()?, before);
    run("umount", [&own])?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    engine.unpublish("v", &at)?;
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
    whatever_is_on_a_volume_is_never_formatted: Needs::disks(1, 3 * GIB).guest(),
    a_read_only_mount_makes_no_filesystem: Needs::disks(1, GIB).guest(),
    a_used_volume_whose_filesystem_is_gone_is_not_formatted_again: Needs::disks(1, GIB).guest(),
    copies_of_mounted_volumes_are_mounted_beside_them: Needs::disks(1, 2 * GIB).guest(),
    ext4_is_checked_before_it_is_mounted_whoever_may_write: Needs::disks(1, GIB).guest(),
    a_copy_has_its_own_identity_though_its_first_target_is_read_only: Needs::disks(1, GIB).guest(),
    nothing_is_written_to_a_read_only_volume_that_was_not_unmounted: Needs::disks(1, 2 * GIB).guest(),
    what_is_ambivalent_is_neither_mounted_nor_formatted: Needs::disks(1, 2 * GIB).guest(),
    what_wipefs_alone_finds_is_not_formatted: Needs::disks(1, 2 * GIB).guest(),
    thick_snapshots_keep_their_moment_and_hold_their_origin: Needs::disks(1, 2 * GIB).guest(),
    a_full_pool_and_a_lost_disk_are_told: Needs::disks(1, GIB).hotplug().guest(),
}
