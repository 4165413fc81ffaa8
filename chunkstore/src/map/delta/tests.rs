#![allow(clippy::single_range_in_vec_init)]

use super::*;
use crate::map::model::{Build, Built, Update, chunk, repository, run};

const C: u64 = 4096;

fn set(range: Range<u64>, content: u64) -> Update {
    let to = range.clone().map(|k| Some(chunk(content + k, 0))).collect();
    Update::Set(range, to)
}

/// The delta, held against the models of both volumes.
fn check(repo: &Arc<Repository>, a: &Built, b: &Built) -> MapDelta {
    let reader = |built: &Built| MapReader::new(Arc::clone(repo), built.map.clone()).unwrap();
    let delta = run(between(&mut reader(a), &mut reader(b))).unwrap();
    let geometry = b.model.geometry;
    let numbers = a.model.changed_to(&b.model).into_iter().flatten();
    let numbers = numbers.filter(|number| *number < geometry.chunks());
    let (data, zero): (Vec<u64>, Vec<u64>) = numbers.partition(|n| b.model.chunks.contains_key(n));
    let bytes = |numbers: Vec<u64>| -> Extents {
        let start = |n: &u64| geometry.offset(ChunkNo(*n));
        let end = |n: &u64| start(n) + u64::from(geometry.len(ChunkNo(*n)));
        numbers.iter().map(|n| start(n)..end(n)).collect()
    };
    assert_eq!(delta, MapDelta { data: bytes(data), zero: bytes(zero) });
    delta
}

#[test]
fn sizes_that_differ_are_cut_at_the_end_of_the_second() {
    let repo = repository(16);
    let mut maps = Vec::new();
    for chunks in [1, 15, 16, 17, 256, 257, 4097] {
        for short in [0, 100, 4000] {
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
fn long_and_scattered_changes_are_told_from_zeros() {
    let (repo, size) = (repository(16), 70_000 * C);
    let a = Build::new(&repo, size).run(&[set(0..70_000, 0)]);
    // more leaves than are held at a time, with a hole
    let long = [set(0..30_000, 1), Update::Zero(30_000..30_010), set(30_010..60_000, 2)];
    let delta = check(&repo, &a, &Build::on(&repo, size, &a).run(&long));
    assert_eq!(delta.zero.as_slice(), [30_000 * C..30_010 * C]);
    let scattered: Vec<_> = (0..9000)
        .map(|k| if k % 3 == 0 { Update::Zero(k * 2..k * 2 + 1) } else { set(k * 2..k * 2 + 1, 5) })
        .collect();
    let b = Build { window: 1000, ..Build::on(&repo, size, &a) }.run(&scattered);
    let delta = check(&repo, &a, &b);
    assert_eq!((delta.data.count(), delta.zero.count()), (6000, 3000));
    assert_eq!(check(&repo, &a, &a), MapDelta::default());
}
