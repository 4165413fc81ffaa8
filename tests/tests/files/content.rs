//! Damage, and what is not ours to read.

use super::tree::entries;
use super::{FORMS, PLAIN, Stage};
use mover_fsmap::ReadAt;
use mover_fsmap::files::{FileKind, open, read_content};
use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use tests::{Rng, run_ok, work_dir};

/// A damaged chunk fails the file that has it, and no other.
#[test]
fn damage_is_of_its_own_file() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let whole = stage.copied("whole", &["--privileged"]);
    let mut packs: Vec<PathBuf> = Vec::new();
    let mut left = vec![stage.path("repository").join("packs")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            packs.push(path);
        }
    }
    // most of it is bytes of files
    let largest = packs.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut hit = 0;
    for part in 1..8 {
        let good = fs::read(largest).unwrap();
        let mut bytes = good.clone();
        let at = bytes.len() * part / 8;
        bytes[at] ^= 1;
        fs::write(largest, &bytes).unwrap();
        let target = stage.path("damaged");
        fs::create_dir(&target).unwrap();
        let line = ["cp", "db@latest", "/", target.to_str().unwrap(), "--privileged", "--json"];
        let done = stage.mover.run(line);
        fs::write(largest, good).unwrap();
        let (wanted, got) = (entries(&whole), entries(&target));
        fs::remove_dir_all(&target).unwrap();
        // directories are in it too: then all below them is lost, and that is said
        let Some(3) = done.code() else { continue };
        let Some(summary) = done.json_lines().into_iter().find(|line| line["type"] == "summary")
        else {
            continue;
        };
        let damaged = summary["damaged_files"].as_u64().unwrap();
        assert!(damaged > 0, "{summary}");
        assert!(done.stderr.contains("could not be read"), "{}", done.stderr);
        let lost = wanted.iter().filter(|(name, _)| !got.contains_key(*name)).count();
        assert!(lost as u64 >= damaged, "{lost} are missing, {damaged} are named");
        for (name, entry) in &got {
            if entry.kind == 'f' {
                assert_eq!(
                    entry.content,
                    wanted[name].content,
                    "{}",
                    String::from_utf8_lossy(name)
                );
            }
        }
        hit += 1;
    }
    assert!(hit > 1, "only {hit} of the damages were of files");
}

/// Whatever stands in a file system, reading it ends, and nothing of this program is at fault.
#[test]
fn rubbish_is_read_to_an_end() {
    const ROUNDS: u64 = 400;
    let form = FORMS.iter().find(|form| form.name == "no-checksums").unwrap();
    let Some(stage) = Stage::new(form) else { return };
    let mut bytes = fs::read(&stage.image).unwrap();
    let mut rng = Rng::new(0xba5e);
    let places = interesting(&bytes);
    let mut walked = 0;
    for _ in 0..ROUNDS {
        let mut before = Vec::new();
        for _ in 0..=rng.below(6) {
            let at = places[rng.below(places.len() as u64) as usize] + rng.below(256) as usize;
            before.push((at, bytes[at]));
            bytes[at] = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                _ => rng.next_u64() as u8,
            };
        }
        walked += walk(&&bytes[..], bytes.len() as u64);
        for (at, byte) in before.into_iter().rev() {
            bytes[at] = byte;
        }
    }
    assert!(walked > ROUNDS * 100, "only {walked} files were seen in all");
}

/// Blocks of metadata: inodes in use, names, extents, attributes, by how they look.
fn interesting(bytes: &[u8]) -> Vec<usize> {
    let mut places = vec![1024, 1024 + 256];
    for at in (0..16 << 20).step_by(256) {
        let part = &bytes[at..at + 256];
        let mode = u16::from_le_bytes([part[0], part[1]]) & 0xf000;
        let is_inode = matches!(mode, 0x4000 | 0x8000 | 0xa000) && part[26] != 0 && part[27] == 0;
        let is_node = part.starts_with(&[0x0a, 0xf3]) || part.starts_with(&[0, 0, 2, 0xea]);
        let is_names = part[..12].ends_with(b"\x01\x02.\0\0\0") || part[6] > 20 && part[7] == 1;
        if is_inode || is_node || is_names {
            places.push(at);
        }
    }
    assert!(places.len() > 500, "{} places", places.len());
    places
}

/// Everything that is asked of a file system; how many files there were.
pub(crate) fn walk(volume: &dyn ReadAt, bytes: u64) -> u64 {
    let Ok(files) = open(volume, bytes) else { return 0 };
    let (mut left, mut been) = (vec![files.root()], HashSet::new());
    let (mut count, mut buffer) = (0, vec![0; 4096]);
    while let Some(directory) = left.pop() {
        let Ok(names) = files.names(directory) else { continue };
        let ids: Vec<_> = names.iter().map(|entry| entry.id).collect();
        files.expect(&ids);
        for id in ids {
            count += 1;
            let Ok(node) = files.node(id) else { continue };
            let _ = files.attributes(id);
            match node.kind {
                FileKind::Directory if been.insert(id) => left.push(id),
                FileKind::Symlink => drop(files.target(id)),
                FileKind::File => {
                    let Ok(pieces) = files.content(id) else { continue };
                    let ends = pieces.last().map_or(0, |piece| piece.range.end);
                    assert_eq!(ends, node.size_bytes, "all of it is somewhere");
                    assert!(pieces.windows(2).all(|two| two[0].range.end == two[1].range.start));
                    for at in [0, node.size_bytes / 2, node.size_bytes.saturating_sub(100)] {
                        let _ = read_content(volume, &pieces, at, &mut buffer);
                    }
                }
                _ => {}
            }
        }
    }
    count
}

/// Other file systems are named; those in partitions are found where they are.
#[test]
fn what_a_volume_is_decides() {
    let directory = work_dir("files-others");
    let image = directory.path().join("image");
    let url = format!("file://{}", directory.path().join("repository").display());
    let mover = tests::Mover::new().env("MOVER_REPO", url);
    mover.ok(["init", "--quiet", "--encryption", "none"]);
    let backed_up = |name: &str| {
        mover.ok(["backup", image.to_str().unwrap(), "--volume", name, "--quiet"]);
    };
    fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
    run_ok("mkfs.btrfs", ["-q", image.to_str().unwrap()]);
    backed_up("btrfs");
    let said = mover.run(["ls", "btrfs@latest"]).expect_code(2).stderr;
    assert!(said.contains("btrfs") && said.contains("NTFS can be read"), "{said}");
    // a table, and a file system in the second partition
    fs::File::create(&image).unwrap().set_len(96 << 20).unwrap();
    let inner = directory.path().join("inner");
    fs::File::create(&inner).unwrap().set_len(32 << 20).unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("hello"), "from a partition\n").unwrap();
    let line = ["-q", "-d", source.to_str().unwrap(), inner.to_str().unwrap()];
    run_ok("mkfs.ext4", line);
    let table = ["--new=1:2048:+8M", "--new=2:18432:+32M", image.to_str().unwrap()];
    run_ok("sgdisk", table);
    let mut bytes = fs::read(&image).unwrap();
    bytes[9 << 20..41 << 20].copy_from_slice(&fs::read(&inner).unwrap());
    fs::write(&image, bytes).unwrap();
    backed_up("disk");
    let said = mover.run(["ls", "disk@latest"]).expect_code(2).stderr;
    assert!(said.contains("--partition") && said.contains("1, 2"), "{said}");
    let said = mover.run(["ls", "disk@latest", "--partition", "3"]).expect_code(2).stderr;
    assert!(said.contains("partitions 1, 2"), "{said}");
    let text = mover.ok(["cat", "disk@latest", "/hello", "--partition", "2"]).text();
    assert_eq!(text, "from a partition\n");
    let listed = mover.ok(["ls", "disk@latest", "--partition", "2"]).text();
    assert_eq!(listed, "/hello\n/lost+found/\n");
}
