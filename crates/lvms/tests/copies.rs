//! Copies whose last byte is there, or not yet, when the driver dies or their sources go, under `lvms standalone`.

mod driver;

use driver::{Driver, MIB, refused};
use lab_csi::{Access, Client, Code, Source};
use lab_test::{GIB, Lab, Needs, Result, run};

const CLASSES: &str = "
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
  - {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}
";

fn start(lab: &Lab) -> Result<Driver> {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "100m", "vg"])?;
    Driver::start(lab, CLASSES, &[])
}

fn copy(client: &Client, source: &Source) -> Result<String> {
    Ok(client.create("copy", "thick", 8 * MIB, Access::Block, Some(source))?.volume_id)
}

/// The snapshot from which a copy is made.
fn leave_snapshot(origin: &str, copy: &str) -> Result<String> {
    let (name, tag) = (format!("lvms-copy-{copy}"), format!("lvms.io/temporary={copy}"));
    run("lvcreate", ["-qq", "-y", "-s", "-n", &name, "--addtag", &tag, &format!("vg/{origin}")])?;
    Ok(name)
}

fn volumes() -> Result<Vec<String>> {
    let listed = run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?;
    let mut names: Vec<String> = listed.split_whitespace().map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

fn a_copy_is_finished_by_the_same_call_though_its_source_has_gone(lab: &Lab) -> Result {
    let driver = start(lab)?;
    let client = &driver.client;
    let origin = client.create("origin", "thin", 8 * MIB, Access::Block, None)?.volume_id;
    let source = Source::Volume(origin.clone());
    let made = copy(client, &source)?;
    // As whoever was killed after the copy's last byte leaves it.
    let left = leave_snapshot(&origin, &made)?;
    client.delete(&origin)?;
    assert!(volumes()?.contains(&left));
    assert_eq!(copy(client, &source)?, made);
    assert_eq!(copy(client, &source)?, made, "nothing is left of it");
    let mut expected = [made.as_str(), "pool"];
    expected.sort();
    assert_eq!(volumes()?, expected);
    client.delete(&made)?;

    let origin = client.create("origin", "thick", 8 * MIB, Access::Block, None)?.volume_id;
    let moment = client.snapshot("moment", &origin)?.snapshot_id;
    let restored = copy(client, &Source::Snapshot(moment.clone()))?;
    client.delete_snapshot(&moment)?;
    assert_eq!(copy(client, &Source::Snapshot(moment))?, restored);
    client.delete(&restored)?;
    client.delete(&origin)?;
    assert_eq!(volumes()?, ["pool"]);
    Ok(())
}

fn what_a_copy_is_made_from_stays_until_that_is_finished_or_given_up(lab: &Lab) -> Result {
    let driver = start(lab)?;
    let client = &driver.client;
    for class in ["thick", "thin"] {
        let origin = client.create("origin", class, 8 * MIB, Access::Block, None)?.volume_id;
        let moment = client.snapshot("moment", &origin)?.snapshot_id;
        let source = Source::Snapshot(moment.clone());
        for is_finished in [true, false] {
            let restored = copy(client, &source)?;
            // As whoever was killed before the copy's last byte leaves it.
            let tag = format!("lvms.io/copying={}", lvms_host::names::escape(&format!("vg/{moment}")));
            run("lvchange", ["-qq", "--addtag", &tag, &format!("vg/{restored}")])?;
            refused(client.delete_snapshot(&moment), Code::FailedPrecondition, &["copied", &restored]);
            if is_finished {
                assert_eq!(copy(client, &source)?, restored);
                client.delete_snapshot(&moment)?;
                assert_eq!(client.snapshot("moment", &origin)?.snapshot_id, moment);
            }
            client.delete(&restored)?;
        }
        client.delete_snapshot(&moment)?;
        client.delete(&origin)?;
        assert_eq!(volumes()?, ["pool"]);
    }
    Ok(())
}

fn a_copy_that_was_begun_leaves_nothing_when_its_source_is_gone(lab: &Lab) -> Result {
    let driver = start(lab)?;
    let client = &driver.client;
    let origin = client.create("origin", "thin", 8 * MIB, Access::Block, None)?.volume_id;
    let source = Source::Volume(origin.clone());
    let id = copy(client, &source)?;
    client.delete(&id)?;
    // As whoever was killed before there was a copy leaves it.
    let left = leave_snapshot(&origin, &id)?;
    client.delete(&origin)?;
    assert!(volumes()?.contains(&left));
    let again = client.create("copy", "thick", 8 * MIB, Access::Block, Some(&source));
    refused(again.map(drop), Code::NotFound, &[&origin]);
    assert_eq!(volumes()?, ["pool"]);
    Ok(())
}

lab_test::main! {
    a_copy_that_was_begun_leaves_nothing_when_its_source_is_gone: Needs::disks(1, GIB / 2).guest(),
    what_a_copy_is_made_from_stays_until_that_is_finished_or_given_up: Needs::disks(1, GIB / 2).guest(),
    a_copy_is_finished_by_the_same_call_though_its_source_has_gone: Needs::disks(1, GIB / 2).guest(),
}
