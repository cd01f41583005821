//! The driver is killed before and after every single effect of every operation, and started again; the same call then
//! succeeds, and what is there is what an undisturbed run leaves.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lab_csi::{Access, Client, Source};
use lab_test::{GIB, Lab, Needs, Result, run};

const DRIVER: &str = "/lab/lvms-crash";
const SOCKET: &str = "/run/test/csi.sock";
const CONFIGURATION: &str = "/run/test/lvmd.yaml";
const CRASH: &str = "/run/test/crash";

const CLASSES: &str = "\
device-classes:
  - {name: thick, volume-group: thick, spare-gb: 0}
  - {name: thin, volume-group: thin, spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 10}}
  - {name: raid1, volume-group: raid1, spare-gb: 0, lvcreate-options: [--type=raid1, -m1, --nosync]}
";

const MIB: i64 = 1 << 20;
const EXT4: Access = Access::Filesystem("ext4");

struct Driver {
    process: Option<Child>,
    client: Option<Client>,
    armed: u32,
}

impl Driver {
    fn start(lab: &Lab) -> Result<Driver> {
        let mut driver = Driver { process: None, client: None, armed: 0 };
        driver.arm(0)?;
        driver.again(lab)?;
        Ok(driver)
    }

    /// Starts it, after it was killed or at first.
    fn again(&mut self, lab: &Lab) -> Result {
        if let Some(mut process) = self.process.take() {
            process.wait()?;
        }
        let _ = fs::remove_file(SOCKET);
        let log = fs::File::options().create(true).append(true).open("/run/test/lvms.log")?;
        let mut command = Command::new(DRIVER);
        command.args(["standalone", "--config", CONFIGURATION, "--endpoint", SOCKET, "--node-id", "here"]);
        command.env("LVMS_CRASH_FILE", CRASH).stdin(Stdio::null()).stderr(log);
        self.process = Some(command.spawn()?);
        self.client = Some(lab.wait_for("the driver to serve", || Client::connect(Path::new(SOCKET)).ok())?);
        Ok(())
    }

    /// From now on points are counted, and the one with this number is the last; 0 is none.
    fn arm(&mut self, point: u32) -> Result {
        self.armed += 1;
        Ok(fs::write(CRASH, format!("run-{} {point}", self.armed))?)
    }

    fn client(&self) -> Result<&Client> {
        self.client.as_ref().ok_or_else(|| "the driver does not run".into())
    }

    fn has_died(&mut self) -> Result<bool> {
        Ok(match &mut self.process {
            Some(process) => process.try_wait()?.is_some(),
            None => true,
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What is there: volumes with sizes and what is known of them, free extents, what is suspended, what is mounted.
fn state() -> Result<String> {
    let volumes = run("lvs", ["--noheadings", "-o", "vg_name,lv_name,lv_size,lv_tags,vg_free_count"])?;
    // Identities are made anew each time.
    let plain = |word: &str| !word.starts_with("lvms.io/fsid=") && !word.starts_with("lvms.io/created=");
    let known: Vec<String> = volumes
        .lines()
        .map(|line| {
            line.split([' ', ','])
                .filter(|word| !word.is_empty() && plain(word))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    let suspended = run("dmsetup", ["info", "-c", "--noheadings", "-o", "suspended"])?;
    assert!(!suspended.contains("Suspended"), "something is suspended");
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mounts: Vec<&str> = mounts.lines().filter(|line| line.contains("/run/test/")).collect();
    Ok(format!("{}\n{}", known.join("\n"), mounts.join("\n")))
}

type Act<'a> = &'a dyn Fn(&Client) -> Result;

/// Kills the driver at every point of an act; `undo` brings back what was before. Returns the number of points.
fn at_every_point(lab: &Lab, driver: &mut Driver, what: &str, act: Act<'_>, undo: Act<'_>) -> Result<u32> {
    driver.arm(0)?;
    let before = state()?;
    act(driver.client()?).map_err(|error| format!("{what}, undisturbed: {error}"))?;
    let after = state()?;
    undo(driver.client()?).map_err(|error| format!("undoing {what}, undisturbed: {error}"))?;
    assert_eq!(state()?, before, "{what}, undone");
    let mut point = 0;
    loop {
        point += 1;
        driver.arm(point)?;
        let first = act(driver.client()?);
        // A connection breaks a moment before its process has ended.
        let died = match &first {
            Ok(()) => driver.has_died()?,
            Err(error) => lab.wait_for(&format!("the driver to die of {error}"), || {
                driver.has_died().ok().filter(|died| *died)
            })?,
        };
        driver.arm(0)?;
        if died {
            driver.again(lab)?;
            act(driver.client()?)
                .map_err(|error| format!("{what}, after a crash at point {point}: {error}"))?;
        } else {
            first.map_err(|error| format!("{what}, with no point {point}: {error}"))?;
        }
        assert_eq!(state()?, after, "{what}, after a crash at point {point}");
        undo(driver.client()?).map_err(|error| format!("undoing {what}, after point {point}: {error}"))?;
        assert_eq!(state()?, before, "{what}, undone after a crash at point {point}");
        if !died {
            println!("# {what}: {} points", point - 1);
            return Ok(point - 1);
        }
    }
}

/// What a client does with volumes of one class. Every call can be repeated: that is what is tested.
#[derive(Clone, Copy)]
struct User<'a> {
    class: &'a str,
}

const SIZE: i64 = 32 * MIB;
const TARGET: &str = "/run/test/at";

impl User<'_> {
    fn make(self, client: &Client, name: &str, access: Access) -> Result<String> {
        Ok(client.create(name, self.class, SIZE, access, None)?.volume_id)
    }

    fn remove(self, client: &Client, name: &str, access: Access) -> Result {
        let id = self.make(client, name, access)?;
        Ok(client.delete(&id)?)
    }

    fn publish(self, client: &Client, name: &str, access: Access) -> Result {
        let id = self.make(client, name, access)?;
        Ok(client.publish(&id, Path::new(TARGET), access)?)
    }

    fn unpublish(self, client: &Client, name: &str, access: Access) -> Result {
        let id = self.make(client, name, access)?;
        client.unpublish(&id, Path::new(TARGET))?;
        Ok(client.delete(&id)?)
    }

    fn grow(self, client: &Client, access: Access) -> Result {
        let id = self.make(client, "grown", access)?;
        client.grow(&id, 2 * SIZE, access, None)?;
        Ok(())
    }

    fn snapshot(self, client: &Client) -> Result<String> {
        let id = self.make(client, "origin", EXT4)?;
        Ok(client.snapshot("moment", &id)?.snapshot_id)
    }

    fn restore(self, client: &Client, size: i64) -> Result<String> {
        let snapshot = Source::Snapshot(self.snapshot(client)?);
        Ok(client.create("restored", self.class, size, EXT4, Some(&snapshot))?.volume_id)
    }

    fn copy(self, client: &Client) -> Result<String> {
        let source = Source::Volume(self.make(client, "origin", EXT4)?);
        Ok(client.create("copy", self.class, SIZE, EXT4, Some(&source))?.volume_id)
    }

    fn forget_snapshot(self, client: &Client) -> Result {
        client.delete_snapshot(&self.snapshot(client)?)?;
        self.remove(client, "origin", EXT4)
    }
}

fn survives(lab: &Lab, class: &str) -> Result {
    run("vgcreate", ["thick", lab.disk(0)])?;
    run("vgcreate", ["thin", lab.disk(1)])?;
    run("vgcreate", ["raid1", lab.disk(2), lab.disk(3)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-l", "80%FREE", "thin"])?;
    fs::write(CONFIGURATION, CLASSES)?;
    let mut driver = Driver::start(lab)?;
    let user = User { class };
    let acts: [(&str, Act<'_>, Act<'_>); 8] = [
        ("a volume is made", &|c| user.make(c, "v", EXT4).map(drop), &|c| user.remove(c, "v", EXT4)),
        ("a volume is made and removed", &|c| user.remove(c, "v", EXT4), &|_| Ok(())),
        ("a volume is formatted and mounted", &|c| user.publish(c, "v", EXT4), &|c| {
            user.unpublish(c, "v", EXT4)
        }),
        (
            "a block volume is made, bound and hidden",
            &|c| {
                user.publish(c, "raw", Access::Block)?;
                user.unpublish(c, "raw", Access::Block)
            },
            &|_| Ok(()),
        ),
        ("a volume grows", &|c| user.grow(c, EXT4), &|c| user.remove(c, "grown", EXT4)),
        ("a block volume grows", &|c| user.grow(c, Access::Block), &|c| {
            user.remove(c, "grown", Access::Block)
        }),
        (
            "a snapshot is taken and restored into a larger volume",
            &|c| user.restore(c, 2 * SIZE).map(drop),
            &|c| {
                c.delete(&user.restore(c, 2 * SIZE)?)?;
                user.forget_snapshot(c)
            },
        ),
        ("a volume is copied", &|c| user.copy(c).map(drop), &|c| {
            c.delete(&user.copy(c)?)?;
            user.remove(c, "origin", EXT4)
        }),
    ];
    let mut points = 0;
    for (what, act, undo) in acts {
        points += at_every_point(lab, &mut driver, &format!("{class}: {what}"), act, undo)?;
    }
    println!("{class}: {points} points");
    assert!(points >= 30, "only {points} points");
    Ok(())
}

fn thick_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "thick")
}

fn thin_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "thin")
}

fn mirrored_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "raid1")
}

lab_test::main! {
    thick_volumes_survive_a_crash_at_every_point: Needs::disks(4, GIB / 2).guest(),
    thin_volumes_survive_a_crash_at_every_point: Needs::disks(4, GIB / 2).guest(),
    mirrored_volumes_survive_a_crash_at_every_point: Needs::disks(4, GIB / 2).guest(),
}
