//! The one budget of a copy, divided between its two halves: what reads the source, and what stores
//! in the target. Pure.

use crate::ingest::{Bounds, CompressionChoice};
use crate::reading::limits::{Limits, OutputKind};
use crate::run::MemoryBudget;
use chunkstore::{Result, format::RepositoryParams};

const MIB: u64 = 1 << 20;
/// In fifths of the budget: entries in flight and opened ahead take less than packs being filled
/// and uploaded.
const READING: u64 = 2;
/// Budgets beyond it are not tried for the hint.
const LEAST_MIB_MAX: u64 = 64 << 10;

/// Bounds of both halves.
pub(super) fn divide(
    memory: MemoryBudget,
    from: &RepositoryParams,
    to: &RepositoryParams,
    threads: usize,
    compression: CompressionChoice,
) -> Result<(Limits, Bounds)> {
    try_divide(memory, from, to, threads, compression).map_err(|e| {
        match least_mib(from, to, compression) {
            Some(mib) => memory.too_little("divide the memory budget", "a copy", mib * MIB),
            None => e,
        }
    })
}

/// The least budget with which backups can be copied between such repositories.
fn least_mib(
    from: &RepositoryParams,
    to: &RepositoryParams,
    compression: CompressionChoice,
) -> Option<u64> {
    let fits = |mib: &u64| {
        let memory = MemoryBudget { total_bytes: mib * MIB };
        try_divide(memory, from, to, 1, compression).is_ok()
    };
    (1..=LEAST_MIB_MAX / 16).map(|n| 16 * n).find(fits)
}

fn try_divide(
    memory: MemoryBudget,
    from: &RepositoryParams,
    to: &RepositoryParams,
    threads: usize,
    compression: CompressionChoice,
) -> Result<(Limits, Bounds)> {
    let reading = MemoryBudget { total_bytes: memory.total_bytes / 5 * READING };
    let storing = MemoryBudget { total_bytes: memory.total_bytes - reading.total_bytes };
    let limits = Limits::plan(reading, from, OutputKind::Ordered, threads)?;
    let (chunk, entry, fanout) = (to.chunk, to.entry_chunks, to.page_fanout);
    let bounds = Bounds::derive(storing, chunk, entry, fanout, threads, compression)?;
    Ok((limits, bounds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::{ChunkSize, Encryption, ErrorKind, RepositoryId};

    fn params(chunk_bytes: u32, entry_chunks: u16) -> RepositoryParams {
        RepositoryParams {
            repository_id: RepositoryId::random(),
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
    fn both_halves_are_within_the_budget_and_too_little_names_enough() {
        let all = [params(4096, 16), params(65536, 16), params(65536, 256), params(4 << 20, 4)];
        for (from, to) in all.iter().flat_map(|f| all.iter().map(move |t| (f, t))) {
            let auto = CompressionChoice::Auto;
            let least = least_mib(from, to, auto).unwrap() * MIB;
            assert!(least <= 512 * MIB, "{} MiB", least / MIB);
            for total_bytes in [least, 4 * least] {
                let memory = MemoryBudget { total_bytes };
                let (limits, bounds) = divide(memory, from, to, 1, auto).unwrap();
                let reading: u64 = limits.lines().iter().map(|l| l.bytes).sum();
                assert!(reading + bounds.memory_bytes <= total_bytes);
            }
            let memory = MemoryBudget { total_bytes: 32 * MIB };
            let error = divide(memory, from, to, 1, auto).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            let named = format!("`memory` {}MiB", least / MIB);
            assert!(error.hint_text().unwrap().contains(&named), "{error}");
        }
    }
}
