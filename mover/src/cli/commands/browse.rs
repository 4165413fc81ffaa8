//! `list`, `show`, `diff`: what there is, without its data.

use super::super::args::{DiffArgs, ListArgs, ShowArgs};
use super::super::context::Context;
use super::super::repository;
use super::super::table::{BackupView, backup_page, backup_table};
use chunkstore::{Error, Manifest, Result, VolumeName};

pub(crate) fn list(ctx: &Context, args: &ListArgs) -> Result<()> {
    let volume =
        args.volume.as_deref().filter(|v| !v.is_empty()).map(VolumeName::new).transpose()?;
    let repository = repository::open(ctx)?;
    let (entries, problems) = ctx.block_on(repository.list_backups(volume.as_ref()))?;
    let mut backups: Vec<&Manifest> = entries.iter().map(|entry| &entry.manifest).collect();
    backups.sort_by(|a, b| a.order().cmp(&b.order()));
    if ctx.settings.output.json {
        for manifest in backups {
            ctx.output.result_json(&BackupView::of(manifest))?;
        }
    } else if backups.is_empty() && problems.is_empty() {
        if !ctx.settings.output.quiet {
            ctx.output.notice("no backups");
        }
    } else {
        ctx.output.result(&backup_table(&backups, ctx.settings.output.color_stdout))?;
    }
    unreadable(ctx, problems)
}

/// The readable backups have been shown; that some are not readable is still a failure.
pub(super) fn unreadable(ctx: &Context, mut problems: Vec<Error>) -> Result<()> {
    let Some(last) = problems.pop() else { return Ok(()) };
    for problem in problems {
        ctx.output.warn(&problem.to_string());
    }
    let hint =
        "`mover check` says what is wrong; to forget such a backup name it in full: VOLUME@ID";
    Err(if last.hint_text().is_none() { last.hint(hint) } else { last })
}

/// A volume that was named and has no backup is a typing mistake more often than not.
pub(super) fn warn_of_unknown(ctx: &Context, volume: Option<&VolumeName>, found: usize) {
    if let Some(volume) = volume.filter(|_| found == 0) {
        ctx.output.warn(&format!("there is no backup of volume {volume}: `mover list` shows all"));
    }
}

pub(crate) fn show(ctx: &Context, args: &ShowArgs) -> Result<()> {
    let repository = repository::open(ctx)?;
    let manifest = ctx.block_on(repository.find_backup(&args.backup))?;
    if ctx.settings.output.json {
        return ctx.output.result_json(&BackupView::of(&manifest));
    }
    ctx.output.result(&backup_page(&manifest))
}

pub(crate) fn diff(ctx: &Context, args: &DiffArgs) -> Result<()> {
    let repository = repository::open(ctx)?;
    let changes = mover_engine::ops::diff::diff(
        ctx.runtime()?,
        &repository,
        (&args.a, &args.b),
        &ctx.cancel,
    )?;
    ctx.output.result_stream(|out| changes.write_json(out))
}
