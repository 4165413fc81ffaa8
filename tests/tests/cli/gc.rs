//! `gc`: what it says, and what it deletes.

use super::{Stage, p};
use std::fs;

/// A stage whose first backup was forgotten, with another one of other content.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    fs::write(stage.path("other"), super::random_bytes(200_000)).expect("write an image");
    let line = ["backup", "--quiet", "--volume", "w", "--backup-id", "other"];
    stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.path("other")]));
    stage.mover.ok(["forget", "--quiet", "v@latest"]);
    stage
}

#[test]
fn a_dry_run_says_what_a_collection_then_frees() {
    let stage = stage("gc");
    let all = stage.objects("");
    let dry = stage.mover.ok(["gc", "--dry-run", "--json"]).summary();
    assert_eq!(stage.objects(""), all);
    let text = stage.mover.ok(["gc", "--dry-run"]).text();
    for word in ["stored", "in use", "garbage", "would free", "would take"] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    let done = stage.mover.ok(["gc", "--json"]).summary();
    for figure in ["condemned_packs", "condemned_bytes", "forgotten_backups"] {
        assert!(done[figure].as_u64() > Some(0), "{done}");
        assert_eq!(done[figure], dry[figure], "{figure}");
    }
    assert_eq!(done["deleted_bytes"], dry["condemned_bytes"]);
    assert_eq!(done["backups"], 1);
    assert!(done["requests"]["deletes"].as_u64() > Some(0), "{done}");
    assert!(stage.objects("leases").is_empty() && stage.objects("packs").len() < all.len());
    let back = stage.path("back");
    stage.mover.ok([p("restore"), p("w@other"), back.clone(), p("--verify")]);
    assert_eq!(fs::read(back).expect("restored"), fs::read(stage.path("other")).expect("image"));

    let again = stage.mover.ok(["gc"]).text();
    assert!(again.contains("0 B in 0 packs") && again.contains("requests"), "{again}");
    assert_eq!(stage.mover.ok(["gc", "--quiet"]).text(), "");
}

#[test]
fn somebody_at_work_is_waited_for_and_named() {
    let stage = stage("gc-waits");
    // a restore into a pipe that nobody reads is at work for as long as that lasts
    let mut command = stage.mover.command(["restore", "w@other", "-"]);
    let mut reader = command.stdout(std::process::Stdio::piped()).spawn().expect("start a restore");
    while stage.objects("leases").is_empty() {
        assert!(reader.try_wait().expect("look at it").is_none(), "it ended without a lease");
        std::thread::yield_now();
    }
    let packs = stage.objects("packs").len();
    let waiting = stage.mover.ok(["gc"]);
    assert!(waiting.stderr.contains("a reader of w@other"), "{}", waiting.stderr);
    assert_eq!(stage.objects("packs").len(), packs);
    let output = reader.wait_with_output().expect("read the rest");
    assert_eq!(output.stdout, fs::read(stage.path("other")).expect("image"));
    let done = stage.mover.ok(["gc", "--json"]).summary();
    assert!(done["deleted_packs"].as_u64() > Some(0), "{done}");
}
