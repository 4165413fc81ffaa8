//! The share of a run that an earlier one has done, and the error of a run that left a share to the
//! next.

use crate::run::Cancel;
use crate::run::quota::{Bound, Meter, too_small};
use chunkstore::{Error, ErrorKind, ids::PlanDigest};
use mover_extents::Extents;
use serde::Serialize;
use std::time::Duration;

/// What a run did not have to do, because an earlier one had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Resumed {
    /// Where it went on, in hundredths of what is to be read.
    pub percent: u64,
    /// Bytes of the volume that were not read again.
    pub bytes: u64,
}

/// How long a run that has to stop asks its own lease how far it is: a request to the store that is
/// under way holds that up.
pub(crate) const ASKED_WITHIN: Duration = Duration::from_millis(300);

/// The bound that ended a run, if it was one.
pub(crate) fn bound_of(e: &Error, cancel: &Cancel, meter: Option<&Meter>) -> Option<Bound> {
    match e.kind() {
        ErrorKind::Cancelled => cancel.bound(),
        ErrorKind::Limit => meter.and_then(Meter::reached),
        _ => None,
    }
}

impl Resumed {
    pub(crate) fn of(total_bytes: u64, left_bytes: u64) -> Self {
        let bytes = total_bytes - left_bytes;
        let percent = u128::from(bytes) * 100 / u128::from(total_bytes.max(1));
        Self { percent: u64::try_from(percent).unwrap_or(100), bytes }
    }
}

/// How a run ended that has kept to a bound: `text` says what need not be done again. One that got
/// no further than the one before would do so for ever: it says that instead.
pub(crate) fn at_bound(bound: Bound, meter: Option<&Meter>, kept: Kept, text: &str) -> Error {
    let further = kept.further || meter.is_some_and(Meter::has_progress);
    let most = meter.and_then(|meter| meter.most(bound));
    match most {
        Some(most) if !further => too_small(bound, most).hint(format!("raise {bound}")),
        None if !further => Error::new(
            ErrorKind::Limit,
            "stopped",
            if kept.percent > 0 {
                format!("{bound} is reached, and this run stored nothing more: {text}")
            } else {
                format!(
                    "{bound} is reached, and nothing was stored that the next run could go on from"
                )
            },
        )
        .hint(format!("give it more time with {bound}, or look at what it waited for")),
        most => {
            let most = most.map_or_else(String::new, |most| format!(" {most}"));
            let detail = format!("{bound}{most} is reached, {text}");
            Error::new(ErrorKind::Limit, "stopped", detail)
                .hint("run the same command again to go on from there")
        }
    }
}

/// What a later run has of one that ended early.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) percent: u64,
    /// Further than where this run itself went on from.
    pub(crate) further: bool,
}

impl Kept {
    pub(crate) const NOTHING: Self = Self { percent: 0, further: false };
}

/// Every part with its length before it, so that no two plans give the same bytes.
pub(crate) struct Digest(blake3::Hasher);

impl Digest {
    /// Of one kind of plan.
    pub(crate) fn new(kind: &str) -> Self {
        let mut hash = Self(blake3::Hasher::new());
        hash.text(Some(kind));
        hash
    }

    pub(crate) fn finish(self) -> PlanDigest {
        PlanDigest::from_bytes(*self.0.finalize().as_bytes())
    }

    pub(crate) fn number(&mut self, n: u64) {
        self.0.update(&n.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: Option<&str>) {
        match text {
            None => self.number(u64::MAX),
            Some(text) => {
                self.number(text.len() as u64);
                self.0.update(text.as_bytes());
            }
        }
    }

    pub(crate) fn extents(&mut self, extents: &Extents) {
        self.number(extents.count() as u64);
        for range in extents.iter() {
            self.number(range.start);
            self.number(range.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_is_done_is_no_more_than_it_is() {
        assert_eq!(Resumed::of(1000, 590), Resumed { percent: 41, bytes: 410 });
        assert_eq!(Resumed::of(1000, 1), Resumed { percent: 99, bytes: 999 });
        assert_eq!(Resumed::of(0, 0), Resumed { percent: 0, bytes: 0 });
        assert_eq!(Resumed::of(u64::MAX, 0).percent, 100);
    }
}
