//! How long volumes take to make and remove.

use std::time::{Duration, Instant};

use lab_csi::{Access, Client};

use crate::driver::Driver;
use crate::{BARE, Result, SIZE, bare, by_callers, in_turns, tell};

const ROUNDS: usize = 20;

/// How often many volumes are made at once, and how many by how many.
const BURSTS: usize = 3;
const VOLUMES: usize = 100;
pub(crate) const CALLERS: usize = 8;

const EXT4: Access = Access::Filesystem("ext4");

pub(crate) fn run() -> Result<()> {
    let driver = Driver::start()?;
    let client = driver.client()?;
    for (class, how) in [("thick", ["-L", "32M", BARE]), ("thin", ["-V", "32M", "bare/pool"])] {
        println!("create and delete, {class}");
        let (ours, against) = in_turns(
            ROUNDS,
            |round| create_and_delete(&client, class, round),
            |round| {
                let name = format!("bare-{round}");
                bare("lvcreate", &[&["-qq", "-y", "-n", &name], how.as_slice()].concat())?;
                remove(&[name])
            },
        )?;
        tell(&format!("{class}: create and delete"), "ms", ours, against);
    }
    bursts(&driver)
}

/// One volume's short life.
pub(crate) fn create_and_delete(client: &Client, class: &str, round: usize) -> Result<()> {
    let volume = client.create(&format!("{class}-{round}"), class, SIZE, EXT4, None)?;
    Ok(client.delete(&volume.volume_id)?)
}

/// Volumes of this class, by several callers; returns how long that took.
pub(crate) fn create_many(driver: &Driver, class: &str, count: usize) -> Result<(Vec<String>, Duration)> {
    let ids = std::sync::Mutex::new(Vec::new());
    let began = Instant::now();
    by_callers(driver, CALLERS, count, |client, number| {
        let volume = client.create(&format!("many-{number}"), class, SIZE, EXT4, None)?;
        ids.lock().map_err(|_| "a caller panicked")?.push(volume.volume_id);
        Ok(())
    })?;
    let took = began.elapsed();
    Ok((ids.into_inner().map_err(|_| "a caller panicked")?, took))
}

/// Removes them again.
pub(crate) fn delete_many(driver: &Driver, ids: &[String]) -> Result<()> {
    by_callers(driver, CALLERS, ids.len(), |client, number| Ok(client.delete(&ids[number])?))
}

/// Removes volumes of bare commands.
pub(crate) fn remove(names: &[String]) -> Result<()> {
    let paths: Vec<String> = names.iter().map(|name| format!("{BARE}/{name}")).collect();
    let words: Vec<&str> = ["-qq", "-y"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    bare("lvremove", &words).map(drop)
}

fn bursts(driver: &Driver) -> Result<()> {
    let names: Vec<String> = (0..VOLUMES).map(|number| format!("bare-{number}")).collect();
    let (mut ours, mut against) = (Vec::new(), Vec::new());
    for burst in 1..=BURSTS {
        println!("{VOLUMES} volumes by {CALLERS} callers, {burst} of {BURSTS}");
        let (ids, took) = create_many(driver, "thick", VOLUMES)?;
        ours.push(took.as_secs_f64() * 1e3);
        delete_many(driver, &ids)?;
        let began = Instant::now();
        for name in &names {
            bare("lvcreate", &["-qq", "-y", "-n", name, "-L", "32M", BARE])?;
        }
        against.push(began.elapsed().as_secs_f64() * 1e3);
        remove(&names)?;
    }
    tell("100 volumes by 8 callers, against a loop of lvcreate", "ms", ours, against);
    Ok(())
}
