//! What others do is noticed, and snapshots are extended before they overflow.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lab_test::{GIB, Lab, Needs, Result, run};
use lvms_host::attention;
use lvms_host::desired::{Desired, DeviceClass, lvmd};
use lvms_host::dm::{Control, PoolState};
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory::Kind;
use lvms_host::names::{LvName, VgName, VolumePath};
use lvms_host::plan::volume::Wish;
use lvms_host::runner::{Linux, Options, Runner};
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

fn desired() -> Result<Arc<Desired>> {
    desired_by("[{name: thick, volume-group: vg, spare-gb: 0}]")
}

fn desired_by(classes: &str) -> Result<Arc<Desired>> {
    let read = lvmd::read(&format!("device-classes: {classes}"));
    Ok(Arc::new(read.map_err(|mistakes| format!("{mistakes:?}"))?.desired))
}

fn start(lab: &Lab) -> Result<Arc<Volumes<Linux>>> {
    run("vgcreate", ["vg", lab.disk(0)])?;
    follow()
}

fn follow() -> Result<Arc<Volumes<Linux>>> {
    let volumes = Volumes::open(Arc::new(Linux::new(Options::default())?), &[&VgName::parse("vg")?])?;
    let desired = desired()?;
    attention::follow(&volumes, move || Arc::clone(&desired))?;
    Ok(volumes)
}

fn path(name: &str) -> Result<VolumePath> {
    Ok(VolumePath { group: VgName::parse("vg")?, volume: LvName::parse(name)? })
}

fn wish(class: &DeviceClass) -> Result<Wish<'_>> {
    Ok(Wish {
        name: LvName::parse("v")?,
        class,
        options: Vec::new(),
        size: Bytes::mib(200),
        limit: None,
        facts: Facts { name: Some("v".into()), ..Facts::default() },
        source: None,
    })
}

fn what_an_administrator_does_is_noticed(lab: &Lab) -> Result {
    let volumes = start(lab)?;
    let mut watch = volumes.watch();
    run("lvcreate", ["-qq", "-y", "-n", "theirs", "-L", "8m", "vg"])?;
    let theirs = path("theirs")?;
    lab.wait_for("the new volume", || volumes.inventory().volume(&theirs).map(|volume| volume.size))?;
    assert!(watch.has_changed()?);
    watch.mark_unchanged();
    run("lvchange", ["--addtag", "theirs", "vg/theirs"])?;
    lab.wait_for("the new tag", || volumes.inventory().volume(&theirs)?.has_tag("theirs").then_some(()))?;
    run("lvremove", ["-qq", "-y", "vg/theirs"])?;
    lab.wait_for("the volume to be gone", || volumes.inventory().volume(&theirs).is_none().then_some(()))?;
    Ok(())
}

/// A volume, and a snapshot of it that has only the least store: while it is made, the group has no more room.
fn with_least_store(volumes: &Arc<Volumes<Linux>>, wish: &Wish<'_>) -> Result<VolumePath> {
    volumes.create(wish, None)?;
    run("lvcreate", ["-qq", "-y", "-n", "filler", "-L", "700m", "vg"])?;
    let facts =
        Facts { name: Some("s".into()), snapshot: true, source: Some("v".into()), ..Facts::default() };
    volumes.snapshot(wish.class, &wish.path(), &LvName::parse("s")?, &facts, None)?;
    run("lvremove", ["-qq", "-y", "vg/filler"])?;
    path("s")
}

fn a_snapshot_is_extended_before_it_overflows(lab: &Lab) -> Result {
    let volumes = start(lab)?;
    let desired = desired()?;
    let snapshot = with_least_store(&volumes, &wish(&desired.classes[0])?)?;
    is_extended(lab, &volumes, &snapshot)
}

fn a_snapshot_is_extended_though_its_class_is_gone(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let volumes = Volumes::open(Arc::new(Linux::new(Options::default())?), &[&VgName::parse("vg")?])?;
    let (classes, followed) = watch::channel(desired()?);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    attention::follow(&volumes, move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Arc::clone(&followed.borrow())
    })?;
    let with_class = desired()?;
    let snapshot = with_least_store(&volumes, &wish(&with_class.classes[0])?)?;
    classes.send_replace(Arc::default());
    // Each time its groups are woken with what it has been told.
    let before = asked.load(Ordering::Relaxed);
    lab.wait_for("all to take notice", || (asked.load(Ordering::Relaxed) > before + 5).then_some(()))?;
    is_extended(lab, &volumes, &snapshot)
}

fn a_snapshot_keeps_its_moment_though_its_origin_is_written_at_once_from_end_to_end(lab: &Lab) -> Result {
    let volumes = start(lab)?;
    let desired = desired()?;
    let checksum = |volume: &str| {
        run("sh", ["-c", &format!("dd if=/dev/vg/{volume} bs=1M iflag=direct status=none | sha256sum")])
    };
    volumes.create(&wish(&desired.classes[0])?, None)?;
    run("dd", ["if=/dev/urandom", "of=/dev/vg/v", "bs=1M", "count=200", "oflag=direct"])?;
    let before = checksum("v")?;
    let facts =
        Facts { name: Some("s".into()), snapshot: true, source: Some("v".into()), ..Facts::default() };
    volumes.snapshot(&desired.classes[0], &path("v")?, &LvName::parse("s")?, &facts, None)?;
    let size = || run("lvs", ["--noheadings", "-o", "lv_size", "vg/s"]);
    let first = size()?;
    run("dd", ["if=/dev/urandom", "of=/dev/vg/v", "bs=1M", "count=200", "oflag=direct"])?;
    assert_eq!(checksum("s")?, before);
    assert_ne!(checksum("v")?, before);
    // It had room for all from the beginning, and LVM would make it no larger.
    assert_eq!(size()?, first);
    Ok(())
}

fn a_snapshot_that_others_activate_is_extended_too(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "-n", "v", "-L", "200m", "vg"])?;
    run("lvcreate", ["-qq", "-y", "-s", "-n", "s", "-L", "40m", "vg/v"])?;
    run("lvchange", ["-qq", "-y", "-an", "vg/v"])?;
    let volumes = follow()?;
    let snapshot = path("s")?;
    assert!(!volumes.inventory().volume(&snapshot).ok_or("no snapshot")?.active);
    run("lvchange", ["-qq", "-ay", "vg/v"])?;
    is_extended(lab, &volumes, &snapshot)
}

/// Writes more to the origin `v` than the first store of its snapshot holds.
fn is_extended(lab: &Lab, volumes: &Volumes<Linux>, snapshot: &VolumePath) -> Result {
    let store = || match volumes.inventory().volume(snapshot).map(|volume| volume.kind.clone()) {
        Some(Kind::Cow { store, .. }) => Some(store),
        _ => None,
    };
    let first = store().ok_or("no snapshot")?;
    // In pieces that leave time to extend it.
    for piece in 0..10 {
        let before = store().ok_or("no snapshot")?;
        let seek = format!("seek={}", piece * 10);
        run("dd", ["if=/dev/urandom", "of=/dev/vg/v", "bs=1M", "count=10", &seek, "oflag=direct"])?;
        let fill = || match volumes.runner().cow(snapshot) {
            Ok(Some(lvms_host::dm::Cow::Valid(fill))) => Some(fill.percent()),
            _ => None,
        };
        lab.wait_for("the store to have room", || {
            let fill = fill()?;
            (fill < 70.0 || store() > Some(before)).then_some(())
        })?;
    }
    let last = store().ok_or("no snapshot")?;
    assert!(last >= first + Bytes::mib(60), "{first} became {last}");
    Ok(())
}

fn a_pool_that_is_out_of_room_is_told(lab: &Lab) -> Result {
    let volumes = start(lab)?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "40m", "vg"])?;
    run("lvchange", ["-qq", "--errorwhenfull", "y", "vg/pool"])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin", "--thinpool", "pool", "-n", "thin", "-V", "100m", "vg"])?;
    let (pool, thin) = (path("pool")?, path("thin")?);
    lab.wait_for("the pool and its volume", || volumes.inventory().volume(&thin).map(drop))?;
    let mut watch = volumes.watch();
    watch.mark_unchanged();
    let written = run("dd", ["if=/dev/urandom", "of=/dev/vg/thin", "bs=1M", "count=60", "oflag=direct"]);
    assert!(written.is_err(), "the pool has room for what it has not");
    // LVM has not changed anything.
    lab.wait_for("whoever watches to be told", || {
        watch.has_changed().is_ok_and(|changed| changed).then_some(())
    })?;
    let state = volumes.runner().pool(&pool)?.ok_or("the pool is not active")?.state;
    assert_eq!(state, PoolState::OutOfData);
    Ok(())
}

/// Stands for lvm2's program: a command that makes a volume in `a` waits while there is a file `hold`.
const LVM: &str = r#"#!/bin/sh
case "$*" in
lvcreate*' a')
    while [ -e /run/test/hold ]; do touch /run/test/held; sleep 0.1; done;;
esac
exec /sbin/lvm "$@"
"#;

fn a_group_in_which_a_command_hangs_keeps_nobody_from_noticing_others(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let lvm = lab.state().join("lvm");
    fs::write(&lvm, LVM)?;
    fs::set_permissions(&lvm, fs::Permissions::from_mode(0o755))?;
    let options = Options { lvm, change_limit: Duration::from_secs(3600), ..Options::default() };
    let (a, b) = (VgName::parse("a")?, VgName::parse("b")?);
    let volumes = Volumes::open(Arc::new(Linux::new(options)?), &[&a, &b])?;
    let desired = desired_by(
        "[{name: a, volume-group: a, spare-gb: 0, default: true}, {name: b, volume-group: b, spare-gb: 0}]",
    )?;
    let followed = Arc::clone(&desired);
    attention::follow(&volumes, move || Arc::clone(&followed))?;
    let wish = wish(&desired.classes[0])?;
    fs::write("/run/test/hold", "")?;
    std::thread::scope(|scope| -> Result {
        let made = scope.spawn(|| volumes.create(&wish, None));
        let noticed = || -> Result {
            lab.wait_for("a command to hang", || Path::new("/run/test/held").exists().then_some(()))?;
            run("lvcreate", ["-qq", "-y", "-n", "theirs", "-L", "8m", "b"])?;
            let theirs = VolumePath { group: b.clone(), volume: LvName::parse("theirs")? };
            lab.wait_for("the new volume", || volumes.inventory().volume(&theirs).map(drop))
        };
        let noticed = noticed();
        fs::remove_file("/run/test/hold")?;
        made.join().map_err(|_| "the call panicked")??;
        noticed
    })
}

fn device_mapper_says_that_something_has_happened(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "-n", "first", "-L", "4m", "vg"])?;
    let control = Control::open()?;
    let happened = |limit: i64| -> Result<bool> {
        let mut waiting = [PollFd::new(&control, PollFlags::IN)];
        Ok(poll(&mut waiting, Some(&Timespec { tv_sec: limit, tv_nsec: 0 }))? > 0)
    };
    // Others may still be busy with what was before.
    let heard_out = || {
        control.arm().ok()?;
        (!happened(1).ok()?).then_some(())
    };
    lab.wait_for("peace", heard_out)?;
    run("lvcreate", ["-qq", "-y", "-n", "new", "-L", "4m", "vg"])?;
    assert!(happened(60)?);
    // It is said until it was heard.
    assert!(happened(0)?);
    lab.wait_for("peace", heard_out)
}

lab_test::main! {
    what_an_administrator_does_is_noticed: Needs::disks(1, GIB).guest(),
    a_snapshot_is_extended_before_it_overflows: Needs::disks(1, GIB).guest(),
    a_snapshot_is_extended_though_its_class_is_gone: Needs::disks(1, GIB).guest(),
    a_snapshot_keeps_its_moment_though_its_origin_is_written_at_once_from_end_to_end: Needs::disks(1, GIB).guest(),
    a_snapshot_that_others_activate_is_extended_too: Needs::disks(1, GIB).guest(),
    a_group_in_which_a_command_hangs_keeps_nobody_from_noticing_others: Needs::disks(2, GIB).guest(),
    a_pool_that_is_out_of_room_is_told: Needs::disks(1, GIB).guest(),
    device_mapper_says_that_something_has_happened: Needs::disks(1, GIB).guest(),
}
