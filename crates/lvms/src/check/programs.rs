//! What must be on the host: lvm2, the kernel's targets, tools.

use std::time::Duration;

use lvms_host::desired::{ClassKind, Desired};
use lvms_host::filesystem::Filesystem;
use lvms_host::lvm::shape::Shape;
use lvms_host::runner::{Linux, Program};

use super::Findings;

/// No program here has anything to wait for.
const LIMIT: Duration = Duration::from_secs(30);

/// The oldest lvm2 that does what is asked of it.
const OLDEST: (u32, u32, u32) = (2, 3, 14);

/// Says whether lvm2 can be run at all.
pub(super) fn check_version(linux: &Linux, findings: &mut Findings) -> bool {
    let text = match linux.ask_lvm(&["version"]) {
        Ok(text) => text,
        Err(error) => {
            let remedy = "install lvm2 on the host, or say where it is with --lvm-path or lvm-command-prefix";
            findings.error("lvm2", format!("{error}: {remedy}"));
            return false;
        }
    };
    let version = text.lines().find_map(|line| line.trim().strip_prefix("LVM version:"));
    match version.map(str::trim).and_then(|version| Some((version, parse_version(version)?))) {
        Some((version, number)) if number < OLDEST => {
            findings.error("lvm2", format!("version {version} is older than 2.03.14: update it"));
        }
        Some((version, _)) => findings.ok("lvm2", format!("version {version}")),
        None => findings.warn("lvm2", "its version cannot be told"),
    }
    true
}

/// `2.03.16(2) (2022-05-18)`
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text.split(['.', '(', ' ']).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What the classes need beside plain volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Needed {
    thin: bool,
    snapshot: bool,
    raid: bool,
}

impl Needed {
    fn by(desired: Option<&Desired>) -> Needed {
        let classes = || desired.iter().flat_map(|desired| &desired.classes);
        let mut options = desired.iter().flat_map(|desired| desired.option_classes.values());
        let is_raid = |options: &Vec<String>| Shape::of_options(options).is_redundant();
        let mut thick = classes().filter(|class| matches!(class.kind, ClassKind::Thick)).peekable();
        Needed {
            thin: classes().any(|class| class.pool().is_some()),
            snapshot: thick.peek().is_some(),
            raid: thick.any(|class| is_raid(&class.options)) || options.any(is_raid),
        }
    }
}

/// Which kinds of volumes lvm2 was built with.
pub(super) fn check_features(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    let what = "lvm2 features";
    match linux.ask_lvm(&["segtypes"]) {
        Err(error) => findings.warn(what, format!("cannot be told: {error}")),
        Ok(text) => match missing_features(&text, Needed::by(desired)).as_slice() {
            [] => findings.ok(what, "it knows all kinds of volumes that the classes need"),
            missing => {
                let message = format!("it was built without {}: install another build", missing.join(", "));
                findings.error(what, message);
            }
        },
    }
}

fn missing_features(segment_types: &str, needed: Needed) -> Vec<&'static str> {
    let has = |kind: &str| segment_types.split_whitespace().any(|known| known == kind);
    let features = [
        ("striped", true),
        ("snapshot", needed.snapshot),
        ("thin-pool", needed.thin),
        ("thin", needed.thin),
        ("raid1", needed.raid),
    ];
    features.into_iter().filter(|(kind, needed)| *needed && !has(kind)).map(|(kind, _)| kind).collect()
}

/// Whether commands outlive our pod.
pub(super) fn check_control_group(linux: &Linux, findings: &mut Findings) {
    let what = "control group";
    if linux.keeps_commands() {
        findings.ok(what, "commands that change something outlive a pod of lvms");
    } else {
        let message = "none of the host's can be made for commands, and the end of a pod of lvms may kill one that \
             changes something: mount cgroup2 at /sys/fs/cgroup";
        findings.warn(what, message);
    }
}

/// Device-mapper and its targets, which the kernel has, or loads when they are needed.
pub(super) fn check_kernel(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    if let Err(error) = linux.device("lvms-check") {
        return findings.error("kernel", format!("device-mapper does not answer: {error}: load dm_mod"));
    }
    let succeeds = |words: &[&str]| {
        let program = Program::looks(words.iter().copied(), LIMIT);
        linux
            .run(&program)
            .and_then(|finished| finished.success(&program))
            .ok()
            .map(|finished| finished.text())
    };
    let targets = succeeds(&["dmsetup", "targets"]).unwrap_or_default();
    let is_loaded = |target: &str| targets.lines().any(|line| line.split_whitespace().next() == Some(target));
    let needed = Needed::by(desired);
    let targets = [("thin-pool", needed.thin), ("snapshot", needed.snapshot), ("raid", needed.raid)];
    let mut missing = Vec::new();
    for (target, _) in targets.into_iter().filter(|(target, needed)| *needed && !is_loaded(target)) {
        if succeeds(&["modprobe", "--dry-run", "--quiet", &format!("dm-{target}")]).is_none() {
            missing.push(target);
        }
    }
    if missing.is_empty() {
        findings.ok("kernel", "device-mapper answers, and has all targets that the classes need");
    } else {
        let message =
            format!("has no target {}: install the kernel's modules for device-mapper", missing.join(", "));
        findings.error("kernel", message);
    }
}

pub(super) fn check_tools(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    let tools = [
        "blkid",
        "wipefs",
        "mkfs.ext4",
        "e2fsck",
        "resize2fs",
        "mkfs.xfs",
        "xfs_growfs",
        "mkfs.btrfs",
        "btrfs",
        "btrfstune",
    ];
    // lvm2 checks a pool before it activates it.
    let of_pools = Needed::by(desired).thin.then_some("thin_check");
    let mut missing = Vec::new();
    for tool in tools.into_iter().chain(of_pools) {
        let program = Program::looks([tool, "--version"], LIMIT);
        if linux.run(&program).is_err() {
            missing.push(tool);
        }
    }
    for tool in &missing {
        let needed = matches!(*tool, "blkid" | "wipefs");
        let filesystem = Filesystem::ALL.into_iter().find(|kind| {
            tool.contains(kind.name()) || (tool.starts_with("btrfs") && *kind == Filesystem::Btrfs)
        });
        match filesystem {
            _ if needed => findings.error("tools", format!("{tool} is not on the host: install util-linux")),
            Some(kind) => {
                findings.warn("tools", format!("{tool} is not on the host: no {kind} volumes can be had"));
            }
            None if Some(*tool) == of_pools => {
                let message =
                    "is not on the host: install thin-provisioning-tools, or pools are not activated";
                findings.warn("tools", format!("{tool} {message}"));
            }
            None => findings.warn("tools", format!("{tool} is not on the host")),
        }
    }
    if missing.is_empty() {
        findings.ok("tools", "all are on the host");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_host::desired::lvmd;

    fn needed(classes: &str) -> Needed {
        Needed::by(Some(&lvmd::read(&format!("device-classes: [{classes}]")).unwrap().desired))
    }

    #[test]
    fn what_the_classes_need_is_asked_of_lvm2_and_of_the_kernel() {
        let thick = "{name: a, volume-group: a}";
        let thin = "{name: b, volume-group: b, type: thin, thin-pool: {name: p, overprovision-ratio: 1}}";
        let raid = "{name: c, volume-group: c, lvcreate-options: [--type=raid1]}";
        assert_eq!(needed(thick), Needed { thin: false, snapshot: true, raid: false });
        assert_eq!(needed(thin), Needed { thin: true, snapshot: false, raid: false });
        assert_eq!(needed(raid), Needed { thin: false, snapshot: true, raid: true });
        assert_eq!(Needed::by(None), Needed { thin: false, snapshot: false, raid: false });
        let missing = |classes: &str| missing_features("striped\n  snapshot\n  thin-pool", needed(classes));
        assert_eq!(missing(thick), [""; 0]);
        assert_eq!(missing(thin), ["thin"]);
        assert_eq!(missing(&format!("{thin}, {raid}")), ["thin", "raid1"]);
    }

    #[test]
    fn versions_of_lvm2_are_compared() {
        assert_eq!(parse_version("2.03.16(2) (2022-05-18)"), Some((2, 3, 16)));
        assert_eq!(parse_version("2.03.14(2)-RHEL9 (2021-10-20)"), Some((2, 3, 14)));
        assert!(parse_version("2.03.11(2) (2021-01-08)") < Some(OLDEST));
        assert_eq!(parse_version("of late"), None);
    }
}
