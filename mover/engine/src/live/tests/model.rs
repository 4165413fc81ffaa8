//! Thousands of lives of a small volume: several clients, hydration, and an end of the world at a
//! random step, again and again, until all is fetched.
//!
//! A failure prints its seed: put that into `run` to see it again.

use super::oracle::Oracle;
use super::sim::{Faults, Random, Sim, SimSource, World};
use crate::live::hydrate::{HydrateOptions, hydrate};
use crate::live::journal::{JournalTerms, encode_base, replay};
use crate::live::volume::{CowVolume, index, locked};
use crate::live::{ChunkBits, Replayed};
use bytes::Bytes;
use std::sync::{Arc, Mutex};
use tokio::runtime::{Builder, Runtime};

const SIZE: usize = 11 * CHUNK + 21;
const CHUNK: usize = 32;
const LIVES_MAX: u64 = 60;

type Volume = Arc<CowVolume<SimSource, Sim, Sim>>;

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

pub(super) fn terms() -> JournalTerms {
    JournalTerms {
        chunk_bytes: u32::try_from(CHUNK).unwrap(),
        size_bytes: SIZE as u64,
        token: [9; 16],
        identity: Vec::new(),
    }
}

pub(super) fn world(seed: u64, faults: Faults) -> Sim {
    let mut world = World::new(seed, SIZE, CHUNK, faults);
    world.set_journal(encode_base(&terms(), &ChunkBits::none(terms().chunks()), 0));
    if faults.damage {
        world.damaged = vec![2, 5, 11];
    }
    Sim(Arc::new(Mutex::new(world)))
}

/// As the file does it: what is torn is cut.
pub(super) fn open(rt: &Runtime, sim: &Sim) -> Volume {
    let read: Replayed = {
        let mut world = locked(&sim.0);
        let mut bytes = world.journal();
        let read = replay(&bytes).unwrap_or_else(|e| panic!("{e}"));
        bytes.truncate(index(read.end));
        world.set_journal(bytes);
        read
    };
    CowVolume::new(rt.handle(), SimSource(sim.clone()), sim.clone(), (sim.clone(), read))
}

async fn client(volume: Volume, sim: Sim, oracle: Arc<Mutex<Oracle>>, seed: u64, requests: u64) {
    let mut random = Random::new(seed);
    for _ in 0..requests {
        let (start, len) = if random.one_in(3) {
            let chunk = random.below((SIZE / CHUNK) as u64 + 1);
            (index(chunk) * CHUNK, CHUNK * index(1 + random.below(3)))
        } else {
            (index(random.below(SIZE as u64)), index(1 + random.below(80)))
        };
        let end = SIZE.min(start + len);
        let range = start as u64..end as u64;
        let zeros = vec![0; end - start];
        match random.below(10) {
            0..4 => {
                let data: Vec<u8> = zeros.iter().map(|_| random.byte()).collect();
                let asked = locked(&oracle).ask(start, &data, "write");
                let write = volume.write(range.start, Bytes::from(data));
                // some clients go away in the middle
                let left = random.one_in(6);
                let well = match left {
                    true => for_some_turns(write, random.below(12)).await,
                    false => write.await.is_ok(),
                };
                locked(&oracle).end(&asked, well);
            }
            4 => {
                let asked = locked(&oracle).ask(start, &zeros, "zero");
                let well = volume.zero(range, random.one_in(2)).await.is_ok();
                locked(&oracle).end(&asked, well);
            }
            5 => {
                let asked = locked(&oracle).ask(start, &zeros, "trim");
                let well = volume.trim(range).await.is_ok();
                locked(&oracle).end(&asked, well);
            }
            6 => {
                let asked = locked(&oracle).now();
                if volume.flush().await.is_ok() {
                    locked(&oracle).flushed(asked);
                }
            }
            _ => {
                let asked = locked(&oracle).now();
                let mut found = zeros;
                if volume.read(range.start, &mut found).await.is_ok() {
                    locked(&oracle).check_read(asked, start, &found);
                }
            }
        }
        if locked(&sim.0).has_ended() {
            return;
        }
    }
}

/// Whether it has ended well before it is left.
async fn for_some_turns<R, E>(work: impl Future<Output = Result<R, E>>, turns: u64) -> bool {
    let enough = async {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = work => done.is_ok(),
        () = enough => false,
    }
}

fn options() -> HydrateOptions {
    HydrateOptions {
        tasks: 3,
        run_bytes: 3 * CHUNK as u64,
        ahead_bytes: 8 * CHUNK as u64,
        flush_bytes: 4 * CHUNK as u64,
        first: std::iter::once(200..260).collect(),
    }
}

/// One life: until all have ended, or the world has.
async fn live(volume: Volume, sim: Sim, oracle: Arc<Mutex<Oracle>>, random: &mut Random) {
    let clients = 1 + random.below(3);
    let requests = 1 + random.below(12);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (volume, sim, oracle) = (volume.clone(), sim.clone(), oracle.clone());
        tasks.spawn(client(volume, sim, oracle, random.below(u64::MAX), requests));
    }
    if random.below(3) > 0 {
        let volume = volume.clone();
        tasks.spawn(async move {
            // a target that fails ends it
            let _ = hydrate(&volume, &options(), |_| {}).await;
        });
    }
    let ended = async {
        while !locked(&sim.0).has_ended() {
            tokio::task::yield_now().await;
        }
    };
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
        }
    };
    tokio::select! {
        biased;
        () = all => {}
        () = ended => {}
    }
}

/// The bytes as they are: of the target where done, else of the backup; damage and all.
async fn content(volume: &Volume, sim: &Sim) -> Vec<u8> {
    let faults = std::mem::take(&mut locked(&sim.0).faults);
    let damaged = std::mem::take(&mut locked(&sim.0).damaged);
    let mut found = vec![0; SIZE];
    volume.read(0, &mut found).await.unwrap();
    let mut world = locked(&sim.0);
    (world.faults, world.damaged) = (faults, damaged);
    found
}

/// Lives and crashes until all is fetched, then looks at the target itself.
fn run(seed: u64, faults: Faults) {
    let mut random = Random::new(seed ^ 0xabcd);
    let sim = world(seed, faults);
    let oracle = Arc::new(Mutex::new(Oracle::new(&locked(&sim.0).backup.clone())));
    for life in 0.. {
        let rt = runtime();
        let volume = open(&rt, &sim);
        let found = rt.block_on(content(&volume, &sim));
        locked(&oracle).check_crash(&found);
        if life >= LIVES_MAX || volume.figures().durable == terms().chunks() {
            break;
        }
        locked(&sim.0).ends_after(1 + random.below(250));
        rt.block_on(live(volume, sim.clone(), oracle.clone(), &mut random));
        drop(rt);
        locked(&sim.0).crash();
    }
    // the rest, with nothing in the way
    locked(&sim.0).faults = Faults::default();
    locked(&sim.0).damaged.clear();
    let rt = runtime();
    let volume = open(&rt, &sim);
    rt.block_on(async {
        let before = content(&volume, &sim).await;
        let hydrated = hydrate(&volume, &options(), |_| {}).await.unwrap();
        assert_eq!(hydrated.damaged, []);
        volume.close().await.unwrap();
        assert_eq!(volume.figures().durable, terms().chunks());
        let target = crate::live::CowTarget::read(&sim, 0..SIZE as u64).await.unwrap();
        assert_eq!(target, before, "the target is not what clients saw");
    });
}

fn run_seeds(faults: Faults, seeds: u64) {
    for seed in 0..seeds {
        let ran = std::panic::catch_unwind(|| run(seed, faults));
        if let Err(e) = ran {
            let what = e.downcast_ref::<String>().map_or("", String::as_str);
            panic!("seed {seed} with {faults:?}: {what}");
        }
    }
}

#[test]
fn backup_plus_writes_whatever_is_lost_and_whenever() {
    run_seeds(Faults::default(), 3000);
}

#[test]
fn with_targets_that_fail_and_stores_that_are_away_or_damaged() {
    let faults = Faults { writes_fail: true, damage: true, away: true, ..Faults::default() };
    run_seeds(faults, 2000);
}

/// The model would see it if the order were another one.
#[test]
fn a_journal_that_is_before_its_data_is_found_out() {
    let lies = Faults { target_lies: true, ..Faults::default() };
    let found = (0..200).find(|seed| std::panic::catch_unwind(|| run(*seed, lies)).is_err());
    assert!(found.is_some(), "no seed has shown that data was not durable");
}
