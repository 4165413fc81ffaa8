//! `copy`: selects over one listing of each repository, then copies one backup after the other.
//!
//! A backup that is damaged, or whose name stands for another one in the target, does not keep the
//! others from being copied; the command fails with the first such error when all are done. A store
//! that is away ends it at once.

use super::super::args::{CopyArgs, TargetArgs};
use super::super::context::{Context, host, tool};
use super::super::metrics::Reads;
use super::super::output::Line;
use super::super::repository;
use super::super::retain::retain_policy;
use super::super::settings::{KeySources, parse_compression};
use super::super::summary::copy_text;
use super::super::table::{human_time, machine_time, table};
use super::super::watch::Watch;
use super::backup::{checkpoint_bytes, deadline, quota, scratch};
use super::browse::{unreadable, warn_of_unknown};
use super::forget::{listed, policy, volumes};
use chrono::Utc;
use chunkstore::retention::{KeepPolicy, plan_forget};
use chunkstore::{
    BackupEntry, Error, ErrorKind, Manifest, Repository, Result,
    store::{RetainPolicy, Retention},
};
use mover_engine::ops::copy::{
    CopyOptions, CopyOutcome, CopySummary, Standing, base_of, copy as run, standing,
};
use mover_engine::run::Progress;
use mover_engine::sizes::{counted, show_bytes};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Both repositories, and what was in them.
struct CopyInventory {
    from: Arc<Repository>,
    to: Arc<Repository>,
    /// All that is in the source, of the wanted volume.
    source: Vec<BackupEntry>,
    /// All that is in the target; copies are added as they are made.
    there: Vec<Manifest>,
}

#[derive(Debug, Default)]
struct Done {
    copied: Vec<CopySummary>,
    there: usize,
    failed: usize,
    /// Of the last one that was begun.
    last: Option<Arc<Progress>>,
}

pub(crate) fn copy(ctx: &Context, args: &CopyArgs) -> Result<()> {
    let policy = policy(&args.keep)?;
    if !args.backups.is_empty() && policy != KeepPolicy::default() {
        let context = format!("copy backup {}", args.backups[0]);
        let detail = "rules of a policy were given as well";
        return Err(Error::new(ErrorKind::Usage, context, detail)
            .hint("name backups, or give --keep-… rules; MOVER_KEEP_… variables count too"));
    }
    let options = options(ctx, args)?;
    let volumes = volumes(&args.keep.volume)?;
    let volume = listed(&volumes);
    let retain = retain_policy(&args.storing.retain, Utc::now())?;
    let from = repository::open(ctx)?;
    let to = open_target(ctx, &args.target, retain)?;
    if from.store().url() == to.store().url() {
        let context = format!("copy to {}", to.store().url());
        return Err(Error::new(ErrorKind::Usage, context, "the backups are there already")
            .hint("name another repository with --to"));
    }
    let (mut source, problems) = ctx.block_on(from.list_backups(volume))?;
    warn_of_unknown(ctx, &from, volume, source.len() + problems.len());
    source.retain(|b| volumes.is_empty() || volumes.contains(&b.manifest.volume));
    let (there, far_problems) = ctx.block_on(to.list_backups(volume))?;
    far_problems.iter().for_each(|e| ctx.output.warn(&e.to_string()));
    let there = there.into_iter().map(|b| b.manifest).collect();
    let mut inventory = CopyInventory { from, to, source, there };
    let wanted = select(ctx, args, &policy, &inventory)?;
    if args.dry_run {
        preview(ctx, &inventory, &wanted)?;
        return unreadable(ctx, problems);
    }
    let deadline = ctx.supervisor.deadline(deadline(&args.storing.quota)?);
    let begun = Instant::now();
    let mut done = Done::default();
    let copied = copy_all(ctx, &mut inventory, &wanted, &options, &mut done);
    drop(deadline);
    if let Err(e) = &copied
        && (e.kind() == ErrorKind::Limit
            || (e.kind() == ErrorKind::Cancelled && ctx.cancel.bound().is_some()))
    {
        stopped(ctx, &inventory, &done, begun)?;
    }
    let failed = copied?;
    let mut view = view(&inventory, &done);
    view["retention"] = json!(retain.map(|policy| policy.retention));
    view["dry_run"] = json!(false);
    let (copied, there) = (done.copied.len(), done.there);
    let backups = counted(copied as u64, "backups");
    let mut text = format!("copied {backups}, {there} {} there already", were(there));
    if let Some(RetainPolicy { retention: Retention { mode, until }, .. }) = retain
        && copied > 0
    {
        text.push_str(&format!(
            ", what was copied is locked until {} ({mode})",
            human_time(&until)
        ));
    }
    if done.failed > 0 {
        text.push_str(&format!(", {} could not be copied", done.failed));
    }
    ctx.output.summary(&format!("{text}\n"), &view)?;
    failed.map_or(Ok(()), Err)?;
    unreadable(ctx, problems)
}

/// What was done with the backups that were gone through to the end.
fn view(inventory: &CopyInventory, done: &Done) -> Value {
    let sum = |of: fn(&CopySummary) -> u64| done.copied.iter().map(of).sum::<u64>();
    json!({
        "copied": done.copied.len(), "already_there": done.there, "failed": done.failed,
        "fetched_bytes": sum(|s| s.fetched_bytes), "stored_bytes": sum(|s| s.stored_bytes),
        "source_requests": inventory.from.store().counts(), "target_requests": inventory.to.store().counts(),
    })
}

/// What a run did that has kept to a bound, the backup in which it stopped included.
fn stopped(ctx: &Context, inventory: &CopyInventory, done: &Done, begun: Instant) -> Result<()> {
    let last = done.last.as_ref().map_or(0, |progress| progress.stored_bytes.get());
    let uploaded = inventory.to.store().sent().total();
    let mut view = view(inventory, done);
    view["outcome"] = json!("stopped");
    view["elapsed_seconds"] = json!(begun.elapsed().as_secs_f64());
    view["stopped_stored_bytes"] = json!(last);
    view["uploaded_bytes"] = json!(uploaded);
    let (copied, there) = (counted(done.copied.len() as u64, "backups"), done.there);
    let were = were(there);
    let (last, uploaded) = (show_bytes(last), show_bytes(uploaded));
    let text = format!(
        "stopped at a bound: copied {copied}, {there} {were} there already, {last} of one more are stored; \
         {uploaded} were sent\n"
    );
    ctx.output.summary(&text, &view)
}

fn options(ctx: &Context, args: &CopyArgs) -> Result<CopyOptions> {
    let resources = &ctx.settings.resources;
    Ok(CopyOptions {
        compression: parse_compression(&args.storing.compression)?,
        memory: resources.memory,
        scratch: scratch(resources),
        threads: resources.threads,
        checkpoint_bytes: checkpoint_bytes(args.storing.checkpoint_interval.clone())?,
        quota: quota(&args.storing.quota)?,
        source_lease: !args.reading.no_lease,
        tool: tool(),
        host: host(),
    })
}

fn open_target(
    ctx: &Context,
    args: &TargetArgs,
    retain: Option<RetainPolicy>,
) -> Result<Arc<Repository>> {
    let keys = KeySources {
        key_files: args.to_key_file.clone(),
        password_file: args.to_password_file.clone(),
        password_command: args.to_password_command.clone(),
        password: ctx.settings.target.password.clone(),
        can_ask: ctx.settings.keys.can_ask,
    };
    repository::open_target(ctx, &args.to, &keys, retain)
}

/// What is to be copied, by volume and then from the oldest to the newest.
fn select(
    ctx: &Context,
    args: &CopyArgs,
    policy: &KeepPolicy,
    inventory: &CopyInventory,
) -> Result<Vec<Manifest>> {
    let all = || inventory.source.iter().map(|b| &b.manifest);
    if args.backups.is_empty() && *policy == KeepPolicy::default() {
        return Ok(all().cloned().collect());
    }
    if args.backups.is_empty() {
        let kept = plan_forget(policy, &inventory.source, chrono::Utc::now())?
            .into_iter()
            .filter(|d| d.keep());
        return Ok(kept.map(|d| d.backup.manifest.clone()).collect());
    }
    let mut named = Vec::new();
    for spec in &args.backups {
        let found = ctx.block_on(inventory.from.find_backup(spec))?;
        if !all().any(|m| *m == found) {
            let detail = format!("it is of volume {}", found.volume);
            return Err(Error::new(ErrorKind::Usage, format!("copy backup {spec}"), detail)
                .hint("name the same volume with --volume, or none"));
        }
        named.push(found.name());
    }
    Ok(all().filter(|m| named.contains(&m.name())).cloned().collect())
}

fn preview(ctx: &Context, inventory: &CopyInventory, wanted: &[Manifest]) -> Result<()> {
    let (from, to) = (*inventory.from.id(), *inventory.to.id());
    let mut counts = [0; 3];
    let mut rows = Vec::new();
    for m in wanted {
        let (index, word) = match standing(from, m, to, &inventory.there) {
            Standing::Absent => (0, "copy"),
            Standing::There(_) => (1, "there"),
            Standing::Taken(_) => (2, "taken"),
        };
        counts[index] += 1;
        if ctx.settings.output.json {
            ctx.output.result_json(&json!({
                "type": "decision", "volume": m.volume.as_str(), "backup_id": m.backup_id.as_str(),
                "attempt": m.attempt, "finished": machine_time(&m.finished), "standing": word,
            }))?;
        }
        let (volume, id) = (m.volume.to_string(), m.backup_id.to_string());
        rows.push(vec![volume, id, human_time(&m.finished), word.to_owned()]);
    }
    if !ctx.settings.output.json && !ctx.settings.output.quiet && !rows.is_empty() {
        let head = ["VOLUME", "BACKUP", "FINISHED", "TARGET"];
        ctx.output.result(&table(&head, rows, &[], ctx.settings.output.color_stdout))?;
    }
    let [copied, there, taken] = counts;
    let view = json!({
        "copied": copied, "already_there": there, "failed": taken, "dry_run": true,
    });
    let is = if there == 1 { "is" } else { "are" };
    let copied = counted(copied, "backups");
    let text = format!("would copy {copied}, {there} {is} there already\n");
    ctx.output.summary(&text, &view)
}

/// Copies what is not there. The error is the first of those that concern one backup only.
fn copy_all(
    ctx: &Context,
    inventory: &mut CopyInventory,
    wanted: &[Manifest],
    options: &CopyOptions,
    done: &mut Done,
) -> Result<Option<Error>> {
    let (from, to) = (*inventory.from.id(), *inventory.to.id());
    let mut first = None;
    for backup in wanted {
        let copied = match standing(from, backup, to, &inventory.there) {
            Standing::There(_) => {
                done.there += 1;
                continue;
            }
            Standing::Taken(_) => Err(mover_engine::ops::copy::taken(&inventory.to, backup)),
            Standing::Absent => {
                let progress = Progress::new();
                done.last = Some(Arc::clone(&progress));
                one(ctx, inventory, backup, options, &progress)
            }
        };
        match copied {
            Ok(summary) => {
                summary.warnings.iter().for_each(|w| ctx.output.warn(w));
                show(ctx, &summary)?;
                inventory.there.push(summary.manifest.clone());
                match summary.outcome {
                    CopyOutcome::Copied => done.copied.push(summary),
                    CopyOutcome::AlreadyThere => done.there += 1,
                }
                done.last = None;
            }
            Err(e) if is_of_one_backup(&e) => {
                done.last = None;
                done.failed += 1;
                // the first one is the last line
                if let Some(later) = first.is_some().then_some(&e) {
                    ctx.output.warn(&later.to_string());
                }
                first.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(first)
}

fn one(
    ctx: &Context,
    inventory: &CopyInventory,
    backup: &Manifest,
    options: &CopyOptions,
    progress: &Arc<Progress>,
) -> Result<CopySummary> {
    let (from, to) = (&inventory.from, &inventory.to);
    let base = base_of(*from.id(), &inventory.source, *to.id(), &inventory.there, backup);
    ctx.telemetry.set_volume(backup.volume.as_str());
    let watch = Watch::start(ctx, progress, Reads::Store, to.store());
    let copied = run(ctx.runtime()?, (from, to), backup, base, options, progress, &ctx.cancel);
    drop(watch);
    copied
}

fn show(ctx: &Context, summary: &CopySummary) -> Result<()> {
    if ctx.settings.output.json {
        return ctx.output.result_json(&Line::new("copied", summary));
    }
    if ctx.settings.output.quiet { Ok(()) } else { ctx.output.result(&copy_text(summary)) }
}

fn were(count: usize) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

/// Others may be copied all the same.
fn is_of_one_backup(e: &Error) -> bool {
    use ErrorKind::{AlreadyExists, Corrupt, Forgotten, Missing, NotFound};
    matches!(e.kind(), AlreadyExists | Corrupt | Forgotten | Missing | NotFound)
}
