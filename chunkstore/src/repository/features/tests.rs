use super::*;
use crate::format::feature::FeatureNeed::{Read, Write};
use crate::protocol::{CollectOptions, LeaseOptions, Writer, WriterOptions, collect};
use crate::repository::NewestSeen;
use crate::testkit::repositories::*;
use crate::testkit::{Answer, Hook, HookedStore, Request};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory};
use std::sync::Arc;

const KNOWN: &[KnownFeature] = &[
    KnownFeature { name: "tar", need: Read, about: "volumes are tars", since: "test 2" },
    KnownFeature { name: "tags", need: Write, about: "chunks have tags", since: "test 2" },
];

fn lease() -> LeaseOptions {
    LeaseOptions { lease_seconds: 600, tool: "test".into(), host: "h".into() }
}

fn collecting() -> CollectOptions {
    CollectOptions { lease: lease(), limits: Default::default(), exclusive: false }
}

fn writing(id: &str) -> WriterOptions {
    WriterOptions {
        volume: volume("v"),
        backup_id: backup_id(id),
        parents: Vec::new(),
        after: NewestSeen::default(),
        lease: lease(),
    }
}

async fn opened(inner: &Arc<InMemory>, known: &'static [KnownFeature]) -> Result<Arc<Repository>> {
    let store = store_on(Arc::clone(inner) as _).1;
    Repository::open_knowing(store, &[key_file(1)], known).await
}

async fn keys(inner: &InMemory) -> Vec<String> {
    let listed: Vec<_> = inner.list(None).try_collect().await.unwrap();
    listed.into_iter().map(|object| object.location.to_string()).collect()
}

fn is_refusal(e: &Error, doing: &str) {
    let text = e.to_string();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{text}");
    assert!(text.starts_with(doing), "{text}");
    assert!(text.contains("lavender"), "it says what the feature is about: {text}");
    let hint = e.hint_text().unwrap_or_default();
    assert!(hint.contains("mover 7.0 or newer"), "it says which version: {hint}");
}

#[tokio::test]
async fn a_feature_is_added_once_and_found_by_who_knows_it() {
    let (_, _, inner) = memory_repository().await;
    let repo = opened(&inner, KNOWN).await.unwrap();
    assert!(!repo.has_feature("tags").await.unwrap());
    let AddedFeature::Now(first) = repo.add_feature("tags", "a").await.unwrap() else {
        panic!("it was not there")
    };
    assert_eq!(repo.add_feature("tags", "b").await.unwrap(), AddedFeature::Before(first.clone()));
    assert!(repo.has_feature("tags").await.unwrap());
    assert!(!repo.has_feature("lavender").await.unwrap());
    assert_eq!(repo.features().await.unwrap().0, [first]);
    let e = repo.add_feature("lavender", "a").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage);
    assert!(e.to_string().contains("tar, tags"), "{e}");
    // a repository of this version knows none
    let e = opened(&inner, KNOWN_FEATURES).await.unwrap().add_feature("tags", "a").await;
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Usage);
}

#[tokio::test]
async fn who_does_not_know_a_read_feature_does_not_open() {
    let (repo, _, inner) = memory_repository().await;
    add_later_feature(&repo, Read, "lavender").await;
    is_refusal(&opened(&inner, KNOWN).await.unwrap_err(), "open repository");
}

#[tokio::test]
async fn who_does_not_know_a_write_feature_reads_and_changes_nothing() {
    let (repo, _, inner) = memory_repository().await;
    let second = repo.add_key(&key_file(2), "second", init_options(None).kdf).await.unwrap();
    put_manifest(&repo, &manifest("v", "b", 1)).await;
    let name = manifest("v", "b", 1).name();
    // these have begun already
    let mut begun = Writer::begin(&repo, writing("begun")).await.unwrap();
    let forgets = opened(&inner, KNOWN).await.unwrap();
    add_later_feature(&repo, Write, "lavender").await;

    let repo = opened(&inner, KNOWN).await.unwrap();
    assert_eq!(repo.find_backup("v@b").await.unwrap().backup_id, backup_id("b"));
    let before = keys(&inner).await;
    is_refusal(&Writer::begin(&repo, writing("late")).await.unwrap_err(), "back up into");
    let e = begun.commit(manifest("v", "begun", 2), &[], &[]).await.unwrap_err();
    is_refusal(&e, "back up into");
    is_refusal(&forgets.forget(&name, "test").await.unwrap_err(), "forget");
    let e = repo.add_key(&key_file(3), "third", init_options(None).kdf).await.unwrap_err();
    is_refusal(&e, "add a key to");
    is_refusal(&repo.remove_key(&second).await.unwrap_err(), "remove a key of");
    is_refusal(&repo.add_feature("tags", "t").await.unwrap_err(), "add a feature to");
    is_refusal(
        &collect(&repo, &collecting(), std::future::pending()).await.unwrap_err(),
        "collect garbage in",
    );
    assert_eq!(keys(&inner).await, before, "nothing was changed");
    begun.abandon().await;
}

/// Adds a feature right before one request, by its number, and notes all names.
struct AddBefore {
    turn: usize,
    feature: (Path, bytes::Bytes),
    inner: Arc<InMemory>,
    seen: std::sync::Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl Hook for AddBefore {
    async fn request(&self, request: Request) -> object_store::Result<Answer> {
        let turn = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(request.name());
            seen.len() - 1
        };
        if turn == self.turn {
            let (key, bytes) = self.feature.clone();
            self.inner.put(&key, bytes.into()).await?;
        }
        request.pass().await
    }
}

/// A run over a copy of the store, with the feature added before one of its requests. Gives what
/// the run came to, the names of its requests, and the store.
async fn with_feature_before<T, F: Future<Output = Result<T>>>(
    inner: &InMemory,
    turn: usize,
    run: impl FnOnce(Arc<Repository>) -> F,
) -> (Result<T>, Vec<String>, Arc<InMemory>) {
    let inner = Arc::new(inner.fork());
    let plain = opened(&inner, KNOWN).await.unwrap();
    let (feature, bytes) = later_feature(&plain, Write, "lavender");
    let hook = AddBefore {
        turn,
        feature: (Path::from(feature.name.key()), bytes.into()),
        inner: Arc::clone(&inner),
        seen: Default::default(),
    };
    let hooked = HookedStore::new(Arc::clone(&inner) as Arc<dyn ObjectStore>, hook);
    let store = crate::Store::new(Arc::clone(&hooked) as _, Path::default(), "memory:///");
    let repo = Repository::open_knowing(store, &[key_file(1)], KNOWN).await.unwrap();
    hooked.seen.lock().unwrap().clear();
    let result = run(repo).await;
    let seen = hooked.seen.lock().unwrap().clone();
    (result, seen, inner)
}

fn last_look(seen: &[String], before: &str) -> usize {
    let end = seen.iter().position(|name| name.starts_with(before)).expect(before);
    seen[..end].iter().rposition(|name| name.starts_with("list features")).expect("it looks")
}

/// Whatever is added before the last look stops a commit; the look comes right before it.
#[tokio::test]
async fn a_feature_that_is_added_meanwhile_stops_a_commit() {
    let (_, _, inner) = memory_repository().await;
    let backs_up = |repo: Arc<Repository>| async move {
        let mut writer = Writer::begin(&repo, writing("b")).await?;
        let committed = writer.commit(manifest("v", "b", 1), &[], &[]).await;
        writer.finish().await;
        committed
    };
    let (done, seen, _) = with_feature_before(&inner, usize::MAX, backs_up).await;
    done.unwrap();
    let look = last_look(&seen, "create backups/");
    assert!(seen[..look].iter().any(|name| name.starts_with("list features")), "{seen:?}");
    for turn in 0..seen.len() {
        let (done, _, inner) = with_feature_before(&inner, turn, backs_up).await;
        let there = inner.list_with_delimiter(Some(&Path::from("backups/v/b"))).await.unwrap();
        assert_eq!(there.objects.is_empty(), turn <= look, "{turn}: {seen:?}");
        match done {
            Err(e) => is_refusal(&e, "back up into"),
            Ok(_) => assert!(turn > look, "{turn}"),
        }
    }
}

/// Whatever is added before the look that follows a mark stops the verdict.
#[tokio::test]
async fn a_feature_that_is_added_meanwhile_stops_a_verdict() {
    let (repo, _, inner) = memory_repository().await;
    repo.put_pack(&pack_of_nobody(&repo)).await.unwrap();
    let collects = |repo: Arc<Repository>| async move {
        collect(&repo, &collecting(), std::future::pending()).await
    };
    let (done, seen, _) = with_feature_before(&inner, usize::MAX, collects).await;
    assert_eq!(done.unwrap().deleted_packs, 1);
    let is_verdict = |name: &&String| name.starts_with("create gc/") && name.ends_with("/verdict");
    let verdict = seen.iter().find(is_verdict).expect("it decides");
    let verdict_look = last_look(&seen, verdict);
    let marked = seen.iter().rposition(|name| name == "list backups").expect("it marks");
    assert!(marked < verdict_look, "it looks after its mark: {seen:?}");
    for turn in 0..seen.len() {
        let (done, _, inner) = with_feature_before(&inner, turn, collects).await;
        let packs = inner.list_with_delimiter(Some(&Path::from("packs"))).await.unwrap();
        assert_eq!(packs.common_prefixes.is_empty(), turn > verdict_look, "{turn}: {seen:?}");
        assert_eq!(done.is_err(), turn <= verdict_look, "{turn}: {seen:?}");
        if let Err(e) = done {
            assert!(e.to_string().contains("lavender"), "{e}");
        }
    }
}
