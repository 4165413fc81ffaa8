//! The checksums that superblocks and tree blocks begin with.

use super::unusable;
use crate::{Refusal, crc32c};
use blake2::Digest;

/// Room for one, in front of what it is of.
pub(super) const ROOM: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksum {
    Crc32c,
    XxHash64,
    Sha256,
    Blake2b,
}

impl Checksum {
    pub(super) fn of_number(number: u16) -> Result<Self, Refusal> {
        match number {
            0 => Ok(Self::Crc32c),
            1 => Ok(Self::XxHash64),
            2 => Ok(Self::Sha256),
            3 => Ok(Self::Blake2b),
            _ => Err(unusable(format!("its checksums are of an unknown kind, {number}"))),
        }
    }

    /// Whether a block is what its checksum was made of.
    pub(super) fn fits(self, block: &[u8]) -> bool {
        let Some((kept, body)) = block.split_first_chunk::<ROOM>() else { return false };
        match self {
            Self::Crc32c => kept.starts_with(&(!crc32c(!0, body)).to_le_bytes()),
            Self::XxHash64 => {
                kept.starts_with(&twox_hash::XxHash64::oneshot(0, body).to_le_bytes())
            }
            Self::Sha256 => {
                aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, body).as_ref() == kept
            }
            Self::Blake2b => blake2::Blake2b256::digest(body).as_slice() == kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published results for "abc"; of xxHash64, that of its own test program for no bytes.
    #[test]
    fn each_kind_is_the_one_that_it_is_called() {
        let cases: [(u16, &[u8], &str); 4] = [
            (0, b"123456789", "839206e3"),
            (1, b"", "99e9d85137db46ef"),
            (2, b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (3, b"abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"),
        ];
        for (number, body, expected) in cases {
            let kind = Checksum::of_number(number).expect("a kind");
            let mut block = hex::decode(expected).expect("digits");
            block.resize(ROOM, 0);
            block.extend_from_slice(body);
            assert!(kind.fits(&block), "{kind:?}");
            block[1] ^= 1;
            assert!(!kind.fits(&block), "{kind:?}");
        }
        assert!(Checksum::of_number(4).is_err());
    }
}
