use super::*;
use crate::error::ErrorKind;

fn params(encryption: Encryption) -> (RepositoryParams, Keys) {
    let master = MasterKey::from_bytes([5; 32]);
    let keys = Keys::derive(&master, encryption);
    let params = RepositoryParams {
        repository_id: RepositoryId::from_bytes([9; 16]),
        chunk: ChunkSize::new(65536).unwrap(),
        entry_chunks: 16,
        page_fanout: 128,
        encryption,
        created: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
        created_by: "test 1".into(),
        clear_master_key: (encryption == Encryption::None).then_some(master),
    };
    (params, keys)
}

#[test]
fn parameters_round_trip() {
    for encryption in [Encryption::Aes256Gcm, Encryption::None] {
        let (params, keys) = params(encryption);
        let bytes = params.encode(&keys).unwrap();
        let read = RepositoryParams::decode(&bytes).unwrap();
        assert_eq!(read.unverified(), &params);
        assert_eq!(read.verify(&keys).unwrap(), params);
    }
}

#[test]
fn other_keys_do_not_verify() {
    let (params, keys) = params(Encryption::Aes256Gcm);
    let bytes = params.encode(&keys).unwrap();
    let other = Keys::derive(&MasterKey::from_bytes([6; 32]), Encryption::Aes256Gcm);
    let error = RepositoryParams::decode(&bytes).unwrap().verify(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn damage_at_every_byte_is_found() {
    for encryption in [Encryption::Aes256Gcm, Encryption::None] {
        let (params, keys) = params(encryption);
        let bytes = params.encode(&keys).unwrap();
        for len in 0..bytes.len() {
            assert!(RepositoryParams::decode(&bytes[..len]).is_err(), "{len}");
        }
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1;
            let read = RepositoryParams::decode(&bad).and_then(|p| {
                let keys = Keys::derive(&MasterKey::from_bytes([5; 32]), p.unverified().encryption);
                p.verify(&keys)
            });
            assert!(read.is_err(), "{i}");
        }
    }
}

/// Writes `format` with any JSON in it, correctly sealed.
fn with_json(keys: &Keys, json: &str) -> Vec<u8> {
    let with = RecordSeal { key: keys.format(), seal: Encryption::None };
    seal_record(&KIND, PLACE, with, &[0; 32], json.as_bytes(), &[]).unwrap()
}

#[test]
fn parameters_beyond_the_limits_are_refused() {
    let (params, keys) = params(Encryption::Aes256Gcm);
    let bytes = params.encode_with_salt(&keys, &[0; 32]).unwrap();
    let json = std::str::from_utf8(view_record(&KIND, FORMAT_KEY, &bytes).unwrap().clear).unwrap();
    assert_eq!(with_json(&keys, json), bytes);
    let kind = |from: &str, to: &str| {
        assert!(json.contains(from), "{from} not in {json}");
        let bytes = with_json(&keys, &json.replace(from, to));
        RepositoryParams::decode(&bytes).and_then(|p| p.verify(&keys)).err().map(|e| e.kind())
    };
    let (corrupt, newer) = (Some(ErrorKind::Corrupt), Some(ErrorKind::Unsupported));
    assert_eq!(kind(r#""chunk_bytes":65536"#, r#""chunk_bytes":65536,"later":[1]"#), None);
    assert_eq!(kind(r#""chunk_bytes":65536"#, r#""chunk_bytes":65537"#), corrupt);
    assert_eq!(kind(r#""chunk_bytes":65536"#, r#""chunk_bytes":8388608"#), corrupt);
    assert_eq!(kind(r#""chunk_bytes":65536"#, r#""chunk_bytes":"65536""#), corrupt);
    assert_eq!(kind(r#""entry_chunks":16"#, r#""entry_chunks":0"#), corrupt);
    assert_eq!(kind(r#""entry_chunks":16"#, r#""entry_chunks":257"#), corrupt);
    assert_eq!(kind(r#""page_fanout":128"#, r#""page_fanout":100"#), corrupt);
    assert_eq!(kind(r#""page_fanout":128"#, r#""page_fanout":8"#), corrupt);
    assert_eq!(kind(r#""page_fanout":128"#, r#""page_fanout":2048"#), corrupt);
    assert_eq!(kind(r#""encryption":"aes-256-gcm""#, r#""encryption":"rot13""#), corrupt);
    assert_eq!(kind(r#""encryption":"aes-256-gcm""#, r#""encryption":"none""#), corrupt);
    assert_eq!(kind(r#""type":"repository""#, r#""type":"other""#), corrupt);
    assert_eq!(kind(r#""format":1"#, r#""format":2"#), newer);
    assert_eq!(kind(r#""required_features":1"#, r#""required_features":3"#), newer);
    // a later version may have changed the rest as well
    assert_eq!(kind(r#""required_features":1,"#, r#""required_features":5,"later":"#), corrupt);
    assert_eq!(
        kind(r#""required_features":1,"chunk_bytes""#, r#""required_features":5,"size""#),
        newer
    );
}

#[test]
fn makers_are_told_what_is_wrong() {
    let (mut params, keys) = params(Encryption::Aes256Gcm);
    params.entry_chunks = 0;
    assert_eq!(params.encode(&keys).unwrap_err().kind(), ErrorKind::Usage);
}
