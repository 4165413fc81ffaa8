//! Damaged objects: refused one by one, and no restore ever gives wrong data.

use crate::decode::{Decoder, is_refusal, kind_of};
use chunkstore::Error;
use std::collections::{BTreeMap, BTreeSet};
use tests::{Golden, Library, Rng, volume_dir};

/// Lengths to cut an object to: all of a small one and of the ends, else a spread.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    let step = (len / 300).max(1);
    (0..len).filter(move |at| at.is_multiple_of(step) || *at < 80 || len - at <= 80)
}

#[test]
fn damaged_copies_of_every_object_are_refused() {
    let library = Library::new();
    for golden in Golden::all() {
        let decoder = Decoder::new(&golden, golden.open(&library).unwrap());
        let mut rng = Rng::new(1);
        // two of each kind will do; key objects and manifests all
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for (key, bytes) in golden.objects() {
            let count = count.entry(kind_of(&key).to_owned()).or_default();
            *count += 1;
            if *count > 2 && !["keys", "backups"].contains(&kind_of(&key)) {
                continue;
            }
            let refused = |bytes: &[u8], what: String| match decoder.decode(&key, bytes) {
                Err(error) if is_refusal(&error) => {}
                other => panic!("{key} {what}: {other:?}"),
            };
            for len in cuts(bytes.len()) {
                refused(&bytes[..len], format!("cut to {len}"));
            }
            for at in cuts(bytes.len()) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << rng.below(8);
                refused(&flipped, format!("flipped at {at}"));
            }
            let longer = [&bytes[..], &[0]].concat();
            refused(&longer, "with a byte behind it".into());
        }
    }
}

#[test]
fn objects_do_not_open_in_another_place() {
    let library = Library::new();
    for golden in Golden::all() {
        let decoder = Decoder::new(&golden, golden.open(&library).unwrap());
        let objects = golden.objects();
        for (key, _) in objects.iter().filter(|(key, _)| *key != "format") {
            let like = |(other, _): &(&String, _)| *other != key && kind_of(other) == kind_of(key);
            for (other, bytes) in objects.iter().filter(like).take(3) {
                // a key object that was renamed opens for nobody
                let error = decoder.decode(key, bytes).expect_err(other);
                assert!(is_refusal(&error), "{other} as {key}: {error}");
            }
        }
    }
}

/// Objects that a restore must not depend on.
fn is_beside(key: &str) -> bool {
    let dirs = ["leases", "dedup", "condemned", "blockers", "verdict", "damaged", "forgotten"];
    dirs.contains(&kind_of(key))
}

#[test]
fn a_restore_of_a_damaged_repository_gives_the_right_data_or_none() {
    let (library, work) = (Library::new(), volume_dir("golden"));
    let mut rng = Rng::new(2);
    for golden in Golden::all() {
        let copy = golden.copy_to(&work.path().join(golden.name));
        let objects = copy.objects();
        // what is beside is damaged all at once, in two ways, and nothing is noticed
        for cut in [false, true] {
            for (key, bytes) in objects.iter().filter(|(key, _)| is_beside(key)) {
                let bytes = damaged(bytes, cut, &mut rng);
                std::fs::write(copy.dir.join(key), bytes).unwrap();
            }
            for (backup, result) in restore_all(&library, &copy) {
                result.unwrap_or_else(|error| panic!("{backup}: {error}"));
            }
        }
        let mut refused_kinds = BTreeSet::new();
        for (key, bytes) in objects.iter().filter(|(key, _)| !is_beside(key)) {
            for cut in [false, true] {
                std::fs::write(copy.dir.join(key), damaged(bytes, cut, &mut rng)).unwrap();
                let refused = refusals(&library, &copy, key);
                refused_kinds.extend((refused > 0).then(|| kind_of(key).to_owned()));
            }
            std::fs::remove_file(copy.dir.join(key)).unwrap();
            refusals(&library, &copy, key);
            std::fs::write(copy.dir.join(key), bytes).unwrap();
        }
        // where a stub is damaged, what it leads to is found by its ids
        let kinds = ["backups", "packs"];
        assert!(kinds.iter().all(|kind| refused_kinds.contains(*kind)), "{refused_kinds:?}");
        // either copy is enough, and one of the two is needed
        assert!(!refused_kinds.contains("format") && !refused_kinds.contains("format-copy"));
        for cut in [false, true] {
            for key in ["format", "format-copy"] {
                let bytes = damaged(&objects[key], cut, &mut rng);
                std::fs::write(copy.dir.join(key), bytes).unwrap();
            }
            assert!(refusals(&library, &copy, "format") > 0);
        }
    }
}

fn damaged(bytes: &[u8], cut: bool, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = usize::try_from(rng.below(bytes.len() as u64)).expect("small");
    if cut {
        bytes.truncate(at);
    } else {
        bytes[at] ^= 1 << rng.below(8);
    }
    bytes
}

/// Panics on wrong data and on errors that do not say what happened; gives how many backups were
/// refused.
fn refusals(library: &Library, golden: &Golden, key: &str) -> usize {
    let mut refused = 0;
    for (backup, result) in restore_all(library, golden) {
        if let Err(error) = result {
            let gone = error.kind() == chunkstore::ErrorKind::NotFound;
            let manifest_or_format = ["backups", "format"].contains(&kind_of(key));
            assert!(is_refusal(&error) || (gone && manifest_or_format), "{key}, {backup}: {error}");
            refused += 1;
        }
    }
    refused
}

/// Restores every backup; panics if one succeeds with other data.
fn restore_all(library: &Library, golden: &Golden) -> Vec<(String, Result<(), Error>)> {
    let repo = match golden.open(library) {
        Ok(repo) => repo,
        Err(error) => return vec![("open".into(), Err(error))],
    };
    let target = golden.dir.with_extension("img");
    let mut results = Vec::new();
    for backup in &golden.backups {
        // absent: made anew, so that nothing of an earlier restore can help
        let _ = std::fs::remove_file(&target);
        let result = library.restore(&repo, &backup.spec(), &target);
        if result.is_ok() {
            backup.check(&target);
        }
        results.push((backup.spec(), result));
    }
    results
}
