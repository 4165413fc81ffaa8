use crate::map::model::{Build, Built, Update, chunk, repository, run};
use crate::map::{MapReader, MapWalk, Window};
use crate::repository::Repository;
use std::ops::Range;
use std::sync::Arc;

const C: u64 = 4096;

fn walk(repo: &Arc<Repository>, built: &Built, chunks: Range<u64>, leaves: usize) -> Vec<Window> {
    let mut reader = MapReader::new(Arc::clone(repo), built.map.clone()).unwrap();
    let mut walk = MapWalk::new(&mut reader, chunks, leaves);
    let mut windows = Vec::new();
    while let Some(window) = run(walk.next()).unwrap() {
        windows.push(window);
    }
    windows
}

fn every(step: u64, chunks: u64) -> Vec<Update> {
    (0..chunks)
        .step_by(usize::try_from(step).unwrap())
        .map(|k| Update::Set(k..k + 1, vec![Some(chunk(k, 0))]))
        .collect()
}

#[test]
fn a_zero_volume_is_one_window_without_requests() {
    let repo = repository(16);
    let built = Build::new(&repo, 64 << 40).run(&[]);
    let before = repo.store().counts();
    let windows = walk(&repo, &built, 0..u64::MAX, 10);
    assert_eq!(repo.store().counts(), before);
    assert_eq!(windows.len(), 1);
    assert_eq!(windows[0].chunks, 0..(64 << 40) / C);
    assert_eq!(windows[0].pages.pages(), 0);
    assert!(walk(&repo, &built, 5..5, 10).is_empty());
    assert!(walk(&repo, &built, u64::MAX - 1..u64::MAX, 10).is_empty());
}

#[test]
fn a_dense_volume_is_walked_in_full_windows() {
    let repo = repository(16);
    let all = Update::Set(0..64_000, (0..64_000).map(|k| Some(chunk(k, 0))).collect());
    let built = Build { pack_bytes: 1 << 30, ..Build::new(&repo, 64_000 * C) }.run(&[all]);
    let before = repo.store().counts().gets;
    let windows = walk(&repo, &built, 0..64_000, 500);
    assert_eq!(windows.len(), 8);
    assert!(windows.iter().all(|w| w.pages.levels()[0].len() <= 500));
    let inner: usize = windows.iter().map(|w| w.pages.pages() - w.pages.levels()[0].len()).sum();
    assert!(inner < 8 * 60, "{inner} inner pages in windows");
    let used = repo.store().counts().gets - before;
    assert!(used <= 8 * 3, "{used} requests");
}

#[test]
fn sparse_volumes_fill_their_windows_after_a_while() {
    let repo = repository(16);
    // one chunk in each page of level 1 and of level 2
    for step in [256, 4096] {
        let chunks = step * 1000;
        let build = Build { window: 1000, pack_bytes: 1 << 30, ..Build::new(&repo, chunks * C) };
        let built = build.run(&every(step, chunks));
        let windows = walk(&repo, &built, 0..chunks, 100);
        assert!(windows.len() < 30, "{} windows", windows.len());
        built.check(&repo, 100);
        built.check(&repo, 1);
    }
}

#[test]
fn parts_of_a_volume() {
    let repo = repository(16);
    let built = Build::new(&repo, 10_000 * C).run(&every(3, 10_000));
    for range in [0..1, 5..6, 15..17, 0..10_000, 4000..4100, 9_999..10_000, 255..257, 9_000..20_000]
    {
        for leaves in [1, 3, 1000] {
            let windows = walk(&repo, &built, range.clone(), leaves);
            assert_eq!(windows[0].chunks.start, range.start);
            assert_eq!(windows.last().unwrap().chunks.end, range.end.min(10_000));
            assert!(windows.windows(2).all(|w| w[0].chunks.end == w[1].chunks.start));
            let found: Vec<_> = windows
                .iter()
                .flat_map(|w| w.pages.nonzero(w.chunks.clone()).unwrap())
                .map(|(k, c)| (k.0, c))
                .collect();
            let want: Vec<_> =
                built.model.chunks.range(range.clone()).map(|(k, c)| (*k, *c)).collect();
            assert_eq!(found, want, "{range:?}");
        }
    }
}
