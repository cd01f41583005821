//! Everything that can be full under `lvms standalone`: each is told with its remedy, what is there is unharmed, and all
//! goes on when there is room again.

mod driver;

use std::fs;
use std::path::Path;

use driver::{Driver, MIB, device, refused};
use lab_csi::{Access, Client, Code, Source, proto};
use lab_test::{GIB, Lab, MIB as MEBIBYTE, Needs, Result, fails, run};

const THICK: &str = "  - {name: thick, volume-group: vg, spare-gb: 0, default: true}\n";
const THIN: &str =
    "  - {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 100}}\n";

fn write_random(device: &Path, mebibytes: u32) -> Result {
    let (to, count) = (format!("of={}", device.display()), format!("count={mebibytes}"));
    run("dd", ["if=/dev/urandom", &to, "bs=1M", &count, "oflag=direct"])?;
    Ok(())
}

/// A pool takes place for zeros too.
fn write_zeros(device: &Path, mebibytes: u32) -> Result {
    let (to, count) = (format!("of={}", device.display()), format!("count={mebibytes}"));
    run("dd", ["if=/dev/zero", &to, "bs=1M", &count, "oflag=direct"])?;
    Ok(())
}

fn checksum(device: &Path) -> Result<String> {
    run("sh", ["-c", &format!("dd if={} bs=1M iflag=direct status=none | sha256sum", device.display())])
}

fn condition(client: &Client, id: &str, target: &Path) -> Result<(bool, String)> {
    let condition = client.stats(id, target)?.volume_condition.ok_or("no condition was told")?;
    Ok((condition.abnormal, condition.message))
}

fn a_pool_whose_data_is_full_is_told_and_goes_on_when_it_is_extended(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "48m", "vg"])?;
    run("lvchange", ["-qq", "--errorwhenfull", "y", "vg/pool"])?;
    let driver = Driver::start(lab, &format!("{THICK}{THIN}"), &[])?;
    let client = &driver.client;
    let neighbour = client.create("neighbour", "thin", 8 * MIB, Access::Block, None)?.volume_id;
    write_random(&device("vg", &neighbour), 4)?;
    let before = checksum(&device("vg", &neighbour))?;
    let greedy = client.create("greedy", "thin", 200 * MIB, Access::Block, None)?.volume_id;
    let target = lab.state().join("greedy");
    client.publish(&greedy, &target, Access::Block)?;

    write_zeros(&target, 41)?;
    let create = || client.create("more", "thin", 8 * MIB, Access::Block, None);
    let parts = &["thin pool vg/pool", "data 9", "lvextend"];
    refused(create(), Code::ResourceExhausted, parts);
    refused(client.snapshot("moment", &neighbour), Code::ResourceExhausted, parts);
    assert_eq!(client.capacity("thin")?, 0);
    client.delete(&client.create("beside", "thick", 8 * MIB, Access::Block, None)?.volume_id)?;

    let complaint = write_zeros(&target, 80).err().ok_or("a full pool has taken more")?;
    println!("# {complaint}");
    let told = lab.wait_for("the pool to be full", || {
        let (abnormal, told) = condition(client, &greedy, &target).ok()?;
        abnormal.then_some(told)
    })?;
    assert!(told.contains("thin pool vg/pool is full"), "{told}");
    refused(create(), Code::ResourceExhausted, &["thin pool vg/pool", "data 100.0 %"]);
    assert_eq!(checksum(&device("vg", &neighbour))?, before);

    run("lvextend", ["-qq", "-L", "+64m", "vg/pool"])?;
    client.delete(&create()?.volume_id)?;
    assert!(client.capacity("thin")? > 0);
    write_zeros(&target, 80)?;
    assert!(!condition(client, &greedy, &target)?.0);
    assert_eq!(checksum(&device("vg", &neighbour))?, before);
    let processes = run("ps", ["-eo", "comm"])?;
    assert!(!processes.contains("dmeventd"), "a daemon was started: {processes}");
    client.unpublish(&greedy, &target)?;
    Ok(())
}

/// Fills the metadata of an inactive pool with mappings of its first volume, without writing any data.
fn fill_metadata(mappings: u64) -> Result {
    let swap = || -> Result {
        run("lvconvert", ["-qq", "-y", "--thinpool", "vg/pool", "--poolmetadata", "vg/swap"]).map(drop)
    };
    run("lvcreate", ["-qq", "-y", "-an", "-Zn", "-n", "swap", "-L", "2m", "vg"])?;
    swap()?;
    run("lvchange", ["-ay", "vg/swap"])?;
    let dump = run("thin_dump", ["/dev/vg/swap"])?;
    let first = dump.find("<device dev_id=\"1\"").ok_or("the pool has no first volume")?;
    let (head, rest) = dump.split_at(first);
    let (device, rest) = rest.split_once('>').ok_or("no end of the first volume's beginning")?;
    let device = device.replace("mapped_blocks=\"0\"", &format!("mapped_blocks=\"{mappings}\""));
    let range =
        format!("<range_mapping origin_begin=\"0\" data_begin=\"1000\" length=\"{mappings}\" time=\"0\"/>");
    fs::write("/run/test/metadata.xml", format!("{head}{device}>\n{range}\n{rest}"))?;
    run("thin_restore", ["-i", "/run/test/metadata.xml", "-o", "/dev/vg/swap"])?;
    run("lvchange", ["-an", "vg/swap"])?;
    swap()?;
    run("lvremove", ["-qq", "-y", "vg/swap"])?;
    Ok(())
}

/// Mappings that fill a little more than 80 % of 2 MiB: 126 are in a block of 4096 bytes when all come in their order.
const MAPPINGS: u64 = 126 * 380;

fn a_pool_whose_metadata_is_full_is_told_and_goes_on_when_it_is_extended(lab: &Lab) -> Result {
    run("vgcreate", ["-s", "1m", "vg", lab.disk(0)])?;
    let pool = ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "9g", "--poolmetadatasize", "2m"];
    run("lvcreate", pool.into_iter().chain(["--chunksize", "64k", "vg"]))?;
    let driver = Driver::start(lab, &format!("{THICK}{THIN}"), &[])?;
    let client = &driver.client;
    let greedy = client.create("greedy", "thin", 9 * 1024 * MIB, Access::Block, None)?.volume_id;
    let neighbour = client.create("neighbour", "thin", 8 * MIB, Access::Block, None)?.volume_id;
    write_random(&device("vg", &neighbour), 8)?;
    let before = checksum(&device("vg", &neighbour))?;
    run("vgchange", ["-qq", "-an", "vg"])?;
    fill_metadata(MAPPINGS)?;
    run("vgchange", ["-qq", "-ay", "vg"])?;

    let create = || client.create("more", "thin", 8 * MIB, Access::Block, None);
    refused(create(), Code::ResourceExhausted, &["thin pool vg/pool", "metadata 8", "--poolmetadatasize"]);
    assert_eq!(client.capacity("thin")?, 0);
    let target = lab.state().join("greedy");
    client.publish(&greedy, &target, Access::Block)?;
    assert!(!condition(client, &greedy, &target)?.0);
    // One block of data for each mapping more, until the kernel has no place for it.
    let offset = format!("--offset={}k", MAPPINGS * 64);
    let write =
        ["--name=fill", "--rw=write:60k", "--bs=4k", "--ioengine=psync", "--direct=1", "--size=2400m"];
    fails("fio", write.into_iter().chain([offset.as_str(), &format!("--filename={}", target.display())]))?;
    let (abnormal, told) = condition(client, &greedy, &target)?;
    assert!(abnormal && told.contains("thin pool vg/pool cannot be written"), "{told}");
    refused(create(), Code::FailedPrecondition, &["thin pool vg/pool", "lvconvert --repair"]);
    assert_eq!(client.capacity("thin")?, 0);
    client.delete(&client.create("beside", "thick", 8 * MIB, Access::Block, None)?.volume_id)?;

    // Until then the kernel may let nothing of the pool be read.
    client.unpublish(&greedy, &target)?;
    heal_metadata()?;
    client.delete(&create()?.volume_id)?;
    assert!(client.capacity("thin")? > 0);
    assert_eq!(checksum(&device("vg", &neighbour))?, before);
    client.delete(&greedy)?;
    client.delete(&neighbour)?;
    Ok(())
}

/// As the error says.
fn heal_metadata() -> Result {
    run("vgchange", ["-qq", "-an", "vg"])?;
    run("lvextend", ["-qq", "--poolmetadatasize", "+8m", "vg/pool"])?;
    run("lvconvert", ["-qq", "-y", "--repair", "vg/pool"])?;
    run("vgchange", ["-qq", "-ay", "vg"])?;
    Ok(())
}

fn a_group_whose_metadata_area_is_full_is_told_and_goes_on_when_something_is_removed(lab: &Lab) -> Result {
    run("vgcreate", ["--metadatasize", "64k", "--dataalignment", "64k", "vg", lab.disk(0)])?;
    run("vgcreate", ["other", lab.disk(1)])?;
    let other = "  - {name: other, volume-group: other, spare-gb: 0}\n";
    let driver = Driver::start(lab, &format!("{THICK}{other}"), &[])?;
    let client = &driver.client;
    let ext4 = Access::Filesystem("ext4");
    let kept = client.create("kept", "thick", 16 * MIB, ext4, None)?.volume_id;
    run("lvcreate", ["-qq", "-y", "-n", "filler", "-l", "1", "vg"])?;
    let mut number = 1000;
    let mut fill = |count: u64, length: usize| {
        let tags = (0..count).flat_map(|_| {
            number += 1;
            ["--addtag".to_owned(), format!("{number}{}", "x".repeat(length))]
        });
        run("lvchange", ["-qq".to_owned()].into_iter().chain(tags).chain(["vg/filler".to_owned()]))
    };
    let free = || -> Result<u64> {
        let free = run("vgs", ["--noheadings", "--units", "b", "--nosuffix", "-o", "vg_mda_free", "vg"])?;
        Ok(free.parse()?)
    };
    while free()? >= 4096 {
        fill((free()? - 4096) / 1024 + 1, 1000)?;
    }
    let create = || client.create("more", "thick", 16 * MIB, ext4, None);
    refused(create(), Code::ResourceExhausted, &["metadata area", "volume group vg", "remove volumes"]);
    assert_eq!(client.capacity("thick")?, 0);
    // Until LVM itself says so: what has to be noted of a volume has no place then.
    for length in [900, 200, 30, 0] {
        while fill(1, length).is_ok() {}
    }
    let target = lab.state().join("kept");
    refused(client.publish(&kept, &target, ext4), Code::ResourceExhausted, &["metadata area", "remove"]);
    client.delete(&client.create("beside", "other", 16 * MIB, ext4, None)?.volume_id)?;
    run("vgck", ["vg"])?;

    run("lvremove", ["-qq", "-y", "vg/filler"])?;
    client.publish(&kept, &target, ext4)?;
    fs::write(target.join("file"), "bytes")?;
    client.delete(&create()?.volume_id)?;
    assert!(client.capacity("thick")? > 0);
    assert_eq!(fs::read_to_string(target.join("file"))?, "bytes");
    client.unpublish(&kept, &target)?;
    Ok(())
}

fn is_ready(client: &Client, id: &str) -> Result<bool> {
    let request = proto::ListSnapshotsRequest { snapshot_id: id.to_owned(), ..Default::default() };
    let answer = client.controller(async |mut controller| controller.list_snapshots(request).await)?;
    let snapshot = answer.entries.into_iter().next().and_then(|entry| entry.snapshot);
    Ok(snapshot.ok_or("the snapshot is not listed")?.ready_to_use)
}

fn a_snapshot_that_overflowed_is_never_restored_and_its_origin_is_unharmed(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let driver = Driver::start(lab, THICK, &[])?;
    let client = &driver.client;
    let origin = client.create("origin", "thick", 64 * MIB, Access::Block, None)?.volume_id;
    // There is no room for a store that holds all of it.
    run("lvcreate", ["-qq", "-y", "-n", "neighbour", "-L", "400m", "vg"])?;
    let snapshot = client.snapshot("moment", &origin)?.snapshot_id;
    let target = lab.state().join("origin");
    client.publish(&origin, &target, Access::Block)?;
    assert!(is_ready(client, &snapshot)?);
    // No extent is left with which the store could be extended.
    run("lvcreate", ["-qq", "-y", "-n", "filler", "-l", "100%FREE", "vg"])?;
    write_random(&target, 40)?;
    let written = checksum(&target)?;

    lab.wait_for("the snapshot to be told as lost", || (!is_ready(client, &snapshot).ok()?).then_some(()))?;
    let from = Source::Snapshot(snapshot.clone());
    let restore = |from: &Source| client.create("restored", "thick", 64 * MIB, Access::Block, Some(from));
    refused(restore(&from), Code::FailedPrecondition, &[&snapshot, "overflowed", "lost", "delete it"]);
    assert!(!condition(client, &origin, &target)?.0);
    assert_eq!(checksum(&target)?, written);
    client.delete_snapshot(&snapshot)?;
    run("lvremove", ["-qq", "-y", "vg/neighbour"])?;
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "-S", "lv_name!=filler", "vg"])?, origin);

    run("lvremove", ["-qq", "-y", "vg/filler"])?;
    let again = client.snapshot("moment", &origin)?;
    assert!(again.ready_to_use);
    let restored = restore(&Source::Snapshot(again.snapshot_id.clone()))?.volume_id;
    assert_eq!(checksum(&device("vg", &restored))?, written);
    assert_eq!(checksum(&target)?, written);
    client.delete(&restored)?;
    client.delete_snapshot(&again.snapshot_id)?;
    client.unpublish(&origin, &target)?;
    client.delete(&origin)?;
    Ok(())
}

fn on_a_host_with_dmeventd_pools_and_snapshots_are_extended_by_the_hosts_policy(lab: &Lab) -> Result {
    let policy = "activation { thin_pool_autoextend_threshold = 70 thin_pool_autoextend_percent = 50 \
                  snapshot_autoextend_threshold = 50 snapshot_autoextend_percent = 100 }\n";
    let own = fs::read_to_string("/etc/lvm/lvm.conf")?;
    fs::write("/etc/lvm/lvm.conf", own + policy)?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "64m", "vg"])?;
    let driver = Driver::start(lab, &format!("{THICK}{THIN}"), &[])?;
    let client = &driver.client;
    let field =
        |volume: &str, field: &str| run("lvs", ["--noheadings", "-o", field, &format!("vg/{volume}")]);
    let thin = client.create("thin", "thin", 200 * MIB, Access::Block, None)?.volume_id;
    let thick = client.create("thick", "thick", 200 * MIB, Access::Block, None)?.volume_id;
    // Nobody watches a store that holds all of its origin: while it is made there is no room for one.
    run("lvcreate", ["-qq", "-y", "-n", "filler", "-L", "600m", "vg"])?;
    let moment = client.snapshot("moment", &thick)?.snapshot_id;
    run("lvremove", ["-qq", "-y", "vg/filler"])?;
    // Our own commands leave the watch to the host.
    assert_eq!(field("pool", "seg_monitor")?, "monitored");
    assert_eq!(field(&moment, "seg_monitor")?, "monitored");
    write_random(&device("vg", &thin), 56)?;
    lab.wait_for("dmeventd to extend the pool", || {
        let size = run("lvs", ["--noheadings", "--nosuffix", "--units", "m", "-o", "lv_size", "vg/pool"]);
        (size.ok()?.parse::<f64>().ok()? > 64.0).then_some(())
    })?;
    // The driver knows of it, and of volumes that it makes and removes afterwards.
    lab.wait_for("the pool's room", || (client.capacity("thin").ok()? > 0).then_some(()))?;
    let before = checksum(&device("vg", &thin))?;
    client.delete(&client.create("more", "thin", 8 * MIB, Access::Block, None)?.volume_id)?;
    client.delete_snapshot(&moment)?;
    client.delete(&thick)?;
    assert_eq!(checksum(&device("vg", &thin))?, before);
    client.delete(&thin)?;
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    Ok(())
}

/// The control group that stands for the driver's pod.
const POD: &str = "/sys/fs/cgroup/pod";

fn whoever_comes_after_a_killed_pod_watches_pools_and_stores_where_no_dmeventd_runs(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "48m", "vg"])?;
    let start = || Driver::start(lab, &format!("{THICK}{THIN}"), &[]);
    let mut driver = start()?;
    fs::create_dir_all(POD)?;
    fs::write(format!("{POD}/cgroup.procs"), driver.running.process.id().to_string())?;
    let client = &driver.client;
    let thin = client.create("thin", "thin", 200 * MIB, Access::Block, None)?.volume_id;
    let origin = client.create("origin", "thick", 200 * MIB, Access::Block, None)?.volume_id;
    let before = checksum(&device("vg", &origin))?;
    // While it is made there is no room for a store that holds all of its origin.
    run("lvcreate", ["-qq", "-y", "-n", "filler", "-L", "600m", "vg"])?;
    let snapshot = client.snapshot("moment", &origin)?.snapshot_id;
    run("lvremove", ["-qq", "-y", "vg/filler"])?;
    fs::write(format!("{POD}/cgroup.kill"), "1")?;
    driver.running.process.wait()?;
    fs::remove_dir(POD)?;

    let driver = start()?;
    let client = &driver.client;
    let field = |field: &str| -> Result<f64> {
        let path = format!("vg/{snapshot}");
        Ok(run("lvs", ["--noheadings", "--nosuffix", "--units", "m", "-o", field, &path])?.parse()?)
    };
    let first = field("lv_size")?;
    // More than the first store holds, in pieces that leave time to extend it.
    for piece in 0..10 {
        let (to, seek) = (format!("of={}", device("vg", &origin).display()), format!("seek={}", piece * 10));
        run("dd", ["if=/dev/urandom", &to, "bs=1M", "count=10", &seek, "oflag=direct"])?;
        lab.wait_for("the store to have room", || (field("snap_percent").ok()? < 70.0).then_some(()))?;
    }
    assert!(field("lv_size")? > first && is_ready(client, &snapshot)?);
    let from = Source::Snapshot(snapshot.clone());
    let restored = client.create("restored", "thick", 200 * MIB, Access::Block, Some(&from))?.volume_id;
    assert_eq!(checksum(&device("vg", &restored))?, before);
    write_zeros(&device("vg", &thin), 46)?;
    let more = client.create("more", "thin", 8 * MIB, Access::Block, None);
    refused(more, Code::ResourceExhausted, &["thin pool vg/pool", "data 9", "lvextend"]);
    let processes = run("ps", ["-eo", "comm"])?;
    assert!(!processes.contains("dmeventd"), "a daemon was started: {processes}");
    for id in [&restored, &thin] {
        client.delete(id)?;
    }
    client.delete_snapshot(&snapshot)?;
    client.delete(&origin)?;
    Ok(())
}

lab_test::main! {
    whoever_comes_after_a_killed_pod_watches_pools_and_stores_where_no_dmeventd_runs: Needs::disks(1, GIB).guest(),
    on_a_host_with_dmeventd_pools_and_snapshots_are_extended_by_the_hosts_policy: Needs::disks(1, GIB).dmeventd(),
    a_pool_whose_data_is_full_is_told_and_goes_on_when_it_is_extended: Needs::disks(1, GIB).guest(),
    a_pool_whose_metadata_is_full_is_told_and_goes_on_when_it_is_extended: Needs::disks(1, 10 * GIB).guest(),
    a_group_whose_metadata_area_is_full_is_told_and_goes_on_when_something_is_removed: Needs::disks(2, 256 * MEBIBYTE).guest(),
    a_snapshot_that_overflowed_is_never_restored_and_its_origin_is_unharmed: Needs::disks(1, GIB / 2).guest(),
}
