//! Gives entries their places.
//!
//! One lock around a few numbers, never held while something else is waited for, so it cannot
//! deadlock. A place that was given must be filled: a pack with a hole can not be finished.

use super::layout::directory_stored_len;
use super::{ClosedPack, PackKind, Place};
use crate::error::Result;
use crate::format::bug;
use crate::format::location::{ENTRY_OVERHEAD_BYTES, ENTRY_STORED_BYTES_MAX};
use crate::ids::PackId;
use crate::keys::{Keys, PackKey};
use crate::limits::{
    ENTRY_CHUNKS_MAX, PACK_BYTES_MAX, PACK_CHUNKS_MAX, PACK_ENTRIES_MAX, PACK_HEADER_BYTES,
    PACK_TRAILER_BYTES,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Places of entries in packs of one kind. Shared by all threads that seal.
pub struct PackAllocator {
    keys: Arc<Keys>,
    kind: PackKind,
    target_bytes: u32,
    /// The first packs up to this number are smaller; 0 or 1: none is.
    staggered: u32,
    state: Mutex<State>,
}

struct State {
    open: Option<OpenPack>,
    /// Packs that were full.
    filled: u32,
    next_id: Box<dyn FnMut() -> PackId + Send>,
}

struct OpenPack {
    key: PackKey,
    end: u32,
    entries: u32,
    chunks: u32,
}

/// A place, the key to seal with, and whether the pack ends with it.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) place: Place,
    pub(crate) key: PackKey,
    pub(crate) closes: Option<ClosedPack>,
}

impl fmt::Debug for PackAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackAllocator")
            .field("kind", &self.kind)
            .field("target_bytes", &self.target_bytes)
            .finish_non_exhaustive()
    }
}

impl PackAllocator {
    /// A pack ends with the entry that makes it reach `target_bytes`.
    pub fn new(keys: Arc<Keys>, kind: PackKind, target_bytes: u32) -> Self {
        Self::with_ids(keys, kind, target_bytes, Box::new(PackId::random))
    }

    /// With given pack ids: for golden files only, an id is used once.
    pub(crate) fn with_ids(
        keys: Arc<Keys>,
        kind: PackKind,
        target_bytes: u32,
        next_id: Box<dyn FnMut() -> PackId + Send>,
    ) -> Self {
        let state = Mutex::new(State { open: None, filled: 0, next_id });
        Self { keys, kind, target_bytes, staggered: 0, state }
    }

    /// Makes the first packs smaller: of `packs`, the first has a share of one, the second of two,
    /// and so on. When so many are uploaded at once over one line, they end one after the other
    /// from then on and not all together, which would leave the line idle while the next ones
    /// begin; and the first is on its way sooner.
    #[must_use]
    pub fn staggered(self, packs: u32) -> Self {
        Self { staggered: packs, ..self }
    }

    /// When the next pack is full.
    fn target_bytes(&self, filled: u32) -> u32 {
        match filled.saturating_add(1) {
            number if number < self.staggered => self.target_bytes / self.staggered * number,
            _ => self.target_bytes,
        }
    }

    /// What the packs hold.
    pub fn kind(&self) -> PackKind {
        self.kind
    }

    /// The next place for an entry of `stored_len` bytes with `count` chunks (1 for a page).
    pub(crate) fn reserve(&self, stored_len: u32, count: u16) -> Result<Reservation> {
        if stored_len <= ENTRY_OVERHEAD_BYTES
            || stored_len > ENTRY_STORED_BYTES_MAX
            || !(1..=ENTRY_CHUNKS_MAX).contains(&count)
        {
            let detail = format!("{count} chunks in {stored_len} bytes are beyond its limits");
            return Err(bug("entry", detail));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { open, filled, next_id } = &mut *state;
        let pack = open.get_or_insert_with(|| OpenPack {
            key: self.keys.pack_key(&next_id()),
            end: PACK_HEADER_BYTES,
            entries: 0,
            chunks: 0,
        });
        let place = Place { pack: *pack.key.pack(), entry: pack.entries, offset: pack.end };
        // none of these can overflow: `is_full` left room for one more entry of any size
        pack.end += stored_len;
        pack.entries += 1;
        pack.chunks += u32::from(count);
        let key = pack.key.clone();
        let full = pack.is_full(self.target_bytes(*filled));
        *filled = filled.saturating_add(u32::from(full));
        let closes = if full { open.take().map(OpenPack::close) } else { None };
        Ok(Reservation { place, key, closes })
    }

    /// Ends the pack that is open, if there is one: at the end of a run, or to have everything
    /// stored at a checkpoint.
    pub fn close(&self) -> Option<ClosedPack> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.open.take().map(OpenPack::close)
    }
}

impl OpenPack {
    /// Whether it reached the target, or could not hold one more entry of any size with its
    /// directory.
    fn is_full(&self, target_bytes: u32) -> bool {
        let most_chunks = self.chunks + u32::from(ENTRY_CHUNKS_MAX);
        let most_bytes = u64::from(self.end)
            + u64::from(ENTRY_STORED_BYTES_MAX)
            + directory_stored_len(self.entries + 1, most_chunks)
            + u64::from(PACK_TRAILER_BYTES);
        self.end >= target_bytes
            || self.entries == PACK_ENTRIES_MAX
            || most_chunks > PACK_CHUNKS_MAX
            || most_bytes > u64::from(PACK_BYTES_MAX)
    }

    fn close(self) -> ClosedPack {
        ClosedPack { pack: *self.key.pack(), entries: self.entries, end: self.end }
    }
}
