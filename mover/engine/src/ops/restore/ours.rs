//! Whether an existing file holds nothing that a restore would destroy: nothing but zeros and
//! chunks of the very backup, each at its place. That is what an earlier restore of it has left,
//! whether it came to its end or not, and no mark of ours that could outlive it is needed.
//!
//! A restore that was killed in the middle of a chunk, or that began or ended within one
//! (`--range`), leaves a chunk that is neither: such a file asks for `--force`.

use crate::run::RunContext;
use crate::volume::device::Source;
use crate::volume::io::Arena;
use chunkstore::{ChunkNo, Keys, MapReader, Result, is_zero};
use std::ops::Range;

/// Chunks whose ids are asked for at once.
const WINDOW_CHUNKS: u64 = 4096;

/// The offset of the first chunk that is somebody else's; `None` if there is none. It stops there,
/// so that a file that is not ours is refused at once. Each chunk is movement: a large file takes
/// long.
pub(super) fn first_of_others(
    run: RunContext<'_>,
    there: &Source,
    mut reader: MapReader,
    keys: &Keys,
) -> Result<Option<u64>> {
    let geometry = *reader.map().geometry();
    let arena = Arena::new(1, geometry.chunk().bytes() as usize)?;
    let mut slot = arena.take_wait();
    let whole = || std::iter::once(0..geometry.size_bytes()).collect();
    let data: Vec<Range<u64>> = there.data_ranges()?.unwrap_or_else(whole);
    for chunks in data.into_iter().map(|range| geometry.chunks_of(range)) {
        let mut start = chunks.start;
        while start < chunks.end {
            let end = chunks.end.min(start + WINDOW_CHUNKS);
            let mut pages = None;
            for chunk in (start..end).map(ChunkNo) {
                run.cancel.check()?;
                let bytes = &mut slot[..geometry.len(chunk) as usize];
                there.read_exact_at(bytes, geometry.offset(chunk))?;
                run.progress.moved();
                if is_zero(bytes) {
                    continue;
                }
                let pages = match &pages {
                    Some(pages) => pages,
                    None => {
                        pages.insert(run.wait(reader.load(std::slice::from_ref(&(start..end))))?)
                    }
                };
                let is_ours =
                    pages.chunk(chunk)?.is_some_and(|there| there.id == keys.chunk_id(bytes));
                if !is_ours {
                    return Ok(Some(geometry.offset(chunk)));
                }
            }
            start = end;
        }
    }
    Ok(None)
}
