//! Forwarding stubs of which every seal is right and that lead to other chunks than what they stand
//! for: `check` says so of the same bytes that a restore refuses.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use chunkstore::{
    ChunkRef, Encryption, PackId, Repository, Result, VolumeMap,
    format::Stub,
    map::{PageAt, ReadLimits, Visitor, reach},
};
use mover_engine::ops::check::ReadData;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use tests::{Forge, Rng, Vault, VaultParams};

const CHUNK: u64 = 4096;
const CHUNKS: u64 = 41;

#[derive(Default)]
struct Chunks(BTreeMap<u64, ChunkRef>);

impl Visitor for Chunks {
    fn page(&mut self, _: &PageAt) -> Result<bool> {
        Ok(true)
    }

    fn chunk(&mut self, _: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        self.0.insert(number, *chunk);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: chunkstore::Error) -> Result<()> {
        Err(error)
    }
}

/// Stores all chunks once more, and puts stubs that lead there in the place of the packs that they
/// were in. `leads`: which chunk a stub leads to instead.
async fn relocate(
    repo: &Arc<Repository>,
    content: &[u8],
    chunks: &[ChunkRef],
    leads: &[(usize, usize)],
) -> Vec<ChunkRef> {
    let forge = Forge::new(Arc::clone(repo));
    let mut copies = Vec::new();
    let pieces: Vec<_> = content
        .chunks(usize::try_from(CHUNK).unwrap())
        .map(|piece| (piece.to_vec(), None))
        .collect();
    for entry in pieces.chunks(4) {
        copies.extend(forge.entry(entry).await);
    }
    let mut stubs: BTreeMap<PackId, Vec<_>> = BTreeMap::new();
    for (number, from) in chunks.iter().enumerate() {
        let to = leads.iter().find(|(of, _)| *of == number).map_or(number, |(_, to)| *to);
        let from = from.location;
        let relocation = ((from.entry, from.index), copies[to].location);
        stubs.entry(from.pack).or_default().push(relocation);
    }
    for (pack, relocations) in stubs {
        let hex = pack.to_hex();
        repo.store().delete(&format!("packs/{}/{hex}", &hex[..2])).await.unwrap();
        repo.put_stub(&Stub::new(pack, relocations).unwrap()).await.unwrap();
    }
    copies
}

/// Its name, chunks whose stub leads to the place of another, and those that are lost by it.
type Kind = (&'static str, &'static [(usize, usize)], &'static [u64]);

#[test]
fn a_stub_that_leads_to_another_chunk_is_seen() {
    let params = VaultParams {
        chunk_bytes: 4096,
        entry_chunks: 4,
        page_fanout: 16,
        encryption: Encryption::None,
    };
    let vault = Vault::new("crafted-stubs", params);
    let content = Rng::new(61).bytes(usize::try_from(CHUNKS * CHUNK).unwrap());
    let image = vault.path("v.img");
    fs::write(&image, &content).unwrap();
    vault.backup(vault.memory(), &image, "good", None).unwrap();
    let kinds: [Kind; 4] = [
        ("all lead where they must", &[], &[]),
        ("two of an entry swapped", &[(5, 6), (6, 5)], &[5, 6]),
        ("two of two packs swapped", &[(1, 30), (30, 1)], &[1, 30]),
        ("two lead to one place", &[(6, 7)], &[6]),
    ];
    for (name, leads, lost) in kinds {
        for hops in [1, 2] {
            let objects = vault.fork();
            let repo = vault.open(objects.clone()).unwrap();
            vault.block_on(async {
                let manifest = repo.find_backup("v@good").await.unwrap();
                let map = VolumeMap::of(&repo, &manifest).unwrap();
                let mut found = Chunks::default();
                reach(&repo, &[map], ReadLimits::default(), &mut found).await.unwrap();
                let mut chunks: Vec<_> = found.0.into_values().collect();
                assert_eq!(chunks.len() as u64, CHUNKS);
                for hop in 1..=hops {
                    let leads = if hop == hops { leads } else { &[] };
                    chunks = relocate(&repo, &content, &chunks, leads).await;
                }
            });
            let name = format!("{name}, {hops} hops");
            // what is wrong where it leads stands right beside it, and is found by its id
            let wrong = lost.len() as u64 * CHUNK;
            for read_data in [ReadData::Nothing, ReadData::All] {
                let report = vault.check(objects.clone(), read_data, false).unwrap();
                let found: u64 = report.elsewhere.iter().map(|of| of.elsewhere_bytes).sum();
                assert_eq!((found, report.lost.len()), (wrong, 0), "{name}: {report:#?}");
                assert_eq!(report.is_clean(), lost.is_empty(), "{name}: {report:#?}");
            }
            assert!(vault.restored(objects.clone(), "good").unwrap() == content, "{name}");
            let verified = vault.verify(objects.clone(), "good").unwrap();
            assert_eq!(verified.salvaged.map_or(0, |s| s.chunks), lost.len() as u64, "{name}");
        }
    }
}
