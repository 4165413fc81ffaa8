//! Which chunks a backup refers to: leaves of its map, kept within a bound, and loaded by one task.
//!
//! The task owns the reader of the map. It takes all questions that have come meanwhile and loads
//! their leaves together: one round of requests a level, however many clients ask. A damaged page
//! fails the questions that need it and no others. The pages above the leaves are loaded first, as
//! many as there is room for, so that a question costs one round; of a small map the leaves, too.
//!
//! Cannot deadlock: who asks holds nothing that the task waits for, and the task waits for the store
//! only. It ends when nobody can ask any more.

use super::entries::is_damage;
use super::limits::ViewLimits;
use chunkstore::format::Page;
use chunkstore::map::MapWalk;
use chunkstore::{ChunkNo, ChunkRef, Error, ErrorKind, MapReader, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Leaves of one load, but for a single question that needs more.
const BATCH_LEAVES: usize = 256;
/// Leaves of one step through a map.
const WINDOW_LEAVES: usize = 64;

/// A leaf; `None`: all its chunks are zero.
type Leaf = Option<Arc<Page>>;

#[derive(Debug)]
enum Question {
    Leaves(Vec<u64>, oneshot::Sender<Result<Vec<(u64, Leaf)>>>),
    Stored(Range<u64>, oneshot::Sender<Result<StoredChunks>>),
}

/// Which chunks of a range are not zero.
#[derive(Debug)]
pub(super) struct StoredChunks {
    /// The chunks that were looked at: from the first one asked for, maybe fewer.
    pub(super) looked: Range<u64>,
    /// Ascending and merged.
    pub(super) stored: Vec<Range<u64>>,
}

#[derive(Debug)]
pub(super) struct Leaves {
    fanout: u64,
    chunks: u64,
    kept: Mutex<Kept>,
    questions: mpsc::UnboundedSender<Question>,
}

impl Leaves {
    /// Takes the reader of a map whose root has been read.
    pub(super) fn start(rt: &Handle, reader: MapReader, limits: &ViewLimits) -> Arc<Self> {
        let (questions, inbox) = mpsc::unbounded_channel();
        let leaves = Arc::new(Self {
            fanout: u64::from(reader.map().fanout()),
            chunks: reader.map().geometry().chunks(),
            kept: Mutex::new(Kept::new(limits.leaf_bytes)),
            questions,
        });
        drop(rt.spawn(answer_all(reader, inbox)));
        leaves
    }

    /// What the map says of these chunks, ascending: all of them, `None` is zero.
    pub(super) async fn refs(
        &self,
        chunks: Range<u64>,
    ) -> Result<Vec<(ChunkNo, Option<ChunkRef>)>> {
        let numbers = chunks.start / self.fanout..chunks.end.div_ceil(self.fanout);
        let mut found: BTreeMap<u64, Leaf> = BTreeMap::new();
        let mut missing = Vec::new();
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            for number in numbers {
                match kept.get(number) {
                    Some(leaf) => drop(found.insert(number, leaf)),
                    None => missing.push(number),
                }
            }
        }
        if !missing.is_empty() {
            let (answer, waiting) = oneshot::channel();
            let loaded = self.ask(Question::Leaves(missing, answer), waiting).await?;
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            for (number, leaf) in loaded {
                kept.put(number, &leaf);
                found.insert(number, leaf);
            }
        }
        let of = |chunk: u64| {
            let leaf = found.get(&(chunk / self.fanout)).ok_or_else(|| {
                let context = format!("look up chunk {chunk} in the map");
                Error::new(ErrorKind::Bug, context, "its leaf was not loaded")
            })?;
            let index = usize::try_from(chunk % self.fanout).unwrap_or(usize::MAX);
            Ok((ChunkNo(chunk), leaf.as_ref().and_then(|leaf| leaf.chunk_ref(index))))
        };
        chunks.map(of).collect()
    }

    /// Which chunks are not zero, from the first one of a range on. It may stop early.
    pub(super) async fn stored(&self, chunks: Range<u64>) -> Result<StoredChunks> {
        let end = chunks.end.min(self.chunks);
        let (answer, waiting) = oneshot::channel();
        self.ask(Question::Stored(chunks.start..end, answer), waiting).await
    }

    async fn ask<T>(&self, question: Question, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        let ended = || Error::new(ErrorKind::Cancelled, "read a map", "reading has ended");
        self.questions.send(question).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

/// The task.
async fn answer_all(mut reader: MapReader, mut inbox: mpsc::UnboundedReceiver<Question>) {
    // those that have come so far and were not answered
    let mut waiting: VecDeque<Question> = VecDeque::new();
    {
        let mut loading = Box::pin(reader.load_inner());
        let loaded = loop {
            tokio::select! {
                biased;
                loaded = &mut loading => break loaded,
                asked = inbox.recv() => match asked {
                    Some(question) => waiting.push_back(question),
                    // it was given up before it was read, and so were the questions
                    None => return,
                },
            }
        };
        match loaded {
            Ok(()) => {}
            // who needs what is missing will hear of it
            Err(e) => tracing::warn!("the map could not be read ahead: {e}"),
        }
    }
    loop {
        let first = match waiting.pop_front() {
            Some(question) => question,
            None => match inbox.recv().await {
                Some(question) => question,
                None => return,
            },
        };
        match first {
            Question::Stored(chunks, answer) => {
                let _ = answer.send(stored_chunks(&mut reader, chunks).await);
            }
            Question::Leaves(leaves, answer) => {
                let mut count = leaves.len();
                let mut batch = vec![(leaves, answer)];
                while count < BATCH_LEAVES {
                    match waiting.pop_front().or_else(|| inbox.try_recv().ok()) {
                        Some(Question::Leaves(leaves, answer)) => {
                            count += leaves.len();
                            batch.push((leaves, answer));
                        }
                        Some(other) => {
                            waiting.push_front(other);
                            break;
                        }
                        None => break,
                    }
                }
                answer_batch(&mut reader, batch).await;
            }
        }
    }
}

type Asked = (Vec<u64>, oneshot::Sender<Result<Vec<(u64, Leaf)>>>);

async fn answer_batch(reader: &mut MapReader, mut batch: Vec<Asked>) {
    if let [(leaves, _)] = &batch[..] {
        let loaded = load(reader, leaves).await;
        if let Some((_, answer)) = batch.pop() {
            // who asked may be gone
            let _ = answer.send(loaded);
        }
        return;
    }
    let mut all: Vec<u64> = batch.iter().flat_map(|(leaves, _)| leaves).copied().collect();
    all.sort_unstable();
    all.dedup();
    match load(reader, &all).await {
        Ok(loaded) => {
            let loaded: HashMap<u64, Leaf> = loaded.into_iter().collect();
            for (leaves, answer) in batch {
                let of = |number| (number, loaded.get(&number).cloned().flatten());
                let _ = answer.send(Ok(leaves.into_iter().map(of).collect()));
            }
        }
        // what is wrong for one of them may be well for the others
        Err(e) if is_damage(&e) => {
            for (leaves, answer) in batch {
                let _ = answer.send(load(reader, &leaves).await);
            }
        }
        Err(e) => {
            for (_, answer) in batch {
                let again = Error::new(e.kind(), "read a map", e.to_string());
                let _ = answer.send(Err(again));
            }
        }
    }
}

async fn load(reader: &mut MapReader, leaves: &[u64]) -> Result<Vec<(u64, Leaf)>> {
    let fanout = u64::from(reader.map().fanout());
    let first_chunk = |number: &u64| number.saturating_mul(fanout);
    let ranges: Vec<_> = leaves.iter().map(first_chunk).map(|c| c..c.saturating_add(1)).collect();
    let pages = reader.load(&ranges).await?;
    Ok(leaves.iter().map(|number| (*number, pages.page(0, *number).cloned())).collect())
}

async fn stored_chunks(reader: &mut MapReader, chunks: Range<u64>) -> Result<StoredChunks> {
    let mut stored: Vec<Range<u64>> = Vec::new();
    let Some(window) = MapWalk::new(reader, chunks.clone(), WINDOW_LEAVES).next().await? else {
        return Ok(StoredChunks { looked: chunks.start..chunks.start, stored });
    };
    for (chunk, _) in window.pages.nonzero(window.chunks.clone())? {
        match stored.last_mut() {
            Some(last) if last.end == chunk.0 => last.end += 1,
            _ => stored.push(chunk.0..chunk.0 + 1),
        }
    }
    Ok(StoredChunks { looked: window.chunks, stored })
}

/// Leaves by their numbers; what was not used for longest goes first.
#[derive(Debug)]
struct Kept {
    leaves: HashMap<u64, (Leaf, u64)>,
    order: BTreeMap<u64, u64>,
    bytes: u64,
    bytes_max: u64,
    clock: u64,
}

impl Kept {
    fn new(bytes_max: u64) -> Self {
        Self { leaves: HashMap::new(), order: BTreeMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    fn get(&mut self, number: u64) -> Option<Leaf> {
        self.clock += 1;
        let (leaf, used) = self.leaves.get_mut(&number)?;
        self.order.remove(used);
        *used = self.clock;
        self.order.insert(self.clock, number);
        Some(leaf.clone())
    }

    fn put(&mut self, number: u64, leaf: &Leaf) {
        self.clock += 1;
        self.bytes += leaf_bytes(leaf);
        self.order.insert(self.clock, number);
        if let Some((old, used)) = self.leaves.insert(number, (leaf.clone(), self.clock)) {
            self.order.remove(&used);
            self.bytes -= leaf_bytes(&old);
        }
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.order.pop_first()
            && let Some((old, _)) = self.leaves.remove(&oldest)
        {
            self.bytes -= leaf_bytes(&old);
        }
    }
}

fn leaf_bytes(leaf: &Leaf) -> u64 {
    /// In both maps, and what they take themselves.
    const PLACE_BYTES: u64 = 160;
    PLACE_BYTES + leaf.as_ref().map_or(0, |page| page.memory_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_kept_within_a_bound() {
        let mut kept = Kept::new(160 * 100);
        for number in 0..1000 {
            kept.put(number, &None);
            assert!(kept.get(0).is_some() && kept.bytes <= 160 * 100);
            assert_eq!(kept.leaves.len(), kept.order.len());
        }
        assert_eq!(kept.leaves.len(), 100);
        assert!(kept.get(999).is_some() && kept.get(500).is_none());
    }
}
