//! Buffers of answers that were sent, for those that come next: neither made nor wiped again.
//!
//! Who takes one has a piece of the memory (`memory.rs`) for as long. A new one is only made where
//! none is left, or in the place of one that is dropped; so there are never more than pieces.
//!
//! What an earlier answer left in a buffer belongs to its export: another export's answers, which
//! other clients may read, never get it.

use super::memory::PIECE_BYTES;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers that nobody uses, with their exports.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<(usize, Box<[u8]>)>>);

/// Room for an answer. Its content is of no meaning until it was filled.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    of: &'a Buffers,
    export: usize,
    bytes: Box<[u8]>,
    len: usize,
}

impl Buffers {
    /// For an export's answer of at most [`PIECE_BYTES`].
    pub(super) fn take(&self, export: usize, len: usize) -> Buffer<'_> {
        assert!(len <= PIECE_BYTES as usize, "an answer is made of pieces");
        let found = {
            let mut spare = self.spare();
            match spare.iter().rposition(|(of, _)| *of == export) {
                Some(at) => Some(spare.swap_remove(at).1),
                None => {
                    drop(spare.pop());
                    None
                }
            }
        };
        let bytes = found.unwrap_or_else(|| vec![0; PIECE_BYTES as usize].into());
        Buffer { of: self, export, bytes, len }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<(usize, Box<[u8]>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.of.spare().push((self.export, std::mem::take(&mut self.bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_export_gets_the_bytes_of_another_and_there_are_no_more_than_at_a_time() {
        let buffers = Buffers::default();
        for round in 0..3_u8 {
            for export in [0, 1, 0, 0, 2] {
                let mut taken: Vec<_> = (0..3).map(|_| buffers.take(export, 1000)).collect();
                let own = u8::try_from(export).unwrap() + 1;
                for buffer in &mut taken {
                    assert_eq!(buffer.len(), 1000);
                    assert!(buffer.iter().all(|byte| *byte == 0 || *byte == own), "{round}");
                    buffer.fill(own);
                }
                drop(taken);
                assert_eq!(buffers.spare().len(), 3);
            }
        }
    }
}
