//! The hash at the end of a pack, which anyone can check without a key: XXH3-128. `docs/format.md`,
//! section 7.
//!
//! It finds accidents. Who can change a pack can change any hash without a key in it too, so a
//! cryptographic one would show no more; against that stand the tags of the entries and the ids of
//! what is in them.

use std::fmt;
use twox_hash::XxHash3_128;

/// Bytes of the hash.
pub const PACK_HASH_BYTES: usize = 16;
/// The last bytes of a pack, which the hash does not cover: itself, and as many zeros.
pub const PACK_END_BYTES: usize = 2 * PACK_HASH_BYTES;

/// Hashes a pack up to its last [`PACK_END_BYTES`] bytes, piece by piece.
#[derive(Clone, Default)]
pub struct PackHasher(XxHash3_128);

impl fmt::Debug for PackHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackHasher").finish_non_exhaustive()
    }
}

impl PackHasher {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self(XxHash3_128::new())
    }

    /// Adds what comes next.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of all that came, little-endian.
    pub fn finish(&self) -> [u8; PACK_HASH_BYTES] {
        self.0.finish_128().to_le_bytes()
    }

    /// The last bytes of a pack whose other bytes were given.
    pub fn pack_end(&self) -> [u8; PACK_END_BYTES] {
        let mut end = [0; PACK_END_BYTES];
        end[..PACK_HASH_BYTES].copy_from_slice(&self.finish());
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&[u8]]) -> [u8; PACK_HASH_BYTES] {
        let mut hasher = PackHasher::new();
        pieces.iter().for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    /// What the reference implementation's `xxhsum -H128` prints, read as one number.
    #[test]
    fn it_is_the_published_hash() {
        let number = |text: &[u8]| u128::from_le_bytes(of(&[text]));
        assert_eq!(number(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        assert_eq!(number(b"abc"), 0x06b0_5ab6_733a_6185_78af_5f94_892f_3950);
    }

    #[test]
    fn pieces_make_no_difference() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n * 7).to_le_bytes()[1]).collect();
        let whole = of(&[&bytes]);
        for at in [1, 15, 240, 255, 1024, 65_536, 99_999] {
            let (a, b) = bytes.split_at(at);
            assert_eq!(of(&[a, b]), whole, "{at}");
        }
    }
}
