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

use chunkstore::{Manifest, RepositoryId};
use std::fmt::Write;

/// Where the volume begins in the file.
pub(super) const HEADER_BYTES: u64 = 64 << 10;
const MAGIC: &[u8; 8] = b"mvrover\0";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 32;
const CHECK_BYTES: usize = 32;
/// Of an identity; names of volumes and backups are much shorter.
const IDENTITY_BYTES_MAX: usize = 16 << 10;

/// What an overlay lies over. Two of them are equal only for the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OverlayIdentity(String);

impl OverlayIdentity {
    pub(super) fn of(repository: &RepositoryId, manifest: &Manifest, chunk_bytes: u32) -> Self {
        let root = manifest.map.root.as_ref();
        let root = root.map_or_else(|| "none".to_owned(), |page| page.id.to_hex());
        let mut lines = String::new();
        let mut line = |word: &str, value: &dyn std::fmt::Display| {
            // a text takes all
            let _ = writeln!(lines, "{word} {value}");
        };
        line("repository", &repository.to_hex());
        line("volume", &manifest.volume);
        line("backup", &manifest.backup_id);
        line("attempt", &manifest.attempt);
        line("map", &root);
        line("size_bytes", &manifest.size_bytes);
        line("chunk_bytes", &chunk_bytes);
        Self(lines)
    }

    /// As somebody has it; only to be compared and shown.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn value(&self, word: &str) -> &str {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == word).map_or("?", |(_, value)| value)
    }

    /// For a person.
    pub(super) fn shown(&self) -> String {
        format!(
            "backup {}@{} of repository {}, {} bytes",
            self.value("volume"),
            self.value("backup"),
            self.value("repository"),
            self.value("size_bytes")
        )
    }
}

/// A header that checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OverlayHeader {
    pub(super) token: [u8; 16],
    pub(super) identity: OverlayIdentity,
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
        Ok(Self { token, identity: OverlayIdentity(identity) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> OverlayHeader {
        let identity = "repository 00ff\nvolume db\nbackup b1\nsize_bytes 5\n".to_owned();
        OverlayHeader { token: [7; 16], identity: OverlayIdentity(identity) }
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

    #[test]
    fn what_it_lies_over_is_shown() {
        let shown = header().identity.shown();
        assert_eq!(shown, "backup db@b1 of repository 00ff, 5 bytes");
    }
}
