//! NTFS, against ntfs-3g: each name, byte, time and link.

use super::content::walk;
use super::mount::server::Mounted;
use super::tree::{Entry, attribute, entries, random, read, same};
use mover_fsmap::files::{Place, open};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use tests::{LoopDevice, Mount, Mover, Rng, require_root, run_ok, work_dir};

/// Each with what its mkfs is called with.
const VARIANTS: [(&str, &[&str]); 6] = [
    ("default", &[]),
    ("clusters of 512 bytes", &["-c", "512"]),
    ("clusters of 2 KiB", &["-c", "2048"]),
    ("clusters of 64 KiB", &["-c", "65536"]),
    ("clusters of 256 KiB", &["-c", "262144"]),
    ("sectors of 4 KiB", &["-s", "4096"]),
];
const BYTES: u64 = 100 << 20;
const MANY: usize = 3000;
/// Permissions as the reader has them.
const SHOWN: &str = "ro,umask=022";

fn make(directory: &Path, arguments: &[&str], options: &str, fill: impl FnOnce(&Path)) -> PathBuf {
    let image = directory.join("ntfs");
    File::create(&image).unwrap().set_len(BYTES).unwrap();
    let path = image.to_str().unwrap();
    let all = ["-Q", "-F", "-q"].iter().chain(arguments).copied();
    run_ok("mkntfs", all.chain([path]));
    let device = LoopDevice::attach(&image);
    let mounted = Mount::new(device.path(), &directory.join("live"), "ntfs-3g", options);
    fill(mounted.path());
    drop(mounted);
    image
}

/// What ntfs-3g shows of an image. It gives pipes the permissions that are in an attribute which no
/// other file has: none.
fn shown(directory: &Path, image: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let copy = directory.join("copy");
    fs::copy(image, &copy).unwrap();
    let device = LoopDevice::attach(&copy);
    let mounted = Mount::new(device.path(), &directory.join("shown"), "ntfs-3g", SHOWN);
    let mut all = entries(mounted.path());
    all.values_mut().filter(|entry| entry.kind == 'p').for_each(|entry| entry.mode = 0o755);
    all
}

fn fill(root: &Path) {
    let mut rng = Rng::new(0x27f5);
    let at = |name: &str| root.join(name);
    fs::create_dir(at("lengths")).unwrap();
    // around what is within a record
    for len in [0, 1, 100, 600, 700, 720, 1000, 4095, 4096, 4097, 65_536, 1 << 20] {
        fs::write(at("lengths").join(len.to_string()), random(&mut rng, len)).unwrap();
    }
    for (name, count) in [("few", 3), ("some", 60), ("many", MANY)] {
        fs::create_dir(at(name)).unwrap();
        for n in 0..count {
            let path = at(name).join(format!("{n} {}", "n".repeat(n % 200)));
            fs::write(path, n.to_string()).unwrap();
        }
    }
    for n in (0..MANY).step_by(3) {
        fs::remove_file(at("many").join(format!("{n} {}", "n".repeat(n % 200)))).unwrap();
    }
    fs::create_dir_all(at("deep/er/and/deeper/still/and/more")).unwrap();
    fs::write(at("deep/er/and/deeper/still/and/more/file"), "deep").unwrap();
    fs::create_dir(at("names")).unwrap();
    let longest = "n".repeat(255);
    for name in ["Grüße, 世界", "🦀 four", "UPPER", "lower", ".hidden", " blank", &longest] {
        fs::write(at("names").join(name), name).unwrap();
    }
    fs::create_dir(at("holes")).unwrap();
    let far = File::create(at("holes/far")).unwrap();
    far.write_all_at(&random(&mut rng, 5000), 0).unwrap();
    far.write_all_at(b"end", 3 << 30).unwrap();
    File::create(at("holes/nothing")).unwrap().set_len(10 << 20).unwrap();
    // more runs than one record has room for
    let mut combs = ["comb", "brush"].map(|name| File::create(at(name)).unwrap());
    for n in 0..1500 {
        for (skew, comb) in (0..).zip(&mut combs) {
            comb.seek(SeekFrom::Start((n * 2 + skew) * 4096)).unwrap();
            comb.write_all(&random(&mut rng, 700)).unwrap();
        }
    }
    fs::create_dir(at("links")).unwrap();
    symlink("../deep/er", at("links/short")).unwrap();
    symlink(format!("/{}", "x/".repeat(300)), at("links/long")).unwrap();
    for n in 0..300 {
        fs::hard_link(at("lengths/4097"), at("links").join(format!("hard {n}"))).unwrap();
    }
    for (name, seconds, nanoseconds) in
        [("before", -100_000, 0), ("late", 5_000_000_000, 100), ("now", 1_700_000_000, 0)]
    {
        fs::write(at(name), name).unwrap();
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, at(name), &times, AtFlags::empty()).unwrap();
    }
    let pipe = at("links/pipe");
    rustix::fs::mknodat(CWD, pipe, FileType::Fifo, Mode::from(0o640), 0).unwrap();
}

#[test]
fn each_form_is_read_as_ntfs_3g_shows_it() {
    require_root!();
    for (what, arguments) in VARIANTS {
        let directory = work_dir("files-ntfs");
        let image = make(directory.path(), arguments, "special_files=wsl", fill);
        let bytes = fs::read(&image).unwrap();
        let volume = &&bytes[..];
        let got = read(volume, BYTES);
        assert!(got.len() > 2 * MANY / 3, "{what}: {}", got.len());
        let files = open(volume, BYTES).unwrap();
        let comb = files.find(files.root(), b"comb").unwrap().unwrap();
        let pieces = files.content(comb).unwrap();
        let holes = pieces.iter().filter(|piece| piece.place == Place::Hole).count();
        println!("{what}: {} names, {} pieces, {holes} holes", got.len(), pieces.len());
        assert!(
            pieces.len() > 500 || arguments.contains(&"65536") || arguments.contains(&"262144")
        );
        same(what, &shown(directory.path(), &image), &got);
    }
}

fn backed_up(directory: &Path, image: &Path) -> Mover {
    let url = format!("file://{}", directory.join("repository").display());
    let mover = Mover::new().env("MOVER_REPO", url);
    mover.ok(["init", "--quiet", "--encryption", "none"]);
    mover.ok(["backup", image.to_str().unwrap(), "--volume", "db", "--quiet"]);
    mover
}

#[test]
fn all_commands_read_ntfs() {
    require_root!();
    let directory = work_dir("files-ntfs-commands");
    let image = make(directory.path(), &[], "special_files=wsl", fill);
    let mover = backed_up(directory.path(), &image);
    let wanted = shown(directory.path(), &image);
    let target = directory.path().join("copied");
    fs::create_dir(&target).unwrap();
    mover.ok(["cp", "db@latest", "/", target.to_str().unwrap()]);
    same("copied", &wanted, &entries(&target));
    let far = fs::metadata(target.join("holes/far")).unwrap();
    assert!(std::os::unix::fs::MetadataExt::blocks(&far) * 512 < 1 << 20, "holes stay holes");
    let unpacked = directory.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let archive = directory.path().join("all.tar");
    let mut command = mover.command(["cp", "db@latest", "/", "--tar"]);
    assert!(command.stdout(File::create(&archive).unwrap()).status().unwrap().success());
    let (archive, to) = (archive.to_str().unwrap(), unpacked.to_str().unwrap());
    run_ok("tar", ["--extract", "--preserve-permissions", "--file", archive, "--directory", to]);
    same("unpacked", &wanted, &entries(&unpacked));
    let mounted = Mounted::by(&mover, &directory.path().join("mounted"), &["db@latest"]);
    same("mounted", &wanted, &entries(&mounted.path("files")));
    drop(mounted);
    let all = mover.ok(["ls", "db@latest", "/links", "--json"]).json_lines();
    let line = |path: &str| all.iter().find(|line| line["path"] == path).unwrap();
    assert_eq!(line("/links/short")["target"], "../deep/er");
    assert_eq!(line("/links/hard 7")["links"], 301);
    assert_eq!(mover.ok(["cat", "db@latest", "/names/Grüße, 世界"]).text(), "Grüße, 世界");
    // and what changes
    let first = mover.ok(["show", "db@latest", "--json"]).document();
    let first = format!("db@{}", first["backup_id"].as_str().unwrap());
    {
        let device = LoopDevice::attach(&image);
        let mounted = Mount::new(device.path(), &directory.path().join("live"), "ntfs-3g", "");
        let at = |name: &str| mounted.path().join(name);
        let file = File::options().write(true).open(at("lengths/65536")).unwrap();
        file.write_all_at(b"other", 5000).unwrap();
        fs::write(at("few/added"), "new").unwrap();
        fs::remove_file(at("now")).unwrap();
    }
    mover.ok(["backup", image.to_str().unwrap(), "--volume", "db", "--quiet"]);
    let said = mover.ok(["diff", &first, "db@latest", "--files"]).text();
    for line in ["M /lengths/65536", "+ /few/added", "- /now", "U /few/"] {
        assert!(said.lines().any(|one| one == line), "{line}: {said}");
    }
    assert_eq!(said.lines().count(), 4, "{said}");
}

/// A reparse point, as Windows makes them: a tag, and what its driver says.
fn reparse(path: &Path, tag: u32, data: &[u8]) {
    let len = u16::try_from(data.len()).unwrap().to_le_bytes();
    let bytes = [&tag.to_le_bytes()[..], &len, &[0, 0], data].concat();
    attribute(path, "system.ntfs_reparse_data", &bytes);
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// What is in a form that is not read fails its own file, by name.
#[test]
fn other_forms_are_of_their_file() {
    require_root!();
    let directory = work_dir("files-ntfs-forms");
    let mut rng = Rng::new(0x27f6);
    // whole units: what is left behind the last one is always packed
    let noise = random(&mut rng, 5 * 65_536);
    let image = make(directory.path(), &["-C"], "compression", |root| {
        let at = |name: &str| root.join(name);
        fs::write(at("packed"), "the same again and again\n".repeat(20_000)).unwrap();
        fs::write(at("short"), "within its record").unwrap();
        fs::write(at("noise"), &noise).unwrap();
        fs::write(at("system"), "x").unwrap();
        reparse(&at("system"), 0x8000_0017, &[1, 0, 0, 0]);
        fs::create_dir(at("cloud")).unwrap();
        fs::write(at("cloud/file"), "here").unwrap();
        fs::write(at("linked"), "").unwrap();
        let name = utf16(r"cloud\file");
        let len = u8::try_from(name.len()).unwrap();
        let head = [0, 0, len, 0, 0, 0, len, 0, 1, 0, 0, 0];
        reparse(&at("linked"), 0xa000_000c, &[&head[..], &name].concat());
        fs::write(at("read-only"), "r").unwrap();
        attribute(&at("read-only"), "system.ntfs_attrib", &0x21_u32.to_le_bytes());
        fs::write(at("secret"), "s".repeat(100)).unwrap();
    });
    let mut bytes = fs::read(&image).unwrap();
    encrypt(&mut bytes, "secret");
    let volume = &&bytes[..];
    let files = open(volume, BYTES).unwrap();
    let find = |name: &str| files.find(files.root(), name.as_bytes()).unwrap().expect(name);
    for (name, words) in [
        ("packed", "it is compressed (LZNT1)"),
        ("system", "compressed by Windows (WOF) (0x80000017)"),
        ("secret", "it is encrypted (EFS)"),
    ] {
        let why = files.content(find(name)).expect_err(name).to_string();
        assert!(why.contains(words), "{name}: {why}");
        assert!(files.node(find(name)).unwrap().size_bytes > 0, "{name}");
    }
    assert_eq!(files.target(find("linked")).unwrap(), b"cloud/file");
    assert_eq!(files.node(find("read-only")).unwrap().mode, 0o555);
    drop(files);
    fs::write(&image, &bytes).unwrap();
    let mover = backed_up(directory.path(), &image);
    // units that do not shrink are as they were written
    assert!(mover.ok(["cat", "db@latest", "/noise"]).stdout == noise);
    assert_eq!(mover.ok(["cat", "db@latest", "/short", "/linked"]).text(), "within its recordhere");
    let target = directory.path().join("copied");
    fs::create_dir(&target).unwrap();
    let done = mover.run(["cp", "db@latest", "/", target.to_str().unwrap()]);
    assert_eq!(done.code(), Some(3), "{}", done.stderr);
    assert!(done.stderr.contains("packed: ") && done.stderr.contains("LZNT1"), "{}", done.stderr);
    assert_eq!(fs::read(target.join("cloud/file")).unwrap(), b"here");
    assert!(!target.join("packed").exists() && target.join("noise").exists());
}

fn le(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// The record of a file with that name.
fn record(bytes: &[u8], name: &str) -> usize {
    let name = utf16(name);
    let is_it = |at: &usize| {
        let record = &bytes[*at..at + 1024];
        record.starts_with(b"FILE") && record.windows(name.len()).any(|part| part == name)
    };
    (0..bytes.len() - 1024).step_by(1024).find(is_it).expect("a record")
}

/// Marks the data of a file as encrypted.
fn encrypt(bytes: &mut [u8], name: &str) {
    let record = record(bytes, name);
    let mut at = record + le(bytes, record + 20, 2);
    while le(bytes, at, 4) != 0x80 {
        at += le(bytes, at + 4, 4);
    }
    bytes[at + 13] |= 0x40;
}

/// Nothing is replayed here, so nothing is read that wants it.
#[test]
fn what_was_not_unmounted_is_refused() {
    require_root!();
    let directory = work_dir("files-ntfs-dirty");
    let image = make(directory.path(), &[], "", |root| fs::write(root.join("a"), "a").unwrap());
    let good = fs::read(&image).unwrap();
    open(&&good[..], BYTES).unwrap();
    // of the volume's own record and its copy
    let mut bytes = good.clone();
    let cluster = le(&good, 11, 2) * usize::from(good[13]);
    for table in [48, 56] {
        let record = le(&good, table, 8) * cluster + 3 * 1024;
        let mut at = record + le(&good, record + 20, 2);
        while le(&good, at, 4) != 0x70 {
            at += le(&good, at + 4, 4);
        }
        bytes[at + le(&good, at + 20, 2) + 10] |= 1;
    }
    fs::write(&image, &bytes).unwrap();
    let mover = backed_up(directory.path(), &image);
    let said = mover.run(["ls", "db@latest"]).expect_code(2).stderr;
    assert!(said.contains("marked as dirty"), "{said}");
    // a log that is not empty, and says nothing of being clean
    let mut at = le(&good, 48, 8) * cluster + 2 * 1024;
    at += le(&good, at + 20, 2);
    while le(&good, at, 4) != 0x80 {
        at += le(&good, at + 4, 4);
    }
    let run = at + le(&good, at + 32, 2);
    let (len, place) = (usize::from(good[run] & 0xf), usize::from(good[run] >> 4));
    let log = le(&good, run + 1 + len, place) * cluster;
    assert!(good[log..log + 4096].iter().all(|byte| *byte == 0xff), "it was emptied");
    let mut bytes = good;
    bytes[log + 4096] = 0;
    let why = open(&&bytes[..], BYTES).map(drop).expect_err("it is not clean").to_string();
    assert!(why.contains("log"), "{why}");
}

/// A name whose record was given to another file leads to none.
#[test]
fn a_name_that_is_left_over_leads_to_no_file() {
    require_root!();
    let directory = work_dir("files-ntfs-left-over");
    let image = make(directory.path(), &[], "", |root| fs::write(root.join("lost"), "a").unwrap());
    let mut bytes = fs::read(&image).unwrap();
    let record = record(&bytes, "lost");
    bytes[record + 16] += 1;
    let volume = &&bytes[..];
    let files = open(volume, BYTES).unwrap();
    let id = files.find(files.root(), b"lost").unwrap().unwrap();
    let why = files.node(id).expect_err("it is another file").to_string();
    assert!(why.contains("its name is that of another file"), "{why}");
}

/// Whatever stands there, reading ends.
#[test]
fn rubbish_is_read_to_an_end() {
    require_root!();
    let directory = work_dir("files-ntfs-rubbish");
    let image = make(directory.path(), &[], "special_files=wsl", |root| {
        fs::create_dir(root.join("a")).unwrap();
        for n in 0..200 {
            fs::write(root.join("a").join(format!("name {n}")), vec![7; n * 10]).unwrap();
        }
        symlink("a/name 1", root.join("link")).unwrap();
        let comb = File::create(root.join("comb")).unwrap();
        for n in 0..600 {
            comb.write_all_at(b"tooth", n * 8192).unwrap();
        }
    });
    let mut rng = Rng::new(0x27f5_0bad);
    let mut bytes = fs::read(&image).unwrap();
    let is_ours = |at: &usize| matches!(&bytes[*at..at + 4], b"FILE" | b"INDX");
    let mut places: Vec<usize> = (0..bytes.len()).step_by(1024).filter(is_ours).collect();
    places.push(0);
    assert!(places.len() > 200, "{}", places.len());
    let mut walked = 0;
    for _ in 0..300 {
        let mut before = Vec::new();
        for _ in 0..=rng.below(6) {
            let at = places[rng.below(places.len() as u64) as usize] + rng.below(400) as usize;
            before.push((at, bytes[at]));
            bytes[at] = if rng.once_in(3) { 0xff } else { rng.next_u64() as u8 };
        }
        walked += walk(&&bytes[..], BYTES);
        before.into_iter().rev().for_each(|(at, byte)| bytes[at] = byte);
    }
    assert!(walked > 20_000, "only {walked} files were seen in all");
}
