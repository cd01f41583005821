//! The driver on a kernel that need not have device-mapper: LVM writes metadata, and volumes are inactive.

use crate::driver::Driver;
use crate::times::{create_and_delete, create_many, remove};
use crate::{BARE, Result, bare, in_turns, tell};

const ROUNDS: usize = 40;
const VOLUMES: usize = 1000;

pub(crate) fn run() -> Result<()> {
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
