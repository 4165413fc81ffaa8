//! One name, two disks; one snapshot, two contents.

use super::{Stage, expect_error, p};
use std::fs;
use std::path::PathBuf;

const MIB: usize = 1 << 20;

/// An image of this size that begins as an ext4 file system of this UUID does, or as nothing known.
fn disk(uuid: Option<u8>, bytes: usize, content: u8) -> Vec<u8> {
    let mut image = vec![content; bytes];
    image[..64 << 10].fill(0);
    if let Some(uuid) = uuid {
        image[1024 + 56..1024 + 58].copy_from_slice(b"\x53\xef");
        image[1024 + 104..1024 + 120].fill(uuid);
    }
    image
}

struct Scene {
    stage: Stage,
    image: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let stage = Stage::new(name);
        let image = stage.path("disk.img");
        Self { stage, image }
    }

    fn line(&self, disk: &[u8], more: &[&str]) -> Vec<PathBuf> {
        fs::write(&self.image, disk).expect("write the disk");
        let line = [p("backup"), self.image.clone(), p("--volume"), p("disk")];
        line.into_iter().chain(more.iter().map(|text| p(text))).collect()
    }

    fn good(&self, disk: &[u8], more: &[&str]) -> serde_json::Value {
        self.stage.mover.ok(self.line(disk, &[more, &["--json"]].concat())).summary()
    }

    fn refused(&self, disk: &[u8], more: &[&str], words: &str) {
        let before = self.stage.objects("");
        expect_error(self.stage.mover.run(self.line(disk, more)), 2, words);
        assert_eq!(self.stage.objects("").len(), before.len(), "{words}: it left something");
    }
}

#[test]
fn another_disk_under_the_name_is_refused() {
    let scene = Scene::new("another-disk");
    scene.good(&disk(Some(7), 4 * MIB, 1), &[]);
    let page = scene.stage.mover.ok(["show", "disk@latest"]).text();
    assert!(page.contains("ext:07070707-0707-"), "{page}");

    let other = disk(Some(8), 4 * MIB, 2);
    scene.refused(&other, &[], "another disk: it had ext:07070707-");
    scene.refused(&other, &["--parent", "none"], "this has ext:08080808-");
    scene.refused(&other, &["--plan"], "--volume-changed");
    scene.refused(&disk(Some(7), 3 * MIB, 1), &[], "it had 4.00 MiB");

    // it has grown, and what is on it cannot be told
    scene.good(&disk(Some(7), 6 * MIB, 1), &[]);
    // it was wiped, or is another
    scene.refused(&disk(None, 7 * MIB, 1), &[], "on this nothing known is found");
    scene.good(&disk(None, 7 * MIB, 1), &["--volume-changed"]);
    scene.good(&disk(None, 8 * MIB, 1), &[]);
    // it was formatted
    scene.good(&disk(Some(6), 8 * MIB, 1), &[]);
    // meant
    scene.good(&disk(Some(9), 5 * MIB, 3), &["--volume-changed"]);
    scene.good(&disk(Some(9), 5 * MIB, 4), &[]);
}

#[test]
fn what_is_late_may_be_of_the_volume_as_it_was() {
    let scene = Scene::new("late");
    let (old, grown) = (disk(Some(7), 4 * MIB, 1), disk(Some(7), 6 * MIB, 1));
    let named = |snapshot| ["--backup-id", snapshot, "--snapshot", snapshot];
    scene.good(&old, &["--backup-id", "plain"]);
    scene.good(&old, &named("s1"));
    scene.good(&grown, &named("s3"));
    // Jobs that were run again: of snapshots, and of a copy without a name
    let again = scene.good(&old, &named("s1"));
    assert_eq!(again["outcome"], "already-committed", "{again}");
    let again = scene.good(&old, &["--backup-id", "plain"]);
    assert_eq!(again["outcome"], "already-committed", "{again}");
    // a snapshot that is older than the newest, and was not backed up yet
    let late = scene.good(&old, &named("s2"));
    assert_eq!(late["size_bytes"], 4 * MIB, "{late}");
    // a volume as it is now has no such excuse, nor is every old disk this one
    scene.good(&grown, &named("s4"));
    scene.refused(&old, &[], "it had 6.00 MiB");
    scene.refused(&disk(Some(8), 4 * MIB, 1), &named("s5"), "it had ext:07070707-");
    scene.refused(&disk(Some(7), 3 * MIB, 1), &named("s5"), "it had 6.00 MiB");
}

#[test]
fn a_snapshot_has_one_content() {
    let scene = Scene::new("snapshot-content");
    let first = disk(None, 4 * MIB, 1);
    scene.good(&first, &["--snapshot", "s1", "--backup-id", "one"]);
    scene.good(&disk(None, 4 * MIB, 2), &["--snapshot", "s2"]);
    // a Job that is run again, and somebody who makes a second backup of the same snapshot
    scene.good(&first, &["--snapshot", "s1", "--backup-id", "one"]);
    scene.good(&first, &["--snapshot", "s1", "--backup-id", "two"]);

    let other = disk(None, 4 * MIB, 3);
    let line = scene.line(&other, &["--snapshot", "s1", "--backup-id", "three"]);
    expect_error(scene.stage.mover.run(line), 2, "has other content");
    let listed = scene.stage.mover.ok(["list", "--json", "--volume", "disk"]).json_lines();
    assert!(listed.iter().all(|b| b["backup_id"] != "three"), "it is not committed");
    scene.good(&other, &["--snapshot", "s1", "--backup-id", "four", "--volume-changed"]);
}

#[test]
fn a_snapshot_is_not_its_own_base() {
    let scene = Scene::new("own-base");
    let first = disk(None, MIB, 1);
    scene.good(&first, &["--snapshot", "s1"]);
    let list = ["--changes-url", "http://127.0.0.1:1/s1", "--changes-http"];
    let line = [&["--snapshot", "s1", "--base-snapshot", "s1"][..], &list].concat();
    scene.refused(&first, &line, "its own base");
}
