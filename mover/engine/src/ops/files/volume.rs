//! A backup's bytes for whoever reads a file system, one thread at a time.

use crate::reading::view::BackupView;
use crate::run::RunContext;
use futures::stream::{self, StreamExt};
use mover_fsmap::ReadAt;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Chunks that are fetched beside each other, and how many are in one wish: they have to be kept
/// until they are read.
const BESIDE: usize = 64;
const EXPECTED_MAX: usize = 256;

pub(super) struct ViewVolume<'a> {
    run: RunContext<'a>,
    view: Arc<BackupView>,
}

impl<'a> ViewVolume<'a> {
    pub(super) fn new(run: RunContext<'a>, view: Arc<BackupView>) -> Self {
        Self { run, view }
    }
}

impl ReadAt for ViewVolume<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        let read = self.run.wait(Box::pin(self.view.read(offset, buffer)));
        read.map(drop).map_err(io::Error::other)
    }

    fn expect(&self, ranges: &[Range<u64>]) {
        let chunk = u64::from(self.view.chunk_bytes());
        let size = self.view.size_bytes();
        let chunks: BTreeSet<u64> = ranges
            .iter()
            .flat_map(|range| range.start / chunk..range.end.min(size).div_ceil(chunk))
            .take(EXPECTED_MAX)
            .collect();
        if chunks.len() < 2 {
            return;
        }
        let fetch = stream::iter(chunks).for_each_concurrent(BESIDE, |number| async move {
            // who reads it will hear of what is wrong
            let _ = self.view.read(number * chunk, &mut [0]).await;
        });
        let _ = self.run.wait(Box::pin(async {
            fetch.await;
            Ok(())
        }));
    }
}
