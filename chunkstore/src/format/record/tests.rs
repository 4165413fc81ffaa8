use super::*;
use crate::format::test_kit::{REPOSITORY, both};
use proptest::prelude::*;
use zeroize::Zeroizing;

const PLAIN: RecordKind =
    RecordKind { name: "test", magic: *b"MVRTEST1", body_bytes_max: 100, clear: false };
const CLEAR: RecordKind = RecordKind { clear: true, ..PLAIN };
const PLACE: RecordPlace<'_> = RecordPlace { repository: &REPOSITORY, object_key: "test/1" };

fn secret() -> Secret {
    Zeroizing::new([3; 32])
}

fn sealed(kind: &RecordKind, seal: Encryption, clear: &[u8], body: &[u8]) -> Vec<u8> {
    let key = secret();
    seal_record(kind, PLACE, RecordSeal { key: &key, seal }, &[4; 32], clear, body).unwrap()
}

fn open(kind: &RecordKind, seal: Encryption, bytes: &[u8]) -> Result<Vec<u8>> {
    open_record(kind, PLACE, RecordSeal { key: &secret(), seal }, bytes)
}

/// The same record with the tag that who wrote these bytes would have given it.
fn tagged_anew(mut bytes: Vec<u8>) -> Vec<u8> {
    let view = view_record(&PLAIN, "test/1", &bytes).unwrap();
    let associated = associated_data(PLACE, view.head).unwrap();
    let key = SealKey::new(Encryption::None, &keyed(&secret(), &view.salt));
    let tag = key.seal(0, &associated, &mut view.body.to_vec()).unwrap();
    let at = bytes.len() - tag.len();
    bytes[at..].copy_from_slice(&tag);
    bytes
}

#[test]
fn the_layout_is_as_documented() {
    let bytes = sealed(&CLEAR, Encryption::None, b"clear", b"body");
    let mut want = b"MVRTEST1\x01\x00\x00\x00\x00\x00\x00\x00".to_vec();
    want.extend([4; 32]);
    want.extend([5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    want.extend(b"clearbody");
    let mut associated = REPOSITORY.as_bytes().to_vec();
    associated.extend([6, 0]);
    associated.extend(b"test/1");
    associated.extend(&want[..69]);
    let key = keyed(&secret(), &[4; 32]);
    let tag = blake3::keyed_hash(&key, &[&associated[..], b"body"].concat());
    want.extend(&tag.as_bytes()[..16]);
    assert_eq!(bytes, want);
    assert_eq!(open(&CLEAR, Encryption::None, &bytes).unwrap(), b"body");
    let encrypted = sealed(&CLEAR, Encryption::Aes256Gcm, b"clear", b"body");
    assert_eq!((encrypted.len(), encrypted[10]), (want.len(), 1));
    assert_ne!(encrypted[69..73], *b"body");
}

#[test]
fn kinds_do_not_stand_for_each_other() {
    let bytes = sealed(&PLAIN, Encryption::None, b"", b"body");
    let other = RecordKind { magic: *b"MVRTEST2", ..PLAIN };
    assert_eq!(open(&other, Encryption::None, &bytes).unwrap_err().kind(), ErrorKind::Corrupt);
    let clear = sealed(&CLEAR, Encryption::None, b"clear", b"body");
    assert!(open(&PLAIN, Encryption::None, &clear).is_err(), "it has no clear part");
    assert!(open(&CLEAR, Encryption::Aes256Gcm, &clear).is_err(), "another seal");
}

#[test]
fn versions_and_seals_of_later_programs_are_told_apart_from_damage() {
    let bytes = sealed(&PLAIN, Encryption::None, b"", b"body");
    for (at, value) in [(8, 2), (9, 1), (10, 2), (12, 1)] {
        let mut later = bytes.clone();
        later[at] = value;
        let error = open(&PLAIN, Encryption::None, &later).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: nothing vouches for it");
        let error = open(&PLAIN, Encryption::None, &tagged_anew(later)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "byte {at}");
        assert!(error.hint_text().is_some());
    }
    for at in [0, 11, 52, 55] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x80;
        let error = open(&PLAIN, Encryption::None, &damaged).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
    }
}

#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    let bytes = sealed(&CLEAR, Encryption::None, b"clear", b"body");
    for (at, lens) in [(48, [RECORD_CLEAR_BYTES_MAX + 1, u32::MAX]), (56, [101, u32::MAX])] {
        for len in lens {
            let mut bad = bytes.clone();
            bad[at..at + 4].copy_from_slice(&len.to_le_bytes());
            assert!(open(&CLEAR, Encryption::None, &bad).is_err(), "{len} at {at}");
        }
    }
    let mut bad = bytes;
    bad[56..64].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(open(&CLEAR, Encryption::None, &bad).is_err());
}

#[test]
fn what_is_too_long_is_not_sealed() {
    let key = secret();
    for seal in [Encryption::None, Encryption::Aes256Gcm] {
        let try_seal = |kind: &RecordKind, place, clear: usize, body: usize| {
            let with = RecordSeal { key: &key, seal };
            seal_record(kind, place, with, &[4; 32], &vec![0; clear], &vec![0; body]).is_ok()
        };
        assert!(try_seal(&PLAIN, PLACE, 0, 100));
        assert!(!try_seal(&PLAIN, PLACE, 0, 101));
        assert!(!try_seal(&PLAIN, PLACE, 1, 0));
        assert!(try_seal(&CLEAR, PLACE, RECORD_CLEAR_BYTES_MAX as usize, 0));
        assert!(!try_seal(&CLEAR, PLACE, RECORD_CLEAR_BYTES_MAX as usize + 1, 0));
        let long = "x".repeat(65536);
        assert!(!try_seal(&PLAIN, RecordPlace { object_key: &long, ..PLACE }, 0, 0));
    }
}

/// The length of the object key is part of what the tag covers: key and header cannot be shifted
/// against each other.
#[test]
fn the_place_is_unambiguous() {
    let head = [1, 2, 3];
    let a = associated_data(RecordPlace { object_key: "a\u{1}", ..PLACE }, &head).unwrap();
    let b = associated_data(RecordPlace { object_key: "a", ..PLACE }, &[1, 1, 2, 3]).unwrap();
    assert_ne!(a, b);
}

proptest! {
    #[test]
    fn records_round_trip(
        clear in proptest::collection::vec(any::<u8>(), 0..200),
        body in proptest::collection::vec(any::<u8>(), 0..=100),
    ) {
        for (seal, _) in both() {
            let bytes = sealed(&CLEAR, seal, &clear, &body);
            prop_assert_eq!(open(&CLEAR, seal, &bytes).unwrap(), body.clone());
            prop_assert_eq!(view_record(&CLEAR, "test/1", &bytes).unwrap().clear, clear.as_slice());
        }
    }

    #[test]
    fn noise_behind_a_good_head_never_panics(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        keep in 0usize..64,
    ) {
        let good = sealed(&CLEAR, Encryption::None, b"", b"");
        let bytes = [&good[..keep], &noise].concat();
        prop_assert!(open(&CLEAR, Encryption::None, &bytes).is_err());
    }
}
