//! Real LVM on a real device-mapper: every kind of volume that lvms will make.

use lab_test::{GIB, Lab, MIB, Needs, Result, fails, run};

/// One field of a report on one volume.
fn field(volume: &str, field: &str) -> Result<String> {
    run("lvs", ["--noheadings", "--units", "b", "--nosuffix", "-o", field, volume])
}

fn write(device: &str, text: &str) -> Result {
    lab_test::run_with_input(
        "dd",
        [&format!("of={device}"), "bs=4096", "conv=sync", "oflag=direct"],
        text.as_bytes(),
    )?;
    Ok(())
}

fn read(device: &str) -> Result<String> {
    let text = run("dd", [&format!("if={device}"), "bs=4096", "count=1", "iflag=direct"])?;
    Ok(text.trim_end_matches('\0').to_owned())
}

fn a_thin_volume_and_its_snapshot_keep_their_own_bytes(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["--type", "thin-pool", "-n", "pool", "-L", "256M", "vg"])?;
    run("lvcreate", ["-n", "thin", "-V", "1G", "--thinpool", "vg/pool"])?;
    write("/dev/vg/thin", "before")?;
    run("lvcreate", ["-n", "earlier", "-s", "-kn", "vg/thin"])?;
    run("lvchange", ["-ay", "vg/earlier"])?;
    write("/dev/vg/thin", "after")?;
    assert_eq!(read("/dev/vg/earlier")?, "before");
    assert_eq!(read("/dev/vg/thin")?, "after");
    assert_eq!(field("vg/earlier", "origin")?, "thin");
    assert_eq!(field("vg/thin", "lv_size")?, GIB.to_string());
    Ok(())
}

fn a_thick_snapshot_keeps_the_bytes_of_its_origin(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-n", "thick", "-L", "64M", "vg"])?;
    write("/dev/vg/thick", "before")?;
    run("lvcreate", ["-n", "earlier", "-s", "-L", "16M", "vg/thick"])?;
    write("/dev/vg/thick", "after")?;
    assert_eq!(read("/dev/vg/earlier")?, "before");
    assert_eq!(read("/dev/vg/thick")?, "after");
    Ok(())
}

fn raid1_and_raid5_survive_the_loss_of_a_disk(lab: &Lab) -> Result {
    let disks: Vec<&str> = lab.disks().iter().map(String::as_str).collect();
    run("vgcreate", ["vg"].iter().chain(&disks))?;
    for (kind, shape) in [("raid1", ["-m", "1"]), ("raid5", ["-i", "2"])] {
        run("lvcreate", ["--type", kind, "-n", kind, "-L", "64M", shape[0], shape[1], "vg"])?;
        write(&format!("/dev/vg/{kind}"), kind)?;
        lab.wait_for("the array to be in sync", || {
            (field(&format!("vg/{kind}"), "sync_percent").ok()? == "100.00").then_some(())
        })?;
    }
    run("lvchange", ["-an", "vg"])?;
    lab.unplug(lab.serial(0))?;
    lab.wait_for("the disk to be gone", || (!std::path::Path::new(lab.disk(0)).exists()).then_some(()))?;
    for kind in ["raid1", "raid5"] {
        run("lvchange", ["-ay", "--activationmode", "degraded", &format!("vg/{kind}")])?;
        assert_eq!(read(&format!("/dev/vg/{kind}"))?, kind);
    }
    Ok(())
}

fn a_striped_volume_spreads_over_its_disks(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1)])?;
    run("lvcreate", ["-n", "striped", "-i", "2", "-I", "64k", "-L", "64M", "vg"])?;
    write("/dev/vg/striped", "striped")?;
    assert_eq!(read("/dev/vg/striped")?, "striped");
    assert_eq!(field("vg/striped", "stripes")?, "2");
    assert_eq!(field("vg/striped", "stripesize")?, (64 << 10).to_string());
    Ok(())
}

fn a_volume_group_with_a_missing_disk_is_seen_and_is_whole_again(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0), lab.disk(1)])?;
    run("lvcreate", ["-n", "here", "-L", "32M", "vg", lab.disk(0)])?;
    run("lvcreate", ["-n", "there", "-L", "32M", "vg", lab.disk(1)])?;
    run("vgchange", ["-an", "vg"])?;
    lab.unplug(lab.serial(1))?;
    lab.wait_for("the disk to be missed", || {
        (run("vgs", ["--noheadings", "-o", "missing_pv_count", "vg"]).ok()? == "1").then_some(())
    })?;
    run("lvchange", ["-ay", "vg/here"])?;
    let complaint = fails("lvchange", ["-ay", "vg/there"])?;
    assert!(complaint.contains("missing") || complaint.contains("partial"), "{complaint}");
    lab.plug_back(lab.serial(1))?;
    lab.wait_for("the volume group to be whole", || {
        (run("vgs", ["--noheadings", "-o", "missing_pv_count", "vg"]).ok()? == "0").then_some(())
    })?;
    run("lvchange", ["-ay", "vg/there"])?;
    Ok(())
}

fn commands_work_without_udev(lab: &Lab) -> Result {
    assert!(run("pgrep", ["-c", "systemd-udevd"]).is_err(), "systemd-udevd is running");
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-n", "thick", "-L", "32M", "vg"])?;
    write("/dev/vg/thick", "no udev")?;
    assert_eq!(read("/dev/vg/thick")?, "no udev");
    Ok(())
}

fn a_pool_is_extended_by_dmeventd(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let policy = "activation { thin_pool_autoextend_threshold = 70 thin_pool_autoextend_percent = 50 }\n";
    let mut conf = std::fs::read_to_string("/etc/lvm/lvm.conf")?;
    conf += policy;
    std::fs::write("/etc/lvm/lvm.conf", conf)?;
    run("lvcreate", ["--type", "thin-pool", "-n", "pool", "-L", "64M", "vg"])?;
    run("lvcreate", ["-n", "thin", "-V", "256M", "--thinpool", "vg/pool"])?;
    assert_eq!(field("vg/pool", "seg_monitor")?, "monitored");
    run("dd", ["if=/dev/urandom", "of=/dev/vg/thin", "bs=1M", "count=56", "oflag=direct"])?;
    lab.wait_for("dmeventd to extend the pool", || {
        (field("vg/pool", "lv_size").ok()?.parse::<u64>().ok()? > 64 * MIB).then_some(())
    })?;
    Ok(())
}

fn a_devices_file_hides_other_disks(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let listed = std::fs::read_to_string("/etc/lvm/devices/system.devices")?;
    assert!(listed.contains("PVID="), "{listed}");
    run("vgcreate", ["--devices", lab.disk(1), "hidden", lab.disk(1)])?;
    assert_eq!(run("vgs", ["--noheadings", "-o", "vg_name"])?, "vg");
    Ok(())
}

lab_test::main! {
    a_thin_volume_and_its_snapshot_keep_their_own_bytes: Needs::disks(1, GIB),
    a_thick_snapshot_keeps_the_bytes_of_its_origin: Needs::disks(1, GIB),
    raid1_and_raid5_survive_the_loss_of_a_disk: Needs::disks(3, 256 * MIB).hotplug(),
    a_striped_volume_spreads_over_its_disks: Needs::disks(2, 256 * MIB),
    a_volume_group_with_a_missing_disk_is_seen_and_is_whole_again: Needs::disks(2, 256 * MIB).hotplug(),
    commands_work_without_udev: Needs::disks(1, GIB).without_udev(),
    a_pool_is_extended_by_dmeventd: Needs::disks(1, GIB).dmeventd(),
    a_devices_file_hides_other_disks: Needs::disks(2, 256 * MIB).devices_file(),
}
