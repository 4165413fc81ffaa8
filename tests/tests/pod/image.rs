//! The image that the Containerfile makes, of the program that is tested: what is in it, what it
//! says of itself, and that a backup and a restore need nothing else. `tests/run` links the program
//! for it (`deploy/image/link`); the release build is not made here.

use super::text;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{Containers, LoopDevice, Rng, first_difference, require_s3, run_ok, work_dir};

const MIB: u64 = 1 << 20;

/// Builds it. `None`, with a line that says so, where `tests/run` has linked no program.
fn build(directory: &Path, more: &[&str]) -> Option<(PathBuf, std::process::Output)> {
    let Some(program) = std::env::var_os("MOVER_TEST_STATIC_BIN") else {
        tests::skip("pod::image needs MOVER_TEST_STATIC_BIN (tests/run links it)");
        return None;
    };
    let archive = directory.join("image.tar");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy/image/build");
    let mut command = Command::new(script);
    command.arg("--program").arg(program).args(["--output", text(&archive)]).args(more);
    Some((archive, command.output().unwrap()))
}

/// A JSON file of the archive: its index, or a blob by its digest.
fn json(directory: &Path, name: &str) -> Value {
    let path = match name.split_once(':') {
        Some((kind, digest)) => directory.join("blobs").join(kind).join(digest),
        None => directory.join(name),
    };
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The files of all layers, with their sizes and modes.
fn files(directory: &Path, manifest: &Value) -> BTreeMap<String, (u64, String)> {
    let mut files = BTreeMap::new();
    for layer in manifest["layers"].as_array().unwrap() {
        let digest = layer["digest"].as_str().unwrap().split_once(':').unwrap();
        let blob = directory.join("blobs").join(digest.0).join(digest.1);
        // -rwxr-xr-x 0/0  5 1970-01-01 00:00 name
        for line in
            run_ok("tar", ["--list", "--verbose", "--numeric-owner", "--file", text(&blob)]).lines()
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[1], "0/0", "{line}");
            if words[0].starts_with('-') {
                let name = words[5].trim_start_matches("./").to_owned();
                files.insert(name, (words[2].parse().unwrap(), words[0].to_owned()));
            }
        }
    }
    files
}

#[test]
fn it_holds_the_program_and_what_it_needs_and_nothing_else() {
    let directory = work_dir("image");
    let Some((archive, output)) = build(directory.path(), &[]) else { return };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let unpacked = directory.path().join("oci");
    fs::create_dir(&unpacked).unwrap();
    run_ok("tar", ["--extract", "--file", text(&archive), "--directory", text(&unpacked)]);
    let index = json(&unpacked, "index.json");
    let manifest = json(&unpacked, index["manifests"][0]["digest"].as_str().unwrap());
    let image = json(&unpacked, manifest["config"]["digest"].as_str().unwrap());

    let config = &image["config"];
    assert_eq!(config["User"], "0:0");
    assert_eq!(config["Entrypoint"], serde_json::json!(["/mover"]));
    let authorities = "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt";
    assert!(config["Env"].as_array().unwrap().iter().any(|v| v == authorities), "{config}");
    let label = |name: &str| {
        let value = &config["Labels"][format!("org.opencontainers.image.{name}")];
        value.as_str().unwrap_or_else(|| panic!("{name} in {config}")).to_owned()
    };
    assert_eq!((label("title"), label("licenses")), ("mover".into(), "Apache-2.0".into()));
    assert_eq!(label("version"), env!("CARGO_PKG_VERSION"));
    let revision = label("revision");
    let is_commit = revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(is_commit || revision == "unknown", "{revision}");
    assert!(label("description").contains("Kubernetes"));

    let files = files(&unpacked, &manifest);
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    let sbom = "usr/share/mover/sbom.cdx.json";
    let wanted = ["etc/ssl/certs/ca-certificates.crt", "mover", "usr/share/mover/LICENSE", sbom];
    assert_eq!(names, wanted);
    assert!(files["mover"].1.starts_with("-rwx"), "{files:?}");
    let beside: u64 = files.iter().filter(|(name, _)| **name != "mover").map(|(_, f)| f.0).sum();
    assert!(files.values().all(|file| file.0 > 0) && beside < MIB, "{files:?}");

    // more than is allowed is said
    let (_, output) = build(directory.path(), &["--size-max", "100000"]).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("100000 are the most allowed"), "{stderr}");
}

#[test]
fn a_program_that_needs_libraries_is_refused() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy/image/build");
    let mut command = Command::new(script);
    let output = command.arg("--program").arg(tests::mover_bin()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is linked dynamically"), "{stderr}");
}

#[test]
fn the_bill_of_materials_names_what_is_linked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let sbom: Value =
        serde_json::from_str(&run_ok(text(&root.join("deploy/image/sbom")), [""; 0])).unwrap();
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let program = &sbom["metadata"]["component"];
    assert_eq!((&program["name"], &program["type"]), (&"mover".into(), &"application".into()));
    let components = sbom["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    for name in ["chunkstore", "object_store", "aws-lc-rs", "zstd", "io-uring", "clap", "fuser"] {
        assert!(named(name).is_some(), "{name}");
    }
    // tests, benches and build scripts have these
    for name in ["tests", "proptest", "criterion", "tonic-prost-build", "cc", "axum", "matchit"] {
        assert!(named(name).is_none(), "{name}");
    }
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap();
    let mut references = vec![program["bom-ref"].clone()];
    for component in components {
        let (name, version) = (&component["name"], &component["version"]);
        assert!(lock.contains(&format!("name = {name}\nversion = {version}\n")), "{component}");
        assert!(component["purl"].as_str().unwrap().starts_with("pkg:cargo/"), "{component}");
        let ours = name == "chunkstore" || name.as_str().unwrap().starts_with("mover-");
        let hash = component["hashes"][0]["content"].as_str();
        assert!(ours || hash.is_some_and(|hash| lock.contains(hash)), "{component}");
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        references.push(component["bom-ref"].clone());
    }
    for entry in sbom["dependencies"].as_array().unwrap() {
        let on = entry["dependsOn"].as_array().unwrap();
        assert!(on.iter().chain([&entry["ref"]]).all(|r| references.contains(r)), "{entry}");
    }
}

#[test]
fn a_backup_and_a_restore_need_nothing_else() {
    tests::require_root!();
    let server = require_s3!(moto);
    let directory = work_dir("image-run");
    let Some((archive, output)) = build(directory.path(), &["--tag", "localhost/mover:test"])
    else {
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let Some(containers) = Containers::of_image(directory.path(), &archive) else { return };
    let bucket = server.bucket();
    let mut containers = containers
        .env("MOVER_REPO", bucket.url("image"))
        .env("MOVER_KEY_FILE", "/keys/key")
        .env("MOVER_JSON", "1");
    for (name, value) in server.environment() {
        // by name: a static program looks names up by itself
        containers = containers.env(name, value.replace("127.0.0.1", "localhost"));
    }
    let keys = directory.path().join("keys");
    fs::create_dir(&keys).unwrap();
    fs::write(keys.join("key"), Rng::new(5).bytes(32)).unwrap();
    let pod = || containers.container().mount(&keys, "/keys:ro");
    let version = pod().run(&["--version"]).expect_code(0).text();
    assert_eq!(version.trim(), format!("mover {}", env!("CARGO_PKG_VERSION")));
    let _ = pod().run(&["init"]).expect_code(0);

    let (image, target) = (directory.path().join("volume"), directory.path().join("target"));
    let mut bytes = Rng::new(7).bytes(6 << 20);
    bytes.resize(8 << 20, 0);
    fs::write(&image, bytes).unwrap();
    let device = LoopDevice::attach(&image);
    let backup = pod().device(device.path(), "/dev/source", "r");
    let _ = backup.run(&["backup", "/dev/source", "--volume", "db"]).expect_code(0);
    assert_eq!(backup.termination()["state"], "ok");
    fs::File::create(&target).unwrap().set_len(8 * MIB).unwrap();
    let device = LoopDevice::attach(&target);
    let restore = pod().device(device.path(), "/dev/target", "rwm");
    let _ = restore.run(&["restore", "db@latest", "/dev/target", "--verify"]).expect_code(0);
    drop(device);
    assert_eq!(first_difference(&image, &target), None);
}
