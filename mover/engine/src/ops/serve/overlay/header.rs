//! The first bytes of an overlay file: pure.
//!
//! ```text
//! 8   "mvrover\0"
//! 4   version, 1
//! 4   length of the identity
//! 16  token: the journal beside the file has the same one
//! ..  identity: lines of text, a word and its value each
//! 32  BLAKE3 of all before
//! ```
//!
//! All integers are little-endian. Zeros follow up to [`HEADER_BYTES`], where the volume begins.

use crate::ops::below::BelowIdentity;

/// Where the volume begins in the file.
pub(super) const HEADER_BYTES: u64 = 64 << 10;
const MAGIC: &[u8; 8] = b"mvrover\0";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 32;
const CHECK_BYTES: usize = 32;
/// Of an identity; names of volumes and backups are much shorter.
const IDENTITY_BYTES_MAX: usize = 16 << 10;

/// A header that checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OverlayHeader {
    pub(super) token: [u8; 16],
    pub(super) identity: BelowIdentity,
}

/// Why bytes are no header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeaderFault {
    /// Somebody else's bytes.
    NoOverlay,
    /// Of a newer program.
    Version(u32),
    /// Not as it was written.
    Damaged,
}

impl OverlayHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let identity = self.identity.as_bytes();
        assert!(identity.len() <= IDENTITY_BYTES_MAX, "a long identity");
        let len = u32::try_from(identity.len()).unwrap_or(u32::MAX);
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&self.token);
        out.extend_from_slice(identity);
        out.extend_from_slice(blake3::hash(&out).as_bytes());
        out
    }

    /// From the first bytes of a file, as many of [`HEADER_BYTES`] as it has.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        if bytes.get(..8) != Some(MAGIC.as_slice()) {
            return Err(HeaderFault::NoOverlay);
        }
        let fixed = bytes.first_chunk::<FIXED_BYTES>().ok_or(HeaderFault::Damaged)?;
        let number = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&fixed[at..at + 4]);
            u32::from_le_bytes(four)
        };
        if number(8) != VERSION {
            return Err(HeaderFault::Version(number(8)));
        }
        let len = usize::try_from(number(12)).unwrap_or(usize::MAX);
        if len > IDENTITY_BYTES_MAX {
            return Err(HeaderFault::Damaged);
        }
        let end = FIXED_BYTES + len;
        let check = bytes.get(end..end + CHECK_BYTES).ok_or(HeaderFault::Damaged)?;
        if blake3::hash(&bytes[..end]).as_bytes() != check {
            return Err(HeaderFault::Damaged);
        }
        let mut token = [0; 16];
        token.copy_from_slice(&fixed[16..]);
        let identity = String::from_utf8(bytes[FIXED_BYTES..end].to_vec());
        let identity = identity.map_err(|_| HeaderFault::Damaged)?;
        Ok(Self { token, identity: BelowIdentity::from_text(identity) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> OverlayHeader {
        let identity = "repository 00ff\nvolume db\nbackup b1\nsize_bytes 5\n".to_owned();
        OverlayHeader { token: [7; 16], identity: BelowIdentity::from_text(identity) }
    }

    #[test]
    fn a_header_is_read_as_it_was_written_or_not_at_all() {
        let mut bytes = header().encode();
        let len = bytes.len();
        bytes.resize(4096, 0);
        assert_eq!(OverlayHeader::decode(&bytes), Ok(header()));
        for at in 0..len {
            let mut bad = bytes.clone();
            bad[at] ^= 0x20;
            assert!(OverlayHeader::decode(&bad).is_err(), "byte {at}");
            assert!(OverlayHeader::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        assert_eq!(OverlayHeader::decode(b"#!/bin/sh\n"), Err(HeaderFault::NoOverlay));
        bytes[8] = 2;
        assert_eq!(OverlayHeader::decode(&bytes), Err(HeaderFault::Version(2)));
    }
}
