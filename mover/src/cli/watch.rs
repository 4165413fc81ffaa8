//! What looks at an operation from outside while it runs: the screen, whoever scrapes metrics, and
//! the watch for stalls.

use super::context::Context;
use super::metrics::Reads;
use super::progress::ProgressView;
use super::supervision::Held;
use chunkstore::Store;
use mover_engine::run::Progress;
use std::sync::Arc;

/// Until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    _view: Option<ProgressView>,
    _stall: Option<Held>,
}

impl Watch {
    /// Of an operation that counts its progress.
    pub(crate) fn start(
        ctx: &Context,
        progress: &Arc<Progress>,
        reads: Reads,
        store: &Store,
    ) -> Self {
        let view = ProgressView::start(&ctx.output, progress);
        Self { _view: Some(view), _stall: Some(watch(ctx, progress, reads, store)) }
    }

    /// Of one that may wait as long as it has to.
    pub(crate) fn served(
        ctx: &Context,
        progress: &Arc<Progress>,
        reads: Reads,
        store: &Store,
    ) -> Self {
        ctx.telemetry.watch(progress, reads, store);
        Self { _view: Some(ProgressView::start(&ctx.output, progress)), _stall: None }
    }

    /// Of one that is only seen by its requests.
    pub(crate) fn requests(ctx: &Context, store: &Store) -> Self {
        Self::unseen(ctx, &Progress::new(), store)
    }

    /// The same of one that counts its progress as well, and shows none.
    pub(crate) fn unseen(ctx: &Context, progress: &Arc<Progress>, store: &Store) -> Self {
        Self { _view: None, _stall: Some(watch(ctx, progress, Reads::Store, store)) }
    }
}

fn watch(ctx: &Context, progress: &Arc<Progress>, reads: Reads, store: &Store) -> Held {
    ctx.telemetry.watch(progress, reads, store);
    ctx.supervisor.watch(ctx.settings.report.stall_timeout, progress, store)
}
