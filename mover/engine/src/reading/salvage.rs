//! What a run does about damage: damaged chunks are looked for elsewhere in the repository, all of
//! them at once, and read from there.
//!
//! A run onto a target, or to nowhere, collects damaged chunks until it has read all others. Then
//! they are looked for, and those that are found take the way of all others: the same openers, the
//! same check of the id. An output in order cannot leave a gap: [`out_in_order`] stops at the first
//! damage, finds out all that is damaged behind it, and goes on from there.

use super::OnDamage;
use super::damage::Damage;
use super::fetch::FetchStats;
use super::open::{OpenStats, Outbox, Outcome};
use super::pipeline::{self, Destination, ReadingFigures, Run, What, middle};
use super::plan::{PlanScope, Want};
use crate::run::failure::Failure;
use crate::run::{Progress, RunContext};
use chunkstore::salvage::{Salvage, Salvaged};
use chunkstore::{Advice, ErrorKind, MapReader, Result};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::thread::Scope;

/// Looks for what was found and then was not there: a collection may take it.
const ROUNDS_MAX: u32 = 3;

/// Parts of a backup that were damaged and found elsewhere in the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SalvagedParts {
    /// Chunks, each id once.
    pub chunks: u64,
    /// Map pages.
    pub pages: u64,
}

/// What was found elsewhere; and warnings, of that and of headers of packs.
pub(crate) fn outcome(salvage: &Salvage) -> (Option<SalvagedParts>, Vec<String>) {
    let Salvaged { chunks, pages } = salvage.salvaged();
    let mut warnings = Vec::new();
    if chunks + pages > 0 {
        warnings.push(format!(
            "{chunks} chunks and {pages} map pages were damaged and found elsewhere: {}",
            Advice::MakeWhole.words()
        ));
    }
    let (headers, count) = salvage.headers().wrong();
    let more = count - headers.len() as u64;
    let next = Advice::FindDamage.words();
    warnings.extend(headers.into_iter().map(|header| {
        format!("{header}; what was read of that pack has the right ids all the same; {next}")
    }));
    if more > 0 {
        warnings.push(format!("and {more} more headers of packs are damaged"));
    }
    let parts = (chunks + pages > 0).then_some(SalvagedParts { chunks, pages });
    (parts, warnings)
}

/// Looks for the damaged chunks that a run has left, and sends those that it finds where all others
/// went. What is left is lost.
pub(super) fn mend<'scope, 'env: 'scope>(
    run: Run<'env>,
    failure: &'scope Failure,
    threads: &'scope Scope<'scope, 'env>,
    outbox: &Outbox,
    damage: &Arc<Damage>,
    (fetched, opened): (&FetchStats, &mut OpenStats),
) {
    for _ in 0..ROUNDS_MAX {
        let waiting = damage.take_waiting();
        if waiting.is_empty() || failure.failed() {
            damage.lose(waiting, run.scope);
            return;
        }
        let lost: Vec<_> = waiting.iter().map(|damaged| (damaged.id, damaged.at)).collect();
        let found = run.context.wait(Box::pin(run.salvage.find_chunks(&lost)));
        let looked = match found {
            Ok(_) => true,
            Err(e) if e.kind() == ErrorKind::Cancelled => failure.note::<u64>(Err(e)).is_some(),
            // lost as it would be if nobody had looked
            Err(e) => {
                tracing::warn!("damaged chunks could not be looked for elsewhere: {e}");
                false
            }
        };
        let (mut wants, mut gone) = (Vec::new(), Vec::new());
        for damaged in waiting {
            match run.salvage.place(&damaged.id).filter(|place| *place != damaged.at) {
                Some(place) if looked => {
                    wants.push(Want::new(damaged.chunk, damaged.id, &place));
                }
                _ => gone.push(damaged),
            }
        }
        damage.lose(gone, run.scope);
        if wants.is_empty() {
            return;
        }
        tracing::info!("{} damaged chunks were found elsewhere", wants.len());
        let outcome = Outcome::Checked(Arc::clone(damage));
        let what = What::Wants(wants);
        let (fetch, open) = middle(run, failure, threads, what, outbox.clone(), outcome);
        fetched.add(&fetch);
        opened.add(&open);
    }
    damage.lose(damage.take_waiting(), run.scope);
}

/// Writes the wanted bytes in order. `reader` gives a reader of the map that stops at damage, or
/// goes on. With `skip` what is lost is zero.
pub(crate) fn out_in_order(
    run: Run<'_>,
    reader: impl Fn(OnDamage) -> Result<MapReader>,
    out: &mut (dyn Write + Send),
    skip: Option<&Arc<Damage>>,
) -> Result<ReadingFigures> {
    let before = run.context.progress.written_bytes.get();
    let mut figures = ReadingFigures::default();
    let straight = reader(OnDamage::Stop).and_then(|reader| {
        pipeline::run_into(run, reader, Destination::Output(&mut *out, None), &mut figures)
    });
    let e = match straight {
        Err(e) if Damage::is(&e) => e,
        done => return done.map(|()| figures),
    };
    let written = run.context.progress.written_bytes.get() - before;
    let want = run.scope.want.start + written..run.scope.want.end;
    let scope = PlanScope { want, ..run.scope.clone() };
    if scope.want.is_empty() {
        return Err(e);
    }
    // what is read here is counted when it is written
    let uncounted = Progress::new();
    let context = RunContext { progress: &uncounted, ..run.context };
    let lost = Arc::new(Damage::default());
    let checked = reader(OnDamage::GoOn).and_then(|reader| {
        let rest = Run { scope: &scope, context, ..run };
        pipeline::run(rest, reader, Destination::Check(Arc::clone(&lost)))
    });
    match checked {
        // without a root nothing is left
        Err(again) if Damage::is(&again) => return Err(e),
        Err(other) => return Err(other),
        Ok(_) => {}
    }
    // the first that was met may have been found
    if let Some(first) = lost.take_first().filter(|_| skip.is_none()) {
        return Err(first);
    }
    let on_damage = if skip.is_some() { OnDamage::GoOn } else { OnDamage::Stop };
    let rest = Run { scope: &scope, ..run };
    let to = Destination::Output(out, skip.cloned());
    pipeline::run_into(rest, reader(on_damage)?, to, &mut figures)?;
    Ok(figures)
}

/// Finds out all that is damaged of what a run reads, and looks for it elsewhere: for a run that
/// stopped at damage and can be made again. True: something is lost.
pub(crate) fn loses_any(run: Run<'_>, reader: MapReader) -> Result<bool> {
    let damage = Arc::new(Damage::default());
    match pipeline::run(run, reader, Destination::Check(Arc::clone(&damage))) {
        Ok(_) => Ok(damage.take_first().is_some()),
        Err(e) if Damage::is(&e) => Ok(true),
        Err(e) => Err(e),
    }
}
