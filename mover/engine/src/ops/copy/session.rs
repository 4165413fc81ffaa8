//! What a copy lies between: two repositories, leases in the source, and requests that end when the
//! run is to stop.

use super::options::CopyOptions;
use super::plan::Base;
use crate::ingest::LEASE_SECONDS;
use crate::reading::Reading;
use crate::run::RunContext;
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Repository, Result};
use std::sync::Arc;

/// Two repositories, and the run that copies from the one to the other.
#[derive(Clone, Copy)]
pub(super) struct CopySession<'a> {
    pub(super) run: RunContext<'a>,
    pub(super) from: &'a Arc<Repository>,
    pub(super) to: &'a Arc<Repository>,
}

impl CopySession<'_> {
    /// Waits for a request, or until the run is to stop.
    pub(super) fn wait<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.run.wait(request)
    }

    pub(super) fn lease(options: &CopyOptions) -> LeaseOptions {
        let (tool, host) = (options.tool.clone(), options.host.clone());
        LeaseOptions { lease_seconds: LEASE_SECONDS, tool, host }
    }

    pub(super) fn read(&self, backup: &Manifest, options: &CopyOptions) -> Result<Reading> {
        let lease = options.source_lease.then(|| Self::lease(options));
        Reading::begin(self.run, self.from, backup, lease)
    }

    /// The base under a lease; none if it was forgotten meanwhile.
    pub(super) fn with_base(
        &self,
        base: Option<Base>,
        options: &CopyOptions,
    ) -> Result<(Option<Base>, Option<Reading>)> {
        let Some(base) = base else { return Ok((None, None)) };
        match self.read(&base.original, options) {
            Ok(reader) => Ok((Some(base), Some(reader))),
            Err(e) if is_gone(&e) => Ok((None, None)),
            Err(e) => Err(e),
        }
    }

    /// That a lease stays is no more than a line in the log: it runs out by itself.
    pub(super) fn finish(&self, reader: Option<Reading>) {
        let Some(reader) = reader else { return };
        let warnings = reader.finish(self.run);
        warnings.iter().for_each(|w| tracing::warn!("in {}: {w}", self.from.store().url()));
    }
}

fn is_gone(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Forgotten)
}
