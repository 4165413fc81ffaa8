use super::layout::{directory_stored_len, encode_directory};
use super::*;
use crate::error::ErrorKind;
use crate::ids::{ChunkId, PageId, RepositoryId};
use crate::keys::{Encryption, Keys, MasterKey};
use crate::limits::{ENTRY_CHUNKS_MAX, PACK_CHUNKS_MAX};
use crate::seal::{Compression, Opener, SealedEntry, Sealer};
use crate::units::ChunkSize;
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;

const REPOSITORY: RepositoryId = RepositoryId::from_bytes([9; 16]);
const CHUNK: usize = 4096;

pub(crate) fn keys(encryption: Encryption) -> Arc<Keys> {
    Arc::new(Keys::derive(&MasterKey::from_bytes([5; 32]), encryption))
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// Chunks of a unit, all of them, with their ids.
pub(crate) fn all_chunks(keys: &Keys, unit: &[u8]) -> (Vec<Range<usize>>, Vec<ChunkId>) {
    let ranges: Vec<_> =
        (0..unit.len()).step_by(CHUNK).map(|at| at..(at + CHUNK).min(unit.len())).collect();
    let ids = ranges.iter().map(|r| keys.chunk_id(&unit[r.clone()])).collect();
    (ranges, ids)
}

fn seal(keys: &Keys, sealer: &mut Sealer, alloc: &PackAllocator, unit: &[u8]) -> SealedEntry {
    let (ranges, ids) = all_chunks(keys, unit);
    sealer.seal_chunks(alloc, unit, &ranges, &ids).unwrap()
}

/// Units with little and with much in them, the last one with a short chunk.
fn units() -> Vec<Vec<u8>> {
    let mut units: Vec<Vec<u8>> = (0..6).map(|i| noise(i, CHUNK * 4)).collect();
    units[1] = vec![7; CHUNK * 3];
    units[2][CHUNK..].fill(b'x');
    units.push(noise(77, CHUNK + 100));
    units
}

fn build(encryption: Encryption, order: impl Fn(&mut Vec<SealedEntry>)) -> (FinishedPack, Vec<u8>) {
    let keys = keys(encryption);
    let alloc = PackAllocator::new(keys.clone(), PackKind::Chunks, 1 << 20);
    let mut sealer = Sealer::new(Compression::Zstd(1)).unwrap();
    let mut sealed: Vec<_> =
        units().iter().map(|unit| seal(&keys, &mut sealer, &alloc, unit)).collect();
    order(&mut sealed);
    let mut collector = PackBuilder::new(keys, REPOSITORY, PackKind::Chunks);
    let mut held = 0;
    for entry in sealed {
        held += entry.bytes.len();
        collector.add(entry).unwrap();
        assert_eq!(collector.held_bytes(), held + 64);
        assert!(collector.take_finished().is_none());
    }
    collector.close(alloc.close().unwrap()).unwrap();
    assert!(alloc.close().is_none());
    assert_eq!(collector.unfinished(), 0);
    let pack = collector.take_finished().unwrap();
    assert_eq!(collector.held_bytes(), 0);
    let bytes = pack.parts.concat();
    assert_eq!(bytes.len(), pack.len as usize);
    (pack, bytes)
}

#[test]
fn a_pack_can_be_checked_without_and_read_with_keys() {
    for encryption in [Encryption::Aes256Gcm, Encryption::None] {
        let (pack, bytes) = build(encryption, |_| ());
        assert_eq!(pack.object_key(), format!("packs/{}/{}", &pack.pack.to_hex()[..2], pack.pack));
        let summary = check_pack(&bytes).unwrap();
        let keys = keys(encryption);
        summary.header.check(&keys, &REPOSITORY, &pack.pack).unwrap();
        assert_eq!(summary.trailer.entries as usize, pack.entries.len());
        let trailer = summary.trailer;
        let at = trailer.directory_offset as usize;
        let stored = &bytes[at..at + trailer.directory_len as usize];
        let mut opener = Opener::new(keys.clone()).unwrap();
        let directory = opener.open_directory(&summary.header, &trailer, stored).unwrap();
        assert_eq!(directory, pack.entries);
        for (entry, unit) in directory.iter().zip(units()) {
            let at = entry.offset as usize;
            let stored = &bytes[at..at + entry.stored_len as usize];
            let mut plain = Vec::new();
            let header = opener
                .open_entry(EntryKind::Chunks, &pack.pack, entry.offset, stored, &mut plain)
                .unwrap();
            assert_eq!(plain, unit);
            let mut exact = vec![1; plain.len()];
            opener
                .open_into(EntryKind::Chunks, &pack.pack, entry.offset, stored, &mut exact)
                .unwrap();
            assert_eq!(exact, unit);
            assert_eq!(usize::from(header.count), entry.ids.len());
            for (i, id) in entry.ids.iter().enumerate() {
                let i = u16::try_from(i).unwrap();
                let range = header.chunk(i, ChunkSize::new(4096).unwrap()).unwrap();
                assert_eq!(keys.chunk_id(&plain[range]).as_bytes(), id);
            }
            assert!(header.chunk(header.count, ChunkSize::new(4096).unwrap()).is_err());
            assert!(header.chunk(0, ChunkSize::new(65536).unwrap()).is_err() || header.count == 1);
        }
    }
}

#[test]
fn entries_may_come_in_any_order() {
    build(Encryption::None, |sealed| sealed.reverse());
    build(Encryption::Aes256Gcm, |sealed| sealed.swap(0, 3));
    build(Encryption::Aes256Gcm, |sealed| sealed.rotate_left(2));
}

#[test]
fn every_flip_and_every_cut_of_a_pack_is_found() {
    let (_, bytes) = build(Encryption::Aes256Gcm, |_| ());
    for i in (0..bytes.len()).filter(|i| i % 97 == 0 || *i < 64 || *i > bytes.len() - 400) {
        let mut bad = bytes.clone();
        bad[i] ^= 1;
        assert!(check_pack(&bad).is_err(), "{i}");
    }
    for len in (0..bytes.len()).filter(|i| i % 97 == 0 || *i < 64 || *i > bytes.len() - 400) {
        assert!(check_pack(&bytes[..len]).is_err(), "{len}");
    }
    assert!(check_pack(&[bytes.clone(), vec![0]].concat()).is_err());
}

#[test]
fn a_pack_ends_when_it_reached_its_target() {
    let keys = keys(Encryption::Aes256Gcm);
    let alloc = PackAllocator::new(keys.clone(), PackKind::Chunks, 3 * 4120 + 64);
    let mut sealer = Sealer::new(Compression::None).unwrap();
    let mut collector = PackBuilder::new(keys.clone(), REPOSITORY, PackKind::Chunks);
    let mut finished = Vec::new();
    for i in 0..7 {
        let entry = seal(&keys, &mut sealer, &alloc, &noise(i, CHUNK));
        assert_eq!(entry.bytes.len(), 4120);
        assert_eq!(entry.location(0).stored_len, 4120);
        assert_eq!(entry.closes.is_some(), i % 3 == 2);
        assert_eq!(u64::from(entry.place.entry), i % 3);
        collector.add(entry).unwrap();
        finished.extend(collector.take_finished());
    }
    assert_eq!(finished.len(), 2);
    assert_ne!(finished[0].pack, finished[1].pack);
    assert!(finished.iter().all(|p| p.entries.len() == 3));
    assert_eq!(collector.unfinished(), 1);
    collector.close(alloc.close().unwrap()).unwrap();
    assert_eq!(collector.take_finished().unwrap().entries.len(), 1);
}

#[test]
fn a_pack_never_exceeds_what_its_directory_may_hold() {
    let keys = keys(Encryption::None);
    let alloc = PackAllocator::new(keys, PackKind::Chunks, u32::MAX);
    let mut chunks = 0;
    let closed = loop {
        let reserved = alloc.reserve(64, ENTRY_CHUNKS_MAX).unwrap();
        chunks += u32::from(ENTRY_CHUNKS_MAX);
        if let Some(closed) = reserved.closes {
            break closed;
        }
    };
    assert_eq!(chunks, PACK_CHUNKS_MAX);
    assert_eq!(closed.end, 64 + closed.entries * 64);
    // by bytes: the directory and the trailer still fit behind the last entry
    let (stored, mut ids) = ((16 << 20) + 24, 0);
    let closed = loop {
        let reserved = alloc.reserve(stored, 1024).unwrap();
        ids += 1024;
        if let Some(closed) = reserved.closes {
            break closed;
        }
    };
    let len = u64::from(closed.end) + directory_stored_len(closed.entries, ids) + 64;
    assert!(len <= u64::from(u32::MAX), "{len}");
    assert!(len + u64::from(stored) + 32 * 1024 + 10 > u64::from(u32::MAX), "{len}");
    for (len, count) in [(24, 1), (stored + 1, 1), (100, 0), (100, 1025)] {
        assert_eq!(alloc.reserve(len, count).unwrap_err().kind(), ErrorKind::Bug);
    }
}

#[test]
fn mistakes_of_the_caller_are_found() {
    let keys = keys(Encryption::None);
    let alloc = PackAllocator::new(keys.clone(), PackKind::Chunks, 1 << 20);
    let mut sealer = Sealer::new(Compression::None).unwrap();
    let unit = noise(1, CHUNK * 3);
    let (ranges, ids) = all_chunks(&keys, &unit);
    let [a, b, c] = [0..CHUNK, CHUNK..2 * CHUNK, 2 * CHUNK..3 * CHUNK];
    for (ranges, ids) in [
        (vec![], &ids[..0]),
        (vec![a.clone()], &ids[..2]),
        (vec![b.clone(), a.clone()], &ids[..2]),
        (vec![a.clone(), a.clone()], &ids[..2]),
        (vec![0..100, c.clone()], &ids[..2]),
        (vec![a.clone(), 3 * CHUNK..4 * CHUNK], &ids[..2]),
        (vec![a.clone(), CHUNK..CHUNK], &ids[..2]),
    ] {
        let error = sealer.seal_chunks(&alloc, &unit, &ranges, ids).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug, "{ranges:?}");
    }
    let page = PageId::from_bytes([1; 32]);
    assert!(sealer.seal_page(&alloc, &unit, page).is_err(), "a page in a pack of chunks");
    let pages = PackAllocator::new(keys.clone(), PackKind::Pages, 1 << 20);
    assert!(sealer.seal_chunks(&pages, &unit, &ranges, &ids).is_err());
    assert!(sealer.seal_page(&pages, &[], page).is_err());
    assert!(sealer.seal_page(&pages, &unit, page).is_ok());
    // nothing was placed for what failed
    let sealed = sealer.seal_chunks(&alloc, &unit, &ranges, &ids).unwrap();
    assert_eq!((sealed.place.entry, sealed.place.offset), (0, 64));
    let mut collector = PackBuilder::new(keys, REPOSITORY, PackKind::Chunks);
    let place = sealed.place;
    let again = SealedEntry { bytes: sealed.bytes.clone(), ids: vec![], closes: None, ..sealed };
    collector
        .add(SealedEntry {
            ids: vec![[0; 32]; 3],
            bytes: again.bytes.clone(),
            closes: None,
            ..again
        })
        .unwrap();
    assert!(collector.add(again).is_err());
    let closed = |end| ClosedPack { pack: place.pack, entries: 1, end };
    assert!(collector.close(closed(65)).is_err());
}

/// An attacker who has no key cannot make a directory; without encryption, anyone can.
#[test]
fn damaged_directories_are_refused() {
    let (pack, bytes) = build(Encryption::None, |_| ());
    let trailer = check_pack(&bytes).unwrap().trailer;
    let plain = encode_directory(&pack.entries).unwrap();
    assert_eq!(decode_directory(&plain, PackKind::Chunks, &trailer).unwrap(), pack.entries);
    assert!(decode_directory(&plain, PackKind::Pages, &trailer).is_err());
    for len in 0..plain.len() {
        assert!(decode_directory(&plain[..len], PackKind::Chunks, &trailer).is_err(), "{len}");
    }
    for i in 0..plain.len() {
        let mut bad = plain.clone();
        bad[i] ^= 1;
        if let Ok(read) = decode_directory(&bad, PackKind::Chunks, &trailer) {
            assert_eq!(encode_directory(&read).unwrap(), bad, "{i}");
            let same = |a: &DirectoryEntry, b: &DirectoryEntry| a.ids == b.ids;
            assert!(!read.iter().zip(&pack.entries).all(|(a, b)| same(a, b)), "{i}");
        }
    }
    let endless = [&u32::MAX.to_le_bytes()[..], &[0; 100]].concat();
    assert!(decode_directory(&endless, PackKind::Chunks, &trailer).is_err());
}

#[test]
fn headers_and_trailers_are_strict() {
    let (pack, bytes) = build(Encryption::Aes256Gcm, |_| ());
    let header = decode_pack_header(&bytes).unwrap();
    let check = |repository: &RepositoryId, id: &PackId, encryption| {
        header.check(&keys(encryption), repository, id).is_ok()
    };
    assert!(check(&REPOSITORY, &pack.pack, Encryption::Aes256Gcm));
    assert!(!check(&REPOSITORY, &pack.pack, Encryption::None));
    assert!(!check(&REPOSITORY, &PackId::from_bytes([0; 32]), Encryption::Aes256Gcm));
    assert!(!check(&RepositoryId::from_bytes([0; 16]), &pack.pack, Encryption::Aes256Gcm));
    for i in 0..16 {
        let mut bad = bytes[..64].to_vec();
        bad[i] ^= 4;
        assert!(decode_pack_header(&bad).is_err(), "{i}");
    }
    let end = &bytes[bytes.len() - 64..];
    for i in 0..32 {
        let mut bad = end.to_vec();
        bad[i] ^= 0x40;
        // the count alone is checked against the directory
        assert!(decode_pack_trailer(&bad).is_err() || (8..12).contains(&i), "{i}");
    }
    for len in 0..64 {
        assert!(decode_pack_header(&bytes[..len]).is_err());
        assert!(decode_pack_trailer(&end[..len]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_entries_in_any_order_make_readable_packs(
        sizes in proptest::collection::vec(1..3 * CHUNK, 1..12),
        swaps in proptest::collection::vec((0usize..12, 0usize..12), 0..12),
        target in 0u32..20_000,
        encrypted: bool,
    ) {
        let encryption = if encrypted { Encryption::Aes256Gcm } else { Encryption::None };
        let keys = keys(encryption);
        let alloc = PackAllocator::new(keys.clone(), PackKind::Chunks, target);
        let mut sealer = Sealer::new(Compression::Zstd(-5)).unwrap();
        let units: Vec<_> = sizes.iter().zip(0..).map(|(len, seed)| noise(seed, *len)).collect();
        let mut sealed: Vec<_> =
            units.iter().map(|unit| seal(&keys, &mut sealer, &alloc, unit)).collect();
        let places: Vec<_> = sealed.iter().map(|s| s.place).collect();
        for (a, b) in swaps {
            let n = sealed.len();
            sealed.swap(a % n, b % n);
        }
        let mut collector = PackBuilder::new(keys.clone(), REPOSITORY, PackKind::Chunks);
        for entry in sealed {
            collector.add(entry).unwrap();
        }
        if let Some(closed) = alloc.close() {
            collector.close(closed).unwrap();
        }
        prop_assert_eq!(collector.unfinished(), 0);
        let mut opener = Opener::new(keys).unwrap();
        let mut seen = 0;
        while let Some(pack) = collector.take_finished() {
            let bytes = pack.parts.concat();
            check_pack(&bytes).unwrap();
            for (place, unit) in places.iter().zip(&units).filter(|(p, _)| p.pack == pack.pack) {
                let entry = &pack.entries[place.entry as usize];
                let at = entry.offset as usize;
                let stored = &bytes[at..at + entry.stored_len as usize];
                let mut out = Vec::new();
                opener.open_entry(EntryKind::Chunks, &pack.pack, place.offset, stored, &mut out).unwrap();
                prop_assert_eq!(&out, unit);
                seen += 1;
            }
        }
        prop_assert_eq!(seen, units.len());
        prop_assert_eq!(collector.held_bytes(), 0);
    }
}
