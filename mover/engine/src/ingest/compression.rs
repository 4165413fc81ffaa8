//! How strongly new entries are compressed: a setting, or whatever the other stages leave time for.
//!
//! Compressing is four fifths of the CPU of a full backup, so its level decides which stage is the
//! limit. With `auto` the seal threads count where their time goes: working, waiting for units to
//! seal (the device is behind), or waiting to hand a result on (the store is behind). After every
//! window of units, the level follows:
//!
//! - hardly any waiting: the CPU is the limit, and the next faster level is taken;
//! - waiting, and the next stronger level would still fit into the time: it is taken. Up to
//!   [`DEVICE_LEVEL_MAX`] while it is the device that is waited for, where a stronger level saves
//!   no time; up to [`STORE_LEVEL_MAX`] while it is the store, where fewer bytes are less time.
//!
//! Backpressure comes in bursts: nothing is waited for while a pack fills, and then for as long as
//! one takes to be stored. So what is weighed is the last few packs' worth of windows, each less
//! than the one after it.
//!
//! Only units with something to compress count: over a sparse volume the threads wait for the
//! device most of the time, and yet each piece of data comes faster than it can be compressed.
//!
//! It starts at level 1 and goes above it only while the store is waited for, so it is never slower
//! than level 1.

use chunkstore::Compression;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How new entries are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionChoice {
    /// As strongly as the slowest other stage allows.
    Auto,
    /// Always like this.
    Fixed(Compression),
}

impl From<Compression> for CompressionChoice {
    fn from(fixed: Compression) -> Self {
        Self::Fixed(fixed)
    }
}

const START: i32 = 1;
/// The strongest level while the device is the limit. With 3, a sparse volume took 1.15 times as
/// long as with level 1: the device's own work may be on the same cores.
const DEVICE_LEVEL_MAX: i32 = 1;
/// The strongest level with little memory.
const SMALL_LEVEL_MAX: i32 = 3;
/// The strongest level while the store is the limit.
const STORE_LEVEL_MAX: i32 = 6;
/// Levels that are chosen from, and the CPU time of each in thousandths of level 1, measured with
/// entries of 1 MiB of a volume of system files and a database. What they store there: 1300, 1215,
/// 1102, 1000, 943, 907, 896, 872 and 854 thousandths.
const LADDER: [(i32, u32); 9] = [
    (-5, 630),
    (-3, 690),
    (-1, 780),
    (1, 1000),
    (2, 1110),
    (3, 1560),
    (4, 1920),
    (5, 3300),
    (6, 4300),
];
/// Units to a window: less than a pack's worth, more than noise.
const WINDOW_UNITS: u32 = 24;
const WINDOW_LEAST: Duration = Duration::from_millis(40);
/// Twentieths of the time that the seal threads may be busy. Above it the CPU is the limit: what
/// else runs on the same cores (the device's own work, writing to a local store) makes them wait
/// now and then even so. A stronger level has to fit below it.
const BUSY_MAX: u32 = 17;

/// The levels between which a choice moves, and the one it starts at: weakest, first, strongest.
pub(crate) fn levels(choice: CompressionChoice) -> [Compression; 3] {
    match choice {
        CompressionChoice::Auto => [LADDER[0].0, START, STORE_LEVEL_MAX].map(Compression::Zstd),
        CompressionChoice::Fixed(fixed) => [fixed; 3],
    }
}

/// Memory of a seal thread with which `auto` may go up to [`STORE_LEVEL_MAX`].
pub(crate) const STRONG_THREAD_BYTES: u64 =
    seal_thread_bytes(CompressionChoice::Fixed(Compression::Zstd(STORE_LEVEL_MAX)));

/// Memory of one seal thread at a level: zstd's tables and the output of a 1 MiB entry, measured.
pub(crate) const fn seal_thread_bytes(choice: CompressionChoice) -> u64 {
    let mib = match choice {
        CompressionChoice::Auto | CompressionChoice::Fixed(Compression::None) => 4,
        CompressionChoice::Fixed(Compression::Zstd(level)) => match level {
            ..=3 => 4,
            4..=6 => 8,
            7..=12 => 17,
            _ => 22,
        },
    };
    mib << 20
}

/// Where a seal thread's time went.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) busy: Duration,
    /// Waiting for units: the device is behind.
    pub(crate) idle: Duration,
    /// Waiting to hand on: the store is behind.
    pub(crate) blocked: Duration,
}

impl Spent {
    /// What is left of it when another window is added: about eight windows count.
    fn fade(&mut self) {
        for part in [&mut self.busy, &mut self.idle, &mut self.blocked] {
            *part -= *part / 8;
        }
    }

    /// As if the work had been done at another level: more of it takes up waiting, less of it
    /// leaves some.
    fn at_level(&mut self, from: u32, to: u32) {
        let busy = self.busy * to / from;
        let (more, less) = (busy.saturating_sub(self.busy), self.busy.saturating_sub(busy));
        let wait = if self.blocked >= self.idle { &mut self.blocked } else { &mut self.idle };
        // with nothing to wait for, less work is less time
        if !wait.is_zero() {
            *wait = wait.saturating_sub(more) + less;
        }
        self.busy = busy;
    }

    fn add(&mut self, other: Self) {
        self.busy += other.busy;
        self.idle += other.idle;
        self.blocked += other.blocked;
    }

    fn total(&self) -> Duration {
        self.busy + self.idle + self.blocked
    }
}

/// The level in force, shared by the seal threads of a run.
#[derive(Debug)]
pub(crate) struct CompressionController {
    choice: CompressionChoice,
    /// No stronger level fits into the memory budget.
    ceiling: i32,
    now: AtomicI32,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    units: u32,
    spent: Spent,
    /// This window and those before it, faded.
    recent: Spent,
    /// Bytes of new chunks by level.
    bytes: BTreeMap<i32, u64>,
}

impl CompressionController {
    /// `thread_bytes` is the memory that is set aside for a seal thread.
    pub(crate) fn new(choice: CompressionChoice, thread_bytes: u64) -> Self {
        let fits = thread_bytes >= STRONG_THREAD_BYTES;
        let ceiling = if fits { STORE_LEVEL_MAX } else { SMALL_LEVEL_MAX };
        Self { choice, ceiling, now: AtomicI32::new(START), window: Mutex::default() }
    }

    /// For the next entry.
    pub(crate) fn compression(&self) -> Compression {
        match self.choice {
            CompressionChoice::Fixed(fixed) => fixed,
            CompressionChoice::Auto => Compression::Zstd(self.now.load(Relaxed)),
        }
    }

    /// A seal thread has sealed `new_bytes` of a unit's chunks with `used`, and spent its time like
    /// this since the last one.
    pub(crate) fn sealed(&self, used: Compression, new_bytes: u64, spent: Spent) {
        let (CompressionChoice::Auto, Compression::Zstd(level)) = (self.choice, used) else {
            return;
        };
        if new_bytes == 0 {
            return;
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        *window.bytes.entry(level).or_default() += new_bytes;
        window.spent.add(spent);
        window.units += 1;
        if window.units < WINDOW_UNITS || window.spent.total() < WINDOW_LEAST {
            return;
        }
        let spent = std::mem::take(&mut window.spent);
        window.recent.fade();
        window.recent.add(spent);
        window.units = 0;
        let now = self.now.load(Relaxed);
        let next = next_level(now, self.ceiling, window.recent);
        window.recent.at_level(cost(now), cost(next));
        self.now.store(next, Relaxed);
    }

    /// What was used, for people and scripts.
    pub(crate) fn used(&self) -> CompressionUsed {
        let bytes = self.window.lock().unwrap_or_else(PoisonError::into_inner).bytes.clone();
        let setting = match self.choice {
            CompressionChoice::Auto => "auto".to_owned(),
            CompressionChoice::Fixed(fixed) => fixed_name(fixed),
        };
        let levels = bytes.into_iter().filter(|(_, bytes)| *bytes > 0);
        let levels = levels.map(|(level, new_bytes)| LevelUsed { level, new_bytes }).collect();
        CompressionUsed { setting, levels }
    }
}

fn fixed_name(fixed: Compression) -> String {
    match fixed {
        Compression::None => "none".to_owned(),
        Compression::Zstd(level) => format!("zstd:{level}"),
    }
}

/// Of a level of the ladder.
fn cost(level: i32) -> u32 {
    LADDER.iter().find(|(of, _)| *of == level).map_or(1000, |(_, cost)| *cost)
}

/// The level for the next window.
fn next_level(now: i32, ceiling: i32, spent: Spent) -> i32 {
    let at = LADDER.iter().position(|(level, _)| *level == now).unwrap_or(0);
    let total = spent.total();
    let limit = if spent.blocked >= spent.idle { STORE_LEVEL_MAX } else { DEVICE_LEVEL_MAX };
    if spent.busy * 20 > total * BUSY_MAX || now > limit {
        return LADDER[at.saturating_sub(1)].0;
    }
    match LADDER.get(at + 1) {
        Some((next, cost))
            if *next <= limit.min(ceiling)
                && spent.busy * 20 * *cost < total * BUSY_MAX * LADDER[at].1 =>
        {
            *next
        }
        _ => now,
    }
}

/// How new chunks were compressed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CompressionUsed {
    /// `auto`, `none` or `zstd:LEVEL`.
    pub setting: String,
    /// With `auto`: the levels that were used, ascending.
    pub levels: Vec<LevelUsed>,
}

/// Bytes of the volume that were compressed at a level, or found not worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LevelUsed {
    /// Of zstd.
    pub level: i32,
    /// Before compression.
    pub new_bytes: u64,
}

impl CompressionUsed {
    /// One line for people.
    pub fn line(&self) -> String {
        let Some(most) = self.levels.iter().max_by_key(|l| l.new_bytes) else {
            return self.setting.clone();
        };
        match (self.levels.first(), self.levels.last()) {
            (Some(first), Some(last)) if first.level != last.level => format!(
                "{}: levels {} to {}, mostly {}",
                self.setting, first.level, last.level, most.level
            ),
            _ => format!("{}: level {}", self.setting, most.level),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(busy: u64, idle: u64, blocked: u64) -> Spent {
        let ms = Duration::from_millis;
        Spent { busy: ms(busy), idle: ms(idle), blocked: ms(blocked) }
    }

    /// Seals until the level stays, with a time a unit that follows the level's cost and one that
    /// another stage takes.
    fn settled(ceiling_spare: u64, busy_at_1_us: u64, other_us: u64, store: bool) -> Vec<i32> {
        let level = CompressionController::new(CompressionChoice::Auto, ceiling_spare);
        let mut seen = vec![START];
        for _ in 0..WINDOW_UNITS * 64 {
            let used = level.compression();
            let Compression::Zstd(now) = used else { panic!("auto is zstd") };
            let cost = LADDER.iter().find(|(l, _)| *l == now).unwrap().1;
            let busy = busy_at_1_us * u64::from(cost) / 1000;
            let wait = Duration::from_micros(other_us.saturating_sub(busy));
            let (idle, blocked) =
                if store { (Duration::ZERO, wait) } else { (wait, Duration::ZERO) };
            level.sealed(used, 1 << 20, Spent { busy: Duration::from_micros(busy), idle, blocked });
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        seen
    }

    #[test]
    fn a_cpu_that_is_the_limit_gets_the_fastest_level() {
        assert_eq!(settled(u64::MAX, 3000, 0, false), [1, -1, -3, -5]);
    }

    /// One part in eleven of the time is waited for the device or the store.
    #[test]
    fn a_cpu_that_waits_a_little_is_the_limit_all_the_same() {
        assert_eq!(settled(u64::MAX, 3000, 3300, false), [1, -1]);
        assert_eq!(settled(u64::MAX, 3000, 3300, true), [1, -1]);
    }

    #[test]
    fn a_slow_store_gets_the_strongest_level_that_fits_into_the_wait() {
        assert_eq!(settled(u64::MAX, 3000, 100_000, true), [1, 2, 3, 4, 5, 6]);
        // at level 4 a unit takes 5760 of 6500 µs, at 5 it would take 9900
        assert_eq!(settled(u64::MAX, 3000, 6900, true), [1, 2, 3, 4]);
    }

    /// A store that takes so many packs at once, and each for so long, in which the threads can
    /// seal many. What is stored at each level in the end, and how long it took.
    fn bursts(units: u32, store_us_a_unit: u64) -> (BTreeMap<i32, u64>, u64) {
        const PACK_UNITS: u64 = 60;
        const PACKS: usize = 5;
        let level = CompressionController::new(CompressionChoice::Auto, u64::MAX);
        let (mut now, mut sealed) = (0, 0);
        // when each pack is stored; one after another
        let mut stored: Vec<u64> = Vec::new();
        for _ in 0..units {
            let used = level.compression();
            let Compression::Zstd(at) = used else { panic!("auto is zstd") };
            let busy = 1500 * u64::from(cost(at)) / 1000;
            now += busy;
            sealed += 1;
            let mut blocked = 0;
            if sealed % PACK_UNITS == 0 {
                let begins = now.max(stored.last().copied().unwrap_or(0));
                stored.push(begins + PACK_UNITS * store_us_a_unit);
                let ahead = stored.len().saturating_sub(PACKS);
                let free = ahead.checked_sub(1).map_or(0, |done| stored[done]);
                blocked = free.saturating_sub(now);
                now += blocked;
            }
            let us = Duration::from_micros;
            let (busy, blocked) = (us(busy), us(blocked));
            level.sealed(used, 1 << 20, Spent { busy, idle: Duration::ZERO, blocked });
        }
        let used = level.used().levels.into_iter().map(|l| (l.level, l.new_bytes >> 20));
        (used.collect(), stored.last().copied().unwrap_or(now).max(now))
    }

    #[test]
    fn a_slow_store_that_takes_packs_gets_strong_levels() {
        // V1 of docs/performance.md at 25 MB a second: 16 ms a unit, while sealing one takes 1.5 at
        // level 1
        let (used, took) = bursts(2700, 16_000);
        let strong: u64 = used.range(5..).map(|(_, units)| units).sum();
        assert!(strong > 1500, "{used:?}");
        assert!(took <= 2700 * 16_000 + 400_000, "{took} µs");
    }

    #[test]
    fn a_store_that_keeps_up_in_bursts_gets_weak_levels() {
        let (used, _) = bursts(2700, 500);
        assert!(used.range(..=-3).map(|(_, units)| units).sum::<u64>() > 2500, "{used:?}");
    }

    #[test]
    fn a_slow_device_gets_no_more_than_level_1() {
        assert_eq!(settled(u64::MAX, 3000, 100_000, false), [1]);
        assert_eq!(next_level(-5, STORE_LEVEL_MAX, spent(100, 900, 0)), -3);
    }

    #[test]
    fn units_without_anything_to_compress_say_nothing() {
        let level = CompressionController::new(CompressionChoice::Auto, u64::MAX);
        for _ in 0..1000 {
            level.sealed(level.compression(), 0, spent(1, 0, 900));
        }
        assert_eq!(level.compression(), Compression::Zstd(START));
        assert_eq!(level.used().levels, []);
    }

    #[test]
    fn memory_bounds_the_level() {
        assert_eq!(settled(0, 3000, 100_000, true), [1, 2, 3]);
    }

    /// The whole point: whatever the other stage takes, a unit never takes longer than it would at
    /// level 1.
    #[test]
    fn it_is_never_slower_than_level_1() {
        for other_us in (0..20_000).step_by(250) {
            for store in [false, true] {
                let last = *settled(u64::MAX, 3000, other_us, store).last().unwrap();
                let cost = u64::from(LADDER.iter().find(|(l, _)| *l == last).unwrap().1);
                assert!(3 * cost <= other_us.max(3000), "{other_us} µs, {store}: level {last}");
            }
        }
    }

    #[test]
    fn a_level_for_a_slow_store_is_given_back_when_the_device_is_the_limit() {
        assert_eq!(next_level(6, STORE_LEVEL_MAX, spent(100, 900, 0)), 5);
        assert_eq!(next_level(1, STORE_LEVEL_MAX, spent(100, 900, 0)), 1);
    }

    #[test]
    fn a_fixed_level_stays() {
        let level = CompressionController::new(Compression::Zstd(4).into(), 0);
        for _ in 0..100 {
            level.sealed(level.compression(), 1 << 20, spent(100, 0, 0));
        }
        assert_eq!(level.compression(), Compression::Zstd(4));
        assert_eq!(level.used().line(), "zstd:4");
    }

    #[test]
    fn what_was_used_is_said() {
        let level = CompressionController::new(CompressionChoice::Auto, 0);
        assert_eq!(level.used().line(), "auto");
        level.sealed(Compression::Zstd(1), 10, Spent::default());
        assert_eq!(level.used().line(), "auto: level 1");
        level.sealed(Compression::Zstd(-5), 20, Spent::default());
        assert_eq!(level.used().line(), "auto: levels -5 to 1, mostly -5");
    }
}
