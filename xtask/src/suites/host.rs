//! Test binaries that run in guests: whatever lies in a crate's `tests/` folder.
//!
//! Tests with equal surroundings share a guest, one after the other, each with fresh disks; after each the guest is
//! tidied, and replaced if that fails. A test that cuts the power has a guest of its own, with a state disk.

pub(crate) mod native;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab_protocol::agent::{Ended, FromGuest};
use lab_protocol::control;
use lab_protocol::needs::{Listed, Needs, Start, Surroundings};

use super::{Choice, Results, Suite};
use crate::guest::{Guest, Spec};
use crate::lab::Lab;
use crate::{process, progress, workspace};

/// A test may take this long, boots included; it is killed then and has failed.
const LIMIT: Duration = Duration::from_secs(1800);

/// Set for a test and, by inheritance, for all that it starts and may leave behind.
const MARK: &str = "LAB_TEST";

/// More boots than this in one test mean that it goes round in circles.
const MOST_BOOTS: u32 = 50;

/// Builds the test binaries.
pub(crate) fn build() -> Result<Vec<PathBuf>> {
    let step = progress::step("building the tests that run in guests");
    let mut cargo = workspace::cargo();
    cargo.args([
        "test",
        "--workspace",
        "--test",
        "*",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let messages = process::run(&mut cargo)?;
    step.done();
    let mut binaries = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if message["target"]["kind"][0] == "test"
            && let Some(path) = message["executable"].as_str()
        {
            binaries.push(PathBuf::from(path));
        }
    }
    Ok(binaries)
}

/// Their names.
pub(crate) fn list(suite: Suite) -> Result<Vec<String>> {
    Ok(cases(&build()?, suite)?.into_iter().map(|case| case.name).collect())
}

fn tests_of(binary: &Path) -> Result<Vec<Listed>> {
    let text = process::run(Command::new(binary).arg("--lab-list"))?;
    serde_json::from_str(&text).with_context(|| format!("{} does not list its tests", binary.display()))
}

/// `lvm::a_thin_pool_…`, without the hash that cargo adds to a binary's name.
fn full_name(binary: &Path, test: &str) -> String {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    let name = name.rsplit_once('-').map_or(name.as_ref(), |(name, _)| name).to_owned();
    format!("{name}::{test}")
}

/// A test and the binary that has it.
struct Case {
    binary: PathBuf,
    name: String,
    test: Listed,
}

/// The suite that a test belongs to, by the name of its binary.
fn suite_of(name: &str) -> Suite {
    if name.starts_with("crash::") { Suite::Crash } else { Suite::Host }
}

/// The tests of these binaries that belong to a suite.
fn cases(binaries: &[PathBuf], suite: Suite) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for binary in binaries {
        for test in tests_of(binary)? {
            let name = full_name(binary, &test.name);
            if suite_of(&name) == suite {
                cases.push(Case { binary: binary.clone(), name, test });
            }
        }
    }
    Ok(cases)
}

/// Runs them in guests.
pub(crate) fn run(
    lab: &Arc<Lab>,
    binaries: &[PathBuf],
    suite: Suite,
    choice: &Choice,
    results: &mut Results,
) -> Result<()> {
    let shared_binaries: Vec<PathBuf> = binaries.iter().map(|binary| lab.share.join(binary)).collect();
    let elsewhere = native::wanted()?;
    let mut shared: BTreeMap<Surroundings, Vec<Case>> = BTreeMap::new();
    let mut alone = Vec::new();
    for case in cases(&shared_binaries, suite)? {
        let needs = &case.test.needs;
        let here = !elsewhere || needs.only_a_guest_will_do();
        if !here || !choice.matches(&case.name) || (needs.rare && !choice.all) {
            continue;
        }
        if needs.power_cut {
            alone.push(case);
        } else {
            shared.entry(needs.surroundings).or_default().push(case);
        }
    }
    for case in alone {
        if !choice.claim(suite.name(), &case.name)? {
            continue;
        }
        results.run(suite.name(), &case.name, || {
            let guest = boot(lab, case.test.needs.surroundings, true)?;
            run_case(lab, &guest, &case)
        });
    }
    for (surroundings, cases) in shared {
        run_in_one_guest(lab, suite, surroundings, &cases, choice, results)?;
    }
    Ok(())
}

fn run_in_one_guest(
    lab: &Arc<Lab>,
    suite: Suite,
    surroundings: Surroundings,
    cases: &[Case],
    choice: &Choice,
    results: &mut Results,
) -> Result<()> {
    let mut guest: Option<Arc<Guest>> = None;
    for case in cases {
        if !choice.claim(suite.name(), &case.name)? {
            continue;
        }
        let mut tidy = Ok(());
        let passed = results.run(suite.name(), &case.name, || {
            let guest = match &guest {
                Some(guest) => guest,
                None => guest.insert(boot(lab, surroundings, false)?),
            };
            run_case(lab, guest, case)?;
            tidy = self::tidy(guest);
            Ok(())
        });
        if !passed || tidy.is_err() {
            guest = None;
        }
    }
    Ok(())
}

fn boot(lab: &Arc<Lab>, surroundings: Surroundings, state: bool) -> Result<Arc<Guest>> {
    let step = progress::step("booting a guest");
    let spec = Spec { surroundings, state, ..Spec::new("guest") };
    let guest = Guest::boot(lab, spec, Vec::new())?;
    guest.command(["cp", "-a", "/etc/lvm", "/run/lvm-at-boot"]).run()?;
    step.done();
    Ok(guest)
}

fn run_case(lab: &Lab, guest: &Guest, case: &Case) -> Result<()> {
    let serials = plug(guest, &case.test.needs)?;
    let state = if case.test.needs.power_cut { "/state/test" } else { "/run/test" };
    guest.script(&format!("rm -rf {state}; mkdir -p {state}")).run()?;
    let mut log = String::new();
    let mut start = Start {
        name: case.test.name.clone(),
        serials,
        paths: Vec::new(),
        boots: 0,
        control: Some(format!("{}:{}", lab.network.gateway(), control::PORT)),
        state: state.to_owned(),
    };
    let deadline = Instant::now() + LIMIT;
    let log_file = lab.path(&format!("{}.log", case.name.replace("::", "-")));
    loop {
        let binary = format!("/lab/{}", case.binary.file_name().unwrap_or_default().to_string_lossy());
        let run =
            guest.command([&binary, "--lab-run", &serde_json::to_string(&start)?]).env(MARK, &case.name);
        let ran = run.limit(deadline.saturating_duration_since(Instant::now())).follow(|frame| match frame {
            FromGuest::Stdout(bytes) | FromGuest::Stderr(bytes) => log += &String::from_utf8_lossy(bytes),
            FromGuest::Ended(ended) => log += &format!("# ended: {ended:?}\n"),
        });
        fs::write(&log_file, &log)?;
        if guest.cuts() > start.boots && case.test.needs.power_cut {
            start.boots += 1;
            if start.boots > MOST_BOOTS {
                bail!("the power was cut {MOST_BOOTS} times");
            }
            log += &format!("# power cut, boot {}\n", start.boots);
            guest.power_on()?;
            continue;
        }
        let ended = ran?.ended;
        if ended != Ended::Exited(0) {
            if let Ok(kernel) = guest.command(["dmesg"]).output() {
                fs::write(log_file.with_extension("dmesg.log"), kernel.stdout)?;
            }
            bail!("{ended:?}, last words:\n{}", process::last_lines(&log, 15));
        }
        // What a test wants to be read by whoever runs it.
        for told in log.lines().filter_map(|line| line.strip_prefix("== ")) {
            println!("     {told}");
        }
        return Ok(());
    }
}

fn plug(guest: &Guest, needs: &Needs) -> Result<Vec<String>> {
    needs.disks.iter().map(|disk| guest.plug_new(disk.clone())).collect()
}

/// Brings a guest back to where it was before a test: nothing left running, no mounts, no device-mapper devices, no disks.
fn tidy(guest: &Guest) -> Result<()> {
    guest
        .script(&format!(
            "for process in $(grep -lsz '^{MARK}=' /proc/[0-9]*/environ); do\n\
               process=${{process#/proc/}}; kill -9 ${{process%/environ}} || true\n\
             done 2>/dev/null\n\
             cd /; awk '$1 ~ \"^/dev/(mapper|sd|dm-)\" || $2 ~ \"^/run/test\" {{print $2}}' /proc/mounts | tac | \
             while read -r place; do umount \"$place\"; done\n\
             # What lies on others goes first, round by round; only what stays after that is busy and waited for.\n\
             for retry in '' '' '' '' '' '' --retry --retry --retry; do\n\
               for device in $(dmsetup info -c --noheadings -o name); do dmsetup remove $retry \"$device\" || true; done\n\
               [ -z \"$(dmsetup ls | grep -v 'No devices')\" ] && break\n\
             done 2>/dev/null\n\
             [ -z \"$(dmsetup ls | grep -v 'No devices')\" ]\n\
             # Without udev nobody removes the links to devices that are gone.\n\
             for link in $(find -L /dev -mindepth 2 -maxdepth 2 -type l); do\n\
               rm -f \"$link\"; rmdir \"${{link%/*}}\" || true\n\
             done 2>/dev/null\n\
             rm -rf /run/test /etc/lvm/*; cp -a /run/lvm-at-boot/. /etc/lvm/",
        ))
        .run()?;
    guest.unplug_all()
}
