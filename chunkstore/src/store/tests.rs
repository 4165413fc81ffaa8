mod answers;

use super::create::Probe;
use super::retry_budget::RetryBudget;
use super::*;
use crate::testkit::HookedStore;
use crate::testkit::{Fault, FaultyStore};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use std::time::Duration;

fn faulty() -> (Arc<HookedStore<FaultyStore>>, Store) {
    let faulty = FaultyStore::new(Arc::new(InMemory::new()));
    let store = Store::new(Arc::clone(&faulty) as _, Path::from("a/b"), "memory:///a/b");
    (faulty, store)
}

fn local() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalFileSystem::new_with_prefix(dir.path()).unwrap().with_fsync(true);
    (dir, Store::new(Arc::new(store), Path::default(), "file:///x"))
}

fn both(test: impl AsyncFn(Store)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        test(faulty().1).await;
        let (dir, store) = local();
        test(store).await;
        drop(dir);
    });
}

#[test]
fn objects_come_back_under_their_relative_keys() {
    both(async |store| {
        assert_eq!(store.list("").await.unwrap(), []);
        assert!(!store.any("packs").await.unwrap());
        assert_eq!(store.get_opt("format").await.unwrap(), None);
        assert_eq!(store.head("format").await.unwrap(), None);
        assert_eq!(store.get("format").await.unwrap_err().kind(), ErrorKind::NotFound);

        store.put("packs/ab/abcd", Bytes::from_static(b"0123456789")).await.unwrap();
        store.put("packsnot/x", Bytes::from_static(b"x")).await.unwrap();
        assert_eq!(&store.get("packs/ab/abcd").await.unwrap()[..], b"0123456789");
        assert_eq!(&store.get_range("packs/ab/abcd", 2..5).await.unwrap()[..], b"234");
        assert_eq!(store.head("packs/ab/abcd").await.unwrap().unwrap().size, 10);
        assert!(store.any("packs").await.unwrap());
        let listed = store.list("packs").await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!((listed[0].key.as_str(), listed[0].size_bytes), ("packs/ab/abcd", 10));

        store.delete("packs/ab/abcd").await.unwrap();
        store.delete("packs/ab/abcd").await.unwrap();
        assert_eq!(store.get_opt("packs/ab/abcd").await.unwrap(), None);
        let counts = store.counts();
        assert_eq!((counts.puts, counts.deletes, counts.heads), (2, 2, 2));
    });
}

#[test]
fn ranges_and_sizes_are_checked() {
    both(async |store| {
        store.put("o", Bytes::from_static(b"0123456789")).await.unwrap();
        for range in [8..11, 10..11, 100..200] {
            let e = store.get_range("o", range.clone()).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{range:?}: {e}");
        }
        assert_eq!(store.get_range("none", 0..1).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(store.get_range("o", 3..3).await.unwrap(), Bytes::new());
        assert_eq!(store.get_at_most("o", 9).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(store.get_at_most("o", 10).await.unwrap().len(), 10);
    });
}

#[test]
fn of_sixteen_creators_one_wins() {
    both(async |store| {
        for round in 0..8 {
            let key = format!("backups/v/id/{round}");
            let tries: Vec<_> = (0..16)
                .map(|i| {
                    let (store, key) = (store.clone(), key.clone());
                    tokio::spawn(async move { store.create(&key, body(i)).await.unwrap() })
                })
                .collect();
            let mut results = Vec::new();
            for try_ in tries {
                results.push(try_.await.unwrap());
            }
            let winners = results.iter().filter(|r| **r == Created::Now).count();
            assert_eq!(winners, 1);
            let there = store.get(&key).await.unwrap();
            for (i, result) in results.into_iter().enumerate() {
                match result {
                    Created::Now => assert_eq!(there, body(i)),
                    Created::Taken(found) => assert_eq!(found, there),
                    Created::Ours => panic!("no answer was lost"),
                }
            }
        }
    });
}

fn body(i: usize) -> Bytes {
    Bytes::from(format!("body of creator {i}"))
}

#[tokio::test]
async fn a_lost_answer_to_create_is_found_out() {
    for (fault, expected) in [
        (Fault::ExistedAfterSuccess, Created::Ours),
        (Fault::LostAfter, Created::Ours),
        (Fault::Conflict, Created::Now),
        (Fault::LostBefore, Created::Now),
    ] {
        let (faulty, store) = faulty();
        faulty.fault("create a/b/x", fault);
        assert_eq!(store.create("x", body(1)).await.unwrap(), expected, "{fault:?}");
        assert_eq!(store.get("x").await.unwrap(), body(1));
        assert_eq!(store.create("x", body(2)).await.unwrap(), Created::Taken(body(1)));
    }
}

#[tokio::test]
async fn somebody_else_gets_in_after_a_conflict() {
    let (faulty, store) = faulty();
    faulty.fault("create a/b/x", Fault::Conflict);
    faulty.after("get a/b/x", |inner| {
        Box::pin(async move {
            inner.put(&Path::from("a/b/x"), body(2).into()).await.unwrap();
        })
    });
    assert_eq!(store.create("x", body(1)).await.unwrap(), Created::Taken(body(2)));
}

#[tokio::test]
async fn create_gives_up_after_a_bounded_number_of_tries() {
    let (faulty, store) = faulty();
    for _ in 0..100 {
        faulty.fault("create a/b/x", Fault::Conflict);
    }
    let e = store.create("x", body(1)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert_eq!(store.counts().creates, 8);
}

#[tokio::test]
async fn what_did_not_arrive_as_it_was_sent_is_sent_again() {
    let (faulty, store) = faulty();
    for operation in ["put a/b/x", "create a/b/y"] {
        faulty.fault(operation, Fault::Mangled);
        faulty.fault(operation, Fault::Mangled);
    }
    store.put("x", body(1)).await.unwrap();
    assert_eq!(store.get("x").await.unwrap(), body(1));
    assert_eq!(store.create("y", body(2)).await.unwrap(), Created::Now);
    assert_eq!(store.get("y").await.unwrap(), body(2));
    assert_eq!(store.sent().again, body(1).len() as u64 * 2);
}

#[tokio::test]
async fn what_never_arrives_as_it_was_sent_is_an_error_that_says_so() {
    let (faulty, store) = faulty();
    for _ in 0..100 {
        faulty.fault("put a/b/x", Fault::Mangled);
    }
    let e = store.put("x", body(1)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    let said = e.to_string();
    assert!(said.starts_with("write x in memory:///a/b: it did not arrive as it was sent"), "{e}");
    assert!(said.contains("XAmzContentSHA256Mismatch"), "{said}");
    assert_eq!(faulty.take_log().len(), 5);
}

#[tokio::test]
async fn a_refused_create_is_an_error_at_once() {
    let (faulty, store) = faulty();
    faulty.fault("create a/b/x", Fault::Denied);
    let e = store.create("x", body(1)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert_eq!(store.counts().total(), 1);
}

#[tokio::test]
async fn the_probe_tells_what_the_store_does_with_create_once() {
    let (faulty, store) = faulty();
    store.create("format", body(1)).await.unwrap();
    assert_eq!(store.probe_create("format", body(1)).await.unwrap(), Probe::Refused);
    // what is asked twice has one answer
    for fault in [Fault::LostBefore, Fault::LostAfter, Fault::Conflict] {
        faulty.fault("create", fault);
        let probe = store.probe_create("format", body(1)).await.unwrap();
        assert_eq!(probe, Probe::Refused, "{fault:?}");
    }
    faulty.fault("create", Fault::Denied);
    assert_eq!(store.probe_create("format", body(1)).await.unwrap(), Probe::Denied);
    faulty.ignore_create_once();
    assert_eq!(store.probe_create("format", body(1)).await.unwrap(), Probe::WroteOver);
    assert_eq!(store.get("format").await.unwrap(), body(1));
}

#[test]
fn directories_are_opened_made_or_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a b/repo");
    let url = format!("file://{}", path.display()).replace(' ', "%20");
    let open = |create_dir| open_url(&url, &StoreOptions { create_dir, ..StoreOptions::default() });

    let e = open(false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert!(!path.exists());
    let store = open(true).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(store.url(), url);
    open(false).unwrap();
    open_url(path.to_str().unwrap(), &StoreOptions::default()).unwrap();

    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let e = open_url(
        file.to_str().unwrap(),
        &StoreOptions { create_dir: true, ..StoreOptions::default() },
    )
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    let below = format!("{}/below", file.display());
    let e = open_url(&below, &StoreOptions { create_dir: true, ..StoreOptions::default() })
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
}

#[test]
fn urls_that_make_no_sense_are_usage_errors() {
    for url in [
        "",
        "ftp://host/x",
        "s3://",
        "s3:///prefix",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "file://relative/path",
        "file:///a%2",
        "file:///a%ZZ",
        "gs://buc ket",
        "az://",
        "S3://bucket/x",
    ] {
        let e = open_url(url, &StoreOptions::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage, "{url}: {e}");
        assert!(e.hint_text().is_some(), "{url}: {e}");
    }
}

#[test]
fn a_directory_without_room_or_rights_says_so() {
    let io = |kind: std::io::ErrorKind| object_store::Error::Generic {
        store: "LocalFileSystem",
        source: Box::new(std::io::Error::from(kind)),
    };
    for (kind, expected) in [
        (std::io::ErrorKind::StorageFull, ErrorKind::NoSpace),
        (std::io::ErrorKind::QuotaExceeded, ErrorKind::NoSpace),
        (std::io::ErrorKind::PermissionDenied, ErrorKind::Denied),
        (std::io::ErrorKind::ReadOnlyFilesystem, ErrorKind::Denied),
        (std::io::ErrorKind::StaleNetworkFileHandle, ErrorKind::Unavailable),
    ] {
        let fault = fault::Fault::of(&io(kind));
        assert_eq!(fault.kind, expected);
        assert!(!fault.outcome_unknown, "a file system loses no answers");
    }
}

/// A collection of somebody else takes the temporary file of a slow writer for one of a dead one.
#[tokio::test]
async fn a_temporary_file_that_vanishes_is_written_again() {
    let (faulty, store) = faulty();
    faulty.fault("put a/b/leases/x", Fault::Vanished);
    store.put("leases/x", "lease").await.unwrap();
    faulty.fault("create a/b/leases/y", Fault::Vanished);
    assert_eq!(store.create("leases/y", body(1)).await.unwrap(), Created::Now);
    assert_eq!(store.list("leases").await.unwrap().len(), 2);
    for _ in 0..20 {
        faulty.fault("put a/b/leases/z", Fault::Vanished);
    }
    let e = store.put("leases/z", "lease").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "no bucket is missing: {e}");
}

#[test]
fn answers_of_servers_are_read() {
    let answer = |status: &str, code: &str| {
        object_store::Error::Generic {
        store: "S3",
        source: format!(
            "Error performing GET http://h/b?sig=secret in 1ms - Server returned non-2xx status code: \
             {status}: <?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>words</Message>\
             <RequestId>r1</RequestId></Error>"
        )
        .into(),
    }
    };
    for (status, code, expected) in [
        ("403 Forbidden", "SignatureDoesNotMatch", ErrorKind::Denied),
        ("403 Forbidden", "SomethingNew", ErrorKind::Denied),
        ("401 Unauthorized", "x", ErrorKind::Denied),
        ("400 Bad Request", "ExpiredToken", ErrorKind::Denied),
        ("403 Forbidden", "RequestTimeTooSkewed", ErrorKind::Denied),
        ("400 Bad Request", "InvalidIdentityToken", ErrorKind::Denied),
        ("400 Bad Request", "ExpiredTokenException", ErrorKind::Unavailable),
        ("404 Not Found", "NoSuchBucket", ErrorKind::NotFound),
        ("404 Not Found", "ContainerNotFound", ErrorKind::NotFound),
        ("403 Forbidden", "QuotaExceeded", ErrorKind::NoSpace),
        ("400 Bad Request", "AuthorizationHeaderMalformed", ErrorKind::Usage),
        ("503 Service Unavailable", "SlowDown", ErrorKind::Unavailable),
    ] {
        let e = answer(status, code);
        let fault = fault::Fault::of(&e);
        assert_eq!(fault.kind, expected, "{status} {code}");
        assert_eq!(fault.place_absent, expected == ErrorKind::NotFound);
        assert_eq!(fault.outcome_unknown, code == "SlowDown");
        let text = fault.into_error("read x".into(), e).to_string();
        assert!(text.contains("words") && !text.contains("sig=secret"), "{text}");
    }
}

/// What a server says that misses an object.
fn absent(method: &str) -> object_store::Error {
    let source = format!(
        "Error performing {method} http://h/b/k in 1ms - Server returned non-2xx status code: \
         404 Not Found: <Error><Code>NoSuchKey</Code><Message></Message></Error>"
    );
    object_store::Error::NotFound { path: "k".into(), source: source.into() }
}

#[test]
fn an_upload_that_ended_early_is_no_missing_bucket() {
    let put = fault::Fault::of(&absent("PUT")).of_place();
    assert_eq!(put.kind, ErrorKind::Unavailable);
    assert!(put.broke && put.outcome_unknown && !put.place_absent);
    let get = fault::Fault::of(&absent("GET"));
    assert_eq!(get.kind, ErrorKind::NotFound);
    assert!(!get.broke);
}

#[test]
fn a_missing_right_is_no_lock_whatever_names_are_in_it() {
    let refused = |message: &str| {
        let source = format!(
            "Server returned non-2xx status code: 403 Forbidden: <Error><Code>AccessDenied</Code>\
             <Message>{message}</Message></Error>"
        );
        let e = object_store::Error::PermissionDenied { path: "x".into(), source: source.into() };
        let fault = fault::Fault::of(&e);
        assert_eq!(fault.kind, ErrorKind::Denied);
        fault.locked
    };
    assert!(refused("Access Denied because object protected by object lock."));
    assert!(!refused(
        "User: arn:aws:iam::1:user/retention is not authorized to perform: s3:DeleteObject on resource: \
         \"arn:aws:s3:::worm/object-lock\" because no identity-based policy allows it"
    ));
}

/// A store over a network with a small retry budget.
fn over_a_network() -> (Arc<HookedStore<FaultyStore>>, Store) {
    let (faulty, mut store) = faulty();
    store.retry_budget = Some(RetryBudget {
        look_up_every: Duration::from_millis(20),
        deadline: Duration::from_millis(60),
        slowest_bytes: 1 << 20,
    });
    (faulty, store)
}

#[tokio::test]
async fn a_stuck_transfer_is_tried_again_on_another_connection() {
    let (faulty, store) = over_a_network();
    let pack = Bytes::from(vec![7; 300_000]);
    faulty.fault("put a/b/pack", Fault::Hang);
    store.put("pack", pack.clone()).await.unwrap();
    faulty.fault("get a/b/pack", Fault::Hang);
    faulty.fault("get a/b/pack", Fault::Hang);
    assert_eq!(store.get_range("pack", 0..300_000).await.unwrap(), pack);
    assert!(store.counts().heads > 3, "looked after: {:?}", store.counts());
}

#[tokio::test]
async fn a_transfer_ends_when_the_store_answers_nothing_else_either() {
    let (faulty, store) = over_a_network();
    faulty.fault("put a/b/pack", Fault::Hang);
    faulty.fault("head a/b/format", Fault::LostBefore);
    let e = store.put("pack", Bytes::from(vec![7; 300_000])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
}

#[tokio::test]
async fn a_transfer_that_never_gets_through_ends() {
    let (faulty, store) = over_a_network();
    for _ in 0..3 {
        faulty.fault("put a/b/pack", Fault::Hang);
    }
    let e = store.put("pack", Bytes::from(vec![7; 300_000])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("3 tries"), "{e}");
}

/// How often a request whose answer always breaks is sent within this time.
async fn broken(time: Duration) -> u32 {
    let (_, store) = faulty();
    let tries = std::cell::Cell::new(0);
    let result = store.retry_within(time, async || {
        tries.set(tries.get() + 1);
        let begun = tokio::time::Instant::now();
        while begun.elapsed().is_zero() {
            tokio::task::yield_now().await;
        }
        Err::<(), _>(absent("PUT"))
    });
    assert!(result.await.is_err());
    tries.get()
}

#[tokio::test]
async fn an_answer_that_always_breaks_is_not_asked_for_for_ever() {
    assert_eq!(broken(Duration::ZERO).await, 1);
    assert_eq!(broken(Duration::MAX).await, 5);
}

/// Opens the text `good`, and calls anything else damaged.
fn as_good(bytes: &Bytes) -> Result<()> {
    match &bytes[..] {
        b"good" => Ok(()),
        other => Err(Error::new(ErrorKind::Corrupt, "read it", format!("{other:?} is not good"))),
    }
}

#[tokio::test]
async fn one_wrong_answer_is_no_damage_and_two_are() {
    let (faulty, store) = faulty();
    assert_eq!(store.open_opt("x", 9, as_good).await.unwrap(), None);
    store.put("x", Bytes::from_static(b"bad")).await.unwrap();
    let before = store.counts().gets;
    assert_eq!(store.open_opt("x", 9, as_good).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.counts().gets - before, 2);
    // the answer after that is right; so is the one after a wrong length
    for wrong in ["bad", "much too long"] {
        store.put("x", Bytes::from(wrong)).await.unwrap();
        faulty.after("get a/b/x", |store| {
            Box::pin(async move {
                store.put(&Path::from("a/b/x"), "good".into()).await.unwrap();
            })
        });
        assert_eq!(store.open_opt("x", 9, as_good).await.unwrap(), Some(()), "{wrong}");
    }
    let before = store.counts().gets;
    store.open_opt("x", 9, as_good).await.unwrap();
    assert_eq!(store.counts().gets - before, 1, "what opens is read once");
}
