//! Fetching: all that is absent comes to the target, and what stands in the way is waited out while
//! clients are served.

use super::Restore;
use crate::live::{HydrateOptions, Hydration, hydrate};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Before what a target would not take is tried again, or it is looked whether damage was healed.
const PAUSE: Duration = Duration::from_secs(5);
/// Fetched in one piece.
const RUN_BYTES: u64 = 1 << 20;
/// Landed bytes between two syncs of the target.
const FLUSH_BYTES: u64 = 1 << 30;

impl Restore<'_> {
    /// Fetches all that is absent. While clients are served it has time: a target without room may
    /// get some, and what is damaged may be written by somebody.
    pub(super) async fn fetch(&self) -> io::Result<()> {
        let run_bytes = RUN_BYTES.max(self.cow.chunk_bytes());
        let tasks = usize::try_from(self.limits.landing_bytes() / run_bytes).unwrap_or(usize::MAX);
        let options = HydrateOptions {
            tasks: tasks.max(1),
            run_bytes,
            ahead_bytes: self.limits.window_bytes(),
            flush_bytes: FLUSH_BYTES,
            first: self.options.first.clone(),
        };
        loop {
            let landed = |bytes| {
                self.landed_bytes.fetch_add(bytes, Ordering::Relaxed);
            };
            match hydrate(&self.cow, &options, landed).await {
                Ok(Hydration { first_damage, .. }) => {
                    first_damage.map(|first| self.first_damage.set(first));
                    break;
                }
                Err(e) => self.may_go_on("target", e)?,
            }
            self.pause().await;
        }
        while self.serves() && !self.is_whole() {
            self.pause().await;
            let figures = self.cow.figures();
            if figures.done == figures.chunks
                && let Err(e) = self.cow.flush().await
            {
                self.may_go_on("journal", e)?;
            }
        }
        Ok(())
    }

    fn serves(&self) -> bool {
        *self.is_served.borrow()
    }

    /// What is full for a while is no end while clients are served.
    fn may_go_on(&self, what: &str, e: io::Error) -> io::Result<()> {
        if !self.serves() || self.cow.failure().is_some() {
            return Err(e);
        }
        tracing::warn!("the {what} takes nothing now, it is tried again: {e}");
        Ok(())
    }

    /// Sleeps, but not once clients are served no longer.
    async fn pause(&self) {
        let mut is_served = self.is_served.subscribe();
        let _ = tokio::time::timeout(PAUSE, is_served.wait_for(|is| !is)).await;
    }
}
