//! The boot sector: sizes, which are held against each other and against the volume, and marks.

use super::{FIRST, INFO_LEN, unusable};
use crate::{ReadAt, Refusal, le16, le32, read};
use std::ops::Range;

const LEN: usize = 512;
/// What stands behind this mark says what kind it is.
const HAS_NAME: u8 = 0x29;
/// A table of FAT32 of which the copies are not kept up to date.
const ONE_TABLE: u64 = 0x80;
const TABLE_NUMBER: u64 = 0xf;
const DIRTY: u8 = 1;
const WANTS_CHECK: u8 = 2;
const MEDIA: [u8; 9] = [0xf0, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff];
/// Clusters from which on entries have 16 bits, and from which on that is not enough.
const SIXTEEN: u64 = 4085;
const THIRTY_TWO: u64 = 65_525;
const CLUSTERS_MAX: u64 = 0x0fff_fff5;

/// Bits of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Twelve,
    Sixteen,
    ThirtyTwo,
}

impl Marks {
    fn of(state: u8) -> Self {
        Self { not_unmounted: state & DIRTY != 0, wants_check: state & WANTS_CHECK != 0 }
    }
}

impl Width {
    fn name(self) -> (usize, &'static [u8; 8]) {
        match self {
            Self::Twelve => (54, b"FAT12   "),
            Self::Sixteen => (54, b"FAT16   "),
            Self::ThirtyTwo => (82, b"FAT32   "),
        }
    }

    fn is_named(self, bytes: &[u8]) -> bool {
        let (at, name) = self.name();
        bytes[at..].starts_with(name)
    }
}

/// See the module. Places are in bytes of the volume.
#[derive(Debug)]
pub(super) struct Boot {
    pub(super) width: Width,
    pub(super) medium: u8,
    pub(super) table_start: u64,
    pub(super) table_bytes: u64,
    pub(super) tables: u64,
    pub(super) data_start: u64,
    pub(super) cluster_bytes: u64,
    pub(super) clusters: u64,
    /// Of FAT32: where its root directory begins. That of others stands before the clusters.
    pub(super) root: Option<u64>,
    /// Of others: the entries of that directory; none of FAT32.
    pub(super) root_entries: Range<u64>,
    /// Of FAT32: where hints are kept.
    pub(super) info: Option<u64>,
    /// Of FAT32: the one table that is kept up to date.
    pub(super) one_table: Option<u64>,
    pub(super) marks: Marks,
}

/// What systems leave while they have it mounted, and after errors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    pub(super) not_unmounted: bool,
    pub(super) wants_check: bool,
}

impl Boot {
    pub(super) fn read(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Self, Refusal> {
        if volume_bytes < LEN as u64 {
            return Err(Refusal::Unknown);
        }
        let bytes = read(volume, 0, LEN)?;
        let named = [Width::Twelve, Width::Sixteen, Width::ThirtyTwo].map(|w| w.is_named(&bytes));
        // boot sectors begin with a jump; without a name it may as well be that of a partition
        // table
        let is_boot = matches!(bytes[0], 0xe9 | 0xeb) && bytes.ends_with(b"\x55\xaa");
        if !is_boot || !named.contains(&true) {
            return Err(Refusal::Unknown);
        }
        Self::parse(&bytes, volume_bytes)
    }

    fn parse(bytes: &[u8], volume_bytes: u64) -> Result<Self, Refusal> {
        let nonsense = || unusable("the sizes in its boot sector do not fit together");
        let sector = u64::from(le16(bytes, 11));
        let (per_cluster, tables) = (bytes[13], bytes[16]);
        let (reserved, root_entries) = (u64::from(le16(bytes, 14)), u64::from(le16(bytes, 17)));
        let (few, many) = (le16(bytes, 19), le32(bytes, 32));
        let wide = le16(bytes, 22) == 0;
        let table = if wide { le32(bytes, 36) } else { le16(bytes, 22).into() };
        let fits = (512..=4096).contains(&sector)
            && sector.is_power_of_two()
            && per_cluster.is_power_of_two()
            && (1..=4).contains(&tables)
            && reserved > 0
            && table > 0
            && wide == (root_entries == 0)
            && (few == 0 || many == 0 || u32::from(few) == many)
            && MEDIA.contains(&bytes[21]);
        if !fits {
            return Err(nonsense());
        }
        let sectors = if few == 0 { u64::from(many) } else { few.into() };
        if sectors * sector > volume_bytes {
            return Err(unusable(format!(
                "it has {sectors} sectors of {sector} bytes, and the volume is smaller"
            )));
        }
        let (tables, table) = (u64::from(tables), u64::from(table));
        let data = reserved + tables * table + (root_entries * 32).div_ceil(sector);
        let room = sectors.checked_sub(data).ok_or_else(nonsense)?;
        let clusters = room / u64::from(per_cluster);
        let width = match clusters {
            _ if wide => Width::ThirtyTwo,
            ..SIXTEEN => Width::Twelve,
            SIXTEEN..THIRTY_TWO => Width::Sixteen,
            _ => return Err(nonsense()),
        };
        let info = u64::from(le16(bytes, 48));
        let one_table = u64::from(le16(bytes, 40));
        let tables_end = (reserved + tables * table) * sector;
        let boot = Self {
            width,
            medium: bytes[21],
            table_start: reserved * sector,
            table_bytes: table * sector,
            tables,
            data_start: data * sector,
            cluster_bytes: u64::from(per_cluster) * sector,
            clusters,
            root: wide.then(|| le32(bytes, 44).into()),
            root_entries: tables_end..tables_end + root_entries * 32,
            info: (wide && info < reserved && info > 0).then(|| info * sector),
            one_table: (wide && one_table & ONE_TABLE != 0).then_some(one_table & TABLE_NUMBER),
            marks: Marks::of(bytes[if wide { 65 } else { 37 }]),
        };
        let outside = |root: u64| !(FIRST..clusters + FIRST).contains(&root);
        if !(1..=CLUSTERS_MAX).contains(&clusters)
            || boot.entries_bytes() > boot.table_bytes
            || boot.root.is_some_and(outside)
            || boot.one_table.is_some_and(|number| number >= tables)
            || boot.info.is_some_and(|place| place + INFO_LEN as u64 > boot.table_start)
        {
            return Err(nonsense());
        }
        boot.check_name(bytes)?;
        Ok(boot)
    }

    fn check_name(&self, bytes: &[u8]) -> Result<(), Refusal> {
        let wide = self.width == Width::ThirtyTwo;
        let named = if wide { bytes[66] } else { bytes[38] };
        if named != HAS_NAME || !self.width.is_named(bytes) {
            return Err(unusable("its boot sector calls it what its sizes do not make it"));
        }
        if wide && le16(bytes, 42) != 0 {
            return Err(unusable(format!("it is of version {:#x}", le16(bytes, 42))));
        }
        Ok(())
    }

    /// The table that counts.
    pub(super) fn active(&self) -> u64 {
        self.one_table.unwrap_or(0)
    }

    /// Whether a cluster has that number.
    pub(super) fn is_cluster(&self, number: u64) -> bool {
        (FIRST..self.clusters + FIRST).contains(&number)
    }

    /// What the table needs for all clusters; its last sector may have more room.
    pub(super) fn entries_bytes(&self) -> u64 {
        self.width.bytes(self.clusters + FIRST)
    }
}
