//! Names of a directory. A long one stands in entries before that of its file, the last part first,
//! each with a checksum of the short one: whoever does not know them may have written another file
//! there.

use super::super::boot::Width;
use super::entry::{ENTRY, Entry, is_last, is_long};
use crate::files::{FileId, FileName};
use crate::{le16, utf16};

const PARTS_MAX: u8 = 20;
const LETTERS: usize = 13;
/// Where letters are in a part.
const PLACES: [usize; LETTERS] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
const FIRST_PART: u8 = 0x40;
const NUMBER: u8 = 0x3f;

/// Parts of a long name whose file is still to come.
struct Long {
    checksum: u8,
    /// The number of the part that was there last; 1 is the last one to come.
    number: u8,
    units: Vec<u16>,
}

/// Collects the names of a directory.
#[derive(Default)]
pub(super) struct Names {
    pub(super) found: Vec<FileName>,
    long: Option<Long>,
}

impl Names {
    /// The next entries, of which the first has that number. `None`: nothing follows.
    pub(super) fn add(&mut self, bytes: &[u8], first: u64, width: Width) -> Option<()> {
        for (id, bytes) in (first..).zip(bytes.chunks_exact(ENTRY)) {
            if is_last(bytes) {
                return None;
            }
            if is_long(bytes) {
                self.part(bytes);
                continue;
            }
            let long = self.long.take();
            // labels, what is free, the directory itself and its parent
            let Some(entry) = Entry::parse(bytes, width) else { continue };
            let fits = |long: &Long| long.number == 1 && long.checksum == entry.checksum();
            let name = match long.filter(fits) {
                Some(long) => utf16::name(long.units.into_iter().take_while(|unit| *unit != 0)),
                None => entry.short_name(),
            };
            self.found.push(FileName { name, id: FileId(id) });
        }
        Some(())
    }

    fn part(&mut self, bytes: &[u8]) {
        let (number, checksum) = (bytes[0] & NUMBER, bytes[13]);
        if !(1..=PARTS_MAX).contains(&number) {
            self.long = None;
            return;
        }
        if bytes[0] & FIRST_PART != 0 {
            let units = vec![0; usize::from(number) * LETTERS];
            self.long = Some(Long { checksum, number: number + 1, units });
        }
        let Some(long) = &mut self.long else { return };
        if long.checksum != checksum || long.number != number + 1 {
            self.long = None;
            return;
        }
        long.number = number;
        let at = usize::from(number - 1) * LETTERS;
        for (unit, place) in long.units[at..].iter_mut().zip(PLACES) {
            *unit = le16(bytes, place);
        }
    }
}
