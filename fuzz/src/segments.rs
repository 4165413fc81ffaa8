//! Dedup segments: layout, index, filter and blocks, behind their hash and their tags.

use crate::kit::{REPOSITORY, must, plain_keys, split};
use chunkstore::testkit::fuzzing;
use chunkstore::{
    ChunkId, Encryption,
    format::{SegmentIndex, SegmentLayout, SegmentOpener, to_plain_segment},
    ids::SegmentId,
};

const ID: SegmentId = SegmentId::from_bytes([0x99; 32]);
const RECORD: usize = chunkstore::limits::SEGMENT_RECORD_BYTES as usize;

/// A segment out of its plaintext: the number of records, those, and the index. A lookup finds what
/// a scan does.
pub fn segment(data: &[u8]) {
    let Some(([count], rest)) = split::<1>(data) else { return };
    let Some((blocks, index)) = rest.split_at_checked(usize::from(count) * RECORD) else { return };
    let keys = plain_keys();
    let bytes = must(fuzzing::segment_of(&keys, &REPOSITORY, &ID, blocks, index));
    let opener = SegmentOpener::new(&keys, Encryption::None, &ID);
    must(opener.check_header(&bytes, &REPOSITORY));
    let scratch = to_plain_segment(&keys, &REPOSITORY, &ID, &bytes);
    // too short or too long an index
    let Ok(layout) = opener.check_whole(&bytes) else {
        assert!(scratch.is_err());
        return;
    };
    assert_eq!(layout.records, u64::from(count));
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let piece = |range: std::ops::Range<u64>| &bytes[at(range.start)..at(range.end)];
    assert_eq!(must(opener.open_index(&layout, piece(layout.index()))).as_ref(), index);
    let block = must(opener.open_block(&layout, 0, piece(layout.block(0))));
    assert_eq!(block.as_ref(), blocks);

    let what = "segment";
    let Ok(found) = SegmentIndex::decode(what, &layout, index) else {
        assert!(scratch.is_err());
        return;
    };
    let ordered = found.check_order(what).is_ok();
    assert_eq!(scratch.is_ok(), ordered);
    assert!(scratch.is_err() || scratch.is_ok_and(|plain| plain == bytes));
    assert!(!ordered || found.packs().is_sorted_by(|a, b| a < b));
    let records = found.records(what, blocks);
    for raw in blocks.as_chunks::<RECORD>().0 {
        let mut id = [0; 32];
        id.copy_from_slice(&raw[..32]);
        let id = ChunkId::from_bytes(id);
        let (place, _) = (found.find(what, blocks, &id), found.may_hold(&id));
        assert!(found.block_of(&id).is_none_or(|block| block < layout.blocks()));
        if let Ok(records) = &records {
            let want = records.iter().find(|r| r.id == id).map(|r| r.location);
            assert_eq!(must(place), want);
        }
    }
    if let Ok(records) = records {
        assert_eq!(records.len(), usize::from(count));
        let packs: Vec<_> = found.packs().collect();
        assert!(records.iter().all(|r| packs.contains(&r.location.pack)));
    }
}

/// Where the pieces of a segment are. Before its last bytes: how long it is.
pub fn segment_layout(data: &[u8]) {
    let Some((len, trailer)) = split::<8>(data) else { return };
    let len = u64::from_le_bytes(len);
    let Ok(layout) = SegmentLayout::decode("segment", len, trailer) else { return };
    let mut end = 64;
    for block in [0, layout.blocks() - 1] {
        let range = layout.block(block);
        assert!(range.start >= end || block == 0, "{layout:?}");
        assert!(range.start < range.end && range.end <= layout.index().start, "{layout:?}");
        end = range.end;
    }
    assert_eq!(end, layout.index().start, "{layout:?}");
    assert_eq!(layout.index().end + 64, len, "{layout:?}");
}

/// A filter, after the first bytes of the id that it is asked for.
pub fn filter(data: &[u8]) {
    let Some((start, bytes)) = split::<8>(data) else { return };
    let mut id = [0; 32];
    id[..8].copy_from_slice(&start);
    if let Ok((blocks, _)) = fuzzing::filter(bytes, &ChunkId::from_bytes(id)) {
        assert_eq!(bytes.len(), 20 + 32 * blocks);
    }
}
