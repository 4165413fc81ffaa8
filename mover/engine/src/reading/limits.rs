//! Every bound of a restore or a verification, derived from the one memory budget.
//!
//! Pure: parameters in, bounds out. What is allocated is the sum of [`Limits::lines`]; a budget
//! that one entry of the repository does not fit into is refused, with the smallest one that works.

use crate::run::MemoryBudget;
use chunkstore::limits::{ENTRY_HEADER_BYTES, TAG_BYTES};
use chunkstore::{Result, format::RepositoryParams, map::ReadLimits};

/// Writes, or reads, of a device in flight. Deeper was not faster on any device measured (design: 4
/// to 16).
pub(crate) const WRITES_IN_FLIGHT: usize = 32;
/// Range reads of packs in flight, until it was measured how many the line takes; the memory for
/// them is bounded apart.
pub(crate) const READS_START: usize = 16;
/// Range reads of packs in flight at most: what small reads over a long line need.
pub(crate) const READS_MAX: usize = 128;
/// Reads of the longest that the memory for them has room for, at most.
const LONG_READS: u64 = 32;

/// Where what is opened goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputKind {
    /// Through aligned slots, in any order.
    Slots,
    /// In order, through a buffer that holds what comes too early.
    Ordered,
    /// Nowhere: it is only checked.
    Nowhere,
}

/// One bound, for the summary.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LimitLine {
    /// What it is for.
    pub what: String,
    /// Bytes at most.
    pub bytes: u64,
}

/// All bounds.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    allocator_bytes: u64,
    /// Of the store, buffers that are used again.
    pub(crate) kept_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) leaves_per_window: usize,
    pub(crate) map_bytes: u64,
    /// Stored pages in flight, and as much again for decoded ones that are kept.
    pub(crate) map_read_bytes: u32,
    pub(crate) fetch_bytes: u32,
    pub(crate) read_bytes_max: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) slots: usize,
    pub(crate) ordered_bytes: u32,
    pub(crate) scratch_bytes: u64,
    /// A bit for each chunk, where a target is compared first.
    same_bytes: u64,
}

/// Bytes of a map leaf in memory per child, as page and as plan, for two windows: the one at work
/// and the one ahead.
const LEAF_CHILD_BYTES: u64 = 2 * (96 + 112 + 64);
/// zstd's decompression context with its window, per thread.
pub(super) const CODEC_BYTES: u64 = 512 << 10;
/// Runtime, stacks, connections: what no bound of ours covers.
pub(super) const BASE_BYTES: u64 = 24 << 20;
/// Of the budget, for what the allocator keeps between buffers of many sizes, taken and given back
/// by many threads.
const ALLOCATOR_SHARE: u64 = 8;
/// Of that, for large buffers that the store keeps itself.
pub(super) const KEPT_SHARE: u64 = 2;
/// A slot is one write: long enough for any device's full speed.
pub(crate) const SLOT_BYTES: u32 = 1 << 20;
/// More than a device has in flight and threads fill, would only be more memory to touch.
const SLOTS_MAX: u64 = WRITES_IN_FLIGHT as u64 + 32;
pub(super) const READ_BYTES_MAX: u32 = 8 << 20;
const FETCH_BYTES_MAX: u64 = LONG_READS * READ_BYTES_MAX as u64;
const LEAVES_MAX: u64 = 4096;
const MAP_READ_BYTES_MIN: u64 = 2 << 20;
const MAP_READ_BYTES_MAX: u64 = 16 << 20;

/// What one of everything takes.
struct Needs {
    stored_max: u64,
    leaf_bytes: u64,
    slot_bytes: u64,
    per_thread: u64,
    least_out: u64,
    /// All of that, and the process.
    fixed: u64,
    /// The smallest budget.
    least: u64,
}

impl Needs {
    fn of(params: &RepositoryParams, output: OutputKind) -> Self {
        let chunk_bytes = u64::from(params.chunk.bytes());
        let entry_bytes = chunk_bytes * u64::from(params.entry_chunks);
        let stored_max = entry_bytes + u64::from(ENTRY_HEADER_BYTES + TAG_BYTES);
        let leaf_bytes = u64::from(params.page_fanout) * LEAF_CHILD_BYTES;
        let slot_bytes = u64::from(SLOT_BYTES).max(chunk_bytes);
        let least_out = match output {
            OutputKind::Slots => 2 * slot_bytes,
            // two batches overlap, and a batch has a chunk at least
            OutputKind::Ordered => 2 * chunk_bytes.max(1 << 20),
            OutputKind::Nowhere => 0,
        };
        // decrypted, then decompressed
        let per_thread = 2 * entry_bytes + CODEC_BYTES;
        let network = 2 * stored_max + 2 * MAP_READ_BYTES_MIN;
        let fixed = BASE_BYTES + per_thread + network + leaf_bytes + least_out;
        let least = (fixed * ALLOCATOR_SHARE).div_ceil(ALLOCATOR_SHARE - 1);
        Self { stored_max, leaf_bytes, slot_bytes, per_thread, least_out, fixed, least }
    }
}

impl Limits {
    /// The smallest budget that works.
    #[cfg(test)]
    pub(crate) fn least(params: &RepositoryParams) -> MemoryBudget {
        let least = |output| Needs::of(params, output).least;
        let total_bytes = [OutputKind::Slots, OutputKind::Ordered, OutputKind::Nowhere].map(least);
        MemoryBudget { total_bytes: total_bytes.into_iter().max().unwrap_or(0) }
    }

    /// Divides the budget.
    pub(crate) fn plan(
        budget: MemoryBudget,
        params: &RepositoryParams,
        output: OutputKind,
        threads: usize,
    ) -> Result<Self> {
        let Needs { stored_max, leaf_bytes, slot_bytes, per_thread, least_out, fixed, least } =
            Needs::of(params, output);
        let total = budget.total_bytes;
        if total < least {
            let context = "divide the memory budget";
            return Err(budget.too_little(context, "this repository's entries", least));
        }
        let allocator_bytes = total / ALLOCATOR_SHARE;
        let mut spare = (total - allocator_bytes).saturating_sub(fixed);
        // at most half of what is spare goes to threads
        let more_threads = (spare / 2 / per_thread).min(threads.max(1) as u64 - 1);
        spare -= more_threads * per_thread;
        let out_bytes = (least_out + if least_out == 0 { 0 } else { spare * 3 / 10 })
            .min(SLOTS_MAX * slot_bytes);
        let fetch_bytes =
            (2 * stored_max + spare * 4 / 10).min(FETCH_BYTES_MAX.max(2 * stored_max));
        let leaves = (1 + spare * 2 / 10 / leaf_bytes).min(LEAVES_MAX);
        let map_read_bytes = (MAP_READ_BYTES_MIN + spare / 20).min(MAP_READ_BYTES_MAX);
        let read_bytes_max =
            (fetch_bytes / 8).max(stored_max).min(u64::from(READ_BYTES_MAX).max(stored_max));
        Ok(Self {
            allocator_bytes: allocator_bytes - allocator_bytes / KEPT_SHARE,
            kept_bytes: allocator_bytes / KEPT_SHARE,
            threads: to_usize(more_threads + 1),
            leaves_per_window: to_usize(leaves),
            map_bytes: leaves * leaf_bytes,
            map_read_bytes: to_u32(map_read_bytes),
            fetch_bytes: to_u32(fetch_bytes),
            read_bytes_max: to_u32(read_bytes_max),
            slot_bytes: to_u32(slot_bytes),
            slots: if output == OutputKind::Slots { to_usize(out_bytes / slot_bytes) } else { 0 },
            ordered_bytes: if output == OutputKind::Ordered { to_u32(out_bytes) } else { 0 },
            scratch_bytes: (more_threads + 1) * per_thread,
            same_bytes: 0,
        })
    }

    /// Divides the budget, and leaves so many bytes of it for the set of chunks that a target has
    /// already.
    pub(crate) fn plan_beside(
        same_bytes: u64,
        budget: MemoryBudget,
        params: &RepositoryParams,
        output: OutputKind,
        threads: usize,
    ) -> Result<Self> {
        let least = Needs::of(params, output).least.saturating_add(same_bytes);
        if budget.total_bytes < least {
            let context = "divide the memory budget";
            return Err(budget.too_little(context, "a volume of this size to be compared", least));
        }
        let rest = MemoryBudget { total_bytes: budget.total_bytes - same_bytes };
        Ok(Self { same_bytes, ..Self::plan(rest, params, output, threads)? })
    }

    /// Data of one batch: four of them fit where the output is in order, so that the next are on
    /// their way.
    pub(crate) fn batch_bytes_max(&self) -> u64 {
        if self.ordered_bytes == 0 { u64::MAX } else { u64::from(self.ordered_bytes / 4) }
    }

    /// How the map is read.
    pub(crate) fn map_reads(&self) -> ReadLimits {
        ReadLimits {
            read_bytes_max: self.map_read_bytes / 4,
            in_flight_bytes_max: self.map_read_bytes,
            cache_bytes_max: self.map_read_bytes as usize,
            ..ReadLimits::default()
        }
    }

    /// For the summary: what each bound is for. Their sum is within the budget.
    pub(crate) fn lines(&self) -> Vec<LimitLine> {
        let line = |what: &str, bytes| LimitLine { what: what.into(), bytes };
        let lines = [
            line("process and allocator", BASE_BYTES + self.allocator_bytes),
            line("buffers kept between reads", self.kept_bytes),
            line("map pages and plans", self.map_bytes),
            line("map pages in flight and kept", 2 * u64::from(self.map_read_bytes)),
            line("stored entries in flight", u64::from(self.fetch_bytes)),
            line("opened entries", self.scratch_bytes),
            line("slots", self.slots as u64 * u64::from(self.slot_bytes)),
            line("output in order", u64::from(self.ordered_bytes)),
            line("chunks that are there already", self.same_bytes),
        ];
        lines.into_iter().filter(|l| l.bytes > 0).collect()
    }
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn to_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::{ChunkSize, Encryption, ErrorKind};

    fn params(chunk_bytes: u32, entry_chunks: u16, page_fanout: u16) -> RepositoryParams {
        RepositoryParams {
            repository_id: chunkstore::RepositoryId::random(),
            chunk: ChunkSize::new(chunk_bytes).unwrap(),
            entry_chunks,
            page_fanout,
            encryption: Encryption::Aes256Gcm,
            created: chrono::Utc::now(),
            created_by: "test".into(),
            clear_master_key: None,
        }
    }

    #[test]
    fn the_bounds_add_up_to_the_budget() {
        let shapes = [(4096, 1, 16), (65536, 16, 128), (65536, 256, 1024), (4 << 20, 4, 1024)];
        for (chunk, entry, fanout) in shapes {
            let params = params(chunk, entry, fanout);
            for output in [OutputKind::Slots, OutputKind::Ordered, OutputKind::Nowhere] {
                for mib in [120_u64, 128, 256, 1024, 16384] {
                    let budget = MemoryBudget { total_bytes: mib << 20 };
                    let limits = Limits::plan(budget, &params, output, 8).unwrap();
                    let sum: u64 = limits.lines().iter().map(|l| l.bytes).sum();
                    assert!(sum <= budget.total_bytes, "{limits:?} within {mib} MiB");
                    let stored_max = chunk * u32::from(entry) + 24;
                    assert!(limits.read_bytes_max >= stored_max);
                    assert!(limits.fetch_bytes >= 2 * stored_max);
                    assert!(limits.fetch_bytes >= limits.read_bytes_max);
                    assert!(output != OutputKind::Slots || limits.slots >= 2);
                    assert!(output != OutputKind::Ordered || limits.ordered_bytes >= 2 * chunk);
                    assert!(limits.threads >= 1 && limits.leaves_per_window >= 1);
                }
            }
        }
    }

    #[test]
    fn too_small_a_budget_names_one_that_works() {
        let params = params(4 << 20, 4, 1024);
        let budget = MemoryBudget { total_bytes: 16 << 20 };
        let error = Limits::plan(budget, &params, OutputKind::Slots, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let hint = error.hint_text().unwrap().to_owned();
        let mib: u64 = hint.split(['M', ' ']).find_map(|w| w.parse().ok()).unwrap();
        let budget = MemoryBudget { total_bytes: mib << 20 };
        assert!(Limits::plan(budget, &params, OutputKind::Slots, 8).is_ok());
    }
}
