//! Checks of damaged repositories: what is found, which bytes are named as lost, and what a repair
//! puts right.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::format::names::{manifest_key, pack_key};
use chunkstore::{
    BackupId, Check, ChunkRef, Encryption, Error, LeaseOptions, Location, PackId, Reader,
    VolumeMap, VolumeName,
    check::{FindingKind, LostBackup},
    map::{PageAt, ReadLimits, Visitor, reach},
};
use mover_engine::ops::check::{CheckReport, ReadData};
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tests::{Rng, Vault, VaultParams};

const CHUNK: u64 = 4096;
const CHUNKS: u64 = 700;
const TAIL: u64 = 100;

type Objects = Arc<dyn ObjectStore>;

struct World {
    vault: Vault,
    image: PathBuf,
    /// Of `one` and of `two`.
    contents: [Vec<u8>; 2],
}

/// References of one backup: the oracle that lost ranges are held against.
#[derive(Default)]
struct Places {
    pages: Vec<(u8, u64, Location)>,
    chunks: Vec<(u64, Location)>,
}

impl Visitor for Places {
    fn page(&mut self, at: &PageAt) -> chunkstore::Result<bool> {
        self.pages.push((at.level, at.number, at.page.location));
        Ok(true)
    }

    fn chunk(&mut self, _: &PageAt, number: u64, chunk: &ChunkRef) -> chunkstore::Result<()> {
        self.chunks.push((number, chunk.location));
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> chunkstore::Result<()> {
        Err(error)
    }
}

impl Places {
    fn page(&self, level: u8, number: u64) -> Location {
        self.pages.iter().find(|p| (p.0, p.1) == (level, number)).unwrap().2
    }

    /// Byte ranges of the chunks that `bad` says are damaged.
    fn ranges(&self, bad: impl Fn(&Location) -> bool) -> Vec<Range<u64>> {
        let chunks = self.chunks.iter().filter(|(_, at)| bad(at)).map(|(n, _)| *n..*n + 1);
        to_bytes(merged(chunks.collect()))
    }
}

fn merged(mut chunks: Vec<Range<u64>>) -> Vec<Range<u64>> {
    chunks.sort_unstable_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for r in chunks {
        match out.last_mut() {
            Some(last) if last.end >= r.start => last.end = last.end.max(r.end),
            _ => out.push(r),
        }
    }
    out
}

fn to_bytes(chunks: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let size = CHUNKS * CHUNK + TAIL;
    chunks.into_iter().map(|r| r.start * CHUNK..(r.end * CHUNK).min(size)).collect()
}

/// Two backups of one volume; the second shares most of the first.
fn world(name: &str, encryption: Encryption) -> World {
    let mut rng = Rng::new(43);
    let params = VaultParams { chunk_bytes: 4096, entry_chunks: 4, page_fanout: 16, encryption };
    let vault = Vault::new(name, params);
    let image = vault.path("v.img");
    let mut one = rng.bytes(usize::try_from(CHUNKS * CHUNK + TAIL).unwrap());
    // one content at many places
    let twice: Vec<u8> = one[..64 * 4096].to_vec();
    one[512 * 4096..576 * 4096].copy_from_slice(&twice);
    one[300 * 4096..340 * 4096].fill(0);
    fs::write(&image, &one).unwrap();
    vault.backup(vault.memory(), &image, "one", None).unwrap();
    let mut two = one.clone();
    let changed = rng.bytes(8 * 4096);
    two[100 * 4096..108 * 4096].copy_from_slice(&changed);
    fs::write(&image, &two).unwrap();
    vault.backup(vault.memory(), &image, "two", None).unwrap();
    World { vault, image, contents: [one, two] }
}

impl World {
    fn fork(&self) -> Objects {
        self.vault.fork()
    }

    fn places(&self, id: &str) -> Places {
        let repo = self.vault.open(self.vault.memory()).unwrap();
        self.vault.block_on(async {
            let manifest = repo.find_backup(&format!("v@{id}")).await.unwrap();
            let map = VolumeMap::of(&repo, &manifest).unwrap();
            let mut places = Places::default();
            reach(&repo, &[map], ReadLimits::default(), &mut places).await.unwrap();
            places
        })
    }

    /// Flips a bit of an object.
    fn flip(&self, objects: &Objects, key: &str, at: usize) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        self.vault.block_on(async {
            let mut bytes = repo.store().get(key).await.unwrap().to_vec();
            bytes[at] ^= 0x10;
            repo.store().put(key, bytes).await.unwrap();
        });
    }

    fn flip_entry(&self, objects: &Objects, at: &Location) {
        self.flip(objects, &pack_key(&at.pack), at.offset as usize + 12);
    }

    fn delete(&self, objects: &Objects, key: &str) {
        let repo = self.vault.open(Arc::clone(objects)).unwrap();
        self.vault.block_on(repo.store().delete(key)).unwrap();
    }

    fn check(&self, objects: &Objects, read_data: ReadData, repair: bool) -> CheckReport {
        self.vault.check(Arc::clone(objects), read_data, repair).unwrap()
    }

    fn restores(&self, objects: &Objects, id: &str, content: &[u8]) {
        assert!(self.vault.restored(Arc::clone(objects), id).unwrap() == content, "{id}");
    }
}

fn lost(report: &CheckReport) -> BTreeMap<String, Vec<Range<u64>>> {
    let named = |l: &LostBackup| {
        let ranges = l.ranges.clone().unwrap();
        assert_eq!(l.bytes, ranges.iter().map(|r| r.end - r.start).sum::<u64>());
        (l.name.backup_id.to_string(), ranges)
    };
    report.lost.iter().map(named).collect()
}

fn kinds(report: &CheckReport) -> Vec<(FindingKind, String)> {
    report.findings.iter().map(|f| (f.kind, f.object.clone())).collect()
}

fn expect(one: Vec<Range<u64>>, two: Vec<Range<u64>>) -> BTreeMap<String, Vec<Range<u64>>> {
    let both = [("one".to_owned(), one), ("two".to_owned(), two)];
    both.into_iter().filter(|(_, ranges)| !ranges.is_empty()).collect()
}

const BOTH: [(&str, Encryption); 2] =
    [("sealed", Encryption::Aes256Gcm), ("plain", Encryption::None)];

#[test]
fn a_whole_repository_is_clean_and_nothing_is_written_to_it() {
    for (name, encryption) in BOTH {
        let w = world(&format!("check-clean-{name}"), encryption);
        let objects = w.fork();
        let before = w.vault.keys(&objects, "");
        for read_data in [ReadData::Nothing, ReadData::Percent(10.0), ReadData::All] {
            let report = w.check(&objects, read_data, read_data == ReadData::All);
            assert!(report.is_clean(), "{:?}", report.findings);
            assert_eq!(report.figures.backups, 2);
            let all = u64::from(read_data == ReadData::All);
            assert!(report.read_packs >= all * report.figures.packs);
            println!("{name} {read_data:?}: {:?}, {:?}", report.figures, report.requests);
        }
        assert_eq!(w.vault.keys(&objects, ""), before, "the lease is given back");
    }
}

#[test]
fn what_is_lost_is_named_exactly_and_the_next_backup_stores_it_again() {
    for (name, encryption) in BOTH {
        let w = world(&format!("check-lost-{name}"), encryption);
        let (one, two) = (w.places("one"), w.places("two"));
        let objects = w.fork();
        // one that both share and that stands at two places, and one that only the second has
        let shared = one.chunks.iter().find(|(n, _)| *n == 20).unwrap().1;
        let new = two.chunks.iter().find(|(n, _)| *n == 104).unwrap().1;
        w.flip_entry(&objects, &shared);
        w.flip_entry(&objects, &new);
        assert!(w.check(&objects, ReadData::Nothing, false).is_clean(), "no data was read");
        let bad =
            |at: &Location| [shared, new].iter().any(|b| (b.pack, b.entry) == (at.pack, at.entry));
        let expected = expect(one.ranges(bad), two.ranges(bad));
        assert!(expected["one"].len() >= 2 && expected["two"].len() > expected["one"].len());
        let report = w.check(&objects, ReadData::All, false);
        assert_eq!(lost(&report), expected);
        assert_eq!(report.findings_count, 2, "{:?}", report.findings);
        assert_eq!(w.vault.keys(&objects, "damaged").len(), 0, "not asked to");
        let report = w.check(&objects, ReadData::All, true);
        assert_eq!((lost(&report), report.repaired.recorded), (expected.clone(), 2));
        w.vault.backup(Arc::clone(&objects), &w.image, "three", None).unwrap();
        w.restores(&objects, "three", &w.contents[1]);
        let found = w.check(&objects, ReadData::All, false);
        assert_eq!((lost(&found).len(), found.elsewhere.len()), (0, 2), "{found:?}");
        w.restores(&objects, "two", &w.contents[1]);
        let again = w.check(&objects, ReadData::All, true);
        assert_eq!((again.repaired.backups, again.repaired.recorded), (2, 0), "three is whole");
        assert!(again.lost.is_empty() && again.elsewhere.is_empty(), "{again:?}");
        w.restores(&objects, "one", &w.contents[0]);
    }
}

#[test]
fn a_record_goes_when_a_check_has_read_that_all_is_whole_again() {
    let w = world("check-whole-again", Encryption::Aes256Gcm);
    let objects = w.fork();
    let at = w.places("one").chunks[20].1;
    w.flip_entry(&objects, &at);
    let report = w.check(&objects, ReadData::All, true);
    assert_eq!((report.repaired.recorded, report.repaired.cleared), (1, 0));
    // brought back from a copy
    w.flip_entry(&objects, &at);
    let report = w.check(&objects, ReadData::Nothing, true);
    assert_eq!((report.is_clean(), report.repaired.cleared), (true, 0), "it was not read");
    assert_eq!(w.check(&objects, ReadData::All, false).repaired.cleared, 0, "not asked to");
    assert_eq!(w.vault.keys(&objects, "damaged").len(), 1);
    let report = w.check(&objects, ReadData::All, true);
    assert_eq!((report.is_clean(), report.repaired.cleared), (true, 1));
    assert_eq!(w.vault.keys(&objects, "damaged").len(), 0);
}

#[test]
fn damaged_pages_lose_what_lies_below_them() {
    for (name, encryption) in BOTH {
        let w = world(&format!("check-pages-{name}"), encryption);
        let (one, two) = (w.places("one"), w.places("two"));
        for (level, number, chunks) in [(0, 30, 480..496), (1, 1, 256..512), (2, 0, 0..701)] {
            let objects = w.fork();
            let place = one.page(level, number);
            w.flip_entry(&objects, &place);
            let shared = two.page(level, number) == place;
            let ranges = to_bytes(vec![chunks]);
            let of_two = if shared { ranges.clone() } else { Vec::new() };
            let report = w.check(&objects, ReadData::Nothing, true);
            assert_eq!(lost(&report), expect(ranges, of_two), "level {level}");
            assert_eq!(report.findings_count, 1, "{:?}", report.findings);
            w.vault.backup(Arc::clone(&objects), &w.image, "three", None).unwrap();
            w.restores(&objects, "three", &w.contents[1]);
        }
    }
}

#[test]
fn a_lost_pack_is_found_again_once_its_chunks_are_stored_elsewhere() {
    for (name, encryption) in BOTH {
        let w = world(&format!("check-gone-{name}"), encryption);
        let one = w.places("one");
        let of_chunks: PackId = one.chunks[0].1.pack;
        let of_pages: PackId = one.page(2, 0).pack;
        for gone in [vec![of_chunks], vec![of_pages], vec![of_chunks, of_pages]] {
            let objects = w.fork();
            gone.iter().for_each(|pack| w.delete(&objects, &pack_key(pack)));
            let report = w.check(&objects, ReadData::Nothing, true);
            assert!(report.lost.len() == 2, "{:?}", report.lost);
            assert!(report.repaired.recorded >= 1);
            // a whole backup of each state brings everything back under new names
            let options = |id: &str, content: &[u8]| {
                fs::write(&w.image, content).unwrap();
                w.vault.backup(Arc::clone(&objects), &w.image, id, None).unwrap();
                w.restores(&objects, id, content);
            };
            options("two-again", &w.contents[1]);
            options("one-again", &w.contents[0]);
            let report = w.check(&objects, ReadData::All, true);
            println!("{name}: {:?}", report.repaired);
            assert!(report.repaired.found_chunks > 0, "{:?}", report.findings);
            w.restores(&objects, "one", &w.contents[0]);
            w.restores(&objects, "two", &w.contents[1]);
            let clean = w.check(&objects, ReadData::All, false);
            assert!(clean.is_clean(), "{:?} {:?}", clean.findings, clean.lost);
        }
    }
}

#[test]
fn a_damaged_directory_costs_nothing_that_can_be_read() {
    for (name, encryption) in BOTH {
        let w = world(&format!("check-frame-{name}"), encryption);
        let one = w.places("one");
        let at = one.chunks[40].1;
        let key = pack_key(&at.pack);
        let size = w.vault.block_on(async {
            let repo = w.vault.memory();
            let path = object_store::path::Path::from(format!("repo/{key}"));
            object_store::ObjectStoreExt::head(&*repo, &path).await.unwrap().size
        });
        let size = usize::try_from(size).unwrap();
        for (what, byte) in [("header", 20), ("directory", size - 100), ("trailer", size - 60)] {
            let objects = w.fork();
            w.flip(&objects, &key, byte);
            let report = w.check(&objects, ReadData::Nothing, false);
            assert_eq!(kinds(&report), [(FindingKind::Pack, key.clone())], "{what}");
            assert!(report.lost.is_empty(), "{what}: {:?}", report.lost);
            w.restores(&objects, "one", &w.contents[0]);
            // and with an entry that is bad too, that one
            w.flip_entry(&objects, &at);
            let report = w.check(&objects, ReadData::Nothing, false);
            let bad = |l: &Location| (l.pack, l.entry) == (at.pack, at.entry);
            assert_eq!(lost(&report)["one"], one.ranges(bad), "{what}");
        }
        // the hash itself: only who reads all of it can know
        let objects = w.fork();
        w.flip(&objects, &key, size - 20);
        assert!(w.check(&objects, ReadData::Nothing, false).is_clean());
        let report = w.check(&objects, ReadData::All, false);
        assert_eq!(kinds(&report), [(FindingKind::Pack, key)]);
        assert!(report.lost.is_empty());
    }
}

#[test]
fn segments_are_rebuilt_and_manifests_are_named() {
    for (name, encryption) in BOTH {
        let w = world(&format!("check-records-{name}"), encryption);
        let objects = w.fork();
        for key in w.vault.keys(&objects, "dedup") {
            w.flip(&objects, key.trim_start_matches("repo/"), 200);
        }
        let report = w.check(&objects, ReadData::Nothing, false);
        assert!(report.findings_count == 2 && report.lost.is_empty(), "{:?}", report.findings);
        let report = w.check(&objects, ReadData::Nothing, true);
        assert_eq!(report.repaired.segments, 1);
        assert!(w.check(&objects, ReadData::All, false).is_clean());
        // the new one is as good as the old ones were: nothing is stored twice
        let image = w.vault.path("other.img");
        fs::write(&image, &w.contents[1]).unwrap();
        let mut options = w.vault.options(&image, "other", None);
        options.volume = Some(VolumeName::new("other").unwrap());
        let cancel = mover_engine::run::Cancel::new();
        let summary = w.vault.run(Arc::clone(&objects), &options, &cancel).result.unwrap();
        assert_eq!(summary.new_bytes, 0, "{summary:?}");

        let objects = w.fork();
        let id = BackupId::new("one").unwrap();
        w.flip(&objects, &manifest_key(&VolumeName::new("v").unwrap(), &id, 0), 80);
        let report = w.check(&objects, ReadData::All, true);
        assert_eq!(report.findings_count, 1, "{:?}", report.findings);
        assert_eq!(report.findings[0].kind, FindingKind::Manifest);
        let [lost] = report.lost.as_slice() else { panic!("{:?}", report.lost) };
        assert!(lost.name.backup_id == id && lost.ranges.is_none());
        w.restores(&objects, "two", &w.contents[1]);
    }
}

#[test]
fn stubs_of_rewritten_packs_are_followed_and_rebuilt() {
    for (name, encryption) in BOTH {
        let w = world(&format!("check-stubs-{name}"), encryption);
        let objects = w.fork();
        // most of what the second backup holds alone is overwritten in a third, and the first two
        // are forgotten but for a rest
        let mut rng = Rng::new(44);
        let mut three = w.contents[1].clone();
        let rest = 650 * 4096;
        let fresh = rng.bytes(rest);
        three[..rest].copy_from_slice(&fresh);
        fs::write(&w.image, &three).unwrap();
        w.vault.backup(Arc::clone(&objects), &w.image, "three", None).unwrap();
        for id in ["one", "two"] {
            w.vault.forget(Arc::clone(&objects), id).unwrap();
        }
        w.vault.collect(Arc::clone(&objects), false).unwrap();
        let stubs = w.vault.keys(&objects, "moved");
        assert!(!stubs.is_empty(), "a mostly dead pack was rewritten");
        w.restores(&objects, "three", &three);
        assert!(w.check(&objects, ReadData::All, false).is_clean());
        for gone in [false, true] {
            let objects: Objects = Arc::new(fork_of(&w, &objects));
            for key in &stubs {
                let key = key.trim_start_matches("repo/");
                if gone { w.delete(&objects, key) } else { w.flip(&objects, key, 90) }
            }
            let report = w.check(&objects, ReadData::Nothing, false);
            // what was moved is found by its ids, one by one
            assert!(report.lost.is_empty() && !report.elsewhere.is_empty(), "gone: {gone}");
            w.restores(&objects, "three", &three);
            let report = w.check(&objects, ReadData::Nothing, true);
            assert!(report.lost.is_empty() && report.repaired.stubs > 0, "{report:?}");
            assert_eq!(report.repaired.recorded, 0);
            w.restores(&objects, "three", &three);
            assert!(w.check(&objects, ReadData::All, false).is_clean());
            w.vault.collect(Arc::clone(&objects), false).unwrap();
            w.restores(&objects, "three", &three);
        }
    }
}

#[test]
fn a_restore_that_skips_damage_lacks_what_the_check_names() {
    for (name, encryption) in BOTH {
        let w = world(&format!("skip-{name}"), encryption);
        let (one, two) = (w.places("one"), w.places("two"));
        let chunk = |n: u64| one.chunks.iter().find(|(m, _)| *m == n).unwrap().1;
        let damages: [(&str, Vec<Location>); 4] = [
            ("entries", vec![chunk(20), chunk(404), chunk(700)]),
            ("a leaf", vec![one.page(0, 30)]),
            ("an inner page and entries", vec![one.page(1, 1), chunk(20), chunk(690)]),
            ("pages of the second", vec![two.page(0, 6), two.page(1, 2)]),
        ];
        for (what, places) in damages {
            let objects = w.fork();
            places.iter().for_each(|at| w.flip_entry(&objects, at));
            let lost = lost(&w.check(&objects, ReadData::All, false));
            assert!(!lost.is_empty(), "{what}");
            for (id, content) in ["one", "two"].into_iter().zip(&w.contents) {
                let target = w.vault.path("left.img");
                // what stood there must not show through
                fs::write(&target, vec![0xaa; content.len()]).unwrap();
                let summary = w.vault.restore_left(Arc::clone(&objects), id, &target).unwrap();
                let skipped = summary.damaged.map(|d| {
                    assert_eq!(d.bytes, d.ranges.iter().map(|r| r.len).sum::<u64>());
                    d.ranges.iter().map(|r| r.offset..r.offset + r.len).collect::<Vec<_>>()
                });
                assert_eq!(skipped, lost.get(id).cloned(), "{what} {id}");
                let mut left = content.clone();
                for r in skipped.unwrap_or_default() {
                    left[usize::try_from(r.start).unwrap()..usize::try_from(r.end).unwrap()]
                        .fill(0);
                }
                assert!(fs::read(&target).unwrap() == left, "{what} {id}");
            }
        }
        let objects = w.fork();
        w.flip_entry(&objects, &one.page(2, 0));
        let target = w.vault.path("none.img");
        let e = w.vault.restore_left(Arc::clone(&objects), "one", &target).unwrap_err();
        assert!(!target.exists(), "nothing is left of it: {e}");
    }
}

#[test]
fn a_collection_leaves_everything_to_a_check_that_is_under_way() {
    let w = world("check-beside", Encryption::Aes256Gcm);
    let objects = w.fork();
    let repo = w.vault.open(Arc::clone(&objects)).unwrap();
    let lease = LeaseOptions { lease_seconds: 600, tool: "test".into(), host: "test".into() };
    let begun = w.vault.block_on(Reader::begin_for_all(&repo, Some(lease)));
    let reader = begun.unwrap();
    let mut check = w.vault.block_on(Check::begin(&repo, ReadLimits::default())).unwrap();
    let packs = w.vault.keys(&objects, "packs");
    for id in ["one", "two"] {
        w.vault.forget(Arc::clone(&objects), id).unwrap();
    }
    let done = w.vault.collect(Arc::clone(&objects), false).unwrap();
    assert_eq!((done.waiting.len(), done.deleted_packs), (1, 0), "{done:?}");
    assert_eq!(w.vault.keys(&objects, "packs"), packs);
    // so the check still finds all that it has begun with
    let todo = check.packs(|_| true);
    assert_eq!(todo.len(), packs.len());
    let mut reports = Vec::new();
    for mut checker in check.checkers(1).unwrap() {
        for (pack, bytes) in &todo {
            let checked = w.vault.block_on(checker.check(pack, *bytes, true, &|_| ()));
            reports.extend(checked.unwrap());
        }
    }
    assert!(reports.is_empty(), "{reports:?}");
    check.absorb(reports);
    assert!(w.vault.block_on(check.settle()).unwrap().is_empty());
    assert_eq!(w.vault.block_on(check.lost()).unwrap(), []);
    assert!(w.vault.block_on(reader.finish()).is_empty());
    let done = w.vault.collect(Arc::clone(&objects), false).unwrap();
    assert_eq!(done.deleted_packs, packs.len() as u64, "{done:?}");
}

/// A copy of objects that are themselves a copy.
fn fork_of(w: &World, objects: &Objects) -> object_store::memory::InMemory {
    use object_store::{ObjectStoreExt, path::Path};
    let copy = object_store::memory::InMemory::new();
    for key in w.vault.keys(objects, "") {
        let path = Path::from(key);
        w.vault.block_on(async {
            let bytes = objects.get(&path).await.unwrap().bytes().await.unwrap();
            copy.put(&path, bytes.into()).await.unwrap();
        });
    }
    copy
}
