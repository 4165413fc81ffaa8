//! Seals new map pages into packs of their own kind.

use crate::error::Result;
use crate::ids::{PageId, RepositoryId};
use crate::keys::Keys;
use crate::pack::{FinishedPack, PackAllocator, PackBuilder, PackKind};
use crate::seal::{Compression, Sealer};
use crate::units::Location;
use std::sync::Arc;

/// Where a builder puts pages: packs come out as they fill up.
#[derive(Debug)]
pub struct PageSink {
    allocator: PackAllocator,
    sealer: Sealer,
    collector: PackBuilder,
    pages: u64,
    stored_bytes: u64,
}

impl PageSink {
    /// Packs of about `pack_bytes`.
    pub fn new(
        keys: &Arc<Keys>,
        repository: RepositoryId,
        compression: Compression,
        pack_bytes: u32,
    ) -> Result<Self> {
        Ok(Self {
            allocator: PackAllocator::new(Arc::clone(keys), PackKind::Pages, pack_bytes),
            sealer: Sealer::new(compression)?,
            collector: PackBuilder::new(Arc::clone(keys), repository, PackKind::Pages),
            pages: 0,
            stored_bytes: 0,
        })
    }

    /// Seals a page; the location holds once its pack is stored.
    pub(crate) fn store(&mut self, id: PageId, plain: &[u8]) -> Result<Location> {
        let entry = self.sealer.seal_page(&self.allocator, plain, id)?;
        let location = entry.location(0);
        self.pages += 1;
        self.stored_bytes += entry.bytes.len() as u64;
        self.collector.add(entry)?;
        Ok(location)
    }

    /// A pack that is complete, to be stored.
    pub fn take_finished(&mut self) -> Option<FinishedPack> {
        self.collector.take_finished()
    }

    /// No more pages: the last pack becomes finished.
    pub fn close(&mut self) -> Result<()> {
        if let Some(closed) = self.allocator.close() {
            self.collector.close(closed)?;
        }
        Ok(())
    }

    /// Pages sealed so far.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Their sealed size.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Bytes held in packs that are not finished or not taken.
    pub fn held_bytes(&self) -> usize {
        self.collector.held_bytes()
    }
}
