use super::*;
use crate::limits::KDF_MEMORY_KIB_MAX;

const CHEAP: KdfCost = KdfCost { memory_kib: 8, passes: 1, lanes: 1 };
const REPOSITORY: RepositoryId = RepositoryId::from_bytes([9; 16]);
const ID: KeyId = KeyId::from_bytes([1; 16]);

fn master() -> MasterKey {
    MasterKey::from_bytes([0x55; 32])
}

fn wrap(credential: &Credential) -> Vec<u8> {
    let created = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
    let wrapping = Wrapping { credential, label: "first", kdf: CHEAP, created };
    wrap_master_key(&master(), &REPOSITORY, &ID, &wrapping).unwrap()
}

fn credentials() -> [Credential; 2] {
    [Credential::passphrase("correct horse"), Credential::from_key_file_bytes(&[7; 32]).unwrap()]
}

#[test]
fn what_was_wrapped_comes_back() {
    for credential in credentials() {
        let bytes = wrap(&credential);
        let opened = unwrap_master_key(&credential, &REPOSITORY, &key_key(&ID), &bytes).unwrap();
        assert_eq!(opened, master());
        let info = read_key_info(&key_key(&ID), &bytes).unwrap();
        assert_eq!(
            (info.id, info.label.as_str(), info.kind.as_str()),
            (ID, "first", credential.kind())
        );
    }
}

#[test]
fn another_credential_place_or_repository_does_not_open_it() {
    let [passphrase, file] = credentials();
    let key = key_key(&ID);
    for (credential, other) in [
        (&passphrase, Credential::passphrase("correct horse ")),
        (&passphrase, file.clone()),
        (&file, Credential::from_key_file_bytes(&[8; 32]).unwrap()),
        (&file, passphrase.clone()),
    ] {
        let bytes = wrap(credential);
        let kind = |r: Result<MasterKey>| r.unwrap_err().kind();
        assert_eq!(kind(unwrap_master_key(&other, &REPOSITORY, &key, &bytes)), ErrorKind::WrongKey);
        let elsewhere = key_key(&KeyId::from_bytes([2; 16]));
        let moved = unwrap_master_key(credential, &REPOSITORY, &elsewhere, &bytes);
        assert_eq!(kind(moved), ErrorKind::WrongKey);
        let repository = RepositoryId::from_bytes([8; 16]);
        let copied = unwrap_master_key(credential, &repository, &key, &bytes);
        assert_eq!(kind(copied), ErrorKind::WrongKey);
    }
}

#[test]
fn damage_at_every_byte_is_found() {
    for credential in credentials() {
        let bytes = wrap(&credential);
        let open = |bytes: &[u8]| unwrap_master_key(&credential, &REPOSITORY, &key_key(&ID), bytes);
        for len in 0..bytes.len() {
            assert!(open(&bytes[..len]).is_err(), "{len}");
        }
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1;
            assert!(open(&bad).is_err(), "{i}");
        }
    }
}

/// The cost stands in the clear and is needed before anything can be authenticated.
#[test]
fn a_costly_key_object_is_refused_before_any_work() {
    let [passphrase, _] = credentials();
    for kdf in [
        format!(
            r#"{{"name":"argon2id","memory_kib":{},"passes":1,"lanes":1}}"#,
            KDF_MEMORY_KIB_MAX + 1
        ),
        r#"{"name":"argon2id","memory_kib":4294967295,"passes":4294967295,"lanes":1}"#.into(),
        r#"{"name":"argon2id","memory_kib":1048576,"passes":17,"lanes":1}"#.into(),
        r#"{"name":"argon2id","memory_kib":1048576,"passes":16,"lanes":17}"#.into(),
        r#"{"name":"argon2id","memory_kib":8,"passes":0,"lanes":1}"#.into(),
        r#"{"name":"scrypt","memory_kib":8,"passes":1,"lanes":1}"#.into(),
        "null".into(),
    ] {
        let json = format!(
            r#"{{"type":"key","format":1,"kind":"passphrase","label":"","created":"2024-01-01T00:00:00Z","kdf":{kdf}}}"#
        );
        let key = key_key(&ID);
        let place = RecordPlace { repository: &REPOSITORY, object_key: &key };
        let secret = Zeroizing::new([0; 32]);
        let with = RecordSeal { key: &secret, seal: Encryption::Aes256Gcm };
        let bytes = seal_record(&KIND, place, with, &[0; 32], json.as_bytes(), &[0; 32]).unwrap();
        let started = std::time::Instant::now();
        let kind = unwrap_master_key(&passphrase, &REPOSITORY, &key, &bytes).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported), "{kdf}: {kind:?}");
        assert!(started.elapsed().as_millis() < 100, "{kdf}");
    }
}

#[test]
fn useless_wrappings_are_refused() {
    let created = DateTime::from_timestamp(0, 0).unwrap();
    let refused = |credential: &Credential, kdf| {
        let wrapping = Wrapping { credential, label: "", kdf, created };
        wrap_master_key(&master(), &REPOSITORY, &ID, &wrapping).unwrap_err().kind()
    };
    assert_eq!(refused(&Credential::passphrase(""), CHEAP), ErrorKind::Usage);
    let costly = KdfCost { memory_kib: KDF_MEMORY_KIB_MAX + 1, ..CHEAP };
    assert_eq!(refused(&Credential::passphrase("x"), costly), ErrorKind::Usage);
}
