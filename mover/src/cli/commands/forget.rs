//! `forget`: one backup, or all that a policy does not keep.
//!
//! Decided first, by [`plan_forget_by`], over one listing; then a record for each backup that goes. A run
//! that stops in between has forgotten some of them; the next one decides the same about the rest.
//!
//! `--unless-exists` is for whoever else decides how long a backup is needed, and says so by objects
//! of its own: nothing but a listing that succeeds and is empty says that it is not needed any more.

use super::super::args::{ForgetArgs, KeepArgs};
use super::super::context::{Context, tool};
use super::super::repository;
use super::super::table::{human_time, machine_time, table};
use super::browse::{unreadable, warn_of_unknown};
use chunkstore::format::names::AttemptName;
use chunkstore::retention::{
    CalendarSpan, KeepDecision, KeepPolicy, KeepReason, KeepTag, RestRule, VolumePrefix,
    VolumeRule, keep_held, plan_forget_by,
};
use chunkstore::store::directory_of;
use chunkstore::{BackupEntry, Error, ErrorKind, Hold, Manifest, Repository, Result, VolumeName};
use futures::{StreamExt, TryStreamExt, stream};
use mover_engine::sizes::counted;
use serde::Serialize;
use serde_json::json;
use std::path::Path;

/// Records written at a time.
const IN_FLIGHT: usize = 16;

/// One backup as JSON, and what becomes of it.
#[derive(Debug, Serialize)]
struct DecisionView<'a> {
    #[serde(rename = "type")]
    line: &'static str,
    volume: &'a str,
    backup_id: &'a str,
    attempt: u32,
    finished: String,
    keep: bool,
    reasons: Vec<String>,
}

pub(crate) fn forget(ctx: &Context, args: &ForgetArgs) -> Result<()> {
    let policy = policy(&args.keep)?;
    let has_rules =
        policy != KeepPolicy::default() || !args.keep_of.is_empty() || args.below.is_some();
    match &args.backup {
        Some(backup) if has_rules => {
            let context = format!("forget backup {backup}");
            Err(Error::new(ErrorKind::Usage, context, "rules of a policy were given as well").hint(
                "name a backup, or give --keep-… rules; MOVER_KEEP_… and MOVER_BELOW count too",
            ))
        }
        Some(backup) => one(ctx, backup, args),
        None => {
            let below = args.below.as_deref().map(VolumePrefix::parse).transpose()?;
            let rules = args.keep_of.iter().map(|text| VolumeRule::parse(text));
            let rules: Vec<_> = rules.collect::<Result<_>>()?;
            if rules.is_empty() {
                policy.check()?;
            }
            let rest = RestRule { policy: &policy, below: below.as_ref() };
            let rest = Some(rest).filter(|rest| *rest.policy != KeepPolicy::default());
            by_policy(ctx, args, |backups| {
                plan_forget_by(rest, &rules, backups, chrono::Utc::now())
            })
        }
    }
}

/// Names of volumes, as they were given. An empty one is a variable that was not set, never all.
pub(super) fn volumes(given: &[String]) -> Result<Vec<VolumeName>> {
    given.iter().map(VolumeName::new).collect()
}

/// The one volume that is listed; all are, where several or none were named.
pub(super) fn listed(volumes: &[VolumeName]) -> Option<&VolumeName> {
    volumes.first().filter(|_| volumes.len() == 1)
}

pub(super) fn policy(keep: &KeepArgs) -> Result<KeepPolicy> {
    Ok(KeepPolicy {
        last: keep.keep_last.unwrap_or(0),
        hourly: keep.keep_hourly.unwrap_or(0),
        daily: keep.keep_daily.unwrap_or(0),
        weekly: keep.keep_weekly.unwrap_or(0),
        monthly: keep.keep_monthly.unwrap_or(0),
        yearly: keep.keep_yearly.unwrap_or(0),
        within: keep.keep_within.as_deref().map(CalendarSpan::parse).transpose()?,
        tags: keep.keep_tag.iter().map(|tag| KeepTag::parse(tag)).collect::<Result<_>>()?,
        allow_none: keep.allow_none,
    })
}

fn one(ctx: &Context, backup: &str, args: &ForgetArgs) -> Result<()> {
    let wanted = volumes(&args.keep.volume)?;
    let dry_run = args.dry_run;
    let repository = repository::open(ctx)?;
    let name = ctx.block_on(repository.find_to_forget(backup))?;
    let holds = ctx.block_on(repository.holds())?;
    let AttemptName { volume, backup_id, attempt } = &name;
    // what is forgotten does not come back: a prefix that fits another volume's backup is no reason
    if !wanted.is_empty() && !wanted.contains(volume) {
        let detail = format!("it is of volume {volume}, and --volume names another");
        return Err(Error::new(ErrorKind::Usage, format!("forget backup {backup}"), detail)
            .hint("name it as VOLUME@ID, or leave out --volume; MOVER_VOLUME counts too"));
    }
    let mut view = json!({
        "backup_id": backup_id.as_str(), "volume": volume.as_str(), "attempt": attempt,
        "dry_run": dry_run,
    });
    if let Some(place) = &args.unless_exists
        && is_any_below(ctx, place, repository.store().url())?
    {
        view["kept"] = place.as_str().into();
        let text = format!(
            "backup {backup_id} of volume {volume} stays: there are objects below {place}\n"
        );
        return ctx.output.summary(&text, &view);
    }
    if dry_run {
        repository.refuse_held(&holds, &name)?;
    } else {
        ctx.block_on(repository.forget_backup(&name, &holds, &tool()))?;
    }
    let did = if dry_run { "would forget" } else { "forgot" };
    ctx.output.summary(&format!("{did} backup {backup_id} of volume {volume}\n"), &view)
}

/// Whether any object is below a place in the repository's kind of store. That it cannot be known is
/// an error.
fn is_any_below(ctx: &Context, place: &str, repository: &str) -> Result<bool> {
    let context = || format!("look for objects below {place}");
    if kind_of(place)? != kind_of(repository)? {
        let detail = format!("it is in another kind of store than the repository {repository}");
        return Err(Error::new(ErrorKind::Usage, context(), detail)
            .hint("name a place that the repository's credentials are for"));
    }
    if let Some(directory) = directory_of(place)? {
        let failed = |e| Error::caused(ErrorKind::Device, context(), e);
        if !directory.try_exists().map_err(failed)? {
            // a disk that is not mounted has no folder either, and says nothing
            let above = directory.parent().filter(|above| !above.as_os_str().is_empty());
            std::fs::read_dir(above.unwrap_or(Path::new("."))).map_err(|e| {
                failed(e)
                    .hint("the directory above has to be there, whether anything is in it or not")
            })?;
            return Ok(false);
        }
    }
    let store = repository::elsewhere(ctx, place)?;
    ctx.block_on(store.any(""))
}

/// One word for each kind of store.
fn kind_of(url: &str) -> Result<&str> {
    if directory_of(url)?.is_some() {
        return Ok("file");
    }
    Ok(match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        "s3a" => "s3",
        "azure" => "az",
        scheme => scheme,
    })
}

fn by_policy(
    ctx: &Context,
    args: &ForgetArgs,
    plan: impl for<'a> Fn(&'a [BackupEntry]) -> Result<Vec<KeepDecision<'a>>>,
) -> Result<()> {
    let volumes = volumes(&args.keep.volume)?;
    let repository = repository::open(ctx)?;
    // what cannot be read is in no decision and stays
    let (mut backups, problems) = ctx.block_on(repository.list_backups(listed(&volumes)))?;
    warn_of_unknown(ctx, &repository, listed(&volumes), backups.len() + problems.len());
    backups.retain(|b| volumes.is_empty() || volumes.contains(&b.manifest.volume));
    let mut decisions = plan(&backups)?;
    let holds = ctx.block_on(repository.holds())?;
    keep_held(&mut decisions, &holds);
    show(ctx, &decisions)?;
    let going: Vec<&Manifest> =
        decisions.iter().filter(|d| !d.keep()).map(|d| &d.backup.manifest).collect();
    if !args.dry_run {
        ctx.block_on(forget_all(&repository, &going, &holds))?;
    }
    let (kept, forgotten) = (decisions.len() - going.len(), going.len());
    let did = if args.dry_run { "would forget" } else { "forgot" };
    let mut view = json!({ "kept": kept, "forgotten": forgotten, "dry_run": args.dry_run });
    let stay = if kept == 1 { "1 stays".into() } else { format!("{kept} stay") };
    let mut text = format!("{did} {}, {stay}", counted(forgotten as u64, "backups"));
    if let Some(prefix) = &args.below {
        let is_outside = |at: &&KeepDecision<'_>| {
            at.reasons.iter().any(|reason| matches!(reason, KeepReason::Outside(_)))
        };
        let outside = decisions.iter().filter(is_outside).count();
        view["outside"] = outside.into();
        if outside > 0 {
            text.push_str(&format!(", {outside} of them outside of {prefix}"));
        }
    }
    text.push('\n');
    ctx.output.summary(&text, &view)?;
    unreadable(ctx, problems)
}

async fn forget_all(repository: &Repository, going: &[&Manifest], holds: &[Hold]) -> Result<()> {
    let tool = tool();
    stream::iter(going)
        .map(|manifest| {
            let (name, tool) = (manifest.name(), &tool);
            async move {
                match repository.forget_backup(&name, holds, tool).await {
                    // somebody else forgot it since it was listed, and a collection removed it
                    Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                    done => done,
                }
            }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await
}

fn show(ctx: &Context, decisions: &[KeepDecision<'_>]) -> Result<()> {
    if ctx.settings.output.json {
        for decision in decisions {
            ctx.output.result_json(&view(decision))?;
        }
        return Ok(());
    }
    if ctx.settings.output.quiet || decisions.is_empty() {
        return Ok(());
    }
    let rows = decisions.iter().map(|decision| {
        let m = &decision.backup.manifest;
        vec![
            m.volume.to_string(),
            m.backup_id.to_string(),
            human_time(&decision.backup.time()),
            if decision.keep() { "keep" } else { "forget" }.to_owned(),
            reasons(decision).join(", "),
        ]
    });
    let head = ["VOLUME", "BACKUP", "FINISHED", "", "WHY"];
    ctx.output.result(&table(&head, rows.collect(), &[], ctx.settings.output.color_stdout))
}

fn view<'a>(decision: &'a KeepDecision<'_>) -> DecisionView<'a> {
    let m = &decision.backup.manifest;
    DecisionView {
        line: "decision",
        volume: m.volume.as_str(),
        backup_id: m.backup_id.as_str(),
        attempt: m.attempt,
        finished: machine_time(&decision.backup.time()),
        keep: decision.keep(),
        reasons: reasons(decision),
    }
}

fn reasons(decision: &KeepDecision<'_>) -> Vec<String> {
    decision.reasons.iter().map(ToString::to_string).collect()
}
