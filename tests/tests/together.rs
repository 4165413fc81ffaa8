//! Many processes of the real program at work in one repository at once, some of them killed.
//!
//! Eight volumes that share data are changed and backed up, with and without lists, each by its own
//! process after the other; two processes restore what is there, two collect, and one forgets. In
//! every second round some are killed at random moments and run again, or given up. What is
//! restored equals what was backed up, at any time; after each round the structure is checked
//! (`check`), and at the end all that is left is read, restored and compared, and nothing stays
//! that nobody refers to.
//!
//! By default two short rounds on a local directory. `MOVER_TEST_TOGETHER_MINUTES=10` is the full
//! size, on Ceph.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed; figures are shown; the test's own environment"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tests::{Mover, Place, Rng, volume_dir, work_dir};

const BLOCK: usize = 64 << 10;
/// Blocks that all volumes take their content from.
const POOL: u64 = 900;
const VOLUMES: u64 = 8;

/// What a volume holds, block by block: 0 is zeros.
type Content = Vec<u64>;

fn block(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if seed != 0 {
        // half of it compresses
        Rng::seeded(seed).fill(&mut bytes[..BLOCK / 2]);
        bytes[BLOCK / 2..].fill(u8::try_from(seed % 251).unwrap());
    }
    bytes
}

/// What is known of a backup.
#[derive(Clone)]
struct Known {
    content: Content,
    /// Its run ended well: it is there, unless it is forgotten.
    committed: bool,
    /// Somebody has begun to forget it.
    forgotten: bool,
}

#[derive(Default)]
struct Counts {
    backups: AtomicU64,
    restores: AtomicU64,
    gone: AtomicU64,
    collections: AtomicU64,
    forgets: AtomicU64,
    kills: AtomicU64,
}

impl Counts {
    fn more(what: &AtomicU64) {
        what.fetch_add(1, Ordering::Relaxed);
    }
}

/// Volume and number of a backup: `v3@b17`.
type Name = (u64, u64);

struct Scene {
    mover: Mover,
    volumes: PathBuf,
    blocks: u64,
    known: Mutex<BTreeMap<Name, Known>>,
    counts: Counts,
}

/// A volume and whoever backs it up.
struct Volume {
    number: u64,
    image: PathBuf,
    /// A copy of the image as it was backed up last.
    old: PathBuf,
    content: Content,
    next: u64,
    base: Option<u64>,
    rng: Rng,
}

fn words(text: &str) -> Vec<PathBuf> {
    text.split_whitespace().map(PathBuf::from).collect()
}

fn write(path: &Path, content: &Content) {
    let file = File::create(path).unwrap();
    for (at, seed) in content.iter().enumerate() {
        file.write_all_at(&block(*seed), (at * BLOCK) as u64).unwrap();
    }
}

impl Scene {
    fn known(&self) -> MutexGuard<'_, BTreeMap<Name, Known>> {
        self.known.lock().unwrap()
    }

    /// Runs a command and kills it after so long; false if it had ended by itself before, and well.
    fn killed(&self, line: &[PathBuf], after: Duration) -> bool {
        let mut command = self.mover.command(line);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        let (sender, receiver) = channel::<()>();
        let mut ended = None;
        while begun.elapsed() < after && ended.is_none() {
            ended = child.try_wait().unwrap();
            let _ = receiver.recv_timeout(Duration::from_millis(2)); // nothing comes
        }
        drop(sender);
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let well = ended.is_none_or(|status| status.success());
        assert!(well && !stderr.contains("panicked"), "{line:?}: {ended:?}: {stderr}");
        if ended.is_none() {
            Counts::more(&self.counts.kills);
        }
        ended.is_none()
    }

    /// One change of a volume and a backup of it.
    fn back_up(&self, volume: &mut Volume, kills: bool) {
        let rng = &mut volume.rng;
        for _ in 0..=rng.below(self.blocks / 6) {
            let at = usize::try_from(rng.below(self.blocks)).unwrap();
            volume.content[at] = rng.below(POOL);
        }
        write(&volume.image, &volume.content);
        let (number, id) = (volume.number, volume.next);
        volume.next += 1;
        let known = Known { content: volume.content.clone(), committed: false, forgotten: false };
        self.known().insert((number, id), known);
        let mut line = words(&format!(
            "backup --volume v{number} --backup-id v{number}-b{id} --snapshot s{id} --memory 64MiB \
             --checkpoint-interval 4MiB --json"
        ));
        if let (Some(base), true) = (volume.base, rng.once_in(2)) {
            let list = self.volumes.join(format!("v{number}.json"));
            tests::write_extents(&volume.old, &volume.image, &list);
            line.extend(words(&format!("--base-snapshot s{base} --changed-blocks")));
            line.push(list);
        }
        line.push(volume.image.clone());
        if kills && rng.once_in(3) {
            let killed = self.killed(&line, Duration::from_millis(rng.below(900)));
            if killed && rng.once_in(3) {
                // given up: it may be there or not
                return;
            }
        }
        let done = self.mover.ok(&line).summary();
        let outcome = done["outcome"].as_str().unwrap();
        assert!(["committed", "already-committed"].contains(&outcome), "{done}");
        tests::copy_image(&volume.image, &volume.old);
        volume.base = Some(id);
        self.known().get_mut(&(number, id)).unwrap().committed = true;
        Counts::more(&self.counts.backups);
    }

    /// One that is there, and nobody forgets yet.
    fn pick(&self, rng: &mut Rng) -> Option<(Name, Content)> {
        let known = self.known();
        let there: Vec<_> = known.iter().filter(|(_, k)| k.committed && !k.forgotten).collect();
        if there.is_empty() {
            return None;
        }
        let (name, known) = there[usize::try_from(rng.below(there.len() as u64)).unwrap()];
        Some((*name, known.content.clone()))
    }

    fn expect_restored(&self, (volume, id): Name, content: &Content, target: &Path) {
        let name = format!("v{volume}@v{volume}-b{id}");
        let line = ["restore", &name, target.to_str().unwrap(), "--force", "--memory", "64MiB"];
        let output = self.mover.run(line);
        if output.code() != Some(0) {
            // it may have been forgotten before the restore was there
            let forgotten = self.known()[&(volume, id)].forgotten;
            assert!(forgotten, "{name}: {}", output.stderr);
            assert!(output.stderr.contains("no such backup"), "{name}: {}", output.stderr);
            Counts::more(&self.counts.gone);
            return;
        }
        let file = File::open(target).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (content.len() * BLOCK) as u64, "{name}");
        let mut bytes = vec![0; BLOCK];
        for (at, seed) in content.iter().enumerate() {
            file.read_exact_at(&mut bytes, (at * BLOCK) as u64).unwrap();
            assert!(bytes == block(*seed), "{name} differs in block {at}");
        }
        Counts::more(&self.counts.restores);
    }

    fn collect(&self, kills: bool, rng: &mut Rng) {
        let line = words("gc -q");
        if kills && rng.once_in(4) {
            self.killed(&line, Duration::from_millis(rng.below(400)));
        } else {
            self.mover.ok(&line);
        }
        Counts::more(&self.counts.collections);
    }

    /// Forgets one of a volume that has more than two; never its last.
    fn forget(&self, rng: &mut Rng) {
        let chosen = {
            let mut known = self.known();
            let mut there: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for ((volume, id), _) in known.iter().filter(|(_, k)| k.committed && !k.forgotten) {
                there.entry(*volume).or_default().push(*id);
            }
            there.retain(|_, ids| ids.len() > 2);
            let which = usize::try_from(rng.below(VOLUMES)).unwrap();
            let Some((volume, ids)) = there.into_iter().nth(which) else { return };
            let id = ids[usize::try_from(rng.below(ids.len() as u64 - 1)).unwrap()];
            known.get_mut(&(volume, id)).unwrap().forgotten = true;
            (volume, id)
        };
        let (volume, id) = chosen;
        self.mover.ok(["forget", "-q", &format!("v{volume}@v{volume}-b{id}")]);
        Counts::more(&self.counts.forgets);
    }

    /// All of them at work until each volume was backed up so many times.
    fn round(&self, volumes: &mut [Volume], times: u64, kills: bool, rng: &mut Rng) {
        let left = AtomicU64::new(volumes.len() as u64);
        let at_work = || left.load(Ordering::Acquire) > 0;
        std::thread::scope(|scope| {
            for volume in volumes {
                let left = &left;
                scope.spawn(move || {
                    let _done = Done(left);
                    for _ in 0..times {
                        self.back_up(volume, kills);
                    }
                });
            }
            for reader in 0..2 {
                let mut rng = rng.fork();
                let target = self.volumes.join(format!("restored-{reader}"));
                scope.spawn(move || {
                    while at_work() {
                        match self.pick(&mut rng) {
                            Some((name, content)) => {
                                self.expect_restored(name, &content, &target);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                });
            }
            for _ in 0..2 {
                let mut rng = rng.fork();
                scope.spawn(move || {
                    while at_work() {
                        self.collect(kills, &mut rng);
                    }
                });
            }
            let mut rng = rng.fork();
            scope.spawn(move || {
                while at_work() {
                    self.forget(&mut rng);
                    self.mover.ok(["list", "-q"]);
                }
            });
        });
    }
}

/// Counts down even when its thread fails: the others must not wait for ever.
struct Done<'a>(&'a AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Scene {
    /// Names that the program lists.
    fn listed(&self) -> Vec<Name> {
        let all = self.mover.ok(["list", "--json"]);
        let backups = all.json_lines();
        let ids = backups.iter().filter_map(|b| b["backup_id"].as_str());
        let parse = |id: &str| {
            let (volume, number) = id.strip_prefix('v')?.split_once("-b")?;
            Some((volume.parse().ok()?, number.parse().ok()?))
        };
        ids.map(|id| parse(id).expect("a backup of ours")).collect()
    }

    /// What is there is what was committed and not forgotten, and perhaps what was killed.
    fn expect_backups(&self) -> Vec<Name> {
        let listed = self.listed();
        for (name, known) in self.known().iter() {
            let there = listed.contains(name);
            assert!(!known.forgotten || !there, "{name:?} is forgotten and listed");
            assert!(!known.committed || known.forgotten || there, "{name:?} is gone");
        }
        listed
    }
}

#[test]
fn many_at_work_in_one_repository_lose_nothing() {
    let minutes: Option<u64> =
        std::env::var("MOVER_TEST_TOGETHER_MINUTES").ok().map(|n| n.parse().unwrap());
    let (blocks, times) = if minutes.is_some() { (384, 4) } else { (96, 2) };
    let place = if minutes.is_some() {
        Place::on(tests::require_s3!(ceph))
    } else {
        Place::Directory(work_dir("together"))
    };
    let volumes = volume_dir("together");
    let key = volumes.path().join("key");
    let mut rng = Rng::new(57);
    let scene = Scene {
        mover: place.init("r", &key),
        volumes: volumes.path().to_owned(),
        blocks,
        known: Mutex::default(),
        counts: Counts::default(),
    };
    let mut all: Vec<Volume> = (0..VOLUMES)
        .map(|number| {
            let mut rng = rng.fork();
            Volume {
                number,
                image: volumes.path().join(format!("v{number}.img")),
                old: volumes.path().join(format!("v{number}.old")),
                content: (0..blocks).map(|_| rng.below(POOL)).collect(),
                next: 0,
                base: None,
                rng,
            }
        })
        .collect();
    let begun = Instant::now();
    let until = Duration::from_secs(60 * minutes.unwrap_or(0));
    let mut rounds = 0;
    while rounds < 2 || begun.elapsed() < until {
        scene.round(&mut all, times, rounds % 2 == 1, &mut rng);
        rounds += 1;
        scene.expect_backups();
        scene.mover.ok(["check"]);
        // the dead do not hold back the next round's collections
        place.age("r");
    }
    for _ in 0..2 {
        place.age("r");
        scene.mover.ok(["gc", "-q"]);
    }
    scene.mover.ok(["check", "--read-data=all"]);
    let left = scene.expect_backups();
    let target = volumes.path().join("restored");
    for name in &left {
        let content = scene.known()[name].content.clone();
        scene.expect_restored(*name, &content, &target);
    }
    place.expect_clean("r", &key, left.len());
    let Counts { backups, restores, gone, collections, forgets, kills } = &scene.counts;
    println!(
        "{rounds} rounds in {:?}: {backups:?} backups, {restores:?} restores, {gone:?} that came too late, {collections:?} \
         collections, {forgets:?} forgotten, {kills:?} kills; {} backups left",
        begun.elapsed(),
        left.len()
    );
    assert!(forgets.load(Ordering::Relaxed) > 0, "nothing was forgotten");
}
