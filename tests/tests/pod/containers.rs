//! Whole runs in containers as a pod has them: a full backup, an incremental one and a restore with
//! nothing but the device; limits; stopped and killed in the middle; and what each mistake says.

use super::runs::{only_error, until_uploaded};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tests::{
    Containers, LoopDevice, Rng, S3Bucket, first_difference, volume_dir, work_dir, write_extents,
};

const MIB: usize = 1 << 20;

/// A bucket with a repository, a key as a Secret is mounted, and volumes.
struct Cluster {
    containers: Containers,
    _bucket: S3Bucket,
    keys: PathBuf,
    directory: TempDir,
    volumes: TempDir,
}

impl Cluster {
    fn new(name: &str) -> Option<Self> {
        let Some(server) = tests::S3Server::moto() else {
            tests::skip("pod::containers needs the S3 server moto (tests/run starts it)");
            return None;
        };
        let bucket = server.bucket();
        Self::with(name, bucket, &server.environment())
    }

    fn with(name: &str, bucket: S3Bucket, store: &[(&'static str, String)]) -> Option<Self> {
        let directory = work_dir(name);
        let keys = directory.path().join("keys");
        fs::create_dir(&keys).unwrap();
        fs::write(keys.join("current"), Rng::new(5).bytes(32)).unwrap();
        let mut containers = Containers::new(directory.path())?
            .env("MOVER_REPO", bucket.url("pod"))
            .env("MOVER_KEY_FILE", "/keys")
            .env("MOVER_JSON", "1")
            .env("MOVER_LOG_LEVEL", "info");
        for (variable, value) in store {
            containers = containers.env(variable, value);
        }
        let volumes = volume_dir(name);
        let cluster = Self { containers, _bucket: bucket, keys, directory, volumes };
        let _ = cluster.pod().run(&["init"]).expect_code(0);
        Some(cluster)
    }

    fn pod(&self) -> tests::Container<'_> {
        self.containers.container().mount(&self.keys, "/keys:ro")
    }

    /// An image of `mib` random MiB and as much that is zero.
    fn volume(&self, name: &str, mib: usize) -> PathBuf {
        let path = self.volumes.path().join(name);
        let mut file = fs::File::create(&path).unwrap();
        // other bytes under each name, or one volume's would be found stored by another
        let seed = name.bytes().fold(23, |n, byte| n * 31 + u64::from(byte));
        file.write_all(&Rng::new(seed).bytes(mib * MIB)).unwrap();
        file.set_len(2 * (mib * MIB) as u64).unwrap();
        path
    }

    fn empty(&self, name: &str, like: &Path) -> PathBuf {
        let path = self.volumes.path().join(name);
        let file = fs::File::create(&path).unwrap();
        file.set_len(fs::metadata(like).unwrap().len()).unwrap();
        path
    }
}

fn profile() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    format!("seccomp={}", root.join("deploy/kubernetes/seccomp/io-uring.json").display())
}

fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or_else(|| panic!("{name} in {summary}"))
}

#[test]
fn full_incremental_and_restore_with_nothing_but_the_device() {
    tests::require_root!();
    let Some(cluster) = Cluster::new("pod-trip") else { return };
    let image = cluster.volume("v1", 24);
    let device = LoopDevice::attach(&image);
    let backup = ["backup", "/dev/source", "--volume", "db"];
    let pod = cluster.pod().device(device.path(), "/dev/source", "r");
    let full = pod.run(&[&backup[..], &["--snapshot", "s1"]].concat()).expect_code(0).summary();
    // the default profile forbids io_uring, and the report says what ran instead
    assert_eq!((&full["engine"], &pod.termination()["state"]), (&"blocking".into(), &"ok".into()));
    assert_eq!(pod.termination()["summary"]["backup_id"], full["backup_id"]);

    let later = cluster.volumes.path().join("v2");
    fs::copy(&image, &later).unwrap();
    let mut bytes = fs::read(&later).unwrap();
    Rng::new(3).fill(&mut bytes[5 * MIB..6 * MIB]);
    Rng::new(4).fill(&mut bytes[40 * MIB..40 * MIB + 4096]);
    fs::write(&later, &bytes).unwrap();
    let list = cluster.directory.path().join("changed.json");
    write_extents(&image, &later, &list);
    let device = LoopDevice::attach(&later);
    let pod =
        cluster.pod().device(device.path(), "/dev/source", "r").mount(&list, "/changed.json:ro");
    let changes = ["--changed-blocks", "/changed.json", "--changed-blocks-kind", "delta"];
    let names = ["--base-snapshot", "s1", "--snapshot", "s2"];
    let pod = pod.with(&["--security-opt", &profile()]);
    let line = [&backup[..], &changes, &names].concat();
    let increment = pod.run(&line).expect_code(0).summary();
    let engine = increment["engine"].as_str().unwrap();
    assert!(engine.starts_with("io_uring"), "the profile allows it: {increment}");
    assert!(number(&increment, "read_bytes") <= 2 * MIB as u64, "{increment}");

    for options in [&[][..], &["--security-opt", &profile()]] {
        let target = cluster.empty("target", &image);
        let device = LoopDevice::attach(&target);
        let pod = cluster.pod().device(device.path(), "/dev/target", "rwm").with(options);
        let restored = pod.run(&["restore", "db@latest", "/dev/target", "--verify"]);
        let restored = restored.expect_code(0).summary();
        let engine = restored["engine"].as_str().unwrap();
        assert_eq!(engine == "blocking", options.is_empty(), "{restored}");
        drop(device);
        assert_eq!(first_difference(&later, &target), None);
    }
}

#[test]
fn limits_are_kept_to() {
    tests::require_root!();
    let Some(cluster) = Cluster::new("pod-limits") else { return };
    let image = cluster.volume("v", 96);
    let device = LoopDevice::attach(&image);
    for (memory, budget) in [("128m", 112), ("64m", 64)] {
        let limits = ["--memory", memory, "--cpus", "0.5"];
        let pod = cluster.pod().device(device.path(), "/dev/source", "r").with(&limits);
        let done = pod.run(&["backup", "/dev/source", "--volume", memory]).expect_code(0);
        let bounds = &done.summary()["bounds"];
        assert_eq!(number(bounds, "memory_bytes"), budget * MIB as u64);
        assert_eq!(number(bounds, "seal_threads"), 1, "as many as half a processor keeps busy");
        assert!(done.stderr.contains("processor: limit 0.500 cores, 1 threads"), "{}", done.stderr);

        let target = cluster.empty("target", &image);
        let device = LoopDevice::attach(&target);
        let pod = cluster.pod().device(device.path(), "/dev/target", "rwm").with(&limits);
        let latest = format!("{memory}@latest");
        let _ = pod.run(&["restore", &latest, "/dev/target"]).expect_code(0);
        drop(device);
        assert_eq!(first_difference(&image, &target), None, "{memory}");
    }
    // too little is said, not died of
    let pod = cluster.pod().device(device.path(), "/dev/source", "r").with(&["--memory", "48m"]);
    let refused = pod.run(&["backup", "/dev/source", "--volume", "v"]).expect_code(2);
    assert!(
        refused.stderr.contains("48.0 MiB, and a backup or restore needs"),
        "{}",
        refused.stderr
    );
    // and the next step is the pod's limit, as no flag makes room in it
    let raise = "raise the memory limit of this pod or control group, which is 48.0 MiB, to 64.0 MiB or more";
    let hint = &pod.termination()["hint"];
    assert_eq!(hint, raise);
    assert!(refused.stderr.contains(raise), "{}", refused.stderr);
}

#[test]
fn stopped_or_killed_it_goes_on_from_there() {
    tests::require_root!();
    let Some(cluster) = Cluster::new("pod-stop") else { return };
    let line = |id| {
        let names = ["--volume", "db", "--snapshot", id, "--backup-id", id];
        [&["backup", "/dev/source", "--parent", "none"][..], &names].concat()
    };
    for (id, end) in [("s1", "stop"), ("s2", "kill")] {
        let image = cluster.volume(id, 96);
        let device = LoopDevice::attach(&image);
        let pod = || cluster.pod().device(device.path(), "/dev/source", "r");
        let first = pod();
        // slow enough to be met in the middle; the limit is no part of what is gone on with
        let slow = ["--limit-upload", "12MiB", "--checkpoint-interval", "16MiB"];
        let mut command = first.command(&[&line(id)[..], &slow].concat());
        let (mut child, output) = until_uploaded(&mut command, 40 << 20);
        let said = if end == "stop" {
            first.podman(&["stop", "--time", "15"]);
            assert_eq!(child.wait().unwrap().code(), Some(143));
            let said = first.termination();
            assert_eq!((&said["state"], &said["exit_code"]), (&"stopped".into(), &143.into()));
            assert!(
                said["message"].as_str().unwrap().contains("% of backup s1 is stored"),
                "{said}"
            );
            said
        } else {
            first.podman(&["kill"]);
            assert_eq!(child.wait().unwrap().code(), Some(137));
            first.termination()
        };
        drop(output);
        assert_eq!(
            said["hint"].as_str().unwrap().split(" again").next(),
            Some("run the same command")
        );
        if end == "kill" {
            assert_eq!(said["state"], "killed", "{said}");
        }
        let second = pod().run(&line(id)).expect_code(0).summary();
        let resumed = number(&second["resumed"], "bytes");
        assert!(resumed >= 16 << 20, "{second}");
        assert!(number(&second, "read_bytes") + resumed <= fs::metadata(&image).unwrap().len());

        let target = cluster.empty("target", &image);
        let device = LoopDevice::attach(&target);
        let pod = cluster.pod().device(device.path(), "/dev/target", "rwm");
        let _ = pod.run(&["restore", &format!("db@{id}"), "/dev/target"]).expect_code(0);
        drop(device);
        assert_eq!(first_difference(&image, &target), None);
    }
}

/// One error, the same in the log and in the termination message, with this code.
fn fails(pod: &tests::Container<'_>, args: &[&str], code: i32, about: &str) {
    let output = pod.run(args);
    let message = only_error(output, &pod.termination(), code);
    assert!(message.contains(about), "{message}\nshould name {about}");
}

#[test]
fn each_mistake_says_what_it_is() {
    tests::require_root!();
    // moto lets everybody in
    let server = tests::require_s3!(ceph);
    let environment = server.environment();
    let Some(cluster) = Cluster::with("pod-wrong", server.bucket(), &environment) else { return };
    let image = cluster.volume("v", 1);
    let device = LoopDevice::attach(&image);
    let backup = ["backup", "/dev/source", "--volume", "db"];
    let good = || cluster.pod().device(device.path(), "/dev/source", "r");
    let _ = good().run(&backup).expect_code(0);

    fails(&cluster.pod(), &backup, 2, "/dev/source");
    fails(&good().with(&["--user", "1000:1000"]), &backup, 4, "/dev/source");
    let bad_key = ["--env", "MOVER_KEY_FILE=/keys/next"];
    fails(&good().with(&bad_key), &backup, 2, "/keys/next");
    let other_key = cluster.directory.path().join("other");
    fs::write(&other_key, Rng::new(6).bytes(32)).unwrap();
    let other = ["--env", "MOVER_KEY_FILE=/other"];
    fails(&good().mount(&other_key, "/other:ro").with(&other), &backup, 4, "key");
    let repo = ["--env", "MOVER_REPO=s3://no-such-bucket-of-mover/pod"];
    fails(&good().with(&repo), &backup, 2, "no-such-bucket-of-mover");
    let secret = ["--env", "AWS_SECRET_ACCESS_KEY=wrong"];
    fails(&good().with(&secret), &backup, 4, "s3://");

    let target = cluster.empty("target", &image);
    let target = LoopDevice::attach(&target);
    let read_only = cluster.pod().device(target.path(), "/dev/target", "r");
    fails(&read_only, &["restore", "db@latest", "/dev/target"], 4, "/dev/target");
}
