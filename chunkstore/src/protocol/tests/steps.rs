//! The steps in their order, and what each look finds.

use super::*;

#[tokio::test]
async fn a_writer_takes_its_steps_in_order_with_few_requests() {
    let (repo, faulty, _) = memory_repository().await;
    let parent = manifest("v", "p", 1);
    put_manifest(&repo, &parent).await;
    let old = put_pack(&repo, 1).await;
    faulty.take_log();
    let before = repo.store().counts();

    let mut writer = Writer::begin(&repo, options("b", vec![parent.clone()])).await.unwrap();
    assert_eq!(writer.parent(), Some(&parent));
    assert_eq!(writer.list_segments().await.unwrap(), []);
    let own = put_pack(&repo, 2).await;
    let made = with_parent(manifest("v", "b", 2), &parent);
    expect_done(writer.commit(made.clone(), &[own], &[old, old]).await.unwrap(), &made);
    assert!(writer.finish().await.is_empty());

    let short = |line: &String| line.split_inclusive('/').take(2).collect::<String>();
    let log: Vec<_> = faulty.take_log().iter().map(short).collect();
    let at = |start: &str| {
        let found = log.iter().position(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no {start:?} in {log:#?}"))
    };
    let order = [
        at("create leases/"),
        at("list features"),
        at("head backups/v"),
        at("list gc"),
        at("list dedup"),
        at("put packs/"),
        at("head packs/"),
        at("create backups/"),
        at("delete leases/"),
    ];
    assert!(order.is_sorted(), "{log:#?}");
    assert!(at("create leases/") < at("head forgotten/v"), "{log:#?}");

    let after = repo.store().counts();
    let (creates, deletes) = (after.creates - before.creates, after.deletes - before.deletes);
    println!("one run with a parent, one own and one reused pack: {log:#?}");
    assert_eq!((creates, deletes), (3, 1), "the lease twice, the manifest");
    assert_eq!(after.gets, before.gets);
    assert_eq!(
        after.lists - before.lists,
        7,
        "attempts, forgotten, gc, damaged, segments, features twice"
    );
    assert_eq!(after.heads - before.heads, 5, "parent twice, one reused pack, lease, forgotten");
    assert_eq!(after.total() - before.total(), 17, "with the put of the pack");
}

#[tokio::test]
async fn a_parent_forgotten_before_the_lease_was_there_is_passed_over() {
    let (repo, faulty, _) = memory_repository().await;
    let parents: Vec<_> = (1..=3).rev().map(|i| manifest("v", &format!("p{i}"), i)).collect();
    for parent in &parents {
        put_manifest(&repo, parent).await;
    }
    // somebody forgets the newest while this writer takes its lease; the next one is gone
    // altogether
    let (other, newest) = (Arc::clone(&repo), parents[0].clone());
    faulty.before("create leases", move |_| {
        Box::pin(async move {
            other.forget(&newest.name(), "other").await.unwrap();
        })
    });
    repo.store().delete(&parents[1].object_key()).await.unwrap();
    let writer = Writer::begin(&repo, options("b", parents.clone())).await.unwrap();
    assert_eq!(writer.parent(), Some(&parents[2]));

    let parents = parents[..2].to_vec();
    let writer = Writer::begin(&repo, options("c", parents)).await.unwrap();
    assert_eq!(writer.parent(), None);
}

#[tokio::test]
async fn a_parent_of_another_volume_is_our_mistake() {
    let (repo, _, _) = memory_repository().await;
    let parent = manifest("w", "p", 1);
    let e = Writer::begin(&repo, options("b", vec![parent])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    assert!(leases(&repo).await.is_empty(), "a failed begin leaves no lease");
}

#[tokio::test]
async fn condemned_and_missing_packs_are_stored_again() {
    let (repo, _, _) = memory_repository().await;
    let (dead, gone, good) =
        (put_pack(&repo, 1).await, PackId::from_bytes([2; 32]), put_pack(&repo, 3).await);
    condemn(&repo, vec![dead]).await;
    let mut writer = begin(&repo, "b").await;
    assert!(writer.condemned().contains(&dead) && writer.condemned().len() == 1);
    let made = manifest("v", "b", 1);
    let commit = writer.commit(made.clone(), &[], &[good, gone, dead]).await.unwrap();
    assert_eq!(commit, Commit::StoreAgain { missing: vec![dead, gone] });
    let commit = writer.commit(made.clone(), &[], &[good]).await.unwrap();
    expect_done(commit, &made);
}

#[tokio::test]
async fn an_unreadable_condemned_list_stops_the_writer() {
    let (repo, _, _) = memory_repository().await;
    repo.store().put(&condemned_key(&GenerationId::random()), "garbage").await.unwrap();
    let e = Writer::begin(&repo, options("b", Vec::new())).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    assert!(leases(&repo).await.is_empty());
}

#[tokio::test]
async fn a_condemned_list_that_goes_away_meanwhile_is_passed_over() {
    let (repo, faulty, _) = memory_repository().await;
    condemn(&repo, vec![PackId::from_bytes([1; 32])]).await;
    let other = Arc::clone(&repo);
    faulty.before("get gc", move |_| {
        Box::pin(async move {
            for l in other.store().list("gc").await.unwrap() {
                other.store().delete(&l.key).await.unwrap();
            }
        })
    });
    assert!(begin(&repo, "b").await.condemned().is_empty());
}

#[tokio::test]
async fn damaged_entries_are_known_and_a_bad_record_of_them_is_a_warning() {
    use crate::format::damaged::Damaged;
    use crate::format::names::damaged_key;
    use crate::ids::DamageId;
    let (repo, _, _) = memory_repository().await;
    let (whole, part) = (PackId::from_bytes([1; 32]), PackId::from_bytes([2; 32]));
    for entries in [vec![(whole, Some(7)), (part, Some(1))], vec![(whole, None), (part, Some(3))]] {
        let key = damaged_key(&DamageId::random());
        let record = Damaged { time: minute(0), entries };
        let bytes = record.encode(repo.keys(), repo.id(), &key).unwrap();
        repo.store().put(&key, bytes).await.unwrap();
    }
    repo.store().put(&damaged_key(&DamageId::random()), "garbage").await.unwrap();
    let writer = begin(&repo, "b").await;
    let damaged = writer.damaged();
    assert!(
        damaged.contains(&whole, 99) && damaged.contains(&part, 1) && damaged.contains(&part, 3)
    );
    assert!(!damaged.contains(&part, 2) && !damaged.contains(&PackId::from_bytes([3; 32]), 1));
    let warnings = writer.finish().await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[tokio::test]
async fn the_same_backup_twice_is_one() {
    let (repo, _, _) = memory_repository().await;
    let made = manifest("v", "b", 1);
    let mut first = begin(&repo, "b").await;
    let mut second = begin(&repo, "b").await;
    let made = expect_done(first.commit(made.clone(), &[], &[]).await.unwrap(), &made);
    let mut late = made.clone();
    late.finished = minute(77);
    let already = Commit::AlreadyDone(Box::new(made.clone()));
    assert_eq!(second.commit(late.clone(), &[], &[]).await.unwrap(), already);
    let mut third = begin(&repo, "b").await;
    assert_eq!(third.existing(), Some(&made));
    assert_eq!(third.commit(late, &[], &[]).await.unwrap(), already);

    let mut other = begin(&repo, "b").await;
    let e = other.commit(manifest("v", "b", 2), &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    let mut longer = made.clone();
    longer.size_bytes += 512;
    let mut other = begin(&repo, "b").await;
    let e = other.commit(longer, &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    assert_eq!(ids(&repo).await.len(), 1);
}

#[tokio::test]
async fn of_sixteen_racing_writers_one_commits() {
    let (repo, _, _) = memory_repository().await;
    for same in [true, false] {
        let id = format!("same-{same}");
        let runs = (0..16).map(|i| {
            let (repo, id) = (Arc::clone(&repo), id.clone());
            tokio::spawn(async move {
                let mut writer = begin(&repo, &id).await;
                let made = manifest("v", &id, if same { 1 } else { i });
                let result = writer.commit(made, &[], &[]).await;
                writer.finish().await;
                result
            })
        });
        let (mut done, mut already, mut refused) = (0, 0, 0);
        for result in futures::future::join_all(runs).await {
            match result.unwrap() {
                Ok(Commit::Done(_)) => done += 1,
                Ok(Commit::AlreadyDone(_)) => already += 1,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((done, already + refused), (1, 15));
        assert_eq!(if same { refused } else { already }, 0);
    }
    assert!(leases(&repo).await.is_empty());
}

#[tokio::test]
async fn a_forgotten_backup_is_not_made_again() {
    let (repo, faulty, _) = memory_repository().await;
    let made = manifest("v", "b", 1);
    let mut late = begin(&repo, "b").await;
    let mut first = begin(&repo, "b").await;
    first.commit(made.clone(), &[], &[]).await.unwrap();
    repo.forget(&made.name(), "test").await.unwrap();
    let e = late.commit(made.clone(), &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Forgotten, "{e}");
    // and when the sweep has removed the manifest: the record is for ever
    repo.store().delete(&made.object_key()).await.unwrap();
    let e = late.commit(made.clone(), &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Forgotten, "{e}");
    let e = Writer::begin(&repo, options("b", Vec::new())).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Forgotten, "{e}");
    assert_eq!(ids(&repo).await, Vec::<String>::new());

    // forgotten between the creation and the last look
    let made = manifest("v", "c", 1);
    let mut writer = begin(&repo, "c").await;
    let (other, name) = (Arc::clone(&repo), made.clone());
    faulty.after("create backups", move |_| {
        Box::pin(async move {
            other.forget(&name.name(), "other").await.unwrap();
        })
    });
    let e = writer.commit(made, &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Forgotten, "{e}");
}

#[tokio::test]
async fn a_lost_answer_to_the_commit_is_found_out() {
    for (fault, expected) in [
        (Fault::ExistedAfterSuccess, true),
        (Fault::LostAfter, true),
        (Fault::Conflict, true),
        (Fault::LostBefore, true),
        (Fault::Denied, false),
    ] {
        let (repo, faulty, _) = memory_repository().await;
        let mut writer = begin(&repo, "b").await;
        faulty.fault("create backups", fault);
        let made = manifest("v", "b", 1);
        let result = writer.commit(made.clone(), &[], &[]).await;
        assert_eq!(result.is_ok(), expected, "{fault:?}: {result:?}");
        if let Ok(commit) = result {
            expect_done(commit, &made);
        }
    }
}
