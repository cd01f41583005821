//! The power goes while something is being written.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;

use lab_test::{Cut, GIB, Lab, Needs, Result, run};

const PLACE: &str = "/mnt";
const DEVICE: &str = "/dev/vg/volume";

/// Writes without end, from a thread of its own, so that the cut comes in the middle of it.
fn write_for_ever() {
    std::thread::spawn(|| -> Result {
        let mut file = fs::File::create(format!("{PLACE}/endless"))?;
        loop {
            file.write_all(&vec![0x5a; 1 << 20])?;
            if file.metadata()?.len() > 256 << 20 {
                file.set_len(0)?;
            }
        }
    });
}

fn synced_files_and_the_volume_group_survive_a_cut_during_a_write(lab: &Lab) -> Result {
    write_and_cut(lab, Cut::Kill)
}

fn synced_files_and_the_volume_group_survive_the_loss_of_unflushed_writes(lab: &Lab) -> Result {
    write_and_cut(lab, Cut::LoseUnflushed)
}

fn write_and_cut(lab: &Lab, cut: Cut) -> Result {
    if lab.boots() == 0 {
        run("vgcreate", ["vg", lab.disk(0)])?;
        run("lvcreate", ["-n", "volume", "-L", "512M", "vg"])?;
        run("mkfs.ext4", ["-q", DEVICE])?;
        run("mount", [DEVICE, PLACE])?;
        let mut file = fs::File::create(format!("{PLACE}/synced"))?;
        file.write_all(b"synced")?;
        file.sync_all()?;
        fs::File::open(PLACE)?.sync_all()?;
        fs::write(lab.state().join("note"), "from before the cut")?;
        run("sync", ["-f", "/state"])?;
        write_for_ever();
        lab.wait_for("the endless write to run", || {
            (fs::metadata(format!("{PLACE}/endless")).ok()?.len() > 4 << 20).then_some(())
        })?;
        return lab.cut_power(cut);
    }
    assert_eq!(fs::read_to_string(lab.state().join("note"))?, "from before the cut");
    assert_eq!(run("vgs", ["--noheadings", "-o", "vg_name"])?, "vg");
    run("mount", [DEVICE, PLACE])?;
    assert_eq!(fs::read_to_string(format!("{PLACE}/synced"))?, "synced");
    Ok(())
}

fn unflushed_writes_are_there_after_one_kind_of_cut_and_gone_after_the_other(lab: &Lab) -> Result {
    let open = || fs::OpenOptions::new().read(true).write(true).open(lab.disk(0));
    let byte_at = |offset| -> Result<u8> {
        let mut byte = [0];
        open()?.read_exact_at(&mut byte, offset)?;
        Ok(byte[0])
    };
    // O_DIRECT hands the bytes to the disk and does not ask it to flush.
    let direct = |letter: char, offset: u64| {
        let place =
            [&format!("of={}", lab.disk(0)), "bs=4096", "count=1", &format!("seek={offset}"), "oflag=direct"];
        lab_test::run_with_input("dd", place, letter.to_string().repeat(4096).as_bytes())
    };
    match lab.boots() {
        0 => {
            direct('f', 0)?;
            run("blockdev", ["--flushbufs", lab.disk(0)])?;
            open()?.sync_all()?;
            direct('k', 1)?;
            lab.cut_power(Cut::Kill)
        }
        1 => {
            assert_eq!((byte_at(0)?, byte_at(4096)?), (b'f', b'k'), "the disk kept what it was given");
            direct('u', 2)?;
            assert_eq!(byte_at(2 * 4096)?, b'u');
            lab.cut_power(Cut::LoseUnflushed)
        }
        _ => {
            assert_eq!((byte_at(0)?, byte_at(4096)?), (b'f', b'k'), "what was flushed is there");
            assert_eq!(byte_at(2 * 4096)?, 0, "what was not flushed is gone");
            Ok(())
        }
    }
}

fn lvm_policy_and_the_devices_file_survive_a_cut(lab: &Lab) -> Result {
    let file = "/etc/lvm/devices/system.devices";
    if lab.boots() == 0 {
        run("vgcreate", ["vg", lab.disk(0)])?;
        run("sync", ["-f", "/state"])?;
        return lab.cut_power(Cut::Kill);
    }
    assert!(fs::read_to_string(file)?.contains("PVID="));
    assert_eq!(run("vgs", ["--noheadings", "-o", "vg_name"])?, "vg");
    Ok(())
}

lab_test::main! {
    synced_files_and_the_volume_group_survive_a_cut_during_a_write: Needs::disks(1, GIB).power_cut(),
    synced_files_and_the_volume_group_survive_the_loss_of_unflushed_writes: Needs::disks(1, GIB).faults().power_cut(),
    unflushed_writes_are_there_after_one_kind_of_cut_and_gone_after_the_other: Needs::disks(1, GIB).faults().power_cut(),
    lvm_policy_and_the_devices_file_survive_a_cut: Needs::disks(1, GIB).devices_file().power_cut(),
}
