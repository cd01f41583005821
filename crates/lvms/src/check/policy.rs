//! The host's own policy for LVM: its devices file, filters, what is activated, multipath.

use lvms_host::names::VgName;
use lvms_host::runner::Linux;

use super::Findings;

/// What is asked of lvm2.
const SETTINGS: [&str; 7] = [
    "devices/use_devicesfile",
    "devices/filter",
    "devices/global_filter",
    "devices/multipath_component_detection",
    "activation/volume_list",
    "activation/auto_activation_volume_list",
    "activation/read_only_volume_list",
];

/// Accepts all disks; what LVM has by default.
const ALL: &str = "[\"a|.*|\"]";

/// One line each. `lost` are groups that are configured and that LVM does not find.
pub(super) fn check(linux: &Linux, lost: &[&VgName], findings: &mut Findings) {
    let words: Vec<&str> = ["lvmconfig", "--typeconfig", "full"].into_iter().chain(SETTINGS).collect();
    let settings = match linux.ask_lvm(&words) {
        Ok(text) => Settings(text),
        Err(error) => {
            let remedy = "run lvmconfig on the host, and mend what it complains of";
            return findings.warn("lvm.conf", (format!("cannot be read: {error}"), remedy));
        }
    };
    // It fails where there is no such file.
    let devices = linux.ask_lvm(&["lvmdevices"]).ok();
    let devices = devices.map(|text| text.lines().filter(|line| line.contains("IDTYPE=")).count());
    settings.judge(devices, lost, findings);
}

/// As lvm2 prints them.
struct Settings(String);

impl Settings {
    fn of(&self, key: &str) -> Option<&str> {
        let mut lines = self.0.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::trim)
    }

    /// `devices` is how many disks the devices file names, if there is one.
    fn judge(&self, devices: Option<usize>, lost: &[&VgName], findings: &mut Findings) {
        let what = "devices file";
        match devices.filter(|_| self.of("use_devicesfile") == Some("1")) {
            None => findings.ok(what, "there is none: LVM looks at all disks"),
            Some(count) if lost.is_empty() => {
                findings.ok(what, format!("LVM looks at the {count} disks that it names"));
            }
            Some(count) => {
                let groups = lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let problem =
                    format!("LVM looks at the {count} disks that it names, and does not find {groups}");
                let remedy = "if their disks are there, add them with lvmdevices --adddev";
                findings.warn(what, (problem, remedy));
            }
        }
        let filters = ["filter", "global_filter"].map(|key| (key, self.of(key)));
        let trap = ("disks that it rejects are not seen", "let it accept those of volume groups");
        let fine = "there are none: LVM takes all disks that it looks at";
        judge("filters", &filters, |value| value != ALL, fine, trap, findings);
        let lists = ["volume_list", "auto_activation_volume_list", "read_only_volume_list"];
        let lists = lists.map(|key| (key, self.of(key)));
        let trap = (
            "it decides which volumes are active, or writable, after a boot",
            "name the volume groups in it",
        );
        let fine = "all volumes are activated by a boot, or when they are needed";
        judge("activation", &lists, |_| true, fine, trap, findings);
        let multipath = ["multipath_component_detection"].map(|key| (key, self.of(key)));
        let trap = ("a path may be taken for a disk", "set it to 1 if the host has multipath devices");
        let fine = "paths of multipath devices are not taken for disks";
        judge("multipath", &multipath, |value| value == "0", fine, trap, findings);
    }
}

/// One line for all settings if they are fine, or one for each that is not.
fn judge(
    what: &str,
    settings: &[(&str, Option<&str>)],
    is_trap: impl Fn(&str) -> bool,
    fine: &str,
    (problem, remedy): (&str, &str),
    findings: &mut Findings,
) {
    let mut trapped = false;
    for (key, value) in settings {
        if let Some(value) = value.filter(|value| is_trap(value)) {
            findings.warn(what, (format!("lvm.conf: {key} is {value}: {problem}"), remedy));
            trapped = true;
        }
    }
    if !trapped {
        findings.ok(what, fine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::findings::Verdict;

    /// Printed by lvm2 2.03.16.
    const DEFAULTS: &str = "\
        use_devicesfile=0\n\
        filter=[\"a|.*|\"]\n\
        global_filter=[\"a|.*|\"]\n\
        multipath_component_detection=1\n";

    fn judged(settings: &str, devices: Option<usize>, lost: &[&VgName]) -> Vec<(Verdict, String)> {
        let mut findings = Findings::default();
        Settings(settings.to_owned()).judge(devices, lost, &mut findings);
        let told = findings.all().iter();
        told.map(|finding| (finding.verdict, format!("{}: {}", finding.what, finding.message))).collect()
    }

    #[test]
    fn a_host_with_nothing_special_has_one_line_for_each() {
        let told = judged(DEFAULTS, None, &[]);
        assert!(told.iter().all(|(verdict, _)| *verdict == Verdict::Ok), "{told:?}");
        for (line, what) in told.iter().zip(["devices file", "filters", "activation", "multipath"]) {
            assert!(line.1.starts_with(&format!("{what}: ")), "{told:?}");
        }
        assert_eq!(told.len(), 4);
    }

    #[test]
    fn each_trap_is_told_with_what_to_do() {
        let settings = "use_devicesfile=1\nfilter=[\"a|.*|\"]\nglobal_filter=[\"r|/dev/sdb|\",\"a|.*|\"]\n\
                        volume_list=[\"root\"]\nmultipath_component_detection=0\n";
        let group = VgName::parse("fast").unwrap();
        let told = judged(settings, Some(2), &[&group]);
        assert!(told.iter().all(|(verdict, _)| *verdict == Verdict::Warning), "{told:?}");
        for (line, parts) in told.iter().zip([
            ["devices file: ", "2 disks", "fast", "lvmdevices --adddev"],
            ["filters: ", "global_filter is", "/dev/sdb", "accept"],
            ["activation: ", "volume_list is", "root", "name the volume groups"],
            ["multipath: ", "detection is 0", "path", "set it to 1"],
        ]) {
            assert!(parts.iter().all(|part| line.1.contains(part)), "{line:?} lacks one of {parts:?}");
        }
        assert_eq!(told.len(), 4);
        assert_eq!(judged(settings, Some(2), &[])[0].0, Verdict::Ok, "all groups are found");
    }
}
