//! The backup, for as long as bytes of it are wanted: a store that is away is waited for.

use crate::live::{CowSource, SourceFailure};
use crate::ops::below::ViewSource;
use crate::run::{Cancel, Progress};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two tries at a store that is away: at first, and at most. The requests themselves are
/// tried again by the store, too.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Bytes of the backup up to its end, and zeros behind it.
#[derive(Debug)]
pub(super) struct PatientSource {
    /// None where nothing of it is needed any more.
    pub(super) view: Option<ViewSource>,
    /// Without it, there is no end to the waiting.
    pub(super) timeout: Option<Duration>,
    pub(super) cancel: Arc<Cancel>,
    pub(super) progress: Arc<Progress>,
    pub(super) waiting: AtomicU64,
}

/// One read that waits.
struct Waits<'a>(&'a PatientSource);

impl<'a> Waits<'a> {
    fn begin(source: &'a PatientSource, why: &str) -> Self {
        if source.waiting.fetch_add(1, Ordering::SeqCst) == 0 {
            tracing::warn!("the store does not answer, what needs it waits: {why}");
        }
        source.progress.store_waits.set(source.waiting.load(Ordering::SeqCst));
        Self(source)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1 && !self.0.cancel.cancelled() {
            tracing::info!("nothing waits for the store any more");
        }
        self.0.progress.store_waits.set(self.0.waiting.load(Ordering::SeqCst));
    }
}

impl CowSource for PatientSource {
    fn expect(&self, range: &Range<u64>) {
        if let Some((view, stored)) = self.stored(range) {
            view.expect(&stored);
        }
    }

    fn prefetch(&self, range: &Range<u64>) {
        if let Some((view, stored)) = self.stored(range) {
            view.prefetch(&stored);
        }
    }

    async fn together(&self, range: Range<u64>, most: u64) -> Range<u64> {
        match self.stored(&range) {
            // the whole of it is in the backup
            Some((view, stored)) if stored == range => view.together(range, most).await,
            _ => range,
        }
    }

    async fn read(&self, offset: u64, buf: &mut [u8]) -> Result<Vec<Range<usize>>, SourceFailure> {
        let Some(view) = &self.view else {
            return Err(SourceFailure::Damaged("all is on the target, and it is not".into()));
        };
        let stored = view.0.size_bytes().saturating_sub(offset);
        let stored = usize::try_from(stored).unwrap_or(usize::MAX).min(buf.len());
        let (buf, behind) = buf.split_at_mut(stored);
        behind.fill(0);
        let mut zeros =
            if buf.is_empty() { Vec::new() } else { self.wait(view, offset, buf).await? };
        if !behind.is_empty() {
            let end = stored + behind.len();
            match zeros.last_mut() {
                Some(last) if last.end == stored => last.end = end,
                _ => zeros.push(stored..end),
            }
        }
        Ok(zeros)
    }
}

impl PatientSource {
    /// The part of a range that the backup has.
    fn stored(&self, range: &Range<u64>) -> Option<(&ViewSource, Range<u64>)> {
        let view = self.view.as_ref()?;
        let stored = range.start..view.0.size_bytes().min(range.end);
        (!stored.is_empty()).then_some((view, stored))
    }

    async fn wait(
        &self,
        view: &ViewSource,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Vec<Range<usize>>, SourceFailure> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        let mut waits = None;
        loop {
            let why = match view.read(offset, buf).await {
                Err(SourceFailure::Away(why)) => why,
                found_or_damaged => return found_or_damaged,
            };
            if self.cancel.cancelled() || self.timeout.is_some_and(|most| begun.elapsed() >= most) {
                return Err(SourceFailure::Away(why));
            }
            waits.get_or_insert_with(|| Waits::begin(self, &why));
            tokio::select! {
                () = self.cancel.requested() => return Err(SourceFailure::Away(why)),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
