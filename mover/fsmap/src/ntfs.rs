//! NTFS: the bitmap of clusters.
//!
//! Layout: the documentation of the Linux-NTFS project and `fs/ntfs3/ntfs.h` of the kernel. The
//! boot sector leads to the master file table, whose first records are those of the file system's
//! own files: the mirror of these records, the log, the volume's state, and the bitmap. Behind the
//! last cluster there is a copy of the boot sector.
//!
//! Nothing has a checksum, and the log is not replayed. So it must say that the volume was
//! unmounted, the volume must not be marked as dirty, and the mirror must be the same as the
//! records. A Windows that is hibernated, or that was shut down to start fast, has its volumes
//! mounted: their logs say so. What ntfs-3g has mounted, nothing on the volume tells; so whatever
//! any record refers to must be in use.
//!
//! Shadow copies need clusters that are free: of what was not written over since, they have no
//! copy.

mod files;
mod log;
mod record;

pub(super) use files::files;

use super::clusters::Clusters;
use super::{Limits, Map, ReadAt, Refusal, UsedSpace, le16, le64, read};
use mover_extents::Extents;
use record::{Record, Runs};

const KIND: &str = "ntfs";
const BOOT_LEN: usize = 512;
const CLUSTER_BYTES_MAX: u64 = 2 << 20;
const RECORD_BYTES_MAX: u64 = 64 << 10;
const BITMAP_PIECE: u64 = 64 << 10;
/// Of the master file table; whole records.
const TABLE_PIECE: u64 = 1 << 20;

/// Records of the master file table.
mod file {
    pub(super) const TABLE: u64 = 0;
    pub(super) const MIRROR: u64 = 1;
    pub(super) const LOG: u64 = 2;
    pub(super) const VOLUME: u64 = 3;
    pub(super) const ROOT: u64 = 5;
    pub(super) const BITMAP: u64 = 6;
    /// That are in the mirror too.
    pub(super) const MIRRORED: u64 = 4;
    /// Those before are the file system's own.
    pub(super) const FIRST: u64 = 16;
}

/// Kinds of attributes.
mod attribute {
    pub(super) const STANDARD: u32 = 0x10;
    pub(super) const LIST: u32 = 0x20;
    pub(super) const NAME: u32 = 0x30;
    pub(super) const VOLUME: u32 = 0x70;
    pub(super) const DATA: u32 = 0x80;
    pub(super) const INDEX_ROOT: u32 = 0x90;
    pub(super) const INDEX: u32 = 0xa0;
    pub(super) const BITMAP: u32 = 0xb0;
    pub(super) const REPARSE: u32 = 0xc0;
    pub(super) const END: u32 = u32::MAX;
}

mod flag {
    pub(super) const DIRTY: u16 = 1;
    /// Of Windows NT 4, and of chkdsk: what they did is done.
    pub(super) const HARMLESS: u16 = 0x8008;
}

/// What tells where shadow copies are, as libvshadow's documentation of their format has it.
mod shadows {
    pub(super) const PLACE: u64 = 0x1e00;
    pub(super) const LEN: usize = 512;
    pub(super) const MARK: &[u8; 16] =
        b"\x6b\x87\x08\x38\x76\xc1\x48\x4e\xb7\xae\x04\x04\x6e\x6c\xc7\x52";
    /// Where it says where their catalog is; zero before the first one.
    pub(super) const CATALOG: usize = 48;
}

fn unusable(why: impl Into<String>) -> Refusal {
    Refusal::Unusable { kind: KIND, why: why.into() }
}

/// See [`super::used_space`].
pub(super) fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    let boot = Boot::read(volume, volume_bytes)?;
    let start = boot.table * boot.cluster_bytes;
    let table = Record::read(volume, start, &boot, file::TABLE)?.data(&boot)?;
    let fs = Ntfs { volume, boot, table };
    fs.check_volume()?;
    fs.check_shadows(volume_bytes)?;
    let mirror = fs.check_mirror()?;
    let log = fs.record(file::LOG)?.data(&fs.boot)?;
    log::check(&fs, &log)?;
    let bitmap = fs.record(file::BITMAP)?.data(&fs.boot)?;
    let clusters = fs.boot.clusters;
    if bitmap.bytes < clusters.div_ceil(8) || bitmap.written < clusters.div_ceil(8) {
        return Err(unusable(format!("its bitmap is too short for {clusters} clusters")));
    }
    let own = [&fs.table, &mirror, &log, &bitmap].map(|runs| runs.clusters.clone());
    // and the boot sector's
    let needed = own.into_iter().flatten().chain(std::iter::once(0..1));
    let mut map = Map::new(KIND, volume_bytes, limits);
    let mut told = Clusters::new(&mut map, 0, fs.boot.cluster_bytes, needed);
    let mut left = clusters;
    let mut from = 0;
    while left > 0 {
        let len = left.div_ceil(8).min(BITMAP_PIECE);
        told.tell_bits(&fs.read(&bitmap, from, len)?, &mut left)?;
        from += len;
    }
    let free_bytes = told.finish()?;
    let used = map.finish();
    fs.check_files(&used)?;
    Ok(UsedSpace { kind: KIND, used, free_bytes, ..UsedSpace::default() })
}

struct Ntfs<'a> {
    volume: &'a dyn ReadAt,
    boot: Boot,
    /// The master file table.
    table: Runs,
}

impl Ntfs<'_> {
    /// Bytes of a file; they must be within it.
    fn read(&self, runs: &Runs, offset: u64, len: u64) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        let (mut at, end) = (0, offset + len);
        for run in &runs.clusters {
            let next = at + (run.end - run.start) * self.boot.cluster_bytes;
            let part = offset.max(at)..end.min(next);
            if part.start < part.end {
                let place = run.start * self.boot.cluster_bytes + (part.start - at);
                let len = usize::try_from(part.end - part.start).unwrap_or(0);
                bytes.extend(read(self.volume, place, len)?);
            }
            at = next;
        }
        if bytes.len() as u64 == len && end <= runs.bytes {
            return Ok(bytes);
        }
        Err(unusable("one of its own files is shorter than it has to be"))
    }

    fn record(&self, number: u64) -> Result<Record, Refusal> {
        let len = self.boot.record_bytes;
        let bytes = self.read(&self.table, number * len, len)?;
        Record::parse(bytes, number)
    }

    fn check_volume(&self) -> Result<(), Refusal> {
        let record = self.record(file::VOLUME)?;
        let state = record.value(attribute::VOLUME)?;
        if state.len() < 12 {
            return Err(unusable("its volume record says nothing of its state"));
        }
        let (version, flags) = ((state[8], state[9]), le16(state, 10));
        if !matches!(version, (3, 0 | 1)) {
            return Err(unusable(format!("it is of version {}.{}", version.0, version.1)));
        }
        if flags & flag::DIRTY != 0 {
            return Err(unusable("it is marked as dirty: check it with chkdsk"));
        }
        if flags & !flag::HARMLESS != 0 {
            return Err(unusable(format!("its volume record has unknown flags: {flags:#x}")));
        }
        Ok(())
    }

    /// Refuses a volume that has, or had, shadow copies.
    fn check_shadows(&self, volume_bytes: u64) -> Result<(), Refusal> {
        let head = shadows::PLACE..shadows::PLACE + shadows::LEN as u64;
        if head.end > volume_bytes {
            return Ok(());
        }
        let head = read(self.volume, head.start, shadows::LEN)?;
        if head.starts_with(shadows::MARK) && le64(&head, shadows::CATALOG) != 0 {
            return Err(unusable("it has shadow copies, which need what is free"));
        }
        Ok(())
    }

    /// Holds all records against what is used: of what they refer to nothing may be left out.
    fn check_files(&self, used: &Extents) -> Result<(), Refusal> {
        let len = self.boot.record_bytes;
        let end = self.table.bytes.min(self.table.written) / len * len;
        let mut at = 0;
        while at < end {
            let piece = self.read(&self.table, at, TABLE_PIECE.min(end - at))?;
            let records = piece.chunks_exact(usize::try_from(len).unwrap_or(usize::MAX));
            for (number, bytes) in (at / len..).zip(records) {
                let Some(record) = Record::of_file(bytes, number)? else { continue };
                for run in record.clusters(&self.boot)? {
                    let place = |cluster: u64| cluster * self.boot.cluster_bytes;
                    if !used.covers(&(place(run.start)..place(run.end))) {
                        let why = format!("record {number} refers to clusters that count as free");
                        return Err(unusable(why));
                    }
                }
            }
            at += TABLE_PIECE;
        }
        Ok(())
    }

    /// Holds the first records against their mirror; gives where that is.
    fn check_mirror(&self) -> Result<Runs, Refusal> {
        let mirror = self.record(file::MIRROR)?.data(&self.boot)?;
        let (len, place) = (self.boot.record_bytes, self.boot.mirror);
        if mirror.clusters.first().is_none_or(|run| run.start != place) {
            return Err(unusable("its mirror is not where the boot sector says"));
        }
        for number in 0..file::MIRRORED {
            let copy = Record::parse(self.read(&mirror, number * len, len)?, number)?;
            if !self.record(number)?.is_same(&copy) {
                let why = format!("record {number} is not what it is in the mirror");
                return Err(unusable(why));
            }
        }
        Ok(mirror)
    }
}

/// The boot sector: sizes, which are held against each other and against the volume.
#[derive(Debug)]
struct Boot {
    cluster_bytes: u64,
    clusters: u64,
    record_bytes: u64,
    /// First clusters of the master file table and of its mirror.
    table: u64,
    mirror: u64,
}

impl Boot {
    fn read(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Self, Refusal> {
        if volume_bytes < BOOT_LEN as u64 {
            return Err(Refusal::Unknown);
        }
        let bytes = read(volume, 0, BOOT_LEN)?;
        if !bytes[3..].starts_with(b"NTFS    ") || !bytes.ends_with(b"\x55\xaa") {
            return Err(Refusal::Unknown);
        }
        let nonsense = || unusable("the sizes in its boot sector do not fit together");
        let sector = u64::from(le16(&bytes, 11));
        // fields of FAT, which have no meaning here
        let none = [14..21, 22..24, 32..36].into_iter().flatten().all(|at| bytes[at] == 0);
        let per_cluster = match bytes[13] {
            few @ 1..=128 => u64::from(few),
            log => 1_u64.checked_shl(256 - u32::from(log)).unwrap_or(0),
        };
        let power = sector.is_power_of_two() && per_cluster.is_power_of_two();
        if !none || !power || !(512..=4096).contains(&sector) {
            return Err(nonsense());
        }
        let cluster_bytes = sector.checked_mul(per_cluster).filter(|b| *b <= CLUSTER_BYTES_MAX);
        let cluster_bytes = cluster_bytes.ok_or_else(nonsense)?;
        let sectors = le64(&bytes, 40);
        if sectors.checked_mul(sector).is_none_or(|end| end > volume_bytes) {
            return Err(unusable(format!(
                "it has {sectors} sectors of {sector} bytes, and the volume is smaller"
            )));
        }
        let record_bytes = match bytes[64].cast_signed() {
            clusters @ 1.. => u64::from(clusters.unsigned_abs()) * cluster_bytes,
            log => 1_u64.checked_shl(log.unsigned_abs().into()).unwrap_or(0),
        };
        let clusters = sectors / per_cluster;
        let boot = Self {
            cluster_bytes,
            clusters,
            record_bytes,
            table: le64(&bytes, 48),
            mirror: le64(&bytes, 56),
        };
        let record_end = boot.table.checked_add(record_bytes.div_ceil(cluster_bytes));
        let fits = record_bytes.is_power_of_two()
            && (512..=RECORD_BYTES_MAX).contains(&record_bytes)
            && record_end.is_some_and(|end| end <= clusters)
            && boot.mirror < clusters;
        if fits { Ok(boot) } else { Err(nonsense()) }
    }
}
