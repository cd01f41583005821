//! Calls that wait for what does not answer, and all others, which are answered meanwhile.

mod driver;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use driver::{Driver, FIGURES, MIB, figures, refused};
use lab_csi::{Access, Client, Code, Status, proto};
use lab_test::{Fault, GIB, Lab, Needs, Result, run};

const EXT4: Access = Access::Filesystem("ext4");

const CLASSES: &str = "
  - {name: a, volume-group: a, spare-gb: 0, default: true}
  - {name: b, volume-group: b, spare-gb: 0}
lvcreate-option-classes:
  - {name: wide, options: [--stripes=2]}
";

const IN_A_POOL: &str = "
  - {name: a, volume-group: a, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}, default: true}
  - {name: b, volume-group: b, spare-gb: 0}
";

/// Stands for lvm2's program. While there is a file `hold`, a command that makes a volume in `a` waits.
const LVM: &str = r#"#!/bin/sh
case "$*" in
lvcreate*' a')
    while [ -e /run/test/hold ]; do touch /run/test/held; sleep 0.1; done;;
esac
exec /sbin/lvm "$@"
"#;

fn is_healthy() -> Result<bool> {
    Ok(figures("/healthz")?.contains("200 OK"))
}

/// What can be had on several disks at once.
fn capacity_over_disks(client: &Client) -> std::result::Result<i64, Status> {
    let parameters = [("topolvm.io/device-class", "a"), ("topolvm.io/lvcreate-option-class", "wide")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let request = proto::GetCapacityRequest { parameters: HashMap::from(parameters), ..Default::default() };
    Ok(client.controller(async |mut controller| controller.get_capacity(request).await)?.available_capacity)
}

fn a_look_that_waits_for_a_command_lets_all_other_calls_be_answered(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0), lab.disk(1)])?;
    run("vgcreate", ["b", lab.disk(2)])?;
    let lvm = lab.state().join("lvm");
    fs::write(&lvm, LVM)?;
    fs::set_permissions(&lvm, fs::Permissions::from_mode(0o755))?;
    let lvm = lvm.to_string_lossy();
    let driver = Driver::start(lab, CLASSES, &["--lvm-path", &lvm, "--metrics-bind-address", FIGURES])?;
    let (client, making, looking) = (&driver.client, driver.connect()?, driver.connect()?);
    // Where LVM has put it is not known, and must be before several disks can be filled.
    let first = client.create("first", "a", 64 * MIB, EXT4, None)?.volume_id;
    fs::write("/run/test/hold", "")?;
    std::thread::scope(|scope| -> Result {
        let made = scope.spawn(|| making.create("held", "a", 64 * MIB, EXT4, None));
        let mut made_later = Vec::new();
        let mut others = || -> Result {
            lab.wait_for("the command to hang", || Path::new("/run/test/held").exists().then_some(()))?;
            let capacity = scope.spawn(|| capacity_over_disks(&looking));
            for _ in 0..2 {
                client.delete(&client.create("beside", "b", 8 * MIB, EXT4, None)?.volume_id)?;
                assert!(client.capacity("b")? > 0 && is_healthy()?);
                client.controller(async |mut controller| {
                    controller.list_volumes(proto::ListVolumesRequest::default()).await
                })?;
            }
            // Whoever waits for its turn in one group keeps nobody from another, however many they are.
            for number in 0..MANY {
                let waiting = driver.connect()?;
                made_later.push(
                    scope.spawn(move || waiting.create(&format!("waits {number}"), "a", 8 * MIB, EXT4, None)),
                );
            }
            client.delete(&client.create("beside", "b", 8 * MIB, EXT4, None)?.volume_id)?;
            // Whoever asks and waits too long has no answer, and lets others have theirs.
            let many = (0..MANY).map(|_| driver.connect()).collect::<Result<Vec<_>>>()?;
            let many: Vec<_> =
                many.into_iter().map(|client| scope.spawn(move || capacity_over_disks(&client))).collect();
            client.delete(&client.create("beside", "b", 8 * MIB, EXT4, None)?.volume_id)?;
            for call in many {
                assert_eq!(call.join().map_err(|_| "a look panicked")??, 0);
            }
            assert_eq!(capacity.join().map_err(|_| "the look panicked")??, 0);
            assert!(Path::new("/run/test/hold").exists() && is_healthy()?);
            fs::remove_file("/run/test/hold")?;
            lab.wait_for("room in the group", || (capacity_over_disks(&looking).ok()? > 0).then_some(()))?;
            Ok(())
        };
        let went = others();
        let _ = fs::remove_file("/run/test/hold");
        client.delete(&made.join().map_err(|_| "the call panicked")??.volume_id)?;
        for call in made_later {
            client.delete(&call.join().map_err(|_| "a call panicked")??.volume_id)?;
        }
        went
    })?;
    client.delete(&first)?;
    Ok(())
}

/// More than a driver has threads when nobody waits.
const MANY: usize = 80;

/// How full a volume is at each of these paths, asked at once.
fn stats(
    driver: &Driver,
    id: &str,
    paths: &[PathBuf],
) -> Result<Vec<std::result::Result<proto::NodeGetVolumeStatsResponse, Status>>> {
    let clients = paths.iter().map(|_| driver.connect()).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let ask = |(client, path): (Client, PathBuf)| scope.spawn(move || client.stats(id, &path));
        let calls: Vec<_> = clients.into_iter().zip(paths.iter().cloned()).map(ask).collect();
        calls.into_iter().map(|call| Ok(call.join().map_err(|_| "a call panicked")?)).collect()
    })
}

fn filesystems_that_do_not_answer_hold_no_other_volume_up(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = Driver::start(lab, CLASSES, &["--metrics-bind-address", FIGURES])?;
    let client = &driver.client;
    let (dead, well) = (lab.state().join("dead"), lab.state().join("well"));
    let in_a = client.create("in a", "a", 64 * MIB, EXT4, None)?.volume_id;
    let in_b = client.create("in b", "b", 64 * MIB, EXT4, None)?.volume_id;
    client.publish(&in_b, &well, EXT4)?;
    // A path that leads through a disk that LVM does not read: to follow it is to wait.
    fs::create_dir(&dead)?;
    let mount = [lab.disk(2), &dead.to_string_lossy()];
    run("mkfs.ext4", ["-q", lab.disk(2)])?;
    run("mount", mount)?;
    fs::create_dir(dead.join("cold"))?;
    run("umount", [lab.disk(2)])?;
    run("mount", mount)?;
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    lab.fault(2, Fault::Delay { milliseconds: 3_600_000 })?;
    let paths: Vec<PathBuf> = (0..MANY).map(|number| dead.join(format!("cold/{number}/volume"))).collect();
    let went = std::thread::scope(|scope| -> Result {
        let waiting = scope.spawn(|| stats(&driver, &in_a, &paths));
        let others = || -> Result {
            for _ in 0..2 {
                for answer in stats(&driver, &in_b, &vec![well.clone(); 8])? {
                    assert!(!answer?.usage.is_empty());
                }
                client.delete(&client.create("beside", "b", 8 * MIB, EXT4, None)?.volume_id)?;
                assert!(is_healthy()?);
            }
            for answer in waiting.join().map_err(|_| "the calls panicked")?? {
                refused(answer, Code::Unavailable, &["volume_path", "does not answer"]);
            }
            // Their threads still wait: the other group's volumes are measured, and made, as before.
            client.delete(&client.create("beside", "b", 8 * MIB, EXT4, None)?.volume_id)?;
            assert!(!client.stats(&in_b, &well)?.usage.is_empty());
            let status = format!("/proc/{}/status", driver.running.process.id());
            let threads = || -> Result<usize> {
                let status = fs::read_to_string(&status)?;
                let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
                Ok(line.ok_or("no threads")?.trim().parse()?)
            };
            lab.wait_for("the threads of most of them to end", || (threads().ok()? < MANY).then_some(()))
        };
        let went = others();
        // Whoever waits would keep the driver from ending.
        lab.fault(2, Fault::None)?;
        went
    });
    went?;
    let there = lab.state().join("there");
    client.publish(&in_a, &there, EXT4)?;
    lab.wait_for("the group to be measured again", || client.stats(&in_a, &there).ok())?;
    refused(client.stats(&in_a, &paths[0]), Code::NotFound, &["not published"]);
    client.unpublish(&in_a, &there)?;
    client.unpublish(&in_b, &well)?;
    run("umount", [lab.disk(2)])?;
    Ok(())
}

fn a_disk_that_does_not_answer_holds_no_other_volume_up(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = Driver::start(lab, CLASSES, &["--metrics-bind-address", FIGURES])?;
    let (client, target, well) = (&driver.client, lab.state().join("target"), lab.state().join("well"));
    let in_a = client.create("in a", "a", 64 * MIB, EXT4, None)?.volume_id;
    let in_b = client.create("in b", "b", 64 * MIB, EXT4, None)?.volume_id;
    client.publish(&in_b, &well, EXT4)?;
    lab.fault(0, Fault::Delay { milliseconds: 3_600_000 })?;
    let went = std::thread::scope(|scope| -> Result {
        let (publishing, to_publish, at) = (driver.connect()?, &in_a, &target);
        let published = scope.spawn(move || publishing.publish(to_publish, at, EXT4));
        let others = || -> Result {
            for _ in 0..2 {
                assert!(client.capacity("b")? > 0 && is_healthy()?);
                assert!(!client.stats(&in_b, &well)?.usage.is_empty());
            }
            let published = published.join().map_err(|_| "the call panicked")?;
            refused(published.map(drop), Code::Unavailable, &["volume group a", "do not answer"]);
            refused(
                client.create("more", "a", 8 * MIB, EXT4, None).map(drop),
                Code::Unavailable,
                &["volume group a", "do not answer"],
            );
            client.unpublish(&in_a, &target)?;
            assert_eq!(client.capacity("a")?, 0);
            client.unpublish(&in_b, &well)?;
            client.publish(&in_b, &well, EXT4)?;
            Ok(())
        };
        let went = others();
        lab.fault(0, Fault::None)?;
        went
    });
    went?;
    lab.wait_for("the group to serve again", || client.publish(&in_a, &target, EXT4).ok())?;
    for (id, target) in [(&in_a, &target), (&in_b, &well)] {
        client.unpublish(id, target)?;
        client.delete(id)?;
    }
    Ok(())
}

/// Stands for lvm2's program. While there is a file `hold`, a command that has made a volume in `a` does not end.
const SLOW_TO_END: &str = r#"#!/bin/sh
case "$*" in
lvcreate*' a')
    /sbin/lvm "$@" || exit $?
    while [ -e /run/test/hold ]; do touch /run/test/held; sleep 0.1; done
    exit 0;;
esac
exec /sbin/lvm "$@"
"#;

fn a_disk_that_does_not_answer_when_a_volume_was_made_is_told_and_the_same_call_goes_on(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let lvm = lab.state().join("lvm");
    fs::write(&lvm, SLOW_TO_END)?;
    fs::set_permissions(&lvm, fs::Permissions::from_mode(0o755))?;
    let driver = Driver::start(lab, CLASSES, &["--lvm-path", &lvm.to_string_lossy()])?;
    let (client, making) = (&driver.client, driver.connect()?);
    let create = |client: &Client| client.create("in a", "a", 64 * MIB, EXT4, None);
    let (in_b, well) =
        (client.create("in b", "b", 64 * MIB, EXT4, None)?.volume_id, lab.state().join("well"));
    client.publish(&in_b, &well, EXT4)?;
    fs::write("/run/test/hold", "")?;
    let went = std::thread::scope(|scope| -> Result {
        let made = scope.spawn(|| create(&making));
        let others = || -> Result {
            lab.wait_for("the volume to be made", || Path::new("/run/test/held").exists().then_some(()))?;
            lab.fault(0, Fault::Delay { milliseconds: 3_600_000 })?;
            fs::remove_file("/run/test/hold")?;
            client.unpublish(&in_b, &well)?;
            client.publish(&in_b, &well, EXT4)?;
            let made = made.join().map_err(|_| "the call panicked")?;
            refused(made, Code::Internal, &["flush of the disks of a", "does not answer"]);
            refused(create(client), Code::Unavailable, &["volume group a", "do not answer"]);
            Ok(())
        };
        let went = others();
        let _ = fs::remove_file("/run/test/hold");
        lab.fault(0, Fault::None)?;
        went
    });
    went?;
    let made = lab.wait_for("the group to serve again", || create(client).ok())?;
    client.delete(&made.volume_id)?;
    client.unpublish(&in_b, &well)?;
    client.delete(&in_b)?;
    Ok(())
}

/// A program that is asked until it waits for a disk.
struct Waiting(Child);

impl Waiting {
    fn on(lab: &Lab, program: &str, arguments: &[&str]) -> Result<Waiting> {
        let ask = || Command::new(program).args(arguments).stdout(Stdio::null()).spawn();
        let mut asked = ask()?;
        let mut seen = 0;
        lab.wait_for(&format!("{program} to wait for a disk"), || {
            if asked.try_wait().ok()?.is_some() {
                (asked, seen) = (ask().ok()?, 0);
            }
            // Whoever waits for a disk is in this state, and for a moment also who waits for something else.
            let stat = fs::read_to_string(format!("/proc/{}/stat", asked.id())).ok()?;
            seen = if stat.contains(") D ") { seen + 1 } else { 0 };
            (seen == 20).then_some(())
        })?;
        Ok(Waiting(asked))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

fn a_thin_pool_whose_disk_does_not_answer_holds_no_other_volume_up(lab: &Lab) -> Result {
    run("vgcreate", ["a", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "256m", "a"])?;
    run("vgcreate", ["b", lab.disk(1)])?;
    let driver = Driver::start(lab, IN_A_POOL, &["--metrics-bind-address", FIGURES])?;
    let (client, target, well) = (&driver.client, lab.state().join("target"), lab.state().join("well"));
    let in_a = client.create("in a", "a", 64 * MIB, Access::Block, None)?.volume_id;
    let in_b = client.create("in b", "b", 64 * MIB, EXT4, None)?.volume_id;
    client.publish(&in_a, &target, Access::Block)?;
    client.publish(&in_b, &well, EXT4)?;
    // The pool always has something to write down, and whoever asks it waits until that is done.
    let writes = lab.state().join("writes");
    fs::write(&writes, "")?;
    let write = format!(
        "while [ -e {0} ]; do dd if=/dev/zero of={1} bs=64k count=512 oflag=direct; blkdiscard {1}; done 2> /dev/null",
        writes.display(),
        target.display(),
    );
    let mut writing = Command::new("sh").args(["-c", &write]).spawn()?;
    lab.fault(0, Fault::Delay { milliseconds: 3_600_000 })?;
    // Until the disk answers again, nobody who waits for it can end.
    let mut waiting = None;
    let mut others = || -> Result {
        waiting = Some(Waiting::on(lab, "dmsetup", &["status", "--noflush", "a-pool-tpool"])?);
        let asking = driver.connect()?;
        std::thread::scope(|scope| -> Result {
            let asked = scope.spawn(|| asking.stats(&in_a, &target));
            let serves = || -> Result {
                for _ in 0..2 {
                    assert!(client.capacity("b")? > 0 && is_healthy()?);
                    assert!(!client.stats(&in_b, &well)?.usage.is_empty());
                    client.controller(async |mut controller| {
                        controller.list_volumes(proto::ListVolumesRequest::default()).await
                    })?;
                    assert!(figures("/metrics")?.contains("device_class=\"b\""));
                }
                let told = asked.join().map_err(|_| "the call panicked")??;
                let told = told.volume_condition.ok_or("no condition")?;
                assert!(told.abnormal && told.message.contains("do not answer"), "{told:?}");
                client.unpublish(&in_b, &well)?;
                Ok(client.publish(&in_b, &well, EXT4)?)
            };
            let went = serves();
            lab.fault(0, Fault::None)?;
            went
        })
    };
    let went = others();
    lab.fault(0, Fault::None)?;
    drop(waiting);
    fs::remove_file(&writes)?;
    writing.wait()?;
    went?;
    lab.wait_for("the group to serve again", || client.capacity("a").ok().filter(|room| *room > 0))?;
    for (id, target) in [(&in_a, &target), (&in_b, &well)] {
        client.unpublish(id, target)?;
        client.delete(id)?;
    }
    Ok(())
}

lab_test::main! {
    a_thin_pool_whose_disk_does_not_answer_holds_no_other_volume_up: Needs::disks(2, GIB / 2).faults().devices_file().guest(),
    a_disk_that_does_not_answer_holds_no_other_volume_up: Needs::disks(2, GIB / 2).faults().devices_file().guest(),
    a_disk_that_does_not_answer_when_a_volume_was_made_is_told_and_the_same_call_goes_on:
        Needs::disks(2, GIB / 2).faults().devices_file().guest(),
    a_look_that_waits_for_a_command_lets_all_other_calls_be_answered: Needs::disks(3, 2 * GIB).guest(),
    filesystems_that_do_not_answer_hold_no_other_volume_up: Needs::disks(3, GIB / 2).faults().devices_file().guest(),
}
