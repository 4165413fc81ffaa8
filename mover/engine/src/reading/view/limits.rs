//! Every bound of backups that are read at random, derived from the one memory budget.
//!
//! Pure: parameters in, bounds out. What is allocated is the sum of [`ViewLimits::lines`].

use super::disk::{INDEX_BYTES_MAX, waiting};
use crate::reading::limits::{BASE_BYTES, CODEC_BYTES, KEPT_SHARE, LimitLine, READ_BYTES_MAX};
use crate::run::MemoryBudget;
use chunkstore::limits::{ENTRY_HEADER_BYTES, TAG_BYTES};
use chunkstore::{Result, format::RepositoryParams, map::ReadLimits};

/// Of the budget, for what the allocator keeps between buffers of many sizes.
const ALLOCATOR_SHARE: u64 = 8;
/// Of what is spare, in hundredths.
const MAPS_SHARE: u64 = 15;
const FLIGHTS_SHARE: u64 = 40;
const REPLIES_SHARE: u64 = 10;
const MAP_BYTES_MIN: u64 = 3 << 20;
/// The pages above the leaves of 1 TiB, and as many leaves.
const MAP_BYTES_MAX: u64 = 96 << 20;
const FLIGHT_BYTES_MAX: u64 = 512 << 20;
const REPLY_BYTES_MIN: u64 = 4 << 20;
/// Payloads of writes, and chunks that are read to write a part of them.
const PAYLOAD_BYTES: u64 = 32 << 20;
const MERGE_BYTES: u64 = 16 << 20;
/// Runs of chunks that are fetched, on their way to a target.
const LANDING_BYTES: u64 = 16 << 20;
/// Read ahead of all clients.
const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Of flights, and of entries that are kept, in quarters: for those ahead of clients.
const AHEAD_QUARTERS: u64 = 3;

/// What is done with views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewUse {
    /// They are read.
    Reading,
    /// They lie below volumes that are written.
    Overlaid,
    /// The same, and they are fetched meanwhile.
    Live,
}

/// What the memory is divided for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewNeeds {
    /// Backups that are open at a time.
    pub maps: usize,
    /// What is done with them.
    pub use_of: ViewUse,
    /// Opener threads at most.
    pub threads: usize,
    /// Entries are kept on a disk, too.
    pub disk_cache: bool,
}

/// All bounds.
#[derive(Debug, Clone)]
pub struct ViewLimits {
    base_bytes: u64,
    /// Of the store, buffers that are used again.
    pub(super) kept_bytes: u64,
    scratch_bytes: u64,
    maps: u64,
    /// Opener threads.
    pub(super) threads: usize,
    /// Of each map, pages kept by its reader and in flight to it.
    map_read_bytes: u64,
    /// Of each map, leaves.
    pub(super) leaf_bytes: u64,
    /// Of one stored entry.
    pub(super) stored_max: u64,
    /// Stored entries in flight. What they open to is the openers' until it is kept.
    pub(super) flight_bytes: u32,
    /// Of these, the ones that nobody waits for yet.
    pub(super) ahead_bytes: u32,
    pub(super) read_bytes_max: u32,
    pub(super) read_entries_max: usize,
    pub(super) cache_bytes: u64,
    /// Most bytes that are read ahead of clients.
    pub(super) window_bytes: u64,
    reply_bytes: u64,
    payload_bytes: u64,
    merge_bytes: u64,
    landing_bytes: u64,
    disk_bytes: u64,
}

impl ViewLimits {
    /// Divides the budget among backups of a repository.
    pub fn plan(budget: MemoryBudget, params: &RepositoryParams, needs: ViewNeeds) -> Result<Self> {
        let ViewNeeds { maps, use_of, threads, disk_cache } = needs;
        let entry_bytes = u64::from(params.chunk.bytes()) * u64::from(params.entry_chunks);
        let stored_max = entry_bytes + u64::from(ENTRY_HEADER_BYTES + TAG_BYTES);
        // and the buffer of one that is kept no longer
        let per_thread = 3 * entry_bytes + CODEC_BYTES;
        let for_disk = INDEX_BYTES_MAX + (waiting(stored_max) + 1) * stored_max;
        let disk_bytes = if disk_cache { for_disk } else { 0 };
        let maps = maps.max(1) as u64;
        // a part of the flights may be ahead of a reader, and one of them has to fit
        let flights_min = 2 * stored_max;
        let cache_min = 2 * entry_bytes;
        // two of the longest chunks at least
        let at_least = |bytes: u64| bytes.max(2 * u64::from(params.chunk.bytes()));
        let (payload_bytes, merge_bytes, landing_bytes) = match use_of {
            ViewUse::Reading => (0, 0, 0),
            ViewUse::Overlaid => (PAYLOAD_BYTES, at_least(MERGE_BYTES), 0),
            ViewUse::Live => (PAYLOAD_BYTES, at_least(MERGE_BYTES), at_least(LANDING_BYTES)),
        };
        let fixed = BASE_BYTES
            + per_thread
            + maps * MAP_BYTES_MIN
            + flights_min
            + cache_min
            + REPLY_BYTES_MIN
            + payload_bytes
            + merge_bytes
            + landing_bytes
            + disk_bytes;
        let least = (fixed * ALLOCATOR_SHARE).div_ceil(ALLOCATOR_SHARE - 1);
        let total = budget.total_bytes;
        if total < least {
            let context = "divide the memory budget";
            return Err(budget.too_little(context, "the backups that are served", least));
        }
        let allocator_bytes = total / ALLOCATOR_SHARE;
        let mut spare = total - allocator_bytes - fixed;
        let more_threads = (spare / 4 / per_thread).min(threads.max(1) as u64 - 1);
        spare -= more_threads * per_thread;
        let share = |hundredths| spare * hundredths / 100;
        let map_bytes = (MAP_BYTES_MIN + share(MAPS_SHARE) / maps).min(MAP_BYTES_MAX);
        let flight_bytes =
            (flights_min + share(FLIGHTS_SHARE)).min(FLIGHT_BYTES_MAX.max(flights_min));
        let reply_bytes = REPLY_BYTES_MIN + share(REPLIES_SHARE);
        let spent = (map_bytes - MAP_BYTES_MIN) * maps
            + (flight_bytes - flights_min)
            + share(REPLIES_SHARE);
        let cache_bytes = cache_min + spare - spent;
        // four of the longest fit ahead of readers, if none is a single entry
        let read_bytes_max =
            (flight_bytes / 8).clamp(stored_max, u64::from(READ_BYTES_MAX).max(stored_max));
        // what one opens to does not empty the cache
        let read_entries_max = (cache_bytes / 8 / entry_bytes).max(1);
        let (leaf_bytes, map_read_bytes) = (map_bytes / 3, map_bytes / 3 * 2);
        Ok(Self {
            base_bytes: BASE_BYTES + allocator_bytes - allocator_bytes / KEPT_SHARE,
            kept_bytes: allocator_bytes / KEPT_SHARE,
            scratch_bytes: (more_threads + 1) * per_thread,
            maps,
            threads: usize::try_from(more_threads + 1).unwrap_or(usize::MAX),
            map_read_bytes,
            leaf_bytes,
            stored_max,
            flight_bytes: u32::try_from(flight_bytes).unwrap_or(u32::MAX),
            ahead_bytes: u32::try_from(flight_bytes / 4 * AHEAD_QUARTERS).unwrap_or(u32::MAX),
            read_bytes_max: u32::try_from(read_bytes_max).unwrap_or(u32::MAX),
            read_entries_max: usize::try_from(read_entries_max).unwrap_or(usize::MAX),
            cache_bytes,
            window_bytes: (cache_bytes / 4 * AHEAD_QUARTERS).min(WINDOW_BYTES_MAX),
            reply_bytes,
            payload_bytes,
            merge_bytes,
            landing_bytes,
            disk_bytes,
        })
    }

    /// For whoever hands the bytes on: its own buffers.
    pub fn reply_bytes(&self) -> u64 {
        self.reply_bytes
    }

    /// For whoever takes bytes to write: the same.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// For chunks that are read because a part of them is written.
    pub fn merge_bytes(&self) -> u64 {
        self.merge_bytes
    }

    /// What may be read ahead: more would be dropped again before it is read.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// For what is fetched unasked.
    pub fn landing_bytes(&self) -> u64 {
        self.landing_bytes
    }

    /// How a map is read.
    pub(super) fn map_reads(&self) -> ReadLimits {
        let in_flight = u32::try_from(self.map_read_bytes / 4).unwrap_or(u32::MAX);
        let in_flight_bytes_max = in_flight.min(16 << 20);
        let kept = self.map_read_bytes - u64::from(in_flight_bytes_max);
        ReadLimits {
            read_bytes_max: in_flight_bytes_max / 4,
            in_flight_bytes_max,
            cache_bytes_max: usize::try_from(kept).unwrap_or(usize::MAX),
            ..ReadLimits::default()
        }
    }

    /// For the summary: what each bound is for. Their sum is within the budget.
    pub fn lines(&self) -> Vec<LimitLine> {
        let line = |what: &str, bytes| LimitLine { what: what.into(), bytes };
        let mut lines = vec![
            line("process and allocator", self.base_bytes),
            line("buffers kept between reads", self.kept_bytes),
            line(
                "map pages in flight and kept",
                self.maps * (self.map_read_bytes + self.leaf_bytes),
            ),
            line("entries in flight", self.flight_bytes.into()),
            line("opened entries", self.scratch_bytes),
            line("entries kept", self.cache_bytes),
            line("answers under way", self.reply_bytes),
        ];
        if self.payload_bytes > 0 {
            lines.push(line("writes under way", self.payload_bytes + self.merge_bytes));
        }
        if self.landing_bytes > 0 {
            lines.push(line("on the way to the target", self.landing_bytes));
        }
        if self.disk_bytes > 0 {
            lines.push(line("index of the disk cache, and its writes", self.disk_bytes));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::{ChunkSize, Encryption, ErrorKind};

    fn params(chunk_bytes: u32, entry_chunks: u16) -> RepositoryParams {
        RepositoryParams {
            repository_id: chunkstore::RepositoryId::random(),
            chunk: ChunkSize::new(chunk_bytes).unwrap(),
            entry_chunks,
            page_fanout: 128,
            encryption: Encryption::Aes256Gcm,
            created: chrono::Utc::now(),
            created_by: "test".into(),
            clear_master_key: None,
        }
    }

    #[test]
    fn the_bounds_add_up_to_the_budget_and_each_flight_fits() {
        for (chunk, entry_chunks) in [(4096, 1), (4096, 8), (65536, 16), (65536, 256), (4 << 20, 4)]
        {
            let params = params(chunk, entry_chunks);
            for (mib, maps, use_of) in [
                (200_u64, 1, ViewUse::Reading),
                (256, 4, ViewUse::Reading),
                (256, 2, ViewUse::Overlaid),
                (1024, 16, ViewUse::Overlaid),
                (256, 1, ViewUse::Live),
                (16384, 1, ViewUse::Live),
            ] {
                let budget = MemoryBudget { total_bytes: mib << 20 };
                let disk_cache = mib > 256 || (mib > 200 && use_of == ViewUse::Reading);
                let needs = ViewNeeds { maps, use_of, threads: 8, disk_cache };
                let limits = ViewLimits::plan(budget, &params, needs).unwrap();
                let sum: u64 = limits.lines().iter().map(|l| l.bytes).sum();
                assert!(sum <= budget.total_bytes, "{limits:?} within {mib} MiB");
                let entry = u64::from(chunk) * u64::from(entry_chunks);
                let longest = u64::from(limits.read_bytes_max).max(entry + 24);
                assert!(longest <= u64::from(limits.flight_bytes / 2), "{limits:?}");
                assert!(limits.flight_bytes / 2 <= limits.ahead_bytes, "{limits:?}");
                assert!(limits.window_bytes < limits.cache_bytes, "{limits:?}");
                assert!(limits.cache_bytes >= 2 * entry && limits.reply_bytes() >= 4 << 20);
            }
        }
    }

    #[test]
    fn too_small_a_budget_is_refused() {
        let budget = MemoryBudget { total_bytes: 16 << 20 };
        let needs = ViewNeeds { maps: 1, use_of: ViewUse::Reading, threads: 8, disk_cache: false };
        let error = ViewLimits::plan(budget, &params(4 << 20, 4), needs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
