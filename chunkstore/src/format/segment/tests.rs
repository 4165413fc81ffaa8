use super::*;
use crate::ids::random_bytes;
use crate::keys::MasterKey;
use proptest::prelude::*;

const ENCRYPTIONS: [Encryption; 2] = [Encryption::Aes256Gcm, Encryption::None];

struct Made {
    keys: Keys,
    repository: RepositoryId,
    id: SegmentId,
    records: Vec<SegmentRecord>,
    bytes: Vec<u8>,
}

fn made(encryption: Encryption, count: u32) -> Made {
    let keys = Keys::derive(&MasterKey::from_bytes([3; 32]), encryption);
    let (repository, id) = (RepositoryId::random(), SegmentId::random());
    let packs = [PackId::random(), PackId::random(), PackId::random()];
    let mut records: Vec<_> = (0..count)
        .map(|n| SegmentRecord {
            id: ChunkId::from_bytes(random_bytes()),
            location: Location {
                pack: packs[n as usize % 3],
                entry: n,
                offset: 64 + n * 100,
                stored_len: 100,
                index: 3,
            },
        })
        .collect();
    let bytes = encode_segment(&keys, encryption, &repository, &id, 5, &mut records).unwrap();
    Made { keys, repository, id, records, bytes }
}

/// Looks an id up in a segment that is whole in memory, the way that readers do.
fn lookup(
    opener: &SegmentOpener,
    m: &Made,
    bytes: &[u8],
    id: &ChunkId,
) -> Result<Option<Location>> {
    opener.check_header(bytes, &m.repository)?;
    let layout = opener.check_whole(bytes)?;
    let index = opener.open_index(&layout, piece(bytes, &layout.index()))?;
    let index = SegmentIndex::decode(opener.what(), &layout, &index)?;
    if !index.may_hold(id) {
        return Ok(None);
    }
    let Some(block) = index.block_of(id) else { return Ok(None) };
    let plain = opener.open_block(&layout, block, piece(bytes, &layout.block(block)))?;
    index.find(opener.what(), &plain, id)
}

#[test]
fn every_record_is_found_in_the_segment_and_in_its_plain_copy() {
    for encryption in ENCRYPTIONS {
        for count in [1, 2, 1309, 1310, 1311, 4000] {
            let m = made(encryption, count);
            let sealed = SegmentOpener::new(&m.keys, encryption, &m.id);
            let copy = to_plain_segment(&m.keys, &m.repository, &m.id, &m.bytes).unwrap();
            let plain = SegmentOpener::new(&m.keys, Encryption::None, &m.id);
            assert_eq!(copy.len(), m.bytes.len());
            for record in m.records.iter().step_by(97).chain(m.records.last()) {
                let want = Some(record.location);
                assert_eq!(lookup(&sealed, &m, &m.bytes, &record.id).unwrap(), want);
                assert_eq!(lookup(&plain, &m, &copy, &record.id).unwrap(), want);
            }
            for _ in 0..50 {
                let absent = ChunkId::from_bytes(random_bytes());
                assert_eq!(lookup(&sealed, &m, &m.bytes, &absent).unwrap(), None);
            }
        }
    }
}

#[test]
fn one_chunk_in_two_places_is_recorded_once() {
    let mut m = made(Encryption::None, 5);
    let mut twice = m.records.clone();
    twice.extend(
        m.records
            .iter()
            .map(|r| SegmentRecord { location: Location { index: 9, ..r.location }, ..*r }),
    );
    twice.reverse();
    let again =
        encode_segment(&m.keys, Encryption::None, &m.repository, &m.id, 5, &mut twice).unwrap();
    m.records.sort_by_key(|r| r.id);
    assert_eq!((twice, again), (m.records, m.bytes));
}

#[test]
fn any_damage_is_found() {
    for encryption in ENCRYPTIONS {
        let m = made(encryption, 3);
        let opener = SegmentOpener::new(&m.keys, encryption, &m.id);
        let id = m.records[1].id;
        for at in 0..m.bytes.len() {
            let mut bad = m.bytes.clone();
            bad[at] ^= 1;
            assert!(lookup(&opener, &m, &bad, &id).is_err(), "byte {at} flipped");
            assert!(lookup(&opener, &m, &m.bytes[..at], &id).is_err(), "cut at {at}");
        }
        let other = SegmentOpener::new(&m.keys, encryption, &SegmentId::random());
        assert!(lookup(&other, &m, &m.bytes, &id).is_err());
    }
}

#[test]
fn a_damaged_piece_of_a_copy_is_found_without_reading_the_whole() {
    let m = made(Encryption::Aes256Gcm, 1400);
    let copy = to_plain_segment(&m.keys, &m.repository, &m.id, &m.bytes).unwrap();
    let opener = SegmentOpener::new(&m.keys, Encryption::None, &m.id);
    let at = copy.len() - TRAILER;
    let layout = SegmentLayout::decode("copy", copy.len() as u64, &copy[at..]).unwrap();
    for block in 0..layout.blocks() {
        let range = layout.block(block);
        let mut bad = piece(&copy, &range).to_vec();
        bad[17] ^= 0x40;
        assert!(opener.open_block(&layout, block, &bad).is_err());
        // a block in the place of another one
        let other = 1 - block;
        assert!(opener.open_block(&layout, other, piece(&copy, &range)).is_err());
    }
}

#[test]
fn lengths_that_do_not_add_up_are_refused() {
    let m = made(Encryption::None, 2000);
    let trailer = m.bytes[m.bytes.len() - TRAILER..].to_vec();
    let len = m.bytes.len() as u64;
    assert!(SegmentLayout::decode("segment", len, &trailer).is_ok());
    assert!(SegmentLayout::decode("segment", len + 1, &trailer).is_err());
    for at in 0..24 {
        for bit in 0..8 {
            let mut bad = trailer.clone();
            bad[at] ^= 1 << bit;
            assert!(SegmentLayout::decode("segment", len, &bad).is_err(), "byte {at} bit {bit}");
        }
    }
}

/// Everything in a segment, in order.
fn all(m: &Made, encryption: Encryption) -> Result<Vec<SegmentRecord>> {
    let opener = SegmentOpener::new(&m.keys, encryption, &m.id);
    let layout = opener.check_whole(&m.bytes)?;
    let section = opener.open_index(&layout, piece(&m.bytes, &layout.index()))?;
    let index = SegmentIndex::decode(opener.what(), &layout, &section)?;
    index.check_order(opener.what())?;
    let mut out = Vec::new();
    for block in 0..layout.blocks() {
        let stored = piece(&m.bytes, &layout.block(block));
        let plain = opener.open_block(&layout, block, stored)?;
        out.extend(index.records(opener.what(), &plain)?);
    }
    let mut packs: Vec<_> = out.iter().map(|r| r.location.pack).collect();
    packs.sort_unstable();
    packs.dedup();
    assert_eq!(index.packs().collect::<Vec<_>>(), packs);
    Ok(out)
}

#[test]
fn all_records_come_back_in_order() {
    for encryption in ENCRYPTIONS {
        for count in [1, 1310, 1311, 4000] {
            let m = made(encryption, count);
            assert_eq!(all(&m, encryption).unwrap(), m.records);
        }
    }
}

#[test]
fn what_no_reader_would_take_is_not_written() {
    let m = made(Encryption::None, 2);
    let encode = |records: &mut Vec<_>| {
        encode_segment(&m.keys, Encryption::None, &m.repository, &m.id, 5, records)
    };
    assert!(encode(&mut m.records.clone()).is_ok());
    assert!(encode(&mut Vec::new()).is_err());
    let mut bad = m.records.clone();
    bad[1].location.offset = 63;
    assert!(encode(&mut bad).is_err());
}

/// Without encryption, anyone can write an index section with a fitting checksum.
#[test]
fn strange_index_sections_are_refused() {
    let m = made(Encryption::None, 3);
    let opener = SegmentOpener::new(&m.keys, Encryption::None, &m.id);
    let layout = opener.check_whole(&m.bytes).unwrap();
    let plain = opener.open_index(&layout, piece(&m.bytes, &layout.index())).unwrap();
    let block = opener.open_block(&layout, 0, piece(&m.bytes, &layout.block(0))).unwrap();
    let decode = |bytes: &[u8]| SegmentIndex::decode("index", &layout, bytes).map(|_| ());
    assert!(decode(&plain).is_ok());
    for len in 0..plain.len() {
        assert!(decode(&plain[..len]).is_err(), "{len}");
    }
    assert!(decode(&[&plain[..], &[0]].concat()).is_err());
    for at in 0..plain.len() {
        let mut bad = plain.to_vec();
        bad[at] ^= 0x80;
        if let Ok(index) = SegmentIndex::decode("index", &layout, &bad) {
            // nothing panics, whatever stands in it
            let id = &m.records[2].id;
            let _ = (index.check_order("index"), index.may_hold(id), index.block_of(id));
            let _ = (index.find("index", &block, id), index.records("index", &block));
        }
    }
    let (packs, fences) = (3 * 32, 32);
    for count_at in [0, 4 + packs, 4 + packs + 4 + fences + 16] {
        for count in [0, 4, u32::MAX] {
            let mut bad = plain.to_vec();
            bad[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
            assert!(decode(&bad).is_err(), "{count} at {count_at}");
        }
    }
    let mut swapped = plain.to_vec();
    swapped[4..36].copy_from_slice(&plain[36..68]);
    swapped[36..68].copy_from_slice(&plain[4..36]);
    let index = SegmentIndex::decode("index", &layout, &swapped).unwrap();
    assert!(index.check_order("index").is_err());
    let index = SegmentIndex::decode("index", &layout, &plain).unwrap();
    let swapped = [&block[50..100], &block[..50], &block[100..]].concat();
    assert!(index.records("index", &swapped).is_err());
    assert!(index.records("index", &block[..149]).is_err());
    assert!(index.records("index", &[]).is_err());
}

#[test]
fn layouts_beyond_the_limits_are_refused() {
    let decode = |records: u64, index_offset: u64, index_len: u64| {
        let mut out = Vec::new();
        out.put_u64(records);
        out.put_u64(index_offset);
        out.put_u64(index_len);
        out.put(&MAGIC_SEGMENT_END);
        out.put(&[0; 32]);
        let len = index_offset.wrapping_add(index_len).wrapping_add(64);
        SegmentLayout::decode("segment", len, &out).is_ok()
    };
    let most = u64::from(SEGMENT_RECORDS_MAX);
    let end = |records: u64| 64 + records * 50 + records.div_ceil(1310) * 16;
    assert!(decode(most, end(most), 1 << 28));
    assert!(!decode(most + 1, end(most + 1), 1 << 28));
    assert!(!decode(most, end(most), 1 << 40));
    assert!(!decode(most, end(most), u64::MAX));
    assert!(!decode(most, u64::MAX, 1 << 28));
    assert!(!decode(u64::MAX, end(3), 200));
    assert!(!decode(0, 64, 200));
    assert!(decode(3, end(3), 28 + 16 + 32 + 64));
    assert!(!decode(3, end(3), 28 + 16 + 32 + 63));
    assert!(!decode(3, end(3), 28 + 16 + 32 + 64 * 3 + 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn segments_of_any_size_round_trip(count in 1u32..3000, encrypted: bool) {
        let encryption = ENCRYPTIONS[usize::from(!encrypted)];
        let m = made(encryption, count);
        prop_assert_eq!(&all(&m, encryption).unwrap(), &m.records);
    }
}
