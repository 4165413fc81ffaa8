//! A source as the sources of lists see it.

use super::Source;
use chunkstore::Result;
use mover_changes::Volume;
use mover_nbd::Export;
use std::path::PathBuf;

impl Volume for Source {
    fn size_bytes(&self) -> u64 {
        Self::size_bytes(self)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        Self::read_exact_at(self, buffer, offset)
    }

    fn sector_bytes(&self) -> Option<u64> {
        self.is_block_device().then(|| self.logical_block_bytes().into())
    }

    fn mounted_read_write(&self) -> Result<Option<PathBuf>> {
        Self::mounted_read_write(self)
    }

    fn is_claimed_unseen(&self) -> Result<bool> {
        Self::is_claimed_unseen(self)
    }

    fn stays_claimed_unseen(&self) -> Result<bool> {
        Self::stays_claimed_unseen(self)
    }

    fn export(&self) -> Option<&Export> {
        Self::export(self)
    }
}
