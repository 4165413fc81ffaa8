//! How many transfers are under way at once: as many as the line makes use of, no more.
//!
//! A line with a latency needs several transfers in flight to be full, and how many depends on its
//! rate, its latency and the size of what is moved: nothing that could be known before. More than
//! that gain nothing, and make a store slow everybody down. So the number follows what is measured,
//! as a person would turn a knob:
//!
//! - Twice as many transfers as are allowed make a *window*; its goodput is the bytes that arrived
//!   over its time.
//! - A window in which nothing had to wait says nothing about the line: something else was the
//!   limit.
//! - Otherwise the number is raised by a quarter. If that brought at least 5% more, it is raised
//!   again; if not, it goes back and stays for some windows, longer after each raise in vain, since
//!   the line may change.
//! - Where goodput falls to half of what it was with as many or fewer, the store pushes back, or
//!   the line has become congested: a quarter fewer. (With a fixed number in flight, latency is
//!   their number over goodput: a latency that blows up and a goodput that breaks in are one
//!   thing.)
//!
//! [`Controller`] is pure: it is told the time. [`Gate`] is for async code. The bound on memory is
//! not known here: it is the `most` that a controller is made with, or permits that a transfer
//! takes before it asks for a place.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Windows that are waited after a raise in vain, at first and at most.
const HOLD_WINDOWS: std::ops::RangeInclusive<u32> = 4..=64;

/// Decides how many transfers may be under way.
#[derive(Debug)]
pub(crate) struct Controller {
    allowed: usize,
    most: usize,
    window: Window,
    /// The number before the last raise, and the goodput with it, until that has shown its worth.
    before: Option<(usize, f64)>,
    /// Goodput that was reached with the present number or fewer.
    reached: f64,
    hold: u32,
    hold_next: u32,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    transfers: usize,
    bytes: u64,
    waited: bool,
}

impl Controller {
    /// Begins with `start` and never allows more than `most`.
    pub(crate) fn new(start: usize, most: usize, now: Instant) -> Self {
        let most = most.max(1);
        Self {
            allowed: start.clamp(1, most),
            most,
            window: Window { since: now, transfers: 0, bytes: 0, waited: false },
            before: None,
            reached: 0.0,
            hold: 0,
            hold_next: *HOLD_WINDOWS.start(),
        }
    }

    /// How many may be under way now.
    pub(crate) fn allowed(&self) -> usize {
        self.allowed
    }

    /// A transfer had to wait for a place: the number is what holds back.
    pub(crate) fn waited(&mut self) {
        self.window.waited = true;
    }

    /// A transfer has ended well.
    pub(crate) fn ended(&mut self, now: Instant, bytes: u64) {
        self.window.transfers += 1;
        self.window.bytes += bytes;
        if self.window.transfers < 2 * self.allowed {
            return;
        }
        let fresh = Window { since: now, transfers: 0, bytes: 0, waited: false };
        let done = std::mem::replace(&mut self.window, fresh);
        let seconds = now.saturating_duration_since(done.since).max(Duration::from_micros(1));
        if done.waited {
            #[allow(clippy::cast_precision_loss, reason = "a rate, compared roughly")]
            self.judge(done.bytes as f64 / seconds.as_secs_f64());
        } else {
            self.before = None;
        }
    }

    fn judge(&mut self, goodput: f64) {
        if let Some((number, reached)) = self.before.take() {
            if goodput < reached * 1.05 {
                self.allowed = number;
                self.hold = self.hold_next;
                self.hold_next = (2 * self.hold_next).min(*HOLD_WINDOWS.end());
                return;
            }
            self.hold_next = *HOLD_WINDOWS.start();
        }
        if goodput < self.reached / 2.0 {
            self.allowed = (self.allowed * 3 / 4).max(1);
            // what the line gives now is what counts from here on
            self.reached = goodput;
            self.hold = *HOLD_WINDOWS.start();
        } else if self.hold > 0 {
            self.hold -= 1;
            self.reached = goodput.max(self.reached);
        } else {
            self.reached = goodput.max(self.reached);
            let raised = (self.allowed + (self.allowed / 4).max(1)).min(self.most);
            if raised > self.allowed {
                self.before = Some((self.allowed, goodput));
                self.allowed = raised;
            }
        }
    }
}

/// Places for transfers in async code, as many as a [`Controller`] allows.
#[derive(Debug)]
pub(crate) struct Gate {
    controller: Mutex<State>,
    places: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    controller: Controller,
    /// Places that exist.
    places: usize,
}

impl Gate {
    /// As [`Controller::new`].
    pub(crate) fn new(start: usize, most: usize) -> Self {
        let controller = Controller::new(start, most, Instant::now());
        let places = controller.allowed();
        Self {
            controller: Mutex::new(State { controller, places }),
            places: Arc::new(Semaphore::new(places)),
        }
    }

    /// Waits for a place; `None` never comes, since the gate is never closed.
    pub(crate) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(place);
        }
        self.state().controller.waited();
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// A transfer of so many bytes has ended well; its place is free, or there is one fewer now.
    pub(crate) fn ended(&self, place: Option<OwnedSemaphorePermit>, bytes: u64) {
        let mut state = self.state();
        state.controller.ended(Instant::now(), bytes);
        let allowed = state.controller.allowed();
        if allowed > state.places {
            self.places.add_permits(allowed - state.places);
            state.places = allowed;
        } else if allowed < state.places
            && let Some(place) = place
        {
            place.forget();
            state.places -= 1;
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A line in virtual time: what `transfers` of a MiB in flight bring a second.
    struct Line {
        controller: Controller,
        now: Instant,
    }

    impl Line {
        fn new(start: usize, most: usize) -> Self {
            let now = Instant::now();
            Self { controller: Controller::new(start, most, now), now }
        }

        /// Runs windows over a line that gives `goodput(allowed)` MiB/s; gives the numbers that
        /// were allowed.
        fn run(&mut self, windows: usize, goodput: impl Fn(usize) -> f64) -> Vec<usize> {
            let window = |_| {
                let allowed = self.controller.allowed();
                self.controller.waited();
                for _ in 0..2 * allowed {
                    self.now += Duration::from_secs_f64(1.0 / goodput(allowed));
                    self.controller.ended(self.now, MIB);
                }
                self.controller.allowed()
            };
            (0..windows).map(window).collect()
        }
    }

    /// Latency-bound up to `full` transfers, then the link's rate.
    fn link(full: usize) -> impl Fn(usize) -> f64 {
        move |n| 10.0 * f64::from(u32::try_from(n.min(full)).unwrap())
    }

    #[test]
    fn it_rises_while_that_brings_more_and_goes_back_when_it_does_not() {
        let mut line = Line::new(4, 128);
        let numbers = line.run(40, link(40));
        assert!(numbers.is_sorted_by(|a, b| a <= b || *a > 40), "{numbers:?}");
        let last = *numbers.last().unwrap();
        assert!((36..=50).contains(&last), "{numbers:?}");
        // raises in vain become rare
        let later = line.run(64, link(40));
        assert!(later.iter().filter(|n| **n != last).count() <= 4, "{later:?}");
    }

    #[test]
    fn it_never_exceeds_its_bound_and_never_ends_at_nothing() {
        let mut line = Line::new(9, 6);
        assert_eq!(line.controller.allowed(), 6);
        assert!(line.run(20, link(100)).iter().all(|n| *n == 6));
        assert_eq!(Controller::new(0, 0, Instant::now()).allowed(), 1);
    }

    #[test]
    fn a_goodput_that_breaks_in_makes_it_fewer_and_a_line_that_recovers_more_again() {
        let mut line = Line::new(16, 16);
        line.run(4, link(16));
        let pushed_back = line.run(1, |_| 20.0);
        assert_eq!(pushed_back, [12]);
        let overloaded =
            line.run(40, |n| if n > 8 { 5.0 / f64::from(u32::try_from(n).unwrap()) } else { 40.0 });
        assert!(overloaded.iter().all(|n| (1..=16).contains(n)), "{overloaded:?}");
        assert!(overloaded.iter().rev().take(8).any(|n| *n <= 9), "{overloaded:?}");
        let recovered = line.run(200, link(16));
        assert!(*recovered.last().unwrap() >= 14, "{recovered:?}");
    }

    #[test]
    fn where_nothing_waits_nothing_changes() {
        let mut controller = Controller::new(8, 64, Instant::now());
        let mut now = Instant::now();
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            controller.ended(now, MIB);
        }
        assert_eq!(controller.allowed(), 8);
    }

    #[test]
    fn a_gate_has_as_many_places_as_are_allowed() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let gate = Gate::new(2, 2);
            let (first, second) = (gate.enter().await, gate.enter().await);
            assert_eq!(gate.places.available_permits(), 0);
            {
                let third = std::pin::pin!(gate.enter());
                assert!(futures::poll!(third).is_pending());
            }
            assert!(gate.state().controller.window.waited);
            gate.ended(first, MIB);
            assert_eq!(gate.places.available_permits(), 1);
            drop(second);
            assert_eq!(gate.places.available_permits(), 2);
        });
    }
}
