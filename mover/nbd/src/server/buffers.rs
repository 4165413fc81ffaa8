//! Buffers of answers that were sent, for those that come next: neither made nor wiped again.
//!
//! Who takes one has a piece of the memory (`memory.rs`) for as long. A new one is only made where
//! none is left, or in the place of one that is dropped. Who has a part of a piece gets a small one,
//! which is not kept; where those and the ones that are kept come to more than all pieces, kept ones
//! are dropped. So there is never more than the pieces are for.
//!
//! What an earlier answer left in a buffer belongs to its export: another export's answers, which
//! other clients may read, never get it.

use super::memory::{PARTS, PIECE_BYTES, SMALL_BYTES};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The buffers of one kind.
#[derive(Debug)]
pub(super) struct Buffers {
    state: Mutex<State>,
    /// All pieces, in parts.
    parts_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Those that nobody uses, with their exports.
    spare: Vec<(usize, Box<[u8]>)>,
    /// What is in use, in parts.
    used_parts: usize,
}

impl State {
    fn make_room(&mut self, parts_max: usize) {
        while !self.spare.is_empty()
            && self.used_parts + self.spare.len() * PARTS as usize > parts_max
        {
            self.spare.pop();
        }
    }
}

/// Room for an answer. Its content is of no meaning until it was filled.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    of: &'a Buffers,
    /// Whose it is, if it is one of those that are kept.
    export: Option<usize>,
    bytes: Box<[u8]>,
    len: usize,
}

impl Buffers {
    pub(super) fn new(pieces: usize) -> Self {
        let parts_max = pieces.saturating_mul(PARTS as usize);
        Self { state: Mutex::default(), parts_max }
    }

    /// For an export's answer of at most [`PIECE_BYTES`].
    pub(super) fn take(&self, export: usize, len: usize) -> Buffer<'_> {
        assert!(len <= PIECE_BYTES as usize, "an answer is made of pieces");
        let mut state = self.state();
        if len <= SMALL_BYTES as usize {
            state.used_parts += 1;
            state.make_room(self.parts_max);
            drop(state);
            return Buffer { of: self, export: None, bytes: vec![0; len].into(), len };
        }
        let found = match state.spare.iter().rposition(|(of, _)| *of == export) {
            Some(at) => Some(state.spare.swap_remove(at).1),
            None => {
                drop(state.spare.pop());
                None
            }
        };
        state.used_parts += PARTS as usize;
        state.make_room(self.parts_max);
        drop(state);
        let bytes = found.unwrap_or_else(|| vec![0; PIECE_BYTES as usize].into());
        Buffer { of: self, export: Some(export), bytes, len }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        match self.export {
            Some(export) => {
                state.used_parts -= PARTS as usize;
                state.spare.push((export, std::mem::take(&mut self.bytes)));
                state.make_room(self.of.parts_max);
            }
            None => state.used_parts -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_export_gets_the_bytes_of_another_and_there_are_no_more_than_at_a_time() {
        let buffers = Buffers::new(3);
        for round in 0..3_u8 {
            for export in [0, 1, 0, 0, 2] {
                // a small one is of nobody: it takes the place of one that is kept
                let mut small = buffers.take(export, 1000);
                assert!(small.iter().all(|byte| *byte == 0), "{round}");
                small.fill(9);
                drop(small);
                let mut taken: Vec<_> = (0..3).map(|_| buffers.take(export, 100_000)).collect();
                let own = u8::try_from(export).unwrap() + 1;
                for buffer in &mut taken {
                    assert_eq!(buffer.len(), 100_000);
                    assert!(buffer.iter().all(|byte| *byte == 0 || *byte == own), "{round}");
                    buffer.fill(own);
                }
                drop(taken);
                assert_eq!(buffers.state().spare.len(), 3);
            }
        }
    }

    #[test]
    fn kept_ones_and_small_ones_together_are_never_more_than_all_pieces() {
        let buffers = Buffers::new(4);
        let pieces = (0..4).map(|_| buffers.take(0, PIECE_BYTES as usize)).collect::<Vec<_>>();
        drop(pieces);
        let held = |kept: usize, small: &[Buffer<'_>]| {
            assert_eq!(buffers.state().spare.len(), kept);
            let small: usize = small.iter().map(|one| one.bytes.len()).sum();
            assert!(kept * PIECE_BYTES as usize + small <= 4 * PIECE_BYTES as usize);
        };
        let mut small = Vec::new();
        for (more, kept) in [(0, 4), (1, 3), (15, 3), (1, 2), (32, 0), (15, 0)] {
            small.extend((0..more).map(|_| buffers.take(0, SMALL_BYTES as usize)));
            held(kept, &small);
        }
        small.truncate(16);
        drop((buffers.take(0, PIECE_BYTES as usize), buffers.take(0, PIECE_BYTES as usize)));
        held(2, &small);
        assert_eq!(buffers.take(0, 5).bytes.len(), 5);
    }
}
