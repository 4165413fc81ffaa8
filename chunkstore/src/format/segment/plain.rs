//! The plain copy of a segment: the same pieces at the same places, with seal 0. Made piece by
//! piece, so that a segment of any size is copied in little memory.

use super::{
    PIECE_BLOCK, PIECE_INDEX, SegmentIndex, SegmentLayout, SegmentOpener, put_trailer_fields,
};
use crate::error::Result;
use crate::format::{bug, corrupt};
use crate::ids::{RepositoryId, SegmentId};
use crate::keys::{Encryption, Keys};
use crate::limits::SEGMENT_HEADER_BYTES;
use std::ops::Range;

/// Converts one segment, front to back.
#[derive(Debug)]
pub(crate) struct PlainSegment {
    sealed: SegmentOpener,
    plain: SegmentOpener,
    repository: RepositoryId,
    layout: SegmentLayout,
    hasher: blake3::Hasher,
    /// Next piece: 0 is the header, then come the blocks, then the index section.
    piece: u32,
}

impl PlainSegment {
    /// For the segment of this layout.
    pub(crate) fn new(
        keys: &Keys,
        repository: &RepositoryId,
        id: &SegmentId,
        layout: &SegmentLayout,
    ) -> Self {
        Self {
            sealed: SegmentOpener::new(keys, keys.encryption(), id),
            plain: SegmentOpener::new(keys, Encryption::None, id),
            repository: *repository,
            layout: *layout,
            hasher: blake3::Hasher::new(),
            piece: 0,
        }
    }

    /// The bytes of the segment to convert next: whole pieces of at most `bytes_max` together, but
    /// at least one. `None` when only [`Self::finish`] is left.
    pub(crate) fn wanted(&self, bytes_max: u64) -> Option<Range<u64>> {
        let first = self.range(self.piece)?;
        let mut end = first.end;
        let mut piece = self.piece + 1;
        while let Some(next) = self.range(piece).filter(|r| r.end - first.start <= bytes_max) {
            end = next.end;
            piece += 1;
        }
        Some(first.start..end)
    }

    /// Checks and converts the bytes of [`Self::wanted`]; the result comes behind all before it.
    pub(crate) fn convert(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        while out.is_empty() || !rest.is_empty() {
            let too_much = || bug(self.plain.what(), "bytes behind its last piece");
            let range = self.range(self.piece).ok_or_else(too_much)?;
            let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            let Some((piece, behind)) = rest.split_at_checked(len) else {
                return Err(corrupt(self.plain.what(), "it ends within a piece"));
            };
            self.convert_piece(piece, &range, &mut out)?;
            self.piece += 1;
            rest = behind;
        }
        self.hasher.update(&out);
        Ok(out)
    }

    /// The last bytes of the copy.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        if self.wanted(0).is_some() {
            return Err(bug(self.plain.what(), "its copy is finished before its last piece"));
        }
        let index = self.layout.index();
        let mut out = Vec::new();
        put_trailer_fields(&mut out, self.layout.records, index.start, index.end - index.start);
        out.extend_from_slice(self.hasher.update(&out).finalize().as_bytes());
        Ok(out)
    }

    fn range(&self, piece: u32) -> Option<Range<u64>> {
        let blocks = self.layout.blocks();
        match piece {
            0 => Some(0..u64::from(SEGMENT_HEADER_BYTES)),
            n if n <= blocks => Some(self.layout.block(n - 1)),
            n if n == blocks + 1 => Some(self.layout.index()),
            _ => None,
        }
    }

    fn convert_piece(&self, piece: &[u8], range: &Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let what = self.sealed.what();
        let start = out.len();
        if self.piece == 0 {
            self.sealed.check_header(piece, &self.repository)?;
            out.extend_from_slice(piece);
            out[start + 11] = Encryption::None.seal_byte();
            return Ok(());
        }
        let kind = if self.piece <= self.layout.blocks() {
            out.extend_from_slice(&self.sealed.open_block(&self.layout, self.piece - 1, piece)?);
            PIECE_BLOCK
        } else {
            let index = self.sealed.open_index(&self.layout, piece)?;
            SegmentIndex::decode(what, &self.layout, &index)?.check_order(what)?;
            out.extend_from_slice(&index);
            PIECE_INDEX
        };
        self.plain.seal_at(out, start, range.start, kind)
    }
}
