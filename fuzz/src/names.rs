//! Names: object keys and what stands in them. What is read is written as it was.

use chunkstore::{
    BackupId, Credential, VolumeName,
    format::{FeatureName, names},
};

/// Any object key.
pub fn object_key(data: &[u8]) {
    let Ok(key) = std::str::from_utf8(data) else { return };
    let mut made = Vec::new();
    made.extend(names::parse_pack_key(key).map(|id| names::pack_key(&id)));
    made.extend(names::parse_key_key(key).map(|id| names::key_key(&id)));
    made.extend(names::parse_segment_key(key).map(|id| names::segment_key(&id)));
    made.extend(names::parse_lease_key(key).map(|id| names::lease_key(&id)));
    made.extend(names::parse_stub_key(key).map(|id| names::stub_key(&id)));
    made.extend(names::parse_damaged_key(key).map(|id| names::damaged_key(&id)));
    made.extend(names::parse_gc_key(key).map(|(id, object)| names::gc_key(&id, object)));
    made.extend(names::parse_manifest_key(key).map(|name| name.manifest_key()));
    made.extend(FeatureName::parse_key(key).map(|name| name.key()));
    made.extend(names::parse_forgotten_key(key).map(|name| name.forgotten_key()));
    assert!(made.len() <= 1, "{key:?} is a key of two kinds: {made:?}");
    assert!(made.iter().all(|made| made == key), "{key:?} became {made:?}");
    if let Ok(name) = names::AttemptName::from_path(key) {
        assert_eq!(name.to_path(), key);
    }
    if let Ok(id) = BackupId::new(key) {
        assert_eq!(id.as_str(), key);
        assert!(!key.contains(['/', '\0']) && !key.starts_with('.'), "{key:?}");
    }
}

/// A volume name, escaped or as the user writes it; a key file too.
pub fn volume_name(data: &[u8]) {
    let _ = Credential::from_key_file_bytes(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(name) = VolumeName::from_key(text) {
        assert_eq!(name.to_key(), text);
    }
    if let Ok(name) = VolumeName::new(text) {
        let key = name.to_key();
        assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b"=_-.".contains(&b)), "{key}");
        assert!(!key.starts_with('.'), "{key}");
        assert_eq!(VolumeName::from_key(&key).ok(), Some(name));
    }
}
