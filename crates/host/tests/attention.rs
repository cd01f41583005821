//! What others do is noticed, and snapshots are extended before they overflow.

use std::sync::Arc;

use lab_test::{GIB, Lab, Needs, Result, run};
use lvms_host::attention;
use lvms_host::desired::{Desired, lvmd};
use lvms_host::dm::{Control, PoolState};
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory::Kind;
use lvms_host::names::{LvName, VgName, VolumePath};
use lvms_host::plan::volume::Wish;
use lvms_host::runner::{Linux, Options, Runner};
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn desired() -> Result<Arc<Desired>> {
    let read = lvmd::read("device-classes: [{name: thick, volume-group: vg, spare-gb: 0}]");
    Ok(Arc::new(read.map_err(|mistakes| format!("{mistakes:?}"))?.desired))
}

fn start(lab: &Lab) -> Result<Arc<Volumes<Linux>>> {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let volumes = Volumes::open(Arc::new(Linux::new(Options::default())?), &[&VgName::parse("vg")?])?;
    let desired = desired()?;
    attention::follow(&volumes, move || Arc::clone(&desired))?;
    Ok(volumes)
}

fn path(name: &str) -> Result<VolumePath> {
    Ok(VolumePath { group: VgName::parse("vg")?, volume: LvName::parse(name)? })
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

fn a_snapshot_is_extended_before_it_overflows(lab: &Lab) -> Result {
    let volumes = start(lab)?;
    let desired = desired()?;
    let class = &desired.classes[0];
    let facts = Facts { name: Some("v".into()), ..Facts::default() };
    let wish = Wish {
        name: LvName::parse("v")?,
        class,
        options: Vec::new(),
        size: Bytes::mib(200),
        limit: None,
        facts,
        source: None,
    };
    volumes.create(&wish, None)?;
    let facts =
        Facts { name: Some("s".into()), snapshot: true, source: Some("v".into()), ..Facts::default() };
    volumes.snapshot(class, &path("v")?, &LvName::parse("s")?, &facts, None)?;
    let snapshot = path("s")?;
    let store = || match volumes.inventory().volume(&snapshot).map(|volume| volume.kind.clone()) {
        Some(Kind::Cow { store, .. }) => Some(store),
        _ => None,
    };
    let first = store().ok_or("no snapshot")?;
    // More than the first store holds, in pieces that leave time to extend it.
    for piece in 0..10 {
        let before = store().ok_or("no snapshot")?;
        let seek = format!("seek={}", piece * 10);
        run("dd", ["if=/dev/urandom", "of=/dev/vg/v", "bs=1M", "count=10", &seek, "oflag=direct"])?;
        let fill = || match volumes.runner().cow(&snapshot) {
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
    a_pool_that_is_out_of_room_is_told: Needs::disks(1, GIB).guest(),
    device_mapper_says_that_something_has_happened: Needs::disks(1, GIB).guest(),
}
