//! Changes, reports and device-mapper's answers, on real LVM.

mod changes;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use changes::*;
use lab_test::{Cut, GIB, Lab, MIB, Needs, Result, run};
use lvms_host::desired::DeviceClass;
use lvms_host::dm::{Cow, PoolState};
use lvms_host::facts::Facts;
use lvms_host::lvm::inventory::Kind;
use lvms_host::lvm::model::increments;
use lvms_host::lvm::{Change, Failure, metadata};
use lvms_host::names::{LvName, Tag, VgName, VolumePath};
use lvms_host::plan::volume::Wish;
use lvms_host::runner::Runner;
use lvms_host::simulated::history::{Class, device_class};
use lvms_host::units::{Bytes, Extents};
use lvms_host::volumes::Volumes;

fn every_kind_of_volume_is_made_reported_and_removed(lab: &Lab) -> Result {
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-l", "50", "vg"])?;
    let before = group(&linux)?;
    linux.change(&thick("linear", 5, &[])?)?;
    linux.change(&thick("striped", 5, &["--stripes", "2"])?)?;
    linux.change(&thick("mirrored", 5, &["--type", "raid1", "--mirrors", "1"])?)?;
    linux.change(&thin("thin", Bytes::mib(400))?)?;
    let (origin, name) = (path("thin")?, LvName::parse("moment")?);
    linux.change(&Change::SnapshotThin { origin, name, read_only: true, tags: Vec::new() })?;
    linux.change(&snapshot_thick("linear", "cow", 2)?)?;

    let now = group(&linux)?;
    let kind = |name: &str| Ok::<_, lab_test::Error>(now.volumes[&LvName::parse(name)?].kind.clone());
    assert!(
        matches!(kind("linear")?, Kind::Thick(layout) if layout.segment == "linear" && layout.stripes == 1)
    );
    assert!(
        matches!(kind("striped")?, Kind::Thick(layout) if layout.segment == "striped" && layout.stripes == 2)
    );
    assert!(
        matches!(kind("mirrored")?, Kind::Thick(layout) if layout.segment == "raid1" && layout.copies == 2)
    );
    assert_eq!(kind("thin")?, Kind::Thin { pool: LvName::parse("pool")?, origin: None });
    let thin = Some(LvName::parse("thin")?);
    assert_eq!(kind("moment")?, Kind::Thin { pool: LvName::parse("pool")?, origin: thin });
    assert_eq!(kind("cow")?, Kind::Cow { origin: LvName::parse("linear")?, store: Bytes::mib(8) });
    let volume = |name: &str| Ok::<_, lab_test::Error>(now.volumes[&LvName::parse(name)?].clone());
    assert_eq!(volume("striped")?.size, Bytes::mib(24), "rounded up to whole stripes");
    assert_eq!(volume("cow")?.size, Bytes::mib(20), "the user of a snapshot sees the origin's size");
    assert!(volume("linear")?.has_tag("lvms.io/name=a#20b"));
    assert!(volume("linear")?.active && !volume("moment")?.active);
    assert!(volume("moment")?.is_read_only());
    // linear 5, striped 6, two images of 5 with one extent of metadata each, a store of 2
    assert_eq!(before.free - now.free, Extents(5 + 6 + 12 + 2));
    assert_eq!(now.disks.iter().map(|disk| disk.free()).sum::<Extents>(), now.free);

    for name in ["cow", "moment", "thin", "mirrored", "striped", "linear"] {
        linux.change(&Change::remove(path(name)?))?;
    }
    let after = group(&linux)?;
    assert_eq!(after.free, before.free);
    assert!(after.volumes.keys().eq(before.volumes.keys()), "left are {:?}", after.volumes.keys());
    Ok(())
}

fn capacity_is_what_lvm_makes_whatever_is_closed(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1)])?;
    let vg = VgName::parse("vg")?;
    let volumes = Volumes::open(Arc::new(linux()?), &[&vg])?;
    let class = DeviceClass { spare: Bytes::ZERO, ..device_class(Class::Linear) };
    let capacity = || -> Result<u64> {
        volumes.look_in_turn(&vg)?;
        Ok(volumes.capacity(&class, &[]).unwrap_or_default().0)
    };
    let makes = |size: u64| {
        let made = run("lvcreate", ["-qq", "-y", "-Wn", "-n", "try", "-L", &format!("{size}b"), "vg"]);
        made.is_ok() && run("lvremove", ["-qq", "-y", "vg/try"]).is_ok()
    };
    let (disk, extent) = (lab.disk(1), 4 << 20);
    let all = capacity()?;
    for (close, open, closes) in [
        (vec!["vgchange", "-xn", "vg"], vec!["vgchange", "-xy", "vg"], false),
        (vec!["vgexport", "vg"], vec!["vgimport", "vg"], true),
        (vec!["pvchange", "-xn", disk], vec!["pvchange", "-xy", disk], false),
    ] {
        run(close[0], &close[1..])?;
        let now = capacity()?;
        assert_eq!(now == 0, closes, "{close:?}: {now}");
        assert_eq!(makes(now.max(extent)), !closes, "{close:?}");
        assert!(!makes(now.max(extent) + extent), "{close:?}");
        run(open[0], &open[1..])?;
        assert_eq!(capacity()?, all, "{open:?}");
    }
    Ok(())
}

fn failures_of_lvm2_are_types(lab: &Lab) -> Result {
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    linux.change(&thick("a", 5, &[])?)?;
    let fails = |change: Change| linux.change(&change).err().ok_or_else(|| format!("{change:?} succeeded"));
    assert!(matches!(fails(thick("a", 5, &[])?)?, Failure::AlreadyThere(_)));
    assert!(matches!(fails(thick("b", 100_000, &[])?)?, Failure::NoSpace(_)));
    let too_wide = fails(thick("b", 5, &["--stripes", "7"])?)?;
    assert!(matches!(too_wide, Failure::NoSpace(_)), "{too_wide:?}");
    assert!(matches!(fails(thick("b", 5, &["--no-such-option"])?)?, Failure::Refused(_)));
    assert!(matches!(fails(Change::remove(path("b")?))?, Failure::NotFound(_)));
    assert!(matches!(fails(thin("b", Bytes::mib(4))?)?, Failure::NotFound(_)));
    let extend =
        |extents| Ok::<_, lab_test::Error>(Change::Extend { path: path("a")?, extents, from: Vec::new() });
    assert!(matches!(fails(extend(Extents(5))?)?, Failure::NotLarger(_)));
    assert!(matches!(fails(extend(Extents(3))?)?, Failure::NotLarger(_)));
    assert!(matches!(fails(extend(Extents(9999))?)?, Failure::NoSpace(_)));
    let elsewhere = VolumePath { group: VgName::parse("none")?, volume: LvName::parse("a")? };
    assert!(matches!(fails(Change::remove(elsewhere))?, Failure::NotFound(_)));
    run("mkfs.ext4", ["-q", "/dev/vg/a"])?;
    run("mount", ["--mkdir", "/dev/vg/a", "/run/test/a"])?;
    assert!(matches!(fails(Change::remove(path("a")?))?, Failure::InUse(_)));
    assert!(matches!(fails(Change::Deactivate { path: path("a")? })?, Failure::InUse(_)));
    run("umount", ["/run/test/a"])?;
    linux.change(&Change::Deactivate { path: path("a")? })?;
    linux.change(&Change::Activate { path: path("a")? })?;
    linux.change(&Change::remove(path("a")?))?;
    Ok(())
}

fn volumes_go_together_and_one_that_is_in_use_keeps_no_other(lab: &Lab) -> Result {
    let linux = Arc::new(linux()?);
    run("vgcreate", ["vg", lab.disk(0)])?;
    let before = group(&linux)?.free;
    let names = ["a", "b", "c", "d", "used"];
    for name in names {
        linux.change(&thick(name, 2, &[])?)?;
    }
    let user = fs::File::open("/dev/vg/used")?;
    // LVM removes none of them.
    let others = vec![LvName::parse("used")?, LvName::parse("b")?];
    let done = linux.change(&Change::Remove { path: path("a")?, others });
    assert!(matches!(done, Err(Failure::InUse(_))), "{done:?}");
    assert_eq!(group(&linux)?.volumes.len(), 5);
    let volumes = Volumes::open(Arc::clone(&linux), &[&VgName::parse("vg")?])?;
    let remove = |name: &str| volumes.remove(&path(name).expect("a name"), None);
    std::thread::scope(|scope| {
        let waiting = names.map(|name| (name, scope.spawn(move || remove(name))));
        for (name, thread) in waiting {
            let removed = thread.join().expect("it does not panic");
            assert_eq!(removed.is_err(), name == "used", "{name}: {removed:?}");
        }
    });
    drop(user);
    remove("used")?;
    let (known, now) = (volumes.inventory(), group(&linux)?);
    assert_eq!((now.free, now.volumes.len()), (before, 0));
    assert_eq!(known.groups[&now.name].free, before);
    Ok(())
}

fn what_others_depend_on_is_not_removed(lab: &Lab) -> Result {
    let linux = Arc::new(linux()?);
    run("vgcreate", ["vg", lab.disk(0)])?;
    for pool in ["pool", "another"] {
        run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", pool, "-l", "25", "vg"])?;
    }
    for name in ["alone", "read", "origin"] {
        linux.change(&thick(name, 2, &[])?)?;
    }
    for name in ["thin", "thin-read"] {
        linux.change(&thin(name, Bytes::mib(8))?)?;
    }
    let mine = |pool: &str, name: &str, origin: &str| -> Result {
        run("lvchange", ["-qq", "-an", "-pr", origin])?;
        run("lvcreate", ["-qq", "-s", "--thinpool", pool, "-n", name, origin])?;
        Ok(())
    };
    linux.change(&snapshot_thick("origin", "cow", 1)?)?;
    mine("vg/pool", "mine", "vg/read")?;
    mine("vg/another", "mine-thin", "vg/thin-read")?;
    let (origin, name) = (path("thin")?, LvName::parse("moment")?);
    linux.change(&Change::SnapshotThin { origin, name, read_only: true, tags: Vec::new() })?;
    let volumes = Volumes::open(Arc::clone(&linux), &[&VgName::parse("vg")?])?;
    for (kept, dependant) in [("origin", "cow"), ("read", "mine"), ("thin-read", "mine-thin")] {
        let removed = volumes.remove(&path(kept)?, None).err().map(|error| error.to_string());
        assert!(removed.as_ref().is_some_and(|told| told.ends_with(dependant)), "{kept}: {removed:?}");
    }
    volumes.remove(&path("alone")?, None)?;
    volumes.remove(&path("thin")?, None)?;
    let left: Vec<String> = group(&linux)?.volumes.keys().map(LvName::to_string).collect();
    let expected = ["another", "cow", "mine", "mine-thin", "moment", "origin", "pool", "read", "thin-read"];
    assert_eq!(left, expected);
    // They go when nobody depends on them any more.
    for (dependant, kept) in [("cow", "origin"), ("mine", "read"), ("mine-thin", "thin-read")] {
        volumes.remove(&path(dependant)?, None)?;
        volumes.remove(&path(kept)?, None)?;
    }
    Ok(())
}

fn a_missing_disk_is_reported_and_refused_by_type(lab: &Lab) -> Result {
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1)])?;
    linux.change(&thick("spread", 100, &["--stripes", "2"])?)?;
    linux.change(&Change::Deactivate { path: path("spread")? })?;
    lab.unplug(lab.serial(1))?;
    lab.wait_for("the disk to be missing", || {
        let group = group(&linux).ok()?;
        (group.missing().count() == 1).then_some(())
    })?;
    let failure = linux.change(&thick("more", 1, &[])?).err().ok_or("a volume was made without a disk")?;
    assert!(matches!(failure, Failure::MissingDevice(_)), "{failure:?}");
    let failure =
        linux.change(&Change::Activate { path: path("spread")? }).err().ok_or("half a volume is active")?;
    assert!(matches!(failure, Failure::MissingDevice(_)), "{failure:?}");
    lab.plug_back(lab.serial(1))?;
    lab.wait_for("the disk to be back", || (group(&linux).ok()?.missing().count() == 0).then_some(()))?;
    linux.change(&Change::Activate { path: path("spread")? })?;
    linux.change(&thick("more", 1, &[])?)?;
    Ok(())
}

fn the_sequence_number_on_disk_is_the_reported_one_after_every_change(lab: &Lab) -> Result {
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    let mut last = 0;
    for round in 0..40 {
        let name = format!("v{round}");
        linux.change(&thick(&name, 1, &[])?)?;
        let group = group(&linux)?;
        let on_disk = metadata::read(Path::new(lab.disk(0)))?;
        assert_eq!((on_disk.group.as_str(), on_disk.version.seqno), ("vg", group.seqno));
        assert_eq!(linux.sequence_number(&group), Some(on_disk.version));
        assert!(group.seqno > last);
        last = group.seqno;
    }
    // Somebody else's change is seen without asking LVM.
    let known = group(&linux)?;
    run("lvchange", ["--addtag", "somebody", "vg/v0"])?;
    let on_disk = linux.sequence_number(&known).ok_or("nothing was read")?;
    assert!(on_disk.seqno > known.seqno);
    // Another text may have the number of the change that it takes back.
    run("vgcfgbackup", ["-f", "/run/test/before", "vg"])?;
    run("lvchange", ["--addtag", "ours", "vg/v0"])?;
    let ours = linux.sequence_number(&known).ok_or("nothing was read")?;
    run("vgcfgrestore", ["--yes", "-f", "/run/test/before", "vg"])?;
    let restored = linux.sequence_number(&known).ok_or("nothing was read")?;
    assert_eq!(restored.seqno, ours.seqno);
    assert_ne!(restored.checksum, ours.checksum);
    Ok(())
}

fn each_change_raises_the_sequence_number_as_the_engine_expects(lab: &Lab) -> Result {
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1), lab.disk(2)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-l", "50", "vg"])?;
    let (origin, name) = (path("thin")?, LvName::parse("moment")?);
    let extend = |name: &str, extents| {
        Ok::<_, lab_test::Error>(Change::Extend {
            path: path(name)?,
            extents: Extents(extents),
            from: Vec::new(),
        })
    };
    let tag = Change::Tag { path: path("linear")?, add: vec![Tag::parse("t")?], remove: Vec::new() };
    let changes = [
        thick("linear", 5, &[])?,
        thick("striped", 5, &["--stripes", "2"])?,
        thick("mirrored", 5, &["--type", "raid1", "--mirrors", "1", "--nosync"])?,
        thick("parity", 4, &["--type", "raid5", "--stripes", "2", "--nosync"])?,
        thin("thin", Bytes::mib(400))?,
        Change::SnapshotThin { origin, name, read_only: true, tags: Vec::new() },
        extend("linear", 7)?,
        extend("mirrored", 7)?,
        extend("thin", 120)?,
        snapshot_thick("linear", "cow", 2)?,
        extend("cow", 3)?,
        tag,
        Change::Activate { path: path("moment")? },
        Change::Deactivate { path: path("moment")? },
        Change::Refresh { path: path("linear")? },
        Change::Refresh { path: path("mirrored")? },
        thick("taken", 2, &[])?,
        Change::Release { path: path("taken")? },
        Change::remove(path("cow")?),
        Change::remove(path("moment")?),
        thin("thin-b", Bytes::mib(8))?,
        thin("thin-c", Bytes::mib(8))?,
        Change::Remove { path: path("thin")?, others: vec![LvName::parse("thin-b")?] },
        Change::remove(path("thin-c")?),
        Change::remove(path("linear")?),
        Change::Remove {
            path: path("mirrored")?,
            others: vec![LvName::parse("parity")?, LvName::parse("striped")?],
        },
    ];
    let mut wrong = Vec::new();
    for change in changes {
        let before = group(&linux)?;
        let done = linux.change(&change);
        let after = group(&linux)?;
        let raised = after.seqno - before.seqno;
        println!(
            "# {raised} expected {} by {:?}: {done:?}",
            increments(&before, &change),
            change.arguments()
        );
        done?;
        if raised != increments(&before, &change) {
            wrong.push(format!("{raised} by {:?}", change.arguments()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

fn device_mapper_says_how_full_pools_and_snapshots_are(lab: &Lab) -> Result {
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-l", "25", "-c", "64k", "vg"])?;
    linux.change(&thin("thin", Bytes::mib(400))?)?;
    linux.change(&thick("origin", 5, &[])?)?;
    linux.change(&snapshot_thick("origin", "cow", 1)?)?;
    linux.change(&thick("mirrored", 2, &["--type", "raid1", "--mirrors", "1"])?)?;
    let pool = linux.pool(&path("pool")?)?.ok_or("the pool is not active")?;
    assert_eq!((pool.state, pool.data.used, pool.data.total), (PoolState::Good, 0, 1600));
    run("dd", ["if=/dev/urandom", "of=/dev/vg/thin", "bs=1M", "count=10", "oflag=direct"])?;
    let pool = linux.pool(&path("pool")?)?.ok_or("the pool is not active")?;
    assert_eq!(pool.data.used, 160);
    assert!(matches!(linux.cow(&path("cow")?)?, Some(Cow::Valid(fill)) if fill.percent() < 10.0));
    run("dd", ["if=/dev/urandom", "of=/dev/vg/origin", "bs=1M", "count=2", "oflag=direct"])?;
    assert!(matches!(linux.cow(&path("cow")?)?, Some(Cow::Valid(fill)) if fill.percent() > 40.0));
    run("dd", ["if=/dev/urandom", "of=/dev/vg/origin", "bs=1M", "count=8", "oflag=direct"])?;
    assert_eq!(linux.cow(&path("cow")?)?, Some(Cow::Invalid));
    let raid = linux.control()?.targets("vg-mirrored", "raid")?[0].raid();
    assert_eq!(raid.ok_or("no RAID")?.health.len(), 2);
    assert_eq!(linux.device("vg-nothing")?, None);
    assert_eq!(linux.pool(&path("nothing")?)?, None);
    Ok(())
}

fn suspended_devices_of_a_group_are_found_and_go_on(lab: &Lab) -> Result {
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("vgcreate", ["vg-x", lab.disk(1)])?;
    linux.change(&thick("a-b", 1, &[])?)?;
    run("lvcreate", ["-qq", "-y", "-n", "c", "-l", "1", "vg-x"])?;
    run("dmsetup", ["suspend", "vg-a--b"])?;
    run("dmsetup", ["suspend", "vg--x-c"])?;
    // Whoever else makes devices may call them so.
    for empty in ["vg-d", "vg-d-real"] {
        run("dmsetup", ["create", empty, "--notable"])?;
    }
    run("dmsetup", ["create", "vg-e", "--table", "0 8 error"])?;
    run("dmsetup", ["suspend", "vg-e"])?;
    let others = || run("dmsetup", ["info", "-c", "--noheadings", "-o", "name,suspended,tables_loaded"]);
    let before = others()?;
    assert_eq!(linux.recover(&VgName::parse("vg")?)?, [path("a-b")?]);
    assert_eq!(linux.recover(&VgName::parse("vg")?)?, []);
    // All others are what they were.
    assert_eq!(others()?, before.replace("vg-a--b:Suspended", "vg-a--b:Active"));
    for suspended in ["vg--x-c", "vg-e"] {
        run("dmsetup", ["resume", suspended])?;
    }
    run("dmsetup", ["remove", "vg-d", "vg-d-real", "vg-e"])?;
    Ok(())
}

fn a_change_that_was_answered_outlives_the_loss_of_unflushed_writes(lab: &Lab) -> Result {
    let names = ["first", "second", "third"];
    if lab.boots() == 0 {
        run("vgcreate", ["vg", lab.disk(0)])?;
        let volumes = Volumes::open(Arc::new(linux()?), &[&VgName::parse("vg")?])?;
        let class = device_class(Class::Linear);
        for name in names {
            let wish = Wish {
                name: LvName::parse(name)?,
                class: &class,
                options: Vec::new(),
                size: Bytes::mib(8),
                limit: None,
                facts: Facts { name: Some(name.to_owned()), block: true, ..Facts::default() },
                source: None,
            };
            volumes.create(&wish, None)?;
        }
        return lab.cut_power(Cut::LoseUnflushed);
    }
    let group = group(&linux()?)?;
    for name in names {
        let volume = group.volumes.get(&LvName::parse(name)?).ok_or_else(|| format!("{name} is gone"))?;
        assert!(!Facts::of(volume).is_unfinished(volume.size), "{name}: {:?}", volume.tags);
    }
    Ok(())
}

lab_test::main! {
    a_change_that_was_answered_outlives_the_loss_of_unflushed_writes: Needs::disks(1, GIB).faults().without_udev().power_cut(),
    every_kind_of_volume_is_made_reported_and_removed: Needs::disks(2, GIB),
    capacity_is_what_lvm_makes_whatever_is_closed: Needs::disks(2, GIB),
    failures_of_lvm2_are_types: Needs::disks(1, GIB),
    volumes_go_together_and_one_that_is_in_use_keeps_no_other: Needs::disks(1, GIB),
    what_others_depend_on_is_not_removed: Needs::disks(1, GIB),
    a_missing_disk_is_reported_and_refused_by_type: Needs::disks(2, GIB).hotplug(),
    the_sequence_number_on_disk_is_the_reported_one_after_every_change: Needs::disks(1, GIB).without_udev(),
    each_change_raises_the_sequence_number_as_the_engine_expects: Needs::disks(3, GIB).without_udev(),
    device_mapper_says_how_full_pools_and_snapshots_are: Needs::disks(2, GIB),
    suspended_devices_of_a_group_are_found_and_go_on: Needs::disks(2, 256 * MIB),
}
