//! The lease of whoever reads a backup: taken before the first byte, kept alive beside the reading,
//! given back at the end.

use crate::run::RunContext;
use chunkstore::{Error, LeaseOptions, Manifest, Reader, Repository, Result};
use std::sync::Arc;

/// A reader's claim on a backup, with its heartbeat.
pub(crate) struct Reading(Reader);

impl Reading {
    pub(crate) fn begin(
        run: RunContext<'_>,
        repo: &Arc<Repository>,
        manifest: &Manifest,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        Self::of(run, Reader::begin(repo, manifest, lease))
    }

    /// A claim on a backup that has been held all the time.
    pub(crate) fn begin_held(
        run: RunContext<'_>,
        repo: &Arc<Repository>,
        manifest: &Manifest,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        Self::of(run, Reader::begin_held(repo, manifest, lease))
    }

    /// A claim on all backups.
    pub(crate) fn begin_for_all(
        run: RunContext<'_>,
        repo: &Arc<Repository>,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        Self::of(run, Reader::begin_for_all(repo, lease))
    }

    fn of(run: RunContext<'_>, begin: impl Future<Output = Result<Reader>>) -> Result<Self> {
        let reader = run.wait_to_begin(begin)?;
        // it ends with the reader
        drop(run.rt.spawn(reader.heartbeat()));
        Ok(Self(reader))
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.0
    }

    /// An error, or that its backup was forgotten meanwhile, if that is why. A run that has to stop
    /// does not ask.
    pub(crate) fn explain(&self, run: RunContext<'_>, e: Error) -> Error {
        run.rt.block_on(self.0.explain(e, run.cancel.requested()))
    }

    /// Gives the claim back. That it cannot be given back is no failure, only a warning: it runs
    /// out by itself.
    pub(crate) fn finish(self, run: RunContext<'_>) -> Vec<String> {
        run.give_back(self.0.finish())
    }
}
