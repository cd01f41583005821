//! What must be on the host: lvm2, the kernel's targets, tools.

use std::time::Duration;

use lvms_host::desired::{ClassKind, Desired};
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
            findings.error("lvm2", (error, remedy));
            return false;
        }
    };
    let version = text.lines().find_map(|line| line.trim().strip_prefix("LVM version:"));
    match version.map(str::trim).and_then(|version| Some((version, parse_version(version)?))) {
        Some((version, number)) if number < OLDEST => {
            findings.error("lvm2", (format!("version {version} is older than 2.03.14"), "update it"));
        }
        Some((version, _)) => findings.ok("lvm2", format!("version {version}")),
        None => {
            let remedy = "run lvm version on the host, and update lvm2 if it is older than 2.03.14";
            findings.warn("lvm2", ("its version cannot be told", remedy));
        }
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
        Err(error) => {
            let remedy = "run lvm segtypes on the host, and mend what it complains of";
            findings.warn(what, (format!("cannot be told: {error}"), remedy));
        }
        Ok(text) => match missing_features(&text, Needed::by(desired)).as_slice() {
            [] => findings.ok(what, "it knows all kinds of volumes that the classes need"),
            missing => {
                let problem = format!("it was built without {}", missing.join(", "));
                findings.error(what, (problem, "install another build"));
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
        let problem = "none of the host's can be made for commands, and the end of a pod of lvms may kill one that \
             changes something";
        findings.warn(what, (problem, "mount cgroup2 at /sys/fs/cgroup"));
    }
}

/// Device-mapper and its targets, which the kernel has, or loads when they are needed.
pub(super) fn check_kernel(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    if let Err(error) = linux.device("lvms-check") {
        let problem = format!("device-mapper does not answer: {error}");
        return findings.error("kernel", (problem, "load dm_mod"));
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
        let problem = format!("has no target {}", missing.join(", "));
        findings.error("kernel", (problem, "install the kernel's modules for device-mapper"));
    }
}

/// Tools that come together.
struct Package {
    name: &'static str,
    tools: &'static [&'static str],
    /// What does not go without them.
    without: &'static str,
}

const UTIL_LINUX: Package =
    Package { name: "util-linux", tools: &["blkid", "wipefs"], without: "no volume can be published" };

const FILESYSTEMS: [Package; 3] = [
    Package {
        name: "e2fsprogs",
        tools: &["mkfs.ext4", "e2fsck", "resize2fs"],
        without: "no ext4 volumes can be had",
    },
    Package { name: "xfsprogs", tools: &["mkfs.xfs", "xfs_growfs"], without: "no xfs volumes can be had" },
    Package {
        name: "btrfs-progs",
        tools: &["mkfs.btrfs", "btrfs", "btrfstune"],
        without: "no btrfs volumes can be had",
    },
];

/// lvm2 checks a pool before it activates it.
const POOLS: Package =
    Package { name: "thin-provisioning-tools", tools: &["thin_check"], without: "pools are not activated" };

pub(super) fn check_tools(linux: &Linux, desired: Option<&Desired>, findings: &mut Findings) {
    let runs = |tool| linux.run(&Program::looks([tool, "--version"], LIMIT)).is_ok();
    check_packages(runs, Needed::by(desired).thin, findings);
}

fn check_packages(runs: impl Fn(&'static str) -> bool, needs_pools: bool, findings: &mut Findings) {
    let missing = |package: &Package| {
        let Package { name, tools, without } = *package;
        let tools = tools.iter().filter(|tool| !runs(tool));
        let trouble = |tool| (format!("{tool} is not on the host: {without}"), format!("install {name}"));
        tools.map(trouble).collect::<Vec<_>>()
    };
    let needed = missing(&UTIL_LINUX);
    let useful = FILESYSTEMS.iter().chain(needs_pools.then_some(&POOLS)).flat_map(missing);
    let useful: Vec<_> = useful.collect();
    if needed.is_empty() && useful.is_empty() {
        findings.ok("tools", "all are on the host");
    }
    needed.into_iter().for_each(|trouble| findings.error("tools", trouble));
    useful.into_iter().for_each(|trouble| findings.warn("tools", trouble));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::findings::Verdict;
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
    fn each_tool_that_is_missing_is_told_with_its_package() {
        let told = |runs: &dyn Fn(&str) -> bool, needs_pools| {
            let mut findings = Findings::default();
            check_packages(runs, needs_pools, &mut findings);
            let told = findings.all().iter().map(|finding| (finding.verdict, finding.message.clone()));
            told.collect::<Vec<_>>()
        };
        let without = |missing: &str| told(&|tool| tool != missing, true);
        for (tool, verdict, message) in [
            (
                "wipefs",
                Verdict::Error,
                "wipefs is not on the host: no volume can be published: install util-linux",
            ),
            (
                "resize2fs",
                Verdict::Warning,
                "resize2fs is not on the host: no ext4 volumes can be had: install e2fsprogs",
            ),
            (
                "xfs_growfs",
                Verdict::Warning,
                "xfs_growfs is not on the host: no xfs volumes can be had: install xfsprogs",
            ),
            (
                "btrfs",
                Verdict::Warning,
                "btrfs is not on the host: no btrfs volumes can be had: install btrfs-progs",
            ),
            (
                "thin_check",
                Verdict::Warning,
                "thin_check is not on the host: pools are not activated: install thin-provisioning-tools",
            ),
        ] {
            assert_eq!(without(tool), [(verdict, message.to_owned())]);
        }
        assert_eq!(
            told(&|tool| tool != "thin_check", false),
            [(Verdict::Ok, "all are on the host".to_owned())]
        );
        assert_eq!(told(&|_| false, true).len(), 11);
    }

    #[test]
    fn versions_of_lvm2_are_compared() {
        assert_eq!(parse_version("2.03.16(2) (2022-05-18)"), Some((2, 3, 16)));
        assert_eq!(parse_version("2.03.14(2)-RHEL9 (2021-10-20)"), Some((2, 3, 14)));
        assert!(parse_version("2.03.11(2) (2021-01-08)") < Some(OLDEST));
        assert_eq!(parse_version("of late"), None);
    }
}
