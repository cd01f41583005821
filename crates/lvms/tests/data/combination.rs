//! Every layout with every way of access.

use std::path::{Path, PathBuf};

use lab_csi::Access;
use lab_test::{Lab, Result, run};

use crate::pattern::{Stretch, UNFLUSHED};

const MIB: u64 = 1 << 20;

/// How volumes of a class lie on disks. Thick classes have a group each, of as many disks as a volume needs.
pub(crate) struct Layout {
    pub(crate) class: &'static str,
    disks: usize,
    options: &'static str,
}

pub(crate) const LAYOUTS: [Layout; 7] = [
    Layout { class: "linear", disks: 1, options: "" },
    Layout { class: "striped", disks: 2, options: "--stripes=2" },
    Layout { class: "raid1", disks: 2, options: "--type=raid1, -m1" },
    Layout { class: "raid10", disks: 4, options: "--type=raid10, -i2, -m1" },
    Layout { class: "raid5", disks: 3, options: "--type=raid5, -i2" },
    Layout { class: "raid6", disks: 5, options: "--type=raid6, -i3" },
    // In a pool beside the linear ones.
    Layout { class: "thin", disks: 0, options: "" },
];

/// As many as all layouts need.
pub(crate) const DISKS: usize = 17;

/// Makes the groups and the pool.
pub(crate) fn make_groups(lab: &Lab) -> Result {
    let mut disks = lab.disks().iter().map(String::as_str);
    for layout in LAYOUTS.iter().filter(|layout| layout.disks > 0) {
        run("vgcreate", [layout.class].into_iter().chain(disks.by_ref().take(layout.disks)))?;
    }
    assert!(disks.next().is_none());
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "1g", "linear"])?;
    Ok(())
}

/// An lvmd.yaml for them.
pub(crate) fn configuration() -> String {
    let class = |layout: &Layout| {
        let Layout { class, disks, options } = layout;
        if *disks == 0 {
            let pool = "{name: pool, overprovision-ratio: 20}";
            return format!("  - {{name: {class}, volume-group: linear, type: thin, thin-pool: {pool}}}\n");
        }
        format!("  - {{name: {class}, volume-group: {class}, spare-gb: 0, lvcreate-options: [{options}]}}\n")
    };
    LAYOUTS.iter().map(class).fold("device-classes:\n".to_owned(), |all, class| all + &class)
}

/// A layout with a way of access.
#[derive(Clone, Copy)]
pub(crate) struct Combination {
    pub(crate) class: &'static str,
    pub(crate) access: Access,
}

const WAYS: [Access; 4] =
    [Access::Filesystem("xfs"), Access::Filesystem("ext4"), Access::Filesystem("btrfs"), Access::Block];

/// Which combinations go together: all, or one of two halves in each of which every layout and every way occurs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    OneHalf,
    OtherHalf,
}

impl Combination {
    /// Those of a layout.
    pub(crate) fn of(layout: &Layout, which: Which) -> Vec<Combination> {
        let class = layout.class;
        let row = LAYOUTS.iter().position(|other| other.class == class).unwrap_or_default();
        let goes = |column: usize| match which {
            Which::All => true,
            Which::OneHalf => (row + column).is_multiple_of(2),
            Which::OtherHalf => !(row + column).is_multiple_of(2),
        };
        let ways = WAYS.into_iter().enumerate().filter(|(column, _)| goes(*column));
        ways.map(|(_, access)| Combination { class, access }).collect()
    }

    /// The class into which its snapshot is restored: its own or, where copies of large volumes take too long under
    /// emulation and not all go, the thin one.
    pub(crate) fn restored_class(self, which: Which) -> &'static str {
        match self.access {
            Access::Filesystem("xfs" | "btrfs") if which != Which::All => "thin",
            Access::Filesystem(_) | Access::Block => self.class,
        }
    }

    /// The name of its first volume.
    pub(crate) fn name(self) -> String {
        let access = match self.access {
            Access::Filesystem(kind) => kind,
            Access::Block => "block",
        };
        format!("{}-{access}", self.class)
    }

    /// The least size that the filesystem admits, in whole stripes of extents for all layouts.
    pub(crate) fn size(self) -> u64 {
        MIB * match self.access {
            Access::Filesystem("xfs") => 312,
            Access::Filesystem("btrfs") => 216,
            Access::Filesystem(_) => 48,
            Access::Block => 24,
        }
    }

    /// The size of a volume that has grown, or was restored into more.
    pub(crate) fn larger(self) -> u64 {
        self.size() + 48 * MIB
    }

    fn is_block(self) -> bool {
        self.access == Access::Block
    }

    /// Where a pattern lies at first.
    pub(crate) fn first(self, target: &Path) -> Stretch {
        match self.access {
            Access::Block => Stretch { path: target.to_owned(), from: 0, to: self.size() - UNFLUSHED as u64 },
            Access::Filesystem(_) => Stretch { path: target.join("first"), from: 0, to: 4 * MIB },
        }
    }

    /// Where one lies in what a volume has grown by.
    pub(crate) fn more(self, target: &Path) -> Stretch {
        match self.access {
            Access::Block => Stretch { to: self.larger() - UNFLUSHED as u64, ..self.behind(target) },
            Access::Filesystem(_) => Stretch { path: target.join("more"), from: 0, to: 8 * MIB },
        }
    }

    /// What a larger block device has more.
    pub(crate) fn behind(self, target: &Path) -> Stretch {
        Stretch { path: target.to_owned(), from: self.size(), to: self.larger() }
    }

    /// Where nothing is promised.
    pub(crate) fn unflushed(self, target: &Path, size: u64) -> Stretch {
        if self.is_block() {
            return Stretch { path: target.to_owned(), from: size - UNFLUSHED as u64, to: size };
        }
        Stretch { path: target.join("unflushed"), from: 0, to: UNFLUSHED as u64 }
    }
}

/// Where a volume of this name is published.
pub(crate) fn target(name: &str) -> PathBuf {
    Path::new("/run/test").join(name)
}
