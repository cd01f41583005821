//! The host must not interpret what tenants write into their volumes: it would assemble their RAID arrays, register
//! their btrfs, and point `/dev/disk/by-uuid` at their copies of its own filesystems. A rule of udev's keeps it from
//! looking.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::names::VgName;

/// Where rules that end with the boot are. Ours comes before those that look into devices, whose numbers differ from
/// one distribution to another; what it sets they leave alone.
pub(super) const DIRECTORY: &str = "/run/udev/rules.d";
const FILE: &str = "05-lvms.rules";

/// The rule for volumes of these groups. A group may hold the host's own volumes too, its root for example, so only
/// those count whose names end with a UUID, as ours and TopoLVM's do.
fn rules(groups: &[&VgName]) -> String {
    let digits = |count: usize| "[0-9a-f]".repeat(count);
    let uuid = [8, 4, 4, 4, 12].map(digits).join("--");
    let mut text = "# Written by lvms: what is inside its volumes belongs to their users alone.\n".to_owned();
    for group in groups {
        let group = group.as_str().replace('-', "--");
        let _ = writeln!(
            text,
            "SUBSYSTEM==\"block\", ACTION!=\"remove\", ATTR{{dm/name}}==\"{group}-*{uuid}\", \
             ENV{{DM_UDEV_DISABLE_DISK_RULES_FLAG}}=\"1\", ENV{{DM_UDEV_DISABLE_OTHER_RULES_FLAG}}=\"1\""
        );
    }
    text
}

/// Writes the rule; says whether it was another before.
pub(super) fn write(directory: &Path, groups: &[&VgName]) -> io::Result<bool> {
    let (path, text) = (directory.join(FILE), rules(groups));
    if fs::read_to_string(&path).is_ok_and(|present| present == text) {
        return Ok(false);
    }
    fs::create_dir_all(directory)?;
    // Names that do not end like a rule's are not read.
    let half = directory.join(format!("{FILE}.new"));
    fs::write(&half, text)?;
    fs::rename(&half, &path)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_its_line_with_the_names_that_device_mapper_gives() {
        let groups = [VgName::parse("my-vg").unwrap(), VgName::parse("rhel").unwrap()];
        let text = rules(&groups.iter().collect::<Vec<_>>());
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("ATTR{dm/name}==\"my--vg-*[0-9a-f]"), "{text}");
        assert!(text.contains("[0-9a-f]--[0-9a-f]"), "{text}");
    }

    #[test]
    fn what_is_there_already_is_not_written_again() {
        let directory = std::env::temp_dir().join(format!("lvms-shield-{}", std::process::id()));
        let (one, two) = (VgName::parse("one").unwrap(), VgName::parse("two").unwrap());
        assert!(write(&directory, &[&one]).unwrap());
        assert!(!write(&directory, &[&one]).unwrap());
        assert!(write(&directory, &[&one, &two]).unwrap());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(directory).unwrap();
    }
}
