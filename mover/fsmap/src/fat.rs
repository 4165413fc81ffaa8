//! FAT12, FAT16 and FAT32: the file allocation table.
//!
//! Layout: Microsoft's "FAT File System Specification" and `include/uapi/linux/msdos_fs.h` of the
//! kernel. A cluster is free if its entry is zero; whatever stands before the clusters, and behind
//! the last, is used. There are no checksums, so all copies of the table must be the same, no chain
//! may lead to a free cluster, to one of another chain, or outside, and the marks that each system
//! leaves while it has the volume mounted must not be there. There is no journal: what is mounted
//! is never relied upon.
//!
//! Memory: a bit for each cluster, 32 MiB at the very most.

mod boot;
mod files;

pub(super) use files::files;

use super::clusters::Clusters;
use super::{Limits, Map, ReadAt, Refusal, UsedSpace, le16, le32, read};
use boot::{Boot, Marks, Width};

const KIND: &str = "vfat";
/// Clusters are counted from here; the entries before that are the table's own.
const FIRST: u64 = 2;
/// A multiple of what one entry has, and more than a table of FAT12.
const PIECE_LEN: usize = 64 << 10;
const PIECE: u64 = PIECE_LEN as u64;
const INFO_LEN: usize = 512;
/// The number of free clusters is not known.
const NOT_KNOWN: u32 = u32::MAX;

fn unusable(why: impl Into<String>) -> Refusal {
    Refusal::Unusable { kind: KIND, why: why.into() }
}

/// See [`super::used_space`].
pub(super) fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    let fat = Fat { volume, boot: Boot::read(volume, volume_bytes)? };
    fat.check_marks()?;
    let linked = fat.read_links()?;
    let mut map = Map::new(KIND, volume_bytes, limits);
    let Boot { data_start, cluster_bytes, .. } = fat.boot;
    let root = fat.boot.root.map(|root| root - FIRST..root - FIRST + 1);
    let mut clusters = Clusters::new(&mut map, data_start, cluster_bytes, root);
    fat.walk(&mut |cluster, entry| {
        let link = fat.link(cluster, entry)?;
        if link == Link::Free && linked.has(cluster) {
            return Err(unusable(format!("a chain leads to cluster {cluster}, which is free")));
        }
        clusters.tell(1, link == Link::Free)
    })?;
    let free_bytes = clusters.finish()?;
    let notes = fat.note(free_bytes / cluster_bytes)?.into_iter().collect();
    Ok(UsedSpace { kind: KIND, used: map.finish(), free_bytes, replayed: 0, notes })
}

/// What an entry says of its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Free,
    /// The next cluster of the file.
    To(u64),
    /// The last one of a file, or one that is bad.
    None,
}

struct Fat<'a> {
    volume: &'a dyn ReadAt,
    boot: Boot,
}

/// Clusters that another one leads to.
struct Linked(Vec<u8>);

impl Linked {
    fn new(boot: &Boot) -> Self {
        let bytes = (boot.clusters + FIRST).div_ceil(8);
        Self(vec![0; usize::try_from(bytes).unwrap_or(0)])
    }

    fn place(cluster: u64) -> (usize, u8) {
        // fewer clusters than 2^28
        (usize::try_from(cluster / 8).unwrap_or(usize::MAX), 1 << (cluster % 8))
    }

    fn has(&self, cluster: u64) -> bool {
        let (at, bit) = Self::place(cluster);
        self.0.get(at).is_some_and(|byte| byte & bit != 0)
    }

    fn add(&mut self, cluster: u64) {
        let (at, bit) = Self::place(cluster);
        if let Some(byte) = self.0.get_mut(at) {
            *byte |= bit;
        }
    }
}

impl Fat<'_> {
    /// A piece of the table's copy of some number.
    fn piece(&self, copy: u64, from: u64) -> Result<Vec<u8>, Refusal> {
        let len = (self.boot.entries_bytes() - from).min(PIECE);
        let at = self.boot.table_start + copy * self.boot.table_bytes + from;
        read(self.volume, at, usize::try_from(len).unwrap_or(0))
    }

    /// Hands each cluster with its entry of the table that counts to `each`, in order.
    fn walk(&self, each: &mut dyn FnMut(u64, u32) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let end = self.boot.clusters + FIRST;
        let mut cluster = 0;
        let mut from = 0;
        while cluster < end {
            let bytes = self.piece(self.boot.active(), from)?;
            let in_piece = self.boot.width.entries_in(bytes.len() as u64).min(end - cluster);
            for number in 0..in_piece {
                if cluster >= FIRST {
                    each(cluster, self.boot.width.entry(&bytes, number))?;
                }
                cluster += 1;
            }
            from += bytes.len() as u64;
        }
        Ok(())
    }

    fn link(&self, cluster: u64, entry: u32) -> Result<Link, Refusal> {
        let (next, bad) = (u64::from(entry), self.boot.width.bad());
        match entry {
            0 => Ok(Link::Free),
            _ if self.boot.is_cluster(next) => Ok(Link::To(next)),
            _ if entry >= bad => Ok(Link::None),
            _ => Err(unusable(format!("cluster {cluster} leads to {next}, which is none"))),
        }
    }

    /// What the first two entries say: the medium, and what the last one that mounted it has to
    /// say. With the marks of the boot sector.
    fn marks(&self) -> Result<Marks, Refusal> {
        let bytes = self.piece(self.boot.active(), 0)?;
        let width = self.boot.width;
        let [medium, state] = [0, 1].map(|number| width.entry(&bytes, number));
        if medium & 0xff != u32::from(self.boot.medium) {
            return Err(unusable("its table and its boot sector are not of one medium"));
        }
        let (clean, sound) = match width {
            // has no room for marks
            Width::Twelve => (0, 0),
            Width::Sixteen => (0x8000, 0x4000),
            Width::ThirtyTwo => (0x0800_0000, 0x0400_0000),
        };
        let Marks { not_unmounted, wants_check } = self.boot.marks;
        Ok(Marks {
            not_unmounted: not_unmounted || state & clean != clean,
            wants_check: wants_check || state & sound != sound,
        })
    }

    fn check_marks(&self) -> Result<(), Refusal> {
        if self.boot.one_table.is_some() {
            return Err(unusable("only one of its tables is kept up to date"));
        }
        let marks = self.marks()?;
        if marks.not_unmounted {
            return Err(unusable("it was not unmounted: check it with fsck.fat"));
        }
        if marks.wants_check {
            return Err(unusable("it has recorded errors: check it with fsck.fat"));
        }
        Ok(())
    }

    /// Holds all copies of the table against each other; gives what its entries lead to.
    fn read_links(&self) -> Result<Linked, Refusal> {
        for from in (0..self.boot.entries_bytes()).step_by(PIECE_LEN) {
            let bytes = self.piece(0, from)?;
            for copy in 1..self.boot.tables {
                if self.piece(copy, from)? != bytes {
                    let why = "the copies of its table differ: check it with fsck.fat";
                    return Err(unusable(why));
                }
            }
        }
        let mut linked = Linked::new(&self.boot);
        self.walk(&mut |cluster, entry| {
            let Link::To(next) = self.link(cluster, entry)? else { return Ok(()) };
            if linked.has(next) {
                return Err(unusable(format!("two chains lead to cluster {next}")));
            }
            linked.add(next);
            Ok(())
        })?;
        Ok(linked)
    }

    /// FAT32 keeps how many clusters are free, as a hint that not every system keeps up to date.
    fn note(&self, free: u64) -> Result<Option<String>, Refusal> {
        let Some(place) = self.boot.info else { return Ok(None) };
        let info = read(self.volume, place, INFO_LEN)?;
        let own = info.starts_with(b"RRaA") && info[484..].starts_with(b"rrAa");
        let said = le32(&info, 488);
        if !own || said == NOT_KNOWN || u64::from(said) == free {
            return Ok(None);
        }
        Ok(Some(format!("its table has {free} free clusters, and it says {said}, which is a hint")))
    }
}

impl Width {
    fn bytes(self, entries: u64) -> u64 {
        match self {
            Self::Twelve => (entries * 3).div_ceil(2),
            Self::Sixteen => entries * 2,
            Self::ThirtyTwo => entries * 4,
        }
    }

    fn entries_in(self, bytes: u64) -> u64 {
        match self {
            Self::Twelve => bytes * 2 / 3,
            Self::Sixteen => bytes / 2,
            Self::ThirtyTwo => bytes / 4,
        }
    }

    fn entry(self, bytes: &[u8], number: u64) -> u32 {
        // within a piece
        let number = usize::try_from(number).unwrap_or(usize::MAX / 8);
        match self {
            Self::Twelve => {
                let two = u32::from(le16(bytes, number * 3 / 2));
                if number.is_multiple_of(2) { two & 0xfff } else { two >> 4 }
            }
            Self::Sixteen => le16(bytes, number * 2).into(),
            Self::ThirtyTwo => le32(bytes, number * 4) & 0x0fff_ffff,
        }
    }

    /// Whether an entry ends a chain. A bad cluster, which is before, is in none.
    fn is_end(self, entry: u64) -> bool {
        entry > u64::from(self.bad())
    }

    /// From here on entries lead nowhere.
    fn bad(self) -> u32 {
        match self {
            Self::Twelve => 0xff7,
            Self::Sixteen => 0xfff7,
            Self::ThirtyTwo => 0x0fff_fff7,
        }
    }
}
