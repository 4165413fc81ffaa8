//! Files that are kept with a backup, as their user sees them.

use super::{Stage, expect_error, p, tree};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn files_are_attached_listed_and_written_out() {
    let stage = Stage::new("attachments");
    let (file, image) = (stage.path("m.json"), stage.image());
    fs::write(&file, "{\"kinds\": []}\n").expect("write the file");
    let attach = format!("--attach=manifest.json={}", file.display());
    let backup = |attach: &str| vec![p("backup"), image.clone(), p("--volume=v"), p(attach)];
    let before = tree(&stage.repository());
    let line = expect_error(stage.mover.run(backup(&attach)), 2, "attachments");
    assert!(line.contains("mover upgrade --add attachments"), "{line}");
    for wrong in ["--attach=a", "--attach=a=", "--attach=.a=m", "--attach=a=none"] {
        assert_eq!(stage.mover.run(backup(wrong)).code(), Some(2), "{wrong}");
    }
    let twice: Vec<_> = backup(&attach).into_iter().chain([p(&attach)]).collect();
    expect_error(stage.mover.run(twice), 2, "stands twice");
    assert_eq!(tree(&stage.repository()), before, "nothing was moved");

    let text = stage.mover.ok(["upgrade"]).text();
    assert!(text.contains("can be added") && text.contains("attachments"), "{text}");
    stage.mover.ok(["upgrade", "--add", "attachments"]);
    let done = stage.mover.ok(backup(&attach).into_iter().chain([p("--json")])).summary();
    assert_eq!(done["attachments"][0]["name"], "manifest.json");
    let text = stage.mover.ok(["show", "v@latest"]).text();
    assert!(text.contains("manifest.json, 14 B"), "{text}");
    let shown = stage.mover.ok(["show", "v@latest", "--json"]).summary();
    assert_eq!(shown["attachments"][0]["size_bytes"], 14);
    // bytes and nothing else, also as JSON lines
    for json in [&[][..], &["--json"]] {
        let args = ["show", "v@latest", "--attachment", "manifest.json"];
        let out = stage.mover.ok(args.iter().chain(json));
        assert_eq!(out.stdout, b"{\"kinds\": []}\n");
    }
    let to = stage.path("out.json");
    fs::write(&to, "before").expect("write what is there before");
    let args = ["show", "v@latest", "--attachment=manifest.json", "--output"].map(p);
    stage.mover.ok(args.into_iter().chain([to.clone()]));
    assert_eq!(fs::read(&to).expect("read it"), b"{\"kinds\": []}\n");
    let args = ["show", "v@latest", "--attachment=other"];
    let line = expect_error(stage.mover.run(args), 2, "other");
    assert!(line.contains("manifest.json"), "{line}");
    expect_error(stage.mover.run(["show", "v@latest", "--output=x"]), 2, "--output");
}

/// As a Secret in parts is mounted: links, and names that begin with a dot.
#[test]
fn the_files_of_a_directory_are_one_attachment_of_a_digest() {
    let stage = Stage::new("attached-directory");
    stage.mover.ok(["upgrade", "--add", "attachments"]);
    let parts = stage.path("parts");
    fs::create_dir_all(parts.join("..1")).expect("a directory");
    symlink("..1", parts.join("..data")).expect("a link");
    for (name, text) in [("part-000", "{\"kinds\":"), ("part-001", " []}"), ("part-002", "\n")] {
        fs::write(parts.join("..1").join(name), text).expect("a file");
        symlink(format!("..data/{name}"), parts.join(name)).expect("a link");
    }
    let digest = |text: &str| format!("--attach-digest=o=blake3:{}", blake3::hash(text.as_bytes()));
    let attach = format!("--attach=o={}", parts.display());
    let backup = |more: &[&str]| {
        let more = more.iter().map(|text| p(text));
        let all = [p("backup"), stage.image(), p("--volume=v"), p(&attach)];
        all.into_iter().chain(more).collect::<Vec<_>>()
    };
    let before = tree(&stage.repository());
    let other = digest("other");
    let line = expect_error(stage.mover.run(backup(&[&other])), 2, "was asked for");
    assert!(line.contains("blake3:"), "{line}");
    let right = digest("{\"kinds\": []}\n");
    for wrong in
        ["--attach-digest=o", "--attach-digest=o=1", "--attach-digest=x=blake3:00", right.as_str()]
    {
        let twice = [wrong, &right];
        expect_error(stage.mover.run(backup(&twice)), 2, "--attach-digest");
    }
    fs::create_dir(parts.join("below")).expect("a directory");
    expect_error(stage.mover.run(backup(&[&right])), 2, "below is no regular file");
    assert_eq!(tree(&stage.repository()), before, "nothing was moved");
    fs::remove_dir(parts.join("below")).expect("removed");
    stage.mover.ok(backup(&[&right]));
    let out = stage.mover.ok(["show", "v@latest", "--attachment", "o"]);
    assert_eq!(out.stdout, b"{\"kinds\": []}\n");
}
