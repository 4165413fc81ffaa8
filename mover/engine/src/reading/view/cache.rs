//! Opened entries that are kept for the next read, within a bound: what was not used for longest
//! goes first.

use super::entries::Opened;
use chunkstore::fetch::EntryAddr;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Debug)]
struct Kept {
    entry: Arc<Opened>,
    used: u64,
}

#[derive(Debug)]
pub(super) struct EntryCache {
    entries: HashMap<EntryAddr, Kept>,
    /// By the time of their last use.
    order: BTreeMap<u64, EntryAddr>,
    bytes: u64,
    bytes_max: u64,
    clock: u64,
}

impl EntryCache {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    pub(super) fn get(&mut self, addr: &EntryAddr) -> Option<Arc<Opened>> {
        self.clock += 1;
        let kept = self.entries.get_mut(addr)?;
        self.order.remove(&kept.used);
        kept.used = self.clock;
        self.order.insert(self.clock, *addr);
        Some(Arc::clone(&kept.entry))
    }

    /// Gives what had to go.
    pub(super) fn put(&mut self, addr: EntryAddr, entry: &Arc<Opened>) -> Vec<Arc<Opened>> {
        let mut gone = Vec::new();
        self.clock += 1;
        let kept = Kept { entry: Arc::clone(entry), used: self.clock };
        self.bytes += entry.memory_bytes();
        self.order.insert(self.clock, addr);
        if let Some(old) = self.entries.insert(addr, kept) {
            self.order.remove(&old.used);
            self.bytes -= old.entry.memory_bytes();
            gone.push(old.entry);
        }
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.order.pop_first()
            && let Some(old) = self.entries.remove(&oldest)
        {
            self.bytes -= old.entry.memory_bytes();
            gone.push(old.entry);
        }
        gone
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        assert_eq!(self.entries.len(), self.order.len());
        self.bytes
    }
}
