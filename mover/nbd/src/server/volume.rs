//! The content of an export, as the server knows it.

use bytes::Bytes;
use std::io;
use std::ops::Range;

/// Whether zeros may give their room back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// They may.
    Allowed,
    /// Room is kept, so that a later write of the same bytes finds it.
    Forbidden,
}

/// The content of an export. Any number of calls may run at a time, and all clients see the same.
///
/// Dropping a call ends it: for a change, all of it, some of it or nothing has been done then. Once
/// a later change of the same bytes has begun nothing of an earlier call lands any more.
///
/// Changes that overlap and run at a time have no order. Ranges are not empty, and lie within the
/// export. Of errors these kinds are told to clients as what they are: `PermissionDenied` (`EPERM`),
/// `StorageFull`, `QuotaExceeded` and `FileTooLarge` (`ENOSPC`), `InvalidInput` and `Unsupported`
/// (`EINVAL`), `ConnectionAborted` (`ESHUTDOWN`). All others are `EIO`.
pub trait Volume: Send + Sync + 'static {
    /// Hears that a range will be read. Reads run side by side and overtake each other; this is
    /// called in the order in which a client asks for them.
    fn expect(&self, range: &Range<u64>) {
        let _ = range;
    }

    /// Fills a buffer from an offset on; the range is within the export. Gives parts of the buffer
    /// that are known to be zero, ascending, which are filled all the same.
    fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> impl Future<Output = io::Result<Vec<Range<usize>>>> + Send;

    /// The state of blocks by one of the export's contexts: stretches side by side from the start
    /// of the range on, maybe fewer than all, none behind its end.
    fn states(
        &self,
        context: usize,
        range: Range<u64>,
    ) -> impl Future<Output = io::Result<Vec<(Range<u64>, u32)>>> + Send;

    /// Writes bytes from an offset on. Reads that begin afterwards see them.
    fn write(&self, offset: u64, data: Bytes) -> impl Future<Output = io::Result<()>> + Send {
        let _ = (offset, data);
        async { Err(read_only()) }
    }

    /// Makes a range read as zeros, however long it is.
    fn zero(&self, range: Range<u64>, holes: Holes) -> impl Future<Output = io::Result<()>> + Send {
        let _ = (range, holes);
        async { Err(read_only()) }
    }

    /// Whether [`zero`](Self::zero) is quicker than to write as many zeros.
    fn is_zero_fast(&self, range: &Range<u64>, holes: Holes) -> bool {
        let _ = (range, holes);
        false
    }

    /// Hears that a range is not needed. Afterwards each byte of it is zero, or as it was.
    fn trim(&self, range: Range<u64>) -> impl Future<Output = io::Result<()>> + Send {
        let _ = range;
        async { Err(read_only()) }
    }

    /// Makes durable all changes that have ended before this is called, of any client.
    fn flush(&self) -> impl Future<Output = io::Result<()>> + Send {
        async { Err(read_only()) }
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the volume is read-only")
}
