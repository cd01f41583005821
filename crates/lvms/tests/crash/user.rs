//! What a client of the driver does.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::LazyLock;

use lab_csi::{Access, Client, Source};
use lab_test::Result;

use crate::operation::Operation;

const MIB: i64 = 1 << 20;
/// Whole stripes of every layout: none has more than asked for, so a copy may ask for the same.
const SIZE: i64 = 48 * MIB;
const TARGET: &str = "/run/test/at";
const EXT4: Access = Access::Filesystem("ext4");
const XFS: Access = Access::Filesystem("xfs");
const BLOCK: Access = Access::Block;

/// A small volume of this kind.
fn size(access: Access) -> i64 {
    if access == XFS { 304 * MIB } else { SIZE }
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

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..1u32 << 18).flat_map(u32::to_le_bytes).collect());
