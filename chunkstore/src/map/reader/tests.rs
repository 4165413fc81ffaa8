#![allow(clippy::single_range_in_vec_init)]

use super::*;
use crate::error::ErrorKind;
use crate::format::manifest::MapRoot;
use crate::format::names;
use crate::format::page::Child;
use crate::ids::PageId;
use crate::keys::Encryption;
use crate::map::model::{
    Build, Built, Update, chunk, geometry, packs, put_finished, repository, repository_in, rewrite,
    run, sink,
};
use crate::map::{Inherit, MapWalk};
use crate::pack::entry_parts;
use crate::units::{ChunkNo, Location};
use object_store::memory::InMemory;
use proptest::prelude::*;

const C: u64 = 4096;

fn dense(repo: &Arc<Repository>, chunks: u64, pack_bytes: u32) -> Built {
    let all = Update::Set(0..chunks, (0..chunks).map(|k| Some(chunk(k, 0))).collect());
    Build { pack_bytes, ..Build::new(repo, chunks * C) }.run(&[all])
}

fn reader(repo: &Arc<Repository>, built: &Built) -> MapReader {
    MapReader::new(Arc::clone(repo), built.map.clone()).unwrap()
}

fn gets(repo: &Repository) -> u64 {
    repo.store().counts().gets
}

#[test]
fn ten_thousand_leaves_are_a_handful_of_requests() {
    let repo = repository_in(Arc::new(InMemory::new()), 128, Encryption::Aes256Gcm);
    let built = dense(&repo, 10_000 * 128, 1 << 30);
    let inner = 10_000_u64.div_ceil(128) + 1;
    assert_eq!(built.pages, 10_000 + inner);
    assert_eq!(run(packs(&repo)).len(), 1);
    let before = gets(&repo);
    let mut reader = reader(&repo, &built);
    let pages = run(reader.load(&[0..built.map.geometry().chunks()])).unwrap();
    assert_eq!(pages.pages() as u64, built.pages);
    let used = gets(&repo) - before;
    // 52 MB of leaves in reads of 4 MiB, one read for the 79 pages above them, one for the root
    assert!(used <= 16, "{used} requests");
    assert_eq!(pages.nonzero(0..1_280_000).unwrap().count(), 1_280_000);
    // a few leaves here and there: a round of requests for each level, none for what is still in
    // the cache
    let before = gets(&repo);
    let far_apart: Vec<_> = (0..20).map(|k| k * 60_000..k * 60_000 + 1).collect();
    run(reader.load(&far_apart)).unwrap();
    let used = gets(&repo) - before;
    assert!(used <= 22, "{used} requests");
    let before = gets(&repo);
    run(reader.load(&far_apart)).unwrap();
    assert_eq!(gets(&repo), before);
}

#[test]
fn the_leaves_of_a_small_map_come_with_the_pages_above_them() {
    let repo = repository_in(Arc::new(InMemory::new()), 128, Encryption::Aes256Gcm);
    // 0.5 MB and 5 MB of leaves; the last is a root that is a leaf
    for (leaves, each) in [(100, 0), (1000, 1), (1, 0)] {
        let built = dense(&repo, leaves * 128, 1 << 30);
        let mut reader = reader(&repo, &built);
        run(reader.load_root()).unwrap();
        let before = gets(&repo);
        run(reader.load_inner()).unwrap();
        assert_eq!(gets(&repo) - before, u64::from(leaves > 1), "{leaves}");
        let before = gets(&repo);
        run(reader.load(&[(leaves - 1) * 128..leaves * 128])).unwrap();
        assert_eq!(gets(&repo) - before, each, "{leaves}");
    }
}

#[test]
fn a_damaged_leaf_is_left_to_whoever_wants_it() {
    let repo = repository_in(Arc::new(InMemory::new()), 128, Encryption::Aes256Gcm);
    let built = dense(&repo, 100 * 128, 1 << 30);
    let whole = run(reader(&repo, &built).load(&[0..built.map.geometry().chunks()])).unwrap();
    let inner = whole.page(1, 0).unwrap();
    let Location { pack, offset, .. } = inner.page_ref(7).unwrap().location;
    let key = names::pack_key(&pack);
    let mut bytes = run(repo.store().get(&key)).unwrap().to_vec();
    bytes[offset as usize + 40] ^= 1;
    run(repo.store().put(&key, bytes)).unwrap();
    for salvaged in [false, true] {
        let mut reader = reader(&repo, &built);
        if salvaged {
            reader.salvage_with(&Arc::new(Salvage::new(&repo)));
        }
        assert_eq!(run(reader.load_inner()).is_ok(), salvaged);
        assert!(reader.bad.is_empty());
        run(reader.load(&[6 * 128..7 * 128])).unwrap();
        let e = run(reader.load(&[7 * 128..8 * 128])).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    }
}

#[test]
fn what_was_wrong_in_a_load_that_ended_early_is_no_matter_of_the_next() {
    let faulty = crate::testkit::FaultyStore::new(Arc::new(InMemory::new()));
    let repo = repository_in(Arc::clone(&faulty) as _, 128, Encryption::Aes256Gcm);
    // the leaves are in several packs
    let built = dense(&repo, 100 * 128, 64 << 10);
    let whole = run(reader(&repo, &built).load(&[0..built.map.geometry().chunks()])).unwrap();
    let place = |leaf| whole.page(1, 0).unwrap().page_ref(leaf).unwrap().location;
    let (first, last) = (place(0), place(99));
    assert_ne!(first.pack, last.pack);
    let key = names::pack_key(&first.pack);
    let mut bytes = run(repo.store().get(&key)).unwrap().to_vec();
    bytes[first.offset as usize + 40] ^= 1;
    run(repo.store().put(&key, bytes)).unwrap();
    let mut reader = reader(&repo, &built);
    reader.salvage_with(&Arc::new(Salvage::new(&repo)));
    run(reader.load_root()).unwrap();
    let denied = format!("get {}", names::pack_key(&last.pack));
    faulty.fault(&denied, crate::testkit::Fault::Denied);
    // the damaged one is not the first that is wanted
    let e = run(reader.load(&[50 * 128..51 * 128, 0..128, 99 * 128..100 * 128])).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert_eq!(run(reader.load(&[98 * 128..99 * 128])).unwrap().pages(), 2);
}

#[test]
fn zero_subtrees_and_what_lies_behind_the_end_cost_nothing() {
    let repo = repository(16);
    let chunks = (64 << 40) / C;
    let some = Update::Set(5..6, vec![Some(chunk(1, 0))]);
    let built = Build::new(&repo, chunks * C).run(&[some]);
    let before = gets(&repo);
    let mut reader = reader(&repo, &built);
    let pages = run(reader.load(&[1 << 33..1 << 34, chunks..chunks + 10, 7..7])).unwrap();
    assert_eq!(gets(&repo) - before, 1, "the root alone");
    assert_eq!(pages.chunk(ChunkNo(1 << 33)).unwrap(), None);
    assert_eq!(pages.chunk(ChunkNo(chunks)).unwrap(), None);
    assert_eq!(pages.chunk(ChunkNo(5)).unwrap_err().kind(), ErrorKind::Bug);
    assert_eq!(pages.covered(), [1 << 33..1 << 34]);
    let before = gets(&repo);
    assert_eq!(run(reader.load(&[])).unwrap().pages(), 0);
    let all = run(reader.load(&[0..chunks])).unwrap();
    assert_eq!(gets(&repo) - before, u64::from(built.map.root().depth) - 1);
    let found: Vec<_> = all.nonzero(0..chunks).unwrap().collect();
    assert_eq!(found, [(ChunkNo(5), chunk(1, 0))]);
    assert_eq!(all.nonzero(0..5).unwrap().count() + all.nonzero(6..chunks).unwrap().count(), 0);
}

#[test]
fn the_requests_in_flight_keep_within_their_bytes() {
    let limits = ReadLimits::default();
    let read =
        |len| RangeRead { pack: PackId::from_bytes([0; 32]), start: 64, len, entries: Vec::new() };
    assert_eq!(limits.width(&[read(4 << 20), read(5)]), 4);
    assert_eq!(limits.width(&[read(100)]), 32);
    assert_eq!(limits.width(&[read(u32::MAX)]), 1);
    assert_eq!(limits.width(&[]), 32);
    let much = ReadLimits::within(1 << 40);
    assert_eq!((much.read_bytes_max, much.gap_bytes), (limits.read_bytes_max, limits.gap_bytes));
    let little = ReadLimits::within(1 << 20);
    let bytes =
        little.width(&[read(little.read_bytes_max)]) as u64 * u64::from(little.read_bytes_max);
    assert!(bytes <= 512 << 10 && little.cache_bytes_max == 512 << 10, "{little:?}");
    assert_eq!(ReadLimits::within(0).width(&[read(100)]), 1);
}

#[test]
fn packs_that_were_rewritten_are_followed() {
    let repo = repository(16);
    let built = dense(&repo, 3000, 8 << 10);
    let first = run(packs(&repo));
    assert!(first.len() > 3);
    for round in 0..3 {
        for pack in run(packs(&repo)) {
            run(rewrite(&repo, &pack));
        }
        let before = repo.store().counts();
        built.check(&repo, 7);
        let mut reader = reader(&repo, &built);
        run(reader.load(&[0..3000])).unwrap();
        let heads = repo.store().counts().heads - before.heads;
        assert!(heads <= 200, "{heads} look-ups in round {round}");
    }
    // what is known of a stub serves later loads
    let limits = ReadLimits { cache_bytes_max: 0, ..ReadLimits::default() };
    let mut reader = MapReader::with_limits(Arc::clone(&repo), built.map.clone(), limits).unwrap();
    run(reader.load(&[0..3000])).unwrap();
    let before = repo.store().counts();
    run(reader.load(&[0..3000])).unwrap();
    let after = repo.store().counts();
    assert_eq!(after.heads, before.heads);
    assert!(after.gets - before.gets <= 15, "{} requests", after.gets - before.gets);
    // built upon, it keeps the locations of its parent, which lead through the stubs
    let one = Update::Set(2000..2001, vec![Some(chunk(77_777, 0))]);
    let child = Build::on(&repo, 3000 * C, &built).run(&[one]);
    assert_eq!(child.pages, 3);
    child.check(&repo, 100);
    assert_eq!(built.diff(&repo, &child), [2000..2001]);
}

#[test]
fn a_lost_pack_names_page_and_pack() {
    let repo = repository(16);
    let built = dense(&repo, 300, 1 << 20);
    let pack = run(packs(&repo))[0];
    run(repo.store().delete(&names::pack_key(&pack))).unwrap();
    let error = run(reader(&repo, &built).load(&[0..300])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    let text = error.to_string();
    assert!(text.contains(&names::pack_key(&pack)) && text.contains("chunks 0..300"), "{text}");
}

/// A page as an attacker would store it, and a reference that claims to lead to another.
fn store_page(repo: &Repository, page: &Page, id: Option<PageId>) -> PageRef {
    let id = id.unwrap_or_else(|| page.id(repo.keys()));
    let mut sink = sink(repo, 1 << 20);
    let location = sink.store(id, &page.encode().unwrap()).unwrap();
    sink.close().unwrap();
    run(put_finished(repo, &mut sink));
    PageRef { id, location }
}

fn leaf(children: usize) -> Page {
    Page::new(0, (0..children as u64).map(|k| Some(chunk(k, 0).into())).collect())
}

fn load_error(repo: &Arc<Repository>, chunks: u64, root: PageRef) -> String {
    let depth = crate::units::map_depth(16, chunks);
    let map = VolumeMap::new(MapRoot { depth, root: Some(root) }, geometry(chunks * C), 16, "x");
    let mut reader = MapReader::new(Arc::clone(repo), map.unwrap()).unwrap();
    let error = run(reader.load(&[0..chunks])).unwrap_err();
    let refused = |kind| kind == ErrorKind::Corrupt;
    assert!(refused(error.kind()), "{error}");
    let mut walk = MapWalk::new(&mut reader, 0..chunks, 2);
    let walked = run(async {
        loop {
            match walk.next().await {
                Ok(Some(_)) => {}
                other => return other,
            }
        }
    });
    assert!(refused(walked.unwrap_err().kind()));
    error.to_string()
}

#[test]
fn hostile_maps_are_refused() {
    let repo = repository(16);
    let good = store_page(&repo, &leaf(16), None);
    let inner = |children: Vec<PageRef>| {
        Page::new(1, children.into_iter().map(|p| Some(p.into())).collect())
    };
    // a leaf in place of an inner page, and the other way round
    let text = load_error(&repo, 100, good);
    assert!(text.contains("it is a page of level 0"), "{text}");
    assert!(text.contains("page 0 of level 1 (chunks 0..100) of the map of x"), "{text}");
    assert!(text.contains(&names::pack_key(&good.location.pack)), "{text}");
    let above = store_page(&repo, &inner(vec![good]), None);
    assert!(load_error(&repo, 16, above).contains("it is a page of level 1"));
    // a page under the id of another
    let wrong = store_page(&repo, &leaf(15), Some(good.id));
    assert!(load_error(&repo, 16, wrong).contains("does not have the id"));
    let text = load_error(&repo, 30, store_page(&repo, &inner(vec![good, wrong]), None));
    assert!(text.contains("page 1 of level 0 (chunks 16..30)"), "{text}");
    // children behind the volume's end
    assert!(load_error(&repo, 15, good).contains("it lists 16 children where the volume has 15"));
    let four = store_page(&repo, &inner(vec![good; 4]), None);
    assert!(load_error(&repo, 48, four).contains("it lists 4 children where the volume has 3"));
    // locations that lead nowhere, or to other things
    let at = |change: &dyn Fn(&mut Location)| {
        let mut page = good;
        change(&mut page.location);
        page
    };
    assert!(load_error(&repo, 16, at(&|l| l.stored_len = u32::MAX)).contains("it is longer than"));
    assert!(load_error(&repo, 16, at(&|l| l.stored_len = 3)).contains("too short"));
    assert!(load_error(&repo, 16, at(&|l| l.offset = 1)).contains("outside a pack"));
    load_error(&repo, 16, at(&|l| l.offset += 1));
    load_error(&repo, 16, at(&|l| l.stored_len += 1));
    load_error(&repo, 16, at(&|l| l.stored_len -= 1));
    load_error(&repo, 16, at(&|l| l.offset = 1 << 30));
}

#[test]
fn a_flipped_bit_of_a_page_is_found() {
    for encryption in [Encryption::None, Encryption::Aes256Gcm] {
        let repo = repository_in(Arc::new(InMemory::new()), 16, encryption);
        let built = dense(&repo, 40, 1 << 20);
        let key = names::pack_key(&run(packs(&repo))[0]);
        let whole = run(repo.store().get(&key)).unwrap();
        let root = built.map.root().root.unwrap().location;
        let pages_end = (root.offset + root.stored_len) as usize;
        for at in 64..pages_end {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1;
            run(repo.store().put(&key, bytes)).unwrap();
            let error = run(reader(&repo, &built).load(&[0..40])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        }
    }
}

#[test]
fn a_page_may_stand_in_several_places() {
    // another program may store equal subtrees once
    let repo = repository(16);
    let good = store_page(&repo, &leaf(16), None);
    let children: Vec<Option<Child>> = (0..16).map(|k| (k != 3).then(|| good.into())).collect();
    let root = store_page(&repo, &Page::new(1, children), None);
    let map = VolumeMap::new(MapRoot { depth: 2, root: Some(root) }, geometry(256 * C), 16, "x");
    let mut reader = MapReader::new(Arc::clone(&repo), map.unwrap()).unwrap();
    let before = gets(&repo);
    let pages = run(reader.load(&[0..256])).unwrap();
    assert_eq!(gets(&repo) - before, 2);
    assert_eq!(pages.nonzero(0..256).unwrap().count(), 240);
    assert_eq!(pages.chunk(ChunkNo(255)).unwrap(), Some(chunk(15, 0)));
    assert_eq!(pages.chunk(ChunkNo(50)).unwrap(), None);
}

/// What stands at many places and cannot be read is lost at each of them: none reads as Zero.
#[test]
fn a_page_of_several_places_is_lost_at_all_of_them() {
    for cut in [true, false] {
        let repo = repository(16);
        let good = store_page(&repo, &leaf(16), None);
        let children: Vec<Option<Child>> = (0..16).map(|k| (k != 3).then(|| good.into())).collect();
        let root = store_page(&repo, &Page::new(1, children), None);
        let map = MapRoot { depth: 2, root: Some(root) };
        let map = VolumeMap::new(map, geometry(256 * C), 16, "x").unwrap();
        let key = names::pack_key(&good.location.pack);
        let whole = run(repo.store().get(&key)).unwrap();
        if cut {
            run(repo.store().put(&key, whole[..whole.len().min(100)].to_vec())).unwrap();
        } else {
            run(repo.store().delete(&key)).unwrap();
        }
        let mut reader = MapReader::new(Arc::clone(&repo), map).unwrap();
        reader.tolerate_damage();
        let pages = run(reader.load(&[0..256])).unwrap();
        assert_eq!(pages.nonzero(0..256).unwrap().count(), 0);
        let mut lost: Vec<_> = reader.take_lost().into_iter().map(|l| l.chunks).collect();
        lost.sort_unstable_by_key(|chunks| chunks.start);
        let want: Vec<_> = (0..16).filter(|k| *k != 3).map(|k| k * 16..k * 16 + 16).collect();
        assert_eq!(lost, want, "cut: {cut}");
    }
}

/// A page that a later program has sealed is not lost, whatever else is tolerated: zeros must not
/// take its place.
#[test]
fn a_page_of_a_newer_version_is_never_passed_over() {
    let repo = repository(16);
    let good = store_page(&repo, &leaf(16), None);
    let (pack, at) = (good.location.pack, good.location.offset);
    let key = names::pack_key(&pack);
    let mut whole = run(repo.store().get(&key)).unwrap().to_vec();
    let range = at as usize..(at + good.location.stored_len) as usize;
    for known_tag in [false, true] {
        let entry = &mut whole[range.clone()];
        entry[0] = 9;
        if known_tag {
            let (associated, payload, _) = entry_parts("a page", &pack, at, entry).unwrap();
            // without encryption
            let mut payload = payload.to_vec();
            let key = repo.keys().pack_key(&pack);
            let tag = key.seal_key().seal(u64::from(at), &associated, &mut payload).unwrap();
            let end = entry.len();
            entry[end - tag.len()..].copy_from_slice(&tag);
        }
        run(repo.store().put(&key, whole.clone())).unwrap();
        let map = MapRoot { depth: 1, root: Some(good) };
        let map = VolumeMap::new(map, geometry(16 * C), 16, "x").unwrap();
        let mut reader = MapReader::new(Arc::clone(&repo), map).unwrap();
        reader.tolerate_damage();
        let loaded = run(reader.load(&[0..16]));
        let lost = reader.take_lost().len();
        if known_tag {
            assert_eq!(loaded.unwrap_err().kind(), ErrorKind::Unsupported);
            assert_eq!(lost, 0);
        } else {
            assert!(loaded.is_ok() && lost == 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn loaded_ranges_are_as_the_model_says(
        chunks in 1u64..5000,
        sets in prop::collection::vec((0u64..5000, 1u64..60), 0..12),
        loads in prop::collection::vec(prop::collection::vec((0u64..5100, 0u64..400), 0..6), 1..6),
        cache_pages in 0usize..20,
        gap_bytes in 0u32..4000,
        read_bytes_max in 1u32..20_000,
    ) {
        let repo = repository(16);
        let mut at = 0;
        let mut updates = Vec::new();
        for (skip, len) in sets {
            let start = at + skip % 700;
            at = (start + len).min(chunks);
            if start < at {
                let to = (start..at).map(|k| (k % 5 != 0).then(|| chunk(k % 40, 0))).collect();
                updates.push(Update::Set(start..at, to));
            }
        }
        let built = Build { inherit: Inherit::Nothing, ..Build::new(&repo, chunks * C) }.run(&updates);
        let limits = ReadLimits {
            gap_bytes, read_bytes_max, cache_bytes_max: cache_pages * 1500, ..ReadLimits::default()
        };
        let mut reader = MapReader::with_limits(Arc::clone(&repo), built.map.clone(), limits).unwrap();
        for load in loads {
            let ranges: Vec<_> = load.iter().map(|(start, len)| *start..start + len).collect();
            let pages = run(reader.load(&ranges)).unwrap();
            for range in &ranges {
                let end = range.end.min(chunks);
                for number in range.clone() {
                    prop_assert_eq!(pages.chunk(ChunkNo(number)).unwrap(),
                        built.model.chunks.get(&number).copied());
                }
                if range.start < end {
                    let found: Vec<_> = pages.nonzero(range.start..end).unwrap().map(|(k, c)| (k.0, c)).collect();
                    let want: Vec<_> = built.model.chunks.range(range.start..end).map(|(k, c)| (*k, *c)).collect();
                    prop_assert_eq!(found, want);
                }
            }
        }
    }
}
