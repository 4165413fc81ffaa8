//! What was named by the owner or by a guest: how much of it is fetched at a time, and that no part
//! of the source is read twice for it.

use super::model::{open, runtime, world};
use super::sim::Faults;
use crate::live::hydrate::{HydrateOptions, hydrate};
use crate::live::volume::locked;
use std::ops::Range;
use std::sync::Arc;

const CHUNK: u64 = 32;
const SIZE: u64 = 11 * CHUNK + 21;

fn options(tasks: usize, ahead_chunks: u64, first: &[u64]) -> HydrateOptions {
    HydrateOptions {
        tasks,
        run_bytes: 4 * CHUNK,
        ahead_bytes: ahead_chunks * CHUNK,
        flush_bytes: 1 << 20,
        first: first.iter().map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK).collect(),
    }
}

#[test]
fn an_entry_lands_whole_and_is_read_once() {
    // with and without runs that were chosen before the first one has landed
    for ahead_chunks in [0, 12, 40] {
        let sim = world(3, Faults::default());
        locked(&sim.0).entry_bytes = Some(4 * CHUNK);
        let rt = runtime();
        let volume = open(&rt, &sim);
        let hydrated = rt.block_on(hydrate(&volume, &options(1, ahead_chunks, &[5, 7, 0]), |_| {}));
        assert_eq!(hydrated.unwrap().landed_bytes, SIZE);
        let entries: Vec<Range<u64>> = vec![4 * CHUNK..8 * CHUNK, 0..4 * CHUNK, 8 * CHUNK..SIZE];
        assert_eq!(locked(&sim.0).reads, entries, "{ahead_chunks}");
    }
}

/// How many reads of the source are under way while a guest waits for one.
fn under_way(first: &[u64]) -> usize {
    let sim = world(5, Faults::default());
    {
        let mut world = locked(&sim.0);
        (world.stalls, world.entry_bytes) = (true, Some(CHUNK));
    }
    let rt = runtime();
    let volume = open(&rt, &sim);
    let options = options(8, 12, first);
    rt.block_on(async {
        let guest = Arc::clone(&volume);
        let guest = tokio::spawn(async move { guest.read(SIZE - 1, &mut [0]).await.map(drop) });
        while volume.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        let fetched = Arc::clone(&volume);
        let fetched = tokio::spawn(async move { hydrate(&fetched, &options, |_| {}).await });
        // until nothing more begins
        let (mut seen, mut same) = (0, 0);
        while same < 1000 {
            tokio::task::yield_now().await;
            let reads = locked(&sim.0).reads.len();
            same = if reads == seen { same + 1 } else { 0 };
            seen = reads;
        }
        locked(&sim.0).stalls = false;
        guest.await.unwrap().unwrap();
        fetched.await.unwrap().unwrap();
        seen
    })
}

#[test]
fn what_was_named_goes_on_while_guests_wait_and_the_rest_by_a_quarter() {
    // the guest's own, and a quarter of eight tasks: one for the guest's chunk, one for the rest
    assert_eq!(under_way(&[]), 1 + 2);
    // the guest's chunk and the five that were named, and nothing of the rest
    assert_eq!(under_way(&[1, 3, 4, 6, 8]), 1 + 1 + 5);
}
