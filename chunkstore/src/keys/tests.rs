use super::*;

fn both() -> [Encryption; 2] {
    [Encryption::Aes256Gcm, Encryption::None]
}

#[test]
fn ids_are_keyed_and_separate() {
    let one = Keys::derive(&MasterKey::from_bytes([1; 32]), Encryption::Aes256Gcm);
    let two = Keys::derive(&MasterKey::from_bytes([2; 32]), Encryption::Aes256Gcm);
    assert_eq!(one.chunk_id(b"x"), one.chunk_id(b"x"));
    assert_ne!(one.chunk_id(b"x"), one.chunk_id(b"y"));
    assert_ne!(one.chunk_id(b"x"), two.chunk_id(b"x"));
    // what a page hashes must not be what a chunk hashes
    let page = one.page_id(0, [Some([7; 32])]);
    let mut message = vec![0, 1, 0, 1];
    message.extend_from_slice(&[7; 32]);
    assert_ne!(page.as_bytes(), one.chunk_id(&message).as_bytes());
}

#[test]
fn page_ids_tell_level_count_and_zero_apart() {
    let keys = Keys::derive(&MasterKey::from_bytes([1; 32]), Encryption::None);
    let ids = [
        keys.page_id(0, [Some([0; 32])]),
        keys.page_id(1, [Some([0; 32])]),
        keys.page_id(0, [None, Some([0; 32])]),
        keys.page_id(0, [None, None]),
        keys.page_id(0, [None]),
    ];
    for (i, a) in ids.iter().enumerate() {
        assert!(ids[..i].iter().all(|b| a != b), "{i}");
    }
}

#[test]
fn what_is_sealed_opens_only_as_it_was_sealed() {
    for encryption in both() {
        let key = SealKey::new(encryption, &[3; 32]);
        let plain: Vec<u8> = (0..100).collect();
        let mut sealed = plain.clone();
        let tag = key.seal(64, b"place", &mut sealed).unwrap();
        assert_eq!(sealed == plain, encryption == Encryption::None);
        assert_eq!(key.check(b"place", &sealed, &tag).is_ok(), encryption == Encryption::None);
        let open = |key: &SealKey, nonce, associated: &[u8], data: &[u8], tag: &Tag| {
            let mut in_place = data.to_vec();
            let opened = key.open(nonce, associated, &mut in_place, tag);
            let mut out = vec![0; data.len()];
            let copied = key.open_into(nonce, associated, data, tag, &mut out);
            assert_eq!(opened, copied);
            opened.is_ok() && in_place == plain && out == plain
        };
        assert!(open(&key, 64, b"place", &sealed, &tag));
        assert!(!open(&SealKey::new(encryption, &[4; 32]), 64, b"place", &sealed, &tag));
        assert!(!open(&key, 64, b"other", &sealed, &tag));
        for i in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[i] ^= 1;
            assert!(!open(&key, 64, b"place", &bad, &tag));
        }
        for i in 0..tag.len() {
            let mut bad = tag;
            bad[i] ^= 0x80;
            assert!(!open(&key, 64, b"place", &sealed, &bad));
        }
    }
    // the nonce counts where there is one; the caller puts it into the associated data as well
    let key = SealKey::new(Encryption::Aes256Gcm, &[3; 32]);
    let mut sealed = vec![1, 2, 3];
    let tag = key.seal(64, b"", &mut sealed).unwrap();
    assert!(key.open(65, b"", &mut sealed, &tag).is_err());
}

#[test]
fn pack_keys_differ_by_pack() {
    let keys = Keys::derive(&MasterKey::random(), Encryption::Aes256Gcm);
    let pack = PackId::random();
    let key = keys.pack_key(&pack);
    assert_eq!(key.pack(), &pack);
    let mut sealed = vec![0; 8];
    let tag = key.seal_key().seal(64, b"", &mut sealed).unwrap();
    let other = keys.pack_key(&PackId::random());
    assert!(other.seal_key().open(64, b"", &mut sealed.clone(), &tag).is_err());
    assert!(keys.pack_key(&pack).seal_key().open(64, b"", &mut sealed, &tag).is_ok());
}

#[test]
fn key_files_are_raw_or_hex() {
    let raw: [u8; 32] = std::array::from_fn(|i| u8::try_from(i).unwrap());
    let hexed = hex::encode(raw);
    let (lf, crlf) = (format!("{hexed}\n"), format!("{hexed}\r\n"));
    for bytes in [&raw[..], hexed.as_bytes(), lf.as_bytes(), crlf.as_bytes()] {
        match Credential::from_key_file_bytes(bytes).unwrap() {
            Credential::KeyFile(key) => assert_eq!(*key, raw),
            Credential::Passphrase(_) => panic!("not a key file"),
        }
    }
    let long = [raw, raw].concat();
    let two = format!("{hexed}\n\n");
    for bytes in [&raw[1..], &hexed.as_bytes()[1..], &long[..33], &long, two.as_bytes(), b""] {
        assert_eq!(Credential::from_key_file_bytes(bytes).unwrap_err().kind(), ErrorKind::Usage);
    }
}

#[test]
fn secrets_are_not_printed() {
    let master = MasterKey::from_bytes([0xee; 32]);
    let keys = Keys::derive(&master, Encryption::Aes256Gcm);
    let pack = keys.pack_key(&PackId::from_bytes([0; 32]));
    let text = format!(
        "{master:?} {keys:?} {pack:?} {:?} {:?} {:?}",
        pack.seal_key(),
        Credential::passphrase("hunter2"),
        Credential::from_key_file_bytes(&[0xee; 32]).unwrap()
    );
    assert!(
        !text.contains("238") && !text.contains("ee, ee") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn kdf_cost_has_limits() {
    let fits = KdfCost { memory_kib: 8, passes: 1, lanes: 1 };
    assert_eq!(fits.problem(), None);
    assert_eq!(KdfCost::default().problem(), None);
    for bad in [
        KdfCost { memory_kib: 7, ..fits },
        KdfCost { memory_kib: KDF_MEMORY_KIB_MAX + 1, ..fits },
        KdfCost { passes: 0, ..fits },
        KdfCost { passes: KDF_PASSES_MAX + 1, ..fits },
        KdfCost { lanes: 0, ..fits },
        KdfCost { lanes: 2, ..fits },
        KdfCost { lanes: KDF_LANES_MAX + 1, memory_kib: 1 << 20, ..fits },
        KdfCost { lanes: u32::MAX, memory_kib: u32::MAX, passes: u32::MAX },
    ] {
        assert!(bad.problem().is_some(), "{bad:?}");
        assert!(stretch("x", &[0; 32], bad).is_err(), "{bad:?}");
    }
}

#[test]
fn stretching_is_deterministic_and_salted() {
    let cost = KdfCost { memory_kib: 1024, passes: 3, lanes: 1 };
    let salt = *b"somesalt12345678somesalt12345678";
    let key = stretch("password", &salt, cost).unwrap();
    assert_eq!(*key, *stretch("password", &salt, cost).unwrap());
    assert_ne!(*key, *stretch("Password", &salt, cost).unwrap());
    assert_ne!(*key, *stretch("password", &[0; 32], cost).unwrap());
}
