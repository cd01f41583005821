//! LVM commands that hang, are killed, or are run by others meanwhile.

mod driver;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use driver::{Driver, FIGURES, MIB, PROGRAM, device, figures, refused};
use lab_csi::{Access, Client, Code};
use lab_test::{GIB, Lab, Needs, Result, fails, run};

const TWO_GROUPS: &str = "
  - {name: a, volume-group: a, spare-gb: 0, default: true}
  - {name: b, volume-group: b, spare-gb: 0}
";

/// Stands for lvm2's program. While there is a file `hold`, a command that makes or refreshes a volume in `a` waits
/// before it begins; while there is a file `slow`, one that makes a snapshot gives time between its calls of
/// device-mapper.
const LVM: &str = r#"#!/bin/sh
case "$*" in
lvcreate*--snapshot*)
    [ -e /run/test/slow ] &&
        exec strace -D -qq -o /run/test/trace -e trace=ioctl -e inject=ioctl:delay_exit=50000 /sbin/lvm "$@";;
lvcreate*' a'|lvchange*--refresh*' a/'*)
    while [ -e /run/test/hold ]; do echo $$ > /run/test/held; sleep 0.1; done;;
esac
exec /sbin/lvm "$@"
"#;

fn start(lab: &Lab, deadline: &str) -> Result<Driver> {
    let lvm = lab.state().join("lvm");
    fs::write(&lvm, LVM)?;
    fs::set_permissions(&lvm, fs::Permissions::from_mode(0o755))?;
    let lvm = lvm.to_string_lossy();
    let options = ["--lvm-path", &lvm, "--command-deadline", deadline, "--metrics-bind-address", FIGURES];
    Driver::start(lab, TWO_GROUPS, &options)
}

fn is_stuck(group: &str) -> Result<bool> {
    let answer = figures("/metrics")?;
    let figure = |value| {
        answer
            .contains(&format!("lvms_volumegroup_stuck{{node=\"here\",volume_group=\"{group}\"}} {value}\n"))
    };
    assert!(figure(0) || figure(1), "{answer}");
    Ok(figure(1))
}

fn make(client: &Client, name: &str, class: &str) -> std::result::Result<String, lab_csi::Status> {
    Ok(client.create(name, class, 64 * MIB, Access::Block, None)?.volume_id)
}

/// Makes a volume with a single command, without zeros.
fn quickly(client: &Client, name: &str) -> std::result::Result<String, lab_csi::Status> {
    Ok(client.create(name, "a", 64 * MIB, Access::Filesystem("ext4"), None)?.volume_id)
}

/// Makes and removes something in the other group.
fn others_go_on(client: &Client) -> Result {
    client.delete(&make(client, "beside", "b")?)?;
    assert!(!is_stuck("b")?);
    Ok(())
}

fn suspended() -> Result<String> {
    run("sh", ["-c", "dmsetup info -c --noheadings -o name,suspended | sed -n 's/:Suspended$//p'"])
}

fn a_command_that_hangs_before_it_begins_is_told_and_others_go_on(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = start(lab, "20")?;
    let client = &driver.client;
    let there = make(client, "there", "a")?;
    let target = lab.state().join("there");
    client.publish(&there, &target, Access::Block)?;
    fs::write("/run/test/hold", "")?;
    let create = || make(client, "held", "a");
    let told = refused(
        create(),
        Code::Unavailable,
        &["has not ended", "/run/test/lvm lvcreate", "goes on by itself"],
    );
    let pid = fs::read_to_string("/run/test/held")?.trim().to_owned();
    assert!(told.contains(&format!("process {pid} ")) && told.contains(&format!("`kill {pid}`")), "{told}");
    assert!(is_stuck("a")?);
    assert_eq!(client.capacity("a")?, 0);
    // Told at once to whoever comes, and seen in the condition of what is there.
    refused(make(client, "next", "a"), Code::Unavailable, &[&format!("process {pid} ")]);
    refused(client.delete(&there), Code::Unavailable, &[&format!("process {pid} ")]);
    let condition = client.stats(&there, &target)?.volume_condition.ok_or("no condition")?;
    assert!(condition.abnormal && condition.message.contains(&format!("process {pid} ")), "{condition:?}");
    client.unpublish(&there, &target)?;
    others_go_on(client)?;
    fs::remove_file("/run/test/hold")?;
    lab.wait_for("the group to go on", || (!is_stuck("a").ok()?).then_some(()))?;
    assert!(client.capacity("a")? > 0);
    // It was never killed: what it was to make is there.
    assert!(run("lvs", ["--noheadings", "-o", "lv_tags", "a"])?.contains("lvms.io/name=held"));
    client.delete(&create()?)?;
    client.delete(&there)?;
    Ok(())
}

/// A real LVM command that makes a snapshot, stopped between suspend and resume. Not by a signal: when the driver dies,
/// the kernel lets stopped processes of orphaned groups go on.
struct Stopped {
    pid: String,
}

/// The control group in which it is frozen.
const ICE: &str = "/sys/fs/cgroup/ice";

impl Stopped {
    fn wait(lab: &Lab, origin: &Path) -> Result<Stopped> {
        let node = fs::canonicalize(origin)?;
        let state = Path::new("/sys/block").join(node.file_name().ok_or("no device")?).join("dm/suspended");
        lab.wait_for("the origin to be suspended", || {
            (fs::read_to_string(&state).ok()?.trim() == "1").then_some(())
        })?;
        fs::create_dir_all(ICE)?;
        let pid = command_at_work()?.ok_or("no command makes a snapshot")?;
        fs::write(format!("{ICE}/cgroup.procs"), &pid)?;
        fs::write(format!("{ICE}/cgroup.freeze"), "1")?;
        fs::remove_file("/run/test/slow")?;
        lab.wait_for("the command to stand still", || {
            fs::read_to_string(format!("{ICE}/cgroup.events")).ok()?.contains("frozen 1").then_some(())
        })?;
        assert_eq!(fs::read_to_string(&state)?.trim(), "1", "it was stopped too late");
        Ok(Stopped { pid })
    }

    fn go_on(&self) -> Result {
        Ok(fs::write(format!("{ICE}/cgroup.freeze"), "0")?)
    }

    fn kill(&self) -> Result {
        run("kill", ["-KILL", &self.pid])?;
        self.go_on()
    }

    fn runs(&self) -> bool {
        Path::new("/proc").join(&self.pid).exists()
    }
}

fn command_at_work() -> Result<Option<String>> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.starts_with("/sbin/lvm lvcreate ") && words.contains("--snapshot") {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

fn a_command_that_hangs_with_a_device_suspended_is_told_and_others_go_on(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = start(lab, "45")?;
    let (client, second) = (&driver.client, driver.connect()?);
    let origin = make(client, "origin", "a")?;
    let elsewhere = make(client, "elsewhere", "b")?;
    let node = device("a", &origin);
    let name = node.file_name().ok_or("no name")?.to_string_lossy().into_owned();
    fs::write("/run/test/slow", "")?;
    let stopped = std::thread::scope(|scope| -> Result<Stopped> {
        let call = scope.spawn(|| second.snapshot("moment", &origin));
        let stopped = Stopped::wait(lab, &node)?;
        let answer = call.join().map_err(|_| "the call panicked")?;
        let process = format!("process {} ", stopped.pid);
        refused(answer, Code::Unavailable, &[&process, "suspended", &name, "lvcreate", "resumed"]);
        Ok(stopped)
    })?;
    assert!(is_stuck("a")? && stopped.runs());
    refused(client.snapshot("next", &origin), Code::Unavailable, &["suspended", &name]);
    let mut check = Command::new(PROGRAM);
    check.arg("check").arg(lab.state().join("driver.yaml")).stdout(Stdio::piped());
    let check = check.spawn()?;
    others_go_on(client)?;
    client.delete(&elsewhere)?;
    assert!(suspended()?.lines().any(|line| line == name));

    stopped.go_on()?;
    lab.wait_for("the group to go on", || (!is_stuck("a").ok()?).then_some(()))?;
    assert_eq!(suspended()?, "");
    assert!(client.snapshot("moment", &origin)?.ready_to_use);
    let said = check.wait_with_output()?;
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains(&format!("error    volume group a: device {name} is suspended")), "{said}");
    Ok(())
}

fn a_command_killed_with_a_device_suspended_leaves_nothing_suspended(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = start(lab, "180")?;
    let (client, second) = (&driver.client, driver.connect()?);
    let origin = make(client, "origin", "a")?;
    let node = device("a", &origin);
    fs::write("/run/test/slow", "")?;
    std::thread::scope(|scope| -> Result {
        let call = scope.spawn(|| second.snapshot("moment", &origin));
        Stopped::wait(lab, &node)?.kill()?;
        refused(call.join().map_err(|_| "the call panicked")?, Code::Internal, &["lvcreate", "signal: 9"]);
        Ok(())
    })?;
    assert_eq!(suspended()?, "");
    run("dd", ["if=/dev/urandom", &format!("of={}", node.display()), "bs=1M", "count=8", "oflag=direct"])?;
    // It is a snapshot, and not what lvm2 makes before: it has the moment's bytes when the origin has others.
    let snapshot = client.snapshot("moment", &origin)?;
    assert!(snapshot.ready_to_use);
    assert_eq!(run("lvs", ["--noheadings", "-o", "origin", &format!("a/{}", snapshot.snapshot_id)])?, origin);
    let moment = device("a", &snapshot.snapshot_id);
    run("cmp", [&node, &moment])?;
    run("dd", ["if=/dev/urandom", &format!("of={}", node.display()), "bs=1M", "count=1", "oflag=direct"])?;
    fails("cmp", [&node, &moment])?;
    Ok(())
}

/// The control group that stands for the driver's pod.
const POD: &str = "/sys/fs/cgroup/pod";

fn a_pod_killed_in_the_middle_of_a_snapshot_leaves_nothing_suspended(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let mut driver = start(lab, "180")?;
    let second = driver.connect()?;
    let origin = make(&driver.client, "origin", "a")?;
    let node = device("a", &origin);
    fs::create_dir_all(POD)?;
    fs::write(format!("{POD}/cgroup.procs"), driver.running.process.id().to_string())?;
    fs::write("/run/test/slow", "")?;
    let stopped = std::thread::scope(|scope| -> Result<Stopped> {
        let call = scope.spawn(|| second.snapshot("moment", &origin));
        let stopped = Stopped::wait(lab, &node)?;
        fs::write(format!("{POD}/cgroup.kill"), "1")?;
        driver.running.process.wait()?;
        assert!(call.join().map_err(|_| "the call panicked")?.is_err());
        Ok(stopped)
    })?;
    assert!(stopped.runs(), "the command went with the pod");
    fs::remove_dir(POD)?;
    // The next pod comes while the command is at work: it must not take the device from under it.
    let log: PathBuf = lab.state().join("driver.log");
    let driver = std::thread::scope(|scope| -> Result<Driver> {
        let starting = scope.spawn(|| start(lab, "180"));
        let seen = lab.wait_for("the next driver to see it", || {
            fs::read_to_string(&log).ok()?.contains("what it has begun is left to it").then_some(())
        });
        let still = suspended();
        stopped.go_on()?;
        seen?;
        assert_ne!(still?, "", "the device was resumed under the command");
        starting.join().map_err(|_| "the start panicked")?
    })?;
    assert!(driver.client.snapshot("moment", &origin)?.ready_to_use);
    assert_eq!(suspended()?, "");
    assert!(!stopped.runs());
    Ok(())
}

fn a_driver_starts_while_a_command_hangs_and_serves_the_other_groups(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = start(lab, "180")?;
    let second = driver.connect()?;
    let origin = make(&driver.client, "origin", "a")?;
    let elsewhere = make(&driver.client, "elsewhere", "b")?;
    fs::write("/run/test/slow", "")?;
    let stopped = std::thread::scope(|scope| -> Result<Stopped> {
        let call = scope.spawn(|| second.snapshot("moment", &origin));
        let stopped = Stopped::wait(lab, &device("a", &origin))?;
        drop(driver);
        assert!(call.join().map_err(|_| "the call panicked")?.is_err());
        Ok(stopped)
    })?;
    let driver = start(lab, "180")?;
    let client = &driver.client;
    assert!(stopped.runs());
    others_go_on(client)?;
    client.delete(&elsewhere)?;
    // Nothing is known of its group, and least of all that it is gone; what holds it up is.
    let process = format!("process {} ", stopped.pid);
    let name = device("a", &origin);
    let name = name.file_name().ok_or("no name")?.to_string_lossy();
    for refusal in [client.delete(&origin).err(), client.snapshot("moment", &origin).err()] {
        refused(
            refusal.map_or(Ok(()), Err),
            Code::Unavailable,
            &[&process, "lvcreate", &name, "goes on by itself"],
        );
    }
    refused(make(client, "next", "a"), Code::Unavailable, &[&process]);
    assert!(is_stuck("a")? && client.capacity("a")? == 0);
    stopped.go_on()?;
    lab.wait_for("the group to go on", || (!is_stuck("a").ok()?).then_some(()))?;
    lab.wait_for("the group to be known", || client.snapshot("moment", &origin).ok())?;
    assert_eq!(suspended()?, "");
    Ok(())
}

fn a_refresh_that_hangs_is_told_and_its_group_goes_on_when_it_has_ended(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = start(lab, "20")?;
    let volume = quickly(&driver.client, "v")?;
    drop(driver);
    // As a killed command leaves it.
    run("dmsetup", ["suspend", &format!("/dev/mapper/a-{}", volume.replace('-', "--"))])?;
    fs::write("/run/test/hold", "")?;
    let driver = start(lab, "20")?;
    let client = &driver.client;
    assert!(is_stuck("a")?);
    refused(client.delete(&volume), Code::Unavailable, &["has not ended", "--refresh"]);
    others_go_on(client)?;
    fs::remove_file("/run/test/hold")?;
    lab.wait_for("the group to go on", || (!is_stuck("a").ok()?).then_some(()))?;
    assert_eq!(suspended()?, "");
    client.delete(&volume)?;
    Ok(())
}

fn two_drivers_share_a_group(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let first = Driver::start(lab, TWO_GROUPS, &[])?;
    let runtime = lab.state().join("runtime");
    let options = ["--runtime-directory", &runtime.to_string_lossy()];
    let second = Driver::start_named(lab, "second", TWO_GROUPS, &options)?;
    let work = |client: &Client, who: &str| -> Result {
        // One is each driver's own, and one both want at the same time.
        for round in 0..2 {
            let own = quickly(client, &format!("{who} {round}"))?;
            let shared = quickly(client, &format!("shared {round}"))?;
            client.delete_snapshot(&client.snapshot(&format!("{who} {round}"), &own)?.snapshot_id)?;
            client.delete(&own)?;
            client.delete(&shared)?;
        }
        quickly(client, &format!("{who} last"))?;
        quickly(client, "both last")?;
        Ok(())
    };
    std::thread::scope(|scope| -> Result {
        let other = scope.spawn(|| work(&second.client, "second"));
        let ours = work(&first.client, "first");
        let theirs = other.join().map_err(|_| "the other panicked")?;
        ours?;
        theirs
    })?;
    let tags = run("lvs", ["--noheadings", "-o", "lv_tags", "a"])?;
    for name in ["first#20last", "second#20last", "both#20last"] {
        assert_eq!(tags.matches(&format!("lvms.io/name={name}")).count(), 1, "{tags}");
    }
    assert_eq!(tags.lines().count(), 3, "{tags}");
    run("vgck", ["a"])?;
    Ok(())
}

fn an_administrator_works_in_the_same_group_meanwhile(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    run("pvcreate", ["-qq", lab.disk(2)])?;
    let driver = Driver::start(lab, TWO_GROUPS, &[])?;
    let client = &driver.client;
    run("lvcreate", ["-qq", "-y", "-n", "theirs", "-L", "16m", "a"])?;
    let precious = ["if=/dev/urandom", "of=/dev/a/theirs", "bs=1M", "count=16", "oflag=direct"];
    run("dd", precious)?;
    let before = run("sha256sum", ["/dev/a/theirs"])?;
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| -> Result<u32> {
        let administrator = scope.spawn(|| -> Result<u32> {
            let mut rounds = 0;
            while !done.load(Ordering::SeqCst) {
                run("lvcreate", ["-qq", "-y", "-n", "new", "-L", "8m", "a"])?;
                run("lvchange", ["-qq", "--addtag", &format!("round{rounds}"), "a/theirs"])?;
                run("lvrename", ["-qq", "a/new", "a/renamed"])?;
                run("vgextend", ["-qq", "a", lab.disk(2)])?;
                run("lvremove", ["-qq", "-y", "a/renamed"])?;
                // In vain while a volume lies there.
                let _ = run("vgreduce", ["-qq", "a", lab.disk(2)]);
                rounds += 1;
            }
            Ok(rounds)
        });
        let work = || -> Result {
            for round in 0..2 {
                let made = quickly(client, &format!("v{round}"))?;
                client.grow(&made, 96 * MIB, Access::Filesystem("ext4"), None)?;
                let snapshot = client.snapshot(&format!("s{round}"), &made)?.snapshot_id;
                client.delete_snapshot(&snapshot)?;
                client.delete(&made)?;
            }
            Ok(())
        };
        let worked = work();
        done.store(true, Ordering::SeqCst);
        let rounds = administrator.join().map_err(|_| "the administrator panicked")??;
        worked.map(|()| rounds)
    })?;
    assert!(rounds > 0);
    assert_eq!(run("sha256sum", ["/dev/a/theirs"])?, before);
    let tags = run("lvs", ["--noheadings", "-o", "lv_tags", "a"])?;
    assert!(!tags.contains("lvms.io"), "{tags}");
    assert_eq!(tags.matches("round").count(), usize::try_from(rounds)?);
    run("vgck", ["a"])?;
    Ok(())
}

lab_test::main! {
    a_command_that_hangs_before_it_begins_is_told_and_others_go_on: Needs::disks(2, GIB / 2).guest(),
    a_command_that_hangs_with_a_device_suspended_is_told_and_others_go_on: Needs::disks(2, GIB / 2).guest(),
    a_command_killed_with_a_device_suspended_leaves_nothing_suspended: Needs::disks(2, GIB / 2).guest(),
    a_pod_killed_in_the_middle_of_a_snapshot_leaves_nothing_suspended: Needs::disks(2, GIB / 2).guest(),
    a_driver_starts_while_a_command_hangs_and_serves_the_other_groups: Needs::disks(2, GIB / 2).guest(),
    a_refresh_that_hangs_is_told_and_its_group_goes_on_when_it_has_ended: Needs::disks(2, GIB / 2).guest(),
    two_drivers_share_a_group: Needs::disks(2, GIB / 2).guest(),
    an_administrator_works_in_the_same_group_meanwhile: Needs::disks(3, GIB / 2).guest(),
}
