//! What the commit protocol needs of real object stores, asked of real servers.

#![allow(clippy::print_stdout)] // the harness shows it for tests that fail

use chunkstore::{
    Credential, Encryption, Error, ErrorKind, InitOptions, KdfCost, Repository, Store,
    StoreOptions,
    repository::CreateOnce,
    store::{Created, open_url_with},
};
use std::time::{Duration, Instant};
use tests::{S3Bucket, S3Server};

fn open(server: &S3Server, bucket: &str, secret: &str) -> Store {
    let settings = [
        ("aws_endpoint", server.endpoint.as_str()),
        ("aws_access_key_id", &server.key),
        ("aws_secret_access_key", secret),
        ("aws_region", "us-east-1"),
        ("aws_allow_http", "true"),
    ];
    let url = format!("s3://{bucket}/some/prefix");
    open_url_with(&url, &StoreOptions::default(), &settings).expect("the settings make sense")
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("start a runtime").block_on(test)
}

fn init_options() -> InitOptions {
    InitOptions {
        chunk: chunkstore::ChunkSize::new(65536).expect("a chunk size"),
        entry_chunks: 16,
        page_fanout: 128,
        encryption: Encryption::Aes256Gcm,
        credential: Some(Credential::passphrase("correct horse")),
        label: "first".into(),
        kdf: KdfCost { memory_kib: 8, passes: 1, lanes: 1 },
        created_by: "tests".into(),
    }
}

async fn create_once_holds(store: &Store) {
    for round in 0..4 {
        let key = format!("backups/v/id/{round}");
        let tries = (0..16u8).map(|i| {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move { store.create(&key, vec![i; 5000].into()).await })
        });
        let results = futures::future::join_all(tries).await;
        let there = store.get(&key).await.expect("read what was created");
        let mut winners = 0;
        for (i, result) in (0u8..).zip(results) {
            match result.expect("no panic").expect("an answer") {
                Created::Now | Created::Ours => {
                    winners += 1;
                    assert_eq!(there, vec![i; 5000]);
                }
                Created::Taken(found) => assert_eq!(found, there),
            }
        }
        assert_eq!(winners, 1);
    }
}

async fn objects_are_as_they_were_put(store: &Store) {
    let pack: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 3).to_le_bytes()[0]).collect();
    store.put("packs/ab/pack", pack.clone()).await.expect("put");
    assert_eq!(store.get("packs/ab/pack").await.expect("get"), pack);
    let range = store.get_range("packs/ab/pack", 1_000_000..2_000_001).await.expect("get a range");
    assert_eq!(range, pack[1_000_000..2_000_001]);
    for range in [2_999_999..3_000_001, 3_000_000..3_000_001, 9_000_000..9_000_010] {
        let e = store.get_range("packs/ab/pack", range).await.expect_err("beyond its end");
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    }
    let head = store.head("packs/ab/pack").await.expect("look up").expect("it is there");
    assert_eq!(head.size, 3_000_000);
    let listed = store.list("packs/").await.expect("list");
    assert_eq!((listed.len(), listed[0].key.as_str()), (1, "packs/ab/pack"));
    // a header has whole seconds, a listing may have more
    let apart = listed[0].last_modified - head.last_modified;
    assert!((0..1000).contains(&apart.num_milliseconds()), "{apart}");
    store.delete("packs/ab/pack").await.expect("delete");
    store.delete("packs/ab/pack").await.expect("delete what is not there");
    assert_eq!(store.head("packs/ab/pack").await.expect("look up"), None);
    assert_eq!(store.get_opt("packs/ab/pack").await.expect("get"), None);
    assert!(!store.any("packs").await.expect("list"));
}

async fn a_repository_is_made_and_opened(store: &Store) {
    let made = Repository::init(store.clone(), init_options()).await.expect("make a repository");
    assert_eq!(made.probe_create_once().await.expect("probe"), CreateOnce::Holds);
    let e = Repository::init(store.clone(), init_options()).await.expect_err("it is there");
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    let passphrase = Credential::passphrase("correct horse");
    let opened = Repository::open(store.clone(), &[passphrase]).await.expect("open it");
    assert_eq!(opened.params(), made.params());
}

fn everything_on(server: &S3Server) {
    let bucket: S3Bucket = server.bucket();
    run(async {
        let store = open(server, bucket.name(), &server.secret);
        objects_are_as_they_were_put(&store).await;
        create_once_holds(&open(server, bucket.name(), &server.secret)).await;
    });
    let bucket: S3Bucket = server.bucket();
    run(async {
        a_repository_is_made_and_opened(&open(server, bucket.name(), &server.secret)).await;
        let nowhere = open(server, "mover-test-no-such-bucket", &server.secret);
        let made = Repository::init(nowhere.clone(), init_options()).await;
        let opened = Repository::open(nowhere, &[Credential::passphrase("x")]).await;
        for e in [made.expect_err("no bucket"), opened.expect_err("no bucket")] {
            println!("{e}");
            assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
            assert!(e.to_string().contains("bucket does not exist"), "{e}");
        }
    });
}

#[test]
fn ceph_keeps_what_the_protocol_rests_on() {
    everything_on(&tests::require_s3!(ceph));
}

#[test]
fn moto_keeps_what_the_protocol_rests_on() {
    everything_on(&tests::require_s3!(moto));
}

#[test]
fn a_wrong_secret_is_denied_with_a_hint() {
    let server = tests::require_s3!(ceph);
    let bucket = server.bucket();
    let check = |what: &str, e: Error| {
        println!("{what}: {e}");
        assert_eq!(e.kind(), ErrorKind::Denied, "{what}: {e}");
        assert!(e.hint_text().is_some(), "{what}: {e}");
    };
    run(async {
        let store = open(&server, bucket.name(), "wrong");
        check("get", store.get_opt("format").await.expect_err("denied"));
        check("head", store.head("format").await.expect_err("denied"));
        check("list", store.list("keys").await.expect_err("denied"));
        check("put", store.put("x", "x").await.expect_err("denied"));
        check("create", store.create("x", "x".into()).await.expect_err("denied"));
        check("delete", store.delete("x").await.expect_err("denied"));
    });
}

#[test]
fn a_dead_endpoint_is_one_error_within_half_a_minute() {
    // port 9 of loopback: nothing listens there, connections are refused at once and tried again
    let server = S3Server {
        name: "dead",
        endpoint: "http://127.0.0.1:9".into(),
        key: "k".into(),
        secret: "s".into(),
    };
    run(async {
        let store = open(&server, "bucket", "s");
        let start = Instant::now();
        let (get, create, put) = tokio::join!(
            store.get_opt("format"),
            store.create("format", "x".into()),
            store.put("packs/ab/pack", vec![0; 1 << 20]),
        );
        for e in [get.expect_err("dead"), create.expect_err("dead"), put.expect_err("dead")] {
            println!("{e}");
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(e.to_string().contains("no connection"), "{e}");
        }
        let took = start.elapsed();
        println!("after {took:?}");
        // 15 seconds, on a machine that is busy
        assert!(took < Duration::from_secs(30), "{took:?}");
    });
}
