//! Bounds on the reading of maps.

use crate::fetch::RangeRead;

/// How much a reader asks for and keeps.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Unneeded bytes between two pages that are read rather than paid for with a request.
    pub gap_bytes: u32,
    /// Longest merged read.
    pub read_bytes_max: u32,
    /// Bytes of all reads in flight; at least one is.
    pub in_flight_bytes_max: u32,
    /// Most requests in flight.
    pub requests_max: usize,
    /// Decoded pages that are kept between loads.
    pub cache_bytes_max: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            gap_bytes: 256 << 10,
            read_bytes_max: 4 << 20,
            in_flight_bytes_max: 16 << 20,
            requests_max: 32,
            cache_bytes_max: 4 << 20,
        }
    }
}

impl ReadLimits {
    /// Limits whose reads in flight and pages kept fit in `memory_bytes`, half each; smaller reads
    /// where that is little.
    pub fn within(memory_bytes: u64) -> Self {
        let usual = Self::default();
        let half = u32::try_from(memory_bytes / 2).unwrap_or(u32::MAX);
        let in_flight_bytes_max = half.min(usual.in_flight_bytes_max);
        let read_bytes_max = (in_flight_bytes_max / 4).min(usual.read_bytes_max);
        Self {
            gap_bytes: (read_bytes_max / 8).min(usual.gap_bytes),
            read_bytes_max,
            in_flight_bytes_max,
            cache_bytes_max: usize::try_from(half).unwrap_or(usize::MAX).min(usual.cache_bytes_max),
            ..usual
        }
    }

    /// Requests of a plan that may be in flight.
    pub(crate) fn width(&self, reads: &[RangeRead]) -> usize {
        let longest = reads.iter().map(|r| r.len).max().unwrap_or(1).max(1);
        let fits = usize::try_from(self.in_flight_bytes_max / longest).unwrap_or(usize::MAX);
        fits.clamp(1, self.requests_max.max(1))
    }
}
