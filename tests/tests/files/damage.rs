//! Damage, and the commands that meet it: `ls`, `diff --files` and `cp` name what cannot be read, go
//! on with everything else, and end alike. Needs no root: the file systems are made with their files.

use mover_fsmap::ReadAt;
use mover_fsmap::files::{FileId, open};
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use tests::{Mover, run_ok, work_dir};

const BLOCK: usize = 4096;
/// Inodes of a group, and the group that is damaged: only files of `/many` are in it.
const GROUP: u64 = 128;
const DAMAGED: u64 = 1;
const FILES: usize = 300;

/// An ext4 of several groups, and a repository whose packs have each of its blocks as it is.
struct Ground {
    directory: tempfile::TempDir,
    mover: Mover,
    image: PathBuf,
}

impl Ground {
    fn new(name: &str) -> Self {
        let directory = work_dir(&format!("files-damage-{name}"));
        let path = |name: &str| directory.path().join(name);
        let (source, image) = (path("source"), path("image"));
        for below in ["aa", "broken", "deep/inner", "many", "zz"] {
            fs::create_dir_all(source.join(below)).unwrap();
        }
        let files = ["aa/first", "broken/one", "broken/two", "deep/inner/file", "zz/last"];
        for name in files {
            fs::write(source.join(name), name).unwrap();
        }
        // its path has no room within the inode
        symlink("x".repeat(99), source.join("aa/link")).unwrap();
        for number in 0..FILES {
            fs::write(source.join(format!("many/{number:03}")), number.to_string()).unwrap();
        }
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let form = ["-q", "-b", "4096", "-g", "2048", "-N", "512", "-d"];
        let paths = [source.to_str().unwrap(), image.to_str().unwrap()];
        run_ok("mkfs.ext4", [&form[..], &paths].concat());
        let url = format!("file://{}", path("repository").display());
        let mover = Mover::new().env("MOVER_REPO", url);
        let plain = ["--encryption", "none", "--chunk-size", "4KiB", "--entry-chunks", "1"];
        mover.ok([&["init", "--quiet"], &plain[..]].concat());
        Self { directory, mover, image }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Backs the volume up as it is now; gives the backup's name.
    fn backed_up(&self) -> String {
        let image = self.image.to_str().unwrap();
        let line = ["backup", image, "--volume", "db", "--compression", "none", "--quiet"];
        self.mover.ok(line);
        let shown = self.mover.ok(["show", "db@latest", "--json"]).document();
        format!("db@{}", shown["backup_id"].as_str().unwrap())
    }

    fn asked(&self, request: &str) -> String {
        run_ok("debugfs", ["-R", request, self.image.to_str().unwrap()])
    }

    /// The number of a file's inode.
    fn inode(&self, path: &str) -> u64 {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let listed = self.asked(&format!("ls -p {directory}/"));
        let own = |line: &&str| line.split('/').nth(5) == Some(name);
        let line = listed.lines().find(own).unwrap();
        line.split('/').nth(1).unwrap().parse().unwrap()
    }

    /// The first byte of an inode.
    fn inode_at(&self, path: &str) -> u64 {
        let said = self.asked(&format!("imap {path}"));
        let (_, place) = said.split_once("located at block ").unwrap();
        let (block, offset) = place.trim().split_once(", offset 0x").unwrap();
        let offset = u64::from_str_radix(offset, 16).unwrap();
        block.parse::<u64>().unwrap() * BLOCK as u64 + offset
    }

    /// The first block of a file.
    fn block_of(&self, path: &str) -> u64 {
        self.asked(&format!("blocks {path}")).split_whitespace().next().unwrap().parse().unwrap()
    }

    fn flip(&self, at: u64) {
        let file = fs::File::options().read(true).write(true).open(&self.image).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }

    /// Damages the chunk of the repository that has a block of the volume.
    fn damage_chunk(&self, block: u64) {
        let image = fs::read(&self.image).unwrap();
        let wanted = &image[usize::try_from(block).unwrap() * BLOCK..][..BLOCK];
        let mut hits = 0;
        for pack in below(&self.path("repository").join("packs")) {
            let mut bytes = fs::read(&pack).unwrap();
            if let Some(at) = bytes.windows(BLOCK).position(|part| part == wanted) {
                bytes[at + BLOCK / 2] ^= 1;
                fs::write(&pack, bytes).unwrap();
                hits += 1;
            }
        }
        assert_eq!(hits, 1, "block {block} is in one pack");
    }

    /// Lists a damaged backup in both forms, beside a sound one of the same files. What is lost is
    /// named, with all that is `said` of it; all else is listed, and `cp` tells the same.
    fn lost(&self, sound: &str, backup: &str, lost: &[String], said: &str) {
        let line = |backup| ["ls", backup, "/", "--recursive"];
        let all = self.mover.ok(line(sound)).text();
        let listed = self.mover.run(line(backup)).expect_code(3);
        let is_lost = |line: &&str| lost.iter().any(|path| is_below(line, path));
        let left: Vec<&str> = all.lines().filter(|line| !is_lost(line)).collect();
        assert!(left.len() < all.lines().count());
        assert_eq!(listed.text().lines().collect::<Vec<_>>(), left, "{}", listed.stderr);
        let named = |path: &String| {
            let path = match path.strip_suffix("/*") {
                Some("") => "/",
                Some(directory) => directory,
                None => path,
            };
            let begin = format!("warning: {path}: ");
            listed.stderr.lines().any(|line| line.starts_with(&begin) && line.contains(said))
        };
        assert!(lost.iter().take(100).all(named), "{}", listed.stderr);
        let count = format!("list files: {} files could not be read", lost.len());
        assert!(listed.stderr.contains(&count), "{}", listed.stderr);

        let json = [&line(backup)[..], &["--json"]].concat();
        let json = self.mover.run(json).expect_code(3);
        let lines = json.json_lines();
        let files = lines.iter().filter(|line| line["type"] == "file").count();
        assert_eq!((files, lines.len()), (left.len(), left.len() + 1));
        let summary = json.summary();
        assert_eq!(summary["type"], "summary", "{summary}");
        assert_eq!(summary["damaged_files"], lost.len());

        let target = tempfile::tempdir_in(self.directory.path()).unwrap();
        let copying = ["cp", backup, "/", target.path().to_str().unwrap(), "--json"];
        let copied = self.mover.run(copying).expect_code(3).summary();
        assert_eq!(damaged(&copied), damaged(&summary));
        assert_eq!(copied["damaged_files"], lost.len());
    }
}

/// Whether a line of a list is of a path or of something below it; of `path/*`, only the latter.
fn is_below(line: &str, path: &str) -> bool {
    let (path, itself) = path.strip_suffix("/*").map_or((path, true), |path| (path, false));
    match line.strip_prefix(path) {
        Some("" | "/") => itself,
        Some(rest) => rest.starts_with('/'),
        None => false,
    }
}

/// The files that a summary names, each with the reason, in the order of their names.
fn damaged(summary: &Value) -> Vec<&str> {
    let named = summary["damaged"].as_array().unwrap().iter();
    let mut named: Vec<_> =
        named.map(|line| line.as_str().unwrap().trim_start_matches('/')).collect();
    named.sort_unstable();
    named
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let (mut files, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files.push(path);
        }
    }
    files
}

#[test]
fn an_inode_fails_its_own_name() {
    let ground = Ground::new("inode");
    let sound = ground.backed_up();
    // their times
    for path in ["/many/123", "/deep/inner"] {
        ground.flip(ground.inode_at(path) + 0x10);
    }
    let backup = ground.backed_up();
    let lost = ["/deep/inner", "/many/123"].map(String::from);
    ground.lost(&sound, &backup, &lost, "its checksum does not fit");
    // whoever names them hears the same, and gets what else was named
    let line = ["ls", &backup, "/many/123", "/deep/inner/file", "/zz", "/aa/first"];
    let listed = ground.mover.run(line).expect_code(3);
    assert_eq!(listed.text(), "/zz/last\n/aa/first\n");
    assert!(listed.stderr.contains("2 files could not be read"), "{}", listed.stderr);
    let target = ground.path("target");
    fs::create_dir(&target).unwrap();
    let line = ["cp", &backup, "/many/123", "/zz/last", target.to_str().unwrap()];
    let copied = ground.mover.run(line).expect_code(3);
    assert!(copied.stderr.contains("warning: /many/123: "), "{}", copied.stderr);
    assert_eq!(fs::read(target.join("last")).unwrap(), b"zz/last");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
    // what is not there is no damage
    let refused = ground.mover.run(["ls", &backup, "/none", "/zz"]).expect_code(2);
    assert_eq!(refused.text(), "", "{}", refused.stderr);
}

#[test]
fn a_block_of_names_fails_its_directory() {
    let ground = Ground::new("names");
    let sound = ground.backed_up();
    ground.flip(ground.block_of("/broken") * BLOCK as u64 + 2000);
    let backup = ground.backed_up();
    let said = "the checksum of a block of names does not fit";
    ground.lost(&sound, &backup, &["/broken/*".into()], said);
    let listed = ground.mover.run(["ls", &backup, "/broken", "/zz"]).expect_code(3);
    assert_eq!(listed.text(), "/zz/last\n");
    // of the root too, where nothing is left
    ground.flip(ground.block_of("/") * BLOCK as u64 + 2000);
    ground.lost(&sound, &ground.backed_up(), &["/*".into()], said);
}

/// All inodes of a group are lost, and every other name of the same directory is there.
#[test]
fn a_group_fails_its_own_files() {
    let ground = Ground::new("group");
    let sound = ground.backed_up();
    let first = ground.inode("/many/000");
    ground.flip(BLOCK as u64 + 64 * DAMAGED + 0x1e);
    let backup = ground.backed_up();
    let number = |inode| usize::try_from(inode - first).unwrap();
    // inodes are numbered from one on
    let lost = number(DAMAGED * GROUP + 1)..number((DAMAGED + 1) * GROUP + 1);
    assert!(lost.start > 0 && lost.end < FILES, "{lost:?}");
    let lost: Vec<String> = lost.map(|number| format!("/many/{number:03}")).collect();
    ground.lost(&sound, &backup, &lost, "the descriptor of group 1 does not fit");
}

#[test]
fn a_damaged_chunk_fails_what_has_it() {
    let ground = Ground::new("chunk");
    let sound = ground.mover.ok(["ls", &ground.backed_up(), "/", "--recursive"]).text();
    for path in ["/broken", "/aa/link"] {
        ground.damage_chunk(ground.block_of(path));
    }
    let listed = ground.mover.run(["ls", "db@latest", "/", "--recursive"]).expect_code(3);
    let left = sound.lines().filter(|line| !is_below(line, "/broken/*"));
    assert_eq!(listed.text().lines().collect::<Vec<_>>(), left.collect::<Vec<_>>());
    assert!(listed.stderr.contains("warning: /broken: "), "{}", listed.stderr);
    assert!(listed.stderr.contains("list files: 1 files could not be read"), "{}", listed.stderr);
    // the path of a link is read where it is shown
    let line = ["ls", "db@latest", "/", "--recursive", "--long", "--json"];
    let listed = ground.mover.run(line).expect_code(3);
    let summary = listed.summary();
    assert_eq!(summary["damaged_files"], 2, "{summary}");
    assert!(listed.json_lines().iter().any(|line| line["path"] == "/zz/last"));
    assert!(!listed.json_lines().iter().any(|line| line["path"] == "/aa/link"));
    let target = ground.path("target");
    fs::create_dir(&target).unwrap();
    let line = ["cp", "db@latest", "/", target.to_str().unwrap(), "--json"];
    let copied = ground.mover.run(line).expect_code(3).summary();
    assert_eq!(damaged(&copied), damaged(&summary));
    assert_eq!(fs::read(target.join("zz/last")).unwrap(), b"zz/last");
}

/// What became of all that can be read of both is told; all else is named, with its backup.
#[test]
fn two_backups_are_compared_but_for_what_is_damaged() {
    let ground = Ground::new("diff");
    let sound = ground.backed_up();
    let script = ground.path("script");
    let new = ground.path("new");
    fs::write(&new, "something else").unwrap();
    let new = new.display();
    let lines = [
        "rm /aa/first",
        "rm /zz/last",
        "cd /zz",
        &format!("write {new} last"),
        "cd /many",
        &format!("write {new} 300"),
        "cd /broken",
        &format!("write {new} three"),
        "sif /many/123 mode 0100600",
        "sif /many/124 mode 0100600",
        "",
    ];
    let lines = lines.join("\n");
    fs::write(&script, lines).unwrap();
    run_ok("debugfs", ["-w".as_ref(), "-f".as_ref(), script.as_os_str(), ground.image.as_os_str()]);
    let changed = ground.backed_up();
    let line = |before: &str, after: &str| ["diff", before, after, "--files"].map(str::to_owned);
    let all = ground.mover.ok(line(&sound, &changed)).text();
    for line in ["- /aa/first", "M /zz/last", "+ /many/300", "+ /broken/three", "U /many/123"] {
        assert!(all.lines().any(|one| one == line), "{line}: {all}");
    }
    ground.flip(ground.inode_at("/many/123") + 0x10);
    ground.flip(ground.block_of("/broken") * BLOCK as u64 + 2000);
    let damaged_one = ground.backed_up();
    let is_lost =
        |line: &&str| is_below(&line[2..], "/many/123") || is_below(&line[2..], "/broken/*");
    let left: Vec<&str> = all.lines().filter(|line| !is_lost(line)).collect();
    let told = ground.mover.run(line(&sound, &damaged_one)).expect_code(3);
    assert_eq!(told.text().lines().collect::<Vec<_>>(), left, "{}", told.stderr);
    for path in ["/broken", "/many/123"] {
        let named = format!("warning: {path} in backup {damaged_one} ");
        assert!(told.stderr.contains(&named), "{named}: {}", told.stderr);
    }
    assert!(told.stderr.contains("compare files: 2 files could not be read"), "{}", told.stderr);
    // the other way round it is the earlier one that cannot be read
    let back = ground.mover.run(line(&damaged_one, &sound)).expect_code(3);
    assert_eq!(back.text().lines().count(), left.len());
    let line = [&line(&sound, &damaged_one)[..], &["--json".to_owned()]].concat();
    let told = ground.mover.run(line).expect_code(3);
    let summary = told.summary();
    assert_eq!((told.json_lines().len(), &summary["type"]), (left.len() + 1, &"summary".into()));
    assert_eq!((damaged(&summary).len(), &summary["damaged_files"]), (2, &2.into()));
}

/// A volume in memory that remembers which of its bytes somebody expects.
struct Asked {
    bytes: Vec<u8>,
    expected: RefCell<Vec<Range<u64>>>,
}

impl ReadAt for Asked {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (&self.bytes[..]).read_at(buffer, offset)
    }

    fn expect(&self, ranges: &[Range<u64>]) {
        self.expected.borrow_mut().extend_from_slice(ranges);
    }
}

/// One that is nowhere, or whose group is damaged, keeps no other of its batch from being read ahead.
#[test]
fn a_batch_is_read_ahead_without_its_bad_ones() {
    let ground = Ground::new("batch");
    let good = ["/aa/first", "/many/000", "/many/299", "/zz/last"];
    let good = good.map(|path| (path, ground.inode_at(path), FileId(ground.inode(path))));
    ground.flip(BLOCK as u64 + 64 * DAMAGED + 0x1e);
    let bytes = fs::read(&ground.image).unwrap();
    let len = bytes.len() as u64;
    let volume = Asked { bytes, expected: RefCell::default() };
    let files = open(&volume, len).unwrap();
    let bad = [DAMAGED * GROUP + 1, (DAMAGED + 1) * GROUP, u64::from(u32::MAX), u64::MAX, 0];
    let ids: Vec<FileId> = bad.map(FileId).into_iter().chain(good.map(|(_, _, id)| id)).collect();
    files.expect(&ids);
    for (path, at, id) in good {
        assert!(volume.expected.borrow().iter().any(|range| range.contains(&at)), "{path}");
        files.node(id).unwrap();
    }
    for id in bad {
        files.node(FileId(id)).unwrap_err();
    }
}
