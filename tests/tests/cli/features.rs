//! What a repository says of itself: the text for people, the second copy of `format`, and features
//! that a later version has added.

use super::{Stage, expect_error, p, tree};
use chunkstore::format::FeatureNeed;
use chunkstore::testkit::repositories::later_feature;
use chunkstore::{Credential, Repository};
use std::fs;
use std::path::PathBuf;
use tests::Library;

impl Stage {
    fn open(&self) -> std::sync::Arc<Repository> {
        let text = fs::read(self.key()).expect("read the key");
        let credential = Credential::from_key_file_bytes(&text).expect("a key");
        Library::new().open(&self.repository(), &[credential]).expect("open")
    }

    /// As a later version does it.
    fn add_feature(&self, need: FeatureNeed) -> PathBuf {
        let (feature, bytes) = later_feature(&self.open(), need, "lavender");
        let path = self.repository().join(feature.name.key());
        fs::create_dir_all(path.parent().expect("a parent")).expect("make a directory");
        fs::write(&path, bytes).expect("write the feature");
        path
    }
}

/// Every command that changes anything, and every one that does not.
#[test]
fn a_write_feature_stops_who_writes_and_nobody_else() {
    let stage = Stage::new("write-feature");
    let second = stage.path("second.key");
    let add = [p("key"), p("add"), p("--new-key-file"), second.clone(), p("--json")];
    let key = stage.mover.ok(add).summary()["key_id"].as_str().expect("an id").to_owned();
    let feature = stage.add_feature(FeatureNeed::Write);
    let before = tree(&stage.repository());
    let (image, other) = (stage.image(), stage.path("other"));
    let id = format!("v@{}", stage.backup_id);
    let theirs = tests::Mover::new().env("MOVER_REPO", &other);
    theirs.ok([p("init"), p("--quiet"), p("--encryption=none")]);
    let to_here = |from: &PathBuf| {
        let mover = tests::Mover::new().env("MOVER_REPO", from);
        mover.run([p("copy"), p("--to"), stage.repository(), p("--to-key-file"), stage.key()])
    };
    let third = stage.path("third.key");
    let writes: Vec<Vec<PathBuf>> = vec![
        vec![p("backup"), image.clone(), p("--volume"), p("v")],
        vec![p("backup"), image.clone(), p("--volume"), p("w")],
        vec![p("forget"), p(&id)],
        vec![p("gc")],
        vec![p("check"), p("--repair")],
        vec![p("key"), p("add"), p("--new-key-file"), third.clone()],
        vec![p("key"), p("remove"), p(&key)],
    ];
    for command in writes {
        let line = expect_error_on_one_line(stage.mover.run(command.clone()));
        for word in ["lavender", "mover 7.0 or newer"] {
            assert!(line.contains(word), "{command:?}: {line}");
        }
    }
    assert!(!third.exists(), "a key file of no use stayed");
    theirs.ok([p("backup"), stage.path("image"), p("--volume"), p("x")]);
    let copied = to_here(&other);
    assert_eq!(copied.code(), Some(2), "{}", copied.text());
    assert!(copied.stderr.contains("lavender"), "{}", copied.text());
    assert_eq!(tree(&stage.repository()), before, "nothing was changed");

    let target = stage.path("target");
    stage.mover.ok([p("restore"), p("v@latest"), target.clone(), p("--verify")]);
    assert_eq!(fs::read(&target).expect("read"), fs::read(&image).expect("read"));
    for command in
        [&["list"][..], &["verify", "v@latest"], &["check", "--read-data"], &["key", "list"]]
    {
        stage.mover.ok(command.iter().map(|word| p(word)));
    }
    stage.mover.ok([p("copy"), p("v@latest"), p("--to"), other]);
    let text = stage.mover.ok(["upgrade"]).text();
    for part in ["version 1", "lavender", "needed to write", "since mover 7.0", "unknown to this"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = stage.mover.ok(["upgrade", "--json"]).summary();
    assert_eq!(json["features"][0]["name"], "lavender");
    assert_eq!(json["features"][0]["known"], false);

    // one that nobody sealed is no newer version, but damage
    fs::write(&feature, b"x").expect("damage it");
    let output = stage.mover.run([p("backup"), image, p("--volume"), p("v")]);
    let line = expect_error(output, 3, "features/write/lavender");
    assert!(line.contains("delete it"), "{line}");
}

fn expect_error_on_one_line(output: tests::MoverOutput) -> String {
    let output = output.expect_code(2);
    let line = output.stderr.lines().find(|line| line.starts_with("error: "));
    line.unwrap_or_else(|| panic!("{}", output.text())).to_owned()
}

#[test]
fn a_read_feature_stops_everybody() {
    let stage = Stage::new("read-feature");
    stage.add_feature(FeatureNeed::Read);
    let target = stage.path("target");
    for command in [vec![p("list")], vec![p("restore"), p("v@latest"), target.clone()]] {
        let line = expect_error(stage.mover.run(command), 2, "lavender");
        assert!(line.contains("mover 7.0 or newer"), "{line}");
    }
    assert!(!target.exists());
}

#[test]
fn features_are_added_by_name_only() {
    let stage = Stage::new("upgrade");
    let text = stage.mover.ok(["upgrade"]).text();
    assert!(text.contains("attachments") && text.contains("can be added"), "{text}");
    let line = expect_error(stage.mover.run(["upgrade", "--add", "lavender"]), 2, "lavender");
    assert!(line.contains("this version knows attachments"), "{line}");
}

/// With one copy of `format` lost or damaged everything goes on, by the command that the warning
/// names all is well again.
#[test]
fn a_lost_format_is_brought_back() {
    for (name, damage) in [("lost", None), ("damaged", Some(b"x".to_vec()))] {
        for key in ["format", "format-copy"] {
            let stage = Stage::new(&format!("format-{name}-{key}"));
            let path = stage.repository().join(key);
            let good = fs::read(&path).expect("read it");
            match &damage {
                None => fs::remove_file(&path).expect("remove it"),
                Some(bytes) => fs::write(&path, bytes).expect("damage it"),
            }
            let target = stage.path("target");
            let restored = stage.mover.ok([p("restore"), p("v@latest"), target.clone()]);
            assert_eq!(
                fs::read(&target).expect("read"),
                fs::read(stage.image()).expect("read"),
                "{name} {key}"
            );
            if key == "format" {
                assert!(restored.stderr.contains("mover check --repair"), "{}", restored.text());
            }
            let found = stage.mover.run(["check"]).expect_code(3);
            assert!(found.text().contains(key), "{}", found.text());
            stage.mover.run(["check", "--repair"]);
            assert_eq!(fs::read(&path).expect("read it"), good, "{name} {key}");
            stage.mover.ok(["check"]);
        }
    }
    // both: said, and nothing is made in its place
    let stage = Stage::new("format-both");
    for key in ["format", "format-copy"] {
        fs::remove_file(stage.repository().join(key)).expect("remove it");
    }
    expect_error(stage.mover.run(["list"]), 3, "format-copy");
}

#[test]
fn a_repository_explains_itself() {
    let stage = Stage::new("readme");
    let text = fs::read_to_string(stage.repository().join("README")).expect("a README");
    for part in [
        "made by `mover`",
        "mover restore --repo URL VOLUME@latest FILE",
        "## 14. A restore, step by step",
    ] {
        assert!(text.contains(part), "{part}");
    }
}
