//! Which bytes of a volume its file system uses, read from the file system's own metadata on the
//! raw device.
//!
//! For storage that cannot say what is allocated. What a map leaves out is free space: it restores
//! as zeros, and the file system never looks at what was there. So a map must be right or not be
//! given at all: [`used_space`] refuses whatever it does not know, to the last feature flag, and
//! whatever does not add up (checksums, and the counts that a file system keeps of its free
//! blocks). A refusal is no error of a run: it says why, and the whole volume is read instead.
//!
//! All of it comes from outside: no length, count or block number is believed, and no loop runs
//! longer than the device is large. Memory is a few blocks, 40 bytes for each block that a journal
//! has newer or for each chunk of btrfs, a bit for each cluster of FAT, the metadata of an LVM
//! group, and the map, rounded out to the caller's granule.
//!
//! [`files`] reads the files themselves.

#![forbid(unsafe_code)]

mod btrfs;
mod clusters;
mod ext4;
mod fat;
pub mod files;
mod identity;
mod layout;
mod lvm;
mod ntfs;
mod partitions;
pub mod signatures;
mod swap;
mod utf16;
mod xfs;

pub use identity::identity;
pub use layout::{LaidOut, Layout};
pub use lvm::{LogicalVolume, logical_volumes};
pub use partitions::{Partition, partitions};

use mover_extents::{Extents, ExtentsBuilder};
use std::fmt;
use std::io;
use std::ops::Range;

/// Bounds on a map.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Ranges are rounded out to this; a power of two.
    pub granule_bytes: u64,
    /// Most ranges; 16 bytes each, twice for a moment.
    pub ranges_max: usize,
}

/// Random access to a volume.
pub trait ReadAt {
    /// Fills `buffer` from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Of a device; `None` where nobody says.
    fn sector_bytes(&self) -> Option<u64> {
        None
    }

    /// These bytes will be read soon: a volume that is far away fetches them at once. One that
    /// cannot says so when they are read.
    fn expect(&self, _ranges: &[Range<u64>]) {}
}

impl ReadAt for &[u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(self.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// What a file system says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedSpace {
    /// Its name, as in `mount -t`; that of a partition table, `swap` or `lvm`.
    pub kind: &'static str,
    /// Bytes that are in use, rounded out. What lies behind the file system's end counts as used.
    pub used: Extents,
    /// Bytes of free blocks, as the file system counts them.
    pub free_bytes: u64,
    /// Transactions of the journal that the next mount will replay, and that were taken into
    /// account.
    pub replayed: u64,
    /// What someone should know of it.
    pub notes: Vec<String>,
}

/// Why there is no map.
#[derive(Debug)]
pub enum Refusal {
    /// No file system that is known begins where the volume does.
    Unknown,
    /// It is known, and cannot be relied upon.
    Unusable {
        /// Its name.
        kind: &'static str,
        /// Why.
        why: String,
    },
    /// The volume cannot be read.
    Io {
        /// Where, in bytes.
        offset: u64,
        /// Why.
        error: io::Error,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no file system is found whose free space is understood"),
            Self::Unusable { kind, why } => write!(f, "{kind}: {why}"),
            Self::Io { offset, error } => write!(f, "read at {offset}: {error}"),
        }
    }
}

/// A kind of file system.
struct Kind {
    read: fn(&dyn ReadAt, u64, Limits) -> Result<UsedSpace, Refusal>,
    /// What is recognised where it is. If anything else is too, one of them is a leftover.
    signatures: &'static [&'static str],
}

/// Swap space and physical volumes of LVM are no file systems, but begin where one would.
const FILE_SYSTEMS: &[Kind] = &[
    Kind { read: ext4::used_space, signatures: &[signatures::EXT] },
    Kind { read: xfs::used_space, signatures: &[signatures::XFS] },
    Kind { read: btrfs::used_space, signatures: &[signatures::BTRFS] },
    Kind { read: swap::used_space, signatures: &[signatures::SWAP] },
    Kind { read: fat::used_space, signatures: &[signatures::FAT] },
    Kind { read: ntfs::used_space, signatures: &[signatures::NTFS] },
    Kind { read: lvm::used_space, signatures: &[signatures::LVM] },
];

/// Kinds whose users hold the device by rights.
pub const WHILE_IN_USE: [&str; 2] = [lvm::KIND, swap::KIND];

const PARTITION_TABLES: &[Kind] = &[Kind {
    read: partitions::used_space,
    signatures: &[signatures::GPT, signatures::SECOND_GPT, signatures::MBR],
}];

/// What the file system that begins where a volume of `volume_bytes` does uses of it, or what those
/// in its partitions do.
pub fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    match file_system(volume, volume_bytes, limits) {
        Err(Refusal::Unknown) => first_of(PARTITION_TABLES, volume, volume_bytes, limits),
        found => found,
    }
}

/// The same, without partitions.
fn file_system(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    first_of(FILE_SYSTEMS, volume, volume_bytes, limits)
}

fn first_of(
    kinds: &[Kind],
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    for kind in kinds {
        match (kind.read)(volume, volume_bytes, limits) {
            Err(Refusal::Unknown) => {}
            Ok(found) => {
                check_alone(volume, volume_bytes, kind, found.kind)?;
                return Ok(found);
            }
            refusal => return refusal,
        }
    }
    Err(Refusal::Unknown)
}

fn check_alone(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    kind: &Kind,
    name: &'static str,
) -> Result<(), Refusal> {
    let end = |most: u64| usize::try_from(volume_bytes.min(most)).unwrap_or(0);
    let tail_len = end(signatures::TAIL_BYTES);
    let head = read(volume, 0, end(signatures::HEAD_BYTES))?;
    let tail = read(volume, volume_bytes - tail_len as u64, tail_len)?;
    match signatures::besides(&head, &tail, kind.signatures) {
        None => Ok(()),
        Some(other) => {
            let why = format!("there is also {other}, so one of them may be a leftover");
            Err(Refusal::Unusable { kind: name, why })
        }
    }
}

fn read(volume: &dyn ReadAt, offset: u64, len: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = vec![0; len];
    volume.read_at(&mut bytes, offset).map_err(|error| Refusal::Io { offset, error })?;
    Ok(bytes)
}

/// Collects what is used.
struct Map {
    kind: &'static str,
    volume_bytes: u64,
    limits: Limits,
    /// Grows in order.
    ascending: ExtentsBuilder,
    /// Whatever comes in between.
    scattered: ExtentsBuilder,
}

impl Map {
    fn new(kind: &'static str, volume_bytes: u64, limits: Limits) -> Self {
        let (ascending, scattered) = Default::default();
        Self { kind, volume_bytes, limits, ascending, scattered }
    }

    /// Ranges in ascending order.
    fn add(&mut self, bytes: Range<u64>) -> Result<(), Refusal> {
        let range = self.rounded(bytes);
        self.ascending.push(range);
        self.check()
    }

    /// Ranges in any order.
    fn add_anywhere(&mut self, bytes: Range<u64>) -> Result<(), Refusal> {
        let range = self.rounded(bytes);
        self.scattered.push(range);
        self.check()
    }

    fn rounded(&self, bytes: Range<u64>) -> Range<u64> {
        let mask = self.limits.granule_bytes - 1;
        let end = bytes.end.checked_add(mask).map_or(u64::MAX, |end| end & !mask);
        (bytes.start & !mask).min(self.volume_bytes)..end.min(self.volume_bytes)
    }

    fn held(&self) -> usize {
        self.ascending.held() + self.scattered.held()
    }

    fn check(&mut self) -> Result<(), Refusal> {
        let most = self.limits.ranges_max;
        if self.held() <= most {
            return Ok(());
        }
        // with a quarter free again at the least, or each range would have all of them sorted
        self.scattered.compact();
        if self.held() <= most - most / 4 {
            return Ok(());
        }
        let why = "its free space is in too many pieces".to_owned();
        Err(Refusal::Unusable { kind: self.kind, why })
    }

    fn finish(self) -> Extents {
        self.ascending.finish().union(&self.scattered.finish())
    }
}

/// Fields of on-disk structures; callers have made sure that the bytes are there, and what is not
/// reads as zero.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(field(bytes, at))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(field(bytes, at))
}

/// A number whose halves stand in two places.
fn joined(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// CRC-32C that goes on from `seed` and is not inverted at the end: as Linux chains it.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    let mut digest = CRC.digest_with_initial(seed.reverse_bits());
    digest.update(bytes);
    !digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { granule_bytes: 4096, ranges_max: 1000 };

    #[test]
    fn checksums_chain() {
        // check value of CRC-32C, whose last step is an inversion
        assert_eq!(crc32c(!0, b"123456789"), !0xe306_9283);
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), !0xe306_9283);
    }

    #[test]
    fn what_is_no_file_system_is_not_taken_for_one() {
        for bytes in [vec![], vec![0; 1000], vec![0; 1 << 20], vec![0xff; 1 << 20]] {
            let found = used_space(&&bytes[..], bytes.len() as u64, LIMITS);
            assert!(matches!(found, Err(Refusal::Unknown)), "{found:?}");
        }
    }

    #[test]
    fn exfat_is_recognised_and_has_no_map() {
        let mut bytes = vec![0; 1 << 20];
        bytes[..11].copy_from_slice(b"\xeb\x76\x90EXFAT   ");
        bytes[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(signatures::detect(&bytes, &[]), Some("an exFAT file system"));
        let found = used_space(&&bytes[..], bytes.len() as u64, LIMITS);
        assert!(matches!(found, Err(Refusal::Unknown)), "{found:?}");
    }

    #[test]
    fn ranges_are_rounded_out_and_end_with_the_volume() {
        let mut map = Map::new("test", 10_000, LIMITS);
        assert!(map.add(1..2).is_ok() && map.add(8191..8193).is_ok());
        assert!(map.add_anywhere(9000..u64::MAX).is_ok());
        assert_eq!(map.finish(), Extents::of(0..10_000));
    }
}
