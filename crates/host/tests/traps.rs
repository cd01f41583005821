//! What others fell into, and what surprised somebody: each is a test, named after it.

mod stage;

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use lab_test::{Cut, Disk, Fault, GIB, Lab, MIB, Needs, Result, run};
use lvms_host::desired::DeviceClass;
use lvms_host::facts::Facts;
use lvms_host::filesystem::Filesystem;
use lvms_host::names::{LvName, VgName};
use lvms_host::plan::Refusal;
use lvms_host::publish::{Access, PublishError};
use lvms_host::runner::{Intent, Linux, Options};
use lvms_host::units::Bytes;
use lvms_host::volumes::{self, Volumes};
use stage::*;

const BLOCK: Access = Access::Block { read_only: false };

/// Names of volumes as the driver gives them.
const OURS: &str = "0d6b1f6e-6a1e-5f0c-9a5e-0a3c1d5f9b11";

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn a_volume_is_not_formatted_because_its_probe_failed(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    fs::write(at.join("file"), "bytes")?;
    engine.unpublish("v", &at)?;
    // As TopoLVM would have left it: nothing but the bytes tells that it is used.
    for tag in run("lvs", ["--noheadings", "-o", "lv_tags", "vg/v"])?.trim().split(',') {
        run("lvchange", ["-qq", "--deltag", tag, "vg/v"])?;
    }
    // What is there is known, and the volume has its device: nothing but the probe meets the errors.
    let engine = open()?;
    lab.fault(0, Fault::Error)?;
    run("sh", ["-c", "echo 3 > /proc/sys/vm/drop_caches"])?;
    let refused = engine.publish(&volume, &at, &filesystem(Filesystem::Ext4), None);
    lab.fault(0, Fault::None)?;
    assert!(matches!(refused, Err(PublishError::Probe(_))), "{refused:?}");
    publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "bytes");
    engine.unpublish("v", &at)?;
    Ok(())
}

fn thin_clones_and_snapshots_have_no_activation_skip_flag(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let origin = make(&engine, "origin", true, Bytes::mib(64), true)?;
    make_from(&engine, "clone", true, Bytes::mib(64), true, Some(&origin))?;
    let facts = Facts { name: Some("s".into()), snapshot: true, ..Facts::default() };
    engine.snapshot(&class(true)?, &origin, &LvName::parse("moment")?, &facts, None)?;
    let flags = run("lvs", ["--noheadings", "-o", "lv_name,lv_skip_activation", "vg"])?;
    assert!(flags.contains("clone") && flags.contains("moment") && !flags.contains("skip"), "{flags}");
    // Whoever starts the host without us has them all.
    run("vgchange", ["-an", "vg"])?;
    run("vgchange", ["-ay", "vg"])?;
    assert!(Path::new("/dev/vg/clone").exists());
    Ok(())
}

fn a_copy_onto_dirty_extents_writes_zeros_too(lab: &Lab) -> Result {
    fill_with_former_bytes(lab)?;
    let engine = engine(lab)?;
    let origin = make(&engine, "origin", true, Bytes::mib(64), true)?;
    run("sh", ["-c", "echo something | dd of=/dev/vg/origin bs=1M seek=32 conv=notrunc"])?;
    let copy = make_from(&engine, "copy", false, Bytes::mib(64), true, Some(&origin))?;
    let at = publish(&engine, &copy, "copy", &BLOCK)?;
    assert!(has_only_zeros(&at, 0, 32 * MIB)? && has_only_zeros(&at, 33 * MIB, 64 * MIB)?);
    run("cmp", ["/dev/vg/origin", &at.to_string_lossy()])?;
    engine.unpublish("copy", &at)?;
    Ok(())
}

fn a_copy_into_a_pool_that_does_not_zero_writes_zeros_too(lab: &Lab) -> Result {
    fill_with_former_bytes(lab)?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    let pool = "-qq -y --type thin-pool -n pool -L 600m --chunksize 8m -Zn vg";
    run("lvcreate", words(pool))?;
    let engine = open()?;
    let origin = make(&engine, "origin", false, Bytes::mib(64), true)?;
    run("sh", ["-c", "echo something | dd of=/dev/vg/origin bs=1M seek=32 conv=notrunc,fsync"])?;
    make_from(&engine, "copy", true, Bytes::mib(64), true, Some(&origin))?;
    run("cmp", ["/dev/vg/origin", "/dev/vg/copy"])?;
    Ok(())
}

fn thin_snapshots_outlive_their_origin(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let origin = make(&engine, "origin", true, Bytes::mib(64), true)?;
    run("sh", ["-c", "echo bytes | dd of=/dev/vg/origin conv=notrunc,fsync"])?;
    let facts = Facts { name: Some("s".into()), snapshot: true, ..Facts::default() };
    engine.snapshot(&class(true)?, &origin, &LvName::parse("moment")?, &facts, None)?;
    engine.remove(&origin, None)?;
    let restored = make_from(&engine, "restored", true, Bytes::mib(64), true, Some(&path("moment")?))?;
    let at = publish(&engine, &restored, "restored", &BLOCK)?;
    assert_eq!(run("head", ["-c", "5", &at.to_string_lossy()])?, "bytes");
    engine.unpublish("restored", &at)?;
    Ok(())
}

fn a_redundant_volume_is_refused_on_one_disk_and_never_made_without_redundancy(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let mirrored = DeviceClass { options: words("--type=raid1 -m1"), ..class(false)? };
    assert!(!matches!(engine.capacity(&mirrored, &mirrored.options), Ok(capacity) if capacity > Bytes::ZERO));
    let wish = wish(&mirrored, "v", Bytes::mib(64), true)?;
    let refused = engine.create(&wish, None);
    assert!(matches!(refused, Err(volumes::Error::Refused(Refusal::NoSpace { .. }))), "{refused:?}");
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    Ok(())
}

fn capacity_counts_redundancy_and_stripes(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let options = [
        "--type=raid1 -m1 --nosync",
        "--type=raid5 -i2",
        "--type=striped -i2",
        "--type=striped -i3",
        "--contiguous y",
    ];
    // First two disks have equal room, then none.
    for (round, options) in [0, 1].iter().flat_map(|round| options.map(|options| (round, options))) {
        if *round == 1 && !Path::new("/dev/vg/theirs").exists() {
            run("lvcreate", ["-qq", "-y", "-n", "theirs", "-L", "300m", "vg", lab.disk(2)])?;
            engine.look(&VgName::parse("vg")?)?;
        }
        let class = DeviceClass { options: words(options), ..class(false)? };
        let capacity = engine.capacity(&class, &class.options)?;
        let wish = |size: Bytes| wish(&class, "v", size, false);
        let refused = engine.create(&wish(capacity + Bytes(1))?, None);
        assert!(matches!(refused, Err(volumes::Error::Refused(Refusal::NoSpace { .. }))), "{refused:?}");
        engine
            .create(&wish(capacity)?, None)
            .map_err(|error| format!("{options} {round} {capacity}: {error:?}"))?;
        engine.remove(&path("v")?, None)?;
    }
    Ok(())
}

fn a_host_without_udev_and_with_a_read_only_etc_will_do(lab: &Lab) -> Result {
    let script = "cp -a /etc/lvm /run/test/lvm && rm -rf /run/test/lvm/backup /run/test/lvm/archive &&
                  mount --bind /run/test/lvm /etc/lvm && mount -o remount,bind,ro /etc/lvm";
    run("sh", ["-c", script])?;
    run("vgcreate", ["-An", "vg", lab.disk(0)])?;
    let engine = open()?;
    let volume = make(&engine, "v", false, Bytes::mib(64), false)?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    fs::write(at.join("file"), "bytes")?;
    engine.grow(&class(false)?, &volume, Bytes::mib(128), None)?;
    engine.unpublish("v", &at)?;
    engine.remove(&volume, None)?;
    run("umount", ["/etc/lvm"])?;
    Ok(())
}

fn a_smaller_disk_under_the_same_number_gets_its_own_size(lab: &Lab) -> Result {
    let linux = Linux::new(Options::default())?;
    let number = |path: &str| run("lsblk", ["--nodeps", "--noheadings", "-o", "MAJ:MIN", path]);
    let (large, path) = lab.plug(Disk::new(2 * GIB))?;
    let before = number(&path)?;
    linux.lvm(&words("pvs --all"), Intent::Looks)?;
    lab.unplug(&large)?;
    // The kernel gives a number away again when the last who had the disk open has closed it.
    let path = lab.wait_for("a disk with the number of the one before", || {
        let plugged = lab.plug(Disk::new(GIB)).and_then(|(small, path)| {
            let same = number(&path)? == before;
            if !same {
                lab.unplug(&small)?;
            }
            Ok(same.then_some(path))
        });
        plugged.transpose()
    })??;
    linux.lvm(&words(&format!("vgcreate --yes vg {path}")), Intent::Changes)?;
    let size = run("pvs", ["--noheadings", "--nosuffix", "--units", "b", "-o", "dev_size", &path])?;
    assert_eq!(size.trim(), GIB.to_string());
    let taken = run("pvs", ["--noheadings", "--nosuffix", "--units", "b", "-o", "pv_size", &path])?;
    assert!(taken.trim().parse::<u64>()? < GIB, "{taken}");
    Ok(())
}

fn a_group_made_on_a_host_with_a_devices_file_is_there_after_a_boot(lab: &Lab) -> Result {
    let linux = Linux::new(Options::default())?;
    if lab.boots() == 0 {
        linux.lvm(&words(&format!("vgcreate --yes vg {}", lab.disk(0))), Intent::Changes)?;
        run("sync", ["-f", "/state"])?;
        return lab.cut_power(Cut::Kill);
    }
    assert_eq!(run("vgs", ["--noheadings", "-o", "vg_name"])?, "vg");
    Ok(())
}

/// What a tenant may write into a block volume, and what the host would take it for.
const CONTENTS: [(&str, &str); 4] = [
    (
        "linux_raid_member",
        "printf '\\374\\116\\053\\251\\1\\0\\0\\0' | dd of=@ bs=1 seek=4096 conv=notrunc status=none &&
      printf '\\10' | dd of=@ bs=1 seek=4240 conv=notrunc status=none",
    ),
    ("btrfs", "mkfs.btrfs -q -f @"),
    ("LVM2_member", "pvcreate --quiet --yes --config devices/scan_lvs=1 @"),
    ("ext4", "mkfs.ext4 -q -F @"),
];

fn what_is_inside_a_volume_is_ignored_by_the_host(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    engine.runner().shield(&[&VgName::parse("vg")?])?;
    make(&engine, OURS, false, Bytes::mib(320), true)?;
    run("lvcreate", ["-qq", "-y", "-n", "theirs", "-L", "320m", "vg"])?;
    let (ours, theirs) = (format!("/dev/vg/{OURS}"), "/dev/vg/theirs");
    for (kind, command) in CONTENTS {
        for device in [ours.as_str(), theirs] {
            run("wipefs", ["--all", "--quiet", device])?;
            run("sh", ["-c", &command.replace('@', device)])?;
            run("udevadm", ["trigger", "--settle", "--action=change", device])?;
        }
        let known = |device: &str| run("udevadm", ["info", "--query=property", device]);
        let expected = format!("ID_FS_TYPE={kind}");
        assert!(
            known(theirs)?.contains(&expected),
            "the host does not know {kind} at all: {}",
            known(theirs)?
        );
        let told = known(&ours)?;
        assert!(!told.contains("ID_FS_"), "{kind}: {told}");
    }
    let links = run("sh", ["-c", "ls -l /dev/disk/by-uuid/"])?;
    assert!(!links.contains(&run("basename", [&run("readlink", ["-f", &ours])?])?), "{links}");
    Ok(())
}

fn copies_of_metadata_are_pruned_and_those_of_others_are_not(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    make(&engine, "v", false, Bytes::mib(8), false)?;
    let archive = Path::new("/etc/lvm/archive");
    let one = fs::read_dir(archive)?.next().ok_or("LVM keeps no archive")??.path();
    for number in 10_000..10_200 {
        fs::copy(&one, archive.join(format!("vg_{number}-1.vg")))?;
        fs::copy(&one, archive.join(format!("vg2_{number}-1.vg")))?;
    }
    let count = |prefix: &str| -> Result<usize> {
        let names = fs::read_dir(archive)?.collect::<std::io::Result<Vec<_>>>()?;
        Ok(names.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count())
    };
    assert!(count("vg_")? > 200);
    // A driver that starts looks at once.
    let engine = open()?;
    make(&engine, "w", false, Bytes::mib(8), false)?;
    assert_eq!((count("vg_")?, count("vg2_")?), (50, 200));
    Ok(())
}

/// Stands for lvm2's program. While a file tells a number, a command that changes something is killed before its system
/// call `ioctl` of that number, if it comes so far. What it then leaves suspended is noted.
const KILLED: &str = r#"#!/bin/sh
case "$1" in
lvcreate | lvextend | lvremove)
    if [ -e /run/test/kill ]; then
        inject=inject=ioctl:signal=KILL:when=$(cat /run/test/kill)
        strace -D -qq -o /run/test/trace -e trace=ioctl -e "$inject" lvm "$@" && exit
        dmsetup info -c --noheadings -o name,suspended | grep ':Suspended$' > /run/test/left
        kill -9 $$
    fi;;
esac
exec lvm "$@"
"#;

fn suspended() -> Result<String> {
    run("sh", ["-c", "dmsetup info -c --noheadings -o name,suspended | sed -n 's/:Suspended$//p'"])
}

/// Kills the command of a call at each of its steps. Whatever it had suspended goes on, and the same call succeeds.
fn kill_at_each_step(
    what: &str,
    act: impl Fn() -> std::result::Result<(), volumes::Error>,
    then: impl Fn() -> Result,
) -> Result {
    let mut suspending = 0;
    for step in 1..1000 {
        fs::write("/run/test/kill", step.to_string())?;
        let killed = act();
        fs::remove_file("/run/test/kill")?;
        assert_eq!(suspended()?, "", "{what}, killed at step {step}");
        if killed.is_ok() {
            println!("== {what}: killed at {} steps, at {suspending} with a device suspended", step - 1);
            assert!(suspending > 0);
            return then();
        }
        assert!(matches!(killed, Err(volumes::Error::Lvm(_))), "{what}, killed at step {step}: {killed:?}");
        suspending += usize::from(!fs::read_to_string("/run/test/left")?.is_empty());
        act().map_err(|error| format!("{what}, killed at step {step} and repeated: {error}"))?;
        then().map_err(|error| format!("{what}, killed at step {step} and repeated, and then: {error}"))?;
    }
    Err(format!("{what} has no end").into())
}

fn a_command_killed_at_any_step_leaves_nothing_suspended(lab: &Lab) -> Result {
    engine(lab)?;
    let lvm = lab.state().join("lvm");
    fs::write(&lvm, KILLED)?;
    fs::set_permissions(&lvm, fs::Permissions::from_mode(0o755))?;
    let linux = Linux::new(Options { lvm, ..Options::default() })?;
    let engine = Volumes::open(Arc::new(linux), &[&VgName::parse("vg")?])?;
    for thin in [false, true] {
        let name = if thin { "thin" } else { "thick" };
        let (class, moment) = (class(thin)?, path("moment")?);
        let origin = make(&engine, name, thin, Bytes::mib(16), false)?;
        let facts = Facts { name: Some("s".into()), snapshot: true, ..Facts::default() };
        let snapshot = || engine.snapshot(&class, &origin, &moment.volume, &facts, None).map(drop);
        let remove = || engine.remove(&moment, None);
        let is_snapshot = || -> Result {
            assert_eq!(run("lvs", ["--noheadings", "-o", "origin", "vg/moment"])?, name);
            Ok(remove()?)
        };
        kill_at_each_step(&format!("a {name} snapshot"), snapshot, is_snapshot)?;
        if !thin {
            snapshot()?;
            kill_at_each_step("removal of a thick snapshot", remove, || Ok(snapshot()?))?;
            remove()?;
        }
        let size = Cell::new(Bytes::mib(20));
        let grow = || engine.grow(&class, &origin, size.get(), None).map(drop);
        let has_grown = || -> Result {
            let device = format!("/dev/vg/{name}");
            assert_eq!(run("blockdev", ["--getsize64", &device])?, size.get().0.to_string());
            size.set(size.get() + Bytes::mib(4));
            Ok(())
        };
        kill_at_each_step(&format!("growth of a {name} volume"), grow, has_grown)?;
    }
    run("vgck", ["vg"])?;
    Ok(())
}

fn a_disk_that_is_never_ours_and_never_answers_holds_nothing_up(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    // It had a group once: LVM has every reason to read it.
    run("vgcreate", ["dead", lab.disk(1)])?;
    run("mv", [lab.disk(1), "/dev/nbd0"])?;
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    lab.fault(1, Fault::Delay { milliseconds: 3_600_000 })?;
    let went = || -> Result {
        let engine = open()?;
        let volume = make(&engine, "v", false, Bytes::mib(64), true)?;
        engine.grow(&class(false)?, &volume, Bytes::mib(96), None)?;
        let at = publish(&engine, &volume, "v", &BLOCK)?;
        engine.unpublish("v", &at)?;
        engine.remove(&volume, None)?;
        Ok(())
    };
    let went = went();
    lab.fault(1, Fault::None)?;
    run("mv", ["/dev/nbd0", lab.disk(1)])?;
    went
}

lab_test::main! {
    a_command_killed_at_any_step_leaves_nothing_suspended: Needs::disks(1, GIB).guest().rarely(),
    a_disk_that_is_never_ours_and_never_answers_holds_nothing_up: Needs::disks(2, GIB / 4).faults().without_udev().guest(),
    a_volume_is_not_formatted_because_its_probe_failed: Needs::disks(1, GIB).faults().guest(),
    thin_clones_and_snapshots_have_no_activation_skip_flag: Needs::disks(1, GIB),
    a_copy_onto_dirty_extents_writes_zeros_too: Needs::disks(1, GIB).guest(),
    a_copy_into_a_pool_that_does_not_zero_writes_zeros_too: Needs::disks(1, GIB).guest(),
    thin_snapshots_outlive_their_origin: Needs::disks(1, GIB).guest(),
    a_redundant_volume_is_refused_on_one_disk_and_never_made_without_redundancy: Needs::disks(1, GIB),
    capacity_counts_redundancy_and_stripes: Needs::disks(3, GIB).without_udev(),
    a_host_without_udev_and_with_a_read_only_etc_will_do: Needs::disks(1, GIB).without_udev(),
    a_smaller_disk_under_the_same_number_gets_its_own_size: Needs::nothing().hotplug(),
    a_group_made_on_a_host_with_a_devices_file_is_there_after_a_boot: Needs::disks(1, GIB).devices_file().power_cut(),
    what_is_inside_a_volume_is_ignored_by_the_host: Needs::disks(1, 2 * GIB).guest(),
    copies_of_metadata_are_pruned_and_those_of_others_are_not: Needs::disks(1, GIB).guest(),
}
