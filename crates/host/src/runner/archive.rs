//! LVM keeps a copy of a group's metadata before every change and never removes one: what it calls retention is a
//! minimum. A driver that changes a group all day must tidy up.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::names::VgName;

/// So many copies of a group stay, the newest.
const KEPT: usize = 50;

/// So many changes are made between two looks at the directory.
const BETWEEN: u32 = 25;

/// Knows when the archive of a group should be looked at again.
#[derive(Debug, Default)]
pub(super) struct Archive(Mutex<BTreeMap<VgName, u32>>);

impl Archive {
    /// Counts a change of a group; says whether its copies are due to be pruned: with the first change, then now and
    /// then.
    pub(super) fn is_due(&self, group: &VgName) -> bool {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = changes.entry(group.clone()).or_default();
        let due = count.is_multiple_of(BETWEEN);
        *count = count.wrapping_add(1);
        due
    }
}

/// Removes all copies of this group's metadata but the newest ones.
pub(super) fn prune(directory: &Path, group: &VgName) -> io::Result<usize> {
    let mut copies = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if let Some(number) = name.to_str().and_then(|name| number(name, group)) {
            copies.push((number, name));
        }
    }
    copies.sort();
    let old = copies.len().saturating_sub(KEPT);
    for (_, name) in &copies[..old] {
        fs::remove_file(directory.join(name))?;
    }
    Ok(old)
}

/// The number of a copy, if it is one of this group: `<group>_<number>-<random>.vg`.
fn number(file: &str, group: &VgName) -> Option<u64> {
    let (number, random) =
        file.strip_prefix(group.as_str())?.strip_prefix('_')?.strip_suffix(".vg")?.split_once('-')?;
    random.parse::<u64>().ok()?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vg(name: &str) -> VgName {
        VgName::parse(name).unwrap()
    }

    #[test]
    fn a_copy_belongs_to_the_group_whose_name_it_bears_whole() {
        assert_eq!(number("vg_00042-1137282301.vg", &vg("vg")), Some(42));
        assert_eq!(number("vg_100001-7.vg", &vg("vg")), Some(100_001));
        assert_eq!(number("vg_1_00042-7.vg", &vg("vg_1")), Some(42));
        for other in
            ["vg_1_00042-7.vg", "vg2_00042-7.vg", "vg_00042-7.vg.old", "vg_00042.vg", "vg", "vg_x-7.vg"]
        {
            assert_eq!(number(other, &vg("vg")), None, "{other}");
        }
    }

    #[test]
    fn the_newest_stay_and_others_are_not_touched() {
        let directory = std::env::temp_dir().join(format!("lvms-archive-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for count in 0..60 {
            fs::write(directory.join(format!("vg_{count:05}-{}.vg", 1000 - count)), "").unwrap();
        }
        fs::write(directory.join("other_00000-1.vg"), "").unwrap();
        assert_eq!(prune(&directory, &vg("vg")).unwrap(), 10);
        assert!(!directory.join("vg_00009-991.vg").exists());
        assert!(directory.join("vg_00010-990.vg").exists() && directory.join("other_00000-1.vg").exists());
        assert_eq!(prune(&directory, &vg("vg")).unwrap(), 0);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_first_change_is_due_and_then_every_twenty_fifth() {
        let archive = Archive::default();
        let due = (0..51).filter(|_| archive.is_due(&vg("vg"))).count();
        assert_eq!(due, 3);
        assert!(archive.is_due(&vg("other")));
    }
}
