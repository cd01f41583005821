//! Filesystems of a driver's volumes: made once, whoever has begun it.

mod driver;

use std::path::Path;
use std::time::Duration;

use driver::{Driver, FIGURES, HeldTool, MIB, figures, refused};
use lab_csi::{Access, Client, Code, Source, Status, proto};
use lab_test::{GIB, Lab, Needs, Result, run};

const CLASSES: &str = "
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
  - {name: thin, volume-group: vg, spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}
";
const EXT4: Access = Access::Filesystem("ext4");

fn start(lab: &Lab) -> Result<Driver> {
    Driver::start(lab, CLASSES, &["--metrics-bind-address", FIGURES])
}

/// Asks, and does not wait until a tool has ended that somebody holds.
fn publish_soon(client: &Client, id: &str, target: &Path) -> std::result::Result<(), Status> {
    let mut request = tonic::Request::new(proto::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: target.to_string_lossy().into_owned(),
        volume_capability: Some(EXT4.capability()),
        ..Default::default()
    });
    request.set_timeout(Duration::from_secs(40));
    client.node(async |mut node| node.node_publish_volume(request).await).map(drop)
}

fn a_tool_that_outlives_its_driver_is_waited_for_and_not_begun_again(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let mut driver = start(lab)?;
    let id = driver.client.create("v", "thick", 64 * MIB, EXT4, None)?.volume_id;
    let target = lab.state().join("at");
    let tool = HeldTool::hold("mkfs.ext4")?;
    let first = driver.connect()?;
    std::thread::scope(|scope| -> Result {
        let first = scope.spawn(|| first.publish(&id, &target, EXT4));
        lab.wait_for("the tool to begin", || (tool.begun() == 1).then_some(()))?;
        // It is a long work, and is told as one.
        let work = format!("lvms_work_bytes{{node=\"here\",volume=\"{id}\",what=\"format\"}} {}", 64 * MIB);
        assert!(figures("/metrics")?.contains(&work), "{}", figures("/metrics")?);
        driver.running.process.kill()?;
        driver.running.process.wait()?;
        assert!(first.join().is_ok_and(|published| published.is_err()));
        Ok(())
    })?;
    drop(driver);
    let driver = start(lab)?;
    for _ in 0..2 {
        refused(publish_soon(&driver.client, &id, &target), Code::Aborted, &["a tool still works", &id]);
    }
    assert_eq!(tool.begun(), 1);
    tool.let_go()?;
    driver.client.publish(&id, &target, EXT4)?;
    assert_eq!(tool.begun(), 1, "it was made twice");
    driver.client.unpublish(&id, &target)?;
    driver.client.delete(&id)?;
    Ok(())
}

fn nobody_waits_longer_than_its_deadline_for_a_tool_which_goes_on(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let driver = start(lab)?;
    let id = driver.client.create("v", "thick", 64 * MIB, EXT4, None)?.volume_id;
    let target = lab.state().join("at");
    let tool = HeldTool::hold("mkfs.ext4")?;
    refused(publish_soon(&driver.client, &id, &target), Code::Aborted, &["a tool still works", &id]);
    assert_eq!(tool.begun(), 1);
    // Whoever no longer wants it is not kept waiting.
    driver.client.unpublish(&id, &target)?;
    tool.let_go()?;
    driver.client.publish(&id, &target, EXT4)?;
    assert_eq!(tool.begun(), 1, "it was made twice");
    driver.client.unpublish(&id, &target)?;
    driver.client.delete(&id)?;
    Ok(())
}

fn the_restore_of_what_nobody_has_used_is_formatted_like_a_new_volume(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "300m", "vg"])?;
    let driver = start(lab)?;
    let client = &driver.client;
    let target = lab.state().join("at");
    for class in ["thick", "thin"] {
        let origin = client.create("origin", class, 64 * MIB, EXT4, None)?.volume_id;
        let snapshot = client.snapshot("moment", &origin)?.snapshot_id;
        let source = Source::Snapshot(snapshot.clone());
        let restored = client.create("restored", class, 64 * MIB, EXT4, Some(&source))?.volume_id;
        client.publish(&restored, &target, EXT4)?;
        std::fs::write(target.join("file"), "bytes")?;
        client.unpublish(&restored, &target)?;
        client.delete(&restored)?;
        client.delete_snapshot(&snapshot)?;
        client.delete(&origin)?;
    }
    Ok(())
}

lab_test::main! {
    a_tool_that_outlives_its_driver_is_waited_for_and_not_begun_again: Needs::disks(1, GIB).guest(),
    nobody_waits_longer_than_its_deadline_for_a_tool_which_goes_on: Needs::disks(1, GIB).guest(),
    the_restore_of_what_nobody_has_used_is_formatted_like_a_new_volume: Needs::disks(1, GIB).guest(),
}
