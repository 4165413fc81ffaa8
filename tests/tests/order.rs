//! The one order of a volume's backups: whatever the clocks of machines and stores say, whichever
//! backups are forgotten, and however often the repository is copied.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

use chunkstore::retention::{KeepPolicy, plan_forget};
use chunkstore::{ChunkSize, Encryption};
use futures::TryStreamExt;
use mover_engine::ops::backup::ParentChoice;
use mover_engine::run::Cancel;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use tests::{Clocked, ClockedStore, Mover, MoverOutput, Rng, Vault, VaultParams, work_dir};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// How a store's clock moves between two backups: on, not at all, and as clocks do that are set.
const MOVES: [i64; 12] = [0, 0, 1, 4, 7, HOUR, DAY, -1, -90, -DAY, -400 * DAY, 70 * 365 * DAY];
const WORLDS: u64 = 12;
const STEPS: u64 = 14;

struct World {
    vault: Vault,
    store: Arc<ClockedStore>,
    /// Ids in the order in which they were made.
    made: Vec<String>,
}

fn one_of(rng: &mut Rng) -> i64 {
    MOVES[usize::try_from(rng.below(MOVES.len() as u64)).unwrap()]
}

impl World {
    fn new() -> Self {
        let params = VaultParams {
            chunk_bytes: ChunkSize::new(4096).unwrap().bytes(),
            entry_chunks: 16,
            page_fanout: 16,
            encryption: Encryption::None,
        };
        let vault = Vault::new("order", params);
        let store = Clocked::over(vault.memory().fork());
        store.advance(chrono::Utc::now().timestamp());
        Self { vault, store, made: Vec::new() }
    }

    /// One more backup, on whichever one, under an id that says nothing of the order.
    fn back_up(&mut self, rng: &mut Rng) {
        let image = self.vault.path("v.img");
        fs::write(&image, rng.bytes(20_000)).unwrap();
        let id = format!("{:x}", rng.next_u64());
        let mut options = self.vault.options(&image, &id, None);
        let some = rng.below(self.made.len().max(1) as u64);
        let some = self.made.get(usize::try_from(some).unwrap());
        options.parent = match (rng.below(4), some) {
            (0, _) => ParentChoice::None,
            (1, Some(id)) => ParentChoice::Id(id.clone()),
            _ => ParentChoice::Auto,
        };
        let run = self.vault.run(self.store.clone(), &options, &Cancel::new());
        run.result.unwrap();
        self.made.push(id);
    }

    fn forget(&mut self, rng: &mut Rng) {
        if self.made.is_empty() {
            return;
        }
        let at = usize::try_from(rng.below(self.made.len() as u64)).unwrap();
        let id = self.made.remove(at);
        self.vault.forget(self.store.clone(), &id).unwrap();
    }

    /// All objects go to another store, as a tool that knows nothing of them would bring them there:
    /// in any order, dated when they arrive. From now on it is the one that is used.
    fn copy(&mut self, rng: &mut Rng) {
        let copy = Clocked::over(InMemory::new());
        copy.advance(chrono::Utc::now().timestamp() + one_of(rng));
        self.vault.block_on(async {
            let mut found: Vec<_> = self.store.list(None).try_collect().await.unwrap();
            while !found.is_empty() {
                let at = usize::try_from(rng.below(found.len() as u64)).unwrap();
                let path = found.swap_remove(at).location;
                let bytes = self.store.get(&path).await.unwrap().bytes().await.unwrap();
                copy.put(&path, bytes.into()).await.unwrap();
                copy.advance(i64::try_from(rng.below(20)).unwrap());
            }
        });
        self.store = copy;
    }

    fn check(&self) {
        let repo = self.vault.open(self.store.clone()).unwrap();
        let (backups, problems) = self.vault.block_on(repo.list_backups(None)).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        let listed: Vec<_> = backups.iter().map(|b| b.manifest.backup_id.to_string()).collect();
        assert_eq!(listed, self.made, "the order of the list");
        let Some(newest) = self.made.last() else { return };
        let latest = self.vault.block_on(repo.find_backup("v@latest")).unwrap();
        assert_eq!(latest.backup_id.as_str(), newest, "the latest");
        let policy = KeepPolicy { last: 1, ..KeepPolicy::default() };
        let now = chrono::Utc::now();
        let decisions = plan_forget(&policy, &backups, now).unwrap();
        let kept: Vec<_> = decisions.iter().filter(|d| d.keep()).collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].backup.manifest.backup_id.as_str(), newest, "what a policy keeps");
        // it may be another one where the store's clock went back: only work depends on it
        let base = self.vault.block_on(repo.latest_backup_of(&latest.volume)).unwrap();
        assert!(base.is_some());
    }
}

/// Backups one after the other, with each on a store whose clock was set to whatever, forgotten and
/// copied in between: their order is always that in which they were made.
#[test]
fn the_order_is_that_in_which_backups_were_made() {
    let mut seeds = Rng::new(0xa8);
    for world_number in 0..WORLDS {
        let mut rng = seeds.fork();
        let mut world = World::new();
        println!("world {world_number}");
        for _ in 0..STEPS {
            world.store.advance(one_of(&mut rng));
            match rng.below(8) {
                0 => world.forget(&mut rng),
                1 => world.copy(&mut rng),
                _ => world.back_up(&mut rng),
            }
            world.check();
        }
    }
}

/// What a run prints at its end, and warns of.
fn under(mover: &Mover, offset: &str, line: &[&str]) -> serde_json::Value {
    let mut command = Command::new("faketime");
    // only what tells the time of day; files keep the dates that the kernel gives them
    command.args(["-m", "--exclude-monotonic", "-f", offset]).arg(tests::mover_bin());
    command.args(line);
    mover.dress(&mut command);
    command.env("NO_FAKE_STAT", "1");
    MoverOutput::of(&mut command).expect_code(0).summary()
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

/// A machine 90 s behind backs up on top of what a right one has just made, then one that is far
/// ahead, then a right one again. The newest one is the last each time, and stays.
#[test]
fn a_machine_with_a_wrong_clock_makes_the_newest_backup() {
    if !tests::run("faketime", ["--version"]).status.success() {
        tests::skip("order needs faketime (tests/setup gets it)");
        return;
    }
    let dir = work_dir("order");
    let (image, repo) = (dir.path().join("v.img"), dir.path().join("repo"));
    let mover = Mover::new().env("MOVER_REPO", &repo);
    mover.ok(["init", "--encryption", "none"]);
    let mut rng = Rng::new(90);
    let mut shown = HashSet::new();
    for (offset, off, words) in [
        ("+0s", None, ""),
        ("-90s", Some(-90), "s behind the store's"),
        ("+5400s", Some(5400), "min ahead of the store's"),
        ("+0s", None, ""),
    ] {
        let content = rng.bytes(300_000);
        fs::write(&image, &content).unwrap();
        let line = ["backup", text(&image), "--volume", "v", "--json"];
        let done = under(&mover, offset, &line);
        let id = done["backup_id"].as_str().unwrap();
        assert!(shown.insert(id.to_owned()));
        assert_eq!(done["degraded"].as_array().unwrap().len(), 0, "{done}");
        let warned = done["warnings"].to_string();
        assert_eq!(warned.contains("this machine's clock"), off.is_some(), "{warned}");
        assert!(warned.contains(words), "{warned}");

        let listed = mover.ok(["list", "--json"]).json_lines();
        let last = listed.last().unwrap();
        assert_eq!(last["backup_id"], id, "{offset}: the list does not end with the newest");
        let measured = last["clock_offset_ms"].as_i64();
        assert_eq!(measured.is_some(), off.is_some(), "{last}");
        let near = |off: i64| (measured.unwrap() - off * 1000).abs() < 60_000.min(off.abs() * 500);
        assert!(off.is_none_or(near), "{last}");
        let times: Vec<&str> = listed.iter().map(|b| b["finished"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{offset}: times are by the store's clock: {times:?}");

        let target = dir.path().join("restored");
        let _ = fs::remove_file(&target);
        mover.ok(["restore", "v@latest", text(&target)]);
        assert!(fs::read(&target).unwrap() == content, "{offset}: the latest is an older one");
    }
    let latest = mover.ok(["show", "v@latest", "--json"]).summary()["backup_id"].clone();
    mover.ok(["forget", "--keep-last", "1"]);
    mover.ok(["gc"]);
    let left = mover.ok(["list", "--json"]).json_lines();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["backup_id"], latest);
}

/// The child alone is left when a policy keeps one, though its machine's clock is behind.
#[test]
fn a_policy_keeps_the_child_of_a_slow_machine() {
    if !tests::run("faketime", ["--version"]).status.success() {
        tests::skip("order needs faketime (tests/setup gets it)");
        return;
    }
    let dir = work_dir("order-slow");
    let (image, repo) = (dir.path().join("v.img"), dir.path().join("repo"));
    let mover = Mover::new().env("MOVER_REPO", &repo);
    mover.ok(["init", "--encryption", "none"]);
    let line = |id| ["backup", text(&image), "--volume", "v", "--json", "--backup-id", id];
    fs::write(&image, vec![1; 100_000]).unwrap();
    under(&mover, "+0s", &line("parent"));
    fs::write(&image, vec![2; 100_000]).unwrap();
    under(&mover, "-90s", &line("child"));
    mover.ok(["forget", "--keep-last", "1"]);
    mover.ok(["gc"]);
    let left = mover.ok(["list", "--json"]).json_lines();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["backup_id"], "child", "the policy has forgotten the newest backup");
    let page = mover.ok(["show", "child"]).text();
    assert!(page.contains("behind the store's"), "{page}");
}
