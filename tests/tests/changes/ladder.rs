//! The ladder: delta, allocated, whole; every step is said, and `--require` is a floor.

use super::world::{World, number, only_step};
use tests::{Blocks, RestQuirks, RestServer};

struct Scene {
    world: World,
    server: RestServer,
    delta: String,
    allocated: String,
    absent: String,
}

impl Scene {
    /// The old state is backed up as snapshot `s1` of volume handle `h1`.
    fn new(name: &str) -> Self {
        let world = World::new(name);
        world.backup(&world.old, "s1", &["--volume-handle", "h1"]);
        let server = RestServer::http();
        let put = |path, blocks| server.put(path, world.bytes(), blocks, RestQuirks::default());
        let delta = put("/delta", Blocks::delta(&world.old, &world.new));
        let allocated = put("/all", Blocks::allocated(&world.new));
        let absent = server.url("/absent");
        Self { world, server, delta, allocated, absent }
    }
}

#[test]
fn every_step_is_said_recorded_and_ends_right() {
    let scene = Scene::new("ladder");
    let Scene { world, delta, allocated, absent, .. } = &scene;
    let based = ["--base-snapshot", "s1"];
    // the top
    let line = [&based[..], &["--changes-url", delta, "--allocated-url", allocated]].concat();
    let top = world.backup(&world.new, "top", &line);
    assert_eq!((top["kind"].as_str(), &top["degraded"]), (Some("delta"), &serde_json::json!([])));
    world.expect_restored(&world.new);
    // one step down: nothing is inherited, so what was discarded stays away
    let line = [&based[..], &["--changes-url", absent, "--allocated-url", allocated]].concat();
    let output = world.run(&world.new, "middle", &line).expect_code(0);
    let middle = output.summary();
    assert_eq!(middle["kind"], "allocated");
    let step = only_step(&middle);
    assert!(
        step.starts_with("went down from delta to allocated") && step.contains("404"),
        "{step}"
    );
    assert!(output.stderr.contains("went down from delta to allocated"), "{}", output.stderr);
    assert_eq!(world.show()["degraded"][0], step.as_str());
    assert_eq!(world.show()["source"]["kind"], "allocated");
    assert!(number(&middle, "read_bytes") < 60 << 16, "{middle}");
    world.expect_restored(&world.new);
    // two steps down
    let line = [&based[..], &["--changes-url", absent, "--allocated-url", absent]].concat();
    let whole = world.backup(&world.new, "bottom", &line);
    assert_eq!(whole["kind"], "whole");
    let steps = whole["degraded"].as_array().expect("a list");
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert!(steps[1].as_str().expect("a text").starts_with("went down from allocated to whole"));
    world.expect_restored(&world.new);
    // and it is a failure for those who want it to be one, but committed
    let line = [&line[..], &["--fail-on-degraded"]].concat();
    let output = world.run(&world.new, "failed", &line).expect_code(5);
    assert!(output.stderr.contains("committed, but went down from"), "{}", output.stderr);
    assert_eq!(world.show()["snapshot"]["id"], "failed");
}

#[test]
fn a_base_that_is_not_the_parents_snapshot_is_a_step_down() {
    let scene = Scene::new("ladder-base");
    let Scene { world, delta, allocated, server, .. } = &scene;
    let line = ["--base-snapshot", "s0", "--changes-url", delta, "--allocated-url", allocated];
    let run = world.backup(&world.new, "s2", &line);
    assert_eq!(run["kind"], "allocated");
    assert!(only_step(&run).contains("no backup was made of base snapshot \"s0\""), "{run}");
    // a delta without a parent is not even asked for
    assert!(server.requests().iter().all(|r| r.path == "/all"));
    world.expect_restored(&world.new);
    // another volume of the same name
    let line = ["--volume-handle", "h2", "--base-snapshot", "s1", "--changes-url", delta];
    let run = world.backup(&world.new, "s3", &line);
    assert_eq!(run["kind"], "whole");
    assert!(only_step(&run).contains("another volume: \"h1\", not \"h2\""), "{run}");
    world.expect_restored(&world.new);
}

#[test]
fn require_is_a_floor() {
    let scene = Scene::new("ladder-require");
    let Scene { world, delta, allocated, absent, .. } = &scene;
    let based = ["--base-snapshot", "s1", "--changes-url"];
    let run = |more: &[&str]| world.run(&world.new, "s2", more);
    let line = [&based[..], &[absent, "--allocated-url", allocated, "--require", "delta"]].concat();
    let error = run(&line).expect_code(2).stderr;
    assert!(error.contains("keep to --require delta") && error.contains("404"), "{error}");
    let line =
        [&based[..], &[absent, "--allocated-url", absent, "--require", "allocated"]].concat();
    let error = run(&line).expect_code(2).stderr;
    assert!(error.contains("keep to --require allocated"), "{error}");
    let line = ["--require", "delta", "--changes-url", allocated];
    let error = run(&line).expect_code(2).stderr;
    assert!(error.contains("what there is, is allocated"), "{error}");
    assert_eq!(world.show()["snapshot"]["id"], "s1", "nothing was committed");
    let line = [&based[..], &[absent, "--allocated-url", allocated, "--require", "allocated"]];
    assert_eq!(run(&line.concat()).expect_code(0).summary()["kind"], "allocated");
    let line = [&based[..], &[delta, "--require", "allocated"]].concat();
    assert_eq!(world.run(&world.new, "s3", &line).expect_code(0).summary()["kind"], "delta");
    world.expect_restored(&world.new);
}

#[test]
fn an_empty_list_of_a_volume_that_holds_data_is_not_believed() {
    let scene = Scene::new("ladder-empty");
    let Scene { world, server, .. } = &scene;
    let none = Blocks::from(Vec::new());
    let url = server.put("/none", world.bytes(), none, RestQuirks::default());
    let run = world.backup(&world.new, "s2", &["--allocated-url", &url]);
    assert_eq!(run["kind"], "whole");
    assert!(only_step(&run).contains("nothing is allocated, but"), "{run}");
    world.expect_restored(&world.new);
}

#[test]
fn mistakes_are_no_reason_to_go_down() {
    let scene = Scene::new("ladder-mistakes");
    let Scene { world, delta, .. } = &scene;
    for more in [
        &["--changes-url", "ftp://host/x"][..],
        &["--changes-url", delta, "--changes-token-file", "/does/not/exist", "--changes-http"],
        &["--changes-url", delta, "--changes-ca-file", "/does/not/exist"],
        &["--changes-url", delta, "--allocated-url", delta],
    ] {
        let output = world.run(&world.new, "s2", more).expect_code(2);
        assert!(!output.stderr.contains("went down"), "{}", output.stderr);
    }
    assert_eq!(world.show()["snapshot"]["id"], "s1");
}

#[test]
fn a_resized_volume_reads_its_tail_again() {
    let scene = Scene::new("ladder-resize");
    let Scene { world, server, .. } = &scene;
    let mut bytes = std::fs::read(&world.new).expect("the new state");
    bytes.extend(vec![7; 300_000]);
    let grown = world.path("grown");
    std::fs::write(&grown, &bytes).expect("write the grown state");
    let size = bytes.len() as u64;
    // the tracker knows of the writes, not of the growth
    let blocks = Blocks::delta(&world.old, &world.new);
    let url = server.put("/grown", size, blocks, RestQuirks::default());
    let run = world.backup(&grown, "s2", &["--base-snapshot", "s1", "--changes-url", &url]);
    assert_eq!((run["kind"].as_str(), number(&run, "size_bytes")), (Some("delta"), size));
    world.expect_restored(&grown);
    let cut = world.path("cut");
    std::fs::write(&cut, &bytes[..bytes.len() - 400_001]).expect("write the cut state");
    let blocks = Blocks::from(Vec::new());
    let url = server.put("/cut", size - 400_001, blocks, RestQuirks::default());
    let flags = ["--base-snapshot", "s2", "--changes-url", &url, "--volume-changed"];
    let run = world.backup(&cut, "s3", &flags);
    assert_eq!(run["kind"], "delta");
    world.expect_restored(&cut);
}
