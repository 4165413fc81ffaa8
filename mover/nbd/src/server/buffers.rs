//! Buffers of answers that were sent, for those that come next: neither made nor wiped again.
//!
//! Who takes one has a piece of the memory (`memory.rs`) for as long. A new one is only made where
//! none is left, or in the place of one that is dropped; so there are never more than pieces. Who
//! has a part of a piece gets a small one, which is not kept.
//!
//! What an earlier answer left in a buffer belongs to its export: another export's answers, which
//! other clients may read, never get it.

use super::memory::{PIECE_BYTES, SMALL_BYTES};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers that nobody uses, with their exports.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<(usize, Box<[u8]>)>>);

/// Room for an answer. Its content is of no meaning until it was filled.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    /// Where it goes back to, and whose it is.
    of: Option<(&'a Buffers, usize)>,
    bytes: Box<[u8]>,
    len: usize,
}

impl Buffers {
    /// For an export's answer of at most [`PIECE_BYTES`].
    pub(super) fn take(&self, export: usize, len: usize) -> Buffer<'_> {
        assert!(len <= PIECE_BYTES as usize, "an answer is made of pieces");
        if len <= SMALL_BYTES as usize {
            return Buffer { of: None, bytes: vec![0; len].into(), len };
        }
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
        Buffer { of: Some((self, export)), bytes, len }
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
        if let Some((of, export)) = self.of {
            of.spare().push((export, std::mem::take(&mut self.bytes)));
        }
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
                let mut taken: Vec<_> = (0..3).map(|_| buffers.take(export, 100_000)).collect();
                let own = u8::try_from(export).unwrap() + 1;
                for buffer in &mut taken {
                    assert_eq!(buffer.len(), 100_000);
                    assert!(buffer.iter().all(|byte| *byte == 0 || *byte == own), "{round}");
                    buffer.fill(own);
                }
                drop(taken);
                assert_eq!(buffers.spare().len(), 3);
            }
        }
    }

    #[test]
    fn a_small_one_has_what_was_asked_for_and_is_not_kept() {
        let buffers = Buffers::default();
        let mut large = buffers.take(0, PIECE_BYTES as usize);
        large.fill(1);
        drop(large);
        for len in [0, 1, SMALL_BYTES as usize] {
            let small = buffers.take(0, len);
            assert_eq!((small.bytes.len(), small.iter().any(|byte| *byte != 0)), (len, false));
        }
        assert_eq!(buffers.spare().len(), 1);
    }
}
