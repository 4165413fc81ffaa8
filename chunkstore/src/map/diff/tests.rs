#![allow(clippy::single_range_in_vec_init)]

use super::*;
use crate::map::model::{Build, Built, Update, chunk, repository};
use crate::repository::Repository;

const C: u64 = 4096;

fn set(range: Range<u64>, content: u64) -> Update {
    let to = range.clone().map(|k| Some(chunk(content + k, 0))).collect();
    Update::Set(range, to)
}

fn check(repo: &Arc<Repository>, a: &Built, b: &Built) -> Vec<Range<u64>> {
    let ranges = a.diff(repo, b);
    assert_eq!(ranges, a.model.changed_to(&b.model));
    assert_eq!(ranges, b.diff(repo, a));
    ranges
}

#[test]
fn a_small_change_of_a_large_volume_is_found_by_its_path() {
    let repo = repository(16);
    let size = 64 << 40;
    let a = Build::new(&repo, size).run(&[set(0..3000, 0), set(1 << 33..(1 << 33) + 3000, 0)]);
    let b = Build::on(&repo, size, &a).run(&[set((1 << 33) + 500..(1 << 33) + 501, 7)]);
    let before = repo.store().counts().gets;
    assert_eq!(check(&repo, &a, &b), [(1 << 33) + 500..(1 << 33) + 501]);
    let used = repo.store().counts().gets - before;
    assert!(used <= 4 * u64::from(a.map.root().depth), "{used} requests");
    let before = repo.store().counts().gets;
    assert_eq!(check(&repo, &a, &a), []);
    assert_eq!(repo.store().counts().gets, before);
}

#[test]
fn zero_against_data_and_different_sizes() {
    let repo = repository(16);
    let sizes = [1, 15, 16, 17, 255, 256, 257, 4096, 4097, 60_000];
    let mut maps = Vec::new();
    for chunks in sizes {
        for short in [0, 100] {
            let size = chunks * C - short;
            maps.push(Build::new(&repo, size).run(&[]));
            maps.push(Build::new(&repo, size).run(&[set(0..chunks.min(20), 0)]));
            maps.push(Build::new(&repo, size).run(&[set(chunks.saturating_sub(3)..chunks, 0)]));
        }
    }
    for a in &maps {
        for b in &maps {
            check(&repo, a, b);
        }
    }
}

#[test]
fn the_work_ahead_stays_small_however_much_differs() {
    let places = |level: u8, count: u64| {
        (0..count).map(move |number| Place { level, number, sides: [Side::Zero, Side::Zero] })
    };
    let mut ahead: Vec<_> = places(1, 500).collect();
    assert_eq!(take_round(&mut ahead).len(), ROUND_PAGES);
    ahead.extend(places(0, 1000));
    let round = take_round(&mut ahead);
    assert!(round.len() == ROUND_LEAVES && round.iter().all(|p| p.level == 0));
    ahead.truncate(500 - ROUND_PAGES);
    ahead.extend(places(0, 3));
    assert_eq!(take_round(&mut ahead).len(), 3);
    let repo = repository(16);
    let a = Build::new(&repo, 70_000 * C).run(&[set(0..70_000, 0)]);
    let b = Build::new(&repo, 70_000 * C).run(&[set(0..70_000, 1)]);
    assert_eq!(check(&repo, &a, &b), [0..70_000]);
    let every_other: Vec<_> = (0..9000).map(|k| set(k * 2..k * 2 + 1, 5)).collect();
    let c = Build { window: 1000, ..Build::on(&repo, 70_000 * C, &a) }.run(&every_other);
    assert_eq!(check(&repo, &a, &c).len(), 9000);
}
