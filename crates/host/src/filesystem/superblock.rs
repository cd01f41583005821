//! What superblocks say that no tool tells quickly: whether making was cut off, whether a check is due, how large the
//! filesystem is, and whether a copy for repairs is all that is left of one.

use std::io;

use super::Filesystem;
use crate::units::Bytes;

/// Reads bytes of a device.
pub trait Bytewise {
    /// Fills the buffer from this place.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// What a superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Which filesystem it is.
    pub filesystem: Filesystem,
    /// The filesystem's size.
    pub size: Bytes,
    /// Whether its making was cut off.
    pub unfinished: bool,
    /// Whether it was not unmounted, or has seen errors.
    pub unclean: bool,
}

/// Reads the superblock of a filesystem; `None` if there is none of this kind.
pub fn read(device: &impl Bytewise, filesystem: Filesystem) -> io::Result<Option<Superblock>> {
    match filesystem {
        Filesystem::Ext4 => ext4(device),
        Filesystem::Xfs => xfs(device),
        Filesystem::Btrfs => btrfs(device),
    }
}

fn bytes<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&block[at..at + N]);
    value
}

fn ext4(device: &impl Bytewise) -> io::Result<Option<Superblock>> {
    let mut block = [0; 1024];
    device.read_at(1024, &mut block)?;
    if bytes::<2>(&block, 0x38) != [0x53, 0xef] {
        return Ok(None);
    }
    let word = |at| u32::from_le_bytes(bytes(&block, at));
    let short = |at| u16::from_le_bytes(bytes(&block, at));
    const VALID: u16 = 1;
    const ERRORS: u16 = 2;
    const NEEDS_RECOVERY: u32 = 4;
    let blocks = u64::from(word(0x04)) | u64::from(word(0x150)) << 32;
    let (state, mounts, mounted) = (short(0x3a), short(0x34), word(0x2c));
    Ok(Some(Superblock {
        filesystem: Filesystem::Ext4,
        size: Bytes(blocks.saturating_mul(1024 << word(0x18).min(10))),
        // mke2fs writes the valid state last of all, before anybody has mounted it.
        unfinished: state & VALID == 0 && mounts == 0 && mounted == 0,
        unclean: state & VALID == 0 || state & ERRORS != 0 || word(0x60) & NEEDS_RECOVERY != 0,
    }))
}

fn xfs(device: &impl Bytewise) -> io::Result<Option<Superblock>> {
    let mut block = [0; 512];
    device.read_at(0, &mut block)?;
    if &block[..4] != b"XFSB" {
        return Ok(None);
    }
    let blocks = u64::from_be_bytes(bytes(&block, 8));
    let size = u64::from(u32::from_be_bytes(bytes(&block, 4)));
    Ok(Some(Superblock {
        filesystem: Filesystem::Xfs,
        size: Bytes(blocks.saturating_mul(size)),
        unfinished: block[126] != 0,
        unclean: false,
    }))
}

fn btrfs(device: &impl Bytewise) -> io::Result<Option<Superblock>> {
    let mut block = [0; 4096];
    device.read_at(64 << 10, &mut block)?;
    // While it is made, another magic stands there, which no probe takes for a filesystem.
    if &block[0x40..0x48] != b"_BHRfS_M" {
        return Ok(None);
    }
    let size = u64::from_le_bytes(bytes(&block, 0x70));
    Ok(Some(Superblock {
        filesystem: Filesystem::Btrfs,
        size: Bytes(size),
        unfinished: false,
        unclean: false,
    }))
}

/// The filesystem of which a copy of the superblock, kept for repairs, is still there.
pub fn remains(device: &impl Bytewise, size: Bytes) -> io::Result<Option<&'static str>> {
    let magic = |at: u64, magic: &[u8]| -> io::Result<bool> {
        let mut found = [0; 8];
        let found = &mut found[..magic.len()];
        // Reads are of whole sectors, and the last one must be there.
        if at + 4096 > size.0 {
            return Ok(false);
        }
        device.read_at(at, found)?;
        Ok(found == magic)
    };
    // The second block group of ext2, 3 and 4 with blocks of 1, 2 and 4 KiB.
    for block in [8193 << 10, 16384 << 11, 32768 << 12] {
        if magic(block + 0x38, &[0x53, 0xef])? {
            return Ok(Some("ext4"));
        }
    }
    for mirror in [64 << 20, 256 << 30] {
        if magic(mirror + 0x40, b"_BHRfS_M")? {
            return Ok(Some("btrfs"));
        }
    }
    // mkfs.xfs makes four allocation groups of most volumes; each begins with a superblock.
    for quarter in 1..4 {
        let group = size.0 / 4 / 4096 * 4096 * quarter;
        for block in (group.saturating_sub(8 * 4096)..=group + 8 * 4096).step_by(4096) {
            if magic(block, b"XFSB")? {
                return Ok(Some("xfs"));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Memory(Vec<u8>);

    impl Bytewise for Memory {
        fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
            let at = usize::try_from(at).map_err(io::Error::other)?;
            let source = self.0.get(at..at + buffer.len()).ok_or_else(|| io::Error::other("past the end"))?;
            buffer.copy_from_slice(source);
            Ok(())
        }
    }

    #[test]
    fn an_empty_device_has_neither_superblock_nor_remains() {
        let empty = Memory(vec![0; 40 << 20]);
        for filesystem in Filesystem::ALL {
            assert_eq!(read(&empty, filesystem).unwrap(), None);
        }
        assert_eq!(remains(&empty, Bytes::mib(40)).unwrap(), None);
    }

    #[test]
    fn a_copy_kept_for_repairs_is_found() {
        let mut device = Memory(vec![0; 40 << 20]);
        device.0[(8193 << 10) + 0x38] = 0x53;
        device.0[(8193 << 10) + 0x39] = 0xef;
        assert_eq!(remains(&device, Bytes::mib(40)).unwrap(), Some("ext4"));
        let mut device = Memory(vec![0; 40 << 20]);
        device.0[(10 << 20)..(10 << 20) + 4].copy_from_slice(b"XFSB");
        assert_eq!(remains(&device, Bytes::mib(40)).unwrap(), Some("xfs"));
    }
    /// A device that begins with other bytes than zeros, and has the magic of this filesystem.
    fn device(filesystem: Filesystem, noise: &[(usize, u8)]) -> Memory {
        let mut device = Memory(vec![0; 80 << 10]);
        let (begin, magic, at) = match filesystem {
            Filesystem::Ext4 => (1024, &[0x53, 0xef][..], 0x38),
            Filesystem::Xfs => (0, &b"XFSB"[..], 0),
            Filesystem::Btrfs => (64 << 10, &b"_BHRfS_M"[..], 0x40),
        };
        for (place, byte) in noise {
            device.0[begin + place] = *byte;
        }
        device.0[begin + at..][..magic.len()].copy_from_slice(magic);
        device
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(
            noise in prop::collection::vec((0usize..1024, any::<u8>()), 0..200),
            kept in 0usize..80 << 10,
            size: u64,
        ) {
            for filesystem in Filesystem::ALL {
                let mut device = device(filesystem, &noise);
                let found = read(&device, filesystem).unwrap();
                prop_assert_eq!(found.map(|found| found.filesystem), Some(filesystem));
                device.0.truncate(kept);
                let _ = read(&device, filesystem);
                let _ = remains(&device, Bytes(size));
            }
        }

        #[test]
        fn a_filesystem_has_the_size_that_it_says(blocks in 1u64..1 << 48, shift in 0u32..7, mounts: u16) {
            let mut ext4 = device(Filesystem::Ext4, &[]);
            let low = u32::try_from(blocks & 0xffff_ffff).unwrap();
            let high = u32::try_from(blocks >> 32).unwrap();
            for (at, value) in [(0x04, low), (0x150, high), (0x18, shift)] {
                ext4.0[1024 + at..][..4].copy_from_slice(&value.to_le_bytes());
            }
            ext4.0[1024 + 0x34..][..2].copy_from_slice(&mounts.to_le_bytes());
            let found = read(&ext4, Filesystem::Ext4).unwrap().unwrap();
            prop_assert_eq!(found.size, Bytes(blocks << (10 + shift)));
            prop_assert_eq!((found.unfinished, found.unclean), (mounts == 0, true));

            let mut xfs = device(Filesystem::Xfs, &[]);
            xfs.0[4..8].copy_from_slice(&(1u32 << (9 + shift)).to_be_bytes());
            xfs.0[8..16].copy_from_slice(&blocks.to_be_bytes());
            prop_assert_eq!(read(&xfs, Filesystem::Xfs).unwrap().unwrap().size, Bytes(blocks << (9 + shift)));

            let mut btrfs = device(Filesystem::Btrfs, &[]);
            btrfs.0[(64 << 10) + 0x70..][..8].copy_from_slice(&blocks.to_le_bytes());
            prop_assert_eq!(read(&btrfs, Filesystem::Btrfs).unwrap().unwrap().size, Bytes(blocks));
        }
    }
}
