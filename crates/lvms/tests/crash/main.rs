//! The driver is killed before and after every single effect of every operation, and started again; the same call then
//! succeeds, and what is there is what an undisturbed run leaves.

mod driver;
mod operation;
mod user;

use std::fs;

use driver::Driver;
use lab_test::{Cut, GIB, Lab, Needs, Result, run};
use operation::state;
use user::User;

fn set_up(lab: &Lab, class: &str) -> Result {
    let mut words = vec![class.to_owned()];
    words.extend(lab.disks().iter().cloned());
    run("vgcreate", words)?;
    if class == "thin" {
        run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-l", "60%FREE", "thin"])?;
    }
    Ok(())
}

fn survives(lab: &Lab, class: &str) -> Result {
    set_up(lab, class)?;
    let mut driver = Driver::start(class)?;
    let mut points = 0;
    for operation in (User { class }).operations() {
        points += operation.survives_every_point(lab, &mut driver)?;
    }
    println!("== {class}: {points} points");
    assert!(points >= 40, "only {points} points");
    Ok(())
}

fn thick_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "thick")
}

fn thin_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "thin")
}

fn mirrored_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "raid1")
}

fn striped_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "striped")
}

fn striped_and_mirrored_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "raid10")
}

fn parity_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "raid5")
}

fn double_parity_volumes_survive_a_crash_at_every_point(lab: &Lab) -> Result {
    survives(lab, "raid6")
}

/// A copy is made while the driver dies and the power goes with it, at another point after each boot.
fn volumes_survive_a_power_cut_at_some_points(lab: &Lab) -> Result {
    const POINTS: [u32; 4] = [2, 5, 6, 9];
    let user = User { class: "thick" };
    let operations = user.operations();
    let copied = operations.last().ok_or("no operations")?;
    let boot = lab.boots() as usize;
    if boot == 0 {
        set_up(lab, "thick")?;
    }
    let mut driver = Driver::start("thick")?;
    if boot == 0 {
        (copied.prepare)(driver.client()?)?;
        let before = state()?;
        (copied.act)(driver.client()?)?;
        fs::write(lab.state().join("after"), state()?)?;
        (copied.undo)(driver.client()?)?;
        assert_eq!(state()?, before);
    } else {
        (copied.act)(driver.client()?)
            .map_err(|error| format!("after a power cut at point {}: {error}", POINTS[boot - 1]))?;
        (copied.verify)(driver.client()?)?;
        // Nobody activates at a boot what nobody uses.
        run("vgchange", ["-qq", "-ay", "thick"])?;
        assert_eq!(state()?, fs::read_to_string(lab.state().join("after"))?);
        (copied.undo)(driver.client()?)?;
    }
    let Some(point) = POINTS.get(boot) else { return Ok(()) };
    driver.arm(*point)?;
    assert!((copied.act)(driver.client()?).is_err(), "there is no point {point}");
    run("sync", ["-f", &lab.state().to_string_lossy()])?;
    lab.cut_power(if boot.is_multiple_of(2) { Cut::LoseUnflushed } else { Cut::Kill })
}

// What udev does for a new device takes an emulated guest longer than LVM itself: it is there for those that run rarely,
// and when the power is cut.
lab_test::main! {
    thick_volumes_survive_a_crash_at_every_point: Needs::disks(1, GIB / 2).without_udev(),
    thin_volumes_survive_a_crash_at_every_point: Needs::disks(1, GIB / 2).without_udev(),
    mirrored_volumes_survive_a_crash_at_every_point: Needs::disks(2, GIB / 2).without_udev(),
    striped_volumes_survive_a_crash_at_every_point: Needs::disks(2, GIB / 2).guest().rarely(),
    striped_and_mirrored_volumes_survive_a_crash_at_every_point: Needs::disks(4, GIB / 2).guest().rarely(),
    parity_volumes_survive_a_crash_at_every_point: Needs::disks(3, GIB / 2).guest().rarely(),
    double_parity_volumes_survive_a_crash_at_every_point: Needs::disks(5, GIB / 2).guest().rarely(),
    volumes_survive_a_power_cut_at_some_points: Needs::disks(1, GIB / 2).faults().power_cut(),
}
