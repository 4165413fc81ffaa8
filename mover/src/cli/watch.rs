//! What looks at an operation from outside while it runs: the screen, whoever scrapes metrics, and
//! the watch for stalls.

use super::context::Context;
use super::metrics::Reads;
use super::progress::ProgressView;
use super::stall::{StallWatch, Watched};
use crate::run::Progress;
use chunkstore::Store;
use std::sync::Arc;

/// Until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    _view: Option<ProgressView>,
    _stall: StallWatch,
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
        Self { _view: Some(view), _stall: watch(ctx, progress, reads, store) }
    }

    /// Of one that is only seen by its requests.
    pub(crate) fn requests(ctx: &Context, store: &Store) -> Self {
        Self::unseen(ctx, &Progress::new(), store)
    }

    /// The same of one that counts its progress as well, and shows none.
    pub(crate) fn unseen(ctx: &Context, progress: &Arc<Progress>, store: &Store) -> Self {
        Self { _view: None, _stall: watch(ctx, progress, Reads::Store, store) }
    }
}

fn watch(ctx: &Context, progress: &Arc<Progress>, reads: Reads, store: &Store) -> StallWatch {
    ctx.telemetry.watch(progress, reads, store);
    let watched = Watched {
        progress: Arc::clone(progress),
        store: store.clone(),
        cancel: Arc::clone(&ctx.cancel),
        stalled: Arc::clone(&ctx.stalled),
        output: Arc::clone(&ctx.output),
    };
    StallWatch::start(ctx.settings.report.stall_timeout, watched)
}
