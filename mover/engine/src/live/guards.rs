//! What is noted when a call ends, or is dropped. Wait for nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counted while it lives.
pub(super) struct Waits<'a>(&'a AtomicU64);

impl<'a> Waits<'a> {
    pub(super) fn begin(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Notes that it was dropped before its change had ended.
pub(super) struct WaitsToTheEnd<'a> {
    left: &'a AtomicBool,
    pub(super) to_the_end: bool,
}

impl<'a> WaitsToTheEnd<'a> {
    pub(super) fn begin(left: &'a AtomicBool) -> Self {
        Self { left, to_the_end: false }
    }
}

impl Drop for WaitsToTheEnd<'_> {
    fn drop(&mut self) {
        if !self.to_the_end {
            self.left.store(true, Ordering::SeqCst);
        }
    }
}
