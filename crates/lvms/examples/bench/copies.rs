//! Bytes: how quickly a volume is copied, and what stands between a published device and its volume.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lab_csi::{Access, Client, Source};

use crate::driver::Driver;
use crate::{MIB, Result, bare, tell};

const ROUNDS: usize = 5;
const SIZE: i64 = 512 * MIB;

pub(crate) fn run() -> Result<()> {
    let driver = Driver::start()?;
    let client = driver.client()?;
    let id = client.create("source", "thick", SIZE, Access::Block, None)?.volume_id;
    let (at, node) = (Path::new("/run/bench/block"), format!("/dev/vg/{id}"));
    client.publish(&id, at, Access::Block)?;
    fill(at)?;
    clone(&driver, &client, &id, &node)?;
    let apart = u8::from(fs::metadata(at)?.rdev() != fs::metadata(&node)?.rdev());
    tell("block: devices between what is published and the LV", "", vec![f64::from(apart)], Vec::new());
    for (what, mode, size) in [
        ("4 KiB random reads", "randread", "4k"),
        ("4 KiB random writes", "randwrite", "4k"),
        ("1 MiB reads in order", "read", "1M"),
    ] {
        println!("fio, {what}");
        let (mut ours, mut against) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(fio(&at.to_string_lossy(), mode, size)?);
            against.push(fio(&node, mode, size)?);
        }
        tell(&format!("fio, {what}: published, against the LV"), "IO/s", ours, against);
    }
    client.unpublish(&id, at)?;
    Ok(client.delete(&id)?)
}

/// Writes bytes of which no block is zero and no two are the same.
fn fill(path: &Path) -> Result<()> {
    let mut device = File::options().write(true).open(path)?;
    let (mut state, mut block) = (0x2545_f491_4f6c_dd1d_u64, vec![0; 4 << 20]);
    for _ in 0..SIZE / (4 * MIB) {
        for word in block.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_ne_bytes();
        }
        device.write_all(&block)?;
    }
    Ok(device.sync_all()?)
}

/// The rate of the copy itself on both sides: ours by the driver's log, the other's as `dd` says.
fn clone(driver: &Driver, client: &Client, id: &str, node: &str) -> Result<()> {
    let (mut ours, mut against) = (Vec::new(), Vec::new());
    let rate = |seconds: f64| SIZE as f64 / MIB as f64 / seconds;
    for round in 0..=ROUNDS {
        println!("copy, {round} of {ROUNDS}");
        let source = Source::Volume(id.to_owned());
        let made = client.create(&format!("clone-{round}"), "thick", SIZE, Access::Block, Some(&source))?;
        client.delete(&made.volume_id)?;
        bare("lvcreate", &["-qq", "-y", "-n", "dd", "-L", "512M", "vg"])?;
        let (from, to) = (format!("if={node}"), "of=/dev/vg/dd");
        let words = [from.as_str(), to, "bs=4M", "iflag=direct", "oflag=direct", "conv=fdatasync"];
        let (_, said) = bare("dd", &words)?;
        bare("lvremove", &["-qq", "-y", "vg/dd"])?;
        if round > 0 {
            ours.push(rate(driver.copies()?.last().copied().ok_or("the driver's log has no copy")?));
            against.push(rate(dd_seconds(&said).ok_or_else(|| format!("dd says {said}"))?));
        }
    }
    tell("clone: rate of the copy, against dd", "MiB/s", ours, against);
    Ok(())
}

/// What `dd` says at its end: `536870912 bytes (537 MB, 512 MiB) copied, 0.41 s, 1.3 GB/s`.
fn dd_seconds(said: &str) -> Option<f64> {
    said.split_once(" copied, ")?.1.split_once(" s, ")?.0.parse().ok()
}

fn fio(path: &str, mode: &str, size: &str) -> Result<f64> {
    let file = format!("--filename={path}");
    let (mode, size) = (format!("--rw={mode}"), format!("--bs={size}"));
    let (said, _) = bare(
        "fio",
        &[
            "--name=bench",
            &file,
            &mode,
            &size,
            "--direct=1",
            "--ioengine=libaio",
            "--iodepth=16",
            "--runtime=2",
            "--time_based",
            "--output-format=json",
        ],
    )?;
    let said: serde_json::Value = serde_json::from_str(&said)?;
    let rate = |way: &str| said["jobs"][0][way]["iops"].as_f64().unwrap_or_default();
    Ok(rate("read") + rate("write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dd_says_is_understood() {
        let said = "128+0 records in\n128+0 records out\n536870912 bytes (537 MB, 512 MiB) copied, 0.41 s, 1.3 GB/s\n";
        assert_eq!(dd_seconds(said), Some(0.41));
        assert_eq!(dd_seconds("dd: failed"), None);
    }
}
