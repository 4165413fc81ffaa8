//! Page-aligned memory, cut into slots that are handed out and come back.
//!
//! Owns: the mapping and the free list. A slot that is dropped goes back to the list, so the list
//! is the backpressure of whoever takes slots. The list is a stack: the slot used last is taken
//! first, while its bytes are still in the cache.
//!
//! Invariants: each index is either on the free list or inside exactly one [`Slot`]; so two slots
//! never share a byte. The mapping lives as long as any slot does, because every slot holds the
//! arena.
//!
//! Cannot deadlock: the lock is held for a push or a pop only. A taker that waits for a slot waits
//! for its holders; nobody may hold all slots and wait for one more.

use chunkstore::{Error, ErrorKind, Result};
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Transparent huge pages are this large on the machines we know. With them the kernel pins one
/// page instead of 512.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// One mapping, cut into slots of equal size.
pub struct Arena {
    map: MmapRaw,
    /// Of slot 0 within the mapping.
    first: usize,
    slots: usize,
    slot_bytes: usize,
    free: Mutex<Vec<usize>>,
    returned: Condvar,
}

impl Arena {
    /// `slots` slots of at least `slot_bytes` bytes each: rounded up to whole pages.
    pub fn new(slots: usize, slot_bytes: usize) -> Result<Arc<Self>> {
        let page = rustix::param::page_size();
        let fail = |why: String| {
            Error::new(
                ErrorKind::NoSpace,
                format!("allocate {slots} buffers of {slot_bytes} bytes"),
                why,
            )
            .hint("give the process more memory, or lower its memory budget")
        };
        let slot_bytes = slot_bytes.max(1).checked_next_multiple_of(page);
        let total = slot_bytes.and_then(|b| b.checked_mul(slots)).filter(|t| *t > 0);
        let (Some(slot_bytes), Some(total)) = (slot_bytes, total) else {
            return Err(fail("that is no size".into()));
        };
        let huge = total >= HUGE_PAGE_BYTES;
        let slack = if huge { HUGE_PAGE_BYTES } else { 0 };
        let length = total.checked_add(slack).ok_or_else(|| fail("that is no size".into()))?;
        let map = MmapOptions::new()
            .len(length)
            .map_anon()
            .map_err(|e| fail("the system has no memory for it".into()).caused_by(e))?;
        let map = MmapRaw::from(map);
        let mut first = 0;
        if huge {
            first = map.as_mut_ptr().align_offset(HUGE_PAGE_BYTES);
            // Only whole huge pages, so that rounding does not cost memory behind the last slot.
            let whole = total / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // All advice: a kernel without the feature works the same, slower.
            let _ = map.advise_range(Advice::HugePage, first, whole);
        }
        // A child made by fork() must not turn pages that a device writes to into copy-on-write
        // ones, and a core dump must not hold users' data.
        let _ = map.advise(Advice::DontFork);
        let _ = map.advise(Advice::DontDump);
        Ok(Arc::new(Self {
            map,
            first,
            slots,
            slot_bytes,
            free: Mutex::new((0..slots).rev().collect()),
            returned: Condvar::new(),
        }))
    }

    /// A free slot, if there is one now.
    pub fn take(self: &Arc<Self>) -> Option<Slot> {
        let index = self.free().pop()?;
        Some(Slot { arena: Arc::clone(self), index })
    }

    /// A free slot; waits for one.
    pub fn take_wait(self: &Arc<Self>) -> Slot {
        let mut free = self.free();
        loop {
            if let Some(index) = free.pop() {
                return Slot { arena: Arc::clone(self), index };
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A free slot; waits for one, at most this long.
    pub fn take_timeout(self: &Arc<Self>, timeout: Duration) -> Option<Slot> {
        let end = Instant::now().checked_add(timeout);
        let mut free = self.free();
        loop {
            if let Some(index) = free.pop() {
                return Some(Slot { arena: Arc::clone(self), index });
            }
            let left = end.map_or(timeout, |e| e.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            let waited = self.returned.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether every slot is on the free list.
    pub fn all_home(&self) -> bool {
        self.free().len() == self.slots
    }

    /// Slots on the free list now.
    pub fn free_slots(&self) -> usize {
        self.free().len()
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of each slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.slots * self.slot_bytes
    }

    // Nothing can panic while it is held, and a list of indices has no state to be half way in.
    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// First byte of a slot. The index is below `slots`.
    fn slot_ptr(&self, index: usize) -> *mut u8 {
        assert!(index < self.slots, "slot {index} of an arena of {}", self.slots);
        self.map.as_mut_ptr().wrapping_add(self.first + index * self.slot_bytes)
    }

    /// First byte and length of the slots from `index` on, at most `count`: for registering them as
    /// one buffer.
    pub(super) fn region(&self, index: usize, count: usize) -> (*mut u8, usize) {
        let count = count.min(self.slots.saturating_sub(index));
        (self.slot_ptr(index), count * self.slot_bytes)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .field("free", &self.free_slots())
            .finish_non_exhaustive()
    }
}

/// One buffer of an arena, owned; goes back to the free list when dropped. Its bytes are what the
/// last user left there.
pub struct Slot {
    arena: Arc<Arena>,
    index: usize,
}

impl Slot {
    /// Position in its arena, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The arena that it belongs to.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// First byte, for handing it to the kernel. Whoever does must keep the slot until the kernel
    /// is done.
    pub(super) fn as_ptr(&mut self) -> *mut u8 {
        self.arena.slot_ptr(self.index)
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie within the mapping (slot_ptr checks the index), which lives as long
        // as `self.arena`, and were initialised by the kernel. They belong to this slot only: an
        // index is never in two slots. While the kernel writes them, the slot is owned by an
        // engine, which does not look at them.
        unsafe {
            std::slice::from_raw_parts(self.arena.slot_ptr(self.index), self.arena.slot_bytes)
        }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this reference the only one.
        unsafe {
            std::slice::from_raw_parts_mut(self.arena.slot_ptr(self.index), self.arena.slot_bytes)
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.arena.free().push(self.index);
        self.arena.returned.notify_one();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_disjoint_and_come_home() {
        for (slots, bytes) in [(1, 1), (3, 4096), (5, 5000), (9, 1 << 20), (700, 4096)] {
            let arena = Arena::new(slots, bytes).unwrap();
            assert!(arena.slot_bytes() >= bytes && arena.slot_bytes().is_multiple_of(4096));
            let mut held: Vec<Slot> = std::iter::from_fn(|| arena.take()).collect();
            assert_eq!(held.len(), slots);
            assert!(arena.take().is_none() && !arena.all_home());
            for (i, slot) in held.iter_mut().enumerate() {
                assert!(slot.as_ptr().addr().is_multiple_of(4096));
                assert!(slot.iter().all(|b| *b == 0), "new memory is zero");
                slot.fill(u8::try_from(i % 251).unwrap());
            }
            for (i, slot) in held.iter().enumerate() {
                assert!(slot.iter().all(|b| usize::from(*b) == i % 251));
            }
            drop(held);
            assert!(arena.all_home());
        }
    }

    #[test]
    fn the_slot_used_last_is_taken_first() {
        let arena = Arena::new(4, 4096).unwrap();
        let (a, b) = (arena.take().unwrap(), arena.take().unwrap());
        let last = a.index();
        drop(b);
        drop(a);
        assert_eq!(arena.take().unwrap().index(), last);
    }

    #[test]
    fn a_taker_waits_until_a_slot_comes_back() {
        let arena = Arena::new(1, 4096).unwrap();
        let slot = arena.take_wait();
        assert!(arena.take_timeout(Duration::from_millis(10)).is_none());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| arena.take_wait().index());
            let timed = s.spawn(|| arena.take_timeout(Duration::from_secs(60)).unwrap().index());
            drop(slot);
            assert_eq!((waiter.join().unwrap(), timed.join().unwrap()), (0, 0));
        });
        assert!(arena.all_home());
    }

    #[test]
    fn the_memory_outlives_the_arena_handle() {
        let mut slot = Arena::new(2, 4096).unwrap().take().unwrap();
        slot.fill(7);
        assert!(slot.iter().all(|b| *b == 7));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        for (slots, bytes) in [(0, 4096), (usize::MAX, 4096), (1, usize::MAX), (1 << 40, 1 << 20)] {
            let e = Arena::new(slots, bytes).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NoSpace);
        }
    }
}
