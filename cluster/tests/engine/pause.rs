//! A driver that stops before one of its writes.

use super::*;
use mover_cluster::engine::Step;
use std::cell::RefCell;

/// Where a driver stood before a write.
struct Stand {
    /// The cluster when it began, the operation, and the driver's name.
    began: (Fake, Anchor, String),
    fake: Fake,
    seen: Observed,
    writes: usize,
    turns: usize,
}

thread_local! {
    /// The last one of this test.
    static LAST: RefCell<Option<Stand>> = const { RefCell::new(None) };
}

/// Drives by a driver that knows nothing yet, until it is about to make its write of this number: what
/// it knows, and that write. Nothing is returned where the operation ends before. After each turn the
/// cluster is looked at.
///
/// Tests stop one operation at each of its writes. So it goes on from where the last call stopped, if
/// that began in the same way.
pub(crate) fn pause(
    fake: &mut Fake,
    anchor: &Anchor,
    fresh: Observed,
    writes: usize,
    look: impl Fn(&Fake),
) -> Option<(Observed, Step)> {
    let began = (fake.clone(), anchor.clone(), fresh.driver().to_owned());
    let (mut seen, mut made, mut turns) = (fresh, 0, 0);
    LAST.with_borrow(|last| {
        if let Some(last) = last.as_ref().filter(|at| at.began == began && at.writes <= writes) {
            *fake = last.fake.clone();
            (seen, made, turns) = (last.seen.clone(), last.writes, last.turns);
        }
    });
    while turns < 2000 {
        seen.set_now(fake.now);
        match plan(anchor, &seen) {
            Ok(_) => return None,
            Err(Stop::Next(Next::Do(step))) => {
                if made == writes {
                    let now = (fake.clone(), seen.clone());
                    let stand = Stand { began, fake: now.0, seen: now.1, writes, turns };
                    LAST.set(Some(stand));
                    return Some((seen, *step));
                }
                made += 1;
            }
            Err(Stop::Next(_)) => {}
            Err(Stop::Failure(why)) => panic!("{why}"),
        }
        turn(fake, anchor, &mut seen).expect("the anchor holds its outcome");
        look(fake);
        turns += 1;
    }
    panic!("it does not end: {:#?}", fake.written);
}

/// Drives until so many writes were made; then all that was known is lost. `done` says whether the
/// write after them was still made. The result says whether it ended before.
pub(crate) fn drive_until(fake: &mut Fake, anchor: &Anchor, writes: usize, done: bool) -> bool {
    // Whoever comes after it is another driver.
    let fresh = observed(fake).named("one".into());
    let Some((mut seen, step)) = pause(fake, anchor, fresh, writes, |_| {}) else { return true };
    if done {
        fake.execute(&step, &mut seen);
    }
    false
}
