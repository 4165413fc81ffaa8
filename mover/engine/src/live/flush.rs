//! Flushes: the target is synced, then the journal written, then that synced; see the overview.
//!
//! One task at a time makes them. It answers all who had asked before it began, and goes on while
//! there are others. A target or a journal whose sync has failed is not asked again: the kernel
//! reports lost writes once. From then on every flush and every change fails.

use super::journal::{JournalTerms, encode_base, encode_record};
use super::parts::{CowSource, CowTarget, JournalLog};
use super::volume::{CowVolume, locked};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two flushes that nobody asks for.
pub const FLUSHED_EVERY: Duration = Duration::from_secs(5);
/// Records of fewer bytes are never made one base.
const RECORDS_BYTES_MIN: u64 = 1 << 20;

/// The journal, as the task that flushes knows it.
#[derive(Debug)]
pub(super) struct JournalWriter<J> {
    pub(super) log: J,
    pub(super) terms: JournalTerms,
    pub(super) number: u64,
    pub(super) base_bytes: u64,
    pub(super) end: u64,
}

/// Who waits for a flush.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    running: bool,
    waiting: Vec<oneshot::Sender<io::Result<()>>>,
}

impl<S: CowSource, T: CowTarget, J: JournalLog> CowVolume<S, T, J> {
    /// Makes everything durable that was acknowledged before this was called.
    pub async fn flush(self: &Arc<Self>) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        let begin = {
            let mut flushes = locked(&self.flushes);
            flushes.waiting.push(answer);
            !std::mem::replace(&mut flushes.running, true)
        };
        if begin {
            let this = Arc::clone(self);
            drop(self.rt.spawn(async move { this.flush_for_all().await }));
        }
        answered.await.unwrap_or_else(|_| Err(io::Error::other("the flush was given up")))
    }

    /// Flushes every so often while somebody changes the volume, so that little is left for the last
    /// flush. `changes` counts those that have begun. Ends once nothing can be written any more.
    pub async fn keep_flushed(self: Arc<Self>, every: Duration, changes: impl Fn() -> u64) {
        let (mut flushed, mut more) = (0, false);
        while self.failure().is_none() {
            tokio::time::sleep(every).await;
            let begun = changes();
            let are_new = begun != flushed;
            // one that had not ended is flushed with the next
            if (are_new || more)
                && let Err(e) = self.flush().await
            {
                tracing::warn!("what clients wrote is not durable yet: {e}");
            }
            (flushed, more) = (begun, are_new);
        }
    }

    async fn flush_for_all(&self) {
        loop {
            let waiting = {
                let mut flushes = locked(&self.flushes);
                let waiting = std::mem::take(&mut flushes.waiting);
                flushes.running = !waiting.is_empty();
                waiting
            };
            if waiting.is_empty() {
                return;
            }
            let done = self.flush_once().await;
            for asked in waiting {
                let answer = done.as_ref().copied().map_err(again);
                // who has gone needs no answer
                let _ = asked.send(answer);
            }
        }
    }

    async fn flush_once(&self) -> io::Result<()> {
        self.check_usable()?;
        // Their bytes were on the target before they became fresh; the sync that follows is theirs.
        let taken = locked(&self.states).take_fresh();
        if let Err(e) = self.target.sync().await {
            return Err(self.give_up("sync the target", &e));
        }
        if taken.is_empty() {
            return Ok(());
        }
        let mut journal = self.journal.lock().await;
        let record = encode_record(&journal.terms, journal.number + 1, &taken);
        let len = record.len() as u64;
        match journal.log.append(journal.end, record).await {
            Ok(()) => {}
            Err(e) if is_full(&e) => {
                // the next flush writes over what there is of it
                locked(&self.states).give_back(taken);
                return Err(e);
            }
            Err(e) => return Err(self.give_up("append to the journal", &e)),
        }
        if let Err(e) = journal.log.sync().await {
            return Err(self.give_up("sync the journal", &e));
        }
        journal.number += 1;
        journal.end += len;
        locked(&self.states).keep(&taken);
        let records = journal.end - journal.base_bytes;
        if records > RECORDS_BYTES_MIN.max(journal.base_bytes) {
            self.compact(&mut journal).await?;
        }
        Ok(())
    }

    /// Makes base and records one base.
    async fn compact(&self, journal: &mut JournalWriter<J>) -> io::Result<()> {
        let base = encode_base(&journal.terms, locked(&self.states).durable(), journal.number);
        let len = base.len() as u64;
        match journal.log.replace(base).await {
            Ok(()) => {
                (journal.base_bytes, journal.end) = (len, len);
                Ok(())
            }
            // the old one is whole, and goes on
            Err(e) if is_full(&e) => Ok(()),
            // which of the two is there is not known
            Err(e) => Err(self.give_up("replace the journal", &e)),
        }
    }
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn again(e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), e.to_string())
}
