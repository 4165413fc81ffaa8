//! The times of a manifest, and its place in the order of its volume.
//!
//! Machines that write to one repository have clocks of their own, and some are wrong. What they
//! share is the store, which dates every object. So the time that counts is the one at which the
//! store dated this writer's lease: at its last beat before the commit. It goes into the manifest,
//! as objects that are copied to another store are dated anew.
//!
//! The place in the order is that time, but after all that the run had seen of the volume. Nothing
//! that a run builds on, nor what it found as the newest, can come after what it makes.
//!
//! A store's clock may have jumped ahead once and be right again. What was stored meanwhile stays
//! where it is in the order, and what comes later goes behind it, a millisecond each, until the
//! store's clock has caught up. To find all of that, the manifests of the volume are read once more
//! where the store's clock is not well past what the run has seen.

use super::{Writer, WriterOptions};
use crate::error::Result;
use crate::format::manifest::Manifest;
use crate::protocol::lease::Seen;
use crate::repository::{NewestSeen, before};
use crate::store::time_span;
use chrono::{DateTime, TimeDelta, Utc};

/// Clocks that are apart by less are said to agree: requests take time, and stores date objects in
/// whole seconds.
const OFF_MIN: TimeDelta = TimeDelta::seconds(5);
/// Between two backups of which one comes after the other by no clock.
const STEP: TimeDelta = TimeDelta::milliseconds(1);

/// What a writer knows of times.
#[derive(Debug, Default)]
pub(super) struct Timing {
    after: NewestSeen,
    /// What the user is told of this machine's clock.
    pub(super) warning: Option<String>,
}

impl Timing {
    /// Of a writer that is asked for this.
    pub(super) fn of(options: &WriterOptions) -> Self {
        let mut after = options.after;
        let parents = options.parents.iter().map(|m| m.ordered);
        after.ordered = parents.chain(after.ordered).max();
        Self { after, warning: None }
    }
}

impl Writer {
    /// The manifest with its place in the order and with times by the store's clock.
    pub(super) async fn timed(&mut self, manifest: &Manifest, mut seen: Seen) -> Result<Manifest> {
        let mut manifest = manifest.clone();
        if manifest.copied_from.is_some() || self.in_its_place {
            return Ok(manifest);
        }
        if off(&seen).is_none() {
            match self.lease.beat_and_look().await {
                Ok(Some(again)) => seen = again,
                Ok(None) => {}
                // as any beat: it never ends the run
                Err(e) => tracing::warn!("this machine's clock is not compared: {e}"),
            }
        }
        let parent = self.parent.as_ref().map(|m| m.ordered);
        let NewestSeen { ordered, certain } = self.timing.after;
        let mut after = ordered.max(parent);
        if !certain && after.is_some_and(|after| !before(after, seen.stored)) {
            after = self.repo.newest_place(&self.volume).await?.max(after);
        }
        manifest.ordered = after.map_or(seen.stored, |after| seen.stored.max(later(after, STEP)));
        let off = off(&seen).filter(|off| off.abs() >= OFF_MIN);
        manifest.clock_offset_ms = off.map(|off| off.num_milliseconds());
        if let Some(off) = off {
            manifest.started = later(manifest.started, -off);
            manifest.finished = later(manifest.finished, -off);
            self.timing.warning = Some(warning(off));
        }
        Ok(manifest)
    }
}

/// How far this machine's clock is ahead of the store's; negative: behind. `None`: somebody else may
/// have written the lease since, or it is not known when this process did.
fn off(seen: &Seen) -> Option<TimeDelta> {
    let [before, after] = seen.written?;
    if before > seen.stored {
        Some(before - seen.stored)
    } else if after >= seen.stored {
        Some(TimeDelta::zero())
    } else if seen.shared && seen.stored - after >= OFF_MIN {
        None
    } else {
        Some(after - seen.stored)
    }
}

fn later(time: DateTime<Utc>, by: TimeDelta) -> DateTime<Utc> {
    time.checked_add_signed(by).unwrap_or(time)
}

fn warning(off: TimeDelta) -> String {
    let side = if off > TimeDelta::zero() { "ahead of" } else { "behind" };
    let span = time_span(off.num_milliseconds().unsigned_abs().saturating_add(500) / 1000);
    format!(
        "this machine's clock is {span} {side} the store's: set the one that is wrong (a pod has its \
         node's); the times of this backup are by the store's clock"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    #[test]
    fn a_clock_is_off_by_what_no_delay_explains() {
        let seen =
            |stored, shared| Seen { stored: at(stored), written: Some([at(100), at(130)]), shared };
        let seconds = |seen| off(&seen).map(|off| off.num_seconds());
        for (stored, ours) in [(100, 0), (130, 0), (10, 90), (220, -90)] {
            assert_eq!(seconds(seen(stored, false)), Some(ours), "{stored}");
        }
        // a fellow's beat is later than ours, never earlier
        assert_eq!(seconds(seen(220, true)), None);
        assert_eq!(seconds(seen(10, true)), Some(90));
        assert_eq!(seconds(seen(132, true)), Some(-2));
        assert_eq!(seconds(Seen { written: None, ..seen(100, false) }), None);
    }

    #[test]
    fn the_warning_says_how_far_and_which_way() {
        let said = warning(TimeDelta::seconds(-90));
        assert!(said.starts_with("this machine's clock is 90 s behind the store's"), "{said}");
        let said = warning(TimeDelta::hours(3));
        assert!(said.contains("3 h 0 min ahead of"), "{said}");
    }
}
