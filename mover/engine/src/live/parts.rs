//! What a copy-on-write volume is made of, as traits: tests have others that lose and reorder what
//! was not synced.

use bytes::Bytes;
use std::fmt;
use std::io;
use std::ops::Range;

/// Where absent chunks are read. It never changes.
pub trait CowSource: Send + Sync + 'static {
    /// Hears that a range will be read. Reads run side by side and overtake each other; this is
    /// called in the order in which they were asked for.
    fn expect(&self, range: &Range<u64>) {
        let _ = range;
    }

    /// Hears that a range will be read for certain, and soon: it may be fetched at once.
    fn prefetch(&self, range: &Range<u64>) {
        let _ = range;
    }

    /// The bytes that come along at hardly any cost when a range is read, with the range itself; at
    /// most so many in all. What was read is then not fetched a second time for what is beside it.
    fn together(&self, range: Range<u64>, most: u64) -> impl Future<Output = Range<u64>> + Send {
        let _ = most;
        std::future::ready(range)
    }

    /// Fills a buffer from an offset on; the range is within the volume. Gives parts of the buffer
    /// that are known to be zero, ascending, which are filled all the same. A store that is away is
    /// waited for here, as long as the owner wishes.
    fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> impl Future<Output = Result<Vec<Range<usize>>, SourceFailure>> + Send;
}

/// Why a source gave nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceFailure {
    /// Some of it is damaged or gone, now and later.
    Damaged(String),
    /// It could not be asked.
    Away(String),
}

impl fmt::Display for SourceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(what) | Self::Away(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for SourceFailure {}

impl From<SourceFailure> for io::Error {
    fn from(failure: SourceFailure) -> Self {
        let kind = match failure {
            SourceFailure::Damaged(_) => io::ErrorKind::InvalidData,
            SourceFailure::Away(_) => io::ErrorKind::TimedOut,
        };
        Self::new(kind, failure)
    }
}

/// Where writes go. A call that has begun runs to its end, whether or not its future is dropped.
pub trait CowTarget: Send + Sync + 'static {
    /// What the bounds of a write are multiples of if it needs no block to be read first.
    fn align(&self) -> u64;

    /// Whether a range can be made zero without writing it.
    fn can_trim(&self) -> bool;

    /// Reads bytes.
    fn read(&self, range: Range<u64>) -> impl Future<Output = io::Result<Vec<u8>>> + Send;

    /// Writes bytes, and none beside them. Where the bounds are no multiples of
    /// [`align`](Self::align) nobody else writes to the same blocks meanwhile.
    fn write(&self, offset: u64, data: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes a range read as zeros; with `hole` it may give its room back. Nobody else writes to
    /// the chunks that it touches meanwhile.
    fn zero(&self, range: Range<u64>, hole: bool) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes all that was done before durable.
    fn sync(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// Where the journal's bytes go. One call at a time, of one task.
pub trait JournalLog: Send + Sync + 'static {
    /// Writes bytes at an offset, the end of what is there.
    fn append(&self, at: u64, bytes: Vec<u8>) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes what was appended durable.
    fn sync(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Puts other content in its place, durably and in one step. After `StorageFull` and
    /// `QuotaExceeded` the old content is there, after any other error one of the two.
    fn replace(&self, bytes: Vec<u8>) -> impl Future<Output = io::Result<()>> + Send;
}
