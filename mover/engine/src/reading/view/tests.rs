//! Views against the volume in memory: random reads from several threads, damage, packs that were
//! rewritten, requests counted.

use super::*;
use crate::ops::restore::testkit::{Image, Kit, Shape};
use crate::run::MemoryBudget;
use chunkstore::map::delta_of;
use chunkstore::{Encryption, Manifest, MapReader, VolumeMap};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn small(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

fn needs(threads: usize, disk_cache: bool) -> ViewNeeds {
    ViewNeeds { maps: 1, use_of: ViewUse::Reading, threads, disk_cache }
}

fn pool(kit: &Kit, budget_mib: u64) -> ViewPool {
    let budget = MemoryBudget { total_bytes: budget_mib * MIB };
    let limits = ViewLimits::plan(budget, kit.repo.params(), needs(2, false)).unwrap();
    ViewPool::start(kit.rt.handle(), &kit.repo, limits, None).unwrap()
}

fn open(kit: &Kit, pool: &ViewPool, manifest: &Manifest) -> Arc<BackupView> {
    kit.rt.block_on(BackupView::open(pool, manifest)).unwrap()
}

fn read(kit: &Kit, view: &Arc<BackupView>, range: Range<u64>) -> Result<Vec<u8>> {
    // what is not filled must not look like what is zero
    let mut buf = vec![0xa5; small(range.end - range.start)];
    let zeros = kit.rt.block_on(view.read(range.start, &mut buf))?;
    assert!(zeros.iter().all(|z| buf[z.clone()].iter().all(|b| *b == 0)));
    Ok(buf)
}

fn cut(bytes: &[u8], range: &Range<u64>) -> Vec<u8> {
    bytes[small(range.start)..small(range.end)].to_vec()
}

/// Waits until nothing is under way: what was read ahead may be.
fn rest(kit: &Kit, pool: &ViewPool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !pool.entries.at_rest() {
        assert!(std::time::Instant::now() < until, "flights that do not end");
        kit.rt.block_on(tokio::task::yield_now());
    }
}

fn pack_gets(kit: &Kit) -> Vec<String> {
    let log = kit.store.take();
    let gets = log.into_iter().filter(|(what, key)| *what == "get" && key.starts_with("packs/"));
    gets.map(|(_, key)| key).collect()
}

/// Packs of chunks.
fn chunk_packs(kit: &Kit) -> Vec<String> {
    kit.keys_of("packs").into_iter().filter(|key| kit.object(key)[10] == 1).collect()
}

#[derive(Debug, Clone)]
struct Case {
    shape: Shape,
    size_bytes: u64,
    chunks: Vec<(u64, u64)>,
    reads: Vec<(u64, u64)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (0_u32..3, 1_u16..12, 0_u32..2, any::<bool>(), 1_u32..60).prop_map(
        |(c, e, f, sealed, p)| Shape {
            chunk_bytes: 4096 << c,
            entry_chunks: e,
            page_fanout: 16 << f,
            encryption: if sealed { Encryption::Aes256Gcm } else { Encryption::None },
            pack_bytes: p * 10_000,
        },
    );
    let chunks = proptest::collection::vec((0_u64..400, 0_u64..12), 0..150);
    let reads = proptest::collection::vec((any::<u64>(), 1_u64..200_000), 40..80);
    (shape, 1_u64..1_600_000, chunks, reads).prop_map(|(shape, size_bytes, chunks, reads)| Case {
        shape,
        size_bytes,
        chunks,
        reads,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn random_reads_of_many_threads_are_the_volume(case in cases()) {
        let kit = Kit::new(case.shape);
        let mut image = kit.image(case.size_bytes);
        case.chunks.iter().for_each(|(chunk, seed)| image.set(*chunk, *seed));
        let manifest = kit.backup("vol", "one", &image);
        let bytes = image.bytes();
        let pool = pool(&kit, 64);
        let view = open(&kit, &pool, &manifest);
        let ranges: Vec<Range<u64>> = case.reads.iter().map(|(at, len)| {
            let start = at % case.size_bytes;
            start..(start + len).min(case.size_bytes)
        }).collect();
        std::thread::scope(|threads| {
            for of_thread in ranges.chunks(12) {
                let (kit, view, bytes) = (&kit, &view, &bytes);
                threads.spawn(move || {
                    for range in of_thread {
                        let got = read(kit, view, range.clone()).unwrap();
                        assert!(got == cut(bytes, range), "{range:?}");
                    }
                });
            }
        });
        for range in &ranges {
            check_extents(&kit, &view, &image, range.clone());
        }
        rest(&kit, &pool);
        for bad in [case.size_bytes..case.size_bytes + 1, 0..case.size_bytes + 1] {
            prop_assert_eq!(read(&kit, &view, bad).unwrap_err().kind(), ErrorKind::Usage);
        }
    }
}

/// What is said of a range is what the image has, chunk by chunk, without gaps.
fn check_extents(kit: &Kit, view: &Arc<BackupView>, image: &Image, range: Range<u64>) {
    let geometry = image.geometry();
    let mut at = range.start;
    let mut last = None;
    while at < range.end {
        let found = kit.rt.block_on(view.extents(at..range.end)).unwrap();
        for extent in found {
            assert!(extent.range.start == at && extent.range.end > at, "{extent:?}");
            for chunk in geometry.chunks_of(extent.range.clone()) {
                assert_eq!(extent.zero, !image.chunks.contains_key(&chunk), "{extent:?}");
            }
            assert_ne!(last, Some(extent.zero), "neighbours that are one");
            last = Some(extent.zero);
            at = extent.range.end;
        }
    }
    assert_eq!(at, range.end);
}

/// A volume whose chunks are all of their own.
fn full(kit: &Kit, chunks: u64) -> (Image, Manifest) {
    let mut image = kit.image(chunks * 4096);
    (0..chunks).for_each(|chunk| image.set(chunk, chunk + 1));
    let manifest = kit.backup("vol", "one", &image);
    (image, manifest)
}

#[test]
fn what_many_want_at_once_is_asked_for_once() {
    let kit = Kit::new(Shape::default());
    let (image, manifest) = full(&kit, 64);
    let pool = pool(&kit, 64);
    let view = open(&kit, &pool, &manifest);
    *view.streams.lock().unwrap() = Streams::new(0);
    kit.store.take();
    let bytes = image.bytes();
    kit.rt.block_on(async {
        let reads = (0..200_u64).map(|n| {
            let (view, bytes) = (Arc::clone(&view), &bytes);
            async move {
                let mut buf = [0; 10];
                view.read(n * 100, &mut buf).await.unwrap();
                assert_eq!(buf[..], bytes[small(n * 100)..][..10]);
            }
        });
        futures::future::join_all(reads).await;
    });
    // five chunks and their neighbours are one entry of eight, and one leaf leads there; the
    // inner page may have been on its way
    let packs = chunk_packs(&kit);
    let (data, pages): (Vec<_>, Vec<_>) =
        pack_gets(&kit).into_iter().partition(|key| packs.contains(key));
    assert_eq!(data.len(), 1, "{data:?}");
    assert!(pages.len() <= 2, "{pages:?}");
    let counts = pool.counts();
    assert_eq!((counts.misses, counts.hits, counts.reads), (1, 199, 1));
}

#[test]
fn a_first_read_of_a_small_map_costs_an_entry() {
    let kit = Kit::new(Shape::default());
    let (image, manifest) = full(&kit, 1000);
    let pool = pool(&kit, 64);
    let view = open(&kit, &pool, &manifest);
    // all of the map, read once it is open
    kit.rt.block_on(view.leaves.stored(0..1)).unwrap();
    kit.store.take();
    let range = 700 * 4096..701 * 4096;
    assert!(read(&kit, &view, range.clone()).unwrap() == cut(&image.bytes(), &range));
    assert_eq!(pack_gets(&kit).len(), 1);
    read(&kit, &view, range).unwrap();
    assert!(pack_gets(&kit).is_empty());
}

#[test]
fn a_sequential_reader_makes_long_reads() {
    let shape = Shape { pack_bytes: 16 << 20, ..Shape::default() };
    let kit = Kit::new(shape);
    let (image, manifest) = full(&kit, 8192);
    let bytes = image.bytes();
    let pool = pool(&kit, 256);
    let view = open(&kit, &pool, &manifest);
    kit.store.take();
    for chunk in 0..8192_u64 {
        let range = chunk * 4096..(chunk + 1) * 4096;
        assert!(read(&kit, &view, range.clone()).unwrap() == cut(&bytes, &range));
    }
    rest(&kit, &pool);
    let counts = pool.counts();
    // of 1024 entries all but the first few came ahead, in runs
    assert!(counts.misses <= 8 && counts.reads < 60, "{counts:?}");
    assert!(counts.read_bytes < bytes.len() as u64 + MIB, "{counts:?}");
}

#[test]
fn a_cache_that_is_too_small_for_the_volume_stays_within_its_bound() {
    let shape =
        Shape { chunk_bytes: 65536, entry_chunks: 16, pack_bytes: 3 << 20, ..Shape::default() };
    let kit = Kit::new(shape);
    let mut image = kit.image(500 * 65536);
    (0..500).for_each(|chunk| image.set(chunk * 37 % 500, chunk % 200));
    let manifest = kit.backup("vol", "one", &image);
    let budget = MemoryBudget { total_bytes: 1 };
    let least = ViewLimits::plan(budget, kit.repo.params(), needs(1, false)).unwrap_err();
    let least = crate::run::TooLittleMemory::cause_of(&least).unwrap().least_mib();
    let pool = pool(&kit, least);
    let view = open(&kit, &pool, &manifest);
    let bytes = image.bytes();
    std::thread::scope(|threads| {
        for first in 0..4_u64 {
            let (kit, view, bytes) = (&kit, &view, &bytes);
            threads.spawn(move || {
                for part in (0..31_u64).map(|n| (n * 7 + first) % 31) {
                    let range = part * MIB..(part + 1) * MIB;
                    assert!(read(kit, view, range.clone()).unwrap() == cut(bytes, &range));
                }
            });
        }
    });
    rest(&kit, &pool);
}

#[test]
fn what_a_disk_has_is_not_fetched_again_and_what_it_has_lost_is() {
    let shape = Shape { chunk_bytes: 65536, pack_bytes: 3 << 20, ..Shape::default() };
    let kit = Kit::new(shape);
    let mut image = kit.image(600 * 65536);
    (0..600).for_each(|chunk| image.set(chunk, chunk));
    let manifest = kit.backup("vol", "one", &image);
    let directory = tempfile::tempdir().unwrap();
    let budget = MemoryBudget { total_bytes: 1 };
    let least = ViewLimits::plan(budget, kit.repo.params(), needs(2, true)).unwrap_err();
    let least = crate::run::TooLittleMemory::cause_of(&least).unwrap().least_mib();
    let budget = MemoryBudget { total_bytes: least << 20 };
    let limits = ViewLimits::plan(budget, kit.repo.params(), needs(2, true)).unwrap();
    assert!(limits.cache_bytes < 600 * 65536 / 8, "{limits:?}");
    let options = DiskCacheOptions { directory: directory.path().into(), bytes_max: 64 << 20 };
    let pool = ViewPool::start(kit.rt.handle(), &kit.repo, limits, Some(&options)).unwrap();
    let view = open(&kit, &pool, &manifest);
    let bytes = image.bytes();
    let data = chunk_packs(&kit);
    let read_all = || {
        kit.store.take();
        for part in 0..75_u64 {
            let range = part * 524_288..(part + 1) * 524_288;
            assert!(read(&kit, &view, range.clone()).unwrap() == cut(&bytes, &range));
        }
        rest(&kit, &pool);
        pack_gets(&kit).iter().filter(|key| data.contains(key)).count()
    };
    assert!(read_all() > 0);
    // an entry is kept where there is time for it
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while read_all() > 0 {
        assert!(std::time::Instant::now() < until, "it is never all on the disk");
    }
    let counts = pool.counts();
    assert!(counts.disk_hits > 60 && counts.disk_hits <= counts.hits + counts.misses, "{counts:?}");
    pool.entries.disk().spoil();
    assert!(read_all() > 0);
    // one that never answers is waited for once, and its reads are answered all the same
    while read_all() > 0 {
        assert!(std::time::Instant::now() < until, "it is not all on the disk again");
    }
    let stalled = pool.entries.disk().stalled();
    assert!(read_all() > 0);
    let hits = pool.counts().disk_hits;
    assert!(read_all() > 0);
    drop(stalled);
    assert!(read_all() > 0);
    assert_eq!(pool.counts().disk_hits, hits, "it is used no more");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn damage_is_an_error_of_its_own_bytes_until_it_is_mended() {
    for encryption in [Encryption::None, Encryption::Aes256Gcm] {
        let kit = Kit::new(Shape { encryption, ..Shape::default() });
        let (image, manifest) = full(&kit, 400);
        let bytes = image.bytes();
        let packs = chunk_packs(&kit);
        let whole: Vec<_> = packs.iter().map(|key| (key, kit.object(key))).collect();
        for (key, bytes) in &whole {
            let mut damaged = bytes.clone();
            damaged[64 + 20] ^= 1;
            kit.replace(key, damaged);
        }
        let pool = pool(&kit, 64);
        let view = open(&kit, &pool, &manifest);
        let read_all = || {
            let chunk = |n: u64| (n, read(&kit, &view, n * 4096..(n + 1) * 4096));
            let mut bad = 0;
            for (n, got) in (0..400).map(chunk) {
                match got {
                    Ok(got) => assert!(got == cut(&bytes, &(n * 4096..(n + 1) * 4096)), "{n}"),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
                        assert!(e.to_string().contains(&format!("chunk {n} ")), "{e}");
                        bad += 1;
                    }
                }
            }
            bad
        };
        // the first entry of each pack
        assert_eq!(read_all(), packs.len() * 8);
        // a read that needs one of them fails, and the buffer is not looked at
        assert!(read(&kit, &view, 0..400 * 4096).is_err());
        for (key, bytes) in whole {
            kit.replace(key, bytes);
        }
        assert_eq!(read_all(), 0);
        rest(&kit, &pool);
    }
}

#[test]
fn a_damaged_chunk_that_stands_twice_is_read() {
    let kit = Kit::new(Shape::default());
    let (image, manifest) = full(&kit, 100);
    kit.forget_known();
    kit.backup("vol", "again", &image);
    let packs = chunk_packs(&kit);
    let first = manifest_pack(&kit, &manifest, &packs);
    kit.remove(&first);
    let pool = pool(&kit, 64);
    let view = open(&kit, &pool, &manifest);
    assert!(read(&kit, &view, 0..100 * 4096).unwrap() == image.bytes());
    assert!(pool.salvaged().0.unwrap().chunks > 0);
}

/// A pack that a backup reads from.
fn manifest_pack(kit: &Kit, manifest: &Manifest, packs: &[String]) -> String {
    let pool = pool(kit, 64);
    let view = open(kit, &pool, manifest);
    kit.store.take();
    read(kit, &view, 0..4096).unwrap();
    let found = pack_gets(kit).into_iter().find(|key| packs.contains(key));
    found.unwrap()
}

#[test]
fn rewritten_packs_are_followed_also_in_the_middle() {
    let kit = Kit::new(Shape::default());
    let (image, manifest) = full(&kit, 300);
    let bytes = image.bytes();
    let pool = pool(&kit, 64);
    let view = open(&kit, &pool, &manifest);
    assert!(read(&kit, &view, 0..50 * 4096).unwrap() == cut(&bytes, &(0..50 * 4096)));
    for key in chunk_packs(&kit) {
        let once = kit.rewrite(&key);
        kit.rewrite(&once);
    }
    assert!(read(&kit, &view, 0..300 * 4096).unwrap() == bytes);
    kit.store.take();
    // where they went is known by now
    assert!(
        read(&kit, &view, 299 * 4096..300 * 4096).unwrap()
            == cut(&bytes, &(299 * 4096..300 * 4096))
    );
    assert!(kit.store.take().iter().all(|(_, key)| !key.starts_with("moved/")));
    rest(&kit, &pool);
}

#[test]
fn a_store_that_fails_is_asked_again_by_the_next_read() {
    let kit = Kit::new(Shape::default());
    let (image, manifest) = full(&kit, 100);
    let pool = pool(&kit, 64);
    let view = open(&kit, &pool, &manifest);
    kit.rt.block_on(view.leaves.stored(0..1)).unwrap();
    kit.store.take();
    kit.store.fail_after(Some(0));
    for _ in 0..3 {
        let e = read(&kit, &view, 0..4096).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    }
    kit.store.fail_after(None);
    assert!(read(&kit, &view, 0..100 * 4096).unwrap() == image.bytes());
    rest(&kit, &pool);
}

#[test]
fn a_damaged_leaf_is_an_error_of_its_own_bytes() {
    let kit = Kit::new(Shape { encryption: Encryption::Aes256Gcm, ..Shape::default() });
    let (image, manifest) = full(&kit, 400);
    let bytes = image.bytes();
    // each leaf covers 16 chunks; one of them is damaged
    let mut reader =
        MapReader::new(Arc::clone(&kit.repo), VolumeMap::of(&kit.repo, &manifest).unwrap())
            .unwrap();
    let pages = kit.rt.block_on(reader.load(std::slice::from_ref(&(0..400)))).unwrap();
    let leaf = pages.page(1, 0).unwrap().page_ref(3).unwrap().location;
    let key = chunkstore::format::names::pack_key(&leaf.pack);
    let mut damaged = kit.object(&key);
    damaged[leaf.offset as usize + 20] ^= 1;
    kit.replace(&key, damaged);
    let pool = pool(&kit, 64);
    let view = open(&kit, &pool, &manifest);
    let results = kit.rt.block_on(async {
        let reads = (0..400_u64).map(|n| {
            let view = Arc::clone(&view);
            async move {
                let mut buf = vec![0; 4096];
                view.read(n * 4096, &mut buf).await.map(|_| buf)
            }
        });
        futures::future::join_all(reads).await
    });
    for (n, got) in (0..).zip(results) {
        match got {
            Ok(got) => assert!(got == cut(&bytes, &(n * 4096..(n + 1) * 4096)), "{n}"),
            Err(e) => assert!((48..64).contains(&n) && e.kind() == ErrorKind::Corrupt, "{n}: {e}"),
        }
    }
    assert!(read(&kit, &view, 48 * 4096..49 * 4096).is_err());
}

/// What differs from another backup, from the maps alone.
#[test]
fn changed_extents_read_no_data() {
    let kit = Kit::new(Shape::default());
    let (mut image, first) = full(&kit, 200);
    image.set(7, 9999);
    image.set(150, 0);
    let second = kit.backup("vol", "two", &image);
    let packs = chunk_packs(&kit);
    kit.store.take();
    let delta = kit.rt.block_on(delta_of(&kit.repo, &first, &second)).unwrap();
    assert_eq!(delta.data.as_slice(), std::slice::from_ref(&(7 * 4096..8 * 4096)));
    assert_eq!(delta.zero.as_slice(), std::slice::from_ref(&(150 * 4096..151 * 4096)));
    assert!(pack_gets(&kit).iter().all(|key| !packs.contains(key)));
}

/// Memory between two reads is what the bounds say; nobody who does not read has any.
#[test]
fn the_store_keeps_buffers_within_the_bound_of_who_reads() {
    let kit = Kit::new(Shape { chunk_bytes: 65_536, pack_bytes: 4 << 20, ..Shape::default() });
    let mut image = kit.image(16 * MIB);
    (0..256).for_each(|chunk| image.set(chunk, chunk + 1));
    let manifest = kit.backup("vol", "one", &image);
    let kept = || kit.repo.store().kept_buffer_bytes();
    assert_eq!(kept(), 0);
    let pool = pool(&kit, 64);
    let view = open(&kit, &pool, &manifest);
    assert!(read(&kit, &view, 0..16 * MIB).unwrap() == image.bytes());
    rest(&kit, &pool);
    assert!((1..=pool.limits.kept_bytes).contains(&kept()), "{}", kept());
    assert_eq!(pool.limits.kept_bytes, 4 * MIB);
}
