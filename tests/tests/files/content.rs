//! Damage, and what is not ours to read.

use super::tree::{self, entries};
use super::{PLAIN, Stage};
use std::fs;
use std::path::PathBuf;
use tests::{run_ok, work_dir};

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
    run_ok("mkfs.xfs", ["-q", image.to_str().unwrap()]);
    backed_up("xfs");
    let said = mover.run(["ls", "xfs@latest"]).expect_code(2).stderr;
    assert!(said.contains("XFS") && said.contains("ext4"), "{said}");
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
    let _ = tree::entries;
}
