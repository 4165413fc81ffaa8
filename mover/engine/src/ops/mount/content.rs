//! Bytes of a file of a backup, many stretches at a time.

use super::backup::Filesystem;
use crate::reading::view::BackupView;
use chunkstore::{Error, ErrorKind, Result};
use futures::future::try_join_all;
use mover_fsmap::files::{FillFrom, Piece, Place, fills};
use mover_fuse::Content;
use std::ops::Range;
use std::sync::Arc;

/// Fills a buffer with bytes of a file, from an offset on.
pub(super) async fn read(
    view: &Arc<BackupView>,
    files: &Filesystem,
    pieces: &[Piece],
    offset: u64,
    buffer: &mut [u8],
) -> Result<()> {
    buffer.fill(0);
    let mut wanted: Vec<(u64, &mut [u8])> = Vec::new();
    let (mut rest, mut at) = (buffer, 0);
    for fill in fills(pieces, offset, rest.len()) {
        let (_, behind) = std::mem::take(&mut rest).split_at_mut(fill.into.start - at);
        let (part, behind) = behind.split_at_mut(fill.into.len());
        (rest, at) = (behind, fill.into.end);
        match fill.from {
            FillFrom::Bytes(bytes) => {
                let len = bytes.len().min(part.len());
                part[..len].copy_from_slice(&bytes[..len]);
            }
            FillFrom::Volume(byte) => {
                let mut part = part;
                for range in within(files, byte, part.len())? {
                    let len = usize::try_from(range.end - range.start).unwrap_or(part.len());
                    let (first, behind) = part.split_at_mut(len.min(part.len()));
                    wanted.push((range.start, first));
                    part = behind;
                }
            }
        }
    }
    let reads = wanted.into_iter().map(|(byte, part)| async move { view.read(byte, part).await });
    try_join_all(reads).await.map(drop)
}

/// A file's bytes are in its own file system, whatever that says.
fn within(
    files: &Filesystem,
    byte: u64,
    len: usize,
) -> Result<impl Iterator<Item = Range<u64>> + '_> {
    let end = byte.checked_add(len as u64);
    end.and_then(|end| files.layout.ranges(byte..end)).ok_or_else(|| {
        let context = format!("read {len} bytes at byte {byte} of the file system");
        Error::new(ErrorKind::Corrupt, context, "it ends before")
    })
}

/// The next offset with data or of a hole, from one within the file on. Behind the last byte is a
/// hole. Pure.
pub(super) fn next(pieces: &[Piece], size: u64, offset: u64, content: Content) -> Option<u64> {
    if offset >= size {
        return None;
    }
    let first = pieces.partition_point(|piece| piece.range.end <= offset);
    let is_hole = |piece: &Piece| piece.place == Place::Hole;
    let found = match content {
        Content::Data => pieces[first..].iter().find(|piece| !is_hole(piece)),
        Content::Hole => {
            let mut end = offset;
            for piece in &pieces[first..] {
                if is_hole(piece) || piece.range.start > end {
                    break;
                }
                end = piece.range.end;
            }
            return Some(end.min(size));
        }
    };
    found.map(|piece| piece.range.start.max(offset)).filter(|at| *at < size)
}

/// The same of a whole volume.
pub(super) async fn next_of_volume(
    view: &Arc<BackupView>,
    offset: u64,
    content: Content,
) -> Result<Option<u64>> {
    let size = view.size_bytes();
    let mut at = offset;
    while at < size {
        for extent in view.extents(at..size).await? {
            let Range { start, end } = extent.range;
            if extent.zero == (content == Content::Hole) {
                return Ok(Some(start.max(offset)));
            }
            at = end;
        }
    }
    Ok((content == Content::Hole && offset < size).then_some(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_holes_follow_each_other() {
        let pieces = [
            Piece { range: 0..10, place: Place::Volume(100) },
            Piece { range: 10..20, place: Place::Hole },
            Piece { range: 20..30, place: Place::Volume(500) },
            Piece { range: 30..40, place: Place::Inline(vec![1]) },
            Piece { range: 40..60, place: Place::Hole },
        ];
        let data = |offset, size| next(&pieces, size, offset, Content::Data);
        let hole = |offset, size| next(&pieces, size, offset, Content::Hole);
        assert_eq!((data(0, 60), hole(0, 60)), (Some(0), Some(10)));
        assert_eq!((data(12, 60), hole(12, 60)), (Some(20), Some(12)));
        assert_eq!((data(25, 60), hole(25, 60)), (Some(25), Some(40)));
        assert_eq!((data(45, 60), hole(45, 60)), (None, Some(45)));
        assert_eq!((data(60, 60), hole(60, 60)), (None, None));
        // blocks that are reserved behind the end are no part of the file
        assert_eq!((data(12, 15), hole(5, 8)), (None, Some(8)));
        assert_eq!(
            (next(&[], 5, 0, Content::Data), next(&[], 5, 0, Content::Hole)),
            (None, Some(0))
        );
    }
}
