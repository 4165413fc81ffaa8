use super::*;
use crate::check::Check;
use crate::repository::Repository;
use crate::testkit::repositories::*;
use object_store::path::Path;
use object_store::{ObjectStoreExt, memory::InMemory};
use std::sync::Arc;

async fn open(inner: &Arc<InMemory>) -> crate::error::Result<Arc<Repository>> {
    Repository::open(store_on(Arc::clone(inner) as _).1, &[key_file(1)]).await
}

async fn read(inner: &InMemory, key: &str) -> Bytes {
    inner.get(&Path::from(key)).await.unwrap().bytes().await.unwrap()
}

async fn write(inner: &InMemory, key: &str, bytes: Vec<u8>) {
    inner.put(&Path::from(key), bytes.into()).await.unwrap();
}

async fn delete(inner: &InMemory, key: &str) {
    inner.delete(&Path::from(key)).await.unwrap();
}

#[tokio::test]
async fn a_new_repository_has_its_copy_and_explains_itself() {
    let (repo, _, inner) = memory_repository().await;
    assert_eq!(read(&inner, FORMAT_KEY).await, read(&inner, FORMAT_COPY_KEY).await);
    let text = repo.read_readme().await.unwrap().unwrap();
    for part in ["format version  1", &repo.id().to_string(), DOCUMENT] {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.lines().take(30).all(|line| line.len() <= 120), "{text}");
    assert!(!text.contains("    \n"), "no line ends with spaces");
    assert_eq!(repo.check_base().await.unwrap(), []);
}

/// Whatever happens to one copy, the other opens the repository, is compared, and is what a repair
/// goes by.
#[tokio::test]
async fn either_copy_opens_the_repository() {
    let (repo, _, inner) = memory_repository().await;
    let good = read(&inner, FORMAT_KEY).await;
    let other = memory_repository().await.2;
    let anothers = read(&other, FORMAT_KEY).await;
    for key in [FORMAT_KEY, FORMAT_COPY_KEY] {
        let mut damaged: Vec<(String, Option<Vec<u8>>)> = vec![
            ("gone".into(), None),
            ("empty".into(), Some(Vec::new())),
            ("cut".into(), Some(good[..good.len() - 1].to_vec())),
            ("longer".into(), Some([&good[..], b"x"].concat())),
            ("far longer".into(), Some(vec![b'x'; 1 << 20])),
            ("another's".into(), Some(anothers.to_vec())),
        ];
        for at in 0..good.len() {
            let mut bytes = good.to_vec();
            bytes[at] ^= 1;
            damaged.push((format!("flip at {at}"), Some(bytes)));
        }
        for (what, bytes) in damaged {
            let inner = Arc::new(inner.fork());
            match bytes {
                Some(bytes) => write(&inner, key, bytes).await,
                None => delete(&inner, key).await,
            }
            let again = open(&inner).await.unwrap_or_else(|e| panic!("{key} {what}: {e}"));
            assert_eq!(again.params(), repo.params(), "{key} {what}");
            let problems = again.check_base().await.unwrap();
            assert_eq!(problems.iter().map(|p| p.key).collect::<Vec<_>>(), [key], "{what}");
            assert_eq!(again.repair_base().await.unwrap(), [key], "{what}");
            assert_eq!(read(&inner, key).await, good, "{key} {what}");
            assert_eq!(again.check_base().await.unwrap(), [], "{key} {what}");
        }
    }
}

#[tokio::test]
async fn both_gone_is_said_with_both_names() {
    let (repo, _, inner) = memory_repository().await;
    repo.put_pack(&pack_of_nobody(&repo)).await.unwrap();
    delete(&inner, FORMAT_KEY).await;
    delete(&inner, FORMAT_COPY_KEY).await;
    let e = open(&inner).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Missing);
    assert!(e.to_string().contains("format-copy"), "{e}");
}

/// Nobody gets a repository of his own opened by putting it into the second place.
#[tokio::test]
async fn a_clear_copy_is_not_taken_where_a_key_is_given() {
    let (_, _, inner) = memory_repository().await;
    let (_, store) = store_on(Arc::new(InMemory::new()));
    let clear = Repository::init(store, init_options(None)).await.unwrap();
    write(&inner, FORMAT_COPY_KEY, clear.format.to_vec()).await;
    open(&inner).await.unwrap();
    // nor where the key was forgotten
    let without = Repository::open(store_on(Arc::clone(&inner) as _).1, &[]).await.unwrap_err();
    assert_eq!(without.kind(), ErrorKind::WrongKey, "{without}");
    let wrong = Repository::open(store_on(Arc::clone(&inner) as _).1, &[key_file(9)]).await;
    assert_eq!(wrong.unwrap_err().kind(), ErrorKind::WrongKey);
    delete(&inner, FORMAT_KEY).await;
    let e = open(&inner).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    write(&inner, FORMAT_KEY, b"damaged".to_vec()).await;
    let e = open(&inner).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
}

#[tokio::test]
async fn a_check_names_a_copy_that_differs() {
    let (repo, _, inner) = memory_repository().await;
    let check = Check::begin(&repo, Default::default()).await.unwrap();
    assert_eq!(check.findings().1, 0);
    write(&inner, FORMAT_COPY_KEY, b"x".to_vec()).await;
    delete(&inner, README_KEY).await;
    let check = Check::begin(&repo, Default::default()).await.unwrap();
    let objects: Vec<_> = check.findings().0.iter().map(|f| f.object.clone()).collect();
    assert_eq!(objects, [FORMAT_COPY_KEY]);
    let mut repaired = Default::default();
    check.repair_base(&mut repaired).await.unwrap();
    assert_eq!(repaired.base, 2, "the copy and the text for people");
    assert_eq!(Check::begin(&repo, Default::default()).await.unwrap().findings().1, 0);
}
