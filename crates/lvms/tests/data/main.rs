//! Whatever was acknowledged is there after the power was cut, every byte of it: for every layout and every way of
//! access, after each step in the life of a volume. All go each step together, so that it costs one boot. Each
//! combination meets one kind of cut in every run, and both when all tests are asked for; then every snapshot is restored
//! into its own layout, too.

mod combination;
mod pattern;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use combination::{Combination, DISKS, LAYOUTS, Layout, Which, configuration, make_groups, target};
use lab_csi::{Access, Client, Code, Driver, Source, proto};
use lab_test::{Cut, GIB, Lab, Needs, Result, run};
use pattern::Pattern;
use rustix::fs::{FallocateFlags, fallocate};

/// Where the lab puts the driver.
const PROGRAM: &str = "/lab/lvms";
const SOCKET: &str = "/run/test/csi.sock";
const CONFIGURATION: &str = "/run/test/lvmd.yaml";

/// One combination's part of a step.
struct Part<'a> {
    lab: &'a Lab,
    client: &'a Client,
    combination: Combination,
    which: Which,
    /// Sizes of all volumes.
    sizes: &'a BTreeMap<String, u64>,
    snapshots: &'a [String],
}

type Step = fn(&Part<'_>) -> Result;

/// The power is cut after each but the last.
const STEPS: [(&str, Step); 6] = [
    ("a volume is made and written", write),
    ("a snapshot is taken", take_snapshot),
    ("the volume is overwritten and the snapshot restored", overwrite_and_restore),
    ("snapshot and restored volume go and the volume is cloned", clone),
    ("the volume grows", grow),
    ("all is there", look),
];

/// The driver of this boot.
fn serve(lab: &Lab) -> Result<Driver> {
    fs::create_dir_all("/run/test")?;
    if lab.boots() == 0 {
        make_groups(lab)?;
    }
    fs::write(CONFIGURATION, configuration())?;
    let mut command = Command::new(PROGRAM);
    command.args(["standalone", "--config", CONFIGURATION, "--endpoint", SOCKET, "--node-id", "here"]);
    Driver::start(&mut command, Path::new(SOCKET))
}

/// All combinations go a step, a thread for each layout.
fn go(lab: &Lab, driver: &Driver, step: Step, which: Which) -> Result {
    let client = driver.connect()?;
    let (sizes, snapshots) = (&volumes(&client)?, &snapshots(&client)?);
    let of_layout = |layout: &Layout| -> Result {
        let client = &driver.connect()?;
        for combination in Combination::of(layout, which) {
            await_synchronised(lab, layout)?;
            let part = Part { lab, client, combination, which, sizes, snapshots };
            step(&part).map_err(|error| format!("{}: {error}", combination.name()))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = LAYOUTS.iter().map(|layout| scope.spawn(|| of_layout(layout))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// While the images of a RAID 5 or 6 volume are made to agree, snapshots of it stay, and a call that removes one is refused.
/// So it happens at no step but the first, and at the cut after it.
fn await_synchronised(lab: &Lab, layout: &Layout) -> Result {
    if lab.boots() == 0 || !layout.class.starts_with("raid") {
        return Ok(());
    }
    let device = format!("{}-", layout.class);
    lab.wait_for(&format!("{} to be synchronised", layout.class), || {
        let status = Command::new("dmsetup").args(["status", "--target", "raid"]).output().ok()?;
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        let idle = |line: &str| !line.starts_with(&device) || line.contains(" idle ");
        let done = status.lines().all(idle);
        if !done {
            sleep(Duration::from_secs(1));
        }
        done.then_some(())
    })
}

/// Volumes with their sizes, all of them sound.
fn volumes(client: &Client) -> Result<BTreeMap<String, u64>> {
    let answer = client.controller(async |mut controller| {
        controller.list_volumes(proto::ListVolumesRequest::default()).await
    })?;
    let mut sizes = BTreeMap::new();
    for entry in answer.entries {
        let condition = entry.status.and_then(|status| status.volume_condition);
        assert!(condition.is_some_and(|condition| !condition.abnormal), "{:?}", entry.volume);
        let volume = entry.volume.ok_or("an entry without a volume")?;
        sizes.insert(volume.volume_id, u64::try_from(volume.capacity_bytes)?);
    }
    Ok(sizes)
}

fn snapshots(client: &Client) -> Result<Vec<String>> {
    let request = proto::ListSnapshotsRequest::default();
    let answer = client.controller(async |mut controller| controller.list_snapshots(request).await)?;
    let ready = answer.entries.into_iter().filter_map(|entry| entry.snapshot);
    Ok(ready.filter(|snapshot| snapshot.ready_to_use).map(|snapshot| snapshot.snapshot_id).collect())
}

impl Part<'_> {
    fn name(&self, what: &str) -> String {
        format!("{}{what}", self.combination.name())
    }

    fn pattern(&self, letter: char) -> Pattern {
        Pattern::of(&self.combination.name(), letter)
    }

    /// Identities outlive the boot.
    fn note(&self, what: &str, id: &str) -> Result {
        Ok(fs::write(self.lab.state().join(self.name(what)), id)?)
    }

    fn id(&self, what: &str) -> Result<String> {
        Ok(fs::read_to_string(self.lab.state().join(self.name(what)))?)
    }

    fn create(&self, what: &str, class: &str, size: u64, source: Option<&Source>) -> Result {
        let (name, size_wished, access) = (self.name(what), i64::try_from(size)?, self.combination.access);
        // Copies into one group wait for each other, and one that waits too long is asked for again.
        let volume = loop {
            match self.client.create(&name, class, size_wished, access, source) {
                Err(status) if status.code() == Code::Aborted => println!("# {name}: {}", status.message()),
                answer => break answer?,
            }
        };
        assert_eq!(u64::try_from(volume.capacity_bytes)?, size);
        self.note(what, &volume.volume_id)
    }

    /// Publishes a volume that has this size.
    fn publish(&self, what: &str, size: u64) -> Result<PathBuf> {
        let (id, target) = (self.id(what)?, target(&self.name(what)));
        if self.lab.boots() > 0 {
            assert_eq!(self.sizes.get(&id), Some(&size), "{what}");
        }
        self.client.publish(&id, &target, self.combination.access)?;
        if self.combination.access == Access::Block {
            assert_eq!(File::open(&target)?.seek(SeekFrom::End(0))?, size);
        }
        Ok(target)
    }

    fn delete(&self, what: &str) -> Result {
        let (id, target) = (self.id(what)?, target(&self.name(what)));
        self.client.unpublish(&id, &target)?;
        Ok(self.client.delete(&id)?)
    }

    fn is_gone(&self, what: &str) -> Result<bool> {
        Ok(!self.sizes.contains_key(&self.id(what)?))
    }
}

fn write(part: &Part<'_>) -> Result {
    let combination = part.combination;
    part.create("", combination.class, combination.size(), None)?;
    let target = part.publish("", combination.size())?;
    combination.first(&target).write(&part.pattern('A'))?;
    combination.unflushed(&target, combination.size()).write_unflushed()
}

fn take_snapshot(part: &Part<'_>) -> Result {
    let combination = part.combination;
    let target = part.publish("", combination.size())?;
    combination.first(&target).holds(&part.pattern('A'))?;
    let snapshot = part.client.snapshot(&part.name("-snapshot"), &part.id("")?)?;
    part.note("-snapshot", &snapshot.snapshot_id)?;
    combination.unflushed(&target, combination.size()).write_unflushed()
}

fn overwrite_and_restore(part: &Part<'_>) -> Result {
    let combination = part.combination;
    let target = part.publish("", combination.size())?;
    combination.first(&target).holds(&part.pattern('A'))?;
    let snapshot = part.id("-snapshot")?;
    assert!(part.snapshots.contains(&snapshot), "the snapshot is gone");
    combination.first(&target).write(&part.pattern('B'))?;
    let source = Source::Snapshot(snapshot);
    part.create("-restored", combination.restored_class(part.which), combination.larger(), Some(&source))?;
    combination.unflushed(&target, combination.size()).write_unflushed()
}

fn clone(part: &Part<'_>) -> Result {
    let combination = part.combination;
    let target = part.publish("", combination.size())?;
    combination.first(&target).holds(&part.pattern('B'))?;
    let restored = part.publish("-restored", combination.larger())?;
    combination.first(&restored).holds(&part.pattern('A'))?;
    if combination.access == Access::Block {
        combination.behind(&restored).is_zero()?;
        // Where the clone and the grown volume will lie there are somebody's bytes.
        combination.behind(&restored).write(&part.pattern('R'))?;
    }
    part.delete("-restored")?;
    part.client.delete_snapshot(&part.id("-snapshot")?)?;
    let source = Source::Volume(part.id("")?);
    part.create("-clone", combination.class, combination.size(), Some(&source))?;
    combination.unflushed(&target, combination.size()).write_unflushed()
}

fn grow(part: &Part<'_>) -> Result {
    let combination = part.combination;
    assert!(part.is_gone("-restored")? && !part.snapshots.contains(&part.id("-snapshot")?));
    let target = part.publish("", combination.size())?;
    combination.first(&target).holds(&part.pattern('B'))?;
    let clone = part.publish("-clone", combination.size())?;
    combination.first(&clone).holds(&part.pattern('B'))?;
    if combination.access != Access::Block {
        fill(&target)?;
    }
    let id = part.id("")?;
    let before = part.client.stats(&id, &target)?;
    let size = i64::try_from(combination.larger())?;
    assert_eq!(part.client.grow(&id, size, combination.access, Some(&target))?, size);
    let after = part.client.stats(&id, &target)?;
    assert!(after.usage[0].total >= before.usage[0].total + (32 << 20), "{before:?} {after:?}");
    if combination.access == Access::Block {
        combination.behind(&target).is_zero()?;
    }
    combination.more(&target).write(&part.pattern('C'))?;
    combination.unflushed(&target, combination.larger()).write_unflushed()
}

/// Takes what is free of a filesystem, so that what comes later lies where it has grown.
fn fill(target: &Path) -> Result {
    let file = File::create(target.join("filler"))?;
    let mut end = 0;
    for piece in [8 << 20, 1 << 20] {
        while fallocate(&file, FallocateFlags::empty(), end, piece).is_ok() {
            end += piece;
        }
    }
    assert!(end > 0);
    Ok(file.sync_all()?)
}

fn look(part: &Part<'_>) -> Result {
    let combination = part.combination;
    let target = part.publish("", combination.larger())?;
    combination.first(&target).holds(&part.pattern('B'))?;
    combination.more(&target).holds(&part.pattern('C'))?;
    let clone = part.publish("-clone", combination.size())?;
    combination.first(&clone).holds(&part.pattern('B'))
}

fn live(lab: &Lab, cut: Cut, which: Which) -> Result {
    let (what, step) = STEPS[usize::try_from(lab.boots())?];
    let began = Instant::now();
    let driver = serve(lab)?;
    println!("# {what}: begins, the driver serves after {:?}", began.elapsed());
    go(lab, &driver, step, which).map_err(|error| format!("{what}: {error}"))?;
    println!("# {what}: ended after {:?}", began.elapsed());
    if usize::try_from(lab.boots())? + 1 < STEPS.len() {
        run("sync", ["-f", "/state"])?;
        return lab.cut_power(cut);
    }
    Ok(())
}

fn every_byte_is_there_after_the_power_was_cut(lab: &Lab) -> Result {
    live(lab, Cut::Kill, Which::OneHalf)
}

fn every_byte_is_there_after_a_cut_that_loses_unflushed_writes(lab: &Lab) -> Result {
    live(lab, Cut::LoseUnflushed, Which::OtherHalf)
}

fn every_byte_of_all_combinations_is_there_after_the_power_was_cut(lab: &Lab) -> Result {
    live(lab, Cut::Kill, Which::All)
}

fn every_byte_of_all_combinations_is_there_after_a_cut_that_loses_unflushed_writes(lab: &Lab) -> Result {
    live(lab, Cut::LoseUnflushed, Which::All)
}

lab_test::main! {
    every_byte_is_there_after_the_power_was_cut: Needs::disks(DISKS, 4 * GIB).without_udev().power_cut(),
    every_byte_is_there_after_a_cut_that_loses_unflushed_writes: Needs::disks(DISKS, 4 * GIB).faults().without_udev().power_cut(),
    every_byte_of_all_combinations_is_there_after_the_power_was_cut: Needs::disks(DISKS, 4 * GIB).without_udev().power_cut().rarely(),
    every_byte_of_all_combinations_is_there_after_a_cut_that_loses_unflushed_writes: Needs::disks(DISKS, 4 * GIB).faults().without_udev().power_cut().rarely(),
}
