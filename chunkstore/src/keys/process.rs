//! A key that no disk ever holds.

use super::{Encryption, SealKey, Secret, Tag};
use crate::error::Result;
use crate::ids::random_bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seals bytes that a process keeps outside its memory for itself alone. The key is drawn at random
/// and never leaves this value: what was sealed is dead when the process is.
#[derive(Debug)]
pub struct ProcessKey {
    key: SealKey,
    next: AtomicU64,
}

/// What opens bytes that a [`ProcessKey`] has sealed, these and no others: to be kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessSeal {
    nonce: u64,
    tag: Tag,
}

impl ProcessKey {
    /// Another one each time.
    pub fn random() -> Self {
        let secret = Secret::new(random_bytes());
        Self { key: SealKey::new(Encryption::Aes256Gcm, &secret), next: AtomicU64::new(0) }
    }

    /// Seals bytes where they are.
    pub fn seal(&self, data: &mut [u8]) -> Result<ProcessSeal> {
        // never again: 2^64 of them are more than any process seals
        let nonce = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(ProcessSeal { nonce, tag: self.key.seal(nonce, &[], data)? })
    }

    /// Opens bytes where they are. `false`: they are not what was sealed; their content is
    /// unspecified then.
    #[must_use]
    pub fn open(&self, seal: &ProcessSeal, data: &mut [u8]) -> bool {
        self.key.open(seal.nonce, &[], data, &seal.tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_sealed_opens_and_only_as_it_was() {
        let (key, other) = (ProcessKey::random(), ProcessKey::random());
        let plain: Vec<u8> = (0..200).collect();
        let (mut one, mut two) = (plain.clone(), plain.clone());
        let (seal_one, seal_two) = (key.seal(&mut one).unwrap(), key.seal(&mut two).unwrap());
        assert!(one != plain && two != plain && one != two);
        assert!(!other.open(&seal_one, &mut one.clone()));
        assert!(!key.open(&seal_two, &mut one.clone()));
        for at in 0..one.len() {
            let mut damaged = one.clone();
            damaged[at] ^= 1;
            assert!(!key.open(&seal_one, &mut damaged));
        }
        assert!(key.open(&seal_one, &mut one) && key.open(&seal_two, &mut two));
        assert_eq!((&one, &two), (&plain, &plain));
    }
}
