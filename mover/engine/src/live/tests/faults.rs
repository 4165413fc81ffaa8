//! Single things that must hold, one at a time.

use super::model::{open, runtime, world};
use super::sim::Faults;
use crate::live::hydrate::{HydrateOptions, hydrate};
use crate::live::volume::locked;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Builder;

const CHUNK: u64 = 32;

fn options() -> HydrateOptions {
    HydrateOptions {
        tasks: 2,
        run_bytes: 4 * CHUNK,
        ahead_bytes: 6 * CHUNK,
        flush_bytes: 1 << 20,
        first: Vec::new(),
    }
}

#[test]
fn damage_is_an_error_of_its_bytes_alone_until_all_of_them_are_written() {
    let sim = world(1, Faults { damage: true, ..Faults::default() });
    let rt = runtime();
    let volume = open(&rt, &sim);
    rt.block_on(async {
        let mut byte = [0];
        for chunk in 0..12 {
            let read = volume.read(chunk * CHUNK + 3, &mut byte).await;
            match [2, 5, 11].contains(&chunk) {
                true => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData),
                false => assert!(read.is_ok()),
            }
        }
        // a part cannot be merged with what is damaged; all of it needs nothing
        let part = volume.write(2 * CHUNK + 1, Bytes::from_static(&[7])).await;
        assert_eq!(part.unwrap_err().kind(), io::ErrorKind::InvalidData);
        volume.write(2 * CHUNK, Bytes::from(vec![7; 32])).await.unwrap();
        volume.write(2 * CHUNK + 1, Bytes::from_static(&[8])).await.unwrap();
        let hydrated = hydrate(&volume, &options(), |_| {}).await.unwrap();
        assert_eq!(hydrated.damaged, [5 * CHUNK..6 * CHUNK, 11 * CHUNK..volume.size_bytes()]);
        let figures = volume.figures();
        assert_eq!((figures.chunks, figures.done, figures.durable), (12, 10, 10));
    });
}

#[test]
fn a_trim_of_whole_chunks_is_zeros_for_ever_and_of_parts_is_nothing() {
    let sim = world(4, Faults::default());
    let backup = locked(&sim.0).backup.clone();
    let rt = runtime();
    let volume = open(&rt, &sim);
    rt.block_on(async {
        volume.trim(CHUNK - 5..4 * CHUNK + 7).await.unwrap();
        volume.trim(10 * CHUNK + 1..volume.size_bytes()).await.unwrap();
        volume.flush().await.unwrap();
    });
    drop(rt);
    locked(&sim.0).crash();
    let rt = runtime();
    let volume = open(&rt, &sim);
    let mut expected = backup;
    expected[32..4 * 32].fill(0);
    expected[11 * 32..].fill(0);
    for _ in 0..2 {
        let mut found = vec![1; expected.len()];
        rt.block_on(volume.read(0, &mut found)).unwrap();
        assert_eq!(found, expected);
        rt.block_on(hydrate(&volume, &options(), |_| {})).unwrap();
    }
}

#[test]
fn a_write_of_all_of_a_chunk_asks_the_source_for_nothing() {
    let faults = Faults { away: true, ..Faults::default() };
    for seed in 0..50 {
        let sim = world(seed, faults);
        let rt = runtime();
        let volume = open(&rt, &sim);
        rt.block_on(async {
            volume.write(0, Bytes::from(vec![1; 3 * 32])).await.unwrap();
            volume.zero(5 * CHUNK..8 * CHUNK, true).await.unwrap();
            volume.write(11 * CHUNK, Bytes::from(vec![1; 21])).await.unwrap();
            volume.write(3, Bytes::from(vec![2; 60])).await.unwrap();
        });
    }
}

#[test]
fn a_second_flush_writes_nothing_that_the_first_has_written() {
    let sim = world(9, Faults::default());
    let rt = runtime();
    let volume = open(&rt, &sim);
    rt.block_on(async {
        volume.write(0, Bytes::from(vec![1; 32])).await.unwrap();
        volume.flush().await.unwrap();
        let len = locked(&sim.0).journal().len();
        volume.write(4, Bytes::from(vec![2; 8])).await.unwrap();
        volume.flush().await.unwrap();
        assert_eq!(locked(&sim.0).journal().len(), len);
    });
}

/// So that little is left for the flush at the end, for which there is little time.
#[test]
fn what_is_written_is_durable_soon_although_nobody_flushes() {
    let sim = world(9, Faults::default());
    let rt = Builder::new_current_thread().enable_time().build().unwrap();
    let volume = open(&rt, &sim);
    let changes = Arc::new(AtomicU64::new(0));
    let begun = Arc::clone(&changes);
    let keeps = Arc::clone(&volume)
        .keep_flushed(Duration::from_millis(1), move || begun.load(Ordering::Relaxed));
    rt.spawn(keeps);
    let durable = async {
        for chunk in 0..3 {
            changes.fetch_add(1, Ordering::Relaxed);
            volume.write(chunk * CHUNK, Bytes::from(vec![7; 32])).await.unwrap();
            while volume.figures().durable <= chunk {
                tokio::task::yield_now().await;
            }
        }
    };
    rt.block_on(async { tokio::time::timeout(Duration::from_secs(20), durable).await }).unwrap();
}

#[test]
fn the_source_hears_of_what_is_fetched_in_order_and_of_no_more() {
    let sim = world(6, Faults::default());
    let rt = runtime();
    let volume = open(&rt, &sim);
    rt.block_on(async {
        volume.write(3 * CHUNK, Bytes::from(vec![1; 32])).await.unwrap();
        volume.expect(&(2 * CHUNK..5 * CHUNK));
        volume.expect(&(u64::MAX - 1..u64::MAX));
        let options = HydrateOptions { tasks: 5, run_bytes: CHUNK, ..options() };
        hydrate(&volume, &options, |_| {}).await.unwrap();
    });
    let chunk = |n: u64| n * CHUNK..((n + 1) * CHUNK).min(volume.size_bytes());
    let world = locked(&sim.0);
    assert_eq!(world.expected, [2, 4].map(chunk));
    assert_eq!(world.prefetched[..2], [chunk(0).start..chunk(2).end, chunk(4).start..chunk(6).end]);
    let bytes: Vec<u64> = world.prefetched.iter().cloned().flatten().collect();
    let fetched: Vec<u64> = (0..12).filter(|n| *n != 3).flat_map(chunk).collect();
    assert_eq!(bytes, fetched);
}
