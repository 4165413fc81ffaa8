//! Fetches what is absent, in the background: what guests ask for first, then what the owner
//! names, then the rest from the front on.
//!
//! Runs of chunks are fetched and landed by tasks, so many at a time. While guests wait for the
//! source, fewer fetch what nobody has named; what was named is what guests want next, but the
//! source is told of less of it ahead, as it serves guests, too. A run with damage is fetched again
//! chunk by chunk: what is left out is what is damaged, and no more.
//!
//! Cannot deadlock: this waits for its tasks, and they for the source and the target.

use super::bits::ChunkBits;
use super::parts::{CowSource, CowTarget, JournalLog, SourceFailure};
use super::volume::{CowVolume, RUN_CHUNKS_MAX, index, locked};
use bytes::BytesMut;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tokio::task::{JoinHandle, JoinSet};

/// Of the tasks, so many go on while guests wait.
const SHARE_WHILE_GUESTS_WAIT: usize = 4;

/// The source is told of the next runs in parts of all that it is to know of.
const AHEAD_STEPS: u64 = 4;

/// How to fetch.
#[derive(Debug, Clone)]
pub struct HydrateOptions {
    /// Runs under way at a time.
    pub tasks: usize,
    /// Bytes of a run, rounded to whole chunks.
    pub run_bytes: u64,
    /// Bytes that the source is asked to fetch before tasks are free for them.
    pub ahead_bytes: u64,
    /// After so many landed bytes, a flush; what landed since the last one is fetched again after a
    /// crash.
    pub flush_bytes: u64,
    /// Bytes to fetch before the rest, in this order.
    pub first: Vec<Range<u64>>,
}

/// What was fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hydration {
    /// Bytes that went to the target.
    pub landed_bytes: u64,
    /// Bytes that are damaged in the source and that nobody has written since, in order.
    pub damaged: Vec<Range<u64>>,
    /// What was wrong with the first of them that was found.
    pub first_damage: Option<String>,
}

/// How one run went.
#[derive(Debug, Default)]
struct Landed {
    bytes: u64,
    damaged: Vec<u64>,
    first_damage: Option<String>,
    away: bool,
    run: Range<u64>,
    named: bool,
    /// Its buffer, for the next one.
    buffer: BytesMut,
}

/// Chunks to fetch.
#[derive(Debug, Clone)]
struct Run {
    chunks: Range<u64>,
    /// By a guest or by the owner: it is a small part of what is fetched for it.
    named: bool,
}

/// What to fetch next.
struct Order {
    run_chunks: u64,
    first: VecDeque<Range<u64>>,
    cursor: u64,
    /// Under way, or not to be fetched again.
    claimed: ChunkBits,
    /// Of these, runs that the source was told of: named ones, and of the rest.
    named_ready: VecDeque<Run>,
    rest_ready: VecDeque<Run>,
    /// What they are fetched with.
    ready_chunks: u64,
    /// Chunks of them at most.
    ahead_chunks: u64,
    /// Given up for now: the store was away.
    again: Vec<Run>,
}

/// Fetches all that is absent, then flushes. Ends early with an error of the target or the journal.
/// If it is dropped, what is under way ends by itself.
pub async fn hydrate<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &Arc<CowVolume<S, T, J>>,
    options: &HydrateOptions,
    mut landed: impl FnMut(u64),
) -> io::Result<Hydration> {
    let chunks = volume.figures().chunks;
    let mut order = Order {
        run_chunks: (options.run_bytes / volume.chunk_bytes()).clamp(1, RUN_CHUNKS_MAX),
        first: options.first.iter().map(|range| volume.chunks_of(range)).collect(),
        cursor: 0,
        claimed: ChunkBits::none(chunks),
        named_ready: VecDeque::new(),
        rest_ready: VecDeque::new(),
        ready_chunks: 0,
        ahead_chunks: options.ahead_bytes / volume.chunk_bytes(),
        again: Vec::new(),
    };
    let (mut damaged, mut first_damage) = (Vec::new(), None);
    let (mut total, mut unflushed) = (0, 0);
    let mut tasks: JoinSet<io::Result<Landed>> = JoinSet::new();
    // none is made, nor wiped, while there is one that was used before
    let mut spare: Vec<BytesMut> = Vec::new();
    let mut flushing: Option<JoinHandle<io::Result<()>>> = None;
    loop {
        volume.check_usable()?;
        order.fetch_ahead(volume);
        while tasks.len() < order.tasks_max(volume, options.tasks)
            && let Some(run) = order.next(volume)
        {
            let of = Arc::clone(volume);
            let buffer = spare.pop().unwrap_or_default();
            let most = order.run_chunks;
            tasks.spawn_on(async move { fetch(&of, run, most, buffer).await }, &volume.rt);
        }
        let Some(ended) = tasks.join_next().await else { break };
        let run = ended.map_err(|e| io::Error::other(format!("a fetch was given up: {e}")))??;
        spare.push(run.buffer);
        if run.away {
            order.again.push(Run { chunks: run.run, named: run.named });
        }
        total += run.bytes;
        unflushed += run.bytes;
        landed(run.bytes);
        damaged.extend(run.damaged);
        first_damage = first_damage.or(run.first_damage);
        if unflushed >= options.flush_bytes {
            unflushed = 0;
            // fetches go on beside it, up to the next one
            let of = Arc::clone(volume);
            let next = volume.rt.spawn(async move { of.flush().await });
            if let Some(last) = flushing.replace(next) {
                last.await.map_err(io::Error::other)??;
            }
        }
    }
    if let Some(last) = flushing {
        last.await.map_err(io::Error::other)??;
    }
    volume.flush().await?;
    let damaged = still_absent(volume, damaged);
    let first_damage = first_damage.filter(|_| !damaged.is_empty());
    Ok(Hydration { landed_bytes: total, damaged, first_damage })
}

impl Order {
    fn next<S: CowSource, T: CowTarget, J: JournalLog>(
        &mut self,
        volume: &CowVolume<S, T, J>,
    ) -> Option<Run> {
        while let Some(asked) = volume.take_asked() {
            if let Some(chunks) = self.claim(volume, asked.clone()) {
                if chunks.end < asked.end {
                    self.first.push_front(chunks.end..asked.end);
                }
                return Some(Run { chunks, named: true });
            }
        }
        self.next_ready(volume, true)
            .or_else(|| self.next_named(volume))
            .or_else(|| self.next_ready(volume, false))
            .or_else(|| self.next_of_rest(volume))
    }

    /// The next run that the source was told of, and that has not come along with a neighbour.
    fn next_ready<S: CowSource, T: CowTarget, J: JournalLog>(
        &mut self,
        volume: &CowVolume<S, T, J>,
        named: bool,
    ) -> Option<Run> {
        let ready = if named { &mut self.named_ready } else { &mut self.rest_ready };
        while let Some(run) = ready.pop_front() {
            self.ready_chunks -= fetched_chunks(&run, self.run_chunks);
            if !is_done(volume, &run.chunks) {
                return Some(run);
            }
        }
        None
    }

    /// How many tasks there may be now.
    fn tasks_max<S: CowSource, T: CowTarget, J: JournalLog>(
        &self,
        volume: &CowVolume<S, T, J>,
        tasks: usize,
    ) -> usize {
        let named_is_over = self.first.is_empty() && self.named_ready.is_empty();
        match volume.waiting() > 0 && named_is_over {
            true => (tasks / SHARE_WHILE_GUESTS_WAIT).max(1),
            false => tasks.max(1),
        }
    }

    /// Tells the source of the next runs, many at a time: it fetches longer pieces then. While guests
    /// wait, of few, and only of those that were named.
    fn fetch_ahead<S: CowSource, T: CowTarget, J: JournalLog>(
        &mut self,
        volume: &CowVolume<S, T, J>,
    ) {
        let guests_wait = volume.waiting() > 0;
        let most = if guests_wait { self.ahead_chunks / AHEAD_STEPS } else { self.ahead_chunks };
        if self.ready_chunks > most / AHEAD_STEPS * (AHEAD_STEPS - 1) {
            return;
        }
        let mut told: Option<Range<u64>> = None;
        while self.ready_chunks < most {
            let run = match (self.next_named(volume), guests_wait) {
                (Some(run), _) => run,
                (None, true) => break,
                (None, false) => match self.next_of_rest(volume) {
                    Some(run) => run,
                    None => break,
                },
            };
            self.ready_chunks += fetched_chunks(&run, self.run_chunks);
            let chunks = run.chunks.clone();
            told = match told {
                Some(so_far) if so_far.end == chunks.start => Some(so_far.start..chunks.end),
                before => {
                    tell(volume, before);
                    Some(chunks)
                }
            };
            let ready = if run.named { &mut self.named_ready } else { &mut self.rest_ready };
            ready.push_back(run);
        }
        tell(volume, told);
    }

    /// What was given up is to be fetched again.
    fn take_back(&mut self) {
        for Run { chunks, named } in std::mem::take(&mut self.again) {
            self.claimed.remove(chunks.clone());
            match named {
                true => self.first.push_back(chunks),
                false => self.cursor = self.cursor.min(chunks.start),
            }
        }
    }

    /// The next run of those that were named, and that the source was not told of.
    fn next_named<S: CowSource, T: CowTarget, J: JournalLog>(
        &mut self,
        volume: &CowVolume<S, T, J>,
    ) -> Option<Run> {
        self.take_back();
        while let Some(wanted) = self.first.pop_front() {
            if let Some(chunks) = self.claim(volume, wanted.clone()) {
                if chunks.end < wanted.end {
                    self.first.push_front(chunks.end..wanted.end);
                }
                return Some(Run { chunks, named: true });
            }
        }
        None
    }

    /// The next run that nobody has named.
    fn next_of_rest<S: CowSource, T: CowTarget, J: JournalLog>(
        &mut self,
        volume: &CowVolume<S, T, J>,
    ) -> Option<Run> {
        self.take_back();
        let chunks = self.claim(volume, self.cursor..self.claimed.chunks())?;
        self.cursor = chunks.end;
        Some(Run { chunks, named: false })
    }

    /// The first chunks of a range that are absent, and that nobody fetches.
    fn claim<S: CowSource, T: CowTarget, J: JournalLog>(
        &mut self,
        volume: &CowVolume<S, T, J>,
        within: Range<u64>,
    ) -> Option<Range<u64>> {
        let states = locked(&volume.states);
        let mut start = within.start;
        loop {
            start = states.done().next(start, within.end, false)?;
            match self.claimed.next(start, within.end, false)? {
                free if free == start => break,
                free => start = free,
            }
        }
        let most = within.end.min(start.saturating_add(self.run_chunks));
        let done = states.done().next(start, most, true).unwrap_or(most);
        let end = self.claimed.next(start, done, true).unwrap_or(done);
        self.claimed.insert(start..end);
        Some(start..end)
    }
}

/// What a run is fetched with, in chunks: the neighbours of a named one come along.
fn fetched_chunks(run: &Run, run_chunks: u64) -> u64 {
    let len = run.chunks.end - run.chunks.start;
    if run.named { run_chunks.max(len) } else { len }
}

fn is_done<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &CowVolume<S, T, J>,
    chunks: &Range<u64>,
) -> bool {
    locked(&volume.states).done().next(chunks.start, chunks.end, false).is_none()
}

fn tell<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &CowVolume<S, T, J>,
    chunks: Option<Range<u64>>,
) {
    if let Some(chunks) = chunks {
        volume.source.prefetch(&volume.bytes_of(&chunks));
    }
}

async fn fetch<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &Arc<CowVolume<S, T, J>>,
    run: Run,
    most: u64,
    buffer: BytesMut,
) -> io::Result<Landed> {
    let Run { chunks: run, named } = run;
    let mut landed = Landed { run: run.clone(), named, buffer, ..Landed::default() };
    if named {
        // what others have claimed of it lands once
        let wider = together(volume, &run, most).await;
        if is_done(volume, &run) {
            return Ok(landed);
        }
        if wider != run {
            match fetch_and_land(volume, wider, &mut landed.buffer).await? {
                Ok(bytes) => {
                    landed.bytes = bytes;
                    return Ok(landed);
                }
                Err(SourceFailure::Away(_)) => {
                    landed.away = true;
                    return Ok(landed);
                }
                // it may be a neighbour's
                Err(SourceFailure::Damaged(_)) => {}
            }
        }
    }
    match fetch_and_land(volume, run.clone(), &mut landed.buffer).await? {
        Ok(bytes) => landed.bytes = bytes,
        Err(SourceFailure::Away(_)) => landed.away = true,
        Err(SourceFailure::Damaged(_)) if run.end - run.start > 1 => {
            for chunk in run {
                match fetch_and_land(volume, chunk..chunk + 1, &mut landed.buffer).await? {
                    Ok(bytes) => landed.bytes += bytes,
                    Err(SourceFailure::Damaged(what)) => damage(volume, chunk, what, &mut landed),
                    Err(SourceFailure::Away(_)) => {
                        (landed.away, landed.run) = (true, chunk..landed.run.end);
                        break;
                    }
                }
            }
        }
        Err(SourceFailure::Damaged(what)) => damage(volume, run.start, what, &mut landed),
    }
    Ok(landed)
}

/// Whole chunks that come along when the source is asked for some, with these; at most so many.
async fn together<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &CowVolume<S, T, J>,
    chunks: &Range<u64>,
    most: u64,
) -> Range<u64> {
    let (chunk_bytes, size_bytes) = (volume.chunk_bytes(), volume.size_bytes());
    let range = volume.bytes_of(chunks);
    let found = volume.source.together(range, most.saturating_mul(chunk_bytes)).await;
    let last = found.end.min(size_bytes);
    let end = match last == size_bytes {
        true => last.div_ceil(chunk_bytes),
        false => last / chunk_bytes,
    };
    let wider = found.start.div_ceil(chunk_bytes)..end;
    let is_wider = wider.start <= chunks.start && chunks.end <= wider.end;
    if is_wider && wider.end - wider.start <= most { wider } else { chunks.clone() }
}

fn damage<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &CowVolume<S, T, J>,
    chunk: u64,
    what: String,
    landed: &mut Landed,
) {
    let Range { start, end } = volume.bytes_of(&(chunk..chunk + 1));
    tracing::error!("bytes {start} to {end} are damaged: {what}");
    landed.damaged.push(chunk);
    landed.first_damage.get_or_insert(what);
}

async fn fetch_and_land<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &Arc<CowVolume<S, T, J>>,
    run: Range<u64>,
    buffer: &mut BytesMut,
) -> io::Result<Result<u64, SourceFailure>> {
    let range = volume.bytes_of(&run);
    buffer.resize(index(range.end - range.start), 0);
    let zeros = match volume.source.read(range.start, buffer).await {
        Ok(zeros) => zeros,
        Err(failure) => return Ok(Err(failure)),
    };
    let bytes = std::mem::take(buffer).freeze();
    let lands = bytes.clone();
    let landed = volume.owned(move |this| async move { this.land(run, lands, &zeros).await }).await;
    *buffer = bytes.try_into_mut().unwrap_or_default();
    landed.map(Ok)
}

fn still_absent<S: CowSource, T: CowTarget, J: JournalLog>(
    volume: &CowVolume<S, T, J>,
    mut damaged: Vec<u64>,
) -> Vec<Range<u64>> {
    damaged.sort_unstable();
    let states = locked(&volume.states);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for chunk in damaged.into_iter().filter(|chunk| !states.done().contains(*chunk)) {
        let range = volume.bytes_of(&(chunk..chunk + 1));
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}
