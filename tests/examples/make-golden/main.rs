//! Makes the golden repositories of `tests/golden/`:
//! `cargo run -p tests --example make-golden -- DIR`.
//!
//! They were made once, by version 1 of the format, and are kept: every later program must read
//! them. Making them again is only right where an object of a new kind is added to them; another
//! encoding of what is there is another format. All of it is deterministic, but for what a new
//! version of the codec does.

mod repository;

use chunkstore::testkit::golden;
use chunkstore::{
    AttachmentName, ChunkNo, Credential, Encryption, Manifest, PackId,
    format::{
        Attachment, Blocker, Blockers, Checkpoint, Condemned, CondemnedList, Damaged, EMPTY_MAP,
        Feature, FeatureName, FeatureNeed, Forgotten, FrontierPage, Lease, LeaseRole,
        ManifestRecord, ParentRef, Stub, Verdict, names,
    },
    ids::{DamageId, GenerationId, LeaseId},
    repository::ATTACHMENTS,
};
use repository::{Builder, CHUNK_BYTES, Image};
use serde_json::json;
use std::path::Path;

const PASSPHRASE: &str = "gold\u{e9}n passphrase";
const CHUNK: u64 = CHUNK_BYTES as u64;
const TOOL: &str = "make-golden 1";

/// Encodes a record and puts it in its place.
macro_rules! put {
    ($made:expr, $encode:ident, $key:expr, $value:expr) => {{
        let (key, salt) = ($key, $made.unique());
        let bytes = golden::$encode(&$value, &$made.keys, &$made.id, &key, &salt);
        $made.objects.insert(key, bytes.expect("encode a record"));
    }};
}

fn main() {
    let dir = std::env::args_os().nth(1).expect("usage: make-golden DIR");
    let dir = Path::new(&dir);
    let key_file = *blake3::hash(b"golden key file").as_bytes();
    let mut expected = serde_json::Map::new();
    let repositories = [
        ("encrypted", Encryption::Aes256Gcm, fill as fn(&mut Builder) -> Made),
        ("plain", Encryption::None, fill),
        ("later", Encryption::Aes256Gcm, later),
        ("attached", Encryption::Aes256Gcm, attached),
    ];
    for (name, encryption, fill) in repositories {
        let encrypted = encryption == Encryption::Aes256Gcm;
        let mut made = Builder::new(name, encryption);
        if encrypted {
            let from_file = Credential::from_key_file_bytes(&key_file).expect("a key");
            made.put_key(&from_file, "key file");
            made.put_key(&Credential::passphrase(PASSPHRASE), "passphrase \u{1f511}");
        }
        let backups = fill(&mut made);
        let listed: Vec<_> = backups.iter().map(|(m, image)| expectation(m, image)).collect();
        let access =
            encrypted.then(|| json!({"key_file": "encrypted.key", "passphrase": PASSPHRASE}));
        expected.insert(name.into(), json!({"access": access, "backups": listed}));
        for (key, bytes) in &made.objects {
            write(&dir.join(name).join(key), bytes);
        }
    }
    let hex: String = key_file.iter().map(|byte| format!("{byte:02x}")).collect();
    write(&dir.join("encrypted.key"), format!("{hex}\n").as_bytes());
    let text = serde_json::to_string_pretty(&expected).expect("write JSON");
    write(&dir.join("expected.json"), format!("{text}\n").as_bytes());
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("make a directory");
    std::fs::write(path, bytes).expect("write a file");
}

fn expectation(manifest: &Manifest, image: &Image) -> serde_json::Value {
    let mut expected = json!({
        "volume": manifest.volume.as_str(),
        "backup_id": manifest.backup_id.as_str(),
        "attempt": manifest.attempt,
        "size_bytes": manifest.size_bytes,
        "blake3": blake3::hash(&image.bytes()).to_hex().as_str(),
    });
    if !manifest.attachments.is_empty() {
        let of = |(name, image): (&'static str, Option<Image>)| {
            let bytes = image.map_or_else(Vec::new, |image| image.bytes());
            let hash = blake3::hash(&bytes).to_hex();
            json!({ "name": name, "size_bytes": bytes.len(), "blake3": hash.as_str() })
        };
        expected["attachments"] = attached_images().map(of).into();
    }
    expected
}

type Made = Vec<(Manifest, Image)>;

/// One of everything; gives the backups that can be restored.
fn fill(made: &mut Builder) -> Made {
    let (mut backups, first_refs) = full_and_incremental(made);
    let parent = backups[0].0.clone();
    backups.extend(odd_volumes(made));
    backups.push(fenced(made));
    let dead = forgotten(made);
    let (moved, stubs) = moved(made);
    backups.push(moved);
    made.segment(&first_refs);
    let last = backups.last().expect("there are backups").clone();
    leases(made, &parent, &last.0);
    collections(made, &parent, &dead, stubs);
    let time = made.time();
    let entries = vec![(dead[0], None), (dead[1], Some(0))];
    put!(
        made,
        damaged,
        names::damaged_key(&DamageId::from_bytes(made.unique())),
        Damaged { time, entries }
    );
    backups
}

/// A repository that a later version has added a feature to. Nobody needs it to read.
fn later(made: &mut Builder) -> Made {
    let backups = full_and_incremental(made).0;
    let name = FeatureName::new(FeatureNeed::Write, "lavender").expect("a name");
    let feature = Feature {
        name: name.clone(),
        about: "chunks smell of lavender".into(),
        since: "mover 7.0".into(),
        added: made.time(),
        tool: "make-golden 7".into(),
    };
    put!(made, feature, name.key(), feature);
    backups
}

/// What is attached: of two leaves, of nothing, of zeros.
fn attached_images() -> [(&'static str, Option<Image>); 3] {
    let mut catalogue = Image::new(20 * CHUNK + 77);
    [0, 1, 20].into_iter().for_each(|chunk| catalogue.set(chunk, &format!("attached {chunk}")));
    [("csi-snapshots.json", Some(catalogue)), ("empty", None), ("zero", Some(Image::new(5000)))]
}

/// A backup with attachments beside two without.
fn attached(made: &mut Builder) -> Made {
    let mut backups = full_and_incremental(made).0;
    let attachments = attached_images().map(|(name, image)| {
        let (size_bytes, map) = match image {
            None => (0, EMPTY_MAP),
            Some(image) => {
                let refs = made.store(&image);
                (image.size_bytes, made.map(&image.geometry(), &refs).0)
            }
        };
        Attachment { name: AttachmentName::new(name).expect("a name"), size_bytes, map }
    });
    let mut image = Image::new(3 * CHUNK);
    image.set(1, "app");
    let refs = made.store(&image);
    let (map, _) = made.map(&image.geometry(), &refs);
    made.attachments = attachments.into();
    backups.push((made.commit(("app", "attached", 0), image.size_bytes, map, None), image));
    let name = FeatureName::new(FeatureNeed::Write, ATTACHMENTS.name).expect("a name");
    let feature = Feature {
        name: name.clone(),
        about: ATTACHMENTS.about.into(),
        since: ATTACHMENTS.since.into(),
        added: made.time(),
        tool: TOOL.into(),
    };
    put!(made, feature, name.key(), feature);
    backups
}

/// Two leaves and a root, a second backup that shares one of the leaves, and chunks that stand
/// twice.
fn full_and_incremental(made: &mut Builder) -> (Made, repository::Refs) {
    let mut image = Image::new(30 * CHUNK);
    for chunk in (0..30).filter(|chunk| !(5..9).contains(chunk)) {
        image.set(chunk, &format!("disk {}", chunk.min(27)));
    }
    let refs = made.store(&image);
    let (map, _) = made.map(&image.geometry(), &refs);
    let full = made.commit(("disk", "full", 0), image.size_bytes, map, None);
    let mut later = image.clone();
    later.chunks.remove(&2);
    later.set(6, "disk, later");
    later.set(7, "disk 20");
    let refs_later = made.store(&later);
    let (map, _) = made.map(&later.geometry(), &refs_later);
    let parent = Some(full.as_parent());
    let incremental = made.commit(("disk", "incremental", 0), later.size_bytes, map, parent);
    (vec![(full, image), (incremental, later)], refs)
}

/// A name to escape, nothing but zeros, short last chunks, a deep and sparse map.
fn odd_volumes(made: &mut Builder) -> Made {
    let mut escaped = Image::new(3 * CHUNK);
    escaped.set(0, "escaped");
    escaped.set(2, "escaped, too");
    let mut short = Image::new(40 * CHUNK + 1234);
    (0..41).filter(|chunk| chunk % 2 == 0).for_each(|chunk| short.set(chunk, &format!("s{chunk}")));
    let mut sparse = Image::new(300 * CHUNK + 1);
    [0, 17, 256, 300].into_iter().for_each(|chunk| sparse.set(chunk, &format!("sparse {chunk}")));
    let zero = Image::new((1 << 20) + 1);
    let volumes = [
        (".pvc/a b=\u{fc}%2F", "2025-01-01T00.00", escaped),
        ("short", "7f3a", short),
        ("sparse", "sparse_1", sparse),
        ("zero", "zero", zero),
    ];
    let mut backups = Vec::new();
    for (volume, id, image) in volumes {
        let refs = made.store(&image);
        let (map, _) = made.map(&image.geometry(), &refs);
        backups.push((made.commit((volume, id, 0), image.size_bytes, map, None), image));
    }
    backups
}

/// A collector fenced the first attempt; the second was committed.
fn fenced(made: &mut Builder) -> (Manifest, Image) {
    let mut image = Image::new(2 * CHUNK);
    image.set(0, "fenced");
    let refs = made.store(&image);
    let (map, _) = made.map(&image.geometry(), &refs);
    let manifest = made.commit(("fenced", "again", 1), image.size_bytes, map, None);
    let key = names::manifest_key(&manifest.volume, &manifest.backup_id, 0);
    let fence = ManifestRecord::Fence { by: "a collector".into(), time: made.time() };
    put!(made, manifest, key, fence);
    (manifest, image)
}

/// Gives the packs that nothing else needs.
fn forgotten(made: &mut Builder) -> Vec<PackId> {
    let mut image = Image::new(4 * CHUNK);
    (0..4).for_each(|chunk| image.set(chunk, &format!("forgotten {chunk}")));
    let refs = made.store(&image);
    let (map, _) = made.map(&image.geometry(), &refs);
    let packs = vec![refs[&0].location.pack, map.root.expect("not zero").location.pack];
    let manifest = made.commit(("disk", "forgotten", 0), image.size_bytes, map, None);
    let value = Forgotten { name: manifest.name(), time: made.time(), tool: TOOL.into() };
    put!(made, forgotten, manifest.name().forgotten_key(), value);
    packs
}

/// Chunks and pages whose packs were rewritten twice: the manifest and the pages name packs that
/// are gone.
fn moved(made: &mut Builder) -> ((Manifest, Image), Vec<Stub>) {
    let mut image = Image::new(21 * CHUNK + 99);
    (0..22).for_each(|chunk| image.set(chunk, &format!("moved {chunk}")));
    let mut refs = made.store(&image);
    // stored by a run that needed them no more when it ended: no stub knows them
    for chunk in [3, 20] {
        image.chunks.remove(&chunk);
        refs.remove(&chunk);
    }
    let (map, pages) = made.map(&image.geometry(), &refs);
    let manifest = made.commit(("moved", "twice", 0), image.size_bytes, map, None);
    let once = made.rewrite(&refs, 3);
    made.rewrite(&once, 4);
    made.rewrite_pages(&pages);
    made.rewrite_pages(&pages);
    let stubs = made.objects.iter().filter_map(|(key, bytes)| {
        names::parse_stub_key(key).ok()?;
        Some(Stub::decode(&made.keys, &made.id, key, bytes).expect("our own stub"))
    });
    let stubs: Vec<Stub> = stubs.collect();
    ((manifest, image), stubs)
}

fn leases(made: &mut Builder, parent: &Manifest, read: &Manifest) {
    let root = parent.map.root;
    let checkpoint = Checkpoint {
        next_chunk: ChunkNo(272),
        frontier: vec![
            FrontierPage { level: 1, page: 0, root },
            FrontierPage { level: 0, page: 16, root: None },
        ],
        packs: root.iter().map(|root| root.location.pack).collect(),
        plan: None,
        time: made.time(),
    };
    let mut name = parent.name();
    name.backup_id = chunkstore::BackupId::new("unfinished").expect("a backup id");
    let parent = Some(ParentRef { backup_id: parent.backup_id.clone(), attempt: 0 });
    let generation = GenerationId::from_bytes(made.unique());
    let roles = [
        (LeaseRole::Writer { name, parent }, Some(checkpoint)),
        (LeaseRole::Reader { name: read.name() }, None),
        (LeaseRole::Collector { generation }, None),
    ];
    for (beat, (role, checkpoint)) in (1..).zip(roles) {
        let lease_id = LeaseId::from_bytes(made.unique());
        let (started, tool, host) = (made.time(), TOOL.to_owned(), "node-1".to_owned());
        let lease =
            Lease { lease_id, role, started, beat, lease_seconds: 600, tool, host, checkpoint };
        put!(made, lease, names::lease_key(&lease_id), lease);
    }
}

/// One collection that decided, one that was fenced.
fn collections(made: &mut Builder, parent: &Manifest, dead: &[PackId], rewritten: Vec<Stub>) {
    let generation = GenerationId::from_bytes(made.unique());
    let mut unfinished = parent.name();
    unfinished.backup_id = chunkstore::BackupId::new("unfinished").expect("a backup id");
    let fence_keys = [Some(unfinished.manifest_key()), None];
    let lease = |fence_key| Blocker { lease_id: LeaseId::from_bytes(made.unique()), fence_key };
    let blockers = Blockers { leases: fence_keys.into_iter().map(lease).collect() };
    let mut gone = parent.name();
    gone.backup_id = chunkstore::BackupId::new("forgotten").expect("a backup id");
    let list = CondemnedList { dead: dead.to_vec(), rewritten, forgotten: vec![gone] };
    put!(made, condemned, names::condemned_key(&generation), Condemned::List(list));
    put!(made, blockers, names::blockers_key(&generation), blockers);
    put!(made, verdict, names::verdict_key(&generation), Verdict { dead: dead.to_vec() });
    let fenced = GenerationId::from_bytes(made.unique());
    put!(made, condemned, names::condemned_key(&fenced), Condemned::Fence);
}
