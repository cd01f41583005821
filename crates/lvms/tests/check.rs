//! `lvms check`: one line for each thing that is looked at, whoever's lvm2 it is.

mod driver;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use driver::PROGRAM;
use lab_test::{GIB, Lab, Needs, Result, run};

const GOOD: &str = "device-classes: [{name: a, volume-group: vg, spare-gb: 0}]";

/// Whether there is no error, and the lines.
fn check(lab: &Lab, text: &str, options: &[&str]) -> Result<(bool, String)> {
    let configuration = lab.state().join("lvmd.yaml");
    fs::write(&configuration, text)?;
    let output = Command::new(PROGRAM).arg("check").args(options).arg(configuration).output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// There is exactly one line that begins so.
#[track_caller]
fn has_one(said: &str, begin: &str) {
    assert_eq!(said.lines().filter(|line| line.starts_with(begin)).count(), 1, "{begin:?} in\n{said}");
}

fn check_tells_what_is_wrong_with_file_and_host(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let check = |text: &str| check(lab, text, &[]);
    let (good, said) = check(GOOD)?;
    assert!(good && said.contains("class a: has room for a volume of 1020 MiB"), "{said}");
    for what in [
        "configuration: /run/test/lvmd.yaml: 1 device classes",
        "kernel: device-mapper answers",
        "tools: all",
        "lvm2: version 2.",
        "lvm2 features: ",
        "class a: ",
        "volume group vg: its metadata area has ",
        "devices file: there is none",
        "filters: ",
        "activation: ",
        "multipath: ",
    ] {
        has_one(&said, &format!("ok       {what}"));
    }
    let (good, said) = check("device-classes: [{name: a, volume-group: none}]")?;
    assert!(!good && said.contains("error    class a: there is no volume group none"), "{said}");
    let (good, said) = check(
        "device-classes: [{name: a, volume-group: vg, type: thin, thin-pool: {name: p, overprovision-ratio: 1}}]",
    )?;
    assert!(!good && said.contains("there is no thin pool vg/p"), "{said}");
    let (good, said) = check("device-classes: [{name: -, volume-group: 'a b', strip: 2}]")?;
    assert!(!good && said.contains("line 1"), "{said}");
    let (good, said) = check("device-classes: [{name: a, volume-group: vg, strip: 2}]")?;
    assert!(good && said.contains("warning  configuration") && said.contains("strip"), "{said}");
    assert!(said.contains("has no effect: remove it"), "{said}");
    // As volumes are made: with the stripes of a class, and with every class of options.
    let (good, said) = check(
        "device-classes: [{name: a, volume-group: vg, spare-gb: 0, stripe: 2}]\n\
         lvcreate-option-classes: [{name: plain}, {name: mirror, options: [-m1]}, {name: old, options: [--type=mirror]}]",
    )?;
    assert!(!good, "{said}");
    has_one(
        &said,
        "warning  class a: has no room for another volume: remove volumes, add a disk with vgextend vg",
    );
    has_one(&said, "ok       class a with option class plain: has room");
    has_one(&said, "warning  class a with option class mirror: has no room");
    has_one(&said, "error    class a with option class old: --type mirror");
    check(GOOD)?;
    let json = Command::new(PROGRAM).args(["check", "-o", "json", "/run/test/lvmd.yaml"]).output()?;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout)?;
    assert_eq!(json[0]["verdict"], "ok");
    Ok(())
}

/// With this at the end of the host's lvm.conf.
fn with_policy(text: &str, act: impl FnOnce() -> Result) -> Result {
    let file = Path::new("/etc/lvm/lvm.conf");
    let before = fs::read_to_string(file).unwrap_or_default();
    fs::write(file, format!("{before}\n{text}\n"))?;
    let done = act();
    fs::write(file, before)?;
    done
}

fn check_tells_of_traps_in_the_hosts_policy(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let policy = "devices { global_filter = [ \"r|/dev/zram|\", \"a|.*|\" ] multipath_component_detection = 0 }\n\
                  activation { auto_activation_volume_list = [ \"root\" ] }";
    with_policy(policy, || {
        let (good, said) = check(lab, GOOD, &[])?;
        assert!(good, "{said}");
        has_one(&said, "warning  filters: lvm.conf: global_filter is [\"r|/dev/zram|\"");
        has_one(&said, "warning  multipath: lvm.conf: multipath_component_detection is 0");
        has_one(&said, "warning  activation: lvm.conf: auto_activation_volume_list is \"root\"");
        Ok(())
    })
}

fn check_looks_into_the_devices_file(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let (good, said) = check(lab, GOOD, &[])?;
    assert!(good, "{said}");
    has_one(&said, "ok       devices file: LVM looks at the 1 disks that it names");
    run("lvm", ["lvmdevices", "--yes", "--deldev", lab.disk(0)])?;
    let (good, said) = check(lab, GOOD, &[])?;
    assert!(!good, "{said}");
    has_one(&said, "error    class a: there is no volume group vg");
    has_one(&said, "warning  devices file: LVM looks at the 0 disks that it names, and does not find vg");
    run("lvm", ["lvmdevices", "--yes", "--adddev", lab.disk(0)])?;
    Ok(())
}

fn check_asks_the_lvm2_that_it_is_told(lab: &Lab) -> Result {
    run("vgcreate", ["vg", lab.disk(0)])?;
    let (good, said) = check(lab, GOOD, &["--lvm-path", "/no/such/lvm"])?;
    assert!(!good && !said.contains("lvm2: version"), "{said}");
    has_one(&said, "error    lvm2: /no/such/lvm could not be started");
    // Words before, and the program: each call of it is written down.
    let (script, calls) = (lab.state().join("lvm"), lab.state().join("calls"));
    fs::write(&script, format!("#!/bin/sh\necho \"$*\" >> {}\nexec /sbin/lvm \"$@\"\n", calls.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let script = script.to_string_lossy();
    let prefixed = format!("lvm-command-prefix: [/usr/bin/env, A=1, {script}]\n{GOOD}");
    for (text, options) in [(GOOD, &["--lvm-path", &*script][..]), (&prefixed, &[])] {
        let (good, said) = check(lab, text, options)?;
        assert!(good, "{said}");
        let called = fs::read_to_string(&calls)?;
        for command in
            ["version", "segtypes", "fullreport", "lvmconfig --typeconfig full devices/use_devicesfile"]
        {
            assert!(called.lines().any(|line| line.starts_with(command)), "{command} is not in\n{called}");
        }
        fs::remove_file(&calls)?;
    }
    let (good, said) = check(lab, &prefixed, &["--lvm-path", &script])?;
    assert!(!good && said.contains("exclude each other"), "{said}");
    Ok(())
}

lab_test::main! {
    check_tells_what_is_wrong_with_file_and_host: Needs::disks(1, GIB).guest(),
    check_tells_of_traps_in_the_hosts_policy: Needs::disks(1, GIB).guest(),
    check_looks_into_the_devices_file: Needs::disks(1, GIB).devices_file(),
    check_asks_the_lvm2_that_it_is_told: Needs::disks(1, GIB).guest(),
}
