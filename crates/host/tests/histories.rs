//! The same histories on real LVM and on the simulated host, compared after every act.

use std::sync::Arc;

use lab_test::{GIB, Lab, MIB, Needs, Result, run};
use lvms_host::names::VgName;
use lvms_host::runner::{Linux, Options, Runner};
use lvms_host::simulated::Simulated;
use lvms_host::simulated::history::{GROUP, POOL, generate, perform, summary, verdict};
use lvms_host::volumes::Volumes;

fn compare(lab: &Lab, seeds: std::ops::Range<u64>) -> Result {
    let vg = VgName::parse(GROUP)?;
    let mut compared = 0;
    for seed in seeds {
        run("vgcreate", [GROUP, lab.disk(0), lab.disk(1)])?;
        run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", POOL, "-l", "20", GROUP])?;
        let linux = Arc::new(Linux::new(Options::default())?);
        let real = Volumes::open(Arc::clone(&linux), &[&vg])?;
        let group = || -> Result<_> { Ok(linux.inventory(Some(&vg))?.groups.remove(&vg).ok_or("no group")?) };
        let host = Arc::new(Simulated::new(Arc::unwrap_or_clone(group()?)));
        let simulated = Volumes::open(Arc::clone(&host), &[&vg])?;
        for (number, act) in generate(seed, 20).into_iter().enumerate() {
            println!("# seed {seed}, act {number}: {act:?}");
            let verdicts = (verdict(&perform(&act, &real)), verdict(&perform(&act, &simulated)));
            println!("{verdicts:?}");
            let there = summary(&linux.inventory(Some(&vg))?);
            assert_eq!(summary(&real.inventory()), there, "what the engine believes is not what is there");
            assert_eq!(summary(&simulated.inventory()), there, "the simulated host differs from real LVM");
            assert_eq!(verdicts.0, verdicts.1);
            host.place_like(&*group()?);
            compared += 1;
        }
        run("vgremove", ["-qq", "-y", "-f", GROUP])?;
    }
    println!("{compared} acts compared");
    assert!(compared >= 40);
    Ok(())
}

fn real_lvm_and_the_simulated_host_agree(lab: &Lab) -> Result {
    compare(lab, 0..2)
}

fn real_lvm_and_the_simulated_host_agree_without_udev(lab: &Lab) -> Result {
    compare(lab, 2..4)
}

lab_test::main! {
    real_lvm_and_the_simulated_host_agree: Needs::disks(2, 240 * MIB),
    real_lvm_and_the_simulated_host_agree_without_udev: Needs::disks(2, GIB / 4).without_udev(),
}
