//! Programs on this host: under whose policy LVM runs, what it must not start, where it lives, and what cannot be killed.

mod changes;

use std::fs;
use std::path::Path;
use std::time::Duration;

use changes::*;
use lab_test::{GIB, Lab, MIB, Needs, Result, run};
use lvms_host::runner::{ProcessError, Program, Runner};
use lvms_host::units::Bytes;

fn a_report_that_cannot_be_killed_is_given_up(lab: &Lab) -> Result {
    let linux = linux()?;
    run("sh", ["-c", &format!("dmsetup create silent --table \"0 2048 linear {} 0\"", lab.disk(0))])?;
    run("dmsetup", ["suspend", "silent"])?;
    // Its read cannot be interrupted.
    let words = ["dd", "if=/dev/mapper/silent", "of=/dev/null", "bs=4096", "count=1", "iflag=direct"];
    let given_up = linux.run(&Program::looks(words, Duration::from_secs(10)));
    let left = || run("sh", ["-c", "pgrep -x dd || true"]);
    let still_runs = !left()?.is_empty();
    run("dmsetup", ["resume", "silent"])?;
    assert!(matches!(given_up, Err(ProcessError::TooSlow { .. })), "{given_up:?}");
    assert!(still_runs, "it could be killed");
    lab.wait_for("its end", || left().ok()?.is_empty().then_some(()))?;
    run("dmsetup", ["remove", "silent"])?;
    Ok(())
}

fn the_hosts_policy_stays_in_force(lab: &Lab) -> Result {
    // The host's file forbids the second disk, and keeps no archive.
    let mut policy = fs::read_to_string("/etc/lvm/lvm.conf")?;
    policy +=
        &format!("\ndevices {{ global_filter = [ \"r|{}|\" ] }}\nbackup {{ archive = 0 }}\n", lab.disk(1));
    fs::write("/etc/lvm/lvm.conf", policy)?;
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    linux.change(&thick("a", 1, &[])?)?;
    assert!(group(&linux)?.volumes.len() == 1);
    let ours = fs::read_to_string("/run/lvms/lvm/lvm.conf")?;
    let filter = ours.rfind("global_filter").ok_or("no filter in our file")?;
    assert!(
        ours[filter..].contains("r|^/dev/nbd|") && ours[filter..].contains(lab.disk(1)),
        "{}",
        &ours[filter..]
    );
    assert!(fs::read_dir("/etc/lvm/archive").map(|files| files.count()).unwrap_or_default() == 0);
    // LVM's backup of the group is where an administrator looks for it.
    assert!(fs::read_to_string("/etc/lvm/backup/vg")?.contains("lvms.io/name=a#20b"));
    // The file changes; the next command knows.
    let changed = fs::read_to_string("/etc/lvm/lvm.conf")?.replace("archive = 0", "archive = 1");
    fs::write("/etc/lvm/lvm.conf", changed)?;
    linux.change(&thick("b", 1, &[])?)?;
    assert!(fs::read_dir("/etc/lvm/archive")?.count() > 0);
    // Ours is made again if somebody takes it away.
    fs::remove_dir_all("/run/lvms/lvm")?;
    linux.change(&thick("c", 1, &[])?)?;
    assert!(fs::read_to_string("/run/lvms/lvm/lvm.conf")?.contains("Settings of lvms"));
    assert_eq!(group(&linux)?.volumes.len(), 3);
    Ok(())
}

fn a_host_with_a_devices_file_keeps_it(lab: &Lab) -> Result {
    run("lvm", ["lvmdevices", "-y", "--adddev", lab.disk(0)])?;
    let linux = linux()?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("pvcreate", ["--devicesfile", "", lab.disk(1)])?;
    linux.change(&thick("a", 1, &[])?)?;
    assert_eq!(group(&linux)?.disks.len(), 1);
    assert!(!fs::read_to_string("/run/lvms/lvm/lvm.conf")?.contains("r|^/dev/nbd|"));
    assert_eq!(run("vgs", ["--noheadings", "-o", "vg_name"])?, "vg");
    Ok(())
}

fn no_command_of_ours_starts_a_daemon(lab: &Lab) -> Result {
    let linux = linux()?;
    // The host asks for monitoring, though nobody monitors.
    let mut policy = fs::read_to_string("/etc/lvm/lvm.conf")?;
    policy += "\nactivation { monitoring = 1 }\n";
    fs::write("/etc/lvm/lvm.conf", policy)?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["--monitor", "n", "-qq", "-y", "--type", "thin-pool", "-n", "pool", "-l", "25", "vg"])?;
    linux.change(&thin("thin", Bytes::mib(400))?)?;
    linux.change(&thick("origin", 5, &[])?)?;
    linux.change(&snapshot_thick("origin", "cow", 1)?)?;
    let is_running = || -> Result<bool> {
        let processes = run("ps", ["-eo", "comm"])?;
        Ok(["dmeventd", "lvmpolld"].iter().any(|daemon| processes.contains(daemon)))
    };
    assert!(!is_running()?);
    // One that was killed has left the file that says that it runs.
    run("dmeventd", [""; 0])?;
    linux.change(&thick("meanwhile", 5, &[])?)?;
    run("pkill", ["-KILL", "-x", "dmeventd"])?;
    lab.wait_for("dmeventd to be gone", || is_running().is_ok_and(|runs| !runs).then_some(()))?;
    assert!(Path::new("/run/dmeventd.pid").exists());
    linux.change(&snapshot_thick("meanwhile", "another", 1)?)?;
    assert!(!is_running()?);
    for left in ["dmeventd.pid", "dmeventd-client", "dmeventd-server"] {
        let _ = fs::remove_file(Path::new("/run").join(left));
    }
    Ok(())
}

fn commands_live_in_a_control_group_of_the_hosts(_: &Lab) -> Result {
    let linux = linux()?;
    let program = lvms_host::runner::Program::looks(["cat", "/proc/self/cgroup"], Duration::from_secs(60));
    assert_eq!(linux.run(&program)?.text(), "0::/lvms");
    Ok(())
}

lab_test::main! {
    a_report_that_cannot_be_killed_is_given_up: Needs::disks(1, GIB).guest(),
    the_hosts_policy_stays_in_force: Needs::disks(2, 256 * MIB).guest(),
    a_host_with_a_devices_file_keeps_it: Needs::disks(2, 256 * MIB).devices_file(),
    no_command_of_ours_starts_a_daemon: Needs::disks(1, GIB).guest(),
    commands_live_in_a_control_group_of_the_hosts: Needs::nothing().guest(),
}
