//! Images of QEMU's format: full, by a dirty bitmap, by what is allocated, and back.

use super::{MIB, Server, Stage, read_bytes};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tests::{Rng, run_ok};

const CLUSTER: u64 = 64 << 10;
const SIZE: u64 = 64 * MIB;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn create(image: &Path, bytes: u64) {
    run_ok("qemu-img", ["create", "-q", "-f", "qcow2", text(image), &bytes.to_string()]);
}

/// Bytes of an image as QEMU's own tool reads them.
fn content(stage: &Stage, image: &Path) -> Vec<u8> {
    let raw = stage.path("raw");
    run_ok("qemu-img", ["convert", "-f", "qcow2", "-O", "raw", text(image), text(&raw)]);
    fs::read(&raw).unwrap()
}

fn qemu_io(image: &Path, commands: &[String]) {
    let mut arguments = vec!["-f".to_owned(), "qcow2".to_owned()];
    arguments.extend(commands.iter().flat_map(|c| ["-c".to_owned(), c.clone()]));
    run_ok("qemu-io", arguments.into_iter().chain([text(image).to_owned()]));
}

/// A volume with data here and there, and a bitmap that is kept from now on.
fn volume(stage: &Stage) -> std::path::PathBuf {
    let image = stage.path("disk.qcow2");
    create(&image, SIZE);
    let commands: Vec<String> =
        (0..20).map(|n| format!("write -q -P {} {} 700k", n + 1, n * 3 * MIB)).collect();
    qemu_io(&image, &commands);
    run_ok("qemu-img", ["bitmap", "--add", "-g", "64k", text(&image), "b1"]);
    image
}

#[test]
fn a_dirty_bitmap_makes_an_incremental_that_reads_the_changed_clusters_only() {
    let Some(stage) = Stage::new("nbd-bitmap") else { return };
    let image = volume(&stage);
    let serve = || Server::qemu(stage.socket("q"), &image, &["--read-only", "--bitmap=b1"]);
    let before = content(&stage, &image);
    let server = serve();
    let uri = server.uri("");
    let full = stage.mover.ok(["backup", &uri, "--volume", "db", "--snapshot", "s1", "--json"]);
    assert_eq!(full.summary()["engine"], "nbd");
    drop(server);
    stage.expect_restores("db", &before);

    // some clusters that had data, some that had none, one only touched, one made zero
    let mut rng = Rng::new(5);
    // far enough apart: a gap of one chunk is read along
    let mut clusters: Vec<u64> = (21..SIZE / CLUSTER - 20).step_by(3).collect();
    rng.shuffle(&mut clusters);
    clusters.truncate(30);
    let mut commands: Vec<String> = clusters
        .iter()
        .map(|n| {
            format!("write -q -P {} {} 512", 100 + n % 100, n * CLUSTER + rng.below(100) * 512)
        })
        .collect();
    commands.push(format!("write -q -z {} 64k", 3 * MIB));
    qemu_io(&image, &commands);
    clusters.push(3 * MIB / CLUSTER);
    clusters.sort_unstable();
    clusters.dedup();
    let after = content(&stage, &image);

    let server = serve();
    let shown = stage.mover.ok(["changes", &uri, "--nbd-bitmap", "b1", "--json"]).document();
    let listed: Vec<u64> = shown["extents"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|e| {
            let number = |name: &str| e[name].as_u64().unwrap();
            let first = number("offset") / CLUSTER;
            first..first + number("len") / CLUSTER
        })
        .collect();
    assert_eq!(listed, clusters);
    assert_eq!(shown["kind"], "delta");
    let line = ["backup", &uri, "--volume", "db", "--snapshot", "s2", "--base-snapshot", "s1"];
    let line = [&line[..], &["--nbd-bitmap", "b1", "--require", "delta", "--json"]].concat();
    let done = stage.mover.ok(line);
    let summary = done.summary();
    assert_eq!((&summary["kind"], &summary["origin"]), (&"delta".into(), &"nbd".into()));
    // the one that became zero is known to be
    let zero = u64::from(clusters.iter().filter(|n| **n == 3 * MIB / CLUSTER).count() as u32);
    assert_eq!(read_bytes(&done), (clusters.len() as u64 - zero) * CLUSTER);
    drop(server);
    stage.expect_restores("db", &after);
}

#[test]
fn a_bitmap_is_used_with_its_own_base_or_not_at_all() {
    let Some(stage) = Stage::new("nbd-ladder") else { return };
    let image = volume(&stage);
    let server = Server::qemu(stage.socket("q"), &image, &["--read-only", "--bitmap=b1"]);
    let uri = server.uri("");
    stage.mover.ok(["backup", &uri, "--volume", "db", "--snapshot", "s1", "--quiet"]);
    let line = ["backup", &uri, "--volume", "db", "--snapshot", "s2"];
    let with = |more: &[&'static str]| [&line[..], more].concat();
    let delta = ["--require", "delta"];
    let base = ["--base-snapshot", "s1", "--nbd-bitmap"];
    // no parent for the list, and no list for the parent
    let other = ["--base-snapshot", "s0", "--nbd-bitmap", "b1"];
    stage.expect_refused(&[with(&other), delta.into()].concat(), 2, &["s0", "--require delta"]);
    let unknown = [with(&base), vec!["b2"]].concat();
    let words = ["qemu:dirty-bitmap:b2", "but base:allocation, qemu:dirty-bitmap:b1"];
    stage.expect_refused(&[unknown.clone(), delta.into()].concat(), 2, &words);
    stage.expect_refused(&with(&["--nbd-bitmap", "b1"]), 2, &["--base-snapshot"]);
    // without a floor it is the list of what is allocated, and said
    let down = stage.mover.ok([unknown, vec!["--json"]].concat()).summary();
    assert_eq!((&down["kind"], &down["origin"]), (&"allocated".into(), &"nbd".into()));
    assert!(down["degraded"][0].as_str().unwrap().contains("went down from delta to allocated"));
    drop(server);
    stage.expect_restores("db", &content(&stage, &image));
    // other sources have no bitmaps
    let raw = stage.path("raw");
    let plain = ["backup", text(&raw), "--volume", "x", "--nbd-bitmap", "b1"];
    stage.expect_refused(&plain, 2, &["not read from an NBD server"]);
}

#[test]
fn what_is_not_allocated_is_not_read() {
    let Some(stage) = Stage::new("nbd-sparse") else { return };
    let image = stage.path("sparse.qcow2");
    create(&image, 1024 * MIB);
    let write = |n: u64, mib: u64| format!("write -q -P {n} {}M 2M", mib);
    // one cluster of it became zero again
    let zero = format!("write -q -z {} 64k", 300 * MIB);
    qemu_io(&image, &[write(1, 0), write(2, 300), write(3, 1022), zero]);
    let allocated = 6 * MIB - CLUSTER;
    let server = Server::qemu(stage.socket("q"), &image, &["--read-only"]);
    let uri = server.uri("");
    let holes = stage.mover.ok(["backup", &uri, "--volume", "holes", "--json"]);
    assert_eq!(read_bytes(&holes), allocated);
    assert_eq!(holes.summary()["origin"], "device");
    let line = ["backup", &uri, "--volume", "listed", "--allocated-from", "nbd", "--json"];
    let listed = stage.mover.ok([&line[..], &["--require", "allocated"]].concat()).summary();
    assert_eq!(listed["read_bytes"], allocated);
    assert_eq!((&listed["kind"], &listed["origin"]), (&"allocated".into(), &"nbd".into()));
    assert_eq!(listed["listed_bytes"], allocated);
    let shown = stage.mover.ok(["changes", &uri, "--allocated-from", "nbd", "--json"]).document();
    let total: u64 =
        shown["extents"].as_array().unwrap().iter().filter_map(|e: &Value| e["len"].as_u64()).sum();
    assert_eq!(total, allocated);
    drop(server);
    let wanted = content(&stage, &image);
    stage.expect_restores("holes", &wanted);
    stage.expect_restores("listed", &wanted);
}

#[test]
fn a_restore_onto_an_export_writes_all_of_it_and_leaves_it_thin() {
    let Some(stage) = Stage::new("nbd-restore") else { return };
    let image = volume(&stage);
    let wanted = content(&stage, &image);
    stage.mover.ok(["backup", text(&stage.path("raw")), "--volume", "db", "--quiet"]);
    // dirty, and larger than the volume
    let target = stage.path("target.qcow2");
    create(&target, SIZE + MIB);
    qemu_io(&target, &[format!("write -q -P 255 0 {}", SIZE + MIB)]);
    let server = Server::qemu(stage.socket("t"), &target, &["--discard=unmap"]);
    let uri = server.uri("");
    let done = stage.mover.ok(["restore", "db@latest", &uri, "--verify", "--json"]);
    assert_eq!(done.summary()["verified"]["read_bytes"], SIZE);
    // at an odd place, through the blocks around it
    stage.mover.ok(["restore", "db@latest", &uri, "--range", "1000..200001", "--quiet"]);
    drop(server);
    let found = content(&stage, &target);
    assert!(found[..SIZE as usize] == wanted, "the volume");
    assert!(found[SIZE as usize..].iter().all(|b| *b == 255), "what is behind it");
    let map = run_ok("qemu-img", ["map", "--output=json", "-f", "qcow2", text(&target)]);
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let data = map.iter().filter(|e| e["data"] == true).filter_map(|e| e["length"].as_u64());
    let data: u64 = data.sum();
    assert!(data <= 20 * MIB, "{data} bytes of the target are allocated");

    let server = Server::qemu(stage.socket("t"), &target, &["--read-only"]);
    let refused =
        |uri: &str, code| stage.mover.run(["restore", "db@latest", uri]).expect_code(code).stderr;
    assert!(refused(&server.uri(""), 4).contains("read-only"));
    drop(server);
    let small = stage.path("small.qcow2");
    create(&small, MIB);
    let server = Server::qemu(stage.socket("t"), &small, &[]);
    assert!(refused(&server.uri(""), 2).contains("the volume has"));
}
