//! Stage *upload*: packs on their way to the store, and the dedup segments that name what arrived.
//!
//! A segment names only packs that the store has confirmed, so it never leads another writer to a pack that is not there.

use super::stop::Stop;
use crate::control::Progress;
use chunkstore::{
    ChunkId, Error, ErrorKind, FinishedPack, Location, PackId, PackKind, Repository, Result,
    SegmentRecord,
};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome = (FinishedPack, Result<()>);

/// Owns the uploads of one run.
#[derive(Debug)]
pub(crate) struct Uploads {
    repo: Arc<Repository>,
    runtime: tokio::runtime::Handle,
    stop: Arc<Stop>,
    progress: Arc<Progress>,
    uploads_max: usize,
    records_max: usize,
    in_flight: usize,
    done_tx: Sender<Outcome>,
    done: Receiver<Outcome>,
    records: Vec<SegmentRecord>,
    packs: Vec<PackId>,
    stats: UploadStats,
}

/// What was stored, and how long the run waited for the store.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct UploadStats {
    pub(crate) packs: u64,
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    pub(crate) wait: Duration,
}

impl Uploads {
    pub(crate) fn new(
        repo: &Arc<Repository>,
        runtime: &tokio::runtime::Handle,
        stop: &Arc<Stop>,
        progress: &Arc<Progress>,
        uploads_max: usize,
        records_max: usize,
    ) -> Self {
        // bounded by `uploads_max`: each upload sends one message
        let (done_tx, done) = unbounded();
        Self {
            repo: Arc::clone(repo),
            runtime: runtime.clone(),
            stop: Arc::clone(stop),
            progress: Arc::clone(progress),
            uploads_max,
            records_max,
            in_flight: 0,
            done_tx,
            done,
            records: Vec::new(),
            packs: Vec::new(),
            stats: UploadStats::default(),
        }
    }

    /// Starts one upload; waits while as many as allowed are under way.
    pub(crate) fn start(&mut self, pack: FinishedPack) -> Result<()> {
        while let Ok(outcome) = self.done.try_recv() {
            self.arrived(outcome)?;
        }
        while self.in_flight >= self.uploads_max {
            self.wait_one()?;
        }
        let (repo, done) = (Arc::clone(&self.repo), self.done_tx.clone());
        self.in_flight += 1;
        self.runtime.spawn(async move {
            let stored = repo.put_pack(&pack).await;
            // the receiver is gone only if the run has failed
            let _ = done.send((pack, stored));
        });
        Ok(())
    }

    /// Waits for all uploads and writes the last segment.
    pub(crate) fn finish(&mut self) -> Result<UploadStats> {
        while self.in_flight > 0 {
            self.wait_one()?;
        }
        self.flush_segment()?;
        Ok(self.stats)
    }

    /// Gives uploads under way until `deadline`, then names what arrived in a segment, so that the next run reuses it.
    pub(crate) fn salvage(&mut self, deadline: Instant) -> Result<UploadStats> {
        while self.in_flight > 0 {
            let Ok((pack, stored)) = self.done.recv_deadline(deadline) else { break };
            self.in_flight -= 1;
            if stored.is_ok() {
                self.count(&pack);
            }
        }
        self.flush_segment()?;
        Ok(self.stats)
    }

    /// The packs that the store has confirmed.
    pub(crate) fn take_packs(&mut self) -> Vec<PackId> {
        std::mem::take(&mut self.packs)
    }

    fn wait_one(&mut self) -> Result<()> {
        let since = Instant::now();
        loop {
            // looks at the stop request now and then, since a store may take a minute to fail
            match self.done.recv_timeout(Duration::from_millis(200)) {
                Ok(outcome) => {
                    self.stats.wait += since.elapsed();
                    return self.arrived(outcome);
                }
                Err(_) if self.stop.stopped() => {
                    return Err(Error::new(ErrorKind::Cancelled, "upload packs", "stopped"));
                }
                Err(_) => {}
            }
        }
    }

    fn arrived(&mut self, (pack, stored): Outcome) -> Result<()> {
        self.in_flight -= 1;
        stored?;
        self.count(&pack);
        if self.records.len() >= self.records_max {
            self.flush_segment()?;
        }
        Ok(())
    }

    fn count(&mut self, pack: &FinishedPack) {
        self.stats.packs += 1;
        self.packs.push(pack.pack);
        self.stats.bytes += u64::from(pack.len);
        self.progress.uploaded_bytes.add(u64::from(pack.len));
        if pack.kind == PackKind::Chunks {
            self.records.extend(records(pack));
        }
    }

    fn flush_segment(&mut self) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.records);
        let stored = self.runtime.block_on(self.repo.put_segment(records))?;
        self.stats.segments += 1;
        self.stats.bytes += stored.1;
        Ok(())
    }
}

/// The records of a pack's chunks.
fn records(pack: &FinishedPack) -> impl Iterator<Item = SegmentRecord> + '_ {
    (0u32..).zip(&pack.entries).flat_map(move |(number, entry)| {
        (0u16..).zip(&entry.ids).map(move |(index, id)| SegmentRecord {
            id: ChunkId::from_bytes(*id),
            location: Location {
                pack: pack.pack,
                entry: number,
                offset: entry.offset,
                stored_len: entry.stored_len,
                index,
            },
        })
    })
}
