//! A writer stops at each change of the store, before it or right after; then the run is repeated.

use super::*;
use crate::error::Result;
use crate::testkit::repositories::store_on;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, path::Path};

/// One whole run: two packs, one reused, a segment, the commit.
async fn run(repo: &Arc<Repository>, parent: &Manifest) -> Result<Commit> {
    let mut writer = Writer::begin(repo, options("b", vec![parent.clone()])).await?;
    let mut own = Vec::new();
    for _ in 0..2 {
        let pack = PackId::random();
        repo.store().put(&pack_key(&pack), "a pack").await?;
        own.push(pack);
    }
    repo.store()
        .put(&crate::format::names::segment_key(&crate::ids::SegmentId::random()), "s")
        .await?;
    let made = with_parent(manifest("v", "b", 2), parent);
    let commit = writer.commit(made, &own, &[PackId::from_bytes([1; 32])]).await;
    match commit {
        Ok(commit) => {
            writer.finish().await;
            Ok(commit)
        }
        Err(e) => {
            writer.abandon().await;
            Err(e)
        }
    }
}

/// What a repository looks like before the run.
async fn prepared(inner: &Arc<dyn ObjectStore>) -> Manifest {
    let (_, store) = store_on(Arc::clone(inner));
    let repo = Repository::init(store, init_options(Some(key_file(1)))).await.unwrap();
    let parent = manifest("v", "p", 1);
    put_manifest(&repo, &parent).await;
    let pack = pack_key(&PackId::from_bytes([1; 32]));
    inner.put(&Path::from(pack), PutPayload::from_static(b"old")).await.unwrap();
    parent
}

async fn stop_everywhere(make_store: impl Fn() -> Arc<dyn ObjectStore>) {
    let mut stops = 0;
    for done in [false, true] {
        for change in 0.. {
            let inner = make_store();
            let parent = prepared(&inner).await;
            let (faulty, store) = store_on(Arc::clone(&inner));
            let repo = Repository::open(store, &[key_file(1)]).await.unwrap();
            faulty.stop_at(change, done);
            let first = run(&repo, &parent).await;
            if !faulty.was_stopped() {
                assert!(matches!(first, Ok(Commit::Done(_))));
                break;
            }
            stops += 1;

            let (_, store) = store_on(inner);
            let repo = Repository::open(store, &[key_file(1)]).await.unwrap();
            let committed = ids(&repo).await.len() == 2;
            let again = run(&repo, &parent).await.unwrap();
            match again {
                Commit::AlreadyDone(_) => assert!(committed),
                Commit::Done(_) => assert!(!committed, "stopped at {change}, {done}"),
                other => panic!("{other:?}"),
            }
            assert_eq!(ids(&repo).await, ["v@p (attempt 0)", "v@b (attempt 0)"]);
        }
    }
    println!("stopped at {stops} places");
    assert!(
        stops >= 12,
        "lease, two packs, segment, manifest, end of the lease, each twice: {stops}"
    );
}

#[tokio::test]
async fn a_run_that_stopped_anywhere_can_be_repeated_in_memory() {
    Box::pin(stop_everywhere(|| Arc::new(InMemory::new()))).await;
}

#[tokio::test]
async fn a_run_that_stopped_anywhere_can_be_repeated_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicU32::new(0);
    Box::pin(stop_everywhere(|| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let path = dir.path().join(number.to_string());
        std::fs::create_dir(&path).unwrap();
        Arc::new(LocalFileSystem::new_with_prefix(path).unwrap())
    }))
    .await;
}
