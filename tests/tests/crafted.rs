//! Backups of which every seal is right and something else is wrong, each kind once. Whatever reads
//! them must agree: what `check --read-data=all` accepts, restore, verify and copy accept, and what
//! it says is lost is what they refuse, to the byte.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::{
    ChunkId, ChunkRef, Compression, Encryption, ErrorKind, Location, Manifest, PackId, Result,
    VolumeMap,
    format::{MapRoot, Page},
    ids::PageId,
    map::{PageAt, ReadLimits, Visitor, reach},
    random_bytes,
    units::PageRef,
};
use mover_engine::ops::check::{CheckReport, ReadData};
use mover_engine::ops::copy::{CopyOptions, copy};
use mover_engine::run::quota::Quota;
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use tests::{Forge, Rng, Vault, VaultParams, at, extents_json};

const CHUNK: u64 = 4096;
const FANOUT: usize = 16;
/// Chunks of the good backup; the last one is short.
const CHUNKS: usize = 41;
const TAIL: u64 = 100;
const SIZE: u64 = (CHUNKS as u64 - 1) * CHUNK + TAIL;

/// What the good backup refers to.
#[derive(Default)]
struct Good {
    chunks: Vec<Option<ChunkRef>>,
    leaves: Vec<Option<PageRef>>,
    root: Option<PageRef>,
}

impl Visitor for Good {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        match at.level {
            0 => self.leaves.push(Some(at.page)),
            _ => self.root = Some(at.page),
        }
        Ok(true)
    }

    fn chunk(&mut self, _: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        let number = usize::try_from(number).unwrap();
        self.chunks.resize(self.chunks.len().max(number + 1), None);
        self.chunks[number] = Some(*chunk);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: chunkstore::Error) -> Result<()> {
        Err(error)
    }
}

/// A repository with one good backup.
struct World {
    vault: Vault,
    content: Vec<u8>,
    template: Manifest,
    good: Good,
}

/// What is wrong with a backup, and which chunks that loses.
enum Wrong {
    /// With its references to chunks.
    Chunks(Vec<Option<ChunkRef>>, Vec<Range<u64>>),
    /// With its references to leaves.
    Leaves(Vec<Option<PageRef>>, Vec<Range<u64>>),
    /// With what its manifest says; `None`: all is lost.
    Root(MapRoot, u64, Option<Vec<Range<u64>>>),
}

fn world(name: &str, encryption: Encryption) -> World {
    let mut rng = Rng::new(47);
    let page_fanout = u16::try_from(FANOUT).unwrap();
    let params = VaultParams { chunk_bytes: 4096, entry_chunks: 4, page_fanout, encryption };
    let vault = Vault::new(name, params).with_a_volume_that_changes();
    let content = rng.bytes(usize::try_from(SIZE).unwrap());
    let image = vault.path("v.img");
    fs::write(&image, &content).unwrap();
    vault.backup(vault.memory(), &image, "good", None).unwrap();
    let repo = vault.open(vault.memory()).unwrap();
    let (template, good) = vault.block_on(async {
        let manifest = repo.find_backup("v@good").await.unwrap();
        let map = VolumeMap::of(&repo, &manifest).unwrap();
        let mut good = Good::default();
        reach(&repo, &[map], ReadLimits::default(), &mut good).await.unwrap();
        (manifest, good)
    });
    assert_eq!((good.chunks.len(), good.leaves.len()), (CHUNKS, 3));
    World { vault, content, template, good }
}

/// One range of one chunk each.
fn each(chunks: &[u64]) -> Vec<Range<u64>> {
    chunks.iter().map(|n| *n..*n + 1).collect()
}

impl World {
    fn chunk(&self, number: usize) -> ChunkRef {
        self.good.chunks[number].unwrap()
    }

    /// The good backup's chunks, but for some.
    fn with(&self, changed: &[(usize, ChunkRef)], lost: &[u64]) -> Wrong {
        let mut chunks = self.good.chunks.clone();
        for (number, chunk) in changed {
            chunks.resize(chunks.len().max(number + 1), None);
            chunks[*number] = Some(*chunk);
        }
        Wrong::Chunks(chunks, each(lost))
    }

    /// The good backup's chunk 6 as if it stood elsewhere.
    fn moved(&self, change: impl Fn(&mut Location), lost: &[u64]) -> Wrong {
        let mut location = self.chunk(6).location;
        change(&mut location);
        self.with(&[(6, at(self.chunk(6), location))], lost)
    }

    fn leaf(&self, number: usize, page: PageRef, lost: Range<u64>) -> Wrong {
        let mut leaves = self.good.leaves.clone();
        leaves[number] = Some(page);
        Wrong::Leaves(leaves, vec![lost])
    }

    fn sized(&self, size_bytes: u64, lost: Vec<Range<u64>>) -> Wrong {
        Wrong::Root(MapRoot { depth: 2, root: self.good.root }, size_bytes, Some(lost))
    }

    fn swapped(&self, a: usize, b: usize) -> Wrong {
        let (x, y) = (self.chunk(a), self.chunk(b));
        let lost = [a as u64, b as u64];
        self.with(&[(a, at(x, y.location)), (b, at(y, x.location))], &lost)
    }

    /// All kinds, with a name for each.
    async fn kinds(&self, forge: &Forge) -> Vec<(&'static str, Wrong)> {
        let mut kinds = self.lengths(forge).await;
        kinds.extend(self.references(forge).await);
        kinds.extend(self.pages(forge).await);
        kinds
    }

    /// Chunks whose length does not fit their place.
    async fn lengths(&self, forge: &Forge) -> Vec<(&'static str, Wrong)> {
        let mut rng = Rng::new(53);
        let short = forge.entry(&[(rng.bytes(60), None)]).await[0];
        let second = forge.entry(&[(rng.bytes(4096), None), (rng.bytes(9), None)]).await[1];
        let long = forge.entry(&[(rng.bytes(8192), None)]).await[0];
        let zero = forge.entry(&[(vec![0; 4096], None)]).await[0];
        vec![
            ("nothing is wrong", self.with(&[], &[])),
            ("a short chunk in the middle", self.with(&[(5, short)], &[5])),
            ("a short second chunk of an entry in the middle", self.with(&[(5, second)], &[5])),
            ("a short last chunk", self.with(&[(40, short)], &[40])),
            ("a long last chunk", self.with(&[(40, self.chunk(3))], &[40])),
            ("the last chunk in the middle too", self.with(&[(7, self.chunk(40))], &[7])),
            ("a chunk longer than chunks are", self.with(&[(6, long)], &[6])),
            ("a full chunk that is zero", self.with(&[(6, zero)], &[])),
            ("one chunk at two places", self.with(&[(8, self.chunk(9))], &[])),
            ("shared pages, and a last chunk that should be full", {
                self.sized(CHUNKS as u64 * CHUNK, each(&[40]))
            }),
            ("shared pages, and a longer volume", self.sized(47 * CHUNK, each(&[40]))),
            ("shared pages, and another tail", self.sized(SIZE + 1, each(&[40]))),
            ("shared pages, and a shorter volume", {
                self.sized(39 * CHUNK + 50, std::iter::once(32..40).collect())
            }),
        ]
    }

    /// References that say something that is not so.
    async fn references(&self, forge: &Forge) -> Vec<(&'static str, Wrong)> {
        let mut rng = Rng::new(59);
        let other = ChunkId::from_bytes(random_bytes());
        let single = forge.entry(&[(rng.bytes(4096), None)]).await[0];
        let beyond = at(single, Location { index: 2, ..single.location });
        let misnamed = forge.entry(&[(rng.bytes(4096), Some(other))]).await[0];
        let (six, leaf) = (self.chunk(6), self.good.leaves[0].unwrap());
        let page =
            ChunkRef { id: ChunkId::from_bytes(*leaf.id.as_bytes()), ..at(six, leaf.location) };
        let nowhere = PackId::from_bytes(random_bytes());
        vec![
            ("two chunks of an entry swapped", self.swapped(1, 2)),
            ("two chunks of two entries swapped", self.swapped(1, 30)),
            ("an index behind the entry's end", self.with(&[(6, beyond)], &[6])),
            ("an index that no entry has", self.moved(|l| l.index = 9, &[6])),
            ("the number of another entry", self.moved(|l| l.entry += 1, &[])),
            ("a number that no entry there has", self.moved(|l| l.entry = 60_000, &[6])),
            ("another offset", self.moved(|l| l.offset += 1, &[6])),
            ("an offset beyond the pack", self.moved(|l| l.offset = 1 << 29, &[6])),
            ("an entry too short", self.moved(|l| l.stored_len -= 1, &[6])),
            ("an entry too long", self.moved(|l| l.stored_len += 1, &[6])),
            ("longer than entries are", self.moved(|l| l.stored_len = 4 * 4096 + 25, &[6])),
            ("a pack that is not there", self.moved(|l| l.pack = nowhere, &[6])),
            ("another id", self.with(&[(6, ChunkRef { id: other, ..six })], &[6])),
            ("a chunk stored under another id", self.with(&[(6, misnamed)], &[6])),
            ("a page in the place of a chunk", self.with(&[(6, page)], &[6])),
        ]
    }

    /// Pages that are not what they must be at their place.
    async fn pages(&self, forge: &Forge) -> Vec<(&'static str, Wrong)> {
        let leaves = &self.good.leaves;
        let (first, second) = (leaves[0].unwrap(), leaves[1].unwrap());
        let chunk = self.chunk(0);
        let as_page =
            PageRef { id: PageId::from_bytes(*chunk.id.as_bytes()), location: chunk.location };
        let other = PageId::from_bytes(random_bytes());
        let children =
            |count| self.good.chunks[..count].iter().map(|c| c.map(Into::into)).collect();
        let wide = forge.page(&Page::new(0, children(12)), None).await;
        let misnamed = forge.page(&Page::new(0, children(16)), Some(other)).await;
        let swapped = vec![
            Some(PageRef { location: second.location, ..first }),
            Some(PageRef { location: first.location, ..second }),
            leaves[2],
        ];
        let root = |depth, root| Wrong::Root(MapRoot { depth, root }, SIZE, Some(each(&[])));
        let all = |wrong| match wrong {
            Wrong::Root(map, size, _) => {
                Wrong::Root(map, size, Some(std::iter::once(0..41).collect()))
            }
            other => other,
        };
        vec![
            ("the same pages", root(2, self.good.root)),
            ("no pages: all zero", root(2, None)),
            ("a chunk in the place of a page", self.leaf(0, as_page, 0..16)),
            ("a page of a higher level", self.leaf(0, self.good.root.unwrap(), 0..16)),
            ("a leaf as the root", all(root(2, Some(first)))),
            ("more children than chunks", self.leaf(2, wide, 32..41)),
            ("another id of a page", self.leaf(0, PageRef { id: other, ..first }, 0..16)),
            ("a page stored under another id", self.leaf(0, misnamed, 0..16)),
            (
                "another page's place",
                self.leaf(1, PageRef { location: first.location, ..second }, 16..32),
            ),
            ("two leaves swapped", Wrong::Leaves(swapped, std::iter::once(0..32).collect())),
            (
                "a depth that does not fit",
                Wrong::Root(MapRoot { depth: 3, root: self.good.root }, SIZE, None),
            ),
        ]
    }
}

async fn commit(forge: &Forge, template: &Manifest, id: &str, wrong: &Wrong) -> u64 {
    let (map, size) = match wrong {
        Wrong::Chunks(chunks, _) => (forge.root(&forge.leaves(chunks).await).await, SIZE),
        Wrong::Leaves(leaves, _) => (forge.root(leaves).await, SIZE),
        Wrong::Root(map, size, _) => (*map, *size),
    };
    forge.commit(template, id, map, size).await;
    size
}

fn bytes(chunks: &[Range<u64>], size: u64) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for r in chunks {
        let r = r.start * CHUNK..(r.end * CHUNK).min(size);
        match out.last_mut() {
            Some(last) if last.end == r.start => last.end = r.end,
            _ => out.push(r),
        }
    }
    out
}

/// What a report says that a backup lost; `None`: nothing. `Some(None)`: all of it.
fn lost_of(report: &CheckReport, id: &str) -> Option<Option<Vec<Range<u64>>>> {
    let of = report.lost.iter().find(|lost| lost.name.backup_id.as_str() == id);
    of.map(|lost| lost.ranges.clone())
}

fn copied(world: &World, objects: Arc<dyn ObjectStore>, id: &str) -> Result<()> {
    let params = VaultParams {
        chunk_bytes: 16384,
        entry_chunks: 4,
        page_fanout: 16,
        encryption: Encryption::None,
    };
    let target = Vault::new("crafted-target", params);
    let (from, to) = (world.vault.open(objects)?, target.open(target.memory())?);
    let manifest = world.vault.block_on(from.find_backup(&format!("v@{id}")))?;
    let options = CopyOptions {
        compression: Compression::Zstd(1).into(),
        memory: MemoryBudget { total_bytes: 256 << 20 },
        scratch: None,
        threads: Some(2),
        checkpoint_bytes: None,
        quota: Quota::default(),
        source_lease: true,
        tool: "test".into(),
        host: "test".into(),
    };
    let rt = world.vault.block_on(async { tokio::runtime::Handle::current() });
    let base = mover_engine::ops::copy::base_of(*from.id(), &[], *to.id(), &[], &manifest);
    let (progress, cancel) = (Progress::new(), Cancel::new());
    copy(&rt, (&from, &to), &manifest, base, &options, &progress, &cancel).map(drop)
}

/// Holds all readers against each other, and against what is known to be lost.
fn expect_agreement(
    world: &World,
    objects: &Arc<InMemory>,
    id: &str,
    size: u64,
    wrong: &Wrong,
    name: &str,
) {
    let vault = &world.vault;
    let damaged = match wrong {
        Wrong::Chunks(_, lost) | Wrong::Leaves(_, lost) | Wrong::Root(_, _, Some(lost)) => {
            (!lost.is_empty()).then(|| Some(bytes(lost, size)))
        }
        Wrong::Root(_, _, None) => Some(None),
    };
    let report = vault.check(objects.clone(), ReadData::All, false).unwrap();
    // a reference that is wrong loses nothing where its id stands elsewhere
    let lost = lost_of(&report, id);
    if damaged == Some(None) {
        assert_eq!(lost, damaged, "{name}: {report:#?}");
    } else {
        let sum = |ranges: &Option<Option<Vec<Range<u64>>>>| -> u64 {
            ranges.iter().flatten().flatten().map(|r| r.end - r.start).sum()
        };
        let all = report.lost.iter().chain(&report.elsewhere);
        let of = all.filter(|of| of.name.backup_id.as_str() == id);
        let elsewhere: u64 = of.map(|of| of.elsewhere_bytes).sum();
        assert_eq!(sum(&lost) + elsewhere, sum(&damaged), "{name}: {report:#?}");
    }
    assert_eq!(lost_of(&report, "good"), None, "{name}: {report:#?}");
    assert!(!report.is_clean() || lost.is_none(), "{name}");
    let target = vault.path("target");
    for (what, result) in [
        ("restore", vault.restore(objects.clone(), id, &target)),
        ("verify", vault.verify(objects.clone(), id).map(drop)),
        ("copy", copied(world, objects.clone(), id)),
    ] {
        let refused = result.as_ref().err().map(chunkstore::Error::kind);
        assert_eq!(refused.is_some(), lost.is_some(), "{name}: {what}: {result:?}");
        let damage = matches!(refused, None | Some(ErrorKind::Corrupt | ErrorKind::Missing));
        assert!(damage, "{name}: {what}: {result:?}");
    }
    if let Some(Some(ranges)) = &lost {
        let left = vault.restore_left(objects.clone(), id, &target);
        if *ranges == std::slice::from_ref(&(0..size)) {
            // without a root nothing is written
            assert_eq!(left.unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
        } else {
            let left = left.unwrap().damaged.unwrap();
            let left: Vec<_> = left.ranges.iter().map(|r| r.offset..r.offset + r.len).collect();
            assert_eq!(&left, ranges, "{name}: what a restore skips");
        }
    }
    assert!(vault.restored(objects.clone(), "good").unwrap() == world.content, "{name}");
}

/// A backup that inherits from a wrong one must not take over what is wrong, once a check has
/// recorded it.
fn expect_not_inherited(world: &World, objects: &Arc<InMemory>, id: &str, size: u64, name: &str) {
    let vault = &world.vault;
    vault.check(objects.clone(), ReadData::All, true).unwrap();
    let mut content = world.content.clone();
    content.resize(usize::try_from(size).unwrap(), 1);
    let (image, list) = (vault.path("next.img"), vault.path("next.json"));
    fs::write(&image, &content).unwrap();
    fs::write(&list, extents_json(size, "delta", &[]).to_string()).unwrap();
    vault.backup(objects.clone(), &image, "next", Some((id, &list))).unwrap();
    vault.verify(objects.clone(), "next").unwrap_or_else(|e| panic!("{name}: {e}"));
    // where the wrong backup is right it says what the list left out
    let restored = vault.restored(objects.clone(), "next").unwrap();
    assert_eq!(restored.len(), content.len(), "{name}");
}

fn agree(encryption: Encryption) {
    let world = world("crafted", encryption);
    let count = {
        let forge = Forge::new(world.vault.open(world.vault.memory()).unwrap());
        world.vault.block_on(world.kinds(&forge)).len()
    };
    for number in 0..count {
        // before the good backup, and behind it: who is met first must not matter
        for id in ["a-bad", "z-bad"] {
            let objects = world.vault.fork();
            let forge = Forge::new(world.vault.open(objects.clone()).unwrap());
            let (name, wrong) = world.vault.block_on(world.kinds(&forge)).swap_remove(number);
            let size = world.vault.block_on(commit(&forge, &world.template, id, &wrong));
            println!("{name}, as {id}");
            expect_agreement(&world, &objects, id, size, &wrong, name);
            if !matches!(wrong, Wrong::Root(_, _, None)) {
                expect_not_inherited(&world, &objects, id, size, name);
            }
        }
    }
}

#[test]
fn whatever_reads_a_backup_agrees_on_what_is_wrong_with_it() {
    agree(Encryption::Aes256Gcm);
}

#[test]
fn whatever_reads_a_backup_agrees_without_encryption() {
    agree(Encryption::None);
}

/// A leaf with a wrong reference, and each backup changes other chunks of that leaf: all its
/// versions say the same wrong thing, beside one that is right or alone.
#[test]
fn the_same_wrong_reference_is_seen_however_many_backups_inherit_it() {
    let world = world("crafted-many", Encryption::None);
    let six = world.chunk(6);
    let other = ChunkId::from_bytes(random_bytes());
    let elsewhere = |offset, len| {
        let Location { offset: from, stored_len, .. } = six.location;
        at(six, Location { offset: from + offset, stored_len: stored_len - len, ..six.location })
    };
    let wrong = [ChunkRef { id: other, ..six }, elsewhere(1, 0), elsewhere(0, 1)];
    for count in [1, 7, 8, 9, 16, 256] {
        for (wrong, prefix, alone) in [
            (wrong[0], "a", false),
            (wrong[0], "z", true),
            (wrong[1], "z", false),
            (wrong[2], "a", true),
        ] {
            let objects = world.vault.fork();
            let forge = Forge::new(world.vault.open(objects.clone()).unwrap());
            let id = |day| format!("{prefix}-{day}");
            for day in 0..count {
                let (a, b) = (world.chunk(9 + day % 16), world.chunk(9 + day / 16));
                let wrong = world.with(&[(6, wrong), (7, a), (8, b)], &[6]);
                world.vault.block_on(commit(&forge, &world.template, &id(day), &wrong));
            }
            if alone {
                world.vault.forget(objects.clone(), "good").unwrap();
            }
            let name = format!("{count} times, as {prefix}, alone: {alone}");
            // at a place that is none, an id that stands elsewhere is found
            let lost = (wrong.id == other).then(|| Some(bytes(&each(&[6]), SIZE)));
            for read_data in [ReadData::Nothing, ReadData::All] {
                let report = world.vault.check(objects.clone(), read_data, false).unwrap();
                (0..count).for_each(|day| assert_eq!(lost_of(&report, &id(day)), lost, "{name}"));
                assert_eq!(lost_of(&report, "good"), None, "{name}");
            }
            for day in [0, count - 1] {
                let restored = world.vault.restored(objects.clone(), &id(day));
                let refused = restored.err().map(|e| e.kind());
                assert_eq!(refused, lost.as_ref().map(|_| ErrorKind::Corrupt), "{name}");
            }
        }
    }
}

/// A leaf that names a page of another backup as a chunk must not keep a collection from what lies
/// below that page.
#[test]
fn a_page_that_is_named_as_a_chunk_keeps_what_lies_below_it() {
    let world = world("crafted-gc", Encryption::None);
    let objects = world.vault.fork();
    let forge = Forge::new(world.vault.open(objects.clone()).unwrap());
    world.vault.block_on(async {
        let as_chunk = |leaf: &Option<PageRef>| {
            let leaf = leaf.unwrap();
            let id = ChunkId::from_bytes(*leaf.id.as_bytes());
            Some(ChunkRef { id, location: leaf.location }.into())
        };
        let leaves = world.good.leaves.iter().map(as_chunk).collect();
        // of one level, so that its leaf is read before the leaves of the good one are met
        let page = forge.page(&Page::new(0, leaves), None).await;
        let map = MapRoot { depth: 1, root: Some(page) };
        forge.commit(&world.template, "a-bad", map, 3 * CHUNK).await;
    });
    for exclusive in [true, false, false] {
        world.vault.collect(objects.clone(), exclusive).unwrap();
    }
    assert!(world.vault.restored(objects, "good").unwrap() == world.content);
}
