//! The whole life of a volume, told step by step, with `lvms standalone` on the other side of a socket.
//!
//! `cargo xtask demo --standalone` runs it in a machine with a volume group `demo` and a thin pool `pool` in it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lab_csi::{Access, Client, Source};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const GIB: i64 = 1 << 30;

/// What was done and how long it took.
struct Told {
    steps: Vec<(String, Duration)>,
}

impl Told {
    fn step<T>(&mut self, what: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("\n{}. {what}", self.steps.len() + 1);
        let began = Instant::now();
        let done = act()?;
        self.steps.push((what.to_owned(), began.elapsed()));
        Ok(done)
    }
}

fn show(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output()?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        println!("   {}", line.trim_end());
    }
    Ok(())
}

fn main() -> Result<()> {
    let socket = std::env::args().nth(1).ok_or("name the driver's socket")?;
    let client = Client::connect(Path::new(&socket))?;
    let (xfs, at, beside) =
        (Access::Filesystem("xfs"), Path::new("/run/demo/data"), Path::new("/run/demo/restored"));
    let file = at.join("diary");
    let mut told = Told { steps: Vec::new() };

    let volume = told.step("A volume of 1 GiB is asked for, in the thin pool.", || {
        Ok(client.create("diary", "thin", GIB, xfs, None)?)
    })?;
    println!("   It is {} with {} bytes.", volume.volume_id, volume.capacity_bytes);
    let id = volume.volume_id.as_str();
    told.step("It is published: lvms makes an xfs filesystem and mounts it.", || {
        Ok(client.publish(id, at, xfs)?)
    })?;
    show("df", &["--human-readable", "--output=source,fstype,size,avail,target", "/run/demo/data"])?;
    told.step("Somebody writes.", || {
        fs::write(&file, "Dear diary, today I was stored.\n")?;
        Ok(fs::File::open(&file)?.sync_all()?)
    })?;
    let snapshot = told.step("A snapshot is taken.", || Ok(client.snapshot("monday", id)?))?;
    told.step("Somebody regrets what was written.", || Ok(fs::write(&file, "Never mind.\n")?))?;
    told.step("The volume grows to 2 GiB while it is mounted.", || {
        client.grow(id, 2 * GIB, xfs, Some(at))?;
        Ok(())
    })?;
    show("df", &["--human-readable", "--output=source,fstype,size,avail,target", "/run/demo/data"])?;
    let source = Source::Snapshot(snapshot.snapshot_id.clone());
    let restored =
        told.step("The snapshot is restored into a new volume and mounted beside the old one.", || {
            let restored = client.create("restored", "thin", GIB, xfs, Some(&source))?;
            client.publish(&restored.volume_id, beside, xfs)?;
            Ok(restored)
        })?;
    println!(
        "   then: {}   now:  {}",
        fs::read_to_string(beside.join("diary"))?,
        fs::read_to_string(&file)?.trim_end()
    );
    let block = told
        .step("A thick block volume of 256 MiB is made; no byte of what was there before shows.", || {
            Ok(client.create("raw", "thick", GIB / 4, Access::Block, None)?)
        })?;
    println!("\nWhat was made:");
    show("lvs", &["--options", "lv_name,lv_size,pool_lv,origin,data_percent,lv_tags", "demo"])?;
    told.step("Everything is removed again.", || {
        for (id, at) in [(id, at), (restored.volume_id.as_str(), beside)] {
            client.unpublish(id, at)?;
            client.delete(id)?;
        }
        client.delete_snapshot(&snapshot.snapshot_id)?;
        Ok(client.delete(&block.volume_id)?)
    })?;
    show("lvs", &["--options", "lv_name,lv_size,data_percent", "demo"])?;
    println!("\nHow long it took, in an emulated machine:");
    for (what, took) in &told.steps {
        println!("   {:>7} ms  {what}", took.as_millis());
    }
    Ok(())
}
