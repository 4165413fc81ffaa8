//! Leases: heartbeats, ends, and what may go wrong with them without harm.

use super::*;
use crate::error::Error;
use crate::format::lease::{Checkpoint, Lease, LeaseRole};
use crate::protocol::lease::{LeaseKeeper, Removal};
use crate::units::ChunkNo;
use chrono::Utc;
use futures::FutureExt;
use std::time::Duration;

fn short_lease() -> LeaseOptions {
    LeaseOptions { lease_seconds: 1, ..lease_options() }
}

async fn read_lease(repo: &Repository, id: &LeaseId) -> Option<Lease> {
    let key = lease_key(id);
    let bytes = repo.store().get_opt(&key).await.unwrap()?;
    Some(Lease::decode(repo.keys(), repo.id(), &key, &bytes).unwrap())
}

async fn wait_for(mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..200 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it did not happen within ten seconds");
}

#[tokio::test]
async fn a_lease_says_who_is_at_work() {
    let (repo, _, _) = memory_repository().await;
    let parent = manifest("v", "p", 1);
    put_manifest(&repo, &parent).await;
    let writer = Writer::begin(&repo, options("b", vec![parent.clone()])).await.unwrap();
    let id = leases(&repo).await[0];
    let lease = read_lease(&repo, &id).await.unwrap();
    let name = manifest("v", "b", 1).name();
    assert_eq!(lease.role, LeaseRole::Writer { name, parent: Some(parent.as_parent()) });
    writer.finish().await;

    let reader = Reader::begin(&repo, &parent, Some(lease_options())).await.unwrap();
    let id = leases(&repo).await[0];
    let lease = read_lease(&repo, &id).await.unwrap();
    assert_eq!(lease.role, LeaseRole::Reader { name: parent.name() });
    assert!(reader.finish().await.is_empty());
    assert!(leases(&repo).await.is_empty());
}

#[tokio::test]
async fn heartbeats_go_on_through_failures_and_end_with_the_writer() {
    let (repo, faulty, _) = memory_repository().await;
    let mut options = options("b", Vec::new());
    options.lease = short_lease();
    let writer = Writer::begin(&repo, options).await.unwrap();
    let id = leases(&repo).await[0];
    for fault in [Fault::LostBefore, Fault::Denied, Fault::LostAfter] {
        faulty.fault("put leases", fault);
    }
    let beat = tokio::spawn(writer.heartbeat());
    wait_for(async || read_lease(&repo, &id).await.unwrap().beat >= 5).await;
    writer.finish().await;
    tokio::time::timeout(Duration::from_secs(10), beat).await.unwrap().unwrap();
    assert!(leases(&repo).await.is_empty());

    let writer = begin(&repo, "c").await;
    let beat = tokio::spawn(writer.heartbeat());
    drop(writer);
    tokio::time::timeout(Duration::from_secs(10), beat).await.unwrap().unwrap();
}

/// A run that hangs beats on: by its requests it must not seem to get on.
#[tokio::test]
async fn no_request_of_a_heartbeat_is_movement() {
    let (repo, _, _) = memory_repository().await;
    let parent = manifest("v", "p", 1);
    put_manifest(&repo, &parent).await;
    let writer_options = WriterOptions { lease: short_lease(), ..options("b", Vec::new()) };
    let writer = Writer::begin(&repo, writer_options).await.unwrap();
    let written = leases(&repo).await[0];
    let reader = Reader::begin(&repo, &parent, Some(short_lease())).await.unwrap();
    let read = *leases(&repo).await.iter().find(|id| **id != written).unwrap();
    let (moved, before) = (repo.store().movement(), repo.store().counts());
    let beats = [tokio::spawn(writer.heartbeat()), tokio::spawn(reader.heartbeat())];
    // what this test looks at is none either
    let aside = repo.in_background();
    wait_for(async || read_lease(&aside, &written).await.unwrap().beat >= 2).await;
    // the reader is taken for dead: it takes another lease, and looks whether its backup is there
    aside.store().delete(&lease_key(&read)).await.unwrap();
    wait_for(async || {
        let other = |id: &&LeaseId| ![written, read].contains(*id);
        match leases(&aside).await.iter().find(other) {
            Some(id) => read_lease(&aside, id).await.unwrap().beat >= 1,
            None => false,
        }
    })
    .await;
    assert_eq!(repo.store().movement(), moved);
    let after = repo.store().counts();
    assert!(
        after.heads > before.heads && after.puts > before.puts && after.creates > before.creates
    );
    // and those of the run are
    reader.check_held().await.unwrap_err();
    assert!(repo.store().movement() > moved);
    writer.finish().await;
    reader.finish().await;
    for beat in beats {
        beat.await.unwrap();
    }
}

#[tokio::test]
async fn a_heartbeat_does_not_bring_back_a_removed_lease_and_follows_a_new_one() {
    let (repo, _, _) = memory_repository().await;
    let mut options = options("b", Vec::new());
    options.lease = short_lease();
    let mut writer = Writer::begin(&repo, options).await.unwrap();
    let first = leases(&repo).await[0];
    let beat = tokio::spawn(writer.heartbeat());
    let made = manifest("v", "b", 1);
    fence(&repo, &made).await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(leases(&repo).await.is_empty());

    assert!(matches!(writer.commit(made, &[], &[]).await.unwrap(), Commit::Done(_)));
    let second = leases(&repo).await[0];
    assert_ne!(first, second);
    wait_for(async || read_lease(&repo, &second).await.unwrap().beat >= 2).await;
    writer.finish().await;
    beat.await.unwrap();
}

#[tokio::test]
async fn who_was_taken_for_dead_finds_out_at_its_next_beat_and_begins_anew() {
    let (repo, _, _) = memory_repository().await;
    let mut options = options("b", Vec::new());
    options.lease = short_lease();
    let mut writer = Writer::begin(&repo, options).await.unwrap();
    let first = leases(&repo).await[0];
    let beat = tokio::spawn(writer.heartbeat());
    let dead = tokio::spawn(writer.taken_for_dead());
    fence(&repo, &manifest("v", "b", 1)).await;
    let e = tokio::time::timeout(Duration::from_secs(10), dead).await.unwrap().unwrap();
    assert_eq!(e.kind(), ErrorKind::Fenced, "{e}");

    let reason = writer.begin_anew().await.unwrap();
    assert!(reason.contains("taken for dead"), "{reason}");
    assert_eq!(writer.attempt(), 1);
    let second = leases(&repo).await[0];
    assert_ne!(first, second);
    assert!(writer.taken_for_dead().now_or_never().is_none(), "it has a lease again");
    let Commit::Done(made) = writer.commit(manifest("v", "b", 1), &[], &[]).await.unwrap() else {
        panic!("nothing is in its way");
    };
    assert_eq!(made.attempt, 1);
    writer.finish().await;
    beat.await.unwrap();
}

#[tokio::test]
async fn who_was_taken_for_dead_finds_out_although_the_store_does_not_answer_at_first() {
    let (repo, faulty, _) = memory_repository().await;
    let mut options = options("b", Vec::new());
    options.lease = short_lease();
    let writer = Writer::begin(&repo, options).await.unwrap();
    let beat = tokio::spawn(writer.heartbeat());
    let dead = tokio::spawn(writer.taken_for_dead());
    for _ in 0..3 {
        faulty.fault("get backups", Fault::Denied);
    }
    fence(&repo, &manifest("v", "b", 1)).await;
    let e = tokio::time::timeout(Duration::from_secs(10), dead).await.unwrap().unwrap();
    assert_eq!(e.kind(), ErrorKind::Fenced, "{e}");
    writer.finish().await;
    beat.await.unwrap();
}

#[tokio::test]
async fn a_lease_that_a_fellow_has_removed_after_its_commit_is_no_death() {
    let (repo, _, _) = memory_repository().await;
    let mut options = options("b", Vec::new());
    options.lease = short_lease();
    let mut writer = Writer::begin(&repo, options).await.unwrap();
    put_manifest(&repo, &manifest("v", "b", 1)).await;
    repo.store().delete(&lease_key(&leases(&repo).await[0])).await.unwrap();
    let beat = tokio::spawn(writer.heartbeat());
    let dead = tokio::time::timeout(Duration::from_secs(2), writer.taken_for_dead()).await;
    assert!(dead.is_err(), "{dead:?}");
    let done = writer.commit(manifest("v", "b", 1), &[], &[]).await.unwrap();
    assert!(matches!(done, Commit::AlreadyDone(_)), "{done:?}");
    writer.finish().await;
    beat.await.unwrap();
}

#[tokio::test]
async fn a_writer_needs_no_right_to_delete() {
    let (repo, faulty, _) = memory_repository().await;
    let mut writer = begin(&repo, "b").await;
    writer.commit(manifest("v", "b", 1), &[], &[]).await.unwrap();
    faulty.fault("delete leases", Fault::Denied);
    let warnings = writer.finish().await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(ids(&repo).await.len(), 1);
}

#[tokio::test]
async fn the_lease_stays_while_the_outcome_of_the_commit_is_unknown() {
    let (repo, faulty, _) = memory_repository().await;
    let mut writer = begin(&repo, "b").await;
    faulty.fault("create backups", Fault::LostBefore);
    faulty.fault("get backups", Fault::LostBefore);
    let e = writer.commit(manifest("v", "b", 1), &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    let warnings = writer.abandon().await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(leases(&repo).await.len(), 1);
    // a run that failed before it came to that takes its lease with it
    begin(&repo, "c").await.abandon().await;
    assert_eq!(leases(&repo).await.len(), 1);
}

#[tokio::test]
async fn a_reader_confirms_its_backup_under_its_lease() {
    let (repo, faulty, _) = memory_repository().await;
    let backup = manifest("v", "b", 1);
    let begin = async |lease| Reader::begin(&repo, &backup, lease).await;
    let e = begin(Some(lease_options())).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    put_manifest(&repo, &backup).await;
    let (other, name) = (Arc::clone(&repo), backup.clone());
    faulty.before("create leases", move |_| {
        Box::pin(async move {
            other.forget(&name.name(), "other").await.unwrap();
        })
    });
    let e = begin(Some(lease_options())).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Forgotten, "{e}");
    let e = begin(None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Forgotten, "{e}");
    assert!(leases(&repo).await.is_empty(), "a failed begin leaves no lease");
}

/// A collection took it for dead; whether it has also deleted what is read is to be said.
#[tokio::test]
async fn a_reader_that_was_taken_for_dead_begins_anew_and_says_so() {
    let lost = || Error::new(ErrorKind::Missing, "read chunk 1", "its pack is gone");
    for forgotten in [false, true] {
        let (repo, faulty, _) = memory_repository().await;
        let backup = manifest("v", "b", 1);
        put_manifest(&repo, &backup).await;
        let reader = Reader::begin(&repo, &backup, Some(lease_options())).await.unwrap();
        reader.check_held().await.unwrap();
        let first = leases(&repo).await;
        repo.store().delete(&lease_key(&first[0])).await.unwrap();
        if forgotten {
            repo.forget(&backup.name(), "other").await.unwrap();
        }
        // the new lease may come to be, and what follows may fail: the next beat looks again
        faulty.fault("head backups", Fault::LostBefore);
        assert_eq!(reader.check_held().await.unwrap_err().kind(), ErrorKind::Unavailable);
        let second = leases(&repo).await;
        assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
        assert_eq!(reader.check_held().await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(leases(&repo).await, second);
        let e = reader.explain(lost(), std::future::pending()).await;
        let kind = if forgotten { ErrorKind::Forgotten } else { ErrorKind::Missing };
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.to_string().contains("its pack is gone"), "{e}");
        let warnings = reader.finish().await;
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        let said = if forgotten { "was forgotten meanwhile" } else { "is still there" };
        assert!(warning.contains(said), "{warning}");
        assert!(leases(&repo).await.is_empty());
    }
}

#[tokio::test]
async fn a_check_that_was_taken_for_dead_does_not_build_on_what_it_read() {
    let (repo, _, _) = memory_repository().await;
    put_manifest(&repo, &manifest("v", "b", 1)).await;
    let reader = Reader::begin_for_all(&repo, Some(lease_options())).await.unwrap();
    reader.check_held().await.unwrap();
    let first = leases(&repo).await;
    repo.store().delete(&lease_key(&first[0])).await.unwrap();
    assert_eq!(reader.check_held().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(leases(&repo).await.len(), 1);
    let warnings = reader.finish().await;
    assert!(warnings.len() == 1 && warnings[0].contains("run it again"), "{warnings:?}");
}

#[tokio::test]
async fn a_reader_without_a_lease_writes_nothing() {
    let (repo, faulty, _) = memory_repository().await;
    let backup = manifest("v", "b", 1);
    put_manifest(&repo, &backup).await;
    let before = repo.store().counts();
    let reader = Reader::begin(&repo, &backup, None).await.unwrap();
    tokio::spawn(reader.heartbeat()).await.unwrap();
    assert!(reader.finish().await.is_empty());
    let after = repo.store().counts();
    assert_eq!(
        (after.creates, after.puts, after.deletes),
        (before.creates, before.puts, before.deletes)
    );

    faulty.fault("create leases", Fault::Denied);
    let e = Reader::begin(&repo, &backup, Some(lease_options())).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Denied);
    assert!(e.hint_text().is_some_and(|hint| hint.contains("without a lease")), "{e}");
}

#[tokio::test]
async fn a_lease_is_never_removed_behind_the_back_of_a_checkpoint() {
    let name = manifest("v", "b", 1).name();
    let checkpoint = Checkpoint {
        next_chunk: ChunkNo(1),
        frontier: Vec::new(),
        packs: Vec::new(),
        plan: None,
        time: Utc::now(),
    };
    for ends_first in [true, false] {
        let (repo, faulty, _) = memory_repository().await;
        let record = lease_options().lease(LeaseRole::Writer { name: name.clone(), parent: None });
        let keeper = LeaseKeeper::create(&repo, record).await.unwrap();
        // somebody is at the lease while both others come to it, and so they follow each other
        // without a pause
        faulty.before("head leases/", |_| {
            async {
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
            }
            .boxed()
        });
        let end = keeper.end(Removal::UnlessShared);
        let record = keeper.record(None, checkpoint.clone());
        let (present, end_failed, recorded) = if ends_first {
            futures::join!(keeper.look(), end, record)
        } else {
            let (present, recorded, end_failed) = futures::join!(keeper.look(), record, end);
            (present, end_failed, recorded)
        };
        assert!(present.unwrap().is_some() && end_failed.is_none());
        let stays = !leases(&repo).await.is_empty();
        // who finds the checkpoint finds a lease that nobody takes away any more
        assert_eq!((recorded.unwrap(), stays), (!ends_first, !ends_first));
    }
}
