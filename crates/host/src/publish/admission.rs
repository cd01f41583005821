//! As what a volume may be seen, as far as is known without a look at its bytes.

use super::{PublishError, none, publishable};
use crate::facts::Facts;
use crate::filesystem::{Filesystem, NotMountable};
use crate::lvm::Inventory;
use crate::names::VolumePath;
use crate::plan::volume::has_former_bytes;

/// As what a volume shall be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As a block device.
    Block,
    /// As this filesystem.
    Filesystem(Filesystem),
}

/// Refuses what a publication refuses, unless somebody has made on the volume what it was not made for.
pub fn admits(inventory: &Inventory, path: &VolumePath, manner: Manner) -> Result<(), PublishError> {
    let (volume, facts) = publishable(inventory, path)?;
    let group = inventory.groups.get(&path.group).ok_or_else(|| none(path))?;
    match manner {
        Manner::Block if has_former_bytes(group, volume) => Err(PublishError::NotZeroed(path.clone())),
        Manner::Block => Ok(()),
        Manner::Filesystem(wanted) => mountable(&facts, wanted)
            .map_err(|reason| PublishError::NotMountable { path: path.clone(), reason }),
    }
}

fn mountable(facts: &Facts, wanted: Filesystem) -> Result<(), NotMountable> {
    if facts.block && facts.fsid.is_none() {
        return Err(NotMountable::Block);
    }
    match &facts.filesystem {
        Some(present) if facts.used && present != wanted.name() => {
            Err(NotMountable::Another { present: present.clone(), wanted })
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::lvm::{Change, model};
    use crate::names::LvName;
    use crate::simulated::group;
    use crate::units::Extents;

    const EXT4: Manner = Manner::Filesystem(Filesystem::Ext4);
    const XFS: Manner = Manner::Filesystem(Filesystem::Xfs);

    fn admitted(facts: &Facts) -> Vec<Manner> {
        let mut group = group(&[100]);
        let path = group.path(&LvName::parse("v").unwrap());
        let (extents, options, on) = (Extents(4), Vec::new(), Vec::new());
        let made = Change::CreateThick { path: path.clone(), extents, options, tags: facts.tags(), on };
        model::apply(&mut group, &made).unwrap();
        let inventory = Inventory::of(group);
        let manners = [Manner::Block, EXT4, XFS].into_iter();
        manners.filter(|manner| admits(&inventory, &path, *manner).is_ok()).collect()
    }

    #[test]
    fn a_volume_is_admitted_as_what_it_was_made_for() {
        let (name, fsid) = (Some("v".to_owned()), Some(Uuid::from_u128(1)));
        let block = Facts { name: name.clone(), block: true, ..Facts::default() };
        let filesystem = Facts { name, fsid, ..Facts::default() };
        let either = Facts { fsid, ..block.clone() };
        let ext4 = |facts: &Facts| Facts { used: true, filesystem: Some("ext4".into()), ..facts.clone() };
        assert_eq!(admitted(&block), [Manner::Block]);
        assert_eq!(admitted(&Facts { used: true, ..block }), [Manner::Block]);
        assert_eq!(admitted(&filesystem), [EXT4, XFS]);
        assert_eq!(admitted(&ext4(&filesystem)), [EXT4]);
        assert_eq!(admitted(&either), [Manner::Block, EXT4, XFS]);
        assert_eq!(admitted(&ext4(&either)), [Manner::Block, EXT4]);
        // Somebody else made it, and has said of nothing what it is for.
        assert_eq!(admitted(&Facts::default()), [Manner::Block, EXT4, XFS]);
        assert_eq!(admitted(&Facts { copying: Some("vg/other".into()), ..filesystem }), []);
    }
}
