//! An entry of a directory.
//!
//! Owners and permissions are what the kernel's `vfat` shows by default to root, whose mask is 022.
//! Times are local ones of whoever wrote them, and nothing says where that was: they are taken as
//! UTC.

use super::super::boot::Width;
use crate::files::{FileId, FileKind, FileNode, FileTime};
use crate::{le16, le32};

/// Bytes of one.
pub(super) const ENTRY: usize = 32;
const READ_ONLY: u8 = 0x01;
const LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
/// All four mark a part of a long name.
const LONG: u8 = 0x0f;
const LONG_MASK: u8 = 0x3f;
const FREE: u8 = 0xe5;
/// Stands for the letter that marks a free one.
const NOT_FREE: u8 = 0x05;
/// The name, the extension are shown in small letters.
const SMALL: [u8; 2] = [0x08, 0x10];

/// Letters of code page 437 from 128 on, in which short names are written.
const HIGH: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧\
╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    name: [u8; 11],
    attributes: u8,
    small: u8,
    pub(super) first: u64,
    pub(super) size: u32,
    created: FileTime,
    accessed: FileTime,
    modified: FileTime,
}

impl Entry {
    /// Whatever it is.
    pub(super) fn raw(bytes: &[u8], width: Width) -> Self {
        let high = if width == Width::ThirtyTwo { le16(bytes, 20) } else { 0 };
        Self {
            name: crate::field(bytes, 0),
            attributes: bytes[11],
            small: bytes[12],
            first: u64::from(high) << 16 | u64::from(le16(bytes, 26)),
            size: le32(bytes, 28),
            created: time(le16(bytes, 16), le16(bytes, 14), bytes[13]),
            accessed: time(le16(bytes, 18), 0, 0),
            modified: time(le16(bytes, 24), le16(bytes, 22), 0),
        }
    }

    /// One of a file or directory.
    pub(super) fn parse(bytes: &[u8], width: Width) -> Option<Self> {
        let one = Self::raw(bytes, width);
        let is_file = !matches!(one.name[0], 0 | FREE | b'.') && one.attributes & LABEL == 0;
        is_file.then_some(one)
    }

    /// The first one of a directory, which is its own.
    pub(super) fn is_itself(&self) -> bool {
        self.name == *b".          " && self.attributes & DIRECTORY != 0
    }

    pub(super) fn kind(&self) -> FileKind {
        // that of the root has no name
        match self.attributes & DIRECTORY != 0 || self.name[0] == 0 {
            true => FileKind::Directory,
            false => FileKind::File,
        }
    }

    pub(super) fn node(&self, id: FileId, cluster_bytes: u64) -> FileNode {
        let kind = self.kind();
        let size = if kind == FileKind::File { self.size.into() } else { 0 };
        // a directory that is marked so is written to all the same
        let fixed = kind == FileKind::File && self.attributes & READ_ONLY != 0;
        FileNode {
            id,
            kind,
            mode: if fixed { 0o555 } else { 0o755 },
            uid: 0,
            gid: 0,
            links: if kind == FileKind::File { 1 } else { 2 },
            size_bytes: size,
            stored_bytes: size.div_ceil(cluster_bytes) * cluster_bytes,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.modified,
            created: Some(self.created),
        }
    }

    /// Eight letters and three.
    pub(super) fn short_name(&self) -> Vec<u8> {
        let (base, extension) = self.name.split_at(8);
        let mut text = String::new();
        for (part, small) in [base, extension].into_iter().zip(SMALL) {
            let len = part.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
            if small == SMALL[1] && len > 0 {
                text.push('.');
            }
            for (at, byte) in part[..len].iter().enumerate() {
                let is_first = at == 0 && small == SMALL[0];
                let byte = if is_first && *byte == NOT_FREE { FREE } else { *byte };
                let letter = letter(byte);
                match self.small & small != 0 {
                    true => text.extend(letter.to_lowercase()),
                    false => text.push(letter),
                }
            }
        }
        text.into_bytes()
    }

    /// What stands before a long name's own entry, with each part of that.
    pub(super) fn checksum(&self) -> u8 {
        self.name.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte))
    }
}

fn letter(byte: u8) -> char {
    match byte.checked_sub(128) {
        None => byte.into(),
        Some(high) => HIGH.chars().nth(high.into()).unwrap_or('?'),
    }
}

/// Whether an entry is a part of a long name.
pub(super) fn is_long(bytes: &[u8]) -> bool {
    bytes[11] & LONG_MASK == LONG && bytes[0] != FREE
}

/// Whether nothing follows.
pub(super) fn is_last(bytes: &[u8]) -> bool {
    bytes[0] == 0
}

/// Days since 1980 in a form of their own, two seconds each, and tenths of a hundredth.
fn time(date: u16, time: u16, tenths: u8) -> FileTime {
    let number = |value: u16| i64::from(value);
    let (year, month, day) = (1980 + number(date >> 9), date >> 5 & 0xf, date & 0x1f);
    // what is no month is the nearest one, as the kernel has it
    let (month, day) = (number(month.clamp(1, 12)), number(day.max(1)));
    // days of a year that begins in March, so that the longer February is its end
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    /// Of 1970, counted so.
    const EPOCH: i64 = 719_469;
    let (hour, minute, second) = (time >> 11, time >> 5 & 0x3f, 2 * (time & 0x1f));
    let seconds = (days - EPOCH) * 86400 + number(hour) * 3600 + number(minute) * 60;
    FileTime {
        seconds: seconds + number(second) + i64::from(tenths / 100),
        nanoseconds: u32::from(tenths % 100) * 10_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8; 11], small: u8) -> Entry {
        let mut bytes = [0; ENTRY];
        bytes[..11].copy_from_slice(name);
        bytes[12] = small;
        Entry::raw(&bytes, Width::Twelve)
    }

    #[test]
    fn short_names_are_shown_as_they_are_meant() {
        for (name, small, shown) in [
            (b"README  TXT", 0, "README.TXT"),
            (b"README  TXT", 0x18, "readme.txt"),
            (b"README  TXT", 0x08, "readme.TXT"),
            (b"A          ", 0x10, "A"),
            (b"A B     C  ", 0, "A B.C"),
            (b"\x05\x81BC    \xe1  ", 0, "σüBC.ß"),
            (b"\x9aBER       ", 0x08, "über"),
        ] {
            let name: &[u8; 11] = name.first_chunk().unwrap();
            assert_eq!(String::from_utf8(entry(name, small).short_name()).unwrap(), shown);
        }
        assert_eq!(HIGH.chars().count(), 128);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |date, clock, tenths| {
            let FileTime { seconds, nanoseconds } = time(date, clock, tenths);
            (seconds, nanoseconds)
        };
        let date = |year: u16, month: u16, day: u16| (year - 1980) << 9 | month << 5 | day;
        // `date -u -d 1980-01-01 +%s` and so on
        assert_eq!(at(date(1980, 1, 1), 0, 0), (315_532_800, 0));
        assert_eq!(at(0, 0, 0), (315_532_800, 0));
        assert_eq!(at(date(2000, 2, 29), 0, 0), (951_782_400, 0));
        assert_eq!(at(date(2000, 3, 1), 0, 0), (951_868_800, 0));
        let clock = 13 << 11 | 37 << 5 | 29;
        assert_eq!(at(date(2026, 11, 22), clock, 199), (1_795_354_679, 990_000_000));
        assert_eq!(at(date(2107, 12, 31), 0, 0), (4_354_732_800, 0));
    }
}
