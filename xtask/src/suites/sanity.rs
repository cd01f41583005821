//! csi-sanity, the test suite of the CSI specification, against `lvms standalone`: every kind of class, as filesystem
//! and as block device.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab_protocol::agent::Ended;
use lab_protocol::disk::{Disk, GIB, MIB};

use super::{Choice, Results, Suite};
use crate::guest::{Guest, Spec};
use crate::lab::Lab;
use crate::{driver, process};

/// Capabilities that lvms lacks on purpose; csi-sanity skips their specs by itself.
const SKIPPED: &str = include_str!("sanity/skipped.txt");

/// Where classes are tried.
struct Place {
    guest: &'static str,
    udev: bool,
    classes: &'static [&'static str],
}

/// What udev does for a new device takes an emulated guest longer than LVM itself, and a striped or mirrored volume has
/// many devices.
const PLACES: [Place; 2] = [
    Place { guest: "sanity-no-udev", udev: false, classes: &["raid1", "striped"] },
    Place { guest: "sanity", udev: true, classes: &["thin", "thick"] },
];
const ACCESS: [&str; 2] = ["mount", "block"];

/// It makes some dozens of volumes, and an emulated guest is slow.
const LIMIT: Duration = Duration::from_secs(1800);

const CONFIGURATION: &str = "\
device-classes:
  - {name: thick, volume-group: thick, default: true, spare-gb: 0}
  - {name: thin, volume-group: thin, spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 10}}
  - {name: striped, volume-group: striped, spare-gb: 0, stripe: 2}
  - {name: raid1, volume-group: raid1, spare-gb: 0, lvcreate-options: [--type=raid1, -m1]}
";

fn name(class: &str, access: &str) -> String {
    format!("{class}_volumes_by_{access}")
}

/// Their names.
pub(crate) fn list() -> Vec<String> {
    let classes = PLACES.iter().flat_map(|place| place.classes);
    classes.flat_map(|class| ACCESS.map(|access| name(class, access))).collect()
}

/// Starts the driver in guests, and runs csi-sanity there.
pub(crate) fn run(lab: &Arc<Lab>, choice: &Choice, results: &mut Results) -> Result<()> {
    let suite = Suite::Sanity.name();
    for place in &PLACES {
        let mut guest = None;
        for (class, access) in place.classes.iter().flat_map(|class| ACCESS.map(|access| (class, access))) {
            let name = name(class, access);
            if !choice.matches(&name) || !choice.claim(suite, &name)? {
                continue;
            }
            results.run(suite, &name, || {
                let guest = match &guest {
                    Some(guest) => guest,
                    None => guest.insert(start(lab, place)?),
                };
                let parameters = format!("topolvm.io/device-class: {class}\n");
                sanity(
                    guest,
                    &STANDALONE,
                    &Volumes { kind: class, access, parameters: &parameters, size: 64 * MIB },
                )
            });
        }
        if let Some(guest) = guest {
            driver::keep_log(&guest, &format!("lvms-standalone-{}.log", place.guest));
        }
    }
    Ok(())
}

fn start(lab: &Arc<Lab>, place: &Place) -> Result<Arc<Guest>> {
    let mut spec = Spec::new(place.guest);
    spec.surroundings.udev = place.udev;
    let serial = |number: u32| format!("{}-{number}", place.guest);
    let disks = (0..6).map(|number| lab.new_disk(Disk::new(4 * GIB).serial(&serial(number))));
    let guest = Guest::boot(lab, spec, disks.collect::<Result<_>>()?)?;
    guest
        .script(
            "vgcreate thick /dev/sda
             vgcreate thin /dev/sdb
             vgcreate striped /dev/sdc /dev/sdd
             vgcreate raid1 /dev/sde /dev/sdf
             lvcreate --type thin-pool --extents 90%FREE --name pool thin",
        )
        .run()?;
    guest.put("/run/lvmd.yaml", 0o644, CONFIGURATION)?;
    let checked = guest.command(["/lab/lvms", "check", "/run/lvmd.yaml"]).run()?.text();
    fs::write("lvms-check.log", checked)?;
    driver::start(&guest, "/lab/lvms", "--node-id sanity")?;
    Ok(guest)
}

/// A driver that csi-sanity is run against.
pub(super) struct Target {
    /// Where csi-sanity is in the guest.
    pub(super) program: &'static str,
    /// Where the driver serves.
    pub(super) socket: &'static str,
    /// Where its Controller service is, if it is elsewhere.
    pub(super) controller: Option<&'static str>,
}

const STANDALONE: Target = Target { program: "/lab/csi-sanity", socket: driver::SOCKET, controller: None };

/// What it is run on.
pub(super) struct Volumes<'a> {
    /// What they are called in logs.
    pub(super) kind: &'a str,
    /// `mount` or `block`.
    pub(super) access: &'a str,
    /// What a StorageClass would ask for.
    pub(super) parameters: &'a str,
    /// How large they are; they grow to twice as much.
    pub(super) size: u64,
}

/// Runs csi-sanity; nothing may fail, be skipped without being listed, or be left.
pub(super) fn sanity(guest: &Guest, target: &Target, volumes: &Volumes<'_>) -> Result<()> {
    let Volumes { kind, access, .. } = volumes;
    let directory = format!("/run/sanity-{kind}-{access}");
    guest.script(&format!("rm -rf {directory}; mkdir {directory}")).run()?;
    let parameters = format!("{directory}/parameters.yaml");
    guest.put(&parameters, 0o644, volumes.parameters)?;
    let before = free(guest)?;
    let mut words = vec![
        target.program.to_owned(),
        "--ginkgo.no-color".into(),
        format!("--ginkgo.json-report={directory}/report.json"),
        format!("--csi.endpoint={}", target.socket),
        format!("--csi.mountdir={directory}/mounts"),
        format!("--csi.stagingdir={directory}/staging"),
        format!("--csi.testvolumeparameters={parameters}"),
        format!("--csi.testvolumeaccesstype={access}"),
        format!("--csi.testvolumesize={}", volumes.size),
        format!("--csi.testvolumeexpandsize={}", 2 * volumes.size),
    ];
    words.extend(target.controller.map(|socket| format!("--csi.controllerendpoint={socket}")));
    let ran = guest.command(words).limit(LIMIT).output()?;
    let said = format!("{}\n{}", ran.text(), ran.complaint());
    fs::write(format!("csi-sanity-lvms-{kind}-{access}.log"), &said)?;
    let report = guest.command(["cat", &format!("{directory}/report.json")]).run();
    let report = Report::parse(&report.with_context(|| process::last_lines(&said, 30))?.text())?;
    ensure!(
        ran.ended == Ended::Exited(0) && report.failed.is_empty(),
        "{:?}, failed:\n{}",
        ran.ended,
        report.failed.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    );
    let expected: BTreeSet<String> = SKIPPED.lines().map(str::to_owned).collect();
    let wrongly: Vec<&str> = report.skipped.difference(&expected).map(String::as_str).collect();
    ensure!(wrongly.is_empty(), "skipped, and not in the list of what lvms lacks:\n{}", wrongly.join("\n"));
    let no_more: Vec<&str> = expected.difference(&report.skipped).map(String::as_str).collect();
    ensure!(no_more.is_empty(), "in the list of what lvms lacks, and not skipped:\n{}", no_more.join("\n"));
    let after = free(guest)?;
    ensure!(before == after, "before there was {before}, now {after}");
    eprintln!("  csi-sanity, {kind} by {access}: {} passed, {} skipped", report.passed, report.skipped.len());
    Ok(())
}

/// What is free, and which volumes there are.
fn free(guest: &Guest) -> Result<String> {
    let script = "vgs --noheadings -o vg_name,vg_free_count; lvs --noheadings -o vg_name,lv_name";
    Ok(guest.script(script).run()?.text())
}

/// What Ginkgo says of each spec.
#[derive(Debug, Default)]
struct Report {
    passed: u32,
    skipped: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Report {
    fn parse(text: &str) -> Result<Report> {
        let suites: serde_json::Value = serde_json::from_str(text).context("Ginkgo's report")?;
        let mut report = Report::default();
        let specs = suites[0]["SpecReports"].as_array().context("Ginkgo reports no specs")?;
        for spec in specs.iter().filter(|spec| spec["LeafNodeType"] == "It") {
            let mut words: Vec<&str> = spec["ContainerHierarchyTexts"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(serde_json::Value::as_str)
                .collect();
            words.extend(spec["LeafNodeText"].as_str());
            let name = words.join(" ");
            match spec["State"].as_str() {
                Some("passed") => report.passed += 1,
                Some("skipped") => drop(report.skipped.insert(name)),
                // Not finished by those who wrote csi-sanity; they run for nobody.
                Some("pending") => {}
                _ => drop(report.failed.insert(format!("{name}: {}", spec["Failure"]["Message"]))),
            }
        }
        Ok(report)
    }
}
