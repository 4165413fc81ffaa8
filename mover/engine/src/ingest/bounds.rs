//! Every bound of a backup, derived from one memory budget.
//!
//! Memory in use is the sum of these: slots, packs being filled or uploaded, the run table, segment
//! records, dedup index, map pages. What remains is for the program itself, its threads' stacks and
//! codec contexts, and the TLS stack.

use super::compression::{CompressionChoice, STRONG_THREAD_BYTES, seal_thread_bytes};
use crate::run::MemoryBudget;
use chunkstore::{ChunkSize, Result};
use mover_changes::RANGES_MAX_DEFAULT;
use serde::Serialize;
use std::num::NonZeroU64;

const MIB: u64 = 1 << 20;
/// Least memory with which a backup can run at all.
pub const MEMORY_BYTES_MIN: u64 = 64 * MIB;
/// Code, stacks, allocator slack, the network stack.
const FIXED_BYTES: u64 = 32 * MIB;
/// Read unit aimed at: large enough for the device's full rate, small enough to have many.
const UNIT_BYTES: u32 = 1 << 20;
/// What one record costs while a segment is built: the record and its encoding.
const SEGMENT_ENTRY_BYTES: u64 = 160;
/// What one decoded leaf page costs per child.
const PAGE_CHILD_BYTES: u64 = 96;

/// A limit on the rate makes packs no smaller than this: each is a request.
const PACED_PACK_BYTES_MIN: u32 = 4 << 20;

/// Bounds of one backup run.
#[derive(Debug, Clone, Serialize)]
pub struct Bounds {
    /// The budget that all others are derived from.
    pub memory_bytes: u64,
    /// Bytes of one read unit.
    pub slot_bytes: u32,
    /// Read units in memory.
    pub slots: usize,
    /// Reads in flight in the device.
    pub depth: usize,
    /// Threads that hash, compress and seal.
    pub seal_threads: usize,
    /// Memory of each of them for compression.
    pub seal_thread_bytes: u64,
    /// A pack is closed when it has this size.
    pub pack_bytes: u32,
    /// Packs being uploaded at once.
    pub uploads: usize,
    /// Memory for the chunks of this run that are remembered for deduplication.
    pub run_table_bytes: u64,
    /// Records gathered before a dedup segment is written.
    pub segment_records: usize,
    /// Memory for the dedup segments of the repository.
    pub dedup_bytes: u64,
    /// Memory for reading the parent's map: requests in flight, and pages kept between windows.
    pub map_read_bytes: u64,
    /// Leaf pages of the parent's map in one window.
    pub window_leaves: usize,
    /// Read units that may be under way between planning and the map.
    pub units_ahead: usize,
}

impl Bounds {
    /// Derives the bounds for a repository with these chunks and entries, on `cores` CPUs.
    /// Stronger compression takes memory from the buffers.
    pub fn derive(
        memory: MemoryBudget,
        chunk: ChunkSize,
        entry_chunks: u16,
        page_fanout: u16,
        cores: usize,
        compression: CompressionChoice,
    ) -> Result<Self> {
        let memory_bytes = memory.total_bytes;
        if memory_bytes < MEMORY_BYTES_MIN {
            let context = "derive the memory bounds";
            return Err(memory.too_little(context, "a backup", MEMORY_BYTES_MIN));
        }
        let spare = memory_bytes - FIXED_BYTES;
        let thread_bytes = match compression {
            // a slow store is worth the stronger levels' memory, unless many threads would take it
            // from the buffers
            CompressionChoice::Auto if cores as u64 * STRONG_THREAD_BYTES <= spare / 8 => {
                STRONG_THREAD_BYTES
            }
            choice => seal_thread_bytes(choice),
        };
        // small budgets run fewer threads, so that half of the memory is left for data
        let threads_max = usize::try_from(spare / 4 / thread_bytes).unwrap_or(usize::MAX);
        let seal_threads = cores.clamp(1, threads_max.max(1));
        let data = spare - seal_threads as u64 * thread_bytes;
        let slot_bytes = UNIT_BYTES.min(chunk.bytes() * u32::from(entry_chunks)).max(chunk.bytes());
        let slots_wanted = 4 * seal_threads + 8;
        let slots_max = usize::try_from(data / 6 / u64::from(slot_bytes)).unwrap_or(usize::MAX);
        let slots = slots_wanted.min(slots_max).max(3);
        let depth = (slots / 2).clamp(1, 16);
        // few cores need fewer slots than there is room for
        let slots_spare = (data / 6).saturating_sub(slots as u64 * u64::from(slot_bytes));
        let pack_room = data / 20 * 9 + slots_spare;
        let pack_bytes = (pack_room / 5).clamp(2 * MIB, 32 * MIB);
        // one pack is being filled while the others are under way
        let uploads = usize::try_from(pack_room / pack_bytes).unwrap_or(1).saturating_sub(1);
        let share = |part: u64, each: u64| usize::try_from(part / each).unwrap_or(usize::MAX);
        let leaf_bytes = PAGE_CHILD_BYTES * u64::from(page_fanout);
        Ok(Self {
            memory_bytes,
            slot_bytes,
            slots,
            depth,
            seal_threads,
            seal_thread_bytes: thread_bytes,
            pack_bytes: u32::try_from(pack_bytes).unwrap_or(u32::MAX),
            uploads: uploads.clamp(1, 32),
            run_table_bytes: data / 10,
            segment_records: share(data / 10, SEGMENT_ENTRY_BYTES),
            dedup_bytes: data / 10,
            map_read_bytes: data / 20,
            window_leaves: share(data / 64, leaf_bytes).clamp(4, 512),
            units_ahead: 4 * slots + 64,
        })
    }

    /// Smaller packs where the rate to the store is limited: a pack is sent at once, so that small
    /// ones make the pace even.
    pub(crate) fn pace(&mut self, bytes_per_second: NonZeroU64) {
        let a_second = u32::try_from(bytes_per_second.get()).unwrap_or(u32::MAX);
        self.pack_bytes = self.pack_bytes.min(a_second.max(PACED_PACK_BYTES_MIN));
    }

    /// One line for the start of a run.
    pub fn line(&self) -> String {
        format!(
            "memory {} MiB: {} slots of {} KiB, {} in flight, {} seal threads, packs of {} MiB, {} uploads, run table \
             {} MiB, dedup index {} MiB",
            self.memory_bytes / MIB,
            self.slots,
            self.slot_bytes / 1024,
            self.depth,
            self.seal_threads,
            self.pack_bytes / (1 << 20),
            self.uploads,
            self.run_table_bytes / MIB,
            self.dedup_bytes / MIB,
        )
    }
}

/// A range costs 16 bytes in the list and as many in the plan, twice for a moment: an eighth of the
/// budget is theirs.
pub fn ranges_max(memory: MemoryBudget) -> usize {
    usize::try_from(memory.total_bytes / 8 / 64).unwrap_or(usize::MAX).min(RANGES_MAX_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::ErrorKind;

    const AUTO: CompressionChoice = CompressionChoice::Auto;

    fn bounds(mib: u64, chunk: u32, cores: usize) -> Bounds {
        let chunk = ChunkSize::new(chunk).unwrap();
        Bounds::derive(MemoryBudget { total_bytes: mib * MIB }, chunk, 16, 128, cores, AUTO)
            .unwrap()
    }

    #[test]
    fn the_sum_of_the_bounds_is_within_the_budget() {
        for mib in [64, 96, 128, 256, 1024, 8192] {
            for chunk in [4096, 65536, 4 << 20] {
                for cores in [1, 2, 16, 128] {
                    let b = bounds(mib, chunk, cores);
                    let sum = FIXED_BYTES
                        + b.seal_threads as u64 * b.seal_thread_bytes
                        + b.slots as u64 * u64::from(b.slot_bytes)
                        + (b.uploads as u64 + 1) * u64::from(b.pack_bytes)
                        + b.run_table_bytes
                        + b.segment_records as u64 * SEGMENT_ENTRY_BYTES
                        + b.dedup_bytes
                        + b.map_read_bytes
                        + 2 * b.window_leaves as u64 * PAGE_CHILD_BYTES * 128;
                    // three slots are the least with which the stages overlap, whatever the chunk
                    // size
                    let least = 3 * u64::from(b.slot_bytes);
                    assert!(sum <= mib * MIB + least, "{mib} MiB, {chunk}, {cores}: {sum} {b:?}");
                    assert!(b.depth < b.slots, "a slot is free for the seal threads");
                }
            }
        }
    }

    #[test]
    fn too_little_memory_is_refused() {
        let chunk = ChunkSize::new(65536).unwrap();
        let e = Bounds::derive(MemoryBudget { total_bytes: 63 * MIB }, chunk, 16, 128, 2, AUTO);
        assert_eq!(e.unwrap_err().kind(), ErrorKind::Usage);
    }
}
