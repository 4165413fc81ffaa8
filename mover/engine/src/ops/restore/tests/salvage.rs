//! Damage whose data stands a second time in the repository: nothing is lost. And headers of packs.

use super::damaged::{packs, run_verify, verify_options};
use super::*;
use crate::reading::SalvagedParts;
use chunkstore::format::names::pack_key;
use std::collections::BTreeSet;

/// A backup, and another one of the same image that shares nothing with it.
fn twins(shape: Shape) -> (Kit, Image, BTreeSet<String>) {
    let kit = Kit::new(shape);
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let of_one: BTreeSet<String> = kit.keys_of("packs").into_iter().collect();
    kit.forget_known();
    kit.backup("vol", "two", &image);
    (kit, image, of_one)
}

/// Flips a bit of an object.
fn flip(kit: &Kit, key: &str, at: usize) {
    let mut bytes = kit.object(key);
    bytes[at] ^= 1;
    kit.replace(key, bytes);
}

/// Restores in all ways, and verifies; gives what each of them says it found elsewhere.
fn all_ways(kit: &Kit, image: &Image) -> Vec<(Option<SalvagedParts>, Vec<String>)> {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    let mut said = Vec::new();
    let onto = run(kit, options("one", &target)).unwrap();
    assert!(fs::read(&target).unwrap() == image.bytes());
    said.push((onto.salvaged, onto.warnings));
    let mut out = Vec::new();
    let streamed = run_out(kit, &options("one", &target), &mut out).unwrap();
    assert!(out == image.bytes());
    assert_eq!(streamed.data_bytes + streamed.zero_bytes, image.size_bytes);
    said.push((streamed.salvaged, streamed.warnings));
    let skipping = RestoreOptions { skip_damaged: true, verify: false, ..options("one", &target) };
    let mut out = Vec::new();
    let skipped = run_out(kit, &skipping, &mut out).unwrap();
    assert!(out == image.bytes() && skipped.damaged.is_none());
    said.push((skipped.salvaged, skipped.warnings));
    let verified = run_verify(kit, verify_options("one")).unwrap();
    said.push((verified.salvaged, verified.warnings));
    said
}

#[test]
fn damaged_entries_are_read_from_where_they_stand_a_second_time() {
    for encryption in [chunkstore::Encryption::None, chunkstore::Encryption::Aes256Gcm] {
        for segments in [true, false] {
            let (kit, image, of_one) = twins(Shape { encryption, ..Shape::default() });
            let of_chunks: Vec<String> =
                packs(&kit, 1).into_iter().filter(|key| of_one.contains(key)).collect();
            assert!(of_chunks.len() > 2);
            // the payload of the first entry, of each; and a pack that ends before its last ones
            of_chunks.iter().for_each(|key| flip(&kit, key, 64 + 20));
            let cut = kit.object(&of_chunks[1]);
            kit.replace(&of_chunks[1], cut[..cut.len() / 2].to_vec());
            if !segments {
                kit.keys_of("dedup").iter().for_each(|key| kit.remove(key));
            }
            for (salvaged, warnings) in all_ways(&kit, &image) {
                let SalvagedParts { chunks, pages } = salvaged.unwrap();
                assert!(chunks > 8 * 2 && pages == 0, "{chunks} {pages}");
                let said = warnings.join("; ");
                assert!(said.contains("found elsewhere"), "{said}");
            }
        }
    }
}

#[test]
fn a_missing_pack_is_no_loss_where_its_content_stands_a_second_time() {
    let (kit, image, of_one) = twins(Shape::default());
    let gone = packs(&kit, 1).into_iter().find(|key| of_one.contains(key)).unwrap();
    kit.remove(&gone);
    for (salvaged, _) in all_ways(&kit, &image) {
        assert!(salvaged.unwrap().chunks > 0);
    }
}

#[test]
fn damaged_pages_are_read_from_where_they_stand_a_second_time() {
    let (kit, image, of_one) = twins(Shape::default());
    let of_pages: Vec<String> =
        packs(&kit, 2).into_iter().filter(|key| of_one.contains(key)).collect();
    // the whole map, its root too
    for key in &of_pages {
        let mut bytes = kit.object(key);
        let end = bytes.len() - 200;
        bytes[64..end].fill(0x55);
        kit.replace(key, bytes);
    }
    for (salvaged, _) in all_ways(&kit, &image) {
        // the root; what it leads to is that of the other backup
        assert!(salvaged.unwrap().pages > 0);
    }
}

#[test]
fn what_stands_nowhere_else_is_lost_and_named() {
    let (kit, image, of_one) = twins(Shape::default());
    let of_chunks = packs(&kit, 1);
    of_chunks.iter().for_each(|key| flip(&kit, key, 64 + 20));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    for e in [
        run(&kit, options("one", &target)).unwrap_err(),
        run_out(&kit, &options("one", &target), &mut Vec::new()).unwrap_err(),
        run_verify(&kit, verify_options("one")).unwrap_err(),
    ] {
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        assert!(of_one.iter().any(|key| e.to_string().contains(key)), "{e}");
    }
    let skipping = RestoreOptions { skip_damaged: true, verify: false, ..options("one", &target) };
    let mut out = Vec::new();
    let summary = run_out(&kit, &skipping, &mut out).unwrap();
    let lost: u64 = summary.damaged.unwrap().bytes;
    let right = image.bytes();
    let zeroed = out.chunks(4096).zip(right.chunks(4096)).filter(|(is, should)| is != should);
    let zeroed: Vec<_> = zeroed.collect();
    assert!(zeroed.iter().all(|(is, _)| is.iter().all(|b| *b == 0)));
    assert!(zeroed.len() as u64 * 4096 == lost && lost > 0, "{} {lost}", zeroed.len());
}

#[test]
fn nothing_is_asked_of_other_packs_while_all_is_whole() {
    let (kit, _, of_one) = twins(Shape::default());
    kit.store.take();
    let dir = tempfile::tempdir().unwrap();
    run(&kit, options("one", &dir.path().join("new.img"))).unwrap();
    for (what, key) in kit.store.take() {
        let own = !key.starts_with("packs") || of_one.contains(&key);
        assert!(own && !key.starts_with("dedup"), "{what} {key}");
    }
}

#[test]
fn a_damaged_header_is_named_and_loses_nothing() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let reads = |kit: &Kit| {
        let read = kit.store.take().into_iter().filter(|(what, _)| *what == "get");
        read.filter(|(_, key)| key.starts_with("packs/")).count()
    };
    kit.store.take();
    run_verify(&kit, verify_options("one")).unwrap();
    let before = reads(&kit);
    // magic, version, kind, seal, pack id, repository id
    let fields = [0, 8, 10, 11, 20, 50];
    let keys = kit.keys_of("packs");
    for (key, at) in keys.iter().zip(fields.iter().cycle()) {
        let whole = kit.object(key);
        flip(&kit, key, *at);
        kit.store.take();
        let summary = run_verify(&kit, verify_options("one")).unwrap();
        let said = summary.warnings.join("; ");
        assert!(said.contains(key.as_str()) && said.contains("header"), "{at}: {said}");
        // looked at again, and where it may be newer the hash of all of the pack
        assert!(reads(&kit) > before);
        kit.replace(key, whole);
    }
    kit.store.take();
    let summary = run_verify(&kit, verify_options("one")).unwrap();
    assert!(summary.warnings.is_empty() && reads(&kit) == before);
}

#[test]
fn a_pack_of_a_later_version_is_refused_where_its_hash_says_so() {
    let kit = Kit::new(Shape::default());
    let manifest = kit.backup("vol", "one", &some_image(&kit));
    let of_pages = pack_key(&manifest.map.root.unwrap().location.pack);
    let of_chunks = packs(&kit, 1)[0].clone();
    for key in [of_chunks, of_pages] {
        let whole = kit.object(&key);
        let mut newer = whole.clone();
        newer[8] = 2;
        let end = newer.len() - chunkstore::pack::PACK_END_BYTES;
        let mut hasher = chunkstore::pack::PackHasher::new();
        hasher.update(&newer[..end]);
        newer[end..end + chunkstore::pack::PACK_HASH_BYTES].copy_from_slice(&hasher.finish());
        kit.replace(&key, newer);
        let e = run_verify(&kit, verify_options("one")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        kit.replace(&key, whole);
    }
}
