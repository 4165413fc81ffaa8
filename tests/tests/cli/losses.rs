//! What a repository can lose, and how a user comes to the data that is left: by the commands that
//! the messages name, and no others.

use super::{Stage, expect_error, p};
use std::fs;
use std::path::PathBuf;

/// A command that a message names between backquotes, with its flags.
fn named(message: &str, like: &str) -> Vec<String> {
    let mut commands = message.split('`').filter(|part| part.starts_with("mover "));
    let found = commands.find(|command| command.contains(like));
    let found = found.unwrap_or_else(|| panic!("no command with {like}: {message}"));
    found.split(' ').skip(1).map(str::to_owned).collect()
}

fn is_restored(stage: &Stage, spec: &str, name: &str) {
    let target = stage.path(name);
    stage.mover.ok([p("restore"), p(spec), target.clone()]);
    assert!(fs::read(target).expect("restored") == fs::read(stage.image()).expect("image"));
}

fn manifest(stage: &Stage) -> PathBuf {
    let mut manifests = stage.objects("backups");
    assert_eq!(manifests.len(), 1);
    manifests.remove(0)
}

/// Its root is found, and made a backup again, which is checked and restored.
#[test]
fn a_manifest_that_is_damaged_or_gone() {
    for gone in [false, true] {
        let stage = Stage::new(&format!("lost-manifest-{gone}"));
        let path = manifest(&stage);
        if gone {
            fs::remove_file(&path).expect("remove it");
        } else {
            let mut bytes = fs::read(&path).expect("a manifest");
            bytes[90] ^= 4;
            fs::write(&path, bytes).expect("damage it");
        }
        let code = if gone { 2 } else { 3 };
        let spec = format!("v@{}", stage.backup_id);
        for spec in ["v@latest", &spec] {
            let line = [p("restore"), p(spec), stage.path("none")];
            let said = expect_error(stage.mover.run(line), code, "--find-roots");
            assert_eq!(named(&said, "find-roots"), ["check", "--find-roots"]);
        }
        if !gone {
            for command in [&["list"][..], &["check"], &["check", "--repair"]] {
                let said = stage.mover.run(command).expect_code(3).stderr;
                assert_eq!(named(&said, "find-roots"), ["check", "--find-roots"]);
            }
        }
        let found = stage.mover.ok(["check", "--find-roots"]).text();
        let mut words = found.split_whitespace();
        assert_eq!(words.next(), Some("root"), "{found}");
        let root = words.next().expect("an id").trim_end_matches(':').to_owned();
        let made = stage.mover.ok(["check", "--find-roots", "--adopt", &root]).text();
        let next = made.lines().find(|line| line.starts_with("next")).expect("a next step");
        let next: Vec<&str> = next.split_whitespace().skip(2).collect();
        assert_eq!(next[0], "verify", "{made}");
        stage.mover.ok(&next);
        is_restored(&stage, next[1], "restored");
        let listed = stage.mover.run(["list"]).text();
        assert!(listed.contains("degraded"), "{listed}");
    }
}

/// One of two keys opens it; a new key takes the place of the lost one.
#[test]
fn a_key_file_among_two() {
    let stage = Stage::new("lost-key");
    let other = stage.path("other");
    stage.mover.ok([p("key"), p("add"), p("--new-key-file"), other.clone()]);
    fs::remove_file(stage.key()).expect("lose it");
    let target = stage.path("restored");
    let restore = [p("restore"), p("v@latest"), target.clone()];
    expect_error(stage.mover.run(&restore), 2, "key");
    let flag = [p("--key-file"), other];
    stage.mover.ok(restore.iter().chain(&flag));
    assert!(fs::read(target).expect("restored") == fs::read(stage.image()).expect("image"));
}

/// A second volume holds the same data, stored by a run that did not know of it.
#[test]
fn an_entry_that_is_damaged_in_a_pack_that_is_there() {
    let stage = Stage::new("lost-entry");
    let of_chunks = |path: &PathBuf| fs::read(path).expect("a pack")[10] == 1;
    let pack = stage.objects("packs").into_iter().find(of_chunks).expect("a pack of chunks");
    for segment in stage.objects("dedup") {
        fs::remove_file(segment).expect("remove it");
    }
    stage.mover.ok([p("backup"), stage.image(), p("--volume"), p("w"), p("--parent"), p("none")]);
    let mut bytes = fs::read(&pack).expect("a pack");
    bytes[64 + 8 + 1000] ^= 4;
    fs::write(&pack, bytes).expect("damage it");
    let target = stage.path("restored");
    let said = stage.mover.ok([p("restore"), p("v@latest"), target.clone()]);
    assert!(fs::read(target).expect("restored") == fs::read(stage.image()).expect("image"));
    let repair = named(&said.stderr, "--repair");
    stage.mover.run(&repair);
    // the pack that nothing refers to any more goes
    stage.mover.ok(["gc"]);
    stage.mover.ok(["check", "--read-data"]);
    let again = stage.mover.ok([p("restore"), p("v@latest"), stage.path("again")]);
    assert!(!again.stderr.contains("elsewhere"), "{}", again.stderr);
}
