//! Collects what is damaged or missing while a backup's data is checked, so that one run finds all of it.

use super::plan::{Placement, PlanScope};
use super::ranges::RangeSet;
use chunkstore::{BackupId, Error, ErrorKind, Result};
use std::sync::{Mutex, PoisonError};

/// Byte ranges of the volume whose data is not there or not right, and the first error that said so.
#[derive(Debug, Default)]
pub(crate) struct Damage(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    ranges: RangeSet,
    first: Option<Error>,
}

impl Damage {
    /// Whether an error means that data is damaged, not that something else failed.
    pub(crate) fn is(error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
    }

    /// Takes what is damage; any other error ends the run.
    pub(crate) fn note<'a>(
        &self,
        error: Error,
        scope: &PlanScope,
        places: impl IntoIterator<Item = &'a Placement>,
    ) -> Result<()> {
        if !Self::is(&error) {
            return Err(error);
        }
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for p in places {
            found.ranges.insert(scope.clip(p.chunk));
        }
        found.first.get_or_insert(error);
        Ok(())
    }

    /// One error for all that was found until now.
    pub(crate) fn to_result(&self, backup: &BackupId) -> Result<()> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = found.first.take() else { return Ok(()) };
        let detail = format!("{} of the volume cannot be restored", found.ranges.describe());
        let error = Error::new(first.kind(), format!("verify backup {backup}"), detail);
        Err(error.caused_by(first))
    }
}
