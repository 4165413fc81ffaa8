//! The bytes of one object of each kind, by their hash: a change of any is a change of the format.

use super::*;
use crate::format::feature::{FeatureName, FeatureNeed};
use crate::format::gc::{Blocker, CondemnedList};
use crate::format::key::unwrap_master_key;
use crate::format::manifest::{
    BackupStats, ChangeKind, Manifest, MapRoot, ParentRef, SnapshotInfo, SourceInfo,
};
use crate::format::names::{self, AttemptName};
use crate::format::page::{Child, Page};
use crate::format::segment::{SegmentRecord, encode_segment};
use crate::ids::{BackupId, ChunkId, GenerationId, LeaseId, SegmentId, VolumeName};
use crate::keys::{Credential, Encryption, KdfCost};
use crate::pack::PackBuilder;
use crate::seal::{Compression, Sealer};
use crate::units::{ChunkSize, Location, PageRef};
use chrono::{DateTime, Utc};

const REPOSITORY: RepositoryId = RepositoryId::from_bytes([0x11; 16]);
const SALT: [u8; 32] = [0x22; 32];
const PACK: PackId = PackId::from_bytes([0x33; 32]);

fn time() -> DateTime<Utc> {
    DateTime::from_timestamp(1_735_689_600, 0).unwrap()
}

fn master() -> MasterKey {
    MasterKey::from_bytes([0x44; 32])
}

fn keys(encryption: Encryption) -> Arc<Keys> {
    Arc::new(Keys::derive(&master(), encryption))
}

fn name() -> AttemptName {
    AttemptName {
        volume: VolumeName::new("pvc/data").unwrap(),
        backup_id: BackupId::new("2025.1").unwrap(),
        attempt: 0,
    }
}

fn params(encryption: Encryption) -> RepositoryParams {
    RepositoryParams {
        repository_id: REPOSITORY,
        chunk: ChunkSize::new(4096).unwrap(),
        entry_chunks: 16,
        page_fanout: 16,
        encryption,
        created: time(),
        created_by: "golden".into(),
        clear_master_key: (encryption == Encryption::None).then(master),
    }
}

/// A pack with one entry of two chunks, the leaf over them in another pack, and where the leaf is.
fn packs(encryption: Encryption) -> (Vec<u8>, Vec<u8>, PageRef) {
    let keys = keys(encryption);
    let unit: Vec<u8> = (0..6000u32).map(|i| u8::try_from(i % 7).unwrap()).collect();
    let ids = [keys.chunk_id(&unit[..4096]), keys.chunk_id(&unit[4096..])];
    // raw, so that a new version of the codec changes nothing here
    let mut sealer = Sealer::new(Compression::None).unwrap();
    let alloc = pack_allocator(keys.clone(), PackKind::Chunks, 1, vec![PACK]);
    let sealed = sealer.seal_chunks(&alloc, &unit, &[0..4096, 4096..6000], &ids).unwrap();
    let child =
        |i: u16| Child { id: *ids[usize::from(i)].as_bytes(), location: sealed.location(i) };
    let page = Page::new(0, vec![Some(child(0)), None, Some(child(1))]);
    let mut chunks = PackBuilder::new(keys.clone(), REPOSITORY, PackKind::Chunks);
    chunks.add(sealed).unwrap();
    let pages_id = PackId::from_bytes([0x34; 32]);
    let alloc = pack_allocator(keys.clone(), PackKind::Pages, 1, vec![pages_id]);
    let id = page.id(&keys);
    let sealed = sealer.seal_page(&alloc, &page.encode().unwrap(), id).unwrap();
    let root = PageRef { id, location: sealed.location(0) };
    let mut pages = PackBuilder::new(keys, REPOSITORY, PackKind::Pages);
    pages.add(sealed).unwrap();
    let bytes = |c: &mut PackBuilder| c.take_finished().unwrap().parts.concat();
    (bytes(&mut chunks), bytes(&mut pages), root)
}

fn manifest_record(root: PageRef) -> ManifestRecord {
    ManifestRecord::Backup(Box::new(Manifest {
        volume: name().volume,
        backup_id: name().backup_id,
        attempt: 0,
        size_bytes: 10_096,
        map: MapRoot { depth: 1, root: Some(root) },
        parent: Some(ParentRef { backup_id: BackupId::new("2024.1").unwrap(), attempt: 1 }),
        snapshot: SnapshotInfo { id: Some("snap".into()), ..SnapshotInfo::default() },
        source: SourceInfo {
            path: "/dev/x".into(),
            kind: ChangeKind::Whole,
            origin: "mover".into(),
            listed_bytes: 10_096,
            listed_extents: 1,
            identity: None,
        },
        started: time(),
        finished: time(),
        ordered: time(),
        clock_offset_ms: None,
        stats: BackupStats { new_bytes: 6000, ..BackupStats::default() },
        tool: "golden".into(),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        degraded: vec![],
        copied_from: None,
        attachments: Vec::new(),
    }))
}

fn relocation() -> Location {
    Location { pack: PACK, entry: 0, offset: 64, stored_len: 6024, index: 1 }
}

fn stub_value() -> Stub {
    Stub::new(PackId::from_bytes([0x35; 32]), vec![((7, 0), relocation())]).unwrap()
}

/// Object key and bytes of one object of each kind.
fn objects(encryption: Encryption) -> Vec<(String, Vec<u8>)> {
    let keys = keys(encryption);
    let (chunks, pages, root) = packs(encryption);
    let generation = GenerationId::from_bytes([0x66; 16]);
    let lease_id = LeaseId::from_bytes([0x77; 16]);
    let lease_value = Lease {
        lease_id,
        role: crate::format::lease::LeaseRole::Reader { name: name() },
        started: time(),
        beat: 3,
        lease_seconds: 60,
        tool: "golden".into(),
        host: "host".into(),
        checkpoint: None,
    };
    let list =
        CondemnedList { dead: vec![PACK], rewritten: vec![stub_value()], forgotten: vec![name()] };
    let blocker = Blocker { lease_id, fence_key: Some(name().manifest_key()) };
    let mut records =
        vec![SegmentRecord { id: ChunkId::from_bytes([0x88; 32]), location: relocation() }];
    let segment_id = SegmentId::from_bytes([0x99; 32]);
    let segment =
        encode_segment(&keys, encryption, &REPOSITORY, &segment_id, 0xaa, &mut records).unwrap();
    let mut out = vec![
        ("format".to_owned(), format(&params(encryption), &keys, &SALT).unwrap()),
        (names::pack_key(&PACK), chunks),
        (names::pack_key(&root.location.pack), pages),
        (names::segment_key(&segment_id), segment),
    ];
    macro_rules! put {
        ($encode:ident, $key:expr, $value:expr) => {
            let key = $key;
            let bytes = $encode(&$value, &keys, &REPOSITORY, &key, &SALT).unwrap();
            out.push((key, bytes));
        };
    }
    put!(manifest, name().manifest_key(), manifest_record(root));
    put!(lease, names::lease_key(&lease_id), lease_value);
    put!(stub, names::stub_key(stub_value().pack()), stub_value());
    put!(condemned, names::condemned_key(&generation), Condemned::List(list));
    put!(blockers, names::blockers_key(&generation), Blockers { leases: vec![blocker] });
    put!(verdict, names::verdict_key(&generation), Verdict { dead: vec![PACK] });
    let forgotten_value = Forgotten { name: name(), time: time(), tool: "golden".into() };
    put!(forgotten, name().forgotten_key(), forgotten_value);
    let damage = crate::ids::DamageId::from_bytes([0xbb; 16]);
    let damaged_value = Damaged { time: time(), entries: vec![(PACK, Some(0)), (PACK, None)] };
    put!(damaged, names::damaged_key(&damage), damaged_value);
    let feature_name = FeatureName::new(FeatureNeed::Write, "golden").unwrap();
    let feature_value = Feature {
        name: feature_name.clone(),
        about: "all is gold".into(),
        since: "golden 2".into(),
        added: time(),
        tool: "golden".into(),
    };
    put!(feature, feature_name.key(), feature_value);
    out
}

fn key_objects() -> Vec<(String, Vec<u8>, Credential)> {
    let credentials =
        [Credential::passphrase("golden"), Credential::from_key_file_bytes(&[0xcc; 32]).unwrap()];
    let made = credentials.into_iter().zip(1..).map(|(credential, b)| {
        let id = KeyId::from_bytes([b; 16]);
        let kdf = KdfCost { memory_kib: 64, passes: 2, lanes: 2 };
        let wrapping = Wrapping { credential: &credential, label: "l", kdf, created: time() };
        let bytes = key(&master(), &REPOSITORY, &id, &wrapping, &SALT).unwrap();
        (names::key_key(&id), bytes, credential.clone())
    });
    made.collect()
}

fn short_hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

#[test]
fn encoders_are_deterministic() {
    for encryption in [Encryption::Aes256Gcm, Encryption::None] {
        assert_eq!(objects(encryption), objects(encryption));
    }
    for (object_key, bytes, credential) in key_objects() {
        let opened = unwrap_master_key(&credential, &REPOSITORY, &object_key, &bytes).unwrap();
        assert_eq!(opened, master());
    }
}

#[test]
fn the_format_did_not_change() {
    let mut found = Vec::new();
    for encryption in [Encryption::Aes256Gcm, Encryption::None] {
        for (key, bytes) in objects(encryption) {
            let dir = key.split('/').next().unwrap_or_default();
            let kind = if dir == "gc" { &key[3 + 32 + 1..] } else { dir };
            found.push(format!("{encryption} {kind} {}", short_hash(&bytes)));
        }
    }
    for (_, bytes, credential) in key_objects() {
        found.push(format!("{} {}", credential.kind(), short_hash(&bytes)));
    }
    let want: Vec<_> = include_str!("hashes.txt").lines().collect();
    assert_eq!(found, want, "\n{}", found.join("\n"));
}
