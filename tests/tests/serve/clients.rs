//! Clients of others.

use super::{CHUNK, SIZE, Stage, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use tests::{run, run_ok};

fn json(program: &str, arguments: &[&str]) -> Value {
    let output = run_ok(program, arguments);
    serde_json::from_str(&output).unwrap_or_else(|e| panic!("{program}: {e}: {output}"))
}

#[test]
fn what_qemu_copies_is_what_a_restore_writes() {
    let Some(stage) = Stage::new("serve-qemu", &["qemu-img", "qemu-io"]) else { return };
    let server = stage.serve(&["db@latest"]);
    let (copied, restored) = (stage.path("copied"), stage.path("restored"));
    let convert = ["convert", "-f", "raw", "-O", "raw", &server.uri(""), text(&copied)];
    run_ok("qemu-img", convert);
    stage.mover.ok(["restore", "db@latest", text(&restored), "--quiet"]);
    assert!(fs::read(&copied).unwrap() == stage.images[1]);
    assert!(fs::read(&restored).unwrap() == stage.images[1]);
    // holes where a restore leaves holes
    let blocks = |path| fs::metadata(path).unwrap().blocks();
    assert!(blocks(&copied) <= blocks(&restored), "{} blocks", blocks(&copied));
    let compare = ["compare", "-f", "raw", "-F", "raw", text(&restored), &server.uri("")];
    run_ok("qemu-img", compare);
    // what is data and what is not, by QEMU's own question
    let map = json("qemu-img", &["map", "-f", "raw", "--output=json", &server.uri("db@b2")]);
    let mut at = 0;
    for extent in map.as_array().unwrap() {
        let number = |name: &str| extent[name].as_u64().unwrap();
        assert_eq!(number("start"), at);
        at += number("length");
        for chunk in number("start") / CHUNK..at / CHUNK {
            let bytes = &stage.images[1][(chunk * CHUNK) as usize..][..CHUNK as usize];
            assert_eq!(extent["data"].as_bool().unwrap(), bytes.iter().any(|b| *b != 0));
        }
    }
    assert_eq!(at, SIZE);
    let info = json("qemu-img", &["info", "--output=json", &server.uri("db")]);
    assert_eq!(info["virtual-size"], SIZE);
    // a part in the middle of a chunk; and what is written is refused
    let read = ["-r", "-f", "raw", "-c", "read -P 0x77 262300 200", &server.uri("")];
    let read = run_ok("qemu-io", read);
    assert!(read.contains("read 200/200"), "{read:?}");
    let write = run("qemu-io", ["-f", "raw", "-c", "write 0 512", &server.uri("")]);
    assert!(!write.status.success(), "{write:?}");
}

/// QEMU asks for changes as for a bitmap of its own: what it sees as not allocated is dirty.
#[test]
fn changes_are_a_dirty_bitmap_for_qemu_and_for_us() {
    let Some(stage) = Stage::new("serve-changes", &["qemu-img"]) else { return };
    let server = stage.serve(&["db@b2", "--changed-since", "db@b1"]);
    let options = format!(
        "driver=nbd,export=db,server.type=unix,server.path={},x-dirty-bitmap=qemu:dirty-bitmap:{}",
        server.socket().display(),
        stage.ids[0]
    );
    let map = json("qemu-img", &["map", "--image-opts", "--output=json", &options]);
    let mut dirty: Vec<u64> = Vec::new();
    for extent in map.as_array().unwrap().iter().filter(|extent| extent["data"] == false) {
        let number = |name: &str| extent[name].as_u64().unwrap() / CHUNK;
        dirty.extend(number("start")..number("start") + number("length"));
    }
    assert_eq!(dirty, [3, 4, 40, 100, 255, 511]);
    // an increment of another repository, read by our own client from our own server
    let far = stage.path("far");
    let far = stage.mover.env("MOVER_REPO", format!("file://{}", far.display()));
    let first = stage.directory.path().join("first");
    fs::write(&first, &stage.images[0]).unwrap();
    far.ok(["init", "--quiet"]);
    far.ok(["backup", text(&first), "--volume", "db", "--snapshot", "s1", "--quiet"]);
    let uri = server.uri("db");
    let line = ["backup", &uri, "--volume", "db", "--snapshot", "s2", "--base-snapshot", "s1"];
    let list = ["--nbd-bitmap", &stage.ids[0], "--require", "delta", "--json"];
    let made = far.ok([&line[..], &list].concat()).summary();
    assert_eq!(made["read_bytes"], 5 * CHUNK, "{made}");
    let restored = stage.directory.path().join("restored");
    far.ok(["restore", "db@latest", text(&restored), "--quiet"]);
    assert!(fs::read(&restored).unwrap() == stage.images[1]);
}

#[test]
fn the_tools_of_libnbd_see_the_same() {
    let Some(stage) = Stage::new("serve-libnbd", &["nbdinfo", "nbdcopy"]) else { return };
    let server = stage.serve(&["db@b2", "db@b1", "--changed-since", "db@b1"]);
    let info = json("nbdinfo", &["--json", "--list", &server.uri("")]);
    let exports = info["exports"].as_array().unwrap();
    assert_eq!(exports.len(), 2, "{info}");
    for export in exports {
        assert_eq!((&export["export-size"], &export["is_read_only"]), (&SIZE.into(), &true.into()));
        assert_eq!(export["can_multi_conn"], true, "{export}");
        assert_eq!(export["block_size_preferred"], CHUNK, "{export}");
        assert_eq!(export["block_size_minimum"], 1, "{export}");
    }
    let copied = stage.path("copied");
    for (id, image) in stage.ids.iter().zip(&stage.images) {
        let _ = fs::remove_file(&copied);
        run_ok("nbdcopy", [&server.uri(&format!("db@{id}")), text(&copied)]);
        assert!(fs::read(&copied).unwrap() == *image, "{id}");
    }
    let context = format!("--map=mover:changed-since={}", stage.ids[0]);
    let map = json("nbdinfo", &["--json", &context, &server.uri("db@b2")]);
    let of = |kind: u64| {
        let extents = map.as_array().unwrap().iter().filter(move |e| e["type"] == kind);
        extents.map(|e| e["offset"].as_u64().unwrap() / CHUNK).collect::<Vec<_>>()
    };
    assert_eq!((of(1), of(3)), (vec![3, 100, 255, 511], vec![40]));
}

/// A client in another language, with many requests under way and one connection after the other.
#[test]
fn python_reads_at_random() {
    let Some(stage) = Stage::new("serve-python", &[]) else { return };
    if !run("/usr/bin/python3", ["-c", "import nbd"]).status.success() {
        tests::skip("serve-python needs python3-libnbd (tests/setup)");
        return;
    }
    let server = stage.serve(&["db@b2"]);
    let image = stage.path("wanted");
    fs::write(&image, &stage.images[1]).unwrap();
    let script = "
import nbd, random, sys
uri, path = sys.argv[1:]
wanted = open(path, 'rb').read()
random.seed(20)
h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
assert h.get_size() == len(wanted) and h.is_read_only() and h.can_multi_conn()
under_way = []
for _ in range(300):
    length = random.choice([1, 512, 4096, 70000, 3 << 20])
    offset = random.randrange(len(wanted) - length)
    buf = nbd.Buffer(length)
    under_way.append((offset, length, buf, h.aio_pread(buf, offset)))
    if len(under_way) == 16:
        offset, length, buf, cookie = under_way.pop(0)
        while not h.aio_command_completed(cookie):
            h.poll(-1)
        assert buf.to_bytearray() == wanted[offset:offset + length], (offset, length)
h.set_strict_mode(0)
for bad in [lambda: h.pread(512, len(wanted)), lambda: h.pwrite(b'x' * 512, 0), lambda: h.zero(512, 0)]:
    try:
        bad()
    except nbd.Error:
        continue
    raise SystemExit('taken')
assert h.pread(5, 0) == wanted[:5]
h.shutdown()
";
    run_ok("/usr/bin/python3", ["-c", script, &server.uri(""), text(&image)]);
}
