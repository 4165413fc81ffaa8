//! The seal of a record: that this controller wrote it.
//!
//! Records lie in the namespaces of claims, where others may write ConfigMaps. The controller may do
//! more than they, so it follows a record only if the seal on it is its own. The seal is a keyed
//! hash (BLAKE3, keyed mode) over the place of the record, the object that it is for, and the
//! request. The key lies in a Secret of the controller's namespace, and is made once.

use crate::api::{Api, ApiError};
use crate::engine::{self, ConfigMap, Failure, Key, Kind, MANAGER, Object, SEAL, exit};
use base64::Engine as _;
use serde_json::{Value, json};

const KEY_BYTES: usize = 32;
/// Begins each sealed text, so that a hash for another purpose is none of these.
const PURPOSE: &[u8] = b"mover.dev record v1";

/// The key of this controller's seals.
#[derive(Clone)]
pub(crate) struct Seal([u8; KEY_BYTES]);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// Reads the key, or makes it. Of two controllers that make it, one does.
    pub(crate) async fn load(api: &Api, secret: &Key) -> Result<Self, Failure> {
        if let Some(found) = api.get(secret).await? {
            return Self::read(secret, &found);
        }
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|why| Failure::new(exit::RETRYABLE, format!("get random bytes: {why}")))?;
        let metadata = json!({
            "name": secret.name,
            "namespace": secret.namespace,
            "labels": { "app.kubernetes.io/managed-by": MANAGER },
        });
        let key = base64::engine::general_purpose::STANDARD.encode(bytes);
        let body = json!({ "type": "Opaque", "immutable": true, "data": { "key": key } });
        match api.create(&engine::object(secret, metadata, body)).await {
            Ok(_) => Ok(Self(bytes)),
            Err(ApiError::Conflict(why)) => match api.get(secret).await? {
                Some(found) => Self::read(secret, &found),
                None => Err(why),
            },
            Err(why) => Err(why.into()),
        }
    }

    fn read(secret: &Key, found: &Value) -> Result<Self, Failure> {
        let text = found["data"]["key"].as_str().unwrap_or_default();
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default();
        bytes.try_into().map(Self).map_err(|_| {
            let what = format!("{secret} holds no key of {KEY_BYTES} bytes in its member `key`");
            Failure::new(exit::USAGE, what).hint("delete it: the controller makes another one, and no longer follows the records that it has not ended")
        })
    }

    /// The seal of a record.
    pub(crate) fn of(&self, record: &Key, owner: &str, request: &str) -> String {
        let namespace = record.namespace.as_deref().unwrap_or_default();
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        for part in [PURPOSE, namespace.as_bytes(), record.name.as_bytes(), owner.as_bytes()] {
            hash.update(&part.len().to_le_bytes());
            hash.update(part);
        }
        hash.update(request.as_bytes());
        hash.finalize().to_hex().to_string()
    }

    /// Whether the seal of a record is ours.
    pub(crate) fn holds(&self, record: &Object<ConfigMap>, owner: &str) -> bool {
        let request = record.body.data.get("request").map_or("", String::as_str);
        let wanted = self.of(&record.key, owner, request);
        let found = record.meta.annotations.get(SEAL).map_or("", String::as_str);
        // Compared in constant time.
        match (blake3::Hash::from_hex(&wanted), blake3::Hash::from_hex(found)) {
            (Ok(wanted), Ok(found)) => wanted == found,
            _ => false,
        }
    }

    /// A key for another purpose, the same in each life of the controller.
    pub(crate) fn derived(&self, purpose: &str) -> [u8; 32] {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        hash.update(b"mover.dev derived key v1");
        hash.update(purpose.as_bytes());
        hash.finalize().into()
    }

    /// The key of a Secret in the controller's namespace.
    pub(crate) fn key(namespace: &str, name: &str) -> Key {
        Key::new(Kind::Secret, namespace, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Meta;
    use std::collections::BTreeMap;

    fn record(seal: &Seal, name: &str, owner: &str, request: &str) -> Object<ConfigMap> {
        let key = Key::new(Kind::ConfigMap, "shop", name);
        let annotations = BTreeMap::from([(SEAL.to_owned(), seal.of(&key, owner, request))]);
        let data = BTreeMap::from([("request".to_owned(), request.to_owned())]);
        let body = ConfigMap { data, ..ConfigMap::default() };
        Object { key, meta: Meta { annotations, ..Meta::default() }, body }
    }

    #[test]
    fn a_seal_holds_for_its_own_record_alone() {
        let seal = Seal([7; KEY_BYTES]);
        let good = record(&seal, "a", "uid", "{}");
        assert!(seal.holds(&good, "uid"));
        assert!(!seal.holds(&good, "other"), "another object's");
        assert!(!Seal([8; KEY_BYTES]).holds(&good, "uid"), "another controller's");
        let mut changed = good.clone();
        changed.body.data.insert("request".into(), "{\"image\":\"evil\"}".into());
        assert!(!seal.holds(&changed, "uid"), "another request");
        let mut copied = good.clone();
        copied.key.name = "b".into();
        assert!(!seal.holds(&copied, "uid"), "another name");
        let mut bare = good;
        bare.meta.annotations.clear();
        assert!(!seal.holds(&bare, "uid"), "none");
        // The border between two parts is part of the text.
        assert_ne!(
            seal.of(&Key::new(Kind::ConfigMap, "shop", "ab"), "c", "x"),
            seal.of(&Key::new(Kind::ConfigMap, "shop", "a"), "bc", "x")
        );
    }
}
