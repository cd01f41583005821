//! The SCSI commands of a disk, as far as Linux uses them.

use lab_protocol::disk::{Disk, Fault};

use super::medium::Medium;

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Well, with this for the guest.
    Good(Vec<u8>),
    /// Not, for this reason.
    Check(Sense),
    /// Its guest has lost power before.
    Lost,
}

/// Why a command failed: the sense key, and the additional code with its qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sense(u8, u8, u8);

const UNKNOWN_COMMAND: Sense = Sense(5, 0x20, 0);
const BEYOND_THE_END: Sense = Sense(5, 0x21, 0);
const WRONG_FIELD: Sense = Sense(5, 0x24, 0);
/// The kernel tries again some times, and then it is an I/O error.
const FAILED: Sense = Sense(0xb, 0, 6);

impl Sense {
    /// As the guest reads it.
    pub(crate) fn bytes(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        (bytes[0], bytes[2], bytes[7], bytes[12], bytes[13]) = (0x70, self.0, 10, self.1, self.2);
        bytes
    }
}

/// The longest range that one command may discard or zero.
const LONGEST_RANGE: u64 = 1 << 30;

/// The longest that one command may read or write.
const LONGEST_TRANSFER: u64 = 4 << 20;

/// Performs a command of a guest whose power had been cut so often when it connected. `data` is what came with it.
pub(crate) fn perform(medium: &Medium, guest: &str, cuts: u32, command: &[u8], data: &[u8]) -> Outcome {
    let unit = Unit { medium, guest };
    let outcome = match command[0] {
        // test unit ready, request sense, start or stop, prevent removal, verify
        0x00 | 0x1b | 0x1e | 0x2f | 0x8f => Ok(Vec::new()),
        0x03 => Ok(Sense(0, 0, 0).bytes().to_vec()),
        0x12 => unit.inquiry(command),
        0x1a => Ok(mode_sense(command[2], false)),
        0x5a => Ok(mode_sense(command[2], true)),
        0x25 => Ok(unit.capacity_short()),
        0x9e if command[1] & 0x1f == 0x10 => Ok(unit.capacity_long()),
        0xa0 => Ok([0, 0, 0, 8].into_iter().chain([0; 12]).collect()),
        0x28 | 0x88 | 0x2a | 0x8a | 0x35 | 0x91 | 0x41 | 0x93 | 0x42 => match medium.store.fault(guest, cuts)
        {
            None => return Outcome::Lost,
            Some(Fault::Error) => Err(FAILED),
            Some(fault) => unit.transfer(command, data, fault == Fault::DropWrites),
        },
        _ => Err(UNKNOWN_COMMAND),
    };
    outcome.map_or_else(Outcome::Check, Outcome::Good)
}

struct Unit<'a> {
    medium: &'a Medium,
    guest: &'a str,
}

impl Unit<'_> {
    fn disk(&self) -> &Disk {
        &self.medium.disk
    }

    fn sectors(&self) -> u64 {
        self.medium.store.size() / u64::from(self.disk().sector)
    }

    fn transfer(&self, command: &[u8], data: &[u8], drop_writes: bool) -> Result<Vec<u8>, Sense> {
        let store = &self.medium.store;
        let force_unit_access = command[1] & 8 != 0;
        let failed = |_| FAILED;
        match command[0] {
            0x28 | 0x88 => {
                let (offset, length) = self.range(command, LONGEST_TRANSFER)?;
                let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
                store.read(offset, &mut bytes).map_err(failed)?;
                return Ok(bytes);
            }
            0x35 | 0x91 => store.flush().map_err(failed)?,
            _ if drop_writes => {}
            0x2a | 0x8a => {
                let (offset, length) = self.range(command, LONGEST_TRANSFER)?;
                if length != data.len() as u64 {
                    return Err(WRONG_FIELD);
                }
                store.write(self.guest, offset, data).map_err(failed)?;
                if force_unit_access {
                    store.flush().map_err(failed)?;
                }
            }
            0x41 | 0x93 => {
                let (offset, length) = self.range(command, LONGEST_RANGE)?;
                if data.iter().any(|byte| *byte != 0) || data.is_empty() {
                    return Err(WRONG_FIELD);
                }
                store.zero(self.guest, offset, length).map_err(failed)?;
            }
            _ => self.unmap(data)?,
        }
        Ok(Vec::new())
    }

    fn unmap(&self, list: &[u8]) -> Result<(), Sense> {
        for entry in list.get(8..).unwrap_or_default().chunks_exact(16) {
            let (first, count) = (number(&entry[..8]), number(&entry[8..12]));
            let (offset, length) = self.bytes(first, count, LONGEST_RANGE)?;
            self.medium.store.zero(self.guest, offset, length).map_err(|_| FAILED)?;
        }
        Ok(())
    }

    /// Offset and length in bytes, from a command of ten bytes or of sixteen.
    fn range(&self, command: &[u8], longest: u64) -> Result<(u64, u64), Sense> {
        let (first, count) = match command[0] {
            0x80.. => (number(&command[2..10]), number(&command[10..14])),
            _ => (number(&command[2..6]), number(&command[7..9])),
        };
        self.bytes(first, count, longest)
    }

    fn bytes(&self, first: u64, count: u64, longest: u64) -> Result<(u64, u64), Sense> {
        let sector = u64::from(self.disk().sector);
        match first.checked_add(count) {
            Some(end) if end <= self.sectors() && count * sector <= longest => {
                Ok((first * sector, count * sector))
            }
            _ => Err(BEYOND_THE_END),
        }
    }

    fn capacity_short(&self) -> Vec<u8> {
        let last = u32::try_from(self.sectors() - 1).unwrap_or(u32::MAX);
        [last.to_be_bytes(), self.disk().sector.to_be_bytes()].concat()
    }

    fn capacity_long(&self) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[..8].copy_from_slice(&(self.sectors() - 1).to_be_bytes());
        bytes[8..12].copy_from_slice(&self.disk().sector.to_be_bytes());
        // Physical sectors of 4096 bytes, and what is discarded is given back.
        bytes[13] = if self.disk().sector == 512 { 3 } else { 0 };
        bytes[14] = 0x80;
        bytes
    }

    fn inquiry(&self, command: &[u8]) -> Result<Vec<u8>, Sense> {
        if command[1] & 1 == 0 {
            let mut bytes = vec![0; 36];
            // The commands of SPC-3, with queues.
            (bytes[2], bytes[3], bytes[4], bytes[7]) = (5, 0x12, 31, 2);
            bytes[8..].copy_from_slice(b"LVMS    LAB DISK        1   ");
            return Ok(bytes);
        }
        let serial = self.disk().serial.as_bytes();
        let page = match command[2] {
            0x00 => vec![0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2],
            0x80 => serial.to_vec(),
            // A name in ASCII that the vendor gives.
            0x83 => [&[2, 0, 0, u8::try_from(serial.len()).unwrap_or_default()], serial].concat(),
            0xb0 => self.limits(),
            0xb1 => {
                let rotation: u16 = if self.disk().rotational { 7200 } else { 1 };
                [rotation.to_be_bytes().as_slice(), &[0; 58]].concat()
            }
            // Ranges can be discarded by all three commands; the space is given out when it is written.
            0xb2 => vec![0, 0xe0, 2, 0],
            _ => return Err(WRONG_FIELD),
        };
        let length = u16::try_from(page.len()).unwrap_or_default().to_be_bytes();
        Ok([&[0, command[2]], length.as_slice(), &page].concat())
    }

    fn limits(&self) -> Vec<u8> {
        let sectors = |bytes: u64| u32::try_from(bytes / u64::from(self.disk().sector)).unwrap_or(u32::MAX);
        let mut page = vec![0; 60];
        let mut set = |at: usize, value: u32| page[at - 4..at].copy_from_slice(&value.to_be_bytes());
        set(8, sectors(LONGEST_TRANSFER));
        set(20, sectors(LONGEST_RANGE));
        set(24, 255);
        set(28, sectors(4096));
        page[32..40].copy_from_slice(&u64::from(sectors(LONGEST_RANGE)).to_be_bytes());
        page
    }
}

/// The mode page about the cache: writes stay in it until they are flushed.
fn mode_sense(page: u8, long: bool) -> Vec<u8> {
    let mut cache = vec![0x08, 0x12];
    cache.resize(20, 0);
    cache[2] = 4;
    let pages = if matches!(page & 0x3f, 0x08 | 0x3f) { cache } else { Vec::new() };
    // The header says that a write may ask to be on the medium at once.
    let mut bytes = if long { vec![0, 0, 0, 0x10, 0, 0, 0, 0] } else { vec![0, 0, 0x10, 0] };
    bytes.extend(pages);
    let length = bytes.len();
    match long {
        true => bytes[1] = u8::try_from(length - 2).unwrap_or_default(),
        false => bytes[0] = u8::try_from(length - 1).unwrap_or_default(),
    }
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_protocol::disk::MIB;

    fn medium(disk: Disk) -> Medium {
        let directory =
            std::env::temp_dir().join(format!("lvms-scsi-{}-{}", std::process::id(), disk.serial));
        std::fs::create_dir(&directory).unwrap();
        let medium = Medium::create(&directory, disk).unwrap();
        // Its file is open, and needs no name.
        std::fs::remove_dir_all(directory).unwrap();
        medium
    }

    fn do_it(medium: &Medium, command: &[u8], data: &[u8]) -> Outcome {
        let mut whole = command.to_vec();
        whole.resize(32, 0);
        perform(medium, "a", 0, &whole, data)
    }

    #[test]
    fn what_is_written_is_read_back_in_sectors_of_the_disk() {
        for sector in [512u16, 4096] {
            let serial = format!("rw{sector}");
            let medium = medium(Disk { sector: sector.into(), ..Disk::new(MIB).serial(&serial) });
            let data = vec![7; usize::from(sector) * 2];
            assert_eq!(do_it(&medium, &[0x2a, 0, 0, 0, 0, 3, 0, 0, 2], &data), Outcome::Good(vec![]));
            assert_eq!(do_it(&medium, &[0x28, 0, 0, 0, 0, 3, 0, 0, 2], &[]), Outcome::Good(data.clone()));
            let long = [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 2];
            let Outcome::Good(read) = do_it(&medium, &long, &[]) else { panic!("it can be read") };
            assert_eq!((read[0], read[usize::from(sector)]), (7, 0));
            let Outcome::Good(capacity) = do_it(&medium, &[0x25], &[]) else { panic!("it has a size") };
            assert_eq!(number(&capacity[..4]), MIB / u64::from(sector) - 1);
        }
    }

    #[test]
    fn what_is_discarded_or_zeroed_is_read_as_zeros() {
        let medium = medium(Disk { faults: true, ..Disk::new(MIB).serial("zero") });
        for command in [
            (vec![0x93, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], vec![0; 512]),
            (vec![0x42], [vec![0; 15], vec![1, 0, 0, 0, 1, 0, 0, 0, 0]].concat()),
        ] {
            do_it(&medium, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 3], &[9; 1536]);
            assert_eq!(do_it(&medium, &command.0, &command.1), Outcome::Good(vec![]));
            let Outcome::Good(read) = do_it(&medium, &[0x28, 0, 0, 0, 0, 0, 0, 0, 3], &[]) else { panic!() };
            assert_eq!((read[511], read[512], read[1023], read[1024]), (9, 0, 0, 9));
        }
        let pattern = do_it(&medium, &[0x93, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], &[1; 512]);
        assert_eq!(pattern, Outcome::Check(WRONG_FIELD));
    }

    #[test]
    fn a_command_that_is_unknown_or_beyond_the_end_is_refused() {
        let medium = medium(Disk::new(MIB).serial("end"));
        assert_eq!(do_it(&medium, &[0x28, 0, 0, 0, 7, 0xff, 0, 0, 1], &[]), Outcome::Good(vec![0; 512]));
        assert_eq!(do_it(&medium, &[0x28, 0, 0, 0, 8, 0, 0, 0, 1], &[]), Outcome::Check(BEYOND_THE_END));
        assert_eq!(
            do_it(&medium, &[0x88, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 1], &[]),
            Outcome::Check(BEYOND_THE_END)
        );
        assert_eq!(do_it(&medium, &[0xee], &[]), Outcome::Check(UNKNOWN_COMMAND));
        assert_eq!(do_it(&medium, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], &[1; 100]), Outcome::Check(WRONG_FIELD));
        assert_eq!(UNKNOWN_COMMAND.bytes()[..3], [0x70, 0, 5]);
    }

    #[test]
    fn faults_are_the_guests_own() {
        let medium = medium(Disk { faults: true, ..Disk::new(MIB).serial("faults") });
        let (write, read) = ([0x2a, 0, 0, 0, 0, 0, 0, 0, 1], [0x28, 0, 0, 0, 0, 0, 0, 0, 1]);
        medium.set_fault("a", Fault::DropWrites).unwrap();
        assert_eq!(do_it(&medium, &write, &[1; 512]), Outcome::Good(vec![]));
        assert_eq!(do_it(&medium, &read, &[]), Outcome::Good(vec![0; 512]));
        medium.set_fault("a", Fault::Error).unwrap();
        assert_eq!(do_it(&medium, &read, &[]), Outcome::Check(FAILED));
        let mut whole = read.to_vec();
        whole.resize(32, 0);
        assert_eq!(perform(&medium, "b", 0, &whole, &[]), Outcome::Good(vec![0; 512]));
        assert_eq!(perform(&medium, "b", 1, &whole, &[]), Outcome::Lost);
    }

    #[test]
    fn a_disk_says_what_it_is() {
        let medium = medium(Disk { rotational: true, ..Disk::new(MIB).serial("abc") });
        let page = |number: u8| match do_it(&medium, &[0x12, 1, number, 0, 255], &[]) {
            Outcome::Good(page) => page,
            other @ (Outcome::Check(_) | Outcome::Lost) => panic!("{other:?}"),
        };
        assert_eq!(page(0x80), [&[0, 0x80, 0, 3], b"abc".as_slice()].concat());
        assert_eq!(page(0xb1)[4..6], 7200u16.to_be_bytes());
        assert_eq!(number(&page(0xb0)[36..44]), LONGEST_RANGE / 512);
        assert_eq!(do_it(&medium, &[0x12, 1, 0x99], &[]), Outcome::Check(WRONG_FIELD));
        assert_eq!(mode_sense(0x3f, false).len(), usize::from(mode_sense(0x3f, false)[0]) + 1);
        assert_eq!(mode_sense(0x08, true).len(), usize::from(mode_sense(0x08, true)[1]) + 2);
    }
}
