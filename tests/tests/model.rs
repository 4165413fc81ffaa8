//! Backup and restore against a plain model: the volume's bytes in a vector.
//!
//! Random chunk sizes, entries, fanouts, both encryptions; random writes, discards and resizes
//! between backups; with a delta list (precise or coarse), with an allocated list, or without one.
//! After each backup it and one earlier one are restored, onto a clean or a dirty target.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::Encryption;
use proptest::prelude::*;
use std::fs;
use tests::{Vault, VaultParams, changed_extents, extents_json};

#[derive(Debug, Clone)]
enum Change {
    /// Bytes that no codec shrinks.
    Noise {
        at: u32,
        len: u32,
        seed: u64,
    },
    /// Bytes that repeat, so that chunks of different places are equal.
    Pattern {
        at: u32,
        len: u32,
        byte: u8,
    },
    Zero {
        at: u32,
        len: u32,
    },
    Resize {
        size: u32,
    },
}

#[derive(Debug, Clone, Copy)]
enum List {
    None,
    Delta { block: usize },
    Allocated,
}

#[derive(Debug, Clone)]
struct Step {
    changes: Vec<Change>,
    list: List,
    dirty_target: bool,
    look_back: usize,
}

const SIZE_MAX: u32 = 600_000;

fn change() -> impl Strategy<Value = Change> {
    let at = 0..SIZE_MAX;
    let len = prop_oneof![1..600_u32, 1..200_000_u32];
    prop_oneof![
        4 => (at.clone(), len.clone(), any::<u64>()).prop_map(|(at, len, seed)| Change::Noise { at, len, seed }),
        2 => (at.clone(), len.clone(), 0..3_u8).prop_map(|(at, len, byte)| Change::Pattern { at, len, byte }),
        2 => (at, len).prop_map(|(at, len)| Change::Zero { at, len }),
        1 => (1..SIZE_MAX).prop_map(|size| Change::Resize { size }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let list = prop_oneof![
        2 => Just(List::None),
        4 => prop_oneof![Just(512), Just(1), Just(4096), Just(65536)].prop_map(|block| List::Delta { block }),
        2 => Just(List::Allocated),
    ];
    (prop::collection::vec(change(), 0..5), list, any::<bool>(), any::<usize>()).prop_map(
        |(changes, list, dirty_target, look_back)| Step { changes, list, dirty_target, look_back },
    )
}

fn params() -> impl Strategy<Value = VaultParams> {
    let chunk = prop_oneof![Just(4096), Just(8192), Just(65536)];
    let group = prop_oneof![Just(1_u16), Just(3), Just(16)];
    let fanout = prop_oneof![Just(16_u16), Just(32)];
    let encryption = prop_oneof![Just(Encryption::Aes256Gcm), Just(Encryption::None)];
    (chunk, group, fanout, encryption).prop_map(
        |(chunk_bytes, entry_chunks, page_fanout, encryption)| VaultParams {
            chunk_bytes,
            entry_chunks,
            page_fanout,
            encryption,
        },
    )
}

fn apply(volume: &mut Vec<u8>, change: &Change) {
    let range = |at: u32, len: u32, size: usize| {
        let start = at as usize % size;
        start..(start + len as usize).min(size)
    };
    match *change {
        Change::Noise { at, len, seed } => {
            let range = range(at, len, volume.len());
            let bytes = tests::Rng::seeded(seed).bytes(range.len());
            volume[range].copy_from_slice(&bytes);
        }
        Change::Pattern { at, len, byte } => {
            let range = range(at, len, volume.len());
            volume[range].fill(0x11 * (byte + 1));
        }
        Change::Zero { at, len } => {
            let range = range(at, len, volume.len());
            volume[range].fill(0);
        }
        Change::Resize { size } => volume.resize(size as usize, 0),
    }
}

fn run(params: VaultParams, size: u32, steps: &[Step]) {
    let vault = Vault::new("model", params).with_a_volume_that_changes();
    let (image, old, list) = (vault.path("v.img"), vault.path("old.img"), vault.path("list.json"));
    let mut volume = vec![0_u8; size as usize];
    let mut history: Vec<Vec<u8>> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        step.changes.iter().for_each(|c| apply(&mut volume, c));
        fs::write(&image, &volume).unwrap();
        let id = format!("b{i}");
        let bytes = volume.len() as u64;
        let base = i.checked_sub(1).map(|b| format!("b{b}"));
        let extents = match (step.list, &base) {
            (List::Delta { block }, Some(_)) => {
                fs::write(&old, &history[i - 1]).unwrap();
                Some(("delta", changed_extents(&old, &image, block)))
            }
            (List::Allocated, _) => {
                fs::write(&old, vec![0; volume.len()]).unwrap();
                Some(("allocated", changed_extents(&old, &image, 512)))
            }
            _ => None,
        };
        let named = extents.map(|(kind, extents)| {
            fs::write(&list, extents_json(bytes, kind, &extents).to_string()).unwrap();
            (base.as_deref().unwrap_or("none"), list.as_path())
        });
        vault.backup(vault.memory(), &image, &id, named).unwrap();
        history.push(volume.clone());
        for back in [i, step.look_back % (i + 1)] {
            let target = vault.path("target.img");
            let dirt = vec![0xa5; if step.dirty_target { history[back].len() } else { 0 }];
            if step.dirty_target {
                fs::write(&target, dirt).unwrap();
            } else {
                let _ = fs::remove_file(&target);
            }
            vault.restore(vault.memory(), &format!("b{back}"), &target).unwrap();
            assert!(
                fs::read(&target).unwrap() == history[back],
                "backup {back} after step {i} differs"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_backup_restores_what_the_model_holds(
        params in params(),
        size in 1..SIZE_MAX,
        steps in prop::collection::vec(step(), 1..6),
    ) {
        run(params, size, &steps);
    }
}
