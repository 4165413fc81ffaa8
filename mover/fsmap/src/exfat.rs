//! exFAT: the allocation bitmap.
//!
//! Layout: Microsoft's "exFAT file system specification". The boot region has a checksum; an entry
//! of the root directory leads to the bitmap. Chains of the table are followed for these two and
//! for the table of letters, whose clusters must be in the bitmap. A volume that is mounted is
//! marked as dirty from the first write on, and is never relied upon.

use super::clusters::Clusters;
use super::{Limits, Map, ReadAt, Refusal, UsedSpace, le16, le32, le64, read};
use std::ops::Range;

const KIND: &str = "exfat";
const NAME: &[u8; 8] = b"EXFAT   ";
const SECTOR: usize = 512;
/// Sectors of a boot region, the last of which is nothing but its checksum.
const REGION: u64 = 12;
/// Bytes of the first sector that the checksum leaves out, as they change: flags, and how full it
/// is.
const CHANGING: [usize; 3] = [106, 107, 112];
const REVISION: u16 = 0x100;
/// Clusters are counted from here.
const FIRST: u32 = 2;
const CLUSTERS_MAX: u32 = 0xffff_fff5;
const LAST: u32 = u32::MAX;
const CLUSTER_BYTES_MAX: u64 = 32 << 20;
const DIRECTORY_BYTES_MAX: u64 = 256 << 20;
/// Two bytes for each of them.
const UPCASE_TABLE_BYTES_MAX: u64 = 128 << 10;
const ENTRY: usize = 32;

mod flag {
    pub(super) const SECOND_TABLE: u16 = 1;
    pub(super) const DIRTY: u16 = 2;
    pub(super) const FAILED: u16 = 4;
    /// It has no meaning.
    pub(super) const CLEAR: u16 = 8;
}

/// Types of entries of a directory.
mod entry {
    pub(super) const END: u8 = 0;
    pub(super) const BITMAP: u8 = 0x81;
    pub(super) const UPCASE_TABLE: u8 = 0x82;
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
    let fs = ExFat { volume, boot: Boot::read(volume, volume_bytes)? };
    let Boot { data_start, cluster_bytes, clusters, root, .. } = fs.boot;
    let root = fs.chain(root, DIRECTORY_BYTES_MAX / cluster_bytes)?;
    let (bitmap, letters) = fs.find_files(&root)?;
    let needed = u64::from(clusters).div_ceil(8);
    if bitmap.bytes < needed || bitmap.bytes > needed.next_multiple_of(cluster_bytes) {
        return Err(unusable(format!("its bitmap has not the length for {clusters} clusters")));
    }
    if letters.bytes > UPCASE_TABLE_BYTES_MAX {
        return Err(unusable("its table of letters has more than there are"));
    }
    let (bitmap, letters) = (fs.file(&bitmap)?, fs.file(&letters)?);
    let all = [&root, &bitmap, &letters].into_iter().flatten();
    let needed: Vec<Range<u64>> = all.map(|cluster| fs.number(*cluster)).collect();
    let mut map = Map::new(KIND, volume_bytes, limits);
    let mut told = Clusters::new(&mut map, data_start, cluster_bytes, needed);
    let mut left = u64::from(clusters);
    for cluster in bitmap {
        let len = left.div_ceil(8).min(cluster_bytes);
        told.tell_bits(&fs.read(cluster, len)?, &mut left)?;
    }
    let free_bytes = told.finish()?;
    Ok(UsedSpace { kind: KIND, used: map.finish(), free_bytes, ..UsedSpace::default() })
}

struct ExFat<'a> {
    volume: &'a dyn ReadAt,
    boot: Boot,
}

/// Of a file: its first cluster and its length.
struct File {
    first: u32,
    bytes: u64,
}

impl ExFat<'_> {
    /// A cluster, counted from 0.
    fn number(&self, cluster: u32) -> Range<u64> {
        let number = u64::from(cluster - FIRST);
        number..number + 1
    }

    /// The first bytes of a cluster.
    fn read(&self, cluster: u32, len: u64) -> Result<Vec<u8>, Refusal> {
        let at = self.boot.data_start + self.number(cluster).start * self.boot.cluster_bytes;
        read(self.volume, at, usize::try_from(len).unwrap_or(0))
    }

    /// Clusters of a chain, from its first to its last, of which there are so many at most.
    fn chain(&self, first: u32, most: u64) -> Result<Vec<u32>, Refusal> {
        let mut chain = Vec::new();
        let mut cluster = first;
        while cluster != LAST {
            if cluster < FIRST || cluster - FIRST >= self.boot.clusters {
                return Err(unusable(format!("a chain leads to cluster {cluster}, which is none")));
            }
            if chain.len() as u64 == most {
                return Err(unusable(format!("the chain from cluster {first} has no end")));
            }
            chain.push(cluster);
            let entry = read(self.volume, self.boot.table_start + 4 * u64::from(cluster), 4)?;
            cluster = le32(&entry, 0);
        }
        Ok(chain)
    }

    /// A file that has as many clusters as it needs.
    fn file(&self, file: &File) -> Result<Vec<u32>, Refusal> {
        let count = file.bytes.div_ceil(self.boot.cluster_bytes);
        let chain = self.chain(file.first, count)?;
        if chain.len() as u64 == count {
            return Ok(chain);
        }
        Err(unusable(format!("the file at cluster {} is shorter than it says", file.first)))
    }

    /// The bitmap and the table of letters, which every root directory has once.
    fn find_files(&self, root: &[u32]) -> Result<(File, File), Refusal> {
        let (mut bitmap, mut letters) = (None, None);
        'all: for cluster in root {
            let bytes = self.read(*cluster, self.boot.cluster_bytes)?;
            for one in bytes.chunks_exact(ENTRY) {
                let found = match one[0] {
                    entry::END => break 'all,
                    entry::BITMAP => &mut bitmap,
                    entry::UPCASE_TABLE => &mut letters,
                    _ => continue,
                };
                let file = File { first: le32(one, 20), bytes: le64(one, 24) };
                if found.replace(file).is_some() || (one[0] == entry::BITMAP && one[1] & 1 != 0) {
                    return Err(unusable("it has two bitmaps, or two tables of letters"));
                }
            }
        }
        bitmap.zip(letters).ok_or_else(|| unusable("its root directory has no bitmap"))
    }
}

/// The boot sector: sizes, which are held against each other and against the volume. Places are in
/// bytes.
struct Boot {
    table_start: u64,
    data_start: u64,
    cluster_bytes: u64,
    clusters: u32,
    root: u32,
}

impl Boot {
    fn read(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Self, Refusal> {
        if volume_bytes < SECTOR as u64 {
            return Err(Refusal::Unknown);
        }
        let bytes = read(volume, 0, SECTOR)?;
        if !bytes[3..].starts_with(NAME) || !bytes.ends_with(b"\x55\xaa") {
            return Err(Refusal::Unknown);
        }
        let nonsense = || unusable("the sizes in its boot sector do not fit together");
        if !(9..=12).contains(&bytes[108]) || bytes[109] > 25 - bytes[108] {
            return Err(nonsense());
        }
        let sector = 1_u64 << bytes[108];
        let region = REGION * sector;
        if region > volume_bytes {
            return Err(nonsense());
        }
        let region = read(volume, 0, usize::try_from(region).map_err(|_| nonsense())?)?;
        if !checksum_fits(&region, usize::try_from(sector).map_err(|_| nonsense())?) {
            return Err(unusable("the checksum of its boot sectors does not fit"));
        }
        check_flags(&bytes)?;
        let sectors = le64(&bytes, 72);
        if sectors.checked_mul(sector).is_none_or(|end| end > volume_bytes) {
            return Err(unusable(format!(
                "it has {sectors} sectors of {sector} bytes, and the volume is smaller"
            )));
        }
        let [table, table_len, data] = [80, 84, 88].map(|at| u64::from(le32(&bytes, at)));
        let boot = Self {
            table_start: table * sector,
            data_start: data * sector,
            cluster_bytes: sector << bytes[109],
            clusters: le32(&bytes, 92),
            root: le32(&bytes, 96),
        };
        let clusters = u64::from(boot.clusters);
        let fits = table >= 2 * REGION
            && table + table_len <= data
            && 4 * (clusters + u64::from(FIRST)) <= table_len * sector
            && (1..=CLUSTERS_MAX).contains(&boot.clusters)
            && boot.cluster_bytes <= CLUSTER_BYTES_MAX
            && boot.data_start + clusters * boot.cluster_bytes <= sectors * sector;
        if fits { Ok(boot) } else { Err(nonsense()) }
    }
}

fn check_flags(bytes: &[u8]) -> Result<(), Refusal> {
    let (revision, flags, tables) = (le16(bytes, 104), le16(bytes, 106), bytes[110]);
    if revision != REVISION {
        return Err(unusable(format!("it is of revision {revision:#x}")));
    }
    if flags & flag::DIRTY != 0 {
        return Err(unusable("it was not unmounted: check it with fsck.exfat"));
    }
    if flags & flag::FAILED != 0 {
        return Err(unusable("it has recorded errors: check it with fsck.exfat"));
    }
    if flags & flag::SECOND_TABLE != 0 || tables != 1 {
        return Err(unusable("it has two tables"));
    }
    if flags & !flag::CLEAR != 0 {
        return Err(unusable(format!("it has unknown flags: {flags:#x}")));
    }
    Ok(())
}

/// Of all sectors of a boot region but the last, which has it again and again.
fn checksum_fits(region: &[u8], sector: usize) -> bool {
    let (body, kept) = region.split_at(region.len() - sector);
    let mut sum = 0_u32;
    for (at, byte) in body.iter().enumerate() {
        if !CHANGING.contains(&at) {
            sum = sum.rotate_right(1).wrapping_add(u32::from(*byte));
        }
    }
    kept.chunks_exact(4).all(|kept| le32(kept, 0) == sum)
}
