//! What a copy lies between: two repositories, leases in the source, and requests that end when the
//! run is to stop.

use super::plan::Base;
use super::run::CopyOptions;
use crate::ingest::LEASE_SECONDS;
use crate::run::RunContext;
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Reader, Repository, Result};
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

    pub(super) fn read(&self, backup: &Manifest, options: &CopyOptions) -> Result<Reader> {
        let lease = options.source_lease.then(|| Self::lease(options));
        let reader = self.wait(Reader::begin(self.from, backup, lease))?;
        // it ends with the reader
        drop(self.run.rt.spawn(reader.heartbeat()));
        Ok(reader)
    }

    /// The base under a lease; none if it was forgotten meanwhile.
    pub(super) fn with_base(
        &self,
        base: Option<Base>,
        options: &CopyOptions,
    ) -> Result<(Option<Base>, Option<Reader>)> {
        let Some(base) = base else { return Ok((None, None)) };
        match self.read(&base.original, options) {
            Ok(reader) => Ok((Some(base), Some(reader))),
            Err(e) if is_gone(&e) => Ok((None, None)),
            Err(e) => Err(e),
        }
    }

    /// An error, or that the original was forgotten meanwhile, if that is why.
    pub(super) fn explain(&self, reader: &Reader, e: Error) -> Error {
        self.run.rt.block_on(reader.explain(e))
    }

    /// That a lease stays is no more than a line in the log: it runs out by itself.
    pub(super) fn finish(&self, reader: Option<Reader>) {
        let Some(reader) = reader else { return };
        let warnings = self.run.give_back(reader.finish());
        warnings.iter().for_each(|w| tracing::warn!("in {}: {w}", self.from.store().url()));
    }
}

fn is_gone(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Forgotten)
}
