//! Object keys, relative to the repository's root, and their inverses: `docs/format.md`, section 2.
//!
//! Each `parse_*` takes a whole object key and refuses what its counterpart cannot have made.

use super::feature::FeatureName;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BackupId, DamageId, GenerationId, KeyId, LeaseId, PackId, SegmentId, VolumeName};
use std::fmt;

/// Key of the repository's parameters.
pub const FORMAT_KEY: &str = "format";
/// Key of the second copy of [`FORMAT_KEY`].
pub const FORMAT_COPY_KEY: &str = "format-copy";
/// Key of a text for people, which no program reads.
pub const README_KEY: &str = "README";
/// Prefix of the wrappings of the master key.
pub const KEYS_PREFIX: &str = "keys/";
/// Prefix of packs.
pub const PACKS_PREFIX: &str = "packs/";
/// Prefix of manifests.
pub const BACKUPS_PREFIX: &str = "backups/";
/// Prefix of dedup segments.
pub const DEDUP_PREFIX: &str = "dedup/";
/// Prefix of leases.
pub const LEASES_PREFIX: &str = "leases/";
/// Prefix of forwarding stubs.
pub const STUBS_PREFIX: &str = "moved/";
/// Prefix of collections.
pub const GC_PREFIX: &str = "gc/";
/// Prefix of forgotten records.
pub const FORGOTTEN_PREFIX: &str = "forgotten/";
/// Prefix of damage records.
pub const DAMAGED_PREFIX: &str = "damaged/";
/// Prefix of removals of keys that are under way.
pub const REMOVALS_PREFIX: &str = "removals/";
/// Prefix of features.
pub const FEATURES_PREFIX: &str = "features/";

/// Objects that lie below no prefix and that programs read.
pub const TOP_KEYS: [&str; 2] = [FORMAT_KEY, FORMAT_COPY_KEY];

/// All prefixes of a repository: nothing of it but [`TOP_KEYS`] and [`README_KEY`] is elsewhere.
pub const PREFIXES: [&str; 11] = [
    KEYS_PREFIX,
    PACKS_PREFIX,
    BACKUPS_PREFIX,
    DEDUP_PREFIX,
    LEASES_PREFIX,
    STUBS_PREFIX,
    GC_PREFIX,
    FORGOTTEN_PREFIX,
    DAMAGED_PREFIX,
    REMOVALS_PREFIX,
    FEATURES_PREFIX,
];

/// What file systems and their servers put into directories by themselves: of no repository, and
/// nobody's data.
pub const NOT_OURS: [&str; 2] = ["lost+found", ".snapshot"];

/// Directories between a prefix and its objects, where a store is a directory.
pub fn directory_levels(prefix: &str) -> usize {
    match prefix {
        BACKUPS_PREFIX | FORGOTTEN_PREFIX => 2,
        PACKS_PREFIX | GC_PREFIX | REMOVALS_PREFIX | FEATURES_PREFIX => 1,
        _ => 0,
    }
}

/// Whether a repository can have an object of this key.
pub fn is_key(key: &str) -> bool {
    TOP_KEYS.contains(&key)
        || parse_key_key(key).is_ok()
        || parse_pack_key(key).is_ok()
        || parse_manifest_key(key).is_ok()
        || parse_segment_key(key).is_ok()
        || parse_lease_key(key).is_ok()
        || parse_stub_key(key).is_ok()
        || parse_gc_key(key).is_ok()
        || parse_forgotten_key(key).is_ok()
        || parse_damaged_key(key).is_ok()
        || parse_removal_key(key).is_ok()
        || FeatureName::parse_key(key).is_ok()
}

/// One attempt at one backup of one volume: what a manifest key names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptName {
    /// The volume.
    pub volume: VolumeName,
    /// The backup.
    pub backup_id: BackupId,
    /// From 0; a fenced attempt is followed by the next.
    pub attempt: u32,
}

impl AttemptName {
    /// Whether this is an attempt of the same backup.
    pub fn is_of(&self, other: &Self) -> bool {
        (&self.volume, &self.backup_id) == (&other.volume, &other.backup_id)
    }

    /// `<volume>/<backup id>/<attempt>`, the volume escaped: the part that manifests and forgotten
    /// records share.
    pub fn to_path(&self) -> String {
        format!("{}/{}/{}", self.volume.to_key(), self.backup_id, self.attempt)
    }

    /// Inverse of [`Self::to_path`].
    pub fn from_path(path: &str) -> Result<Self> {
        let bad = || not_a_key("backup", path);
        let mut parts = path.split('/');
        let (Some(volume), Some(id), Some(attempt), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let number: u32 = attempt.parse().map_err(|_| bad())?;
        if number.to_string() != attempt {
            return Err(bad());
        }
        Ok(Self {
            volume: VolumeName::from_key(volume)?,
            backup_id: BackupId::new(id).map_err(|_| bad())?,
            attempt: number,
        })
    }

    /// Key of its manifest.
    pub fn manifest_key(&self) -> String {
        format!("{BACKUPS_PREFIX}{}", self.to_path())
    }

    /// Key of its forgotten record.
    pub fn forgotten_key(&self) -> String {
        format!("{FORGOTTEN_PREFIX}{}", self.to_path())
    }
}

impl fmt::Display for AttemptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} (attempt {})", self.volume, self.backup_id, self.attempt)
    }
}

fn not_a_key(what: &str, key: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("read object key {key:?}"),
        format!("it is not one of a {what}"),
    )
}

fn tail<'a>(what: &str, key: &'a str, prefix: &str) -> Result<&'a str> {
    key.strip_prefix(prefix).ok_or_else(|| not_a_key(what, key))
}

/// Key of a pack: spread over 256 prefixes, for stores that split their index by prefix.
pub fn pack_key(pack: &PackId) -> String {
    let hex = pack.to_hex();
    format!("{PACKS_PREFIX}{}/{hex}", &hex[..2])
}

/// Inverse of [`pack_key`].
pub fn parse_pack_key(key: &str) -> Result<PackId> {
    let rest = tail("pack", key, PACKS_PREFIX)?;
    let (start, hex) = rest.split_once('/').ok_or_else(|| not_a_key("pack", key))?;
    let pack = PackId::from_hex(hex).map_err(|_| not_a_key("pack", key))?;
    if start.len() == 2 && hex.starts_with(start) { Ok(pack) } else { Err(not_a_key("pack", key)) }
}

/// Key of a manifest.
pub fn manifest_key(volume: &VolumeName, backup_id: &BackupId, attempt: u32) -> String {
    format!("{}{backup_id}/{attempt}", manifests_of(volume))
}

/// Inverse of [`manifest_key`].
pub fn parse_manifest_key(key: &str) -> Result<AttemptName> {
    AttemptName::from_path(tail("manifest", key, BACKUPS_PREFIX)?)
}

/// Prefix of all manifests of a volume.
pub fn manifests_of(volume: &VolumeName) -> String {
    format!("{BACKUPS_PREFIX}{}/", volume.to_key())
}

/// Key of a forgotten record.
pub fn forgotten_key(volume: &VolumeName, backup_id: &BackupId, attempt: u32) -> String {
    format!("{}{backup_id}/{attempt}", forgotten_of(volume))
}

/// Inverse of [`forgotten_key`].
pub fn parse_forgotten_key(key: &str) -> Result<AttemptName> {
    AttemptName::from_path(tail("forgotten record", key, FORGOTTEN_PREFIX)?)
}

/// Prefix of all forgotten records of a volume.
pub fn forgotten_of(volume: &VolumeName) -> String {
    format!("{FORGOTTEN_PREFIX}{}/", volume.to_key())
}

macro_rules! by_id {
    ($($what:literal, $id:ident, $prefix:ident, $make:ident, $parse:ident;)*) => {$(
        #[doc = concat!("Key of a ", $what, ".")]
        pub fn $make(id: &$id) -> String {
            format!("{}{}", $prefix, id.to_hex())
        }

        #[doc = concat!("Inverse of [`", stringify!($make), "`].")]
        pub fn $parse(key: &str) -> Result<$id> {
            $id::from_hex(tail($what, key, $prefix)?).map_err(|_| not_a_key($what, key))
        }
    )*};
}

by_id! {
    "wrapping of the master key", KeyId, KEYS_PREFIX, key_key, parse_key_key;
    "dedup segment", SegmentId, DEDUP_PREFIX, segment_key, parse_segment_key;
    "lease", LeaseId, LEASES_PREFIX, lease_key, parse_lease_key;
    "forwarding stub", PackId, STUBS_PREFIX, stub_key, parse_stub_key;
    "damage record", DamageId, DAMAGED_PREFIX, damaged_key, parse_damaged_key;
}

/// Prefix of the removals of one wrapping.
pub fn removals_of(key: &KeyId) -> String {
    format!("{REMOVALS_PREFIX}{key}/")
}

/// Key of one removal of a wrapping. The object is empty: its name says all.
pub fn removal_key(key: &KeyId, removal: &KeyId) -> String {
    format!("{}{removal}", removals_of(key))
}

/// Inverse of [`removal_key`].
pub fn parse_removal_key(key: &str) -> Result<(KeyId, KeyId)> {
    let bad = || not_a_key("removal of a wrapping", key);
    let names = tail("removal of a wrapping", key, REMOVALS_PREFIX)?;
    let (of, removal) = names.split_once('/').ok_or_else(bad)?;
    let id = |hex| KeyId::from_hex(hex).map_err(|_| bad());
    Ok((id(of)?, id(removal)?))
}

/// One object of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GcObject {
    /// What it means to delete.
    Condemned,
    /// The leases it must wait for.
    Blockers,
    /// What was decided.
    Verdict,
}

impl GcObject {
    fn name(self) -> &'static str {
        match self {
            Self::Condemned => "condemned",
            Self::Blockers => "blockers",
            Self::Verdict => "verdict",
        }
    }
}

/// Key of an object of a collection.
pub fn gc_key(generation: &GenerationId, object: GcObject) -> String {
    format!("{GC_PREFIX}{generation}/{}", object.name())
}

/// Inverse of [`gc_key`].
pub fn parse_gc_key(key: &str) -> Result<(GenerationId, GcObject)> {
    let bad = || not_a_key("collection", key);
    let (generation, name) = tail("collection", key, GC_PREFIX)?.split_once('/').ok_or_else(bad)?;
    let object = [GcObject::Condemned, GcObject::Blockers, GcObject::Verdict]
        .into_iter()
        .find(|o| o.name() == name)
        .ok_or_else(bad)?;
    Ok((GenerationId::from_hex(generation).map_err(|_| bad())?, object))
}

/// Key of a condemned list.
pub fn condemned_key(generation: &GenerationId) -> String {
    gc_key(generation, GcObject::Condemned)
}

/// Key of a collection's blockers.
pub fn blockers_key(generation: &GenerationId) -> String {
    gc_key(generation, GcObject::Blockers)
}

/// Key of a collection's verdict.
pub fn verdict_key(generation: &GenerationId) -> String {
    gc_key(generation, GcObject::Verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_key_has_an_inverse() {
        let pack = PackId::from_bytes([0xab; 32]);
        assert_eq!(pack_key(&pack), format!("packs/ab/{}", "ab".repeat(32)));
        assert_eq!(parse_pack_key(&pack_key(&pack)).unwrap(), pack);
        assert_eq!(parse_stub_key(&stub_key(&pack)).unwrap(), pack);
        let generation = GenerationId::from_bytes([1; 16]);
        for object in [GcObject::Condemned, GcObject::Blockers, GcObject::Verdict] {
            assert_eq!(parse_gc_key(&gc_key(&generation, object)).unwrap(), (generation, object));
        }
        let lease = LeaseId::random();
        assert_eq!(parse_lease_key(&lease_key(&lease)).unwrap(), lease);
        let volume = VolumeName::new("pvc/a b").unwrap();
        let id = BackupId::new("2024.1").unwrap();
        let key = manifest_key(&volume, &id, 12);
        assert_eq!(key, "backups/pvc=2Fa=20b/2024.1/12");
        let name = parse_manifest_key(&key).unwrap();
        assert_eq!((&name.volume, &name.backup_id, name.attempt), (&volume, &id, 12));
        assert_eq!(name.manifest_key(), key);
        assert_eq!(parse_forgotten_key(&forgotten_key(&volume, &id, 12)).unwrap(), name);
        assert_eq!(name.forgotten_key(), forgotten_key(&volume, &id, 12));
        assert!(key.starts_with(&manifests_of(&volume)));
    }

    #[test]
    fn a_key_of_every_prefix_is_one() {
        let (pack, generation) = (PackId::from_bytes([7; 32]), GenerationId::from_bytes([1; 16]));
        let (volume, id) = (VolumeName::new("v").unwrap(), BackupId::new("b").unwrap());
        let keys = [
            key_key(&KeyId::random()),
            pack_key(&pack),
            manifest_key(&volume, &id, 0),
            segment_key(&SegmentId::random()),
            lease_key(&LeaseId::random()),
            stub_key(&pack),
            gc_key(&generation, GcObject::Verdict),
            forgotten_key(&volume, &id, 0),
            damaged_key(&DamageId::random()),
            removal_key(&KeyId::random(), &KeyId::random()),
            "features/read/one".to_owned(),
        ];
        assert_eq!(keys.len(), PREFIXES.len());
        for (key, prefix) in keys.iter().zip(PREFIXES) {
            assert_eq!(key.split('/').count(), 2 + directory_levels(prefix), "{key}");
            assert!(is_key(key) && key.starts_with(prefix), "{key}");
            assert!(!is_key(&format!("x/{key}")) && !is_key(&format!("{key}/x")), "{key}");
            assert!(!is_key(prefix), "{prefix}");
        }
        assert!(is_key(FORMAT_KEY) && is_key(FORMAT_COPY_KEY) && !is_key("Issue") && !is_key(""));
    }

    #[test]
    fn strange_keys_are_refused() {
        let hex = "ab".repeat(32);
        for key in [
            format!("packs/ac/{hex}"),
            format!("packs/{hex}"),
            format!("packs/ab/{}", hex.to_uppercase()),
            format!("packs/ab/{hex}/"),
            format!("packs//{hex}"),
            format!("pack/ab/{hex}"),
        ] {
            assert!(parse_pack_key(&key).is_err(), "{key}");
        }
        for key in [
            "backups/a/b",
            "backups/a/b/c",
            "backups/a/b/01",
            "backups/a/b/+1",
            "backups/a/b/4294967296",
            "backups/a/.b/1",
            "backups/=41/b/1",
            "backups/a/b/1/",
            "backups//b/1",
            "forgotten/a/b/1",
        ] {
            assert!(parse_manifest_key(key).is_err(), "{key}");
        }
        assert!(parse_gc_key(&format!("gc/{}/other", "0".repeat(32))).is_err());
    }

    proptest! {
        #[test]
        fn names_of_any_text_round_trip(text in ".{1,60}", id in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", attempt: u32) {
            let Ok(volume) = VolumeName::new(text.as_str()) else {
                prop_assert!(text.len() > 66, "only long names of escapes are refused");
                return Ok(());
            };
            let name = AttemptName { volume, backup_id: BackupId::new(id).unwrap(), attempt };
            prop_assert_eq!(&parse_manifest_key(&name.manifest_key()).unwrap(), &name);
            prop_assert_eq!(&parse_forgotten_key(&name.forgotten_key()).unwrap(), &name);
            let path = name.to_path();
            prop_assert!(path.bytes().all(|b| b.is_ascii_alphanumeric() || b"=_-./".contains(&b)));
            prop_assert!(path.split('/').all(|part| !part.starts_with('.')));
        }

        #[test]
        fn a_key_that_parses_is_the_only_one_of_its_name(key in "backups/[a-c=.2F]{1,6}/[a-b.]{1,3}/[0-9+]{1,3}") {
            if let Ok(name) = parse_manifest_key(&key) {
                prop_assert_eq!(name.manifest_key(), key);
            }
        }
    }
}
