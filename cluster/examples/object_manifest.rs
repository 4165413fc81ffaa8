//! How much memory and time the manifest of 50,000 objects takes, as `kubectl mover objects` builds,
//! orders, saves and reads it: `cargo run --release -p mover-cluster --example object_manifest`.

#![allow(clippy::print_stdout, reason = "it prints figures")]

use mover_cluster::manifest::{
    ItemKind, ManifestBuilder, ManifestScope, differences, read_manifest, restore_order, stored,
    write_manifest,
};
use serde_json::{Value, json};
use std::io::{BufReader, BufWriter, Seek as _, Write as _};
use std::sync::Arc;
use std::time::Instant;

const OBJECTS: usize = 50_000;
/// Bounds of the project, for all of it.
const MIB_MOST: usize = 256;
const SECONDS_MOST: u64 = 60;

/// The most bytes of this process that were in memory, in KiB.
fn peak() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number")
}

/// An object of four kilobytes, as a page of a list has it: every tenth owns those after it.
fn object(at: usize) -> (usize, Value) {
    let root = at - at % 10;
    let name = |at: usize| format!("thing-of-an-application-{at:06}");
    let uid = |at: usize| format!("00000000-0000-4000-8000-{at:012}");
    let owner = json!([{
        "apiVersion": "example.com/v1", "kind": "Kind0", "name": name(root), "uid": uid(root),
        "controller": true,
    }]);
    let metadata = json!({
        "name": name(at), "namespace": format!("ns-{}", at / 10_000), "uid": uid(at),
        "resourceVersion": "123456", "creationTimestamp": "2026-11-26T00:00:00Z",
        "labels": {
            "app.kubernetes.io/name": "shop", "app.kubernetes.io/instance": name(root),
            "app.kubernetes.io/component": "web", "cluster.x-k8s.io/cluster-name": "none",
        },
        "annotations": {
            "example.com/checksum": "0".repeat(64), "example.com/revision": at.to_string(),
            "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(1500),
        },
        "ownerReferences": if at == root { json!([]) } else { owner },
        "managedFields": [{ "manager": "m", "fieldsV1": { "f:spec": { "f:x": "y".repeat(500) } } }],
    });
    let to =
        |at: usize| json!({ "apiVersion": "example.com/v1", "kind": "Kind0", "name": name(at) });
    let spec = json!({
        "text": "z".repeat(800), "ref": to(root), "other": to(at.saturating_sub(10)),
        "list": (0..20).map(|n| json!({ "name": format!("n{n}"), "value": n })).collect::<Vec<_>>(),
    });
    (at % 10, json!({ "metadata": metadata, "spec": spec, "status": { "text": "s".repeat(500) } }))
}

fn main() {
    let begun = Instant::now();
    let kinds: Vec<Arc<ItemKind>> = (0..10)
        .map(|at| {
            Arc::new(ItemKind {
                group: "example.com".into(),
                resource: format!("kind{at}s"),
                version: "v1".into(),
                kind: format!("Kind{at}"),
                namespaced: true,
            })
        })
        .collect();
    let folder = std::env::temp_dir().join(format!("object-manifest-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let open = |name: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).open(folder.join(name)).expect("a file")
    };
    let mut kept = BufWriter::new(open("objects"));
    let mut builder = ManifestBuilder::default();
    let mut bytes = 0;
    for at in 0..OBJECTS {
        let (kind, object) = object(at);
        builder.add(&kinds[kind], &object, true).expect("an object");
        let line = serde_json::to_vec(&stored(&kinds[kind], object)).expect("JSON");
        bytes += line.len();
        kept.write_all(&line).expect("room");
    }
    let manifest = builder.finish(ManifestScope::default(), Vec::new());
    let built = begun.elapsed();
    let order = restore_order(&manifest);
    let ordered = begun.elapsed();
    let mut file = open("manifest.json");
    write_manifest(&manifest, BufWriter::new(&file)).expect("room");
    let size = file.metadata().expect("the file").len();
    let saved = begun.elapsed();
    file.rewind().expect("the file");
    let read = read_manifest(BufReader::new(file)).expect("a manifest");
    assert!(differences(&read, &manifest).is_empty());
    let all = begun.elapsed();
    std::fs::remove_dir_all(&folder).expect("the folder");
    let owners: usize = manifest.items.iter().map(|item| item.owners.len()).sum();
    println!("objects     {} with {owners} owners, {} cut", order.sequence.len(), order.cut.len());
    println!("kept        {} MiB of objects, {} MiB of manifest", bytes >> 20, size >> 20);
    println!("built       {:.1} s", built.as_secs_f64());
    println!("ordered     {:.1} s", (ordered - built).as_secs_f64());
    println!("saved       {:.1} s", (saved - ordered).as_secs_f64());
    println!("compared    {:.1} s", (all - saved).as_secs_f64());
    println!("peak        {} MiB", peak() >> 10);
    assert!(all.as_secs() < SECONDS_MOST, "{all:?}");
    assert!(peak() >> 10 < MIB_MOST, "{} MiB", peak() >> 10);
}
