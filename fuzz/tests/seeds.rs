//! Writes the small valid objects that the corpora start from:
//! `cargo test -p fuzz --test seeds -- --ignored`.

use chrono::{DateTime, Utc};
use chunkstore::format::names::AttemptName;
use chunkstore::testkit::{fuzzing, golden};
use chunkstore::{
    AttachmentName, BackupId, ChunkId, ChunkNo, ChunkSize, Compression, Credential, Encryption,
    KdfCost, Keys, Location, Manifest, PackBuilder, PackId, PackKind, RepositoryId, Result, Sealer,
    VolumeName,
    format::{
        Attachment, BackupStats, Blocker, Blockers, ChangeKind, Checkpoint, Child, Condemned,
        CondemnedList, Damaged, EMPTY_MAP, Feature, FeatureName, FeatureNeed, Forgotten,
        FrontierPage, Lease, LeaseRole, ManifestRecord, MapRoot, Page, ParentRef, RepositoryParams,
        SegmentRecord, SnapshotInfo, SourceInfo, Stub, Verdict, Wrapping, encode_segment, names,
    },
    ids::{GenerationId, KeyId, LeaseId, PageId, PlanDigest, SegmentId},
    keys::MasterKey,
    pack::check_pack,
    seal::SealedEntry,
    units::PageRef,
};
use std::path::Path;
use std::sync::Arc;

const REPOSITORY: RepositoryId = RepositoryId::from_bytes([0x11; 16]);
const SALT: [u8; 32] = [0x22; 32];
const PACK: PackId = PackId::from_bytes([0x33; 32]);
const LEASE: LeaseId = LeaseId::from_bytes([0x77; 16]);
const GENERATION: GenerationId = GenerationId::from_bytes([0x77; 16]);

fn must<T>(found: Result<T>) -> T {
    found.unwrap_or_else(|e| panic!("{e:?}"))
}

fn put(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let written =
        std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join(name), bytes));
    written.unwrap_or_else(|e| panic!("{target}/{name}: {e}"));
}

fn master() -> MasterKey {
    MasterKey::from_bytes([0x44; 32])
}

fn keys() -> Arc<Keys> {
    Arc::new(Keys::derive(&master(), Encryption::None))
}

fn time() -> DateTime<Utc> {
    DateTime::from_timestamp(1_735_689_600, 0).unwrap_or_default()
}

fn name(attempt: u32) -> AttemptName {
    let (volume, backup_id) = (must(VolumeName::new("pvc/data")), must(BackupId::new("2025.1")));
    AttemptName { volume, backup_id, attempt }
}

fn location(pack: u8, entry: u32, index: u16) -> Location {
    let pack = PackId::from_bytes([pack; 32]);
    Location { pack, entry, offset: 64 + 100 * entry, stored_len: 100, index }
}

fn root() -> PageRef {
    PageRef { id: PageId::from_bytes([5; 32]), location: location(0x34, 0, 0) }
}

/// What stands between header and tag of a record.
fn body(record: &[u8]) -> &[u8] {
    &record[64..record.len() - 16]
}

#[test]
#[ignore = "writes files"]
fn packs() {
    let keys = keys();
    let text: Vec<u8> = (0..6000_u32).map(|i| u8::try_from(i % 7).unwrap_or(0)).collect();
    for (form, compression) in [("raw", Compression::None), ("zstd", Compression::Zstd(3))] {
        let mut sealer = must(Sealer::new(compression));
        let alloc = golden::pack_allocator(keys.clone(), PackKind::Chunks, 1 << 20, vec![PACK]);
        let mut pack = PackBuilder::new(keys.clone(), REPOSITORY, PackKind::Chunks);
        // a raw chunk is too long for a corpus: one that is cut short is not
        let units: &[usize] = if form == "raw" { &[50, 700] } else { &[6000, 300] };
        for len in units {
            let unit = &text[..*len];
            let chunks: Vec<_> =
                (0..*len).step_by(4096).map(|at| at..(at + 4096).min(*len)).collect();
            let ids: Vec<ChunkId> =
                chunks.iter().map(|c| keys.chunk_id(&unit[c.clone()])).collect();
            let entry = must(sealer.seal_chunks(&alloc, unit, &chunks, &ids));
            put("pack_entry", &format!("chunks-{form}-{len}"), &[&[0], &entry.bytes[..]].concat());
            must(pack.add(entry));
        }
        finish(pack, &alloc, &format!("chunks-{form}"));

        let alloc = golden::pack_allocator(keys.clone(), PackKind::Pages, 1 << 20, vec![PACK]);
        let mut pack = PackBuilder::new(keys.clone(), REPOSITORY, PackKind::Pages);
        for page in pages() {
            let plain = must(page.encode());
            let entry: SealedEntry = must(sealer.seal_page(&alloc, &plain, page.id(&keys)));
            if page.level() == 0 {
                put("pack_entry", &format!("page-{form}"), &[&[1], &entry.bytes[..]].concat());
            }
            must(pack.add(entry));
        }
        finish(pack, &alloc, &format!("pages-{form}"));
    }
}

fn finish(mut pack: PackBuilder, alloc: &chunkstore::PackAllocator, name: &str) {
    if let Some(closed) = alloc.close() {
        must(pack.close(closed));
    }
    let finished = pack.take_finished().unwrap_or_else(|| panic!("{name} is not finished"));
    let bytes = finished.parts.concat();
    put("pack", name, &bytes);
    let trailer = must(check_pack(&bytes)).trailer;
    let kind = u8::from(finished.kind == PackKind::Pages);
    let plain = must(fuzzing::encode_pack_directory(&finished.entries));
    let head = [&[kind], &trailer.directory_offset.to_le_bytes()[..]].concat();
    put("pack_directory", name, &[&head[..], &plain].concat());
    let start = trailer.directory_offset as usize;
    let stored = &bytes[start..start + trailer.directory_len as usize];
    put("pack_entry", &format!("directory-{name}"), &[&[2], stored].concat());
}

fn pages() -> Vec<Page> {
    let child = |b: u8, location| Some(Child { id: [b; 32], location });
    let leaf = vec![
        child(1, location(3, 0, 0)),
        None,
        child(2, location(3, 0, 1)),
        child(3, location(2, 4, 0)),
        child(1, location(3, 7, 0)),
    ];
    let inner = vec![None, None, child(4, location(2, 0, 0)), child(5, location(3, 1, 0))];
    let wide = (0..40).map(|i| child(9, location(2, 0, i))).collect();
    vec![Page::new(0, leaf), Page::new(3, inner), Page::new(0, wide)]
}

#[test]
#[ignore = "writes files"]
fn maps_and_segments() {
    for (page, few) in pages().iter().zip([0, 0, 1]) {
        let name = format!("level-{}-{}", page.level(), page.children().len());
        put("page", &name, &[&[few], &must(page.encode())[..]].concat());
    }
    let id = SegmentId::from_bytes([0x99; 32]);
    for count in [1_u8, 3, 40] {
        let mut records: Vec<SegmentRecord> = (0..count)
            .map(|i| SegmentRecord {
                id: ChunkId::from_bytes(*blake(i).as_bytes()),
                location: location(i % 3, u32::from(i), u16::from(i)),
            })
            .collect();
        let segment =
            must(encode_segment(&keys(), Encryption::None, &REPOSITORY, &id, 0xaa, &mut records));
        let (blocks_end, index_end) = (64 + usize::from(count) * 50, segment.len() - 64 - 16);
        let (blocks, index) = (&segment[64..blocks_end], &segment[blocks_end + 16..index_end]);
        put("segment", &format!("records-{count}"), &[&[count], blocks, index].concat());
        let len = (segment.len() as u64).to_le_bytes();
        let trailer = &segment[segment.len() - 64..];
        put("segment_layout", &format!("records-{count}"), &[&len, trailer].concat());
        // behind packs and fences
        let filter = &index[4 + 32 * usize::from(count.min(3)) + 4 + 32..];
        put("filter", &format!("records-{count}"), &[&blocks[..8], filter].concat());
    }
}

/// Any id that is spread well.
fn blake(i: u8) -> ChunkId {
    keys().chunk_id(&[i])
}

#[test]
#[ignore = "writes files"]
fn object_keys() {
    let pack = PACK;
    let keys = [
        ("pack", names::pack_key(&pack)),
        ("key", names::key_key(&KeyId::from_bytes([0x77; 16]))),
        ("manifest", name(0).manifest_key()),
        ("feature", "features/write/golden".into()),
        ("forgotten", name(12).forgotten_key()),
        ("segment", names::segment_key(&SegmentId::from_bytes([0x99; 32]))),
        ("lease", names::lease_key(&LEASE)),
        ("moved", names::stub_key(&pack)),
        ("damaged", "damaged/77777777777777777777777777777777".into()),
        ("condemned", names::condemned_key(&GENERATION)),
        ("blockers", names::blockers_key(&GENERATION)),
        ("verdict", names::verdict_key(&GENERATION)),
        ("format", names::FORMAT_KEY.into()),
        ("path", name(4_294_967_295).to_path()),
    ];
    for (name, key) in keys {
        put("object_key", name, key.as_bytes());
    }
    for (name, text) in [
        ("escaped", "pvc=2Fdata=20.=C3=A4"),
        ("plain", "pvc/data \u{e4}.x"),
        ("dot", "=2Ehidden"),
        ("hex-key", "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef\n"),
    ] {
        put("volume_name", name, text.as_bytes());
    }
}

fn manifest_value() -> Manifest {
    Manifest {
        volume: name(0).volume,
        backup_id: name(0).backup_id,
        attempt: 0,
        size_bytes: 10_096,
        map: MapRoot { depth: 1, root: Some(root()) },
        parent: Some(ParentRef { backup_id: must(BackupId::new("2024.1")), attempt: 1 }),
        snapshot: SnapshotInfo {
            id: Some("snap".into()),
            base_id: Some("base".into()),
            csi_driver: Some("csi".into()),
            volume_handle: Some("v".into()),
            snapshot_handle: Some("s".into()),
            change_id: Some("52".into()),
        },
        source: SourceInfo {
            path: "/dev/x".into(),
            kind: ChangeKind::Delta,
            origin: "csi".into(),
            listed_bytes: 10_096,
            listed_extents: 1,
            identity: Some("ext:3b0bd5b8-8a0c-4a24-9d8e-2d7f1b6f3c11".into()),
        },
        started: time(),
        finished: time(),
        ordered: time(),
        clock_offset_ms: Some(-90_000),
        stats: BackupStats { new_bytes: 6000, ..BackupStats::default() },
        tool: "golden".into(),
        labels: [("a".to_owned(), "\u{e4}\n".to_owned())].into(),
        degraded: vec!["no list".into()],
        copied_from: None,
        attachments: vec![
            Attachment { name: attached("empty"), size_bytes: 0, map: EMPTY_MAP },
            Attachment {
                name: attached("manifest.json"),
                size_bytes: 10_000,
                map: MapRoot { depth: 1, root: Some(root()) },
            },
        ],
    }
}

fn attached(name: &str) -> AttachmentName {
    must(AttachmentName::new(name))
}

#[test]
#[ignore = "writes files"]
fn json_records() {
    let keys = keys();
    let seal = |record: &ManifestRecord| {
        must(golden::manifest(record, &keys, &REPOSITORY, &name(0).manifest_key(), &SALT))
    };
    let full = ManifestRecord::Backup(Box::new(manifest_value()));
    let empty = Manifest {
        map: MapRoot { depth: 3, root: None },
        parent: None,
        snapshot: SnapshotInfo::default(),
        clock_offset_ms: None,
        labels: [].into(),
        degraded: vec![],
        copied_from: None,
        attachments: Vec::new(),
        ..manifest_value()
    };
    let empty = ManifestRecord::Backup(Box::new(empty));
    let fence = ManifestRecord::Fence { by: "golden".into(), time: time() };
    for (name, record) in [("full", full), ("empty", empty), ("fence", fence)] {
        put("manifest", name, body(&seal(&record)));
    }

    let frontier = vec![
        FrontierPage { level: 2, page: 0, root: Some(root()) },
        FrontierPage { level: 0, page: 9, root: None },
    ];
    let checkpoint = Checkpoint {
        next_chunk: ChunkNo(1 << 30),
        frontier,
        packs: vec![PACK],
        plan: None,
        time: time(),
    };
    let parent = Some(ParentRef { backup_id: must(BackupId::new("b0")), attempt: 0 });
    let plan = Some(PlanDigest::from_bytes([5; 32]));
    let planned = Checkpoint { plan, ..checkpoint.clone() };
    for (file, role, checkpoint) in [
        ("writer", LeaseRole::Writer { name: name(3), parent: parent.clone() }, Some(checkpoint)),
        ("writer-plan", LeaseRole::Writer { name: name(3), parent }, Some(planned)),
        ("reader", LeaseRole::Reader { name: name(0) }, None),
        ("collector", LeaseRole::Collector { generation: GENERATION }, None),
    ] {
        let lease = Lease {
            lease_id: LEASE,
            role,
            started: time(),
            beat: 3,
            lease_seconds: 60,
            tool: "golden".into(),
            host: "host".into(),
            checkpoint,
        };
        let key = names::lease_key(&LEASE);
        let bytes = must(golden::lease(&lease, &keys, &REPOSITORY, &key, &SALT));
        put("lease", file, body(&bytes));
    }
    let forgotten = Forgotten { name: name(0), time: time(), tool: "golden".into() };
    let key = name(0).forgotten_key();
    put(
        "forgotten",
        "one",
        body(&must(golden::forgotten(&forgotten, &keys, &REPOSITORY, &key, &SALT))),
    );
    let damaged = Damaged { time: time(), entries: vec![(PACK, Some(0)), (PACK, None)] };
    let key = "damaged/77777777777777777777777777777777";
    put("damaged", "two", body(&must(golden::damaged(&damaged, &keys, &REPOSITORY, key, &SALT))));
}

#[test]
#[ignore = "writes files"]
fn features() {
    let keys = Keys::derive(&master(), Encryption::None);
    let feature = Feature {
        name: must(FeatureName::new(FeatureNeed::Write, "golden")),
        about: "all is gold".into(),
        since: "golden 2".into(),
        added: time(),
        tool: "golden".into(),
    };
    let feature_key = feature.name.key();
    let bytes = must(golden::feature(&feature, &keys, &REPOSITORY, &feature_key, &SALT));
    put("feature", "one", body(&bytes));
}

#[test]
#[ignore = "writes files"]
fn clear_records() {
    for encryption in [Encryption::None, Encryption::Aes256Gcm] {
        let params = RepositoryParams {
            repository_id: REPOSITORY,
            chunk: must(ChunkSize::new(4096)),
            entry_chunks: 16,
            page_fanout: 16,
            encryption,
            created: time(),
            created_by: "golden".into(),
            clear_master_key: (encryption == Encryption::None).then(master),
        };
        let keys = Keys::derive(&master(), encryption);
        let bytes = must(golden::format(&params, &keys, &SALT));
        put("repository_params", &encryption.to_string(), body(&bytes));
        put("record", &format!("clear-{encryption}"), &as_fuzz_record(&bytes));
    }
    let credentials =
        [Credential::passphrase("golden"), must(Credential::from_key_file_bytes(&[0xcc; 32]))];
    for credential in &credentials {
        let kdf = KdfCost { memory_kib: 64, passes: 2, lanes: 2 };
        let wrapping = Wrapping { credential, label: "l", kdf, created: time() };
        let id = KeyId::from_bytes([0x77; 16]);
        let bytes = must(golden::key(&master(), &REPOSITORY, &id, &wrapping, &SALT));
        put("key_info", credential.kind(), &bytes[64..bytes.len() - 16 - 32]);
        put("record", credential.kind(), &as_fuzz_record(&bytes));
    }
}

fn as_fuzz_record(bytes: &[u8]) -> Vec<u8> {
    [&fuzzing::MAGIC_RECORD, &bytes[8..]].concat()
}

#[test]
#[ignore = "writes files"]
fn collections() {
    let keys = keys();
    let stub = |pack: u8| {
        let relocations = vec![
            ((9, 0), location(2, 1, 1)),
            ((0, 3), location(7, 0, 0)),
            ((0, 1), location(2, 1, 0)),
        ];
        must(Stub::new(PackId::from_bytes([pack; 32]), relocations))
    };
    let key = names::stub_key(stub(0x35).pack());
    let one = must(golden::stub(&stub(0x35), &keys, &REPOSITORY, &key, &SALT));
    put("moved", "three", body(&one));
    put("record", "moved", &as_fuzz_record(&one));
    let none = must(Stub::new(PackId::from_bytes([0x35; 32]), vec![]));
    put("moved", "none", body(&must(golden::stub(&none, &keys, &REPOSITORY, &key, &SALT))));

    let list = CondemnedList {
        dead: vec![PACK, PackId::from_bytes([0x36; 32])],
        rewritten: vec![stub(3), stub(4)],
        forgotten: vec![name(0), name(10), name(2)],
    };
    let key = names::condemned_key(&GENERATION);
    for (name, value) in [
        ("fence", Condemned::Fence),
        ("empty", Condemned::List(CondemnedList::default())),
        ("list", Condemned::List(list)),
    ] {
        let bytes = must(golden::condemned(&value, &keys, &REPOSITORY, &key, &SALT));
        put("condemned", name, body(&bytes));
    }
    let lease = |b| LeaseId::from_bytes([b; 16]);
    let fence_keys = [Some(name(1).manifest_key()), None, Some(key)];
    let blockers = fence_keys.into_iter().zip(1..);
    let leases = blockers.map(|(fence_key, b)| Blocker { lease_id: lease(b), fence_key }).collect();
    let key = names::blockers_key(&GENERATION);
    let bytes = must(golden::blockers(&Blockers { leases }, &keys, &REPOSITORY, &key, &SALT));
    put("blockers", "three", body(&bytes));
    let key = names::verdict_key(&GENERATION);
    for (name, dead) in [("one", vec![PACK]), ("none", vec![])] {
        let bytes = must(golden::verdict(&Verdict { dead }, &keys, &REPOSITORY, &key, &SALT));
        put("verdict", name, body(&bytes));
    }
}

/// What a server says: greeting, replies to four options, a read of 4096 bytes, the state of
/// blocks.
#[test]
#[ignore = "writes files"]
fn nbd_conversations() {
    let number = |n: u32| n.to_be_bytes().to_vec();
    let option = |option: u32, kind: u32, data: &[u8]| {
        let len = u32::try_from(data.len()).unwrap_or_default();
        let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
        [&magic[..], &number(option), &number(kind), &number(len), data].concat()
    };
    let chunk = |flags_and_type: u32, cookie: u64, data: &[u8]| {
        let len = u32::try_from(data.len()).unwrap_or_default();
        let head = [number(0x668e_33ef), number(flags_and_type)].concat();
        [&head[..], &cookie.to_be_bytes(), &number(len), data].concat()
    };
    let simple =
        |errno: u32| [number(0x6744_6698), number(errno), vec![0, 0, 0, 0, 0, 0, 0, 1]].concat();
    let greeting = [&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat();
    let info =
        [&0_u16.to_be_bytes()[..], &(1_u64 << 20).to_be_bytes(), &0x109_u16.to_be_bytes()].concat();
    let sizes = [3_u16.to_be_bytes().to_vec(), number(1), number(4096), number(1 << 20)].concat();
    let base = [&number(7)[..], b"base:allocation"].concat();
    let bitmap = [&number(8)[..], b"qemu:dirty-bitmap:b1"].concat();
    let go = [option(7, 3, &info), option(7, 3, &sizes), option(7, 1, &[])].concat();
    let set = [option(10, 4, &base), option(10, 4, &bitmap), option(10, 1, &[])].concat();
    let list = [option(9, 4, &bitmap), option(9, 1, &[])].concat();
    let structured = [greeting.clone(), option(8, 1, &[]), list, set, go.clone()].concat();
    let plain = [greeting, option(8, (1 << 31) + 1, b"what?"), go].concat();

    let data = [&[0; 8][..], &[0x5a; 1024]].concat();
    let hole = [&1024_u64.to_be_bytes()[..], &number(3072)].concat();
    let read = [chunk(1, 1, &data), chunk(0x1_0002, 1, &hole)].concat();
    let states = |context: u32, blocks: &[u32]| {
        [number(context), blocks.iter().flat_map(|n| number(*n)).collect()].concat()
    };
    let blocks = [
        chunk(5, 2, &states(8, &[65_536, 1])),
        chunk(0x1_0005, 2, &states(7, &[4096, 0, 8192, 3])),
    ]
    .concat();
    let error = [&number(5)[..], &[0, 3], b"bad", &77_u64.to_be_bytes()].concat();
    put("nbd", "structured", &[&structured[..], &read, &blocks].concat());
    put("nbd", "error-at", &[structured.clone(), chunk(0x1_8002, 1, &error)].concat());
    put("nbd", "not-all", &[structured.clone(), chunk(0x1_0001, 1, &data)].concat());
    put(
        "nbd",
        "behind-the-end",
        &[structured, read, chunk(0x1_0005, 2, &states(7, &[1 << 21, 0]))].concat(),
    );
    put("nbd", "simple", &[&plain[..], &simple(0), &[0x5a; 4096]].concat());
    put("nbd", "simple-error", &[plain, simple(28)].concat());
    put(
        "nbd",
        "tls",
        &[&b"NBDMAGICIHAVEOPT\0\x01"[..], &option(8, (1 << 31) + 5, b"first")].concat(),
    );
    put("nbd", "http", b"HTTP/1.1 400 Bad Request\r\n\r\n");
}
