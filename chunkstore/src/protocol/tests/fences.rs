//! A collector takes the writer for dead.

use super::*;

/// A writer that has put one pack and is fenced at the moment of its commit, while something else
/// happens.
async fn fenced_commit<F, Fut>(
    repo: &Arc<Repository>,
    faulty: &FaultyStore,
    also: F,
) -> (Writer, Commit)
where
    F: FnOnce(Arc<Repository>, PackId) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let mut writer = begin(repo, "b").await;
    let own = put_pack(repo, 1).await;
    let made = manifest("v", "b", 1);
    let (other, fenced) = (Arc::clone(repo), made.clone());
    faulty.before("create backups", move |_| {
        Box::pin(async move {
            fence(&other, &fenced).await;
            also(other, own).await;
        })
    });
    let commit = writer.commit(made, &[own], &[]).await.unwrap();
    (writer, commit)
}

#[tokio::test]
async fn a_fenced_writer_commits_at_the_next_attempt() {
    let (repo, faulty, _) = memory_repository().await;
    faulty.take_log();
    let (writer, commit) = fenced_commit(&repo, &faulty, |_, _| async {}).await;
    let Commit::Done(done) = commit else { panic!("{commit:?}") };
    assert_eq!((done.attempt, writer.attempt()), (1, 1));
    assert_eq!(repo.find_backup("v@b").await.unwrap(), *done);

    // the new lease, then the lists, then the look at the packs of before, then the manifest
    let log = faulty.take_log();
    let last = |start: &str| log.iter().rposition(|line| line.starts_with(start)).unwrap();
    let order =
        [last("create leases"), last("list gc"), last("head packs"), last("create backups/v/b/1")];
    assert!(order.is_sorted(), "{log:#?}");

    assert_eq!(leases(&repo).await.len(), 1);
    assert!(writer.finish().await.is_empty());
    assert!(leases(&repo).await.is_empty());
}

#[tokio::test]
async fn a_new_run_after_a_fence_takes_the_next_attempt() {
    let (repo, _, _) = memory_repository().await;
    put_fence(&repo, &manifest("v", "b", 1)).await;
    let mut writer = begin(&repo, "b").await;
    assert_eq!((writer.attempt(), writer.existing()), (1, None));
    let Commit::Done(done) = writer.commit(manifest("v", "b", 1), &[], &[]).await.unwrap() else {
        panic!("not committed")
    };
    assert_eq!(done.attempt, 1);
}

#[tokio::test]
async fn packs_condemned_meanwhile_make_it_start_over() {
    let (repo, faulty, _) = memory_repository().await;
    let (mut writer, commit) =
        fenced_commit(&repo, &faulty, |repo, own| async move { condemn(&repo, vec![own]).await })
            .await;
    let Commit::Restart { reason } = commit else { panic!("{commit:?}") };
    assert!(reason.contains("condemned"), "{reason}");
    assert!(writer.condemned().contains(&PackId::from_bytes([1; 32])));
    assert_eq!(ids(&repo).await, Vec::<String>::new());

    // all of the work again, under the lease that it has now
    let own = put_pack(&repo, 2).await;
    let commit = writer.commit(manifest("v", "b", 1), &[own], &[]).await.unwrap();
    assert!(matches!(commit, Commit::Done(done) if done.attempt == 1));
}

#[tokio::test]
async fn packs_deleted_meanwhile_make_it_start_over() {
    let (repo, faulty, _) = memory_repository().await;
    let (_, commit) = fenced_commit(&repo, &faulty, |repo, own| async move {
        repo.store().delete(&pack_key(&own)).await.unwrap();
    })
    .await;
    assert!(matches!(commit, Commit::Restart { .. }), "{commit:?}");
}

#[tokio::test]
async fn a_reused_pack_condemned_meanwhile_is_stored_again() {
    let (repo, faulty, _) = memory_repository().await;
    let mut writer = begin(&repo, "b").await;
    let (own, reused) = (put_pack(&repo, 1).await, put_pack(&repo, 2).await);
    let made = manifest("v", "b", 1);
    let (other, fenced) = (Arc::clone(&repo), made.clone());
    faulty.before("create backups", move |_| {
        Box::pin(async move {
            fence(&other, &fenced).await;
            condemn(&other, vec![reused]).await;
        })
    });
    let commit = writer.commit(made.clone(), &[own], &[reused]).await.unwrap();
    assert_eq!(commit, Commit::StoreAgain { missing: vec![reused] });
    let commit = writer.commit(made, &[own], &[]).await.unwrap();
    assert!(matches!(commit, Commit::Done(done) if done.attempt == 1));
}

#[tokio::test]
async fn a_parent_forgotten_meanwhile_makes_it_start_over_with_another() {
    let (repo, faulty, _) = memory_repository().await;
    let parents = vec![manifest("v", "p2", 2), manifest("v", "p1", 1)];
    for parent in &parents {
        put_manifest(&repo, parent).await;
    }
    let mut writer = Writer::begin(&repo, options("b", parents.clone())).await.unwrap();
    let made = with_parent(manifest("v", "b", 3), &parents[0]);
    let (other, fenced, parent) = (Arc::clone(&repo), made.clone(), parents[0].clone());
    faulty.before("create backups", move |_| {
        Box::pin(async move {
            fence(&other, &fenced).await;
            other.forget(&parent.name(), "other").await.unwrap();
        })
    });
    let commit = writer.commit(made.clone(), &[], &[]).await.unwrap();
    assert!(matches!(commit, Commit::Restart { .. }), "{commit:?}");
    assert_eq!(writer.parent(), Some(&parents[1]));
    let e = writer.commit(made, &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Bug, "it inherits from a parent that is gone: {e}");
    let made = with_parent(manifest("v", "b", 3), &parents[1]);
    let commit = writer.commit(made, &[], &[]).await.unwrap();
    assert!(matches!(commit, Commit::Done(done) if done.attempt == 1));
}

#[tokio::test]
async fn a_parent_that_is_still_there_is_kept_through_a_fence() {
    let (repo, _, _) = memory_repository().await;
    let parent = manifest("v", "p", 1);
    put_manifest(&repo, &parent).await;
    let mut writer = Writer::begin(&repo, options("b", vec![parent.clone()])).await.unwrap();
    let made = with_parent(manifest("v", "b", 3), &parent);
    for attempt in 0..3 {
        let mut fenced = made.clone();
        fenced.attempt = attempt;
        put_fence(&repo, &fenced).await;
    }
    let commit = writer.commit(made, &[], &[]).await.unwrap();
    assert!(matches!(commit, Commit::Done(done) if done.attempt == 3));
    assert_eq!(writer.parent(), Some(&parent));
}

#[tokio::test]
async fn endless_fences_end_in_an_error() {
    let (repo, _, _) = memory_repository().await;
    let mut writer = begin(&repo, "b").await;
    for attempt in 0..20 {
        let mut fenced = manifest("v", "b", 1);
        fenced.attempt = attempt;
        put_fence(&repo, &fenced).await;
    }
    let e = writer.commit(manifest("v", "b", 1), &[], &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Fenced, "{e}");
}

#[tokio::test]
async fn a_lease_that_vanished_without_a_fence_is_no_lease() {
    let (repo, faulty, _) = memory_repository().await;
    let mut writer = begin(&repo, "b").await;
    let (own, lease) = (put_pack(&repo, 1).await, leases(&repo).await[0]);
    repo.store().delete(&lease_key(&lease)).await.unwrap();
    faulty.take_log();
    let Commit::Done(done) = writer.commit(manifest("v", "b", 1), &[own], &[]).await.unwrap()
    else {
        panic!("not committed")
    };
    assert_eq!(done.attempt, 0);
    let log = faulty.take_log();
    let at = |start: &str| log.iter().position(|line| line.starts_with(start)).unwrap();
    assert!(at("create leases") < at("list gc") && at("list gc") < at("head packs"), "{log:#?}");
    assert!(at("head packs") < at("create backups"), "{log:#?}");
}
