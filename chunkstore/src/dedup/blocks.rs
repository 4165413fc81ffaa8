//! Opened blocks of segments that were read by range, within a bound. Chunk ids are spread evenly,
//! so no block is likelier to be asked for again than another: the oldest goes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// A block that is not in memory: what [`super::DedupIndex::load`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NeededBlock {
    pub(super) segment: usize,
    pub(super) block: u32,
}

#[derive(Debug)]
pub(super) struct Blocks {
    held: Mutex<Held>,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Held {
    blocks: HashMap<NeededBlock, Arc<[u8]>>,
    order: VecDeque<NeededBlock>,
    bytes: u64,
}

impl Blocks {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { held: Mutex::default(), bytes_max }
    }

    pub(super) fn get(&self, needed: NeededBlock) -> Option<Arc<[u8]>> {
        self.lock().blocks.get(&needed).cloned()
    }

    /// Keeps a block; the latest one is kept whatever the bound, as somebody is about to ask for
    /// it.
    pub(super) fn put(&self, needed: NeededBlock, block: Arc<[u8]>) {
        let mut held = self.lock();
        let len = block.len() as u64;
        while held.bytes + len > self.bytes_max {
            let Some(oldest) = held.order.pop_front() else { break };
            if let Some(old) = held.blocks.remove(&oldest) {
                held.bytes -= old.len() as u64;
            }
        }
        if held.blocks.insert(needed, block).is_none() {
            held.order.push_back(needed);
            held.bytes += len;
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
