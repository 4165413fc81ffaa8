//! What comes before the record of an attempt: the request is looked up, and waits for its turn.

use super::{AGAIN_FIRST, AGAIN_MOST, News, Subject};
use crate::controller::Context;
use crate::controller::task::Why;
use crate::controller::turns::{Limited, Turn};
use crate::engine::{Failure, Request, exit};
use std::cell::Cell;
use tokio::time::Instant;

/// The request, and its turn. While it waits for one, what the request says may become otherwise: then
/// it is looked up once more, and gives the turn back if it has to wait for something else.
pub(super) async fn taken_up(
    subject: &Subject<'_>,
    context: &Context,
    make: &impl AsyncFn() -> Result<Request, Failure>,
    limits: &impl Fn(&Request) -> Vec<Limited>,
    report: &dyn Fn(News<'_>),
) -> Result<(Request, Turn), (Failure, Option<Why>)> {
    let over = |why: Why| (why.failure(), Some(why));
    loop {
        let request = tokio::select! {
            request = preflight(subject, make, report) => request.map_err(|why| (why, None))?,
            why = subject.ended() => return Err(over(why)),
        };
        let has_waited = Cell::new(false);
        let waits = |why: &str| {
            has_waited.set(true);
            report(News::Waits(why));
        };
        let turn = tokio::select! {
            turn = context.turns.take((&subject.task.key, limits(&request)), waits) => turn,
            why = subject.ended() => return Err(over(why)),
        };
        if !has_waited.get() {
            return Ok((request, turn));
        }
        let again = tokio::select! {
            again = make() => again,
            why = subject.ended() => return Err(over(why)),
        };
        match again {
            Ok(request) => return Ok((request, turn)),
            Err(why) => tracing::info!("{}: {why}; it is looked up again", subject.task.key),
        }
    }
}

/// The request; what is missing is looked for again for a while.
async fn preflight(
    subject: &Subject<'_>,
    make: &impl AsyncFn() -> Result<Request, Failure>,
    report: &dyn Fn(News<'_>),
) -> Result<Request, Failure> {
    // One of the one kind takes no time from those of the other.
    let mut since = [None, None];
    let mut pause = AGAIN_FIRST;
    loop {
        let why = match make().await {
            Ok(request) => return Ok(request),
            Err(why) => why,
        };
        let may_pass = why.exit_code == exit::RETRYABLE;
        let patience = if may_pass { subject.patience_retryable } else { subject.patience };
        let now = Instant::now();
        since[usize::from(!may_pass)] = None;
        let first = *since[usize::from(may_pass)].get_or_insert(now);
        // A server that has just begun knows no rights yet, so a refusal may pass too.
        let is_final = matches!(why.exit_code, exit::INTEGRITY | exit::BUG);
        if is_final || now - first >= patience {
            return Err(why);
        }
        report(News::Waits(&why.to_string()));
        subject.task.changed(pause).await;
        pause = (pause * 2).min(AGAIN_MOST);
    }
}
