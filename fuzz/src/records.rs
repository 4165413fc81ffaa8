//! Records: the envelope, and each body behind its tag.

use crate::kit::{HEADER, REPOSITORY, SALT, TAG, must, plain_keys, split};
use chunkstore::limits::{MAGIC_FORMAT, MAGIC_KEY, PAGE_FANOUT_MAX, PAGE_FANOUT_MIN};
use chunkstore::testkit::{fuzzing, golden};
use chunkstore::{
    ErrorKind,
    format::{
        Blockers, Condemned, Damaged, Feature, Forgotten, Lease, ManifestRecord, Page,
        RepositoryParams, Stub, Verdict, read_key_info,
    },
};

/// Where the records of the corpora stand; the backup is named in their bodies too.
const MANIFEST: &str = "backups/pvc=2Fdata/2025.1/0";
const FEATURE: &str = "features/write/golden";
const FORGOTTEN: &str = "forgotten/pvc=2Fdata/2025.1/0";
const LEASE: &str = "leases/77777777777777777777777777777777";
const DAMAGED: &str = "damaged/77777777777777777777777777777777";
const KEY: &str = "keys/77777777777777777777777777777777";
const MOVED: &str = "moved/3535353535353535353535353535353535353535353535353535353535353535";
const CONDEMNED: &str = "gc/77777777777777777777777777777777/condemned";
const BLOCKERS: &str = "gc/77777777777777777777777777777777/blockers";
const VERDICT: &str = "gc/77777777777777777777777777777777/verdict";

/// The envelope of a record that has a clear part, and of one that may not.
pub fn record(data: &[u8]) {
    let keys = plain_keys();
    for clear in [true, false] {
        let Ok((sealed, body)) = fuzzing::record(&keys, data, clear) else { continue };
        assert_eq!(sealed, data[..data.len() - TAG]);
        assert!(sealed.ends_with(&body));
        assert!(clear || sealed.len() == HEADER + body.len());
    }
}

/// A record whose tag nobody looks at: the bodies of `format` and of key objects are in the clear.
fn clear_record(magic: [u8; 8], seal: u8, clear: &[u8], body_len: u8) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend([1, 0, seal, 0, 0, 0, 0, 0]);
    out.extend(SALT);
    out.extend(u32::try_from(clear.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend([0; 4]);
    out.extend(u64::from(body_len).to_le_bytes());
    out.extend(clear);
    out.extend(std::iter::repeat_n(7, usize::from(body_len) + TAG));
    out
}

/// The parameters of a repository: the JSON of `format`.
pub fn repository_params(data: &[u8]) {
    let bytes = clear_record(MAGIC_FORMAT, 0, data, 0);
    let Ok(found) = RepositoryParams::decode(&bytes) else { return };
    let params = found.unverified().clone();
    must(params.check());
    let keys = plain_keys();
    if params.encryption == keys.encryption() {
        assert!(found.verify(&keys).is_err(), "there is no such tag");
        let bytes = must(golden::format(&params, &keys, &SALT));
        assert_eq!(must(must(RepositoryParams::decode(&bytes)).verify(&keys)), params);
    }
}

/// What a key object says in the clear: its JSON.
pub fn key_info(data: &[u8]) {
    let bytes = clear_record(MAGIC_KEY, 1, data, 32);
    if let Ok(info) = read_key_info(KEY, &bytes) {
        assert_eq!(format!("keys/{}", info.id), KEY);
    }
}

/// Seals a body and reads it. `$form`: what is read is written as the very bytes, or in a form that
/// means the same.
macro_rules! body {
    ($(#[$doc:meta])* $target:ident, $type:ty, $encode:ident, $of_body:ident, $key:ident, $form:ident) => {
        $(#[$doc])*
        pub fn $target(data: &[u8]) {
            let keys = plain_keys();
            // longer than such a record may be
            let Ok(sealed) = golden::$of_body(data, &keys, &REPOSITORY, $key, &SALT) else { return };
            let found = match <$type>::decode(&keys, &REPOSITORY, $key, &sealed) {
                Ok(found) => found,
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{error:?}");
                    return;
                }
            };
            let again = golden::$encode(&found, &keys, &REPOSITORY, $key, &SALT);
            body!($form, $type, found, sealed, again, keys, $key);
        }
    };
    (bytes, $type:ty, $found:ident, $sealed:ident, $again:ident, $keys:ident, $key:ident) => {
        assert_eq!(must($again), $sealed, "{:?}", $found);
    };
    (json, $type:ty, $found:ident, $sealed:ident, $again:ident, $keys:ident, $key:ident) => {
        let again = <$type>::decode(&$keys, &REPOSITORY, $key, &must($again));
        assert_eq!(must(again), $found);
    };
}

body!(
    /// The JSON of a manifest or of a fence in its place.
    manifest, ManifestRecord, manifest, manifest_of_body, MANIFEST, json
);
body!(
    /// The JSON of a lease.
    lease, Lease, lease, lease_of_body, LEASE, json
);
body!(
    /// The JSON of a forgotten record.
    forgotten, Forgotten, forgotten, forgotten_of_body, FORGOTTEN, json
);
body!(
    /// The JSON of a damage record.
    damaged, Damaged, damaged, damaged_of_body, DAMAGED, json
);
body!(
    /// The JSON of a feature.
    feature, Feature, feature, feature_of_body, FEATURE, json
);
body!(
    /// The body of a forwarding stub.
    moved, Stub, stub, stub_of_body, MOVED, bytes
);
body!(
    /// The body of a condemned list or of a fence in its place.
    condemned, Condemned, condemned, condemned_of_body, CONDEMNED, bytes
);
body!(
    /// The body of the blockers of a collection.
    blockers, Blockers, blockers, blockers_of_body, BLOCKERS, bytes
);
body!(
    /// The body of a verdict.
    verdict, Verdict, verdict, verdict_of_body, VERDICT, bytes
);

/// A map page. Before it: whether pages may have few or many children.
pub fn page(data: &[u8]) {
    let Some(([few], plain)) = split::<1>(data) else { return };
    let fanout = if few % 2 == 0 { PAGE_FANOUT_MIN } else { PAGE_FANOUT_MAX };
    let Ok(found) = Page::decode(plain, fanout) else { return };
    assert_eq!(must(found.encode()), plain);
    let children = found.children();
    assert!(!found.is_zero() && children.len() <= usize::from(fanout), "{found:?}");
    for i in 0..=children.len() {
        let child = found.child(i);
        let place = if found.level() == 0 {
            found.chunk_ref(i).map(|r| r.location)
        } else {
            found.page_ref(i).map(|r| r.location)
        };
        assert_eq!(place, child.map(|c| c.location));
    }
    let again = Page::new(found.level(), children.to_vec());
    assert_eq!(again.id(&plain_keys()), found.id(&plain_keys()));
}
