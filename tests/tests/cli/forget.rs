//! `forget`: by name and by policy.

use super::{Stage, expect_error, file_url, p};
use serde_json::Value;
use tests::MoverOutput;

/// A stage whose volume `v` has two more backups, and `w` one.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    for (volume, id, label) in [("v", "two", "a=1"), ("v", "three", "b=1"), ("w", "other", "a=2")] {
        let line = ["backup", "--quiet", "--volume", volume, "--backup-id", id, "--label", label];
        stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
    }
    stage
}

fn listed(stage: &Stage) -> Vec<String> {
    let id = |b: &Value| b["backup_id"].as_str().expect("an id").to_owned();
    stage.mover.ok(["list", "--json"]).json_lines().iter().map(id).collect()
}

#[test]
fn a_policy_says_what_stays_and_why_before_it_forgets() {
    let stage = stage("forget-policy");
    let rules = ["forget", "--keep-last", "1", "--keep-tag", "a=1"];
    let dry = stage.mover.ok(rules.iter().chain(&["--dry-run"])).text();
    let first = format!("v       {}", stage.backup_id);
    assert!(dry.lines().any(|l| l.starts_with(&first) && l.ends_with("  forget")), "{dry}");
    assert!(dry.contains("keep    tag a=1") && dry.contains("keep    last 1"), "{dry}");
    assert!(dry.ends_with("would forget 1 backup, 3 stay\n"), "{dry}");
    assert_eq!(listed(&stage).len(), 4);
    assert!(stage.objects("forgotten").is_empty());

    let lines = stage.mover.ok(rules.iter().chain(&["--json"])).json_lines();
    let kept = |line: &Value| line["type"] == "decision" && line["keep"] == true;
    assert_eq!(lines.iter().filter(|l| kept(l)).count(), 3);
    assert!(lines.iter().filter(|l| kept(l)).all(|l| !l["reasons"][0].is_null()), "{lines:?}");
    let summary = lines.last().expect("a summary");
    assert_eq!((&summary["forgotten"], &summary["kept"]), (&1.into(), &3.into()));
    assert_eq!(listed(&stage), ["two", "three", "other"]);

    // again: nothing more
    let again = stage.mover.ok(rules.iter().chain(&["--quiet"]));
    assert_eq!((again.text().as_str(), listed(&stage).len()), ("", 3));
    // one volume only, by the environment
    let by_twin = ["forget", "--volume", "v", "--json"];
    let mut command = stage.mover.command(by_twin);
    let twin = MoverOutput::of(command.env("MOVER_KEEP_LAST", "1")).expect_code(0);
    assert_eq!(twin.summary()["forgotten"], 1);
    assert_eq!(listed(&stage), ["three", "other"]);
}

/// Several clusters have one repository: a rule of one is for its own volumes.
#[test]
fn a_rule_below_a_prefix_leaves_other_volumes_whole() {
    let stage = stage("forget-below");
    for (volume, id) in [("c1/a/db", "m1"), ("c1/a/db", "m2"), ("c10/b", "x1"), ("c10/b", "x2")] {
        let line = ["backup", "--quiet", "--volume", volume, "--backup-id", id];
        stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
    }
    let rules = ["forget", "--keep-last", "1", "--below", "c1/"];
    let dry = stage.mover.ok(rules.iter().chain(&["--dry-run"])).text();
    assert!(dry.contains("its volume is not below c1/"), "{dry}");
    assert!(dry.ends_with("would forget 1 backup, 7 stay, 6 of them outside of c1/\n"), "{dry}");
    // By the environment; a volume with a rule of its own may be anywhere.
    let named = ["forget", "--keep-last", "1", "--keep-of", "last=1:c10/b", "--json"];
    let mut command = stage.mover.command(named);
    let done = MoverOutput::of(command.env("MOVER_BELOW", "c1/")).expect_code(0).summary();
    assert_eq!((&done["forgotten"], &done["outside"]), (&2.into(), &4.into()));
    let left = listed(&stage);
    assert_eq!(left[1..], ["two", "three", "other", "m2", "x2"]);
    for (wrong, why) in [("c1", "does not end with /"), ("/", "nothing before"), ("", "value")] {
        let line = ["forget", "--keep-last", "1", "--below", wrong];
        expect_error(stage.mover.run(line), 2, why);
    }
    expect_error(stage.mover.run(["forget", "v@two", "--below", "c1/"]), 2, "policy");
    expect_error(stage.mover.run(["forget", "--below", "c1/"]), 2, "no rule");
    assert_eq!(listed(&stage), left);
}

#[test]
fn the_last_backup_stays_unless_it_is_meant() {
    let stage = stage("forget-last");
    let rules = ["forget", "--volume", "w", "--keep-tag", "gold"];
    assert!(stage.mover.ok(rules).text().contains("no rule keeps any"));
    assert_eq!(listed(&stage).len(), 4);
    stage.mover.ok(rules.iter().chain(&["--allow-none"]));
    assert_eq!(listed(&stage).len(), 3);

    stage.mover.ok(["forget", "v@two", "--dry-run"]);
    assert_eq!(listed(&stage).len(), 3);
    stage.mover.ok(["forget", "v@two"]);
    assert_eq!(listed(&stage).len(), 2);
}

#[test]
fn what_says_nothing_or_too_much_is_refused() {
    let stage = stage("forget-refused");
    expect_error(stage.mover.run(["forget"]), 2, "--keep-daily");
    expect_error(stage.mover.run(["forget", "--keep-last", "0"]), 2, "no rule");
    expect_error(stage.mover.run(["forget", "--volume", "v"]), 2, "no rule");
    expect_error(stage.mover.run(["forget", "v@two", "--keep-last", "1"]), 2, "policy");
    expect_error(stage.mover.run(["forget", "--keep-within", "7"]), 2, "14d");
    expect_error(stage.mover.run(["forget", "--keep-tag", "=x"]), 2, "NAME=VALUE");
    // a variable that was not set is not "all volumes"
    expect_error(stage.mover.run(["forget", "--volume", "", "--keep-last", "1"]), 2, "volume");
    assert_eq!(listed(&stage).len(), 4);
}

#[test]
fn a_backup_that_cannot_be_read_is_never_forgotten() {
    let stage = stage("forget-unreadable");
    let broken = stage.objects("backups/v/three");
    std::fs::write(&broken[0], b"rubbish").expect("damage a manifest");
    let output = stage.mover.run(["forget", "--keep-last", "1"]).expect_code(3);
    assert!(output.text().ends_with("forgot 1 backup, 2 stay\n"), "{}", output.text());
    assert!(output.stderr.contains("backups/v/three"), "{}", output.stderr);
    assert!(stage.objects("forgotten/v/three").is_empty());
    // nor can garbage be collected beside it, until it is named in full and forgotten
    expect_error(stage.mover.run(["gc"]), 3, "VOLUME@ID");
    expect_error(stage.mover.run(["forget", "thre"]), 3, "VOLUME@ID");
    expect_error(stage.mover.run(["forget", "v@thre"]), 3, "VOLUME@ID");
    stage.mover.ok(["forget", "v@three"]);
    stage.mover.ok(["gc"]);
    assert!(stage.objects("backups/v/three").is_empty());
}

#[test]
fn a_backup_of_another_volume_than_the_one_named_is_not_forgotten() {
    let stage = stage("forget-other-volume");
    let before = listed(&stage).len();
    expect_error(stage.mover.run(["forget", "--volume", "w", "v@two"]), 2, "--volume");
    assert_eq!(listed(&stage).len(), before);
    stage.mover.ok(["forget", "--volume", "v", "v@two"]);
    assert_eq!(listed(&stage).len(), before - 1);
}

/// It says so by the objects that it keeps in a folder of its own.
#[test]
fn another_program_may_still_need_a_backup() {
    let stage = stage("forget-unless");
    let theirs = stage.path("theirs");
    let folder = theirs.join("nightly");
    let url = format!("{}/", file_url(&folder));
    let unless =
        |place: &str| stage.mover.run(["forget", "v@two", "--unless-exists", place, "--json"]);
    // not even the folder above is there: a disk that is not mounted says nothing
    expect_error(stage.mover.run(["forget", "v@two", "--unless-exists", &url]), 1, "above");
    assert_eq!(listed(&stage).len(), 4);

    std::fs::create_dir_all(folder.join("deep")).expect("a folder");
    let object = folder.join("deep/object");
    std::fs::write(&object, b"x").expect("an object");
    let kept = unless(&url).expect_code(0).summary();
    assert_eq!((&kept["kept"], &kept["backup_id"]), (&url.as_str().into(), &"two".into()));
    let line = ["forget", "v@two", "--unless-exists", &url];
    let said = stage.mover.ok(line).text();
    assert!(said.contains("backup two of volume v stays") && said.contains(&url), "{said}");
    assert_eq!(listed(&stage).len(), 4);
    assert!(stage.objects("forgotten").is_empty());

    // folders alone are no objects; and a folder whose name begins alike is another one
    std::fs::remove_file(object).expect("it goes");
    std::fs::create_dir(theirs.join("nightly-2")).expect("a folder");
    std::fs::write(theirs.join("nightly-2/object"), b"x").expect("an object");
    let dry = stage.mover.ok(line.iter().chain(&["--dry-run"])).text();
    assert!(dry.contains("would forget backup two"), "{dry}");
    let done = unless(&url).expect_code(0).summary();
    assert!(done.get("kept").is_none(), "{done}");
    assert_eq!(listed(&stage).len(), 3);
    std::fs::remove_dir_all(&folder).expect("it goes");
    stage.mover.ok(["forget", "v@three", "--unless-exists", &url]);
    assert_eq!(listed(&stage).len(), 2);
}

#[test]
fn a_place_that_says_nothing_forgets_nothing() {
    let stage = stage("forget-unless-refused");
    let unless = |place: &str| stage.mover.run(["forget", "v@two", "--unless-exists", place]);
    expect_error(unless("s3://bucket/backups/x"), 2, "another kind of store");
    expect_error(unless("http://bucket/x"), 2, "");
    expect_error(unless(""), 2, "without a value");
    let file = stage.path("file");
    std::fs::write(&file, b"x").expect("a file");
    expect_error(unless(&file_url(&file)), 2, "not a directory");
    let policy = ["forget", "--keep-last", "1", "--unless-exists", "/tmp"];
    let refused = stage.mover.run(policy).expect_code(2);
    assert!(refused.stderr.contains("<BACKUP>"), "{}", refused.stderr);
    assert_eq!(listed(&stage).len(), 4);
}
