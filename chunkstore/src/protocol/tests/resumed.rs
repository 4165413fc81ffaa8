//! Going on where another process was: whose lease, which packs count, and who may remove what.

use super::*;
use crate::format::lease::{Checkpoint, Lease};
use crate::ids::PlanDigest;
use crate::limits::CHECKPOINT_PACKS_MAX;
use crate::units::ChunkNo;

const PLAN: PlanDigest = PlanDigest::from_bytes([3; 32]);
const BY: ResumeBy = ResumeBy { plan: PLAN, any_id: false };

async fn resume(repo: &Arc<Repository>, parents: Vec<Manifest>) -> Writer {
    Writer::begin_or_resume(repo, options("b", parents), BY).await.unwrap()
}

/// Notes that the map is done up to a chunk, with these packs.
async fn note(writer: &Writer, next: u64, packs: &[PackId]) -> bool {
    let checkpoints = writer.checkpoints(PLAN).await;
    checkpoints.record(ChunkNo(next), Vec::new(), packs).await.unwrap()
}

async fn point(writer: &mut Writer) -> Option<Checkpoint> {
    writer.resume_point(&HashSet::new()).await.unwrap()
}

/// What a process leaves that was killed after a checkpoint.
async fn killed(repo: &Arc<Repository>, packs: &[PackId]) -> LeaseId {
    let writer = resume(repo, Vec::new()).await;
    assert!(note(&writer, 16, packs).await);
    leases(repo).await[0]
}

#[tokio::test]
async fn the_next_process_goes_on_under_the_lease_of_the_last() {
    let (repo, _, _) = memory_repository().await;
    let own = put_pack(&repo, 1).await;
    let lease = killed(&repo, &[own]).await;
    let mut next = resume(&repo, Vec::new()).await;
    assert_eq!(leases(&repo).await, [lease]);
    let found = point(&mut next).await.unwrap();
    assert_eq!((found.next_chunk, &found.packs[..]), (ChunkNo(16), &[own][..]));
    // what it notes itself stands beside what it found
    let more = put_pack(&repo, 2).await;
    assert!(note(&next, 32, &[more]).await);
    let found = point(&mut resume(&repo, Vec::new()).await).await.unwrap();
    assert_eq!((found.next_chunk, &found.packs[..]), (ChunkNo(32), &[own, more][..]));
    let commit = next.commit(manifest("v", "b", 1), &[more], &[]).await.unwrap();
    assert!(matches!(commit, Commit::Done(_)), "{commit:?}");
    assert!(next.finish().await.is_empty());
    assert!(leases(&repo).await.is_empty());
}

#[tokio::test]
async fn only_the_same_plan_and_the_same_backup_is_gone_on_with() {
    let (repo, _, _) = memory_repository().await;
    let lease = killed(&repo, &[]).await;
    let plan = PlanDigest::from_bytes([4; 32]);
    let other_plan = ResumeBy { plan, any_id: false };
    let mut writer =
        Writer::begin_or_resume(&repo, options("b", Vec::new()), other_plan).await.unwrap();
    assert_eq!(point(&mut writer).await, None);
    assert!(writer.finish().await[0].contains("all of it is done again"));
    let mut writer = Writer::begin_or_resume(&repo, options("c", Vec::new()), BY).await.unwrap();
    assert_eq!(point(&mut writer).await, None);
    assert!(writer.finish().await.is_empty());
    // whoever names no id takes the one that is there
    let any = ResumeBy { any_id: true, ..BY };
    let mut writer = Writer::begin_or_resume(&repo, options("c", Vec::new()), any).await.unwrap();
    assert_eq!(writer.backup_id(), &backup_id("b"));
    assert!(point(&mut writer).await.is_some());
    drop(writer);
    assert_eq!(leases(&repo).await, [lease]);
}

/// After a fence a checkpoint counts as a whole or not at all, and only under a new lease.
#[tokio::test]
async fn after_a_fence_the_packs_are_looked_at_under_a_new_lease() {
    for case in ["all there", "condemned", "gone", "cut list"] {
        let (repo, faulty, _) = memory_repository().await;
        let own = put_pack(&repo, 1).await;
        let many = (0..CHECKPOINT_PACKS_MAX).map(|n| {
            let mut id = [9; 32];
            id[..4].copy_from_slice(&n.to_le_bytes());
            PackId::from_bytes(id)
        });
        let packs = if case == "cut list" { many.collect() } else { vec![own] };
        let old = killed(&repo, &packs).await;
        let bytes = repo.store().get(&lease_key(&old)).await.unwrap();
        fence(&repo, &manifest("v", "b", 1)).await;
        // a beat that was under way brings the lease back behind the collector
        repo.store().put(&lease_key(&old), bytes).await.unwrap();
        match case {
            "condemned" => condemn(&repo, vec![own]).await,
            "gone" => repo.store().delete(&pack_key(&own)).await.unwrap(),
            _ => {}
        }
        faulty.take_log();
        let mut next = resume(&repo, Vec::new()).await;
        assert_eq!(next.attempt(), 1, "{case}");
        let found = point(&mut next).await;
        assert_eq!(found.is_some(), case == "all there", "{case}");
        if case == "all there" {
            let log = faulty.take_log();
            let last = |s: &str| log.iter().rposition(|line| line.starts_with(s)).unwrap();
            let order = [last("create leases"), last("list gc"), last("head packs")];
            assert!(order.is_sorted(), "{log:#?}");
        }
        let commit = next.commit(manifest("v", "b", 1), &[], &[]).await.unwrap();
        let Commit::Done(done) = commit else { panic!("{case}: {commit:?}") };
        assert_eq!(done.attempt, 1);
    }
}

#[tokio::test]
async fn fenced_at_the_commit_the_carried_packs_are_looked_at_too() {
    let (repo, _, _) = memory_repository().await;
    let own = put_pack(&repo, 1).await;
    killed(&repo, &[own]).await;
    let mut next = resume(&repo, Vec::new()).await;
    assert!(point(&mut next).await.is_some());
    fence(&repo, &manifest("v", "b", 1)).await;
    repo.store().delete(&pack_key(&own)).await.unwrap();
    let commit = next.commit(manifest("v", "b", 1), &[], &[]).await.unwrap();
    assert!(matches!(commit, Commit::Restart { .. }), "{commit:?}");
    assert_eq!(point(&mut next).await, None, "the new lease knows nothing of it");
}

#[tokio::test]
async fn a_late_checkpoint_does_not_bring_a_lease_back() {
    let (repo, _, _) = memory_repository().await;
    let writer = resume(&repo, Vec::new()).await;
    fence(&repo, &manifest("v", "b", 1)).await;
    assert!(!note(&writer, 16, &[]).await);
    assert!(leases(&repo).await.is_empty());
}

/// One of two processes under one lease fails: the other must not lose the lease before its commit.
#[tokio::test]
async fn nobody_takes_away_a_lease_that_another_may_work_under() {
    for fault in [None, Some(Fault::LostAfter), Some(Fault::LostBefore)] {
        let (repo, faulty, _) = memory_repository().await;
        let first = resume(&repo, Vec::new()).await;
        if let Some(fault) = fault {
            // no answer: the checkpoint may be there
            faulty.fault("put leases", fault);
        }
        let checkpoints = first.checkpoints(PLAN).await;
        let noted = checkpoints.record(ChunkNo(16), Vec::new(), &[]).await;
        assert_eq!(noted.is_ok(), fault.is_none(), "{noted:?}");
        let lease = leases(&repo).await;
        let second = resume(&repo, Vec::new()).await;
        first.abandon().await;
        assert!(leases(&repo).await.contains(&lease[0]), "{fault:?}");
        second.finish().await;
    }
}

#[tokio::test]
async fn of_two_at_once_one_commits_and_the_other_finds_it() {
    let (repo, _, _) = memory_repository().await;
    let own = put_pack(&repo, 1).await;
    let mut first = resume(&repo, Vec::new()).await;
    assert!(note(&first, 16, &[own]).await);
    let mut second = resume(&repo, Vec::new()).await;
    assert!(point(&mut second).await.is_some());
    let made = manifest("v", "b", 1);
    assert!(matches!(second.commit(made.clone(), &[], &[]).await.unwrap(), Commit::Done(_)));
    assert!(second.finish().await.is_empty());
    assert!(leases(&repo).await.is_empty());
    // the first one lost its lease, and may even have brought it back
    assert!(!note(&first, 32, &[own]).await);
    let commit = first.commit(made, &[own], &[]).await.unwrap();
    assert!(matches!(commit, Commit::AlreadyDone(_)), "{commit:?}");
    assert!(first.finish().await.is_empty());
    assert!(leases(&repo).await.is_empty());
}

#[tokio::test]
async fn a_checkpoint_that_names_lost_or_damaged_packs_is_thrown_away() {
    let (repo, _, _) = memory_repository().await;
    let own = put_pack(&repo, 1).await;
    let lease = killed(&repo, &[own]).await;
    let mut next = resume(&repo, Vec::new()).await;
    assert_eq!(next.resume_point(&HashSet::from([own])).await.unwrap(), None);
    let key = lease_key(&lease);
    let bytes = repo.store().get(&key).await.unwrap();
    let there = Lease::decode(repo.keys(), repo.id(), &key, &bytes).unwrap();
    assert_eq!(there.checkpoint, None, "nor may another process go on from it");
    next.abandon().await;
    assert_eq!(leases(&repo).await, [lease], "another process may be at work under it");
}

#[tokio::test]
async fn a_forgotten_parent_is_protected_by_the_lease_and_by_nothing_else() {
    let (repo, _, _) = memory_repository().await;
    let parent = manifest("v", "p", 1);
    put_manifest(&repo, &parent).await;
    let writer = resume(&repo, vec![parent.clone()]).await;
    assert!(note(&writer, 16, &[]).await);
    let mut next = resume(&repo, Vec::new()).await;
    assert!(point(&mut next).await.is_some());
    assert_eq!(next.parent(), Some(&parent), "the parent is the one that the checkpoint builds on");
    repo.forget(&parent.name(), "test").await.unwrap();
    let mut next = resume(&repo, vec![parent.clone()]).await;
    assert!(point(&mut next).await.is_some(), "what was confirmed under this lease stays");
    fence(&repo, &manifest("v", "b", 1)).await;
    let mut next = resume(&repo, vec![parent]).await;
    assert_eq!((point(&mut next).await, next.parent()), (None, None));
}
