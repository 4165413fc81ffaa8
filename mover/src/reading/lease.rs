//! The lease of whoever reads a backup: taken before the first byte, kept alive beside the reading,
//! given back at the end.

use chunkstore::{Error, LeaseOptions, Manifest, Reader, Repository, Result};
use std::sync::Arc;
use tokio::runtime::Handle;

/// A reader's claim on a backup, with its heartbeat.
pub(crate) struct Reading(Reader);

impl Reading {
    pub(crate) fn begin(
        rt: &Handle,
        repo: &Arc<Repository>,
        manifest: &Manifest,
        lease: Option<LeaseOptions>,
    ) -> Result<Self> {
        let reader = rt.block_on(Reader::begin(repo, manifest, lease))?;
        // it ends with the reader
        drop(rt.spawn(reader.heartbeat()));
        Ok(Self(reader))
    }

    /// An error, or that its backup was forgotten meanwhile, if that is why.
    pub(crate) fn explain(&self, rt: &Handle, e: Error) -> Error {
        rt.block_on(self.0.explain(e))
    }

    /// Gives the claim back. That it cannot be given back is no failure, only a warning: it runs
    /// out by itself.
    pub(crate) fn finish(self, rt: &Handle) -> Vec<String> {
        rt.block_on(self.0.finish())
    }
}
