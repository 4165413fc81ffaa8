//! Bit rot: every class of byte positions of every kind of object flipped, and every object cut, in
//! the golden repositories, encrypted and not. A restore gives the right data or refuses, and names
//! no other cause than damage; a check finds it, names the object, and says of exactly those
//! backups that they lost data which cannot be restored.
//!
//! The small size, which every run has, takes some objects of each kind and a few bytes of each
//! class. With `MOVER_TEST_FULL=1` every byte of every object is flipped.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::{
    Credential, Encryption, Error, ErrorKind, Opener, Repository, Result, Store,
    format::SegmentLayout,
    pack::{decode_pack_header, decode_pack_trailer},
};
use mover_engine::ops::check::{CheckOptions, CheckReport, ReadData, check};
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use object_store::memory::InMemory;
use object_store::{ObjectStoreExt, path::Path as StorePath};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{Golden, Library, Rng, volume_dir};

/// Objects of one kind that are damaged in the small size.
const OBJECTS_OF_KIND: usize = 2;

/// Byte positions that mean the same.
#[derive(Debug, Clone)]
struct Class {
    name: &'static str,
    at: Range<usize>,
}

fn class(name: &'static str, at: Range<usize>) -> Class {
    Class { name, at }
}

/// Fields one after another from `start` on.
fn fields(start: usize, parts: &[(&'static str, usize)]) -> Vec<Class> {
    let mut at = start;
    let next = |(name, len): &(&'static str, usize)| {
        at += len;
        class(name, at - len..at)
    };
    parts.iter().map(next).filter(|c| !c.at.is_empty()).collect()
}

/// What an object is: the first part of its key, and of collections the last.
fn kind_of(key: &str) -> &str {
    match key.split_once('/') {
        Some(("gc", rest)) => rest.rsplit('/').next().unwrap(),
        Some((kind, _)) => kind,
        None => key,
    }
}

/// As `docs/format.md` lays records out.
fn record(bytes: &[u8]) -> Vec<Class> {
    let clear = u32::from_le_bytes(bytes[48..52].try_into().unwrap()) as usize;
    let body = bytes.len() - 64 - clear - 16;
    fields(
        0,
        &[
            ("magic", 8),
            ("version", 2),
            ("seal", 1),
            ("reserved", 1),
            ("key epoch", 4),
            ("salt", 32),
            ("clear length", 4),
            ("reserved", 4),
            ("body length", 8),
            ("clear part", clear),
            ("body", body),
            ("tag", 16),
        ],
    )
}

const HEADER: [(&str, usize); 6] =
    [("magic", 8), ("version", 2), ("kind", 1), ("seal", 1), ("key epoch", 4), ("id", 32)];

fn entry(at: usize, len: usize) -> Vec<Class> {
    let parts = [("codec", 1), ("kind", 1), ("count", 2), ("plain length", 4)];
    let rest = [("payload", len - 24), ("tag", 16)];
    fields(at, &[&parts[..], &rest[..]].concat())
}

fn pack(repo: &Repository, bytes: &[u8]) -> Vec<Class> {
    let header = decode_pack_header(bytes).unwrap();
    let trailer = decode_pack_trailer(bytes).unwrap();
    let (at, len) = (trailer.directory_offset as usize, trailer.directory_len as usize);
    let mut opener = Opener::new(Arc::clone(repo.keys())).unwrap();
    let directory = opener.open_directory(&header, &trailer, &bytes[at..at + len]).unwrap();
    let mut all = fields(0, &[&HEADER[..], &[("repository id", 16)]].concat());
    for e in &directory {
        all.extend(entry(e.offset as usize, e.stored_len as usize));
    }
    let directory = entry(at, len);
    all.extend(directory.into_iter().map(|c| class(directory_name(c.name), c.at)));
    let end = [
        ("trailer: directory offset", 4),
        ("trailer: directory length", 4),
        ("trailer: entries", 4),
        ("trailer: reserved", 4),
        ("trailer: length", 8),
        ("trailer: magic", 8),
        ("trailer: hash", 16),
        ("trailer: reserved at the end", 16),
    ];
    all.extend(fields(bytes.len() - 64, &end));
    all
}

fn directory_name(field: &str) -> &'static str {
    match field {
        "codec" => "directory: codec",
        "kind" => "directory: kind",
        "count" => "directory: count",
        "plain length" => "directory: plain length",
        "payload" => "directory: payload",
        _ => "directory: tag",
    }
}

fn segment(bytes: &[u8]) -> Vec<Class> {
    let at = bytes.len() - 64;
    let layout = SegmentLayout::decode("a segment", bytes.len() as u64, &bytes[at..]).unwrap();
    let mut all = fields(0, &[&HEADER[..], &[("repository id", 16)]].concat());
    let place = |r: Range<u64>| usize::try_from(r.start).unwrap()..usize::try_from(r.end).unwrap();
    for block in 0..layout.blocks() {
        let r = place(layout.block(block));
        all.extend(fields(r.start, &[("block", r.len() - 16), ("block tag", 16)]));
    }
    let r = place(layout.index());
    all.extend(fields(r.start, &[("index", r.len() - 16), ("index tag", 16)]));
    let end =
        [("records", 8), ("index offset", 8), ("index length", 8), ("end magic", 8), ("hash", 32)];
    all.extend(fields(at, &end));
    all
}

/// A golden repository in memory, one object of which is damaged at a time.
struct Rotting {
    library: Library,
    golden: Golden,
    objects: BTreeMap<String, Vec<u8>>,
    memory: Arc<InMemory>,
    target: PathBuf,
}

impl Rotting {
    fn new(golden: Golden, target: PathBuf) -> Self {
        let (library, objects) = (Library::new(), golden.objects());
        let rotting = Self { library, golden, objects, memory: Arc::default(), target };
        for (key, bytes) in &rotting.objects {
            rotting.put(key, bytes);
        }
        rotting
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        // what is in the golden repository is escaped already
        let path = StorePath::parse(key).unwrap();
        let put = self.memory.put(&path, bytes.to_vec().into());
        self.library.runtime.block_on(put).unwrap();
    }

    fn open_with(&self, credentials: &[Credential]) -> Result<Arc<Repository>> {
        let store = Store::new(Arc::clone(&self.memory) as _, StorePath::default(), "memory");
        self.library.runtime.block_on(Repository::open(store, credentials))
    }

    /// With the key file: its key is cheap to try.
    fn open(&self) -> Result<Arc<Repository>> {
        self.open_with(self.golden.credentials().get(..1).unwrap_or_default())
    }

    fn check(&self, repo: &Arc<Repository>) -> CheckReport {
        let options = CheckOptions {
            read_data: ReadData::All,
            repair: false,
            lease: None,
            memory: MemoryBudget { total_bytes: 256 << 20 },
            threads: Some(1),
        };
        let (progress, cancel) = (Progress::new(), Cancel::new());
        check(self.library.runtime.handle(), repo, &options, &progress, &cancel).unwrap()
    }

    /// Backups that cannot be restored; panics if one restores to something else.
    fn refused(&self, repo: &Arc<Repository>, what: &str) -> BTreeSet<String> {
        let mut refused = BTreeSet::new();
        for backup in &self.golden.backups {
            let _ = std::fs::remove_file(&self.target);
            match self.library.restore(repo, &backup.spec(), &self.target) {
                Ok(()) => backup.check(&self.target),
                Err(e) => {
                    assert!(is_damage(&e), "{what}, {}: {e}", backup.spec());
                    refused.insert(backup.spec());
                }
            }
        }
        refused
    }

    /// Everything that is asked of one damaged object. Gives how many backups cannot be restored.
    fn holds(&self, key: &str, bytes: &[u8], what: &str) -> usize {
        self.put(key, bytes);
        let mut cannot = 0;
        let what = format!("{} {key} {what}", self.golden.name);
        match kind_of(key) {
            "keys" => self.key_is_refused(key, &what),
            _ => {
                let repo = self.open().unwrap();
                let refused = self.refused(&repo, &what);
                let report = self.check(&repo);
                let named = |f: &chunkstore::check::Finding| f.object == key;
                assert!(report.findings.iter().any(named), "{what}: {:?}", report.findings);
                let lost = report.lost.iter();
                let lost: BTreeSet<_> =
                    lost.map(|l| format!("{}@{}", l.name.volume, l.name.backup_id)).collect();
                assert_eq!(lost, refused, "{what}: {:?}", report.findings);
                cannot = refused.len();
            }
        }
        self.put(key, &self.objects[key]);
        cannot
    }

    /// Of two keys one is damaged: with both the repository opens, with the damaged one alone it
    /// does not, and no other master key comes out.
    fn key_is_refused(&self, key: &str, what: &str) {
        let mut opened = 0;
        // the passphrase is dear to try: once for each object
        let dear = what.contains("cut to 0 ");
        for (at, credential) in self.golden.credentials().iter().enumerate() {
            if at > 0 && !dear {
                continue;
            }
            match self.open_with(std::slice::from_ref(credential)) {
                Ok(repo) => {
                    opened += 1;
                    // the other one, or nothing that matters: what is stored opens with it
                    assert!(self.refused(&repo, what).is_empty(), "{what} {key}");
                }
                Err(e) => {
                    let denied = matches!(e.kind(), ErrorKind::WrongKey | ErrorKind::Denied);
                    assert!(denied || is_damage(&e), "{what}: {e}");
                }
            }
        }
        assert!(opened <= 1, "{what}");
    }
}

/// What tells the user that something stored is bad: nothing that may pass, and no mistake of ours.
fn is_damage(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing | ErrorKind::Unsupported)
        // a manifest that is gone or forgotten is no backup
        || matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Forgotten)
}

fn full() -> bool {
    std::env::var_os("MOVER_TEST_FULL").is_some_and(|v| v == "1")
}

/// Positions of a class that are flipped.
fn positions(class: &Class, full: bool, rng: &mut Rng) -> BTreeSet<usize> {
    if full {
        return class.at.clone().collect();
    }
    let len = class.at.len() as u64;
    let any = class.at.start + usize::try_from(rng.below(len)).unwrap();
    if len <= 2 { [any].into() } else { [class.at.start, any].into() }
}

/// Which entries' classes are tried in the small size: those of a few entries; every name at least
/// once.
fn some(classes: Vec<Class>, full: bool) -> Vec<Class> {
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    let mut keep = |c: &Class| {
        let n = count.entry(c.name).or_default();
        *n += 1;
        full || *n <= 2
    };
    classes.into_iter().filter(|c| keep(c)).collect()
}

fn rot(golden: Golden) {
    let full = full();
    let work = volume_dir("bit-flips");
    let name = golden.name;
    let rotting = Rotting::new(golden, work.path().join("target.img"));
    let repo = rotting.open().unwrap();
    let clean = rotting.check(&repo);
    assert!(clean.is_clean(), "{name}: {:?} {:?}", clean.findings, clean.lost);
    let encrypted = repo.params().encryption == Encryption::Aes256Gcm;
    assert_eq!(encrypted, name == "encrypted");
    let mut rng = Rng::new(45);
    let (mut of_kind, mut tried): (BTreeMap<String, usize>, BTreeMap<String, u64>) =
        Default::default();
    let mut deadly = BTreeSet::new();
    // the long ones first: there is most in them
    let mut objects: Vec<_> = rotting.objects.iter().collect();
    objects.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.len()));
    for (key, bytes) in objects {
        let kind = match kind_of(key) {
            "packs" => format!("pack of kind {}", bytes[10]),
            kind => kind.to_owned(),
        };
        // the manifest of a forgotten backup counts as absent: nobody looks at it
        let forgotten = key.replacen("backups/", "forgotten/", 1);
        if forgotten != *key && rotting.objects.contains_key(&forgotten) {
            continue;
        }
        let count = of_kind.entry(kind.clone()).or_default();
        *count += 1;
        if !full && *count > OBJECTS_OF_KIND {
            continue;
        }
        let classes = match kind_of(key) {
            "packs" => pack(&repo, bytes),
            "dedup" => segment(bytes),
            _ => record(bytes),
        };
        let classes = some(classes, full);
        for class in &classes {
            for at in positions(class, full, &mut rng) {
                let bit = 1_u8 << rng.below(8);
                let mut flipped = bytes.clone();
                flipped[at] ^= bit;
                let what = format!("{} flipped at {at}", class.name);
                if rotting.holds(key, &flipped, &what) > 0 {
                    deadly.insert(kind.clone());
                }
                *tried.entry(format!("{kind}: {}", class.name)).or_default() += 1;
            }
        }
        let mut cuts: BTreeSet<usize> = [0, 1, bytes.len() / 2, bytes.len() - 1].into();
        let borders = classes.iter().map(|c| c.at.start);
        cuts.extend(borders.filter(|at| full || rng.below(4) == 0 || *at == 64));
        for len in cuts {
            rotting.holds(key, &bytes[..len], &format!("cut to {len} bytes"));
            *tried.entry(format!("{kind}: cut")).or_default() += 1;
        }
        let longer = [&bytes[..], &[0]].concat();
        rotting.holds(key, &longer, "with a byte behind it");
    }
    for (class, count) in &tried {
        println!("{name}: {class}: {count}");
    }
    // where a stub is damaged, what it leads to is found by its ids
    let data = ["backups", "pack of kind 1", "pack of kind 2"].map(str::to_owned);
    assert!(deadly.iter().eq(&data), "{deadly:?}: nothing else is needed?");
    println!("{name}: {} cases", tried.values().sum::<u64>());
}

#[test]
fn rot_in_an_encrypted_repository() {
    rot(Golden::all().into_iter().next().unwrap());
}

#[test]
fn rot_in_a_plain_repository() {
    rot(Golden::all().into_iter().nth(1).unwrap());
}
