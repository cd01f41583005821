//! What guests can do for a test.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab_protocol::agent::Ended;
use lab_protocol::disk::{Cut, Disk, Fault, GIB, MIB, link_by_id};

use crate::guest::{Guest, Spec};
use crate::lab::Lab;

type Case = (&'static str, fn(&Arc<Lab>) -> Result<()>);

pub(super) const CASES: [Case; 5] = [
    ("tests_run_on_the_machines_own_kernel_if_asked", tests_run_on_the_machines_own_kernel_if_asked),
    ("a_guest_runs_programs_and_takes_files", a_guest_runs_programs_and_takes_files),
    ("a_guest_whose_power_is_cut_is_noticed", a_guest_whose_power_is_cut_is_noticed),
    (
        "two_guests_see_each_others_writes_on_a_shared_disk",
        two_guests_see_each_others_writes_on_a_shared_disk,
    ),
    ("sanlock_and_lvmlockd_start_on_a_shared_disk", sanlock_and_lvmlockd_start_on_a_shared_disk),
];

fn a_guest_runs_programs_and_takes_files(lab: &Arc<Lab>) -> Result<()> {
    let guest = Guest::boot(lab, Spec::new("guest"), Vec::new())?;
    let ran = guest.command(["printf", "%s|%s", "two words", "*"]).run()?;
    ensure!(ran.text() == "two words|*", "{ran:?}");
    let ran =
        guest.script("cat; echo wrong >&2; echo $X; exit 3").stdin("in ").env("X", "from env").output()?;
    ensure!(ran.ended == Ended::Exited(3), "{ran:?}");
    ensure!(ran.text() == "in from env" && ran.complaint() == "wrong", "{ran:?}");
    ensure!(guest.script("kill -TERM $$").output()?.ended == Ended::Killed(15));
    let endless = guest.script("sleep 100000 & sleep 100000").limit(Duration::from_secs(1)).output()?;
    ensure!(endless.ended == Ended::TimedOut, "{endless:?}");
    ensure!(
        guest.command(["pgrep", "-c", "sleep"]).output()?.text() == "0",
        "a killed program's child lives on"
    );
    let missing = guest.command(["no-such-program"]).output()?;
    ensure!(matches!(missing.ended, Ended::NotStarted(_)), "{missing:?}");
    // A connection that is not given back would show by the thousandth.
    for _ in 0..1100 {
        guest.command(["true"]).run()?;
    }
    // A daemon that holds the output of the program which started it must not make that program last for ever.
    guest.script("setsid sleep 100000 & echo started").run()?;

    let bytes: Vec<u8> =
        (0..3_000_000u32).map(|number| number.to_le_bytes()[(number % 3) as usize]).collect();
    guest.put("/var/tmp/a directory/file", 0o640, bytes.clone())?;
    ensure!(guest.get("/var/tmp/a directory/file")? == bytes, "the bytes have changed on the way");
    ensure!(guest.command(["stat", "-c", "%a", "/var/tmp/a directory/file"]).run()?.text() == "640");
    Ok(())
}

fn a_guest_whose_power_is_cut_is_noticed(lab: &Arc<Lab>) -> Result<()> {
    let guest = Guest::boot(lab, Spec::new("guest"), Vec::new())?;
    let command = guest.script("echo started; sleep 100000");
    let (said, started) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || command.follow(|_| said.send(()).unwrap_or_default()));
    started.recv().context("the program did not start")?;
    guest.cut_power(Cut::Kill)?;
    let error = running.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?.err();
    ensure!(error.is_some_and(|error| format!("{error:#}").contains("the guest")), "nobody noticed the cut");
    ensure!(!guest.is_running());
    guest.power_on()?;
    guest.command(["true"]).run()?;
    Ok(())
}

/// Two guests, booted at the same time, with one breakable disk in both.
fn two_guests(lab: &Arc<Lab>, size: u64) -> Result<(Arc<Guest>, Arc<Guest>)> {
    let disk = lab.new_disk(Disk::new(size).serial(SHARED).with_faults())?;
    let boot = |name: &str| Guest::boot(lab, Spec { cpus: 1, ..Spec::new(name) }, vec![Arc::clone(&disk)]);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| boot("b"));
        let one = boot("a")?;
        let other = other.join().map_err(|_| anyhow::anyhow!("a boot panicked"))??;
        Ok((one, other))
    })
}

/// The serial number of the shared disk.
const SHARED: &str = "shared";

fn write_block(guest: &Guest, number: u32, text: &str) -> Result<()> {
    let disk = link_by_id(SHARED);
    let place = format!("dd of={disk} bs=4096 seek={number} conv=sync,notrunc oflag=direct status=none");
    guest.script(&place).stdin(text).run()?;
    Ok(())
}

fn read_block(guest: &Guest, number: u32) -> Result<String> {
    let disk = link_by_id(SHARED);
    let place = format!("dd if={disk} bs=4096 skip={number} count=1 iflag=direct status=none");
    Ok(guest.script(&place).run()?.text().trim_matches('\0').to_owned())
}

fn two_guests_see_each_others_writes_on_a_shared_disk(lab: &Arc<Lab>) -> Result<()> {
    let (a, b) = two_guests(lab, 64 * MIB)?;
    for (writer, reader, number) in [(&a, &b, 1), (&b, &a, 2), (&a, &b, 2)] {
        let text = format!("block {number} by {}", writer.name());
        write_block(writer, number, &text)?;
        let seen = read_block(reader, number)?;
        ensure!(seen == text, "{} sees {seen:?} instead of {text:?}", reader.name());
    }
    // One of them loses its path; the other does not.
    a.set_fault("shared", Fault::Error)?;
    ensure!(read_block(&a, 1).is_err(), "the broken path still works");
    ensure!(read_block(&b, 1)? == "block 1 by a");
    a.set_fault("shared", Fault::None)?;
    ensure!(read_block(&a, 1)? == "block 1 by a");
    Ok(())
}

fn sanlock_and_lvmlockd_start_on_a_shared_disk(lab: &Arc<Lab>) -> Result<()> {
    let (a, b) = two_guests(lab, 2 * GIB)?;
    let start = |guest: &Guest, number: u32| -> Result<()> {
        let script = format!(
            "modprobe softdog
             printf 'global {{ use_lvmlockd = 1 }}\\n' >> /etc/lvm/lvm.conf
             printf 'local {{ host_id = {number} }}\\n' > /etc/lvm/lvmlocal.conf
             mkdir -p /run/sanlock /run/wdmd
             wdmd -G root; sanlock daemon -U root -G root -w 1 -e host{number}
             lvmlockd -g sanlock
             until sanlock client status && lvmlockctl --info; do sleep 0.2; done"
        );
        guest.script(&script).run()?;
        Ok(())
    };
    start(&a, 1)?;
    start(&b, 2)?;
    a.script(&format!("vgcreate --shared shared {}", link_by_id(SHARED)))
        .limit(Duration::from_secs(300))
        .run()?;
    // The first start after the lock device appeared may fail without udev's help, and succeeds when repeated.
    let join =
        "until vgchange --lock-start shared && lvmlockctl --info | grep -q 'VG shared'; do sleep 1; done";
    b.script(join).limit(Duration::from_secs(300)).run()?;
    for guest in [&a, &b] {
        let locks = guest.command(["lvmlockctl", "--info"]).run()?.text();
        ensure!(locks.contains("VG shared lock_type=sanlock"), "{} knows {locks:?}", guest.name());
    }
    // Only one of them can have a volume for itself.
    a.script("lvcreate -n one -L 32M -aey shared").limit(Duration::from_secs(300)).run()?;
    let refused = b.script("lvchange -aey shared/one").limit(Duration::from_secs(300)).output()?;
    ensure!(refused.ended == Ended::Exited(5), "both have the volume for themselves: {refused:?}");
    ensure!(refused.complaint().contains("locked by other host"), "{refused:?}");
    Ok(())
}

/// Shown in a guest, which stands for a machine whose kernel has device-mapper.
fn tests_run_on_the_machines_own_kernel_if_asked(lab: &Arc<Lab>) -> Result<()> {
    let guest = Guest::boot(lab, Spec { memory_mib: 2048, state: true, ..Spec::new("guest") }, Vec::new())?;
    let script = r#"modprobe -a dm_mod loop
        mkdir /state/scratch; /lab/xtask native-tests /state/scratch /lab/lvm-* /lab/filesystems-* /lab/disks-*
        # A loop device that udev is looking at goes a moment later.
        for moment in $(seq 600); do [ -z "$(losetup --list)" ] && break; sleep 0.1; done
        losetup --list; dmsetup ls"#;
    let ran = guest.script(script).env("LVMS_LAB", "native").limit(Duration::from_secs(600)).run()?;
    let said = ran.text();
    let counts: Vec<&str> = said.lines().filter(|line| line.contains(" passed, 0 failed")).collect();
    ensure!(counts.len() == 1 && !counts[0].starts_with("0 "), "{said}");
    ensure!(!said.contains("/dev/loop") && said.ends_with("No devices found"), "something is left: {said}");
    let refused = guest.script("/lab/xtask native-tests /state/scratch").env("LVMS_LAB", "nativ").output()?;
    ensure!(refused.complaint().contains("unset it for guests"), "{refused:?}");
    Ok(())
}
