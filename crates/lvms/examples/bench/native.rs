//! The driver on a kernel that need not have device-mapper: LVM writes metadata, and volumes are inactive.

use std::fs;

use crate::driver::Driver;
use crate::times::{CALLERS, create_and_delete, create_many, remove};
use crate::{BARE, Result, bare, by_callers, in_turns, tell};

const ROUNDS: usize = 40;
const VOLUMES: usize = 1000;

/// LVM keeps a copy of a group's metadata before every change, and never removes one.
const CREATES: usize = 10_000;
const ARCHIVE: &str = "/etc/lvm/archive";
/// So many copies the driver lets be, and so many changes it makes until it looks again.
const COPIES: usize = 50 + 25;

pub(crate) fn run() -> Result<()> {
    fill_the_archive()?;
    let driver = Driver::start()?;
    let client = driver.client()?;
    println!("create and delete, natively");
    let (ours, against) = in_turns(
        ROUNDS,
        |round| create_and_delete(&client, "thick", round),
        |round| {
            let name = format!("bare-{round}");
            bare("lvcreate", &["-qq", "-y", "-n", &name, "-L", "32M", BARE])?;
            remove(&[name])
        },
    )?;
    tell("thick, natively and inactive: create and delete", "ms", ours, against);
    println!("{VOLUMES} volumes");
    create_many(&driver, "thick", VOLUMES)?;
    tell("1,000 LVs, natively: RSS after they were made", "MiB", vec![driver.resident()?], Vec::new());
    drop(driver);
    let driver = Driver::start()?;
    tell("1,000 LVs, natively: RSS of a driver that found them", "MiB", vec![driver.resident()?], Vec::new());
    Ok(())
}

/// A driver of its own: what it holds of memory afterwards is not measured.
fn fill_the_archive() -> Result<()> {
    let driver = Driver::start()?;
    println!("{CREATES} volumes, made and removed by {CALLERS} callers");
    by_callers(&driver, CALLERS, CREATES, |client, number| create_and_delete(client, "thick", number))?;
    let copies = copies_of_metadata()?;
    if copies > COPIES {
        return Err(format!("{ARCHIVE} has {copies} copies of one group's metadata").into());
    }
    tell("10,000 creates, natively: copies in LVM's archive", "files", vec![copies as f64], Vec::new());
    Ok(())
}

fn copies_of_metadata() -> Result<usize> {
    let names = fs::read_dir(ARCHIVE)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(names.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with("vg_")).count())
}
