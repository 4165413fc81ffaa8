//! Objects that are read and opened in one step, so that no reader forgets the second look.
//!
//! A store, a proxy or a line may give one wrong answer. What a reader makes of it can be final: a
//! backup is said not to be there, a collection is given up, a pack counts as damaged. So an object
//! that does not open is read once more before anybody draws a conclusion.

use super::Store;
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;

/// A flipped bit shows as damage, or as a version that nobody knows.
fn may_be_the_answer(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}

impl Store {
    /// Reads a whole object of at most `bytes_max` bytes and opens it; `None` where there is none.
    /// Read a second time where it is `Corrupt` or `Unsupported`; the second answer is what counts.
    pub async fn open_opt<T>(
        &self,
        key: &str,
        bytes_max: u64,
        open: impl Fn(&Bytes) -> Result<T>,
    ) -> Result<Option<T>> {
        let first = self.get_opt_at_most(key, bytes_max).await;
        match first.and_then(|bytes| bytes.as_ref().map(&open).transpose()) {
            Err(e) if may_be_the_answer(&e) => tracing::debug!("read once more: {e}"),
            seen => return seen,
        }
        let bytes = self.get_opt_at_most(key, bytes_max).await?;
        bytes.as_ref().map(open).transpose()
    }
}
