//! What a real S3 server has to say to wrong buckets and wrong credentials.

use super::{expect_error, p, random_bytes};
use std::fs;
use tests::{Mover, S3Server, work_dir};

fn mover_of(server: &S3Server) -> Mover {
    Mover::new().envs(server.environment())
}

/// The metadata service of a cloud is asked for credentials; here nobody answers, at once.
const NO_METADATA: (&str, &str) = ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");

fn refuses(server: &S3Server) {
    let bucket = server.bucket();
    let mover = mover_of(server);
    expect_error(
        mover.run(["list", "--repo", "s3://no-such-bucket-here/p"]),
        2,
        "no-such-bucket-here",
    );
    let key = mover.home().join("key");
    let init = |bucket: &str| {
        mover.run([p("init"), p("--quiet"), p("--repo"), p(bucket), p("--key-file"), key.clone()])
    };
    fs::write(&key, [7; 32]).expect("write a key");
    expect_error(init("s3://no-such-bucket-here/p"), 2, "no-such-bucket-here");
    expect_error(mover.run(["list", "--repo", &bucket.url("p")]), 2, "no repository");
    assert!(bucket.keys().is_empty());

    let nobody = Mover::new()
        .envs(server.environment().into_iter().filter(|(name, _)| !name.contains("KEY")))
        .env(NO_METADATA.0, NO_METADATA.1);
    expect_error(nobody.run(["list", "--repo", &bucket.url("p")]), 4, &bucket.url("p"));
    assert!(bucket.keys().is_empty());

    assert_eq!(init(&bucket.url("p")).code(), Some(0));
    let image = mover.home().join("image");
    fs::write(&image, random_bytes(200_000)).expect("write the image");
    let line = [
        p("backup"),
        p("--repo"),
        p(&bucket.url("p")),
        p("--key-file"),
        key.clone(),
        image.clone(),
    ];
    mover.ok(line);
    let before = bucket.keys();
    expect_error(init(&bucket.url("p")), 2, "already");
    expect_error(mover.run(["list", "--repo", &bucket.url("p")]), 4, "key");
    assert_eq!(before, bucket.keys());
    let back = work_dir("s3").path().join("back");
    fs::create_dir_all(back.parent().expect("a directory")).expect("make it");
    let target = [
        p("restore"),
        p("image@latest"),
        back.clone(),
        p("--repo"),
        p(&bucket.url("p")),
        p("--key-file"),
        key,
    ];
    mover.ok(target);
    assert_eq!(fs::read(back).expect("restored"), fs::read(image).expect("the image"));
}

#[test]
fn ceph() {
    let server = tests::require_s3!(ceph);
    refuses(&server);
    let stranger = mover_of(&server).env("AWS_SECRET_ACCESS_KEY", "wrong");
    let bucket = server.bucket();
    expect_error(stranger.run(["list", "--repo", &bucket.url("p")]), 4, &bucket.url("p"));
    let unknown = mover_of(&server).env("AWS_ACCESS_KEY_ID", "unknown");
    expect_error(unknown.run(["list", "--repo", &bucket.url("p")]), 4, &bucket.url("p"));
}

#[test]
fn moto() {
    refuses(&tests::require_s3!(moto));
}
