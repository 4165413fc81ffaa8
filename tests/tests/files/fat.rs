//! FAT12, FAT16 and FAT32, against mtools: not every kernel mounts them.

use super::content::walk;
use super::mount::server::Mounted;
use super::tree::{Entry, entries, random, read, same};
use mover_fsmap::files::{FileKind, open};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tests::{Mover, Rng, run_ok, work_dir};

/// Each with what its mkfs is called with, and its size in MiB.
const VARIANTS: [(&str, &[&str], u64); 7] = [
    ("FAT12", &["-F", "12", "-s", "8"], 12),
    ("FAT12, one table", &["-F", "12", "-s", "16", "-f", "1"], 20),
    ("FAT16", &["-F", "16"], 60),
    ("FAT16, large clusters", &["-F", "16", "-s", "64"], 200),
    ("FAT32", &["-F", "32"], 200),
    ("FAT32, small", &["-F", "32", "-s", "1", "-R", "40"], 50),
    ("sectors of 4 KiB", &["-F", "16", "-S", "4096", "-s", "1"], 60),
];
const MIB: u64 = 1 << 20;

fn mtools(arguments: &[&str]) -> String {
    let own = ["MTOOLS_SKIP_CHECK=1", "TZ=UTC", "LC_ALL=C.UTF-8"];
    run_ok("env", own.iter().chain(arguments))
}

/// A tree on this machine: lengths, names, depths, times, all of which FAT can hold.
fn tree(root: &Path, rng: &mut Rng) {
    fs::create_dir_all(root.join("lengths")).unwrap();
    for len in [0, 1, 511, 512, 513, 4096, 4097, 65_536, 300_000] {
        fs::write(root.join("lengths").join(len.to_string()), random(rng, len)).unwrap();
    }
    fs::create_dir_all(root.join("many")).unwrap();
    for n in 0..400 {
        fs::write(root.join("many").join(format!("a name that is not short, number {n}")), "x")
            .unwrap();
    }
    fs::create_dir_all(root.join("deep/er/and/deeper/still/and/more")).unwrap();
    fs::write(root.join("deep/er/and/deeper/still/and/more/file"), "deep").unwrap();
    fs::create_dir_all(root.join("names")).unwrap();
    let longest = "n".repeat(255);
    for name in
        ["Grüße, 世界", "żółw four", "UPPER.TXT", "lower.txt", "Mixed.Txt", ".hidden", &longest]
    {
        fs::write(root.join("names").join(name), name).unwrap();
    }
    for (n, name) in ["lengths/1", "many/a name that is not short, number 7", "names/.hidden"]
        .into_iter()
        .enumerate()
    {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(951_826_000 + 86_400 * n as u64);
        File::options().write(true).open(root.join(name)).unwrap().set_modified(time).unwrap();
    }
}

/// An image with the tree, in pieces: what was between its files is gone.
fn make(directory: &Path, arguments: &[&str], bytes: u64) -> PathBuf {
    let mut rng = Rng::new(0xfa7);
    let image = directory.join("fat");
    File::create(&image).unwrap().set_len(bytes).unwrap();
    let path = image.to_str().unwrap();
    run_ok("mkfs.fat", arguments.iter().copied().chain([path]));
    let source = directory.join("source");
    tree(&source, &mut rng);
    let between = directory.join("between");
    fs::create_dir_all(&between).unwrap();
    for n in 0..60 {
        let len = 3000 + rng.below(30_000) as usize;
        fs::write(between.join(n.to_string()), random(&mut rng, len)).unwrap();
    }
    mtools(&["mcopy", "-s", "-Q", "-i", path, between.to_str().unwrap(), "::"]);
    for n in (0..60).step_by(2) {
        mtools(&["mdel", "-i", path, &format!("::between/{n}")]);
    }
    let comb = directory.join("in pieces");
    fs::write(&comb, random(&mut rng, 900_000)).unwrap();
    mtools(&["mcopy", "-m", "-Q", "-i", path, comb.to_str().unwrap(), "::"]);
    let names = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path());
    let names: Vec<String> = names.map(|path| path.to_str().unwrap().to_owned()).collect();
    let line = ["mcopy", "-s", "-m", "-Q", "-i", path];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    mtools(&[&line[..], &names, &["::"]].concat());
    mtools(&["mattrib", "+r", "-i", path, "::lengths/513"]);
    image
}

/// What mtools take out.
fn taken(directory: &Path, image: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let out = directory.join("out");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).unwrap();
    let (image, to) = (image.to_str().unwrap(), out.to_str().unwrap());
    mtools(&["mcopy", "-s", "-n", "-m", "-Q", "-i", image, "::", to]);
    let mut all = entries(&out);
    for (name, entry) in &mut all {
        (entry.owner, entry.mode) = ((0, 0), 0o755);
        if name == b"lengths/513" {
            entry.mode = 0o555;
        }
    }
    all
}

/// mtools give a directory the time of its copy.
fn without_times(mut all: BTreeMap<Vec<u8>, Entry>) -> BTreeMap<Vec<u8>, Entry> {
    for entry in all.values_mut().filter(|entry| entry.kind == 'd') {
        entry.modified = (0, 0);
    }
    all
}

#[test]
fn each_width_is_read_as_mtools_read_it() {
    for (what, arguments, mib) in VARIANTS {
        let directory = work_dir("files-fat");
        let image = make(directory.path(), arguments, mib * MIB);
        let bytes = fs::read(&image).unwrap();
        let volume = &&bytes[..];
        let got = without_times(read(volume, mib * MIB));
        assert!(got.len() > 450, "{what}: {}", got.len());
        same(what, &without_times(taken(directory.path(), &image)), &got);
        let files = open(volume, mib * MIB).unwrap();
        assert_eq!((files.kind(), files.warnings()), ("vfat", vec![]), "{what}");
        let comb = files.find(files.root(), b"in pieces").unwrap().unwrap();
        let pieces = files.content(comb).unwrap();
        // of FAT32 mtools go on where they were
        assert!(arguments.contains(&"32") || pieces.len() > 5, "{what}: {} pieces", pieces.len());
        // what mtools were told, two seconds exact
        let time = |path: &[u8]| got[path].modified;
        assert_eq!(time(b"lengths/1"), (951_826_000, 0), "{what}");
        assert_eq!(time(b"names/.hidden"), (951_998_800, 0), "{what}");
    }
}

/// A repository with the image as volume `db`.
fn backed_up(directory: &Path, image: &Path) -> Mover {
    let url = format!("file://{}", directory.join("repository").display());
    let mover = Mover::new().env("MOVER_REPO", url);
    mover.ok(["init", "--quiet", "--encryption", "none"]);
    mover.ok(["backup", image.to_str().unwrap(), "--volume", "db", "--quiet"]);
    mover
}

#[test]
fn all_commands_read_fat() {
    let directory = work_dir("files-fat-commands");
    let image = make(directory.path(), &["-F", "32", "-s", "1"], 50 * MIB);
    let mover = backed_up(directory.path(), &image);
    let wanted = taken(directory.path(), &image);
    let line = |path: &str| {
        let all = mover.ok(["ls", "db@latest", "/", "--recursive", "--json"]).json_lines();
        all.into_iter().find(|line| line["path"] == path).expect(path)
    };
    let one = line("/lengths/513");
    assert_eq!((one["mode"].as_u64(), one["size_bytes"].as_u64()), (Some(0o555), Some(513)));
    assert_eq!(line("/names/Grüße, 世界")["modified"].as_str().unwrap().len(), 20);
    assert_eq!(mover.ok(["cat", "db@latest", "/names/żółw four"]).text(), "żółw four");
    let target = directory.path().join("copied");
    fs::create_dir(&target).unwrap();
    mover.ok(["cp", "db@latest", "/", target.to_str().unwrap()]);
    let mut got = entries(&target);
    let owner = got.values().next().unwrap().owner;
    got.values_mut().for_each(|entry| entry.owner = (0, 0));
    same("copied", &without_times(taken(directory.path(), &image)), &without_times(got));
    let listed = mover.command(["cp", "db@latest", "/names", "--tar"]).output().unwrap();
    assert!(listed.status.success() && listed.stdout.len() > 7 * 1024);
    println!("copied as {owner:?}");
    if Path::new("/dev/fuse").exists() && tests::is_root() {
        let shown = Mounted::by(&mover, &directory.path().join("mounted"), &["db@latest"]);
        same("mounted", &without_times(wanted), &without_times(entries(&shown.path("files"))));
    }
    // and what changes
    let first = mover.ok(["show", "db@latest", "--json"]).document();
    let first = format!("db@{}", first["backup_id"].as_str().unwrap());
    let path = image.to_str().unwrap();
    let other = directory.path().join("Another");
    fs::write(&other, "another").unwrap();
    mtools(&["mcopy", "-m", "-Q", "-i", path, other.to_str().unwrap(), "::names/Another"]);
    mtools(&["mdel", "-i", path, "::names/żółw four"]);
    mtools(&["mcopy", "-o", "-Q", "-i", path, other.to_str().unwrap(), "::lengths/4096"]);
    mover.ok(["backup", path, "--volume", "db", "--quiet"]);
    let said = mover.ok(["diff", &first, "db@latest", "--files"]).text();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["+ /names/Another", "- /names/żółw four", "M /lengths/4096"]);
}

/// A volume that was mounted is read, and that is said.
#[test]
fn what_was_not_unmounted_is_read_with_a_warning() {
    for (arguments, mark) in [(["-F", "16"], 37), (["-F", "32"], 65)] {
        let directory = work_dir("files-fat-dirty");
        let image = make(directory.path(), &arguments, 60 * MIB);
        let mut bytes = fs::read(&image).unwrap();
        bytes[mark] |= 1;
        fs::write(&image, &bytes).unwrap();
        let mover = backed_up(directory.path(), &image);
        let done = mover.ok(["ls", "db@latest", "/names"]);
        assert!(done.stderr.contains("it was not unmounted"), "{}", done.stderr);
        assert!(done.text().contains("/names/Mixed.Txt\n"), "{}", done.text());
    }
}

/// Clusters of a file, by mtools.
fn clusters(image: &Path, name: &str) -> Vec<u64> {
    let said = mtools(&["mshowfat", "-i", image.to_str().unwrap(), name]);
    let mut all = Vec::new();
    for part in said.split('<').skip(1) {
        let (range, _) = part.split_once('>').unwrap();
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<u64>().unwrap()..=last.parse().unwrap());
    }
    all
}

/// A chain that does not fit fails its own file, and says how.
#[test]
fn chains_that_do_not_fit_are_of_their_file() {
    let directory = work_dir("files-fat-chains");
    let image = make(directory.path(), &["-F", "16", "-s", "4"], 60 * MIB);
    let good = fs::read(&image).unwrap();
    let table = usize::from(u16::from_le_bytes([good[14], good[15]])) * 512;
    let (one, other) = (clusters(&image, "::in pieces"), clusters(&image, "::lengths/300000"));
    assert!(one.len() > 300 && other.len() > 100, "{} {}", one.len(), other.len());
    let path = |files: &dyn mover_fsmap::files::Files, path: &str| {
        path.split('/').fold(files.root(), |at, name| {
            files.find(at, name.as_bytes()).unwrap().expect("it is there")
        })
    };
    for (what, at, to, of_one, of_other) in [
        ("crossed", one[5], other[50], Some("two chains lead"), Some("two chains lead")),
        ("crossed head", one[5], other[0], Some("its chain ends"), Some("middle of a chain")),
        ("loop", one[9], one[3], Some("two chains lead"), None),
        ("loop to its begin", one[9], one[0], Some("middle of a chain"), None),
        ("short", one[9], 0xffff, Some("its chain ends at byte 20480 of 900000"), None),
        ("lost", one[9], 0, Some("leads to 0, which is none"), None),
        ("freed end", one[one.len() - 1], 0, Some("leads to 0, which is none"), None),
        ("bad", one[9], 0xfff7, Some("leads to 65527, which is none"), None),
        ("outside", one[9], 0xff00, Some("leads to 65280, which is none"), None),
    ] {
        let mut bytes = good.clone();
        let place = table + 2 * at as usize;
        bytes[place..place + 2].copy_from_slice(&(to as u16).to_le_bytes());
        let volume = &&bytes[..];
        let files = open(volume, 60 * MIB).unwrap();
        for (name, wanted) in [("in pieces", of_one), ("lengths/300000", of_other)] {
            match (files.content(path(&*files, name)), wanted) {
                (Ok(_), None) => {}
                (Err(why), Some(words)) => {
                    assert!(why.to_string().contains(words), "{what}, {name}: {why}");
                }
                (found, _) => panic!("{what}, {name}: {found:?}"),
            }
        }
        assert!(files.content(path(&*files, "lengths/4097")).is_ok(), "{what}");
    }
}

/// Whatever stands there, reading ends.
#[test]
fn rubbish_is_read_to_an_end() {
    let mut rng = Rng::new(0xfa7_0bad);
    for (what, arguments, mib) in [VARIANTS[0], VARIANTS[2], VARIANTS[5]] {
        let directory = work_dir("files-fat-rubbish");
        let image = make(directory.path(), arguments, mib * MIB);
        let mut bytes = fs::read(&image).unwrap();
        let volume = &&bytes[..];
        let first = open(volume, mib * MIB).unwrap();
        let mut places = vec![0, 256];
        // directories, and the chains of all
        for name in first.names(first.root()).unwrap() {
            if first.node(name.id).unwrap().kind == FileKind::Directory {
                let names = first.names(name.id).unwrap();
                places.extend(names.iter().map(|one| (one.id.0 * 32) as usize & !255));
            }
            places.push((name.id.0 * 32) as usize & !255);
        }
        let table = usize::from(u16::from_le_bytes([bytes[14], bytes[15]])) * 512;
        places.extend((0..16).map(|n| table + 256 * n));
        drop(first);
        let mut walked = 0;
        for _ in 0..150 {
            let mut before = Vec::new();
            for _ in 0..=rng.below(6) {
                let at = places[rng.below(places.len() as u64) as usize] + rng.below(256) as usize;
                before.push((at, bytes[at]));
                bytes[at] = if rng.once_in(3) { 0xff } else { rng.next_u64() as u8 };
            }
            walked += walk(&&bytes[..], mib * MIB);
            before.into_iter().rev().for_each(|(at, byte)| bytes[at] = byte);
        }
        assert!(walked > 5000, "{what}: only {walked} files were seen in all");
    }
}
