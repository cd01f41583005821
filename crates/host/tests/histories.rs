//! The same histories on real LVM and on the simulated host, compared after every act: undisturbed, with a new process
//! between two acts, and with a step that fails and a new process that is asked for the same again.

mod failing;

use std::collections::BTreeSet;
use std::sync::Arc;

use failing::Failing;
use lab_test::{Lab, MIB, Needs, Result, run};
use lvms_host::lvm::inventory::{Group, Kind};
use lvms_host::names::VgName;
use lvms_host::runner::{Linux, Options, Runner};
use lvms_host::simulated::Simulated;
use lvms_host::simulated::history::{Act, GROUP, POOL, generate, perform, summary, verdict};
use lvms_host::volumes::Volumes;

/// Disks of 24 extents each, as many as the widest class needs.
const DISKS: usize = 5;

/// What becomes of the driver at an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It goes on.
    Lives,
    /// Another one serves the act.
    Restarts,
    /// After so many effects nothing works any more, and another one is asked for the same.
    Fails(u64),
}

impl Fate {
    fn of(seed: u64, act: u64) -> Fate {
        match (seed + act) % 3 {
            0 => Fate::Fails((seed + act) / 3 % 4),
            1 => Fate::Restarts,
            _ => Fate::Lives,
        }
    }
}

/// Both hosts, and an engine on each.
struct Both {
    vg: VgName,
    real: Arc<Failing>,
    simulated: Arc<Simulated>,
    engines: (Arc<Volumes<Failing>>, Arc<Volumes<Simulated>>),
}

impl Both {
    fn new() -> Result<Both> {
        let vg = VgName::parse(GROUP)?;
        let real = Arc::new(Failing::new(Linux::new(Options::default())?));
        let simulated = Arc::new(Simulated::new(group(&*real, &vg)?));
        let engines =
            (Volumes::open(Arc::clone(&real), &[&vg])?, Volumes::open(Arc::clone(&simulated), &[&vg])?);
        Ok(Both { vg, real, simulated, engines })
    }

    fn restart(&mut self) -> Result {
        self.engines.0 = Volumes::open(Arc::clone(&self.real), &[&self.vg])?;
        self.engines.1 = Volumes::open(Arc::clone(&self.simulated), &[&self.vg])?;
        Ok(())
    }

    fn fail_after(&self, effects: Option<u64>) {
        self.real.fail_after(effects);
        self.simulated.fail_after(effects);
    }

    /// Does it on both, and compares what has become of it.
    fn perform(&self, act: &Act) -> Result<String> {
        let (real, simulated) = &self.engines;
        let verdicts = (verdict(&perform(act, real)), verdict(&perform(act, simulated)));
        println!("{verdicts:?}");
        let there = summary(&self.real.inventory(Some(&self.vg))?);
        assert_eq!(
            summary(&self.simulated.inventory(None)?),
            there,
            "the simulated host differs from real LVM"
        );
        if !is_failure(&verdicts.0) {
            assert_eq!(summary(&real.inventory()), there, "what the engine believes is not what is there");
        }
        assert_eq!(verdicts.0, verdicts.1);
        self.simulated.place_like(&group(&*self.real, &self.vg)?);
        Ok(verdicts.0)
    }
}

fn is_failure(verdict: &str) -> bool {
    verdict != "done" && !verdict.starts_with("refused")
}

fn group(host: &impl Runner, vg: &VgName) -> Result<Group> {
    let group = host.inventory(Some(vg))?.groups.remove(vg).ok_or("no group")?;
    Ok(Arc::unwrap_or_clone(group))
}

fn compare(lab: &Lab, seeds: std::ops::Range<u64>) -> Result {
    let (mut compared, mut failed, mut restarted, mut kinds) = (0, 0, 0, BTreeSet::new());
    for seed in seeds {
        run("vgcreate", [GROUP].into_iter().chain(lab.disks().iter().map(String::as_str)))?;
        run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", POOL, "-l", "20", GROUP])?;
        let mut both = Both::new()?;
        for (number, act) in (0..).zip(generate(seed, 20)) {
            let fate = Fate::of(seed, number);
            println!("# seed {seed}, act {number}, {fate:?}: {act:?}");
            // The simulated host does not know how long it takes.
            lab.await_synchronised()?;
            if let Fate::Fails(effects) = fate {
                both.fail_after(Some(effects));
                let verdict = both.perform(&act)?;
                both.fail_after(None);
                failed += u32::from(is_failure(&verdict));
                compared += 1;
            }
            if fate != Fate::Lives {
                both.restart()?;
                restarted += 1;
            }
            both.perform(&act)?;
            compared += 1;
            kinds.extend(both.engines.0.inventory().groups[&both.vg].volumes.values().filter_map(|volume| {
                match &volume.kind {
                    Kind::Thick(layout) => Some(layout.segment.clone()),
                    Kind::Pool { .. } | Kind::Thin { .. } | Kind::Cow { .. } | Kind::Other(_) => None,
                }
            }));
        }
        run("vgremove", ["-qq", "-y", "-f", GROUP])?;
    }
    println!("== {compared} acts compared, {failed} of them failed, {restarted} restarts, {kinds:?}");
    assert!(compared >= 40 && failed > 0 && restarted > 0);
    assert!(["linear", "raid10", "striped"].iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
    Ok(())
}

fn real_lvm_and_the_simulated_host_agree(lab: &Lab) -> Result {
    compare(lab, 0..2)
}

fn real_lvm_and_the_simulated_host_agree_without_udev(lab: &Lab) -> Result {
    compare(lab, 2..4)
}

lab_test::main! {
    real_lvm_and_the_simulated_host_agree: Needs::disks(DISKS, 100 * MIB),
    real_lvm_and_the_simulated_host_agree_without_udev: Needs::disks(DISKS, 100 * MIB).without_udev(),
}
