//! What is kept at a time, derived from the one memory budget. Pure.

use crate::reading::limits::LimitLine;
use crate::reading::view::{ViewLimits, ViewNeeds, ViewUse};
use crate::run::MemoryBudget;
use chunkstore::{Result, format::RepositoryParams};
use mover_fuse::SessionLimits;

/// Of each backup that is open: metadata of its file system that is kept, names of directories, and
/// the stretches of its open files.
const FILES_BYTES: u64 = 24 << 20;
/// Names of directories, of one backup; one directory may have more alone.
pub(super) const NAMES_BYTES: usize = 4 << 20;
/// Stretches of open files, of one backup.
pub(super) const PIECES_MAX: u64 = 64 << 10;
/// Backups that are open at a time, if the memory allows it.
const OPEN_CHOICES: [usize; 5] = [16, 8, 4, 2, 1];
/// Requests that are worked on at a time: each has some KiB.
const REQUESTS: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct MountLimits {
    pub(super) views: ViewLimits,
    /// Backups that are open at a time.
    pub(super) open_max: usize,
}

impl MountLimits {
    /// Divides the budget. `one`: there will be one backup; `disk_cache`: what was fetched is kept on
    /// a disk, too.
    pub(super) fn plan(
        budget: MemoryBudget,
        params: &RepositoryParams,
        (one, disk_cache): (bool, bool),
        threads: usize,
    ) -> Result<Self> {
        let total = budget.total_bytes;
        let fits = |open_max: &usize| *open_max as u64 * FILES_BYTES <= total / 2;
        let choices = if one { &OPEN_CHOICES[4..] } else { &OPEN_CHOICES };
        let open_max = choices.iter().copied().find(fits).unwrap_or(1);
        let left = total.saturating_sub(open_max as u64 * FILES_BYTES);
        let use_of = ViewUse::Reading;
        let needs = ViewNeeds { maps: open_max, use_of, threads, disk_cache };
        let views = ViewLimits::plan(MemoryBudget { total_bytes: left }, params, needs)?;
        Ok(Self { views, open_max })
    }

    pub(super) fn session(&self) -> SessionLimits {
        SessionLimits { requests: REQUESTS, answer_bytes: self.views.reply_bytes() }
    }

    /// For the summary: what each bound is for.
    pub(super) fn lines(&self) -> Vec<LimitLine> {
        let mut lines = self.views.lines();
        let bytes = self.open_max as u64 * FILES_BYTES;
        lines.push(LimitLine { what: "file systems".into(), bytes });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::{ChunkSize, Encryption};

    #[test]
    fn more_memory_keeps_more_backups_open() {
        let params = RepositoryParams {
            repository_id: chunkstore::RepositoryId::random(),
            chunk: ChunkSize::new(65536).unwrap(),
            entry_chunks: 16,
            page_fanout: 128,
            encryption: Encryption::Aes256Gcm,
            created: chrono::Utc::now(),
            created_by: "test".into(),
            clear_master_key: None,
        };
        for (mib, one, open) in
            [(128, true, 1), (256, true, 1), (128, false, 2), (256, false, 4), (4096, false, 16)]
        {
            let budget = MemoryBudget { total_bytes: mib << 20 };
            let limits = MountLimits::plan(budget, &params, (one, false), 8).unwrap();
            assert_eq!(limits.open_max, open, "{mib} MiB");
            let sum: u64 = limits.lines().iter().map(|line| line.bytes).sum();
            assert!(sum <= budget.total_bytes, "{limits:?} within {mib} MiB");
        }
        let too_little = MemoryBudget { total_bytes: 32 << 20 };
        assert!(MountLimits::plan(too_little, &params, (true, false), 8).is_err());
    }
}
