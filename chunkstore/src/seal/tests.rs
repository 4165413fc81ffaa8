use super::*;
use crate::keys::MasterKey;
use proptest::prelude::*;

const CHUNK: usize = 4096;

fn keys(encryption: Encryption) -> Arc<Keys> {
    Arc::new(Keys::derive(&MasterKey::from_bytes([5; 32]), encryption))
}

fn both() -> [Arc<Keys>; 2] {
    [keys(Encryption::Aes256Gcm), keys(Encryption::None)]
}

fn noise(len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut out);
    out
}

fn seal(keys: &Arc<Keys>, compression: Compression, unit: &[u8], which: &[usize]) -> SealedEntry {
    let alloc = PackAllocator::new(keys.clone(), PackKind::Chunks, 1 << 20);
    let ranges: Vec<_> =
        which.iter().map(|i| i * CHUNK..((i + 1) * CHUNK).min(unit.len())).collect();
    let ids: Vec<_> = ranges.iter().map(|r| keys.chunk_id(&unit[r.clone()])).collect();
    Sealer::new(compression).unwrap().seal_chunks(&alloc, unit, &ranges, &ids).unwrap()
}

fn open(keys: &Arc<Keys>, sealed: &SealedEntry, stored: &[u8]) -> Result<(EntryHeader, Vec<u8>)> {
    let mut out = vec![1, 2, 3];
    let Place { pack, offset, .. } = sealed.place;
    let mut opener = Opener::new(keys.clone())?;
    let header = opener.open_entry(EntryKind::Chunks, &pack, offset, stored, &mut out)?;
    let mut exact = vec![0; out.len()];
    let again = opener.open_into(EntryKind::Chunks, &pack, offset, stored, &mut exact)?;
    assert_eq!((header, &out), (again, &exact));
    assert!(opener.open_into(EntryKind::Chunks, &pack, offset, stored, &mut [0; 1]).is_err());
    Ok((header, out))
}

#[test]
fn compression_is_used_when_it_pays() {
    let random = noise(CHUNK * 8);
    let text: Vec<u8> = random.iter().map(|b| b'a' + b % 16).collect();
    let lines = text[..64].repeat(CHUNK * 8 / 64);
    for keys in both() {
        for (unit, compression, codec) in [
            (&text, Compression::Zstd(1), Codec::Zstd),
            (&lines, Compression::Zstd(-7), Codec::Zstd),
            (&text, Compression::None, Codec::Raw),
            (&random, Compression::Zstd(1), Codec::Raw),
        ] {
            let sealed = seal(&keys, compression, unit, &[0, 1, 2, 3, 4, 5, 6, 7]);
            let (header, plain) = open(&keys, &sealed, &sealed.bytes).unwrap();
            assert_eq!((header.codec, header.count), (codec, 8));
            assert_eq!(&plain, unit);
            assert_eq!(sealed.bytes.len() < unit.len(), codec == Codec::Zstd);
        }
    }
}

#[test]
fn chunks_need_not_lie_side_by_side() {
    let unit = noise(CHUNK * 5 + 10);
    for keys in both() {
        for which in [&[0][..], &[5], &[1, 2], &[0, 2, 5], &[3, 4, 5], &[1, 4]] {
            let sealed = seal(&keys, Compression::Zstd(1), &unit, which);
            let (header, plain) = open(&keys, &sealed, &sealed.bytes).unwrap();
            let parts = which.iter().map(|i| &unit[i * CHUNK..((i + 1) * CHUNK).min(unit.len())]);
            assert_eq!(plain, parts.collect::<Vec<_>>().concat());
            assert_eq!(usize::from(header.count), which.len());
            assert_eq!(sealed.ids.len(), which.len());
        }
    }
}

#[test]
fn every_flip_and_every_cut_is_found() {
    let random = noise(CHUNK);
    let text: Vec<u8> = random.iter().map(|b| b'a' + b % 16).collect();
    for keys in both() {
        for (unit, compression) in [(&random, Compression::None), (&text, Compression::Zstd(1))] {
            let sealed = seal(&keys, compression, unit, &[0]);
            for i in 0..sealed.bytes.len() {
                let mut bad = sealed.bytes.to_vec();
                bad[i] ^= 1;
                assert!(open(&keys, &sealed, &bad).is_err(), "{i}");
            }
            for len in 0..sealed.bytes.len() {
                assert!(open(&keys, &sealed, &sealed.bytes[..len]).is_err(), "{len}");
            }
            let longer = [&sealed.bytes[..], &[0]].concat();
            assert!(open(&keys, &sealed, &longer).is_err());
        }
    }
}

#[test]
fn an_entry_opens_only_where_it_was_sealed() {
    let unit = noise(CHUNK);
    for keys in both() {
        let sealed = seal(&keys, Compression::None, &unit, &[0]);
        let mut opener = Opener::new(keys.clone()).unwrap();
        let Place { pack, offset, .. } = sealed.place;
        let mut at = |kind, pack: &PackId, offset| {
            let mut out = Vec::new();
            opener.open_entry(kind, pack, offset, &sealed.bytes, &mut out).map(|_| ())
        };
        assert!(at(EntryKind::Chunks, &pack, offset).is_ok());
        assert!(at(EntryKind::Chunks, &pack, offset + 1).is_err());
        assert!(at(EntryKind::Chunks, &PackId::from_bytes([1; 32]), offset).is_err());
        assert!(at(EntryKind::Page, &pack, offset).is_err());
        assert!(at(EntryKind::Directory, &pack, offset).is_err());
        // the key of the pack before must not be used for the next
        assert!(at(EntryKind::Chunks, &pack, offset).is_ok());
    }
}

/// Any bytes, sealed as they are: what a broken writer or, without encryption, anyone can store.
fn forge(keys: &Keys, header: EntryHeader, payload: &[u8]) -> Result<Vec<u8>> {
    let pack = PackId::from_bytes([1; 32]);
    let bytes = seal_entry(&keys.pack_key(&pack), 64, header, payload).unwrap();
    let mut out = Vec::new();
    Opener::new(Arc::new(Keys::derive(&MasterKey::from_bytes([5; 32]), keys.encryption())))?
        .open_entry(header.kind, &pack, 64, &bytes, &mut out)?;
    Ok(out)
}

#[test]
fn bombs_and_strange_frames_are_refused() {
    for keys in both() {
        let plain = vec![0; CHUNK * 4];
        let frame = zstd::bulk::compress(&plain, 1).unwrap();
        let header = EntryHeader {
            codec: Codec::Zstd,
            kind: EntryKind::Chunks,
            count: 4,
            plain_len: 4 * 4096,
        };
        assert_eq!(forge(&keys, header, &frame).unwrap(), plain);
        let refused = |header, payload: &[u8]| assert!(forge(&keys, header, payload).is_err());
        refused(EntryHeader { plain_len: 4 * 4096 - 1, ..header }, &frame);
        refused(EntryHeader { plain_len: 4 * 4096 + 1, ..header }, &frame);
        refused(header, &[frame.clone(), vec![0]].concat());
        refused(header, &frame[..frame.len() - 1]);
        refused(header, &[]);
        // two frames, and a skippable one in front
        let half = zstd::bulk::compress(&plain[..CHUNK * 2], 1).unwrap();
        refused(header, &[half.clone(), half].concat());
        refused(header, &[&[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0], &frame[..]].concat());
        // 1 GiB in some KiB: refused by its length before anything is unpacked
        refused(EntryHeader { plain_len: 1 << 30, ..header }, &frame);
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        refused(EntryHeader { plain_len: ENTRY_PLAIN_BYTES_MAX, ..header }, &bomb);
        // headers that no writer makes
        refused(EntryHeader { count: 0, ..header }, &frame);
        refused(EntryHeader { count: 5, ..header }, &frame);
        refused(EntryHeader { count: 1025, plain_len: ENTRY_PLAIN_BYTES_MAX, ..header }, &frame);
        refused(EntryHeader { codec: Codec::Raw, ..header }, &frame);
        let page = EntryHeader { kind: EntryKind::Page, count: 1, ..header };
        assert!(forge(&keys, page, &frame).is_ok());
        refused(EntryHeader { count: 2, ..page }, &frame);
        refused(EntryHeader { plain_len: PAGE_PLAIN_BYTES_MAX + 1, ..page }, &frame);
        let directory = EntryHeader { kind: EntryKind::Directory, count: 0, ..header };
        refused(directory, &frame);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn entries_round_trip(
        len in 1..CHUNK * 6,
        symbols in 1u16..257,
        level in prop_oneof![Just(Compression::None), (-7i32..4).prop_map(Compression::Zstd)],
        encrypted: bool,
    ) {
        let keys = keys(if encrypted { Encryption::Aes256Gcm } else { Encryption::None });
        let unit: Vec<u8> =
            noise(len).iter().map(|b| u8::try_from(u16::from(*b) % symbols).unwrap()).collect();
        let which: Vec<_> = (0..len.div_ceil(CHUNK)).collect();
        let sealed = seal(&keys, level, &unit, &which);
        prop_assert!(sealed.bytes.len() <= unit.len() + 24);
        prop_assert_eq!(open(&keys, &sealed, &sealed.bytes).unwrap().1, unit);
    }

    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut opener = Opener::new(keys(Encryption::None)).unwrap();
        let pack = PackId::from_bytes([1; 32]);
        for kind in [EntryKind::Chunks, EntryKind::Page, EntryKind::Directory] {
            prop_assert!(opener.open_entry(kind, &pack, 64, &bytes, &mut Vec::new()).is_err());
        }
    }
}

/// A codec that is not known here is a newer one only where the tag vouches for it.
#[test]
fn a_codec_of_a_later_program_is_told_apart_from_a_flipped_byte() {
    for keys in both() {
        let unit = noise(CHUNK);
        let sealed = seal(&keys, Compression::None, &unit, &[0]);
        for codec in 2..=255 {
            let mut bytes = sealed.bytes.to_vec();
            bytes[0] = codec;
            let error = open(&keys, &sealed, &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "codec {codec}: {error}");
            // as a later program would have sealed it
            let Place { pack, offset, .. } = sealed.place;
            let (associated, ..) = entry_parts("an entry", &pack, offset, &bytes).unwrap();
            let key = keys.pack_key(&pack);
            let mut payload = unit.clone();
            let tag = key.seal_key().seal(u64::from(offset), &associated, &mut payload).unwrap();
            let later = [&bytes[..8], &payload, &tag].concat();
            let error = open(&keys, &sealed, &later).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "codec {codec}: {error}");
        }
    }
}
