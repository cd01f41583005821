//! LVM's metadata as it lies on a disk: just enough to see, without a process, whether somebody has changed it.
//!
//! A label in one of the first four sectors leads to the physical volume's header, that to a metadata area, and its
//! header to the text of the volume group, which begins with the group's name, identity and sequence number.

use std::io;
use std::path::Path;

use thiserror::Error;

use crate::direct::Direct;

/// What the text of a volume group begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    /// The group's name.
    pub group: String,
    /// Which text it is.
    pub version: Version,
}

/// Which text a group's metadata is: vgcfgrestore writes another with the number of the change that it takes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Grows with every change.
    pub seqno: u64,
    /// LVM's own of the text.
    pub checksum: u32,
}

/// Why there is no sequence number.
#[derive(Debug, Error)]
pub enum MetadataError {
    /// The disk could not be read.
    #[error("{path} could not be read")]
    Read {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is no physical volume, or has no metadata of a group.
    #[error("{path} has no LVM metadata: {what}")]
    Absent {
        /// Which.
        path: String,
        /// What is not there.
        what: &'static str,
    },
}

/// Reads it from a disk. What LVM wrote last is seen, because the disk is read past the kernel's cache where possible.
pub fn read(path: &Path) -> Result<Beginning, MetadataError> {
    let name = || path.display().to_string();
    let failed = |source| MetadataError::Read { path: name(), source };
    let disk = Direct::open(path).map_err(failed)?;
    beginning(|offset, bytes| disk.read_at(offset, bytes))
        .map_err(failed)?
        .map_err(|what| MetadataError::Absent { path: name(), what })
}

type Found = Result<Beginning, &'static str>;

/// lvm2's `RAW_LOCN_IGNORED`, which pvchange sets by `--metadataignore y`.
const IGNORED: u32 = 1;

fn beginning(read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Found> {
    const SECTOR: usize = 512;
    let mut sectors = [0; 4 * SECTOR];
    read(0, &mut sectors)?;
    let label = sectors
        .chunks(SECTOR)
        .find(|sector| sector.starts_with(b"LABELONE") && &sector[24..32] == b"LVM2 001");
    let Some(label) = label else { return Ok(Err("no label")) };
    let Some(area) = metadata_area(label) else { return Ok(Err("no metadata area")) };
    let mut header = [0; SECTOR];
    read(area, &mut header)?;
    if &header[4..20] != b" LVM2 x[5A%r0N*>" {
        return Ok(Err("no header in its metadata area"));
    }
    let (size, offset, length) = (number(&header, 32), number(&header, 40), number(&header, 48));
    let (Some(size), Some(offset), Some(length)) = (size, offset, length) else { return Ok(Err("no text")) };
    if offset < SECTOR as u64 || offset >= size || length == 0 {
        return Ok(Err("no text"));
    }
    // LVM writes nothing there any more, and leaves what it wrote last.
    let flags = u32::from_le_bytes([header[60], header[61], header[62], header[63]]);
    if flags & IGNORED != 0 {
        return Ok(Err("no text in force: its metadata area was set aside"));
    }
    let mut text = [0; SECTOR];
    // The area is a ring; its header is not part of it.
    let first = usize::try_from((size - offset).min(SECTOR as u64)).map_err(io::Error::other)?;
    read(area + offset, &mut text[..first])?;
    if first < SECTOR {
        read(area + SECTOR as u64, &mut text[first..])?;
    }
    let checksum = u32::from_le_bytes([header[56], header[57], header[58], header[59]]);
    Ok(parse(&String::from_utf8_lossy(&text), checksum).ok_or("no sequence number in its text"))
}

/// The offset of the first metadata area: after a list of data areas comes a list of metadata areas.
fn metadata_area(label: &[u8]) -> Option<u64> {
    let header = usize::try_from(u32::from_le_bytes(label.get(20..24)?.try_into().ok()?)).ok()?;
    let mut position = header.checked_add(40)?;
    while number(label, position)? != 0 {
        position += 16;
    }
    number(label, position + 16).filter(|offset| *offset != 0)
}

fn number(bytes: &[u8], position: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(position..position.checked_add(8)?)?.try_into().ok()?))
}

fn parse(text: &str, checksum: u32) -> Option<Beginning> {
    let mut lines = text.lines();
    let group = lines.next()?.strip_suffix('{')?.trim().to_owned();
    let seqno = lines.find_map(|line| line.trim().strip_prefix("seqno = "))?;
    let seqno = seqno.split_whitespace().next()?.parse().ok()?;
    Some(Beginning { group, version: Version { seqno, checksum } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHECKSUM: u32 = 0x1234_5678;

    /// A disk of 1 MiB with a label in its second sector and a metadata area at 4096.
    fn disk(text: &str, offset: usize) -> Vec<u8> {
        const AREA: usize = 4096;
        const SIZE: usize = 1 << 19;
        let mut disk = vec![0; 1 << 20];
        let mut put = |at: usize, bytes: &[u8]| disk[at..at + bytes.len()].copy_from_slice(bytes);
        put(512, b"LABELONE");
        put(512 + 20, &32u32.to_le_bytes());
        put(512 + 24, b"LVM2 001");
        // The header follows the label: uuid (32), size (8), one data area, an end, one metadata area, an end.
        put(512 + 32 + 40, &(1u64 << 20).to_le_bytes());
        put(512 + 32 + 40 + 32, &(AREA as u64).to_le_bytes());
        put(512 + 32 + 40 + 40, &(SIZE as u64).to_le_bytes());
        put(AREA + 4, b" LVM2 x[5A%r0N*>");
        put(AREA + 32, &(SIZE as u64).to_le_bytes());
        put(AREA + 40, &(offset as u64).to_le_bytes());
        put(AREA + 48, &(text.len() as u64).to_le_bytes());
        put(AREA + 56, &CHECKSUM.to_le_bytes());
        let first = text.len().min(SIZE - offset);
        put(AREA + offset, &text.as_bytes()[..first]);
        put(AREA + 512, &text.as_bytes()[first..]);
        disk
    }

    fn found(disk: &[u8]) -> Found {
        let read = |offset: u64, bytes: &mut [u8]| {
            let offset = usize::try_from(offset).unwrap();
            let source = disk.get(offset..).and_then(|rest| rest.get(..bytes.len()));
            bytes.copy_from_slice(source.ok_or_else(|| io::Error::other("past the end"))?);
            Ok(())
        };
        beginning(read).unwrap_or(Err("past the end"))
    }

    const TEXT: &str =
        "my-vg {\nid = \"cCAuo0-i7dQ-8itU-NG23-Ngzt-HuJt-rEXJ7m\"\nseqno = 1234\nformat = \"lvm2\"\n}\n";

    #[test]
    fn the_sequence_number_is_found_wherever_the_text_lies_in_its_ring() {
        for offset in [512, 1024, (1 << 19) - 512, (1 << 19) - 20] {
            let beginning = found(&disk(TEXT, offset)).unwrap();
            let version = Version { seqno: 1234, checksum: CHECKSUM };
            assert_eq!(beginning, Beginning { group: "my-vg".into(), version }, "{offset}");
        }
    }

    #[test]
    fn a_disk_without_a_label_says_so() {
        assert_eq!(found(&vec![0; 1 << 20]), Err("no label"));
    }

    #[test]
    fn a_metadata_area_that_was_set_aside_has_no_text_though_an_old_one_is_left_in_it() {
        let with_flags = |flags: u32| {
            let mut disk = disk(TEXT, 512);
            disk[4096 + 60..4096 + 64].copy_from_slice(&flags.to_le_bytes());
            found(&disk)
        };
        for flags in [1, 3] {
            let told = with_flags(flags);
            assert!(told.is_err_and(|told| told.contains("set aside")), "{flags}");
        }
        for flags in [0, 2] {
            assert_eq!(with_flags(flags).unwrap().version.seqno, 1234, "{flags}");
        }
    }

    proptest! {
        #[test]
        fn damaged_disks_never_panic(damage in proptest::collection::vec((0usize..6000, any::<u8>()), 1..40)) {
            let mut disk = disk(TEXT, 512);
            for (place, byte) in damage {
                disk[place] = byte;
            }
            let _ = found(&disk);
        }
    }
}
