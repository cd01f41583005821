//! What volumes cost the host while they live: processes and memory.

use std::path::{Path, PathBuf};
use std::time::Instant;

use lab_csi::Access;

use crate::driver::Driver;
use crate::times::{CALLERS, create_and_delete, create_many, delete_many};
use crate::{MIB, Result, by_callers, tell, traced};

/// Volumes that are mounted and idle, and how often each is asked how full it is.
const MOUNTED: usize = 100;
const POLLS: usize = 3;

/// Volumes that are made and removed before the driver's memory is looked at.
const CHURN: usize = 200;

pub(crate) fn run() -> Result<()> {
    let driver = Driver::start()?;
    life(&driver, "thick, ext4", "thick", "ext4", 32 * MIB)?;
    // LVM activates the pool for its first volume, and has it checked by processes of its own.
    life(&driver, "thin, xfs, first in its pool", "thin", "xfs", 512 * MIB)?;
    let client = driver.client()?;
    let other = client.create("other", "thin", 32 * MIB, Access::Filesystem("ext4"), None)?.volume_id;
    life(&driver, "thin, xfs", "thin", "xfs", 512 * MIB)?;
    client.delete(&other)?;
    idle(&driver)?;
    drop(driver);
    let driver = Driver::start()?;
    println!("memory");
    tell("RSS when it begins to serve", "MiB", vec![driver.resident()?], Vec::new());
    by_callers(&driver, CALLERS, CHURN, |client, number| {
        create_and_delete(client, if number % 2 == 0 { "thick" } else { "thin" }, number)
    })?;
    tell("RSS after 200 volumes made and removed", "MiB", vec![driver.resident()?], Vec::new());
    Ok(())
}

fn life(driver: &Driver, what: &str, class: &str, kind: &'static str, size: i64) -> Result<()> {
    let client = driver.client()?;
    let (access, at) = (Access::Filesystem(kind), Path::new("/run/bench/life"));
    let started = traced::count(driver.pid(), || {
        let id = client.create("life", class, size, access, None)?.volume_id;
        client.publish(&id, at, access)?;
        for _ in 0..10 {
            client.stats(&id, at)?;
        }
        client.unpublish(&id, at)?;
        Ok(client.delete(&id)?)
    })?;
    println!("{what}: {:?}", started.programs);
    let name = format!("{what}: processes from create to delete");
    tell(&name, "", vec![started.processes as f64], Vec::new());
    Ok(())
}

fn idle(driver: &Driver) -> Result<()> {
    println!("{MOUNTED} mounted volumes");
    let access = Access::Filesystem("ext4");
    let (ids, _) = create_many(driver, "thick", MOUNTED)?;
    let at = |number: usize| PathBuf::from(format!("/run/bench/idle-{number}"));
    by_callers(driver, CALLERS, MOUNTED, |client, number| {
        Ok(client.publish(&ids[number], &at(number), access)?)
    })?;
    let client = driver.client()?;
    let poll = || -> Result<Vec<f64>> {
        let mut took = Vec::new();
        for number in (0..POLLS).flat_map(|_| 0..MOUNTED) {
            let began = Instant::now();
            client.stats(&ids[number], &at(number))?;
            took.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(took)
    };
    // To be counted costs a call time of its own.
    let took = poll()?;
    let started = traced::count(driver.pid(), || poll().map(drop))?;
    tell("100 mounted volumes polled: processes", "", vec![started.processes as f64], Vec::new());
    tell("100 mounted volumes polled: one call", "ms", took, Vec::new());
    tell("100 mounted volumes: RSS", "MiB", vec![driver.resident()?], Vec::new());
    by_callers(driver, CALLERS, MOUNTED, |client, number| Ok(client.unpublish(&ids[number], &at(number))?))?;
    delete_many(driver, &ids)
}
