//! `gc`: collects garbage, or says what that would free and cost.

use super::super::args::GcArgs;
use super::super::context::{Context, host, tool};
use super::super::repository;
use super::super::table::{Page, human_time};
use super::super::watch::Watch;
use super::plan::{money, read_prices};
use crate::price::{Cost, Usage};
use chunkstore::{
    CollectOptions, LeaseOptions, Repository, Result, collect,
    map::ReadLimits,
    protocol::{Collected, preview_collection},
    store::RequestCounts,
};
use mover_engine::run::Cancel;
use mover_engine::sizes::{counted, show_bytes};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// A collector that shows no life for so long counts as dead.
const LEASE_SECONDS: u32 = 600;
/// How long deletions may go on after the request to stop. Dropping them anywhere harms nothing.
const GRACE: Duration = Duration::from_secs(4);

pub(crate) fn gc(ctx: &Context, args: &GcArgs) -> Result<()> {
    let repository = repository::open(ctx)?;
    let lease = LeaseOptions { lease_seconds: LEASE_SECONDS, tool: tool(), host: host() };
    let limits = ReadLimits::default();
    let options = CollectOptions { lease, limits, exclusive: args.exclusive };
    if args.dry_run {
        return dry_run(ctx, args, &repository, &options);
    }
    let watch = Watch::requests(ctx, repository.store());
    let cancel = &ctx.cancel;
    // while it has a lease it stops by itself, to give that back
    let collected = ctx.runtime()?.block_on(async {
        tokio::select! {
            collected = Box::pin(collect(&repository, &options, cancel.wait())) => collected,
            () = async { cancel.wait().await; tokio::time::sleep(GRACE).await } => Err(Cancel::error()),
        }
    })?;
    drop(watch);
    for waiting in &collected.waiting {
        for blocker in &waiting.blockers {
            ctx.output.notice(&format!(
                "{} condemned packs wait for {blocker}; a later `mover gc` deletes them",
                waiting.packs
            ));
        }
    }
    if let Some(why) = &collected.locks_unknown {
        ctx.output.notice(&format!(
            "no lock was extended, as it is not known whether any is there: {why}"
        ));
    }
    if let Some((count, why)) = &collected.unlocked {
        ctx.output.warn(&format!(
            "{count} times something that locked backups need could not be locked as long as they are: {why}"
        ));
    }
    if collected.held_back {
        ctx.output.announce(
            "nothing new was condemned, as too many collections wait already: end or wait for those named above",
        );
    }
    ctx.output.summary(&page(&collected), &view(&collected, false))
}

/// What a collection costs and what it saves.
#[derive(Debug, Serialize)]
struct Saving {
    currency: String,
    /// Once: the requests of the preview and of the collection, and what it copies.
    cost: Cost,
    /// Each month, for what is freed.
    saved_month: f64,
}

fn dry_run(
    ctx: &Context,
    args: &GcArgs,
    repository: &Arc<Repository>,
    options: &CollectOptions,
) -> Result<()> {
    let list = args.price.price_file.as_deref().map(read_prices).transpose()?.flatten();
    let url = repository.store().url();
    let prices = list.as_ref().map(|list| list.of(url)).transpose()?;
    let watch = Watch::requests(ctx, repository.store());
    let found = ctx.block_on(Box::pin(preview_collection(repository, options)))?;
    drop(watch);
    let saving = list.as_ref().zip(prices).map(|(list, prices)| {
        let bytes = found.copied_bytes;
        let (ingress_bytes, egress_bytes) = (bytes, bytes);
        let usage = Usage { requests: found.requests, ingress_bytes, egress_bytes };
        Saving {
            currency: list.currency.clone(),
            cost: prices.cost(&usage),
            saved_month: prices.month(found.condemned_bytes + found.rewritten_dead_bytes),
        }
    });
    let mut view = view(&found, true);
    view["saving"] = json!(saving);
    ctx.output.summary(&preview_page(&found, saving.as_ref()), &view)
}

fn page(done: &Collected) -> String {
    let mut page = Page::default();
    found_lines(&mut page, done);
    let deleted = format!("{} in {} packs", show_bytes(done.deleted_bytes), done.deleted_packs);
    page.line("deleted", &format!("{deleted}, {} manifests", done.deleted_manifests));
    if done.copied_bytes > 0 {
        page.line(
            "copied",
            &format!("{} that lives of mostly dead packs", show_bytes(done.copied_bytes)),
        );
    }
    if done.rescued_packs > 0 {
        page.line("rescued", &format!("{} packs are in use again", done.rescued_packs));
    }
    if done.deleted_records > 0 {
        page.line("records", &format!("{} of damage removed", done.deleted_records));
    }
    if done.deleted_leftovers > 0 {
        let (files, bytes) = (done.deleted_leftovers, show_bytes(done.leftover_bytes));
        page.line("leftovers", &format!("{bytes} in {files} temporary files of killed runs"));
    }
    if done.replaced_segments > 0 {
        page.line("dedup", &format!("{} segments replaced", done.replaced_segments));
    }
    if !done.waiting.is_empty() {
        page.line("waiting", &format!("{} collections", done.waiting.len()));
    }
    if done.extended_locks > 0 {
        page.line("extended", &format!("the locks of {} objects", done.extended_locks));
    }
    page.line("requests", &requests_text(&done.requests));
    page.0
}

fn preview_page(found: &Collected, saving: Option<&Saving>) -> String {
    let mut page = Page::default();
    found_lines(&mut page, found);
    if !found.waiting.is_empty() {
        let packs: u64 = found.waiting.iter().map(|w| w.packs).sum();
        page.line("earlier", &format!("{packs} packs are condemned and not deleted yet"));
    }
    let freed = show_bytes(found.condemned_bytes + found.rewritten_dead_bytes);
    let packs = found.condemned_packs + found.rewritten_packs;
    page.line("would free", &format!("{freed} in {}", counted(packs, "packs")));
    page.line("would take", &requests_text(&found.requests));
    if let Some(Saving { currency, cost, saved_month }) = saving {
        page.line("would cost", &money(cost.once, currency));
        page.line("would save", &format!("{} each month", money(*saved_month, currency)));
    }
    page.0
}

fn found_lines(page: &mut Page, found: &Collected) {
    let stored = format!("{} in {}", show_bytes(found.pack_bytes), counted(found.packs, "packs"));
    page.line("stored", &stored);
    let (chunks, backups) = (counted(found.live_chunks, "chunks"), found.backups);
    page.line("in use", &format!("{chunks} of {}", counted(backups, "backups")));
    if found.rewritten_packs > 0 {
        let dead = show_bytes(found.rewritten_dead_bytes);
        let packs = counted(found.rewritten_packs, "packs");
        page.line("mostly dead", &format!("{packs}, {dead} of them"));
    }
    page.line(
        "garbage",
        &format!(
            "{} in {}, {}",
            show_bytes(found.condemned_bytes),
            counted(found.condemned_packs, "packs"),
            counted(found.forgotten, "forgotten backups")
        ),
    );
    if found.locked_objects > 0 {
        let until = found.locked_until.map_or("an unknown date".into(), |t| human_time(&t));
        let (objects, bytes) = (found.locked_objects, show_bytes(found.locked_bytes));
        page.line("locked", &format!("{objects} objects are still locked until {until}, {bytes}"));
    }
}

fn requests_text(r: &RequestCounts) -> String {
    format!(
        "{}: {} get, {} head, {} list, {} put, {} create, {} delete",
        r.total(),
        r.gets,
        r.heads,
        r.lists,
        r.puts,
        r.creates,
        r.deletes
    )
}

fn view(done: &Collected, dry_run: bool) -> serde_json::Value {
    let waiting = done.waiting.iter().map(|w| {
        json!({ "generation": w.generation.to_hex(), "packs": w.packs, "blockers": w.blockers })
    });
    json!({
        "dry_run": dry_run,
        "backups": done.backups,
        "packs": done.packs,
        "pack_bytes": done.pack_bytes,
        "live_chunks": done.live_chunks,
        "pages_read": done.pages_read,
        "condemned_packs": done.condemned_packs,
        "condemned_bytes": done.condemned_bytes,
        "rewritten_packs": done.rewritten_packs,
        "rewritten_dead_bytes": done.rewritten_dead_bytes,
        "copied_bytes": done.copied_bytes,
        "forgotten_backups": done.forgotten,
        "rescued_packs": done.rescued_packs,
        "deleted_packs": done.deleted_packs,
        "deleted_bytes": done.deleted_bytes,
        "deleted_manifests": done.deleted_manifests,
        "deleted_records": done.deleted_records,
        "deleted_leftovers": done.deleted_leftovers,
        "leftover_bytes": done.leftover_bytes,
        "locked_objects": done.locked_objects,
        "locked_bytes": done.locked_bytes,
        "locked_until": done.locked_until,
        "extended_locks": done.extended_locks,
        "locks_unknown": done.locks_unknown,
        "not_extended": done.unlocked.as_ref().map(|(count, why)| json!({ "count": count, "first": why })),
        "replaced_segments": done.replaced_segments,
        "waiting": waiting.collect::<Vec<_>>(),
        "held_back": done.held_back,
        "mark_bytes": done.mark_bytes,
        "requests": done.requests,
    })
}
