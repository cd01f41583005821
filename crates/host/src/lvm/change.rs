//! What is asked of LVM, as a type, and the command that asks it.
//!
//! Names and tags are checked when they are made ([`crate::names`]), so none can be taken for an option. A command
//! carries `--yes`: nobody is there to be asked.

use crate::names::{LvName, Tag, VolumePath};
use crate::units::{Bytes, Extents};

use super::inventory::Area;

/// One change, made by one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A volume with extents of its own.
    CreateThick {
        /// Where.
        path: VolumePath,
        /// How many extents its user sees.
        extents: Extents,
        /// How it lies on its disks: options for lvcreate.
        options: Vec<String>,
        /// Its tags.
        tags: Vec<Tag>,
        /// On these disks only, if any are named.
        on: Vec<String>,
    },
    /// A volume in a thin pool.
    CreateThin {
        /// Where.
        path: VolumePath,
        /// In which pool.
        pool: LvName,
        /// The size that its user sees.
        size: Bytes,
        /// Options for lvcreate.
        options: Vec<String>,
        /// Its tags.
        tags: Vec<Tag>,
    },
    /// A thin snapshot, inactive, of a thin volume.
    SnapshotThin {
        /// Of which.
        origin: VolumePath,
        /// Its name.
        name: LvName,
        /// Whether it may only be read.
        read_only: bool,
        /// Its tags.
        tags: Vec<Tag>,
    },
    /// A copy-on-write snapshot of a thick volume.
    SnapshotThick {
        /// Of which.
        origin: VolumePath,
        /// Its name.
        name: LvName,
        /// The size of its store for old blocks.
        store: Extents,
        /// What is kept at once, if LVM shall not choose.
        chunk: Option<Bytes>,
        /// Its tags.
        tags: Vec<Tag>,
    },
    /// More extents: never fewer.
    Extend {
        /// Which.
        path: VolumePath,
        /// To how many.
        extents: Extents,
        /// From these places only, if any are named.
        from: Vec<Area>,
    },
    /// Volumes of a group are removed, one after the other: LVM is started, and udev told of the disks, once for all.
    Remove {
        /// Which.
        path: VolumePath,
        /// Others of its group.
        others: Vec<LvName>,
    },
    /// A volume is removed, and what is on its extents stays, whatever the host discards: another takes them over.
    Release {
        /// Which.
        path: VolumePath,
    },
    /// Tags come and go.
    Tag {
        /// Of which volume.
        path: VolumePath,
        /// New ones.
        add: Vec<Tag>,
        /// Old ones.
        remove: Vec<Tag>,
    },
    /// A device is made for a volume, whatever its own flag says.
    Activate {
        /// Which.
        path: VolumePath,
    },
    /// Its devices become what LVM's metadata says, under whoever uses them.
    Refresh {
        /// Which.
        path: VolumePath,
    },
    /// Its device goes.
    Deactivate {
        /// Which.
        path: VolumePath,
    },
}

impl Change {
    /// One volume is removed.
    pub fn remove(path: VolumePath) -> Change {
        Change::Remove { path, others: Vec::new() }
    }

    /// The volume that is changed or made.
    pub fn path(&self) -> VolumePath {
        match self {
            Change::CreateThick { path, .. }
            | Change::CreateThin { path, .. }
            | Change::Extend { path, .. }
            | Change::Remove { path, .. }
            | Change::Release { path }
            | Change::Tag { path, .. }
            | Change::Activate { path }
            | Change::Refresh { path }
            | Change::Deactivate { path } => path.clone(),
            Change::SnapshotThin { origin, name, .. } | Change::SnapshotThick { origin, name, .. } => {
                VolumePath { group: origin.group.clone(), volume: name.clone() }
            }
        }
    }

    /// Whether LVM writes the group's metadata for it.
    pub fn is_written(&self) -> bool {
        !matches!(self, Change::Activate { .. } | Change::Refresh { .. } | Change::Deactivate { .. })
    }

    /// The command after `lvm`.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = Words(Vec::new());
        match self {
            Change::CreateThick { path, extents, options, tags, on } => {
                words.add(["lvcreate", "--yes", "--wipesignatures", "y", "--name", path.volume.as_str()]);
                words.add(["--extents".to_owned(), extents.0.to_string()]).tags("--addtag", tags);
                words.add(options).add([path.group.as_str()]).add(on);
            }
            Change::CreateThin { path, pool, size, options, tags } => {
                words.add(["lvcreate", "--yes", "--type", "thin", "--thinpool", pool.as_str()]);
                words.add(["--setactivationskip", "n", "--name", path.volume.as_str()]);
                words.add(["--virtualsize".to_owned(), format!("{}b", size.0)]).tags("--addtag", tags);
                words.add(options).add([path.group.as_str()]);
            }
            Change::SnapshotThin { origin, name, read_only, tags } => {
                words.add(["lvcreate", "--yes", "--snapshot", "--setactivationskip", "n", "--activate", "n"]);
                words.add(["--permission", if *read_only { "r" } else { "rw" }, "--name", name.as_str()]);
                words.tags("--addtag", tags).add([origin.to_string()]);
            }
            Change::SnapshotThick { origin, name, store, chunk, tags } => {
                words.add(["lvcreate", "--yes", "--snapshot", "--name", name.as_str()]);
                words.add(chunk.iter().flat_map(|chunk| ["--chunksize".to_owned(), format!("{}b", chunk.0)]));
                words.add(["--extents".to_owned(), store.0.to_string()]).tags("--addtag", tags);
                words.add([origin.to_string()]);
            }
            Change::Extend { path, extents, from } => {
                words.add(["lvextend".to_owned(), "--yes".into(), "--extents".into(), extents.0.to_string()]);
                words.add([path.to_string()]);
                words.add(from.iter().map(|area| format!("{}:{}-{}", area.place, area.first, area.last)));
            }
            Change::Remove { path, others } => {
                words.add(["lvremove".to_owned(), "--yes".into(), path.to_string()]);
                words.add(others.iter().map(|other| format!("{}/{other}", path.group)));
            }
            Change::Release { path } => {
                words
                    .add(["lvremove", "--yes", "--config", "devices/issue_discards=0"])
                    .add([path.to_string()]);
            }
            Change::Tag { path, add, remove } => {
                words.add(["lvchange", "--yes"]).tags("--addtag", add).tags("--deltag", remove);
                words.add([path.to_string()]);
            }
            Change::Activate { path } => {
                words
                    .add(["lvchange", "--yes", "--ignoreactivationskip", "--activate", "y"])
                    .add([path.to_string()]);
            }
            Change::Refresh { path } => {
                words.add(["lvchange", "--yes", "--refresh"]).add([path.to_string()]);
            }
            Change::Deactivate { path } => {
                words.add(["lvchange", "--yes", "--activate", "n"]).add([path.to_string()]);
            }
        }
        words.0
    }
}

struct Words(Vec<String>);

impl Words {
    fn add<S: AsRef<str>>(&mut self, words: impl IntoIterator<Item = S>) -> &mut Words {
        self.0.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    fn tags(&mut self, option: &str, tags: &[Tag]) -> &mut Words {
        for tag in tags {
            self.add([option, tag.as_str()]);
        }
        self
    }
}
