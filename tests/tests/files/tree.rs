//! A tree with a bit of everything, and what is seen of one.

use mover_fsmap::ReadAt;
use mover_fsmap::files::{FileKind, Piece, open, read_content};
use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use tests::{Rng, run_ok};

/// Of the tree, and so of each file system.
const SEED: u64 = 0xf11e5;

pub(crate) fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(8)];
    bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&rng.next_u64().to_le_bytes()));
    bytes.truncate(len);
    bytes
}

pub(crate) fn attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|e| panic!("{name} of {}: {e}", path.display()));
}

/// Fills a mounted file system; what comes last is in its journal alone, where it has one.
pub(crate) fn fill(root: &Path, kind: &str) {
    let mut rng = Rng::new(SEED);
    let at = |name: &str| root.join(name);
    // lengths around what is within an inode, and around blocks
    fs::create_dir(at("lengths")).unwrap();
    for len in [0, 1, 59, 60, 61, 150, 300, 1023, 1024, 1025, 4095, 4096, 4097, 65536, 1 << 20] {
        fs::write(at("lengths").join(len.to_string()), random(&mut rng, len)).unwrap();
    }
    // so many that they have an index
    fs::create_dir(at("many")).unwrap();
    for n in 0..500 {
        fs::write(at("many").join(format!("a name that is not short, number {n}")), n.to_string())
            .unwrap();
    }
    fs::create_dir_all(at("deep/er/and/deeper/still")).unwrap();
    fs::write(at("deep/er/and/deeper/still/file"), "deep").unwrap();
    names(root);
    holes(root, &mut rng, kind);
    links(root);
    specials(root);
    people(root, &mut rng, kind);
    run_ok("sync", ["-f", root.to_str().unwrap()]);
    late(root, &mut rng);
}

/// Whether a file system has more than its forebears had: times, attributes, reserved blocks.
fn is_wide(kind: &str) -> bool {
    matches!(kind, "ext4" | "xfs")
}

fn names(root: &Path) {
    let directory = root.join("names");
    fs::create_dir(&directory).unwrap();
    let longest = "n".repeat(255);
    let names: [&[u8]; 7] = [
        longest.as_bytes(),
        "Grüße, 世界".as_bytes(),
        b"not \xff\xfe text",
        b"line\nbreak",
        b"\x1b[31mred",
        b"...",
        b" ",
    ];
    for name in names {
        fs::write(directory.join(OsStr::from_bytes(name)), name).unwrap();
    }
}

fn holes(root: &Path, rng: &mut Rng, kind: &str) {
    let directory = root.join("holes");
    fs::create_dir(&directory).unwrap();
    let file = File::create(directory.join("far")).unwrap();
    file.write_all_at(&random(rng, 5000), 0).unwrap();
    file.write_all_at(&random(rng, 5000), 5 << 20).unwrap();
    file.write_all_at(b"end", 300 << 20).unwrap();
    File::create(directory.join("nothing")).unwrap().set_len(10 << 20).unwrap();
    let file = File::create(directory.join("ends-with-one")).unwrap();
    file.write_all_at(&random(rng, 4096), 0).unwrap();
    file.set_len(1 << 20).unwrap();
    // more stretches than an inode has room for
    let mut file = File::create(directory.join("comb")).unwrap();
    for n in 0..700 {
        file.seek(SeekFrom::Start(n * 2 * 4096)).unwrap();
        file.write_all(&random(rng, 100)).unwrap();
    }
    if is_wide(kind) {
        // reserved, and only written in the middle
        let path = directory.join("reserved");
        run_ok("fallocate", ["--length", "4MiB", path.to_str().unwrap()]);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&random(rng, 70_000), 1 << 20).unwrap();
    }
}

fn links(root: &Path) {
    let directory = root.join("links");
    fs::create_dir(&directory).unwrap();
    for (name, target) in [
        ("short", "../deep/er".to_owned()),
        ("long", format!("/{}", "x/".repeat(300))),
        ("edge-59", "y".repeat(59)),
        ("edge-60", "y".repeat(60)),
        ("absolute", "/lengths/1".to_owned()),
        ("to-directory", "../many".to_owned()),
        ("loop", "loop".to_owned()),
    ] {
        symlink(target, directory.join(name)).unwrap();
    }
    for n in 0..5 {
        let first = root.join("lengths/4097");
        let place = if n % 2 == 0 { &directory } else { &root.join("deep/er") };
        fs::hard_link(&first, place.join(format!("hard-{n}"))).unwrap();
    }
}

fn specials(root: &Path) {
    let directory = root.join("specials");
    fs::create_dir(&directory).unwrap();
    let make = |name: &str, kind, device| {
        let path = directory.join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::from(0o640), device).unwrap();
    };
    make("pipe", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    make("wide", FileType::BlockDevice, rustix::fs::makedev(259, 70_000));
}

fn people(root: &Path, rng: &mut Rng, kind: &str) {
    let directory = root.join("people");
    fs::create_dir(&directory).unwrap();
    let file = |name: &str, mode: u32, owner: u32| {
        let path = directory.join(name);
        fs::write(&path, name).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(owner + 1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    file("set-id", 0o6755, 1000);
    file("nobody", 0o000, 4_000_000_000);
    file("sticky", 0o1644, 70_000);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2775)).unwrap();
    let dressed = file("dressed", 0o640, 1000);
    attribute(&dressed, "user.comment", b"\x00 any \xff bytes");
    attribute(&dressed, "user.empty", b"");
    attribute(&dressed, "trusted.overlay.opaque", b"y");
    attribute(&dressed, "security.capability", CAPABILITY);
    attribute(&directory, "user.of-a-directory", b"yes");
    // in a block of their own
    attribute(&file("larger", 0o600, 1), "user.larger", &random(rng, 700));
    attribute(&dressed, "system.posix_acl_access", &access_list());
    if is_wide(kind) {
        // only with room for it, see `large-attributes`
        let path = file("largest", 0o600, 1);
        let value = random(rng, 20_000);
        let _ = rustix::fs::lsetxattr(&path, "user.largest", &value, XattrFlags::empty());
    }
    for (name, seconds, nanoseconds) in
        [("before", -100_000, 999_999_999), ("late", 5_000_000_000, 1), ("now", 1_700_000_000, 5)]
    {
        // 128 bytes of an inode have no room for more than 31 bits
        let seconds = if is_wide(kind) { seconds } else { seconds.clamp(-1 << 31, (1 << 31) - 1) };
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        let path = file(name, 0o644, 1);
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty()).unwrap();
    }
}

/// `cap_net_raw+ep`, as the kernel stores it.
const CAPABILITY: &[u8] = &[1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// `u::rw-,u:1234:rwx,g::r--,g:5678:r-x,m::rwx,o::---`
fn access_list() -> Vec<u8> {
    let entries = [
        (0x01_u16, 6_u16, u32::MAX),
        (0x02, 7, 1234),
        (0x04, 4, u32::MAX),
        (0x08, 5, 5678),
        (0x10, 7, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// What is in the journal, and not yet where it belongs.
fn late(root: &Path, rng: &mut Rng) {
    for n in 0..60 {
        let path = root.join("many").join(format!("a name that is not short, number {n}"));
        match n % 4 {
            0 => fs::remove_file(&path).unwrap(),
            1 => fs::rename(&path, root.join("deep").join(format!("moved {n}"))).unwrap(),
            2 => fs::write(&path, random(rng, 3000 + n)).unwrap(),
            _ => fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap(),
        }
    }
    fs::create_dir(root.join("new")).unwrap();
    // bytes that look like the journal's own are written there in another form
    let looks = [&0xc03b_3998_u32.to_be_bytes()[..], &random(rng, 8188)].concat();
    fs::write(root.join("new/looks-like-a-journal"), looks).unwrap();
    for directory in ["many", "deep", "new", ""] {
        let directory = File::open(root.join(directory)).unwrap();
        directory.sync_all().unwrap();
    }
    for file in ["many/a name that is not short, number 2", "new/looks-like-a-journal"] {
        File::open(root.join(file)).unwrap().sync_all().unwrap();
    }
    // all else that is written, without what a sync of the whole brings to its place
    rustix::fs::sync();
}

/// What is seen of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: char,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) size: u64,
    pub(crate) modified: (i64, i64),
    /// Of what is no directory.
    pub(crate) links: u64,
    device: u64,
    pub(crate) content: Vec<u8>,
    pub(crate) attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// All below a directory, by their paths.
pub(crate) fn entries(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let (kind, content) = match FileType::from_raw_mode(meta.mode()) {
                FileType::RegularFile => ('f', summary(&path, meta.len())),
                FileType::Directory => {
                    left.push(path.clone());
                    ('d', Vec::new())
                }
                FileType::Symlink => {
                    ('l', fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
                }
                FileType::Fifo => ('p', Vec::new()),
                FileType::Socket => ('s', Vec::new()),
                FileType::CharacterDevice => ('c', Vec::new()),
                FileType::BlockDevice => ('b', Vec::new()),
                FileType::Unknown => panic!("{}", path.display()),
            };
            let is_directory = kind == 'd';
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            all.insert(
                name,
                Entry {
                    kind,
                    mode: meta.mode() & 0o7777,
                    owner: (meta.uid(), meta.gid()),
                    size: if is_directory { 0 } else { meta.size() },
                    modified: (meta.mtime(), meta.mtime_nsec()),
                    links: if is_directory { 0 } else { meta.nlink() },
                    device: meta.rdev(),
                    content,
                    attributes: attributes(&path),
                },
            );
        }
    }
    all
}

/// The same, as this program reads it from the bytes of a file system.
pub(crate) fn read(volume: &dyn ReadAt, bytes: u64) -> BTreeMap<Vec<u8>, Entry> {
    let files = open(volume, bytes).unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut all = BTreeMap::new();
    let mut left = vec![(Vec::new(), files.root())];
    while let Some((path, directory)) = left.pop() {
        for entry in files.names(directory).unwrap() {
            let name = match path.is_empty() {
                true => entry.name,
                false => [&path, &b"/"[..], &entry.name].concat(),
            };
            let about = |why: mover_fsmap::Refusal| -> ! {
                panic!("{}: {why}", String::from_utf8_lossy(&name))
            };
            let node = files.node(entry.id).unwrap_or_else(|why| about(why));
            let mut device = 0;
            let (kind, content) = match node.kind {
                FileKind::File => {
                    let pieces = files.content(entry.id).unwrap_or_else(|why| about(why));
                    ('f', read_summary(volume, &pieces, node.size_bytes))
                }
                FileKind::Directory => {
                    left.push((name.clone(), entry.id));
                    ('d', Vec::new())
                }
                FileKind::Symlink => ('l', files.target(entry.id).unwrap_or_else(|why| about(why))),
                FileKind::Fifo => ('p', Vec::new()),
                FileKind::Socket => ('s', Vec::new()),
                FileKind::Characters(major, minor) => {
                    device = rustix::fs::makedev(major, minor);
                    ('c', Vec::new())
                }
                FileKind::Blocks(major, minor) => {
                    device = rustix::fs::makedev(major, minor);
                    ('b', Vec::new())
                }
            };
            let attributes = files.attributes(entry.id).unwrap_or_else(|why| about(why));
            let is_directory = kind == 'd';
            let entry = Entry {
                kind,
                mode: node.mode,
                owner: (node.uid, node.gid),
                size: if is_directory { 0 } else { node.size_bytes },
                modified: (node.modified.seconds, node.modified.nanoseconds.into()),
                links: if is_directory { 0 } else { node.links.into() },
                device,
                content,
                attributes: attributes.into_iter().map(|one| (one.name, one.value)).collect(),
            };
            assert!(all.insert(name, entry).is_none(), "a name is there once");
        }
    }
    all
}

fn read_summary(volume: &dyn ReadAt, pieces: &[Piece], len: u64) -> Vec<u8> {
    let (mut hash, mut whole) = (blake3::Hasher::new(), Vec::new());
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let part = &mut buffer[..(len - at).min(1 << 20) as usize];
        read_content(volume, pieces, at, part).unwrap();
        hash.update(part);
        if len < 256 {
            whole.extend_from_slice(part);
        }
        at += part.len() as u64;
    }
    if len < 256 { whole } else { hash.finalize().as_bytes().to_vec() }
}

/// Long content by its hash.
fn summary(path: &Path, len: u64) -> Vec<u8> {
    if len < 256 {
        return fs::read(path).unwrap();
    }
    let mut hash = blake3::Hasher::new();
    let mut file = File::open(path).unwrap();
    std::io::copy(&mut file, &mut hash).unwrap();
    hash.finalize().as_bytes().to_vec()
}

fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    // XFS shows access lists twice
    let is_one = |name: &&[u8]| !name.is_empty() && !name.starts_with(b"trusted.SGI_ACL_");
    let names = names[..len].split(|byte| *byte == 0).filter(is_one);
    names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}

/// They are the same, or it is said what is not.
pub(crate) fn same(about: &str, wanted: &BTreeMap<Vec<u8>, Entry>, got: &BTreeMap<Vec<u8>, Entry>) {
    let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    for (name, entry) in wanted {
        let found = got.get(name);
        assert!(found.is_some(), "{about}: {} is missing", shown(name));
        assert_eq!(found, Some(entry), "{about}: {}", shown(name));
    }
    let more: Vec<_> = got.keys().filter(|name| !wanted.contains_key(*name)).collect();
    assert!(more.is_empty(), "{about}: besides there is {}", shown(more[0]));
}
