//! What a list means in bytes, at every chunk size that a repository can have.

use chunkstore::{ChunkSize, Compression, Geometry, Result, Sealer, is_zero};
use mover_changes::{ChangeKind, ChangedBlocks, Changes, PlanInput, plan_backup};
use mover_engine::volume::device::Source;
use mover_engine::volume::sample::places;
use serde::Serialize;

/// Chunk sizes of a repository, as powers of two: 4 KiB to 4 MiB.
const CHUNK_BITS: std::ops::RangeInclusive<u32> = 12..=22;
/// Pieces of the device that are looked at, and the size of one.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 64 << 10;
/// What `--compression auto` starts at.
const ZSTD_LEVEL: i32 = 1;

/// A list in figures.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// What an unlisted byte means.
    pub kind: ChangeKind,
    /// Where the list came from.
    pub origin: &'static str,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Bytes and ranges that are listed.
    pub listed_bytes: u64,
    /// See `listed_bytes`.
    pub listed_extents: u64,
    /// Of these, bytes that are known to be zero.
    pub zero_bytes: u64,
    /// What a look at the device showed; `None` without a device.
    pub sample: Option<Sample>,
    /// A backup of the list, by chunk size.
    pub chunks: Vec<ChunkFigures>,
}

/// A backup of a list in a repository of one chunk size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ChunkFigures {
    /// Size of a chunk.
    pub chunk_bytes: u32,
    /// Chunks that are read.
    pub read_chunks: u64,
    /// Bytes that are read.
    pub read_bytes: u64,
    /// Bytes that are zero without being read.
    pub zero_bytes: u64,
    /// Bytes that come from the parent.
    pub inherited_bytes: u64,
    /// About what is stored of that, by the sample, if nothing of it is in the repository already.
    /// Map pages come on top.
    pub stored_bytes: Option<u64>,
}

/// What some pieces of the listed data compress to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Bytes that were read.
    pub plain_bytes: u64,
    /// What became of them: zero ones are not stored, the rest is compressed.
    pub stored_bytes: u64,
}

impl Figures {
    /// Of a list of a volume of this size.
    pub fn of(list: &ChangedBlocks, size_bytes: u64, sample: Option<Sample>) -> Result<Self> {
        let mut chunks = Vec::new();
        for bits in CHUNK_BITS {
            let chunk_bytes = 1 << bits;
            // the largest volumes are only possible with larger chunks
            if let Ok(geometry) = Geometry::new(size_bytes, ChunkSize::new(chunk_bytes)?) {
                chunks.push(ChunkFigures::of(list, geometry, sample)?);
            }
        }
        Ok(Self {
            kind: list.kind,
            origin: list.origin.as_str(),
            size_bytes,
            listed_bytes: list.listed_bytes(),
            listed_extents: list.listed_extents(),
            zero_bytes: list.zero.total(),
            sample,
            chunks,
        })
    }
}

impl ChunkFigures {
    fn of(list: &ChangedBlocks, geometry: Geometry, sample: Option<Sample>) -> Result<Self> {
        let parent = (list.kind == ChangeKind::Delta).then_some(geometry);
        let changes = Changes::List(list);
        let plan = plan_backup(&PlanInput { geometry, parent, changes, holes: None })?;
        Ok(Self {
            chunk_bytes: geometry.chunk().bytes(),
            read_chunks: plan.read.iter().map(|r| r.end - r.start).sum(),
            read_bytes: plan.read_bytes,
            zero_bytes: plan.zero_bytes,
            inherited_bytes: plan.inherited_bytes,
            stored_bytes: sample.map(|sample| sample.share_of(plan.read_bytes)),
        })
    }
}

impl Sample {
    fn share_of(self, bytes: u64) -> u64 {
        let share = u128::from(bytes) * u128::from(self.stored_bytes);
        u64::try_from(share / u128::from(self.plain_bytes.max(1))).unwrap_or(u64::MAX)
    }
}

/// Reads pieces of the listed data, evenly spread over it, and compresses them.
pub fn sample(list: &ChangedBlocks, source: &Source) -> Result<Option<Sample>> {
    let size = source.size_bytes();
    if list.data.is_empty() {
        return Ok(None);
    }
    let mut sealer = Sealer::new(Compression::Zstd(ZSTD_LEVEL))?;
    let mut sample = Sample { plain_bytes: 0, stored_bytes: 0 };
    for at in places(&list.data, SAMPLES) {
        let start = at.min(size - 1) / SAMPLE_BYTES * SAMPLE_BYTES;
        let len = usize::try_from(SAMPLE_BYTES.min(size - start)).unwrap_or(0);
        let mut bytes = vec![0; len];
        source.read_exact_at(&mut bytes, start)?;
        sample.plain_bytes += len as u64;
        if !is_zero(&bytes) {
            sample.stored_bytes += sealer.packed_len(&bytes)?;
        }
    }
    Ok(Some(sample))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mover_changes::ListOrigin;
    use mover_engine::volume::device::SourceOptions;
    use mover_extents::Extents;

    fn list(kind: ChangeKind, data: Extents, zero: Extents) -> ChangedBlocks {
        let (contexts, notes, volume_bytes) = (vec![], vec![], None);
        ChangedBlocks { kind, origin: ListOrigin::Mover, volume_bytes, data, zero, contexts, notes }
    }

    #[test]
    fn figures_are_those_of_the_plan_at_each_size() {
        let size = (8 << 20) + 100;
        let data = [0..1, (1 << 20)..(1 << 20) + 8192].into_iter().collect();
        let delta = list(ChangeKind::Delta, data, Extents::of(4 << 20..5 << 20));
        let figures = Figures::of(&delta, size, None).unwrap();
        assert_eq!(figures.chunks.len(), 11);
        assert_eq!(figures.listed_bytes, 1 + 8192 + (1 << 20));
        let of = |chunk| figures.chunks.iter().find(|f| f.chunk_bytes == chunk).unwrap();
        assert_eq!((of(4096).read_chunks, of(4096).read_bytes), (3, 3 * 4096));
        assert_eq!((of(1 << 20).read_chunks, of(1 << 20).zero_bytes), (2, 1 << 20));
        // a chunk that is only partly known to be zero is read
        assert_eq!((of(4 << 20).read_chunks, of(4 << 20).zero_bytes), (2, 0));
        for f in &figures.chunks {
            assert_eq!(f.read_bytes + f.zero_bytes + f.inherited_bytes, size);
        }
    }

    #[test]
    fn a_sample_knows_what_compresses_and_what_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut bytes = vec![0u8; 4 << 20];
        let mut state = 1u64;
        for b in &mut bytes[2 << 20..] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *b = state.to_le_bytes()[7];
        }
        std::fs::write(&path, &bytes).unwrap();
        let source = Source::open(&path, SourceOptions::default()).unwrap();
        let of = |data| {
            let list = list(ChangeKind::Allocated, data, Extents::new());
            sample(&list, &source).unwrap().map(|s| (s.plain_bytes, s.stored_bytes))
        };
        assert_eq!(of(Extents::new()), None);
        assert_eq!(of(Extents::of(0..2 << 20)), Some((4 << 20, 0)));
        assert_eq!(of(Extents::of(2 << 20..4 << 20)), Some((4 << 20, 4 << 20)));
        assert_eq!(of(Extents::of(0..4 << 20)), Some((4 << 20, 2 << 20)));
        assert_eq!(
            of([4095..4096, (4 << 20) - 1..4 << 20].into_iter().collect()).unwrap().1,
            2 << 20
        );
    }
}
