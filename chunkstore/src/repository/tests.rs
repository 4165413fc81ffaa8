use super::*;
use crate::Manifest;
use crate::format::names::AttemptName;
use crate::ids::{LeaseId, PackId};
use crate::keys::KdfCost;
use crate::testkit::Fault;
use crate::testkit::repositories::*;
use object_store::memory::InMemory;

const CHEAP: KdfCost = KdfCost { memory_kib: 8, passes: 1, lanes: 1 };

#[tokio::test]
async fn a_repository_opens_with_each_of_its_keys() {
    let (repo, _, inner) = memory_repository().await;
    let passphrase = Credential::passphrase("correct horse");
    let second = repo.add_key(&passphrase, "second", CHEAP).await.unwrap();
    let store = || store_on(Arc::clone(&inner) as _).1;

    let wrong = Credential::passphrase("wrong");
    for (credentials, expected) in [
        (vec![key_file(1)], repo.opened_with().copied()),
        (vec![passphrase.clone()], Some(second)),
        (vec![wrong.clone(), key_file(9), passphrase.clone()], Some(second)),
    ] {
        let again = Repository::open(store(), &credentials).await.unwrap();
        assert_eq!(again.params(), repo.params());
        let counts = again.store().counts();
        assert_eq!((counts.gets, counts.total()), (3, 5), "format, two keys, two listings");
        assert_eq!(again.opened_with().copied(), expected);
        assert_eq!(again.keys().chunk_id(b"x"), repo.keys().chunk_id(b"x"));
    }
    for credentials in [vec![], vec![wrong], vec![key_file(2)]] {
        let e = Repository::open(store(), &credentials).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WrongKey, "{e}");
        assert!(e.hint_text().is_some());
    }
    let labels: Vec<_> =
        repo.list_keys().await.unwrap().into_iter().map(|k| (k.label, k.kind.as_str())).collect();
    assert_eq!(labels, [("first".into(), "key-file"), ("second".into(), "passphrase")]);
}

#[tokio::test]
async fn keys_are_removed_but_not_the_one_in_use() {
    let (repo, _, inner) = memory_repository().await;
    let first = *repo.opened_with().unwrap();
    let e = repo.remove_key(&first).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    let e = repo.remove_key(&KeyId::random()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");

    let second = repo.add_key(&key_file(2), "second", CHEAP).await.unwrap();
    let store = || store_on(Arc::clone(&inner) as _).1;
    let by_second = Repository::open(store(), &[key_file(2)]).await.unwrap();
    by_second.remove_key(&first).await.unwrap();
    assert!(Repository::open(store(), &[key_file(1)]).await.is_err());
    let e = by_second.remove_key(&second).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
}

#[tokio::test]
async fn without_encryption_no_key_is_needed_and_none_accepted() {
    let inner = Arc::new(InMemory::new());
    let (_, store) = store_on(inner);
    let repo = Repository::init(store.clone(), init_options(None)).await.unwrap();
    assert!(repo.list_keys().await.unwrap().is_empty());
    let again = Repository::open(store, &[]).await.unwrap();
    assert_eq!(again.params(), repo.params());
    let e = repo.add_key(&key_file(1), "x", CHEAP).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
}

#[tokio::test]
async fn init_refuses_a_place_in_use_and_opens_nothing_where_nothing_is() {
    let (_, store) = store_on(Arc::new(InMemory::new()));
    let e = Repository::open(store.clone(), &[key_file(1)]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");

    let pack = crate::format::names::pack_key(&PackId::random());
    store.put(&pack, "x").await.unwrap();
    let e = Repository::init(store.clone(), init_options(None)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    let e = Repository::open(store.clone(), &[key_file(1)]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Missing, "{e}");
    store.delete(&pack).await.unwrap();

    Repository::init(store.clone(), init_options(None)).await.unwrap();
    let e = Repository::init(store.clone(), init_options(None)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    Repository::open(store, &[]).await.unwrap();
}

#[tokio::test]
async fn an_init_that_stopped_can_be_repeated() {
    for change in 0..2 {
        for done in [false, true] {
            let inner = Arc::new(InMemory::new());
            let (faulty, store) = store_on(Arc::clone(&inner) as _);
            faulty.stop_at(change, done);
            Repository::init(store, init_options(Some(key_file(1)))).await.unwrap_err();
            let (_, store) = store_on(Arc::clone(&inner) as _);
            if (change, done) != (1, true) {
                Repository::init(store.clone(), init_options(Some(key_file(1)))).await.unwrap();
            }
            Repository::open(store, &[key_file(1)]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn of_racing_inits_one_wins() {
    let (_, store) = store_on(Arc::new(InMemory::new()));
    let tries = (0..16).map(|i| {
        let store = store.clone();
        tokio::spawn(async move {
            Repository::init(store, init_options(Some(key_file(i)))).await.map(|repo| (i, repo))
        })
    });
    let mut won = Vec::new();
    for result in futures::future::join_all(tries).await {
        match result.unwrap() {
            Ok(winner) => won.push(winner),
            Err(e) => assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}"),
        }
    }
    let [(key, repo)] = won.as_slice() else { panic!("{} winners", won.len()) };
    let again = Repository::open(store, &[key_file(*key)]).await.unwrap();
    assert_eq!(again.id(), repo.id());
}

#[tokio::test]
async fn a_changed_format_is_refused() {
    let (repo, _, _) = memory_repository().await;
    let store = repo.store();
    let bytes = store.get("format").await.unwrap();
    let open = async |at: usize, xor: u8| {
        let mut changed = bytes.to_vec();
        changed[at] ^= xor;
        store.put("format", changed).await.unwrap();
        Repository::open(store.clone(), &[key_file(1)]).await.unwrap_err()
    };
    store.delete("format-copy").await.unwrap();
    // a flipped version is no newer one: nothing vouches for it
    assert_eq!(open(8, 2).await.kind(), ErrorKind::Corrupt);
    assert_eq!(open(10, 2).await.kind(), ErrorKind::Corrupt);
    assert_eq!(open(bytes.len() - 1, 1).await.kind(), ErrorKind::Corrupt);
    let at = bytes.windows(4).position(|w| w == b"test").unwrap();
    assert_eq!(open(at, 1).await.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn the_probe_for_create_once() {
    let (repo, faulty, _) = memory_repository().await;
    assert_eq!(repo.probe_create_once().await.unwrap(), CreateOnce::Holds);
    faulty.fault("create format", Fault::Denied);
    assert_eq!(repo.probe_create_once().await.unwrap(), CreateOnce::Unknown);
    faulty.ignore_create_once();
    assert_eq!(repo.probe_create_once().await.unwrap(), CreateOnce::Ignored);
}

#[tokio::test]
async fn backups_are_listed_without_fences_and_forgotten_ones() {
    let (repo, _, _) = memory_repository().await;
    for (v, id, content) in [("b", "b1", 3), ("a", "a2", 2), ("a", "a1", 1), ("a", "a3", 9)] {
        put_manifest(&repo, &manifest(v, id, content)).await;
    }
    put_fence(&repo, &manifest("a", "a4", 5)).await;
    repo.store().put("backups/a/not-a-manifest", "x").await.unwrap();
    repo.forget(&manifest("a", "a3", 9).name(), "test").await.unwrap();
    repo.forget(&manifest("a", "a3", 9).name(), "again").await.unwrap();
    for absent in [manifest("a", "none", 1), manifest("a", "a4", 5)] {
        let e = repo.forget(&absent.name(), "test").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    }

    let ids = async |v: Option<&str>| {
        let (backups, problems) = repo.list_backups(v.map(volume).as_ref()).await.unwrap();
        assert!(problems.is_empty());
        backups.iter().map(|b| b.manifest.backup_id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(None).await, ["a1", "a2", "b1"]);
    assert_eq!(ids(Some("a")).await, ["a1", "a2"]);
    assert_eq!(ids(Some("none")).await, Vec::<String>::new());
}

/// Backups, and what is forgotten, are listed beside each other.
#[tokio::test]
async fn an_attempt_that_is_replaced_meanwhile_is_found() {
    let (repo, faulty, _) = memory_repository().await;
    let old = manifest("v", "b", 1);
    let new = Manifest { attempt: old.attempt + 1, ..old.clone() };
    put_manifest(&repo, &old).await;
    let (listed, was_listed) = tokio::sync::oneshot::channel();
    faulty.after("list backups/v", |_| Box::pin(async move { listed.send(()).unwrap() }));
    let (other, replacing) = (Arc::clone(&repo), new.clone());
    let replace = async move {
        was_listed.await.unwrap();
        put_manifest(&other, &replacing).await;
        other.forget(&old.name(), "test").await.unwrap();
    };
    faulty.before("list forgotten/v", |_| Box::pin(replace));
    let found = repo.find_backup("v@b").await.unwrap();
    assert_eq!(found.name(), new.name());
}

/// A repair replaces the attempt that is held; whoever holds it goes on with the new one.
#[tokio::test]
async fn a_hold_is_of_all_attempts_of_its_backup_and_of_no_other() {
    let (repo, _, _) = memory_repository().await;
    let old = manifest("v", "b", 1);
    put_manifest(&repo, &old).await;
    let id = LeaseId::random();
    let take = |name: AttemptName| {
        let repo = Arc::clone(&repo);
        async move { repo.take_hold(id, &name, ("test".into(), "here".into())).await }
    };
    assert_eq!(take(old.name()).await.unwrap(), TakenHold::Now);
    assert_eq!(take(old.name()).await.unwrap(), TakenHold::Before);
    let new = Manifest { attempt: old.attempt + 1, ..old.clone() };
    put_manifest(&repo, &new).await;
    repo.forget(&old.name(), "repair").await.unwrap();
    // the new one is confirmed anew
    assert_eq!(take(new.name()).await.unwrap(), TakenHold::Now);
    let e = repo.refuse_held(&repo.holds().await.unwrap(), &new.name()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    let e = take(manifest("v", "other", 1).name()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
}

#[tokio::test]
async fn an_unreadable_manifest_does_not_hide_the_others() {
    let (repo, _, _) = memory_repository().await;
    put_manifest(&repo, &manifest("v", "old", 1)).await;
    repo.store().put("backups/v/bad/0", "garbage").await.unwrap();
    let (backups, problems) = repo.list_backups(None).await.unwrap();
    assert_eq!((backups.len(), problems.len()), (1, 1));
    assert!(problems[0].to_string().contains("backups/v/bad/0"), "{}", problems[0]);
    // it was stored later than the one that can be read, so it may be the latest
    let e = repo.find_backup("v@latest").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    assert_eq!(repo.find_backup("old").await.unwrap().backup_id, backup_id("old"));
    assert_eq!(repo.latest_backup_of(&volume("v")).await.unwrap().unwrap().finished, minute(1));

    let ordered = chrono::Utc::now() + chrono::TimeDelta::minutes(1);
    put_manifest(&repo, &Manifest { ordered, ..manifest("v", "new", 2) }).await;
    assert_eq!(repo.find_backup("v@latest").await.unwrap().backup_id, backup_id("new"));
}

#[tokio::test]
async fn backups_are_found_by_name_beginning_and_volume() {
    let (repo, _, _) = memory_repository().await;
    for (v, id, content) in [
        ("v", "abcd1", 1),
        ("v", "abcd2", 3),
        ("v", "abcd", 2),
        ("w@x", "abcd2", 4),
        ("w@x", "q", 5),
    ] {
        put_manifest(&repo, &manifest(v, id, content)).await;
    }
    for (spec, expected) in [
        ("abcd1", Some(1)),
        ("abcd", Some(2)),
        ("v@abcd2", Some(3)),
        ("w@x@abcd", Some(4)),
        ("w@x@latest", Some(5)),
        ("v@latest", Some(3)),
        ("q", Some(5)),
        ("abcd2", None),
    ] {
        match (repo.find_backup(spec).await, expected) {
            (Ok(m), Some(content)) => assert_eq!(m.finished, minute(content), "{spec}"),
            (Err(e), None) => {
                assert_eq!(e.kind(), ErrorKind::Usage, "{spec}: {e}");
                assert!(e.to_string().contains("abcd2 of 2024-10-04"), "{e}");
            }
            (other, _) => panic!("{spec}: {other:?}"),
        }
    }
    for (spec, kind) in [
        ("none", ErrorKind::NotFound),
        ("none@latest", ErrorKind::NotFound),
        ("abc", ErrorKind::NotFound),
        ("", ErrorKind::Usage),
        ("v@", ErrorKind::Usage),
        ("a b", ErrorKind::Usage),
    ] {
        let e = repo.find_backup(spec).await.unwrap_err();
        assert_eq!(e.kind(), kind, "{spec}: {e}");
    }
}

#[tokio::test]
async fn the_backup_of_a_snapshot_is_found_among_many() {
    let (repo, _, _) = memory_repository().await;
    let now = chrono::Utc::now();
    for i in 0..30 {
        let mut m = manifest("v", &format!("b{i}"), i);
        m.ordered = now + chrono::TimeDelta::minutes(i.into());
        m.snapshot.id = Some(format!("snap-{}", i % 10));
        put_manifest(&repo, &m).await;
    }
    let before = repo.store().counts();
    let found = repo.recent(&volume("v"), Some("snap-7"), 1).await.unwrap();
    assert_eq!(found.of_snapshot("snap-7").unwrap().finished, minute(27));
    assert_eq!(found.backups[0].finished, minute(29));
    let gets = repo.store().counts().gets - before.gets;
    assert!(gets <= 9, "{gets} manifests read");
    let found = repo.recent(&volume("v"), Some("snap-x"), 1).await.unwrap();
    assert_eq!((found.of_snapshot("snap-x"), found.backups.len()), (None, 30));
    assert!(found.complete);
    let found = repo.recent(&volume("v"), None, 5).await.unwrap();
    assert_eq!((found.backups.len(), found.complete), (5, false));

    let before = repo.store().counts();
    let latest = repo.latest_backup_of(&volume("v")).await.unwrap().unwrap();
    assert_eq!(latest.finished, minute(29));
    let counts = repo.store().counts();
    assert_eq!((counts.gets - before.gets, counts.lists - before.lists), (1, 2));
}

#[tokio::test]
async fn a_denied_listing_is_not_an_empty_one() {
    let (repo, faulty, _) = memory_repository().await;
    faulty.fault("list backups", Fault::Denied);
    let e = repo.list_backups(None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
}
