//! Offsets that a server of no memory can go on from: where a page ended, under a seal.
//!
//! A client hands `nextOffset` back as it came. All that the next page has to agree with stands in
//! it, so any server with the same key goes on from it, also one that has just started. A seal over
//! it says that such a server wrote it; a client can neither make one nor change one. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const VERSION: u8 = 1;
const PAIR_BYTES: usize = 16;
const BODY_BYTES: usize = 3 + 3 * 8 + PAIR_BYTES;
const SEAL_BYTES: usize = blake3::OUT_LEN;
/// More digits than a number of bytes has.
const DIGITS_MAX: usize = 20;

/// What a list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    /// What differs from the base.
    Delta,
    /// What is in use.
    Allocated,
    /// All of the volume: what is in use, and the rest as zero. For a base that is gone.
    AllChanged,
}

/// The snapshots of a list, as a digest of all that names them.
pub(super) type Pair = [u8; PAIR_BYTES];

/// Where a page ended, and what the next one has to agree with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) listing: Listing,
    /// By its number in the protocol.
    pub(super) block_type: u8,
    /// The next page starts here.
    pub(super) at: u64,
    pub(super) capacity: u64,
    /// Seconds since 1970 until which it is gone on from here.
    pub(super) expiry: u64,
    pub(super) pair: Pair,
}

/// Where a client wants to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// At a byte of its own choice.
    Byte(u64),
    /// Where a page ended.
    Place(Place),
}

/// The key of the seals.
#[derive(Clone)]
pub(super) struct Sealer([u8; 32]);

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// A place as text.
    pub(super) fn seal(&self, place: &Place) -> String {
        let listing = match place.listing {
            Listing::Delta => 0,
            Listing::Allocated => 1,
            Listing::AllChanged => 2,
        };
        let mut bytes = vec![VERSION, listing, place.block_type];
        for number in [place.at, place.capacity, place.expiry] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&place.pair);
        let seal = blake3::keyed_hash(&self.0, &bytes);
        bytes.extend_from_slice(seal.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// A text that a client gave: a number of bytes, or a place of this key.
    pub(super) fn open(&self, text: &str) -> Option<Start> {
        let is_number = !text.is_empty() && text.len() <= DIGITS_MAX;
        if is_number && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().ok().map(Start::Byte);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        if bytes.len() != BODY_BYTES + SEAL_BYTES {
            return None;
        }
        let (body, seal) = bytes.split_at(BODY_BYTES);
        // compared in constant time
        if blake3::keyed_hash(&self.0, body) != blake3::Hash::from_slice(seal).ok()? {
            return None;
        }
        let number = |at: usize| {
            let bytes = body.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let listing = match (body[0], body[1]) {
            (VERSION, 0) => Listing::Delta,
            (VERSION, 1) => Listing::Allocated,
            (VERSION, 2) => Listing::AllChanged,
            _ => return None,
        };
        Some(Start::Place(Place {
            listing,
            block_type: body[2],
            at: number(3)?,
            capacity: number(11)?,
            expiry: number(19)?,
            pair: body[27..].try_into().ok()?,
        }))
    }
}

/// A digest of names; the border between two of them is part of it.
pub(super) fn pair(names: &[&str]) -> Pair {
    let mut hash = blake3::Hasher::new();
    for name in names {
        hash.update(&name.len().to_le_bytes());
        hash.update(name.as_bytes());
    }
    let mut pair = [0; PAIR_BYTES];
    hash.finalize_xof().fill(&mut pair);
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place {
        listing: Listing::AllChanged,
        block_type: 2,
        at: 1 << 40,
        capacity: u64::MAX,
        expiry: 1_800_000_000,
        pair: [7; PAIR_BYTES],
    };

    #[test]
    fn a_place_is_found_again_by_its_own_key_alone() {
        let text = Sealer::new([1; 32]).seal(&PLACE);
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{text}");
        assert_eq!(Sealer::new([1; 32]).open(&text), Some(Start::Place(PLACE)));
        assert_eq!(Sealer::new([2; 32]).open(&text), None);
        for listing in [Listing::Delta, Listing::Allocated] {
            let place = Place { listing, ..PLACE };
            let sealer = Sealer::new([1; 32]);
            assert_eq!(sealer.open(&sealer.seal(&place)), Some(Start::Place(place)));
        }
    }

    #[test]
    fn no_byte_of_it_can_be_changed() {
        let sealer = Sealer::new([1; 32]);
        let bytes = URL_SAFE_NO_PAD.decode(sealer.seal(&PLACE)).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(sealer.open(&URL_SAFE_NO_PAD.encode(&changed)), None, "byte {at}");
            assert_eq!(sealer.open(&URL_SAFE_NO_PAD.encode(&bytes[..at])), None, "cut at {at}");
        }
    }

    #[test]
    fn a_number_is_one_of_bytes() {
        let sealer = Sealer::new([1; 32]);
        assert_eq!(sealer.open("0"), Some(Start::Byte(0)));
        assert_eq!(sealer.open("18446744073709551615"), Some(Start::Byte(u64::MAX)));
        for bad in ["", "-1", "18446744073709551616", "1.0", "x", "AAAA", "%"] {
            assert_eq!(sealer.open(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_do_not_run_together() {
        assert_ne!(pair(&["ab", "c"]), pair(&["a", "bc"]));
        assert_ne!(pair(&["a"]), pair(&["a", ""]));
    }
}
