//! `cargo xtask demo`: the main job, shown end to end.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use lab_protocol::disk::{Disk, GIB, link_by_id};

use crate::cluster::programs::Version;
use crate::cluster::{Cluster, Options};
use crate::lab::{Lab, Prepared};
use crate::progress;

/// Enters a lab.
pub(crate) fn outside() -> Result<ExitCode> {
    super::in_a_lab("demo", Some(Version::default()))
}

/// Shows it.
pub(crate) fn inside() -> Result<ExitCode> {
    let prepared = Prepared::load()?;
    let lab = Lab::start(&prepared)?;
    println!("\n1. A machine with its own kernel boots, and joins a Kubernetes cluster.");
    let cluster = Cluster::start(&lab, prepared.programs()?, &Options::nodes(1))?;
    show(&cluster).inspect_err(|_| cluster.collect_logs())?;
    Ok(ExitCode::SUCCESS)
}

fn show(cluster: &Cluster) -> Result<()> {
    let node = &cluster.nodes()[0];
    print!("{}", cluster.kubectl(["get", "nodes", "-o", "wide"])?);

    println!("\n2. A disk is plugged in; LVM makes a volume group and a thin pool of it.");
    let began = Instant::now();
    node.guest.plug_new(Disk::new(20 * GIB).serial("demo"))?;
    let disk = link_by_id("demo");
    let script = format!(
        "until [ -b {disk} ]; do udevadm settle; done
         vgcreate demo {disk}
         lvcreate --type thin-pool --name pool --extents 80%FREE demo
         lvcreate --virtualsize 5G --name volume --thinpool demo/pool
         lvs -o lv_name,lv_size,pool_lv,data_percent demo"
    );
    println!("{}", node.guest.script(&script).run()?.text());
    println!("({})", progress::seconds(began.elapsed()));

    println!("\n3. A pod runs on the node.");
    let began = Instant::now();
    cluster.kubectl([
        "run",
        "hello",
        "--image=lab.lvms.io/busybox:1",
        "--image-pull-policy=Never",
        "--restart=Never",
    ])?;
    cluster
        .wait_for("the pod to run", || Ok(cluster.get(["pod", "hello"])?["status"]["phase"] == "Running"))?;
    print!("{}", cluster.kubectl(["get", "pod", "hello", "-o", "wide"])?);
    print!("{}", cluster.kubectl(["exec", "hello", "--", "echo", "hello from a pod in the lab"])?);
    println!("({})", progress::seconds(began.elapsed()));
    println!("\nThat was the lab. `cargo xtask lab up` starts one to play with.");
    Ok(())
}
