//! `mover changes`: lists looked at and converted, by any source.

use super::world::{World, number};
use mover_changes::{ChangeKind, ParseOptions, parse_changed_blocks};
use serde_json::Value;
use tests::{Block, Blocks, Cgroup, Mover, MoverOutput, RestQuirks, RestServer, mover_bin};

#[test]
fn a_list_is_the_same_in_every_form_and_its_figures_are_those_of_the_backup() {
    let world = World::new("changes");
    world.backup(&world.old, "s1", &[]);
    let server = RestServer::http();
    let blocks = Blocks::delta(&world.old, &world.new);
    let (data, zero) = super::wanted(&blocks);
    let delta = server.put("/delta", world.bytes(), blocks, RestQuirks::default());
    let all = Blocks::allocated(&world.new);
    let all = server.put("/all", world.bytes(), all, RestQuirks::default());
    let image = world.new.to_str().expect("a path of ours");
    let asked = ["--base-snapshot", "s1", "--changes-url", &delta, "--allocated-url", &all];
    let mover = Mover::new();
    let changes = |more: &[&str]| mover.ok([&["changes", image], &asked[..], more].concat());
    for form in ["mover", "extents", "rbd"] {
        let text = changes(&["--form", form]).stdout;
        let kind_override = Some(ChangeKind::Delta);
        let options = ParseOptions { kind_override, ..ParseOptions::new(form, world.bytes()) };
        let list = parse_changed_blocks(&text[..], &options).expect(form);
        assert_eq!((&list.data, &list.zero), (&data, &zero), "{form}");
        // and once more, through the command itself
        let file = world.path(form);
        std::fs::write(&file, &text).expect("write the list");
        let file = file.to_str().expect("a path of ours");
        let line = ["--json", "changes", image, "--changed-blocks", file];
        let again = mover.ok([&line[..], &["--changed-blocks-kind", "delta"]].concat());
        assert_eq!(again.document(), changes(&["--json"]).document(), "{form}");
    }
    let table = changes(&[]).text();
    assert!(
        table.contains("delta from rest")
            && table.lines().count() == 4 + data.count() + zero.count(),
        "{table}"
    );
    let refused = mover.run([&["changes", image], &asked[..], &["--form", "qemu"]].concat());
    assert!(refused.expect_code(2).stderr.contains("qemu-img"));
    // what is foretold is what the backup does
    let figures = changes(&["--stats", "--json"]).summary();
    let row =
        figures["chunks"].as_array().expect("rows").iter().find(|c| c["chunk_bytes"] == 65536);
    let run = world.backup(&world.new, "s2", &asked);
    assert_eq!(row.expect("the default")["read_bytes"], run["read_bytes"]);
    // the changed parts are random bytes: they do not compress
    let guess = number(row.expect("the default"), "stored_bytes");
    assert!(guess.abs_diff(number(&run, "new_bytes")) <= 128 << 10, "{guess} of {run}");
    assert!(changes(&["--stats"]).text().contains("64.0 KiB"));
    world.expect_restored(&world.new);
}

#[test]
fn what_cannot_be_had_is_said() {
    let server = RestServer::http();
    let all = vec![Block { offset: 0, len: 4096, zero: false }];
    let all = server.put("/all", 1 << 20, all.into(), RestQuirks::default());
    let absent = server.url("/absent");
    let mover = Mover::new();
    let size = ["changes", "--volume-size", "1MiB"];
    let run = |more: &[&str]| mover.run([&size[..], more].concat());
    let delta = ["--base-snapshot", "s1", "--changes-url", &absent];
    let error = run(&delta).expect_code(2).stderr;
    assert!(error.contains("404"), "{error}");
    let output = run(&[&delta[..], &["--allocated-url", &all]].concat()).expect_code(0);
    assert!(output.stderr.contains("went down from delta to allocated"), "{}", output.stderr);
    assert!(output.text().contains("allocated from rest"));
    let line = [&delta[..], &["--allocated-url", &all, "--require", "delta"]].concat();
    let error = run(&line).expect_code(2).stderr;
    assert!(error.contains("keep to --require delta"), "{error}");
    let error = mover.run(["changes", "--changes-url", &all]).expect_code(2).stderr;
    assert!(error.contains("--volume-size"), "{error}");
    let error = run(&[]).expect_code(2).stderr;
    assert!(error.contains("--changes-url"), "{error}");
}

/// Ten million ranges, none of which touch.
pub(crate) const MANY: u64 = 10_000_000;

/// They go through 64 MiB of memory, and whatever was listed is read.
pub(crate) fn expect_many(flags: &[&str]) {
    const STEP: u64 = 8192;
    let cgroup = Cgroup::with_memory_limit(64 << 20);
    let mut command = cgroup.command(mover_bin());
    let size = (MANY * STEP).to_string();
    command.args(["--json", "--memory", "64MiB", "changes", "--stats", "--volume-size", &size]);
    Mover::new().dress(command.args(flags));
    let output = MoverOutput::of(&mut command).expect_code(0);
    let figures: Value = output.summary();
    assert!(!cgroup.killed_for_memory() && cgroup.peak_bytes() <= 64 << 20);
    println!("{MANY} ranges: at most {} bytes of memory", cgroup.peak_bytes());
    assert!(number(&figures, "listed_bytes") >= MANY * 4096, "{figures}");
    let row =
        figures["chunks"].as_array().expect("rows").iter().find(|c| c["chunk_bytes"] == 65536);
    assert_eq!(number(row.expect("the default"), "read_bytes"), MANY * STEP);
}

pub(crate) fn many() -> Blocks {
    Blocks::by(MANY, |n| Block { offset: n * 8192, len: 4096, zero: false })
}

#[test]
fn ten_million_ranges_go_through_64_mib() {
    tests::require_root!();
    let server = RestServer::http();
    let url = server.put("/many", MANY * 8192, many(), RestQuirks::default());
    expect_many(&["--base-snapshot", "s1", "--changes-url", &url]);
}
