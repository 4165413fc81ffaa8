//! Removals of keys beside each other: request by request, in all orders, with a death after each.

use super::*;
use crate::testkit::repositories::*;
use crate::testkit::{Answer, Hook, HookedStore, Request};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A store whose every request waits for the next poll before it is done: who polls decides who is
/// next, one request a time.
struct Stepped;

/// Pending once.
async fn turn() {
    let mut waited = false;
    futures::future::poll_fn(|_| {
        if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[async_trait]
impl Hook for Stepped {
    async fn request(&self, request: Request) -> object_store::Result<Answer> {
        turn().await;
        request.pass().await
    }
}

/// A repository with so many keys, opened with each of them.
struct Scene {
    inner: Arc<InMemory>,
    opened: Vec<Arc<Repository>>,
}

/// How removals ended.
#[derive(Debug, Default, Clone, Copy)]
struct Played {
    /// Turns of the first run until it ended.
    turns: usize,
    /// Runs that say that they have removed their key.
    done: usize,
    /// Runs that did not come to an end.
    dead: usize,
    /// Keys that are left, and removals that are under way.
    left: usize,
    removals: usize,
}

impl Scene {
    async fn new(keys: u8) -> Self {
        let (repo, _, inner) = memory_repository().await;
        let cheap = KdfCost { memory_kib: 8, passes: 1, lanes: 1 };
        let mut opened = vec![repo];
        for n in 2..=keys {
            opened[0].add_key(&key_file(n), "more", cheap).await.unwrap();
            let store = store_on(Arc::clone(&inner) as _).1;
            opened.push(Repository::open(store, &[key_file(n)]).await.unwrap());
        }
        Self { inner, opened }
    }

    /// The holder of the first key of each pair removes the second. `turns` says whose request is
    /// done next; who gets no more turns has died.
    async fn play(&self, pairs: &[(usize, usize)], turns: impl Iterator<Item = usize>) -> Played {
        let inner: Arc<dyn ObjectStore> = Arc::new(self.inner.fork());
        let on = |repo: &Repository| Repository {
            store: Store::new(HookedStore::new(Arc::clone(&inner), Stepped), Path::default(), "m"),
            params: repo.params.clone(),
            keys: Arc::clone(&repo.keys),
            master: repo.master.clone(),
            opened_with: repo.opened_with,
            format: repo.format.clone(),
            read_from: repo.read_from,
            known: repo.known,
        };
        let repos: Vec<Repository> = pairs.iter().map(|(own, _)| on(&self.opened[*own])).collect();
        let key = |n: usize| *self.opened[n].opened_with().unwrap();
        let gone: Vec<KeyId> = pairs.iter().map(|(_, gone)| key(*gone)).collect();
        let runs = repos.iter().zip(&gone).map(|(repo, gone)| repo.remove_key(gone).boxed());
        let mut runs: Vec<Option<BoxFuture<'_, Result<()>>>> = runs.map(Some).collect();
        let mut played = Played::default();
        let mut cx = Context::from_waker(Waker::noop());
        for run in runs.iter_mut().flatten() {
            assert!(run.as_mut().poll(&mut cx).is_pending(), "it waits for its first turn");
        }
        for turn in turns {
            played.turns += usize::from(runs[0].is_some());
            let Some(run) = &mut runs[turn] else { continue };
            if let Poll::Ready(ended) = run.as_mut().poll(&mut cx) {
                played.done += usize::from(ended.is_ok());
                runs[turn] = None;
            }
        }
        played.dead = runs.iter().flatten().count();
        drop(runs);
        let plain = store_on(Arc::clone(&inner)).1;
        played.left = plain.list(KEYS_PREFIX).await.unwrap().len();
        played.removals = plain.list("removals").await.unwrap().len();
        played
    }
}

/// Requests of one removal.
const TURNS: u32 = 8;

#[tokio::test]
async fn one_removal_alone_leaves_nothing_behind() {
    let scene = Scene::new(2).await;
    let played = scene.play(&[(0, 1)], std::iter::repeat_n(0, 50)).await;
    assert_eq!((played.done, played.left, played.removals), (1, 1, 0), "{played:?}");
    assert_eq!(played.turns, TURNS as usize, "requests of one removal");
}

/// Two that hold each other's key: all orders of their requests, and of all beginnings of them, so
/// that each may die after any request. A key is always left, and never do both say that they are
/// done.
#[tokio::test]
async fn two_removals_leave_a_key_in_every_order_and_after_every_death() {
    let scene = Scene::new(2).await;
    let (mut orders, mut one_done, mut both_refused) = (0, 0, 0);
    for turns in 0..=2 * TURNS {
        for order in 0..1_u32 << turns {
            let of_second = order.count_ones();
            if of_second > TURNS || turns - of_second > TURNS {
                continue;
            }
            orders += 1;
            let turns = (0..turns).map(|n| usize::from(order >> n & 1 == 1));
            let played = scene.play(&[(0, 1), (1, 0)], turns).await;
            assert!(played.left >= 1, "no key is left: {played:?}, {order:b}");
            assert!(played.done <= 1 && played.left <= 2 - played.done, "{played:?}, {order:b}");
            assert!(played.dead > 0 || played.removals == 0, "{played:?}, {order:b}");
            one_done += usize::from(played.done == 1);
            both_refused += usize::from(played.done == 0 && played.dead == 0);
        }
    }
    println!("{orders} orders, in {one_done} one is done, in {both_refused} both are refused");
    assert!(one_done > 0 && both_refused > 0);
}

/// Three in a ring, and a fourth that removes what another one does.
#[tokio::test]
async fn more_removals_leave_a_key_in_random_orders() {
    let scene = Scene::new(3).await;
    let mut state = 0x5eed_u64;
    println!("seed: {state:#x}");
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from((state >> 33) % below).unwrap()
    };
    for round in 0..4000 {
        let turns: Vec<usize> = (0..random(50)).map(|_| random(4)).collect();
        let pairs = [(0, 1), (1, 2), (2, 0), (0, 2)];
        let played = scene.play(&pairs, turns.iter().copied()).await;
        assert!(played.left >= 1, "no key is left: round {round}, {played:?}, {turns:?}");
    }
}

/// Who died in between keeps the holder of that key from removing others; finishing it ends that.
#[tokio::test]
async fn a_removal_that_died_is_finished_by_the_next() {
    let (repo, _, inner) = memory_repository().await;
    let cheap = KdfCost { memory_kib: 8, passes: 1, lanes: 1 };
    let first = *repo.opened_with().unwrap();
    let second = repo.add_key(&key_file(2), "second", cheap).await.unwrap();
    let dead = removal_key(&first, &KeyId::random());
    repo.store().put(&dead, Bytes::new()).await.unwrap();
    let e = repo.remove_key(&second).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.hint_text().unwrap().contains(&dead), "{e:?}");
    let other = Repository::open(store_on(inner).1, &[key_file(2)]).await.unwrap();
    other.remove_key(&first).await.unwrap();
    assert!(other.store().list("removals").await.unwrap().is_empty());
    assert_eq!(other.list_keys().await.unwrap().len(), 1);
    // and who is opened with what is gone removes nothing
    let e = repo.remove_key(&second).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert_eq!(other.list_keys().await.unwrap().len(), 1);
}
