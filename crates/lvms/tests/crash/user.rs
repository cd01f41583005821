//! What a client of the driver does.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::LazyLock;

use lab_csi::{Access, Client, Source, proto};
use lab_test::{Result, run};

use crate::operation::Operation;

const MIB: i64 = 1 << 20;
/// Whole stripes of every layout: none has more than asked for, so a copy may ask for the same.
const SIZE: i64 = 48 * MIB;
const TARGET: &str = "/run/test/at";
const FURTHER: &str = "/run/test/further";
const THEIRS: &str = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01";
const EXT4: Access = Access::Filesystem("ext4");
const XFS: Access = Access::Filesystem("xfs");
const BTRFS: Access = Access::Filesystem("btrfs");
const BLOCK: Access = Access::Block;
/// A thick class in the group of the thin one.
const BESIDE: User<'static> = User { class: "beside" };

/// A small volume of this kind.
fn size(access: Access) -> i64 {
    match access {
        XFS => 304 * MIB,
        BTRFS => 208 * MIB,
        lab_csi::Access::Filesystem(_) | lab_csi::Access::Block => SIZE,
    }
}

/// What a client does with volumes of one class. Every call can be repeated: that is what is tested.
#[derive(Clone, Copy)]
pub(crate) struct User<'a> {
    pub(crate) class: &'a str,
}

impl User<'_> {
    fn make(self, client: &Client, name: &str, access: Access) -> Result<String> {
        Ok(client.create(name, self.class, size(access), access, None)?.volume_id)
    }

    fn remove(self, client: &Client, name: &str, access: Access) -> Result {
        let id = self.make(client, name, access)?;
        Ok(client.delete(&id)?)
    }

    fn publish(self, client: &Client, access: Access) -> Result {
        Ok(client.publish(&self.make(client, "v", access)?, Path::new(TARGET), access)?)
    }

    fn publish_read_only(self, client: &Client, access: Access) -> Result {
        let request = proto::NodePublishVolumeRequest {
            volume_id: self.make(client, "v", access)?,
            target_path: TARGET.to_owned(),
            volume_capability: Some(access.capability()),
            readonly: true,
            ..Default::default()
        };
        client.node(async |mut node| node.node_publish_volume(request).await)?;
        Ok(())
    }

    /// A volume with a filesystem that is not mounted.
    fn format(self, client: &Client) -> Result {
        self.publish(client, EXT4)?;
        self.unpublish(client, EXT4)
    }

    fn unpublish(self, client: &Client, access: Access) -> Result {
        Ok(client.unpublish(&self.make(client, "v", access)?, Path::new(TARGET))?)
    }

    fn hide_and_remove(self, client: &Client, access: Access) -> Result {
        self.unpublish(client, access)?;
        self.remove(client, "v", access)
    }

    fn grow(self, client: &Client, access: Access, published: Option<&Path>) -> Result {
        let id = self.make(client, "v", access)?;
        client.grow(&id, size(access) + SIZE, access, published)?;
        Ok(())
    }

    fn grow_origin(self, client: &Client) -> Result {
        let id = self.make(client, "origin", BLOCK)?;
        client.grow(&id, 2 * SIZE, BLOCK, None)?;
        Ok(())
    }

    /// A volume with something in it.
    fn origin(self, client: &Client) -> Result<String> {
        let id = self.make(client, "origin", BLOCK)?;
        self.with_device(client, &id, |device| Ok(device.write_all_at(&PATTERN, 0)?))?;
        Ok(id)
    }

    fn with_device(self, client: &Client, id: &str, act: impl FnOnce(&fs::File) -> Result) -> Result {
        client.publish(id, Path::new(TARGET), BLOCK)?;
        let device = fs::File::options().read(true).write(true).open(TARGET)?;
        let done = act(&device).and_then(|()| Ok(device.sync_all()?));
        drop(device);
        client.unpublish(id, Path::new(TARGET))?;
        done
    }

    fn snapshot(self, client: &Client) -> Result<String> {
        let id = self.make(client, "origin", BLOCK)?;
        Ok(client.snapshot("moment", &id)?.snapshot_id)
    }

    fn forget_snapshot(self, client: &Client) -> Result {
        Ok(client.delete_snapshot(&self.snapshot(client)?)?)
    }

    fn forget_all(self, client: &Client) -> Result {
        self.forget_snapshot(client)?;
        self.remove(client, "origin", BLOCK)
    }

    fn restore(self, client: &Client) -> Result<String> {
        let snapshot = Source::Snapshot(self.snapshot(client)?);
        Ok(client.create("restored", self.class, 2 * SIZE, BLOCK, Some(&snapshot))?.volume_id)
    }

    fn copy(self, client: &Client) -> Result<String> {
        let source = Source::Volume(self.make(client, "origin", BLOCK)?);
        Ok(client.create("copy", self.class, SIZE, BLOCK, Some(&source))?.volume_id)
    }

    /// A filesystem with something in it, and a copy of it.
    fn copied_btrfs(self, client: &Client) -> Result<String> {
        let origin = self.make(client, "origin", BTRFS)?;
        client.publish(&origin, Path::new(TARGET), BTRFS)?;
        fs::write(Path::new(TARGET).join("file"), "bytes")?;
        client.unpublish(&origin, Path::new(TARGET))?;
        self.copy_of_btrfs(client)
    }

    fn copy_of_btrfs(self, client: &Client) -> Result<String> {
        let source = Source::Volume(self.make(client, "origin", BTRFS)?);
        Ok(client.create("copy", self.class, size(BTRFS), BTRFS, Some(&source))?.volume_id)
    }

    fn forget_copy_of_btrfs(self, client: &Client) -> Result {
        let copy = self.copy_of_btrfs(client)?;
        client.unpublish(&copy, Path::new(TARGET))?;
        Ok(client.delete(&copy)?)
    }

    fn copy_from_beside(self, client: &Client) -> Result<String> {
        let source = Source::Volume(BESIDE.make(client, "origin", BLOCK)?);
        Ok(client.create("copy", self.class, SIZE, BLOCK, Some(&source))?.volume_id)
    }

    fn is_whole(self, client: &Client, id: &str) -> Result {
        self.with_device(client, id, |device| {
            let mut found = vec![0; PATTERN.len()];
            device.read_exact_at(&mut found, 0)?;
            assert!(found == *PATTERN, "the copy differs");
            Ok(())
        })
    }

    /// The removal of what was made; to find its id by making it again would undo it.
    fn removal<'a>(
        self,
        what: &'static str,
        make: impl Fn(&Client) -> Result<String> + Copy + 'a,
        remove: impl Fn(&Client, &str) -> Result + Copy + 'a,
    ) -> Operation<'a> {
        let id = Rc::new(RefCell::new(String::new()));
        let (made, again) = (Rc::clone(&id), Rc::clone(&id));
        Operation::new(what, move |c| remove(c, &id.borrow()))
            .prepared(move |c| make(c).map(|id| *made.borrow_mut() = id))
            .undone(move |c| make(c).map(|id| *again.borrow_mut() = id))
            .finished(move |c| remove(c, &make(c)?))
    }

    fn growth<'a>(self, what: &'static str, access: Access) -> Operation<'a>
    where
        Self: 'a,
    {
        Operation::new(what, move |c| self.grow(c, access, Some(Path::new(TARGET))))
            .prepared(move |c| self.publish(c, access))
            .undone(move |c| {
                self.hide_and_remove(c, access)?;
                self.publish(c, access)
            })
            .finished(move |c| self.hide_and_remove(c, access))
    }

    /// RAID does not grow with snapshots: lvm2 cannot.
    fn grows_with_snapshots(self) -> bool {
        !self.class.starts_with("raid")
    }

    fn further_ways_of_publishing<'a>(self) -> Vec<Operation<'a>>
    where
        Self: 'a,
    {
        let further = Path::new(FURTHER);
        vec![
            Operation::new("a volume is mounted to be read", move |c| self.publish_read_only(c, EXT4))
                .prepared(move |c| self.format(c))
                .verified(|_| is_refused(fs::write(Path::new(TARGET).join("file"), "x")))
                .undone(move |c| self.unpublish(c, EXT4))
                .finished(move |c| self.remove(c, "v", EXT4)),
            Operation::new("a block volume is shown to be read", move |c| self.publish_read_only(c, BLOCK))
                .prepared(move |c| self.publish(c, BLOCK).and_then(|()| self.unpublish(c, BLOCK)))
                .undone(move |c| self.unpublish(c, BLOCK))
                .finished(move |c| self.remove(c, "v", BLOCK)),
            Operation::new("a volume that is read is mounted to be written, too", move |c| {
                Ok(c.publish(&self.make(c, "v", EXT4)?, further, EXT4)?)
            })
            .prepared(move |c| {
                self.format(c)?;
                self.publish_read_only(c, EXT4)
            })
            .verified(move |_| {
                is_refused(fs::write(Path::new(TARGET).join("file"), "x"))?;
                Ok(fs::write(further.join("file"), "x")?)
            })
            .undone(move |c| Ok(c.unpublish(&self.make(c, "v", EXT4)?, further)?))
            .finished(move |c| self.hide_and_remove(c, EXT4)),
        ]
    }

    /// A volume with a name as TopoLVM gives it, and nothing on it.
    fn make_as_others(self, client: &Client) -> Result {
        run("lvcreate", ["-qq", "-y", "-Wy", "-n", THEIRS, "-L", "48m", self.class])?;
        // No backup superblock of the one before.
        let device = format!("of=/dev/{}/{THEIRS}", self.class);
        run("dd", ["if=/dev/zero", &device, "bs=1M", "count=48", "oflag=direct"])?;
        // The driver sees it when it changes the group.
        self.make(client, "w", EXT4)?;
        self.remove(client, "w", EXT4)
    }

    fn publication_of_what_others_made<'a>(self) -> Operation<'a>
    where
        Self: 'a,
    {
        let target = Path::new(TARGET);
        let publish = move |c: &Client| Ok(c.publish(THEIRS, target, EXT4)?);
        Operation::new("a volume that others made is formatted and mounted", publish)
            .prepared(move |c| self.make_as_others(c))
            .verified(move |_| {
                assert_eq!(fs::metadata(target)?.permissions().mode() & 0o7777, 0o2777);
                Ok(())
            })
            .undone(move |c| {
                c.unpublish(THEIRS, target)?;
                c.delete(THEIRS)?;
                self.make_as_others(c)
            })
            .finished(|c| Ok(c.delete(THEIRS)?))
    }

    /// Between the thin class and the one beside it, and a copy that needs an identity of its own.
    fn copies_between_classes<'a>(self) -> Vec<Operation<'a>>
    where
        Self: 'a,
    {
        vec![
            Operation::new("a volume of another class is copied", move |c| {
                self.copy_from_beside(c).map(drop)
            })
            .prepared(move |c| BESIDE.origin(c).map(drop))
            .verified(move |c| self.is_whole(c, &self.copy_from_beside(c)?))
            .undone(move |c| Ok(c.delete(&self.copy_from_beside(c)?)?))
            .finished(move |c| BESIDE.remove(c, "origin", BLOCK)),
            Operation::new("a copy of a btrfs is mounted", move |c| {
                Ok(c.publish(&self.copy_of_btrfs(c)?, Path::new(TARGET), BTRFS)?)
            })
            .prepared(move |c| self.copied_btrfs(c).map(drop))
            .verified(|_| {
                assert_eq!(fs::read_to_string(Path::new(TARGET).join("file"))?, "bytes");
                Ok(())
            })
            .undone(move |c| {
                self.forget_copy_of_btrfs(c)?;
                self.copy_of_btrfs(c).map(drop)
            })
            .finished(move |c| {
                self.forget_copy_of_btrfs(c)?;
                self.remove(c, "origin", BTRFS)
            }),
        ]
    }

    pub(crate) fn operations<'a>(self) -> Vec<Operation<'a>>
    where
        Self: 'a,
    {
        let mut operations = vec![
            Operation::new("a volume is made", move |c| self.make(c, "v", EXT4).map(drop))
                .undone(move |c| self.remove(c, "v", EXT4)),
            self.removal("a volume is removed", move |c| self.make(c, "v", EXT4), |c, id| Ok(c.delete(id)?)),
            Operation::new("a volume is formatted and mounted", move |c| self.publish(c, EXT4))
                .prepared(move |c| self.make(c, "v", EXT4).map(drop))
                .undone(move |c| {
                    self.hide_and_remove(c, EXT4)?;
                    self.make(c, "v", EXT4).map(drop)
                })
                .finished(move |c| self.remove(c, "v", EXT4)),
            Operation::new("a volume is unmounted", move |c| self.unpublish(c, EXT4))
                .prepared(move |c| self.publish(c, EXT4))
                .undone(move |c| self.publish(c, EXT4))
                .finished(move |c| self.hide_and_remove(c, EXT4)),
            self.growth("a mounted ext4 grows", EXT4),
            self.growth("a mounted xfs grows", XFS),
            self.growth("a block volume grows while it is shown", BLOCK),
            Operation::new("a block volume is made", move |c| self.make(c, "v", BLOCK).map(drop))
                .undone(move |c| self.remove(c, "v", BLOCK)),
            Operation::new("a block volume is shown and hidden", move |c| {
                self.publish(c, BLOCK)?;
                self.unpublish(c, BLOCK)
            })
            .prepared(move |c| self.make(c, "v", BLOCK).map(drop))
            .undone(move |c| {
                self.remove(c, "v", BLOCK)?;
                self.make(c, "v", BLOCK).map(drop)
            })
            .finished(move |c| self.remove(c, "v", BLOCK)),
            Operation::new("a block volume grows", move |c| self.grow(c, BLOCK, None))
                .prepared(move |c| self.make(c, "v", BLOCK).map(drop))
                .undone(move |c| {
                    self.remove(c, "v", BLOCK)?;
                    self.make(c, "v", BLOCK).map(drop)
                })
                .finished(move |c| self.remove(c, "v", BLOCK)),
            Operation::new("a snapshot is taken", move |c| self.snapshot(c).map(drop))
                .prepared(move |c| self.origin(c).map(drop))
                .undone(move |c| self.forget_snapshot(c))
                .finished(move |c| self.remove(c, "origin", BLOCK)),
            Operation::new("a snapshot is restored into a larger volume", move |c| self.restore(c).map(drop))
                .prepared(move |c| {
                    self.origin(c)?;
                    self.snapshot(c).map(drop)
                })
                .verified(move |c| self.is_whole(c, &self.restore(c)?))
                .undone(move |c| Ok(c.delete(&self.restore(c)?)?))
                .finished(move |c| self.forget_all(c)),
            self.removal(
                "a snapshot is removed",
                move |c| {
                    self.origin(c)?;
                    self.snapshot(c)
                },
                |c, id| Ok(c.delete_snapshot(id)?),
            )
            .finished(move |c| self.forget_all(c)),
            Operation::new("a volume is copied", move |c| self.copy(c).map(drop))
                .prepared(move |c| self.origin(c).map(drop))
                .verified(move |c| self.is_whole(c, &self.copy(c)?))
                .undone(move |c| Ok(c.delete(&self.copy(c)?)?))
                .finished(move |c| self.remove(c, "origin", BLOCK)),
        ];
        operations.splice(0..0, self.further_ways_of_publishing());
        if self.class == "thick" {
            operations.push(self.publication_of_what_others_made());
        }
        if self.class == "thin" {
            operations.splice(0..0, self.copies_between_classes());
        }
        if self.grows_with_snapshots() {
            let with_snapshot = move |c: &Client| {
                self.origin(c)?;
                self.snapshot(c).map(drop)
            };
            let grows = Operation::new("a volume with a snapshot grows", move |c| self.grow_origin(c))
                .prepared(with_snapshot)
                .verified(move |c| self.is_whole(c, &self.make(c, "origin", BLOCK)?))
                .undone(move |c| {
                    self.forget_all(c)?;
                    with_snapshot(c)
                })
                .finished(move |c| self.forget_all(c));
            operations.insert(0, grows);
        }
        operations
    }
}

/// The system must not let this be written.
fn is_refused<T>(written: std::io::Result<T>) -> Result {
    match written {
        Ok(_) => Err("it can be written".into()),
        Err(_) => Ok(()),
    }
}

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..1u32 << 18).flat_map(u32::to_le_bytes).collect());
