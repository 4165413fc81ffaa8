mod plans;

use super::blockers::{record_blockers, still_at_work};
use super::mark::Mark;
use super::plan::{plan_condemned, plan_rewrites, plan_verdict, targets};
use super::*;
use crate::format::gc::{Condemned, CondemnedList, Verdict};
use crate::format::lease::{Lease, LeaseRole};
use crate::format::manifest::ManifestRecord;
use crate::format::names::{
    AttemptName, blockers_key, condemned_key, lease_key, pack_key, stub_key, verdict_key,
};
use crate::format::stub::Stub;
use crate::ids::PackId;
use crate::map::LiveSet;
use crate::testkit::repositories::*;
use crate::units::Location;
use proptest::prelude::*;
use std::collections::HashSet;

fn pack(n: u8) -> PackId {
    PackId::from_bytes([n; 32])
}

fn place(n: u8, entry: u32, index: u16) -> Location {
    Location { pack: pack(n), entry, offset: 64 + entry * 1000, stored_len: 900, index }
}

fn live(places: &[Location]) -> LiveSet {
    let mut live = LiveSet::new(16);
    places.iter().for_each(|at| assert!(live.insert(at).unwrap()));
    live
}

fn moved(from: u8, places: &[((u32, u16), Location)]) -> Stub {
    Stub::new(pack(from), places.to_vec()).unwrap()
}

fn options() -> CollectOptions {
    let lease = LeaseOptions { lease_seconds: 600, tool: "test".into(), host: "here".into() };
    CollectOptions { lease, limits: ReadLimits::default(), exclusive: false }
}

async fn run(repo: &Arc<Repository>) -> Result<Collected> {
    collect(repo, &options(), std::future::pending()).await
}

async fn put_list(repo: &Repository, list: CondemnedList) -> GenerationId {
    let generation = GenerationId::random();
    let key = condemned_key(&generation);
    let bytes = Condemned::List(list).encode(repo.keys(), repo.id(), &key).unwrap();
    repo.store().put(&key, bytes).await.unwrap();
    generation
}

async fn put_stub(repo: &Repository, stub: &Stub) {
    let key = stub_key(stub.pack());
    let bytes = stub.encode(repo.keys(), repo.id(), &key).unwrap();
    repo.store().put(&key, bytes).await.unwrap();
}

#[tokio::test]
async fn what_is_live_is_live_where_it_went_along_chains_of_every_kind() {
    let (repo, _, _) = memory_repository().await;
    // 1 → 2 by a stub, 2 → 3 by a list that nobody has decided, 3 → 4 by a stub; 7 → 8 of something
    // dead
    put_stub(&repo, &moved(3, &[((2, 0), place(4, 3, 0)), ((2, 1), place(5, 0, 0))])).await;
    let rewritten = vec![moved(2, &[((1, 0), place(3, 2, 0))])];
    put_list(&repo, CondemnedList { rewritten, ..CondemnedList::default() }).await;
    put_stub(&repo, &moved(1, &[((0, 0), place(2, 1, 0))])).await;
    put_stub(&repo, &moved(7, &[((0, 0), place(8, 0, 0))])).await;
    let mut mark = Mark::new(&repo);
    mark.live.insert(&place(1, 0, 0)).unwrap();
    mark.update(&repo, &HashSet::new(), ReadLimits::default()).await.unwrap();
    for (n, alive) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 0), (7, 0), (8, 0)] {
        let chunks = mark.live.pack(&pack(n)).map_or(0, |p| p.live_chunks());
        assert_eq!(chunks, alive, "pack {n}");
    }
    assert_eq!(mark.undecided, HashSet::from([pack(2)]));
    assert_eq!(mark.stubs.len(), 3);
}

#[tokio::test]
async fn what_has_moved_keeps_nobody_from_moving_more() {
    let (repo, _, _) = memory_repository().await;
    let rewritten = vec![moved(2, &[((1, 0), place(3, 2, 0))])];
    let list = CondemnedList { rewritten, ..CondemnedList::default() };
    let generation = put_list(&repo, list).await;
    let marked = async || {
        let mut mark = Mark::new(&repo);
        mark.update(&repo, &HashSet::new(), ReadLimits::default()).await.unwrap();
        (mark.waits, mark.moving, mark.undecided)
    };
    let condemned = HashSet::from([pack(2)]);
    assert_eq!(marked().await, (true, true, condemned.clone()));
    // its list stays: the store keeps something of it
    let key = verdict_key(&generation);
    let verdict = Verdict { dead: vec![pack(2)] }.encode(repo.keys(), repo.id(), &key).unwrap();
    repo.store().put(&key, verdict).await.unwrap();
    assert_eq!(marked().await, (false, false, condemned));
}

#[tokio::test]
async fn a_rewritten_pack_goes_and_leaves_a_stub_which_goes_when_nothing_leads_to_it() {
    let (repo, _, _) = memory_repository().await;
    for n in [1, 8] {
        repo.store().put(&pack_key(&pack(n)), "a pack").await.unwrap();
    }
    let rewritten = vec![moved(1, &[((0, 0), place(8, 0, 0))])];
    let generation = put_list(&repo, CondemnedList { rewritten, ..CondemnedList::default() }).await;
    // the sweep of that list; what it leaves is garbage, as no backup refers to it
    let mut done = Collected::default();
    let swept = sweep::sweep(&repo, &options(), &generation, None, &mut done).await.unwrap();
    assert!(matches!(swept, Swept::Done) && done.deleted_packs == 1, "{done:?}");
    assert!(repo.store().head(&stub_key(&pack(1))).await.unwrap().is_some());
    assert!(repo.store().head(&verdict_key(&generation)).await.unwrap().is_some());
    assert!(repo.store().head(&condemned_key(&generation)).await.unwrap().is_none());
    assert!(repo.store().head(&blockers_key(&generation)).await.unwrap().is_none());
    let done = run(&repo).await.unwrap();
    assert_eq!((done.condemned_packs, done.deleted_packs), (2, 1), "{done:?}");
    assert!(repo.store().list("moved").await.unwrap().is_empty());
    assert!(repo.store().list("packs").await.unwrap().is_empty());
}

#[tokio::test]
async fn blockers_are_written_once_and_leave_out_the_collector_itself() {
    let (repo, _, _) = memory_repository().await;
    let lease = |role| options().lease.lease(role);
    let generation = GenerationId::random();
    let own = lease(LeaseRole::Collector { generation });
    let name = manifest("v", "a", 1).name();
    let writer = lease(LeaseRole::Writer { name: name.clone(), parent: None });
    let reader = lease(LeaseRole::Reader { name: name.clone() });
    for lease in [&own, &writer, &reader] {
        put_lease(&repo, lease).await;
    }
    let first = record_blockers(&repo, &generation, Some(own.lease_id)).await.unwrap();
    let mut expected = vec![(writer.lease_id, Some(name.manifest_key())), (reader.lease_id, None)];
    expected.sort();
    let mut found: Vec<_> =
        first.leases.iter().map(|b| (b.lease_id, b.fence_key.clone())).collect();
    found.sort();
    assert_eq!(found, expected);
    // another sweeper takes over what stands there, whoever is at work by now
    repo.store().delete(&lease_key(&writer.lease_id)).await.unwrap();
    let again = record_blockers(&repo, &generation, None).await.unwrap();
    assert_eq!(again.leases.len(), 2);
    // the writer has ended, the reader has not
    let at_work = still_at_work(&repo, &again, &options()).await.unwrap();
    assert!(at_work.len() == 1 && at_work[0].contains("reader"), "{at_work:?}");
}

async fn put_lease(repo: &Repository, lease: &Lease) {
    let key = lease_key(&lease.lease_id);
    let bytes = lease.encode(repo.keys(), repo.id(), &key).unwrap();
    repo.store().put(&key, bytes).await.unwrap();
}

#[tokio::test]
async fn a_fence_never_replaces_a_backup() {
    let (repo, _, _) = memory_repository().await;
    let made = manifest("v", "a", 1);
    put_manifest(&repo, &made).await;
    let mut lease = options().lease.lease(LeaseRole::Writer { name: made.name(), parent: None });
    lease.lease_seconds = 0;
    put_lease(&repo, &lease).await;
    let blockers = record_blockers(&repo, &GenerationId::random(), None).await.unwrap();
    // a lease of no seconds has run out as soon as the store's clock has moved
    while !still_at_work(&repo, &blockers, &options()).await.unwrap().is_empty() {}
    assert!(repo.store().list("leases").await.unwrap().is_empty());
    let there = repo.read_manifest(&made.name()).await.unwrap();
    assert!(matches!(there, Some(ManifestRecord::Backup(_))), "{there:?}");
}

#[tokio::test]
async fn a_fenced_collection_stops() {
    let (repo, store, _) = memory_repository().await;
    repo.store().put(&pack_key(&pack(1)), "a pack").await.unwrap();
    // somebody fences its list right before it is created
    store.before("create gc/", {
        let repo = Arc::clone(&repo);
        move |inner| {
            Box::pin(async move {
                let leases = inner.list_with_delimiter(Some(&"leases".into())).await.unwrap();
                let id = leases.objects[0].location.filename().unwrap().to_owned();
                let key = format!("leases/{id}");
                let bytes = inner.get_opts(&key.as_str().into(), Default::default()).await.unwrap();
                let bytes = bytes.bytes().await.unwrap();
                let lease = Lease::decode(repo.keys(), repo.id(), &key, &bytes).unwrap();
                let LeaseRole::Collector { generation } = lease.role else { panic!("{lease:?}") };
                let key = condemned_key(&generation);
                let fence = Condemned::Fence.encode(repo.keys(), repo.id(), &key).unwrap();
                let put = object_store::PutOptions::default();
                inner.put_opts(&key.as_str().into(), fence.into(), put).await.unwrap();
            })
        }
    });
    let e = run(&repo).await.expect_err("fenced");
    assert_eq!(e.kind(), ErrorKind::Fenced);
    assert_eq!(repo.store().list("packs").await.unwrap().len(), 1);
    assert!(repo.store().list("leases").await.unwrap().is_empty());
    // the fence stays, and the next one collects
    let done = run(&repo).await.unwrap();
    assert_eq!(done.deleted_packs, 1);
}

#[tokio::test]
async fn a_preview_writes_nothing_and_a_request_to_stop_gives_the_lease_back() {
    let (repo, store, _) = memory_repository().await;
    repo.store().put(&pack_key(&pack(1)), "a pack").await.unwrap();
    store.take_log();
    let found = preview_collection(&repo, &options()).await.unwrap();
    assert_eq!((found.condemned_packs, found.condemned_bytes), (1, 6));
    let changes = |log: &[String]| {
        let change = |l: &&String| !["get ", "head ", "list "].iter().any(|r| l.starts_with(r));
        log.iter().filter(change).count()
    };
    assert_eq!(changes(&store.take_log()), 0);

    // both may be ready at once, and either may be taken: again until the stop was
    let mut stopped = false;
    for _ in 0..200 {
        repo.store().put(&pack_key(&pack(1)), "a pack").await.unwrap();
        if let Err(e) = collect(&repo, &options(), std::future::ready(())).await {
            assert_eq!(e.kind(), ErrorKind::Cancelled);
            stopped = true;
            break;
        }
    }
    assert!(stopped, "a request to stop was never heard");
    assert!(repo.store().list("leases").await.unwrap().is_empty());
}

async fn fences_first(role: LeaseRole, key: &str) {
    let (repo, store, _) = memory_repository().await;
    let mut lease = options().lease.lease(role);
    lease.lease_seconds = 0;
    put_lease(&repo, &lease).await;
    let blockers = record_blockers(&repo, &GenerationId::random(), None).await.unwrap();
    store.take_log();
    // a lease of no seconds has run out as soon as the store's clock has moved
    while !still_at_work(&repo, &blockers, &options()).await.unwrap().is_empty() {}
    let log = store.take_log();
    let at =
        |what: String| log.iter().position(|l| *l == what).unwrap_or_else(|| panic!("{log:?}"));
    let fenced = at(format!("create {key}"));
    let removed = at(format!("delete {}", lease_key(&lease.lease_id)));
    assert!(fenced < removed, "{log:?}");
}

#[tokio::test]
async fn what_the_dead_may_still_create_is_taken_before_their_lease_goes() {
    let name = manifest("v", "a", 1).name();
    let key = name.manifest_key();
    fences_first(LeaseRole::Writer { name, parent: None }, &key).await;
    let generation = GenerationId::random();
    fences_first(LeaseRole::Collector { generation }, &condemned_key(&generation)).await;
}

#[tokio::test]
async fn a_sweeper_deletes_by_the_verdict_of_who_was_first() {
    let (repo, store, _) = memory_repository().await;
    for n in [1, 2] {
        repo.store().put(&pack_key(&pack(n)), "a pack").await.unwrap();
    }
    let dead = vec![pack(1), pack(2)];
    let generation = put_list(&repo, CondemnedList { dead, ..CondemnedList::default() }).await;
    // for this one both are dead; one that marked before has seen that 2 is not
    let key = verdict_key(&generation);
    let first = Verdict { dead: vec![pack(1)] }.encode(repo.keys(), repo.id(), &key).unwrap();
    store.before(&format!("create {key}"), {
        let key = key.clone();
        move |inner| {
            Box::pin(async move {
                let put = object_store::PutOptions::default();
                inner.put_opts(&key.as_str().into(), first.into(), put).await.unwrap();
            })
        }
    });
    let mut done = Collected::default();
    let swept = sweep::sweep(&repo, &options(), &generation, None, &mut done).await.unwrap();
    assert!(matches!(swept, Swept::Done), "{done:?}");
    assert_eq!((done.deleted_packs, done.rescued_packs), (1, 1), "{done:?}");
    assert!(repo.store().head(&pack_key(&pack(1))).await.unwrap().is_none());
    assert!(repo.store().head(&pack_key(&pack(2))).await.unwrap().is_some());
}

/// A backup whose only page is not there.
async fn put_lost(repo: &Repository, id: &str, content: u8) -> AttemptName {
    let lost = manifest("v", id, content);
    put_manifest(repo, &lost).await;
    lost.name()
}

#[tokio::test]
async fn a_generation_that_met_a_lost_backup_is_given_up_once_that_is_forgotten() {
    let (repo, _, _) = memory_repository().await;
    // as of the run of a forgotten backup that committed late: no list records it
    let name = put_lost(&repo, "late", 7).await;
    let list = CondemnedList { dead: vec![pack(1)], ..CondemnedList::default() };
    repo.store().put(&pack_key(&pack(1)), "a pack").await.unwrap();
    let generation = put_list(&repo, list).await;
    let e = run(&repo).await.expect_err("it cannot be read");
    assert_eq!(e.kind(), ErrorKind::Missing, "{e}");
    // the sweep and the new collection have both met it, and say so once what to do
    assert_eq!(e.to_string().matches("sweep collection").count(), 1, "{e}");
    assert_eq!(e.to_string().matches("backup v@late").count(), 2, "{e}");
    assert_eq!(e.to_string().matches("forget the backup").count(), 1, "{e}");
    assert!(e.hint_text().is_some_and(|hint| hint.contains("forget the backup")), "{e}");
    assert!(repo.store().head(&verdict_key(&generation)).await.unwrap().is_none());

    repo.forget(&name, "test").await.unwrap();
    let done = run(&repo).await.unwrap();
    // left to the next one, which the same run has made
    assert_eq!((done.rescued_packs, done.condemned_packs, done.deleted_packs), (0, 1, 1));
    let bytes = repo.store().get(&verdict_key(&generation)).await.unwrap();
    let key = verdict_key(&generation);
    let verdict = Verdict::decode(repo.keys(), repo.id(), &key, &bytes).unwrap();
    assert!(verdict.dead.is_empty(), "{verdict:?}");
    assert!(repo.store().head(&name.manifest_key()).await.unwrap().is_none());
    assert!(repo.store().list("packs").await.unwrap().is_empty());
}

#[tokio::test]
async fn who_decided_before_a_generation_is_given_up_is_right() {
    let (repo, store, _) = memory_repository().await;
    let name = put_lost(&repo, "late", 7).await;
    repo.forget(&name, "test").await.unwrap();
    let list = CondemnedList { dead: vec![pack(1)], ..CondemnedList::default() };
    repo.store().put(&pack_key(&pack(1)), "a pack").await.unwrap();
    let generation = put_list(&repo, list).await;
    let key = verdict_key(&generation);
    let first = Verdict { dead: vec![pack(1)] }.encode(repo.keys(), repo.id(), &key).unwrap();
    store.before(&format!("create {key}"), {
        move |inner| {
            Box::pin(async move {
                let put = object_store::PutOptions::default();
                inner.put_opts(&key.as_str().into(), first.into(), put).await.unwrap();
            })
        }
    });
    let mut done = Collected::default();
    sweep::sweep(&repo, &options(), &generation, None, &mut done).await.unwrap();
    assert_eq!((done.deleted_packs, done.rescued_packs), (1, 0), "{done:?}");
}

#[tokio::test]
async fn a_sweep_that_fails_stops_neither_another_nor_what_is_condemned_now() {
    let (repo, _, _) = memory_repository().await;
    for n in [1, 2] {
        repo.store().put(&pack_key(&pack(n)), "a pack").await.unwrap();
    }
    // two verdicts that nobody can read, and between them, or not, a list that can be swept
    let mut bad = Vec::new();
    for n in [8, 9] {
        let list = CondemnedList { dead: vec![pack(n)], ..CondemnedList::default() };
        let generation = put_list(&repo, list).await;
        repo.store().put(&verdict_key(&generation), "rubbish").await.unwrap();
        bad.push(generation);
    }
    let list = CondemnedList { dead: vec![pack(1)], ..CondemnedList::default() };
    let good = put_list(&repo, list).await;
    let e = run(&repo).await.expect_err("verdicts that cannot be read");
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    for generation in bad {
        assert!(e.to_string().contains(&generation.to_string()), "{e}");
    }
    assert!(repo.store().head(&condemned_key(&good)).await.unwrap().is_none());
    // 2 was condemned by this run, and is gone too
    assert!(repo.store().list("packs").await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_forgotten_and_collected_beside_a_mark_does_not_look_lost() {
    let (repo, store, _) = memory_repository().await;
    let name = put_lost(&repo, "a", 7).await;
    // right after the forgotten set was listed: from here on it looks as if its packs were lost
    store.after("list forgotten", {
        let repo = Arc::clone(&repo);
        let name = name.clone();
        move |_| Box::pin(async move { repo.forget(&name, "test").await.unwrap() })
    });
    let done = run(&repo).await.unwrap();
    assert_eq!((done.forgotten, done.deleted_manifests), (1, 1), "{done:?}");

    // and of one whose manifest another collection removes before this one asks
    let name = put_lost(&repo, "b", 8).await;
    let mut mark = Mark::new(&repo);
    store.after("get packs/", {
        let repo = Arc::clone(&repo);
        let key = name.manifest_key();
        move |_| Box::pin(async move { repo.store().delete(&key).await.unwrap() })
    });
    mark.update(&repo, &HashSet::new(), ReadLimits::default()).await.unwrap();
    assert!(mark.live.pack(&pack(8)).is_none());
}

#[tokio::test]
async fn an_unreadable_condemned_list_says_what_to_do() {
    let (repo, _, _) = memory_repository().await;
    let key = condemned_key(&GenerationId::random());
    repo.store().put(&key, "rubbish").await.unwrap();
    let collecting = run(&repo).await.map(|_| ()).unwrap_err();
    let writing = crate::repository::condemned::read_condemned(&repo).await.unwrap_err();
    for e in [collecting, writing] {
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        let hint = e.hint_text().unwrap_or_default();
        assert!(hint.contains(&format!("delete {key} once no backup")), "{e}");
    }
    repo.store().delete(&key).await.unwrap();
    run(&repo).await.unwrap();
}
