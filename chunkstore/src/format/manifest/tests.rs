use super::*;
use crate::error::ErrorKind;
use crate::format::record::{RecordPlace, RecordSeal, seal_record};
use crate::ids::{PackId, PageId, RepositoryId};
use crate::keys::{Encryption, Keys, MasterKey};
use crate::limits::{ATTACHMENT_BYTES_MAX, ATTACHMENTS_MAX};
use crate::units::{ChunkSize, Location};
use proptest::prelude::*;

const REPOSITORY: RepositoryId = RepositoryId::from_bytes([9; 16]);

fn keys(encryption: Encryption) -> Keys {
    Keys::derive(&MasterKey::from_bytes([5; 32]), encryption)
}

fn time(s: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(s, 123_456_789).unwrap()
}

fn manifest() -> Manifest {
    let pack = PackId::from_bytes([3; 32]);
    let location = Location { pack, entry: 2, offset: 640, stored_len: 1000, index: 0 };
    Manifest {
        volume: VolumeName::new("pvc/data ü").unwrap(),
        backup_id: BackupId::new("b1").unwrap(),
        attempt: 2,
        size_bytes: 1 << 40,
        map: MapRoot {
            depth: 4,
            root: Some(PageRef { id: PageId::from_bytes([4; 32]), location }),
        },
        parent: Some(ParentRef { backup_id: BackupId::new("b0").unwrap(), attempt: 0 }),
        snapshot: SnapshotInfo { id: Some("snap-1".into()), ..SnapshotInfo::default() },
        source: SourceInfo {
            path: "/dev/block".into(),
            kind: ChangeKind::Delta,
            origin: "csi".into(),
            listed_bytes: 1 << 20,
            listed_extents: 7,
            identity: Some("ext:3b0bd5b8-8a0c-4a24-9d8e-2d7f1b6f3c11".into()),
        },
        started: time(1_700_000_000),
        finished: time(1_700_000_100),
        ordered: time(1_700_000_101),
        clock_offset_ms: Some(-90_000),
        stats: BackupStats { read_bytes: 1 << 20, new_bytes: 5, ..BackupStats::default() },
        tool: "mover 0.1.0".into(),
        labels: [("app".to_owned(), "db".to_owned())].into(),
        degraded: vec!["the list was refused".into()],
        copied_from: None,
        attachments: Vec::new(),
    }
}

fn backup(manifest: Manifest) -> ManifestRecord {
    ManifestRecord::Backup(Box::new(manifest))
}

#[test]
fn manifests_and_fences_round_trip() {
    for keys in [keys(Encryption::Aes256Gcm), keys(Encryption::None)] {
        let key = manifest().object_key();
        let whole = Manifest {
            parent: None,
            map: MapRoot { depth: 1, root: None },
            size_bytes: 1,
            copied_from: Some(CopiedFrom {
                repository_id: REPOSITORY,
                attempt: 1,
                origin_repository_id: RepositoryId::from_bytes([9; 16]),
                origin_attempt: 0,
                time: time(7),
            }),
            ..manifest()
        };
        let fence = ManifestRecord::Fence { by: "collector".into(), time: time(5) };
        for record in [backup(manifest()), backup(whole), fence] {
            let bytes = record.encode(&keys, &REPOSITORY, &key).unwrap();
            assert_eq!(ManifestRecord::decode(&keys, &REPOSITORY, &key, &bytes).unwrap(), record);
            // every write is another object: create-once compares bytes
            assert_ne!(record.encode(&keys, &REPOSITORY, &key).unwrap(), bytes);
        }
    }
}

#[test]
fn a_manifest_belongs_to_one_key_in_one_repository() {
    for keys in [keys(Encryption::Aes256Gcm), keys(Encryption::None)] {
        let key = manifest().object_key();
        let bytes = backup(manifest()).encode(&keys, &REPOSITORY, &key).unwrap();
        let elsewhere = Manifest { attempt: 3, ..manifest() }.object_key();
        assert!(backup(manifest()).encode(&keys, &REPOSITORY, &elsewhere).is_err());
        for (repository, key) in [
            (RepositoryId::from_bytes([8; 16]), key.as_str()),
            (REPOSITORY, elsewhere.as_str()),
            (REPOSITORY, "backups/x"),
        ] {
            let error = ManifestRecord::decode(&keys, &repository, key, &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
}

#[test]
fn damage_at_every_byte_is_found() {
    for keys in [keys(Encryption::Aes256Gcm), keys(Encryption::None)] {
        let key = manifest().object_key();
        let bytes = backup(manifest()).encode(&keys, &REPOSITORY, &key).unwrap();
        for len in 0..bytes.len() {
            let cut = ManifestRecord::decode(&keys, &REPOSITORY, &key, &bytes[..len]);
            assert!(cut.is_err(), "{len}");
        }
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1;
            assert!(ManifestRecord::decode(&keys, &REPOSITORY, &key, &bad).is_err(), "{i}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(ManifestRecord::decode(&keys, &REPOSITORY, &key, &longer).is_err());
    }
}

#[test]
fn the_seal_must_be_the_repositorys() {
    let key = manifest().object_key();
    let plain = backup(manifest()).encode(&keys(Encryption::None), &REPOSITORY, &key).unwrap();
    let error = ManifestRecord::decode(&keys(Encryption::Aes256Gcm), &REPOSITORY, &key, &plain)
        .unwrap_err();
    assert!(error.to_string().contains("seal"), "{error}");
}

fn kind_of(json: &str) -> Option<ErrorKind> {
    let keys = keys(Encryption::None);
    let key = manifest().object_key();
    let place = RecordPlace { repository: &REPOSITORY, object_key: &key };
    let with = RecordSeal { key: keys.metadata(), seal: Encryption::None };
    let bytes =
        seal_record(&ManifestRecord::KIND, place, with, &[0; 32], &[], json.as_bytes()).unwrap();
    ManifestRecord::decode(&keys, &REPOSITORY, &key, &bytes).err().map(|e| e.kind())
}

#[test]
fn json_is_strict_where_it_matters_and_tolerant_elsewhere() {
    let json =
        String::from_utf8(backup(manifest()).to_body(&manifest().object_key()).unwrap()).unwrap();
    assert_eq!(kind_of(&json), None);
    let with = |from: &str, to: &str| {
        assert!(json.contains(from), "{from} not in {json}");
        kind_of(&json.replacen(from, to, 1))
    };
    let (corrupt, newer) = (Some(ErrorKind::Corrupt), Some(ErrorKind::Unsupported));
    assert_eq!(with(r#""attempt":2"#, r#""attempt":2,"later":{"a":[1]}"#), None);
    assert_eq!(with(r#""snapshot":{"#, r#""snapshot":{"later":1,"#), None);
    assert_eq!(with(r#""format":1"#, r#""format":2"#), newer);
    assert_eq!(with(r#""type":"backup""#, r#""type":"bakup""#), corrupt);
    assert_eq!(with(r#""attempt":2"#, r#""attempt":3"#), corrupt);
    assert_eq!(with(r#""attempt":2"#, r#""attempt":2,"attempt":2"#), corrupt);
    assert_eq!(with(r#""volume":"pvc"#, r#""volume":"pvx"#), corrupt);
    assert_eq!(with(r#""backup_id":"b1""#, r#""backup_id":"b2""#), corrupt);
    assert_eq!(with(r#""backup_id":"b0""#, r#""backup_id":".b""#), corrupt);
    assert_eq!(with("1099511627776", "0"), corrupt);
    assert_eq!(with("1099511627776", "72057594037927937"), corrupt);
    assert_eq!(with("1099511627776", "-1"), corrupt);
    assert_eq!(with("1099511627776", "1e3"), corrupt);
    assert_eq!(with(r#""new_bytes":5"#, r#""new_bytes":9223372036854775807"#), None);
    assert_eq!(with(r#""new_bytes":5"#, r#""new_bytes":9223372036854775808"#), corrupt);
    assert_eq!(with(r#""depth":4"#, r#""depth":14"#), corrupt);
    assert_eq!(with(r#""depth":4"#, r#""depth":0"#), corrupt);
    assert_eq!(with(r#""offset":640"#, r#""offset":1"#), corrupt);
    assert_eq!(with(r#""index":0"#, r#""index":1"#), corrupt);
    assert_eq!(with("0404", "040Z"), corrupt);
    assert_eq!(with(r#""kind":"delta""#, r#""kind":"guess""#), corrupt);
    assert_eq!(with(r#""app":"#, r#""":"#), corrupt);
    assert_eq!(with("2023-11-14", "2023-13-14"), corrupt);
    assert_eq!(with(r#""ordered":""#, r#""ordered":"x"#), corrupt);
    assert_eq!(with(r#""clock_offset_ms":-90000,"#, ""), None);
    assert_eq!(with(r#""clock_offset_ms":-90000"#, r#""clock_offset_ms":0.5"#), corrupt);
    assert_eq!(kind_of(&format!("{json} {{}}")), corrupt);
    assert_eq!(kind_of("[]"), corrupt);
    assert_eq!(kind_of(r#"{"type":"fence","format":1}"#), corrupt);
    assert_eq!(kind_of(&format!("{}1{}", "[".repeat(5000), "]".repeat(5000))), corrupt);
}

#[test]
fn a_manifest_without_a_place_has_that_of_its_end() {
    let key = manifest().object_key();
    let json = String::from_utf8(backup(manifest()).to_body(&key).unwrap()).unwrap();
    let without = json.replacen(r#""ordered":"#, r#""orderly":"#, 1);
    assert_ne!(without, json);
    let read = ManifestRecord::from_body(&key, without.as_bytes()).unwrap();
    let finished = manifest().finished;
    assert_ne!(finished, manifest().ordered);
    assert_eq!(read, backup(Manifest { ordered: finished, ..manifest() }));
}

#[test]
fn what_is_too_much_is_refused_before_it_is_written() {
    let keys = keys(Encryption::Aes256Gcm);
    let key = manifest().object_key();
    let refused = |m: Manifest| backup(m).encode(&keys, &REPOSITORY, &key).unwrap_err().kind();
    let many = (0..=LABELS_MAX).map(|i| (format!("l{i}"), String::new())).collect();
    assert_eq!(refused(Manifest { labels: many, ..manifest() }), ErrorKind::Usage);
    let long = [("a".to_owned(), "x".repeat(256))].into();
    assert_eq!(refused(Manifest { labels: long, ..manifest() }), ErrorKind::Usage);
    let long = [("a".repeat(64), String::new())].into();
    assert_eq!(refused(Manifest { labels: long, ..manifest() }), ErrorKind::Usage);
    let endless = vec!["x".repeat(70_000)];
    assert_eq!(refused(Manifest { degraded: endless, ..manifest() }), ErrorKind::Usage);
    let full = (0..LABELS_MAX).map(|i| (format!("{i:063}"), "x".repeat(255))).collect();
    assert!(
        backup(Manifest { labels: full, ..manifest() }).encode(&keys, &REPOSITORY, &key).is_ok()
    );
}

#[test]
fn the_depth_must_fit_the_size() {
    let params = RepositoryParams {
        repository_id: REPOSITORY,
        chunk: ChunkSize::new(65536).unwrap(),
        entry_chunks: 16,
        page_fanout: 128,
        encryption: Encryption::Aes256Gcm,
        created: time(0),
        created_by: String::new(),
        clear_master_key: None,
    };
    assert_eq!(manifest().geometry(&params).unwrap().chunks(), 1 << 24);
    let wrong = Manifest { map: MapRoot { depth: 3, root: None }, ..manifest() };
    assert_eq!(wrong.geometry(&params).unwrap_err().kind(), ErrorKind::Corrupt);
}

fn any_root() -> impl Strategy<Value = PageRef> {
    (any::<[u8; 32]>(), any::<[u8; 32]>(), 0u32..1 << 20, 64u32..1 << 30, 25u32..1 << 24).prop_map(
        |(id, pack, entry, offset, stored_len)| PageRef {
            id: PageId::from_bytes(id),
            location: Location {
                pack: PackId::from_bytes(pack),
                entry,
                offset,
                stored_len,
                index: 0,
            },
        },
    )
}

#[allow(clippy::too_many_lines)] // each member once
fn any_manifest() -> impl Strategy<Value = Manifest> {
    let text = ".{0,40}";
    let number = 0u64..1 << 63;
    let moment = (0i64..4_000_000_000, 0u32..1_000_000_000)
        .prop_map(|(s, ns)| DateTime::from_timestamp(s, ns).unwrap());
    let kind =
        prop_oneof![Just(ChangeKind::Delta), Just(ChangeKind::Allocated), Just(ChangeKind::Whole)];
    let snapshot =
        (proptest::option::of(text), proptest::option::of(text), proptest::option::of(text))
            .prop_map(|(id, csi_driver, change_id)| SnapshotInfo {
                id,
                csi_driver,
                change_id,
                ..SnapshotInfo::default()
            });
    let id = || "[a-zA-Z0-9_-]{1,64}".prop_map(|id| BackupId::new(id).unwrap());
    let parent = proptest::option::of((id(), any::<u32>()))
        .prop_map(|p| p.map(|(backup_id, attempt)| ParentRef { backup_id, attempt }));
    let identity = ("\\PC{1,60}", id(), any::<u32>(), 1u64..=VOLUME_BYTES_MAX, 1u8..=MAP_DEPTH_MAX);
    let source = (text, kind, text, number.clone(), number.clone(), proptest::option::of(text));
    let rest = (
        proptest::collection::btree_map("[a-z.é]{1,20}", ".{0,60}", 0..5),
        proptest::collection::vec(text, 0..4),
        proptest::array::uniform8(number),
        text,
    );
    (
        identity,
        proptest::option::of(any_root()),
        parent,
        snapshot,
        source,
        (moment.clone(), moment.clone(), moment, proptest::option::of(any::<i64>())),
        rest,
    )
        .prop_filter_map(
            "the name is too long",
            |(identity, root, parent, snapshot, source, times, rest)| {
                let (volume, backup_id, attempt, size_bytes, depth) = identity;
                let (path, kind, origin, listed_bytes, listed_extents, identity) = source;
                let (labels, degraded, n, tool) = rest;
                Some(Manifest {
                    volume: VolumeName::new(volume).ok()?,
                    backup_id,
                    attempt,
                    size_bytes,
                    map: MapRoot { depth, root },
                    parent,
                    snapshot,
                    source: SourceInfo {
                        path,
                        kind,
                        origin,
                        listed_bytes,
                        listed_extents,
                        identity,
                    },
                    started: times.0,
                    finished: times.1,
                    ordered: times.2,
                    clock_offset_ms: times.3,
                    stats: BackupStats {
                        read_bytes: n[0],
                        zero_bytes: n[1],
                        unchanged_bytes: n[2],
                        reused_bytes: n[3],
                        new_bytes: n[4],
                        stored_bytes: n[5],
                        packs: n[6],
                        pages: n[7],
                    },
                    tool,
                    labels,
                    degraded,
                    copied_from: None,
                    attachments: Vec::new(),
                })
            },
        )
}

proptest! {
    #[test]
    fn any_manifest_round_trips(manifest in any_manifest()) {
        let keys = keys(Encryption::Aes256Gcm);
        let key = manifest.object_key();
        let record = backup(manifest);
        let bytes = record.encode(&keys, &REPOSITORY, &key).unwrap();
        prop_assert_eq!(ManifestRecord::decode(&keys, &REPOSITORY, &key, &bytes).unwrap(), record);
    }
}

fn attachment(name: &str, size_bytes: u64, depth: u8, root: bool) -> Attachment {
    let name = AttachmentName::new(name).unwrap();
    let root = manifest().map.root.filter(|_| root);
    Attachment { name, size_bytes, map: MapRoot { depth, root } }
}

#[test]
fn attachments_round_trip_and_stand_in_their_order() {
    let keys = keys(Encryption::Aes256Gcm);
    let key = manifest().object_key();
    let name = |n: u32| format!("{n:063}");
    let most: Vec<_> = (0..ATTACHMENTS_MAX)
        .map(|n| attachment(&name(n), ATTACHMENT_BYTES_MAX, MAP_DEPTH_MAX, true))
        .collect();
    let full = (0..LABELS_MAX).map(|i| (format!("{i:063}"), "x".repeat(255))).collect();
    let few = vec![attachment("B", 7, 1, false), attachment("a", 0, 1, false)];
    for (attachments, labels) in
        [(Vec::new(), full), (most.clone(), manifest().labels), (few, manifest().labels)]
    {
        let record = backup(Manifest { attachments, labels, ..manifest() });
        let bytes = record.encode(&keys, &REPOSITORY, &key).unwrap();
        assert_eq!(ManifestRecord::decode(&keys, &REPOSITORY, &key, &bytes).unwrap(), record);
    }
    // as much of both as is possible at a time
    let full = (0..LABELS_MAX).map(|i| (format!("{i:063}"), "x".repeat(255))).collect();
    let record = backup(Manifest { attachments: most.clone(), labels: full, ..manifest() });
    record.encode(&keys, &REPOSITORY, &key).unwrap();
    let one_more = attachment(&name(ATTACHMENTS_MAX), 1, 1, false);
    for wrong in [
        most.iter().cloned().chain([one_more]).collect(),
        vec![attachment("b", 1, 1, true), attachment("a", 1, 1, true)],
        vec![attachment("a", 1, 1, true), attachment("a", 1, 1, true)],
        vec![attachment("a", ATTACHMENT_BYTES_MAX + 1, 1, true)],
        vec![attachment("a", 0, 1, true)],
        vec![attachment("a", 0, 2, false)],
        vec![attachment("a", 1, 0, true)],
    ] {
        let record = backup(Manifest { attachments: wrong, ..manifest() });
        let e = record.encode(&keys, &REPOSITORY, &key).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    }
}

#[test]
fn attachments_that_are_none_are_refused() {
    let keys = keys(Encryption::Aes256Gcm);
    let key = manifest().object_key();
    let decoded = |attachments: serde_json::Value| {
        let mut body = serde_json::to_value(manifest()).unwrap();
        let members = body.as_object_mut().unwrap();
        members.insert("type".into(), "backup".into());
        members.insert("format".into(), 1.into());
        members.insert("attachments".into(), attachments);
        let body = serde_json::to_vec(&body).unwrap();
        let bytes = ManifestRecord::seal_body(&body, &keys, &REPOSITORY, &key, &[1; 32]).unwrap();
        ManifestRecord::decode(&keys, &REPOSITORY, &key, &bytes).map_err(|e| e.kind())
    };
    let map = serde_json::json!({"depth": 1, "root": null});
    let of = |name: &str, size: i64| serde_json::json!([{"name": name, "size_bytes": size, "map": map, "later": 1}]);
    decoded(of("a", 5)).unwrap();
    for wrong in [
        serde_json::Value::Null,
        of("", 5),
        of(".a", 5),
        of("a/b", 5),
        of(&"a".repeat(64), 5),
        of("a", -1),
        of("a", 1 << 31),
        serde_json::json!([{"name": "a", "map": map}]),
        serde_json::json!([{"name": "a", "size_bytes": 5}]),
    ] {
        assert_eq!(decoded(wrong.clone()).unwrap_err(), ErrorKind::Corrupt, "{wrong}");
    }
}
