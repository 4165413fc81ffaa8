//! A store that begins to ignore create-once is noticed by all writers, and no other one is.

use super::*;
use crate::format::lease::Lease;
use crate::ids::PlanDigest;
use crate::repository::WRITES_OVER;
use crate::units::ChunkNo;
use futures::FutureExt;

const PLAN: PlanDigest = PlanDigest::from_bytes([3; 32]);

async fn resume(repo: &Arc<Repository>) -> Writer {
    let by = ResumeBy { plan: PLAN, any_id: false };
    Writer::begin_or_resume(repo, options("b", Vec::new()), by).await.unwrap()
}

async fn note(writer: &Writer) {
    let checkpoints = writer.checkpoints(PLAN).await;
    assert!(checkpoints.record(ChunkNo(16), Vec::new(), &[]).await.unwrap());
}

#[track_caller]
fn expect_noticed(warnings: &[String], when: &str) {
    let [warning] = warnings else { panic!("{when}: {warnings:?}") };
    assert!(warning.contains(WRITES_OVER), "{when}: {warning}");
    assert!(warning.contains("must never run at the same time here"), "{when}: {warning}");
}

#[tokio::test]
async fn each_backup_is_made_and_says_so() {
    let (repo, faulty, _) = memory_repository().await;
    faulty.ignore_create_once();
    for i in 1..=2 {
        let made = manifest("v", &format!("b{i}"), i);
        let mut writer = begin(&repo, made.backup_id.as_str()).await;
        let commit = writer.commit(made.clone(), &[], &[]).await.unwrap();
        let done = expect_done(commit, &made);
        assert_eq!(done.clock_offset_ms, None, "the second write counts as the first did");
        expect_noticed(&writer.finish().await, "a new run");
    }
    assert_eq!(ids(&repo).await.len(), 2);
}

#[tokio::test]
async fn whoever_goes_on_says_so_once() {
    for fenced in [false, true] {
        let (repo, faulty, _) = memory_repository().await;
        note(&resume(&repo).await).await;
        faulty.ignore_create_once();
        let when = format!("fenced: {fenced}");
        let lease = leases(&repo).await;
        let mut writer = resume(&repo).await;
        assert_eq!(leases(&repo).await, lease, "{when}");
        assert!(writer.resume_point(&HashSet::new()).await.unwrap().is_some(), "{when}");
        let made = manifest("v", "b", 1);
        if fenced {
            fence(&repo, &made).await;
            writer.begin_anew().await.unwrap();
        }
        assert!(matches!(writer.commit(made, &[], &[]).await.unwrap(), Commit::Done(_)));
        expect_noticed(&writer.finish().await, &when);
    }
}

/// Lost answers, conflicts, a denial, and a lease that somebody has removed since.
#[tokio::test]
async fn nobody_else_is_suspected() {
    for fault in [Fault::ExistedAfterSuccess, Fault::Conflict, Fault::LostBefore, Fault::LostAfter]
    {
        // of the lease, or of what asks for it again
        for again in [false, true] {
            let (repo, faulty, _) = memory_repository().await;
            if again {
                faulty.after("create leases", |_| async {}.boxed());
            }
            faulty.fault("create leases", fault);
            let writer = begin(&repo, "b").await;
            assert!(writer.finish().await.is_empty(), "{fault:?}, again: {again}");
            assert!(leases(&repo).await.is_empty());
        }
    }

    let (repo, faulty, _) = memory_repository().await;
    faulty.after("create leases", |_| async {}.boxed());
    faulty.fault("create leases", Fault::Denied);
    assert!(begin(&repo, "b").await.finish().await.is_empty(), "it may not ask");

    let other = Arc::clone(&repo);
    faulty.after("create leases", move |_| {
        async move { fence(&other, &manifest("v", "c", 1)).await }.boxed()
    });
    let mut writer = begin(&repo, "c").await;
    assert_eq!(leases(&repo).await.len(), 1, "as after a beat that was under way");
    let Commit::Done(done) = writer.commit(manifest("v", "c", 1), &[], &[]).await.unwrap() else {
        panic!("the next attempt is free");
    };
    assert_eq!(done.attempt, 1);
    assert!(writer.finish().await.is_empty());
    assert!(leases(&repo).await.is_empty());
}

/// A store that answers everything but this takes the backup.
#[tokio::test]
async fn a_question_without_an_answer_is_a_warning() {
    let (repo, faulty, _) = memory_repository().await;
    faulty.after("create leases", |_| async {}.boxed());
    // as often as it is asked
    for _ in 0..8 {
        faulty.fault("create leases", Fault::LostBefore);
    }
    let made = manifest("v", "b", 1);
    let mut writer = begin(&repo, "b").await;
    expect_done(writer.commit(made.clone(), &[], &[]).await.unwrap(), &made);
    let warnings = writer.finish().await;
    assert!(
        matches!(&warnings[..], [w] if w.contains("did not say whether it refuses")),
        "{warnings:?}"
    );
}

/// Nobody's checkpoint is lost to the question.
#[tokio::test]
async fn what_a_lease_says_stays() {
    let (repo, faulty, _) = memory_repository().await;
    note(&resume(&repo).await).await;
    faulty.ignore_create_once();
    let writer = resume(&repo).await;
    let key = lease_key(&leases(&repo).await[0]);
    let bytes = repo.store().get(&key).await.unwrap();
    let lease = Lease::decode(repo.keys(), repo.id(), &key, &bytes).unwrap();
    let checkpoint = lease.checkpoint.expect("it is there");
    assert_eq!((checkpoint.next_chunk, checkpoint.plan), (ChunkNo(16), Some(PLAN)));
    drop(writer);
}
