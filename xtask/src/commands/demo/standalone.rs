//! `lvms standalone` in a machine with real LVM, and the whole life of a volume without Kubernetes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use lab_protocol::agent::{Ended, FromGuest};
use lab_protocol::disk::{Disk, GIB};

use crate::guest::{Guest, Spec};
use crate::lab::{Lab, Prepared};
use crate::{driver, progress};

const CONFIGURATION: &str = "\
device-classes:
  - {name: thick, volume-group: demo, default: true, spare-gb: 1}
  - {name: thin, volume-group: demo, type: thin, thin-pool: {name: pool, overprovision-ratio: 5}}
";

/// Puts the driver and its client where the machine sees them.
pub(super) fn share(prepared: &Prepared, run: &Path) -> Result<()> {
    driver::share(prepared, run)?;
    driver::share_example(prepared, run, "volume")
}

/// Shows it.
pub(super) fn show(lab: &Arc<Lab>) -> Result<()> {
    let step = progress::step("a machine with a kernel and a disk of its own boots");
    let guest = Guest::boot(lab, Spec::new("demo"), vec![lab.new_disk(Disk::new(20 * GIB))?])?;
    guest.script("vgcreate demo /dev/sda; lvcreate --type thin-pool --name pool --size 10G demo").run()?;
    step.done();
    println!("\nThe configuration, lvmd.yaml:\n\n{CONFIGURATION}");
    println!("What `lvms check` says of it and of this machine:\n");
    guest.put("/run/lvmd.yaml", 0o644, CONFIGURATION)?;
    println!("{}", guest.command(["/lab/lvms", "check", "/run/lvmd.yaml"]).run()?.text());
    driver::start(&guest, "/lab/lvms", "")?;
    println!("\n`lvms standalone --config lvmd.yaml --endpoint unix://{}` serves.", driver::SOCKET);
    let shown = guest.command(["/lab/volume", driver::SOCKET]).follow(|frame| match frame {
        FromGuest::Stdout(text) | FromGuest::Stderr(text) => print!("{}", String::from_utf8_lossy(text)),
        FromGuest::Ended(_) => {}
    })?;
    driver::keep_log(&guest, "lvms.log");
    ensure!(shown.ended == Ended::Exited(0), "the demo ended with {:?}", shown.ended);
    println!("\nThat was lvms without Kubernetes. `docs/standalone.md` tells how to use it.");
    Ok(())
}
