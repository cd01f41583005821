//! `lvms standalone` measured, in turns with bare lvm2, for `cargo xtask bench volumes`.
//!
//! `bench times`, `bench life` and `bench copies` run in a machine with two like volume groups, `vg` for the driver and
//! `bare` for bare commands, each with a thin pool `pool`, and with tracefs mounted; `bench native` on a kernel that need
//! not have device-mapper, where volumes are inactive. All print figures.

mod copies;
mod driver;
mod life;
mod native;
mod times;
mod traced;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lab_csi::Client;
use lab_protocol::figures::Figure;

use crate::driver::Driver;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The group of bare commands. It is not the driver's, which would look again after each change of somebody else's.
const BARE: &str = "bare";

const MIB: i64 = 1 << 20;

/// The size of most volumes: the least for an ext4.
const SIZE: i64 = 32 * MIB;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("times") => times::run(),
        Some("life") => life::run(),
        Some("copies") => copies::run(),
        Some("native") => native::run(),
        _ => Err("say `times`, `life`, `copies` or `native`".into()),
    }
}

/// Prints a figure.
fn tell(name: &str, unit: &str, ours: Vec<f64>, against: Vec<f64>) {
    println!("{}", Figure { name: name.into(), unit: unit.into(), ours, against }.line());
}

/// Runs a bare command to its end, and returns what it printed and complained.
fn bare(program: &str, arguments: &[&str]) -> Result<(String, String)> {
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output()?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{program} {arguments:?}: {}: {complaint}", output.status).into());
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), complaint))
}

/// Times both sides in turns, in milliseconds. Each begins as often as the other; the first turn of each is not
/// counted.
fn in_turns(
    rounds: usize,
    mut ours: impl FnMut(usize) -> Result<()>,
    mut bare: impl FnMut(usize) -> Result<()>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut of_ours, mut of_bare) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let ours_first = round % 2 == 0;
        for is_ours in [ours_first, !ours_first] {
            let began = Instant::now();
            if is_ours {
                ours(round)?;
            } else {
                bare(round)?;
            }
            let took = began.elapsed().as_secs_f64() * 1e3;
            if round > 0 {
                (if is_ours { &mut of_ours } else { &mut of_bare }).push(took);
            }
        }
    }
    Ok((of_ours, of_bare))
}

/// Does something for each of `count` numbers, by `callers` who each have a connection.
fn by_callers(
    driver: &Driver,
    callers: usize,
    count: usize,
    act: impl Fn(&Client, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let clients = (0..callers).map(|_| driver.client()).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let work = |client: Client| -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                act(&client, number)?;
            }
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || work(client))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a caller panicked")?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn sides_take_turns_and_the_first_is_not_counted() {
        let order = RefCell::new(String::new());
        let note = |side: char| {
            order.borrow_mut().push(side);
            Ok(())
        };
        let (ours, bare) = in_turns(3, |_| note('o'), |_| note('b')).unwrap();
        assert_eq!((ours.len(), bare.len()), (3, 3));
        assert_eq!(*order.borrow(), "obboobbo");
    }
}
