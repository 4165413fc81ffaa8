//! `list`, `show`, `diff`: what there is, without its data.

use super::super::args::{BackupArg, DiffArgs, ListArgs, ReadingArgs, ShowArgs};
use super::super::context::Context;
use super::super::listing::{backup_table, has_labels, short_ids};
use super::super::metrics::Reads;
use super::super::repository;
use super::super::settings::Resources;
use super::super::table::{BackupView, Page, backup_page};
use super::super::watch::Watch;
use super::restore::lease;
use chunkstore::repository::TimePrefix;
use chunkstore::{
    Advice, AttachmentName, Error, ErrorKind, Hold, Manifest, Repository, Result, VolumeName,
    hold_on,
};
use mover_engine::ops::attachment::{AttachmentOptions, AttachmentTarget, write_attachment};
use mover_engine::run::Progress;
use mover_engine::sizes::show_bytes;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) fn list(ctx: &Context, args: &ListArgs) -> Result<()> {
    let volume =
        args.volume.as_deref().filter(|v| !v.is_empty()).map(VolumeName::new).transpose()?;
    let repository = repository::open(ctx)?;
    let (entries, problems) = ctx.block_on(repository.list_backups(volume.as_ref()))?;
    let all = entries.iter().map(|entry| &entry.manifest);
    let mut backups: Vec<&Manifest> = all.filter(|m| has_labels(m, &args.label)).collect();
    backups.sort_by(|a, b| a.order().cmp(&b.order()));
    let found = backups.len();
    if let Some(most) = args.newest {
        newest(&mut backups, most);
    }
    warn_of_unknown(ctx, &repository, volume.as_ref(), entries.len() + problems.len());
    let holds = holds(ctx, &repository);
    let output = &ctx.settings.output;
    if output.json {
        for (manifest, short_id) in backups.iter().zip(short_ids(&backups)) {
            let held = hold_on(&holds, &manifest.name());
            let view = BackupView::of(manifest).with_short_id(short_id).held(held);
            ctx.output.result_json(&view)?;
        }
        ctx.output.records(backups.len(), found);
    } else if backups.is_empty() && problems.is_empty() {
        if volume.is_none() || !entries.is_empty() {
            ctx.output.notice("no backups");
        }
    } else {
        let columns = output.stdout_columns;
        ctx.output.result(&backup_table(&backups, &holds, output.color_stdout, columns))?;
    }
    unreadable(ctx, problems)
}

/// The holds of unfinished live restores. The list is shown without them, too.
fn holds(ctx: &Context, repository: &Repository) -> Vec<Hold> {
    ctx.block_on(repository.holds()).unwrap_or_else(|e| {
        ctx.output.warn(&format!("which backups are held by live restores is not known: {e}"));
        Vec::new()
    })
}

/// The newest so many of each volume, out of all in their order.
fn newest(backups: &mut Vec<&Manifest>, most: usize) {
    let mut left: HashMap<&VolumeName, usize> = HashMap::new();
    let mut stay: Vec<bool> = backups
        .iter()
        .rev()
        .map(|m| {
            let count = left.entry(&m.volume).or_default();
            *count += 1;
            *count <= most
        })
        .collect();
    backups.retain(|_| stay.pop().unwrap_or_default());
}

/// The readable backups have been shown; that some are not readable is still a failure.
pub(super) fn unreadable(ctx: &Context, mut problems: Vec<Error>) -> Result<()> {
    let Some(last) = problems.pop() else { return Ok(()) };
    for problem in problems {
        ctx.output.warn(&problem.to_string());
    }
    let roots = Advice::FindRoots.words();
    let hint = format!(
        "`mover check` says what is wrong; {roots}; to forget such a backup name it in full: VOLUME@ID"
    );
    let replaced = last.hint_text().is_none_or(|hint| hint == roots);
    Err(if replaced { last.hint(hint) } else { last })
}

/// A volume that was named and has no backup is a typing mistake more often than not.
pub(super) fn warn_of_unknown(
    ctx: &Context,
    repository: &Repository,
    volume: Option<&VolumeName>,
    found: usize,
) {
    let Some(volume) = volume.filter(|_| found == 0) else { return };
    let named = async { Ok(repository.no_such_volume(volume).await) };
    if let Ok(unknown) = ctx.block_on(named) {
        ctx.output.warn(&unknown.to_string());
    }
}

/// The backup that the arguments of a command name.
pub(super) fn find(ctx: &Context, repository: &Repository, named: &BackupArg) -> Result<Manifest> {
    let Some(time) = named.before.as_deref().filter(|time| !time.is_empty()) else {
        return ctx.block_on(repository.find_backup(&named.backup));
    };
    let time = TimePrefix::parse(time).map_err(|e| e.within("use --before"))?.start;
    let spec = named.backup.as_str();
    let volume = spec.strip_suffix("@latest").unwrap_or(spec);
    let refused = |e: Error| {
        if e.kind() == ErrorKind::NotFound && volume.contains('@') {
            e.hint("with --before give the name of a volume and no more")
        } else {
            e
        }
    };
    ctx.block_on(repository.find_before(&VolumeName::new(volume)?, time)).map_err(refused)
}

pub(crate) fn show(ctx: &Context, args: &ShowArgs) -> Result<()> {
    let output = args.output.as_ref().filter(|path| !path.as_os_str().is_empty());
    let name = args.attachment.as_deref().filter(|name| !name.is_empty());
    let name = name.map(AttachmentName::new).transpose()?;
    if output.is_some() && name.is_none() {
        let what = "it is for an attachment, and none is named";
        return Err(Error::new(ErrorKind::Usage, "use --output", what)
            .hint("name one with --attachment; MOVER_OUTPUT counts too"));
    }
    if name.is_some() && output.is_none() {
        if ctx.settings.output.stdout_is_terminal {
            let context = "write an attachment to stdout";
            return Err(Error::new(ErrorKind::Usage, context, "it is a terminal")
                .hint("send it into a pipe, or give a file with --output"));
        }
        ctx.output.reserve_stdout();
    }
    let repository = repository::open(ctx)?;
    let manifest = find(ctx, &repository, &args.backup)?;
    if let Some(name) = name {
        let target = match output {
            Some(path) => AttachmentTarget::File(path.clone()),
            None => AttachmentTarget::Stdout,
        };
        return attachment(ctx, &repository, &manifest, name, target, &args.reading);
    }
    if ctx.settings.output.json {
        return ctx.output.result_json(&BackupView::of(&manifest));
    }
    ctx.output.result(&backup_page(&manifest))
}

fn attachment(
    ctx: &Context,
    repository: &Arc<Repository>,
    manifest: &Manifest,
    name: AttachmentName,
    target: AttachmentTarget,
    reading: &ReadingArgs,
) -> Result<()> {
    let Resources { memory, threads, .. } = ctx.settings.resources;
    let lease = lease(reading);
    let options = AttachmentOptions { name, target, lease, memory, threads };
    let progress = Progress::new();
    let watch = Watch::start(ctx, &progress, Reads::Store, repository.store());
    let done =
        write_attachment(ctx.runtime()?, repository, manifest, &options, &progress, &ctx.cancel);
    drop(watch);
    for warning in done? {
        ctx.output.warn(&warning);
    }
    let AttachmentTarget::File(path) = &options.target else { return Ok(()) };
    let size_bytes = manifest.attachment(&options.name).map_or(0, |a| a.size_bytes);
    let mut page = Page::default();
    page.line("attachment", options.name.as_str());
    page.line("size", &show_bytes(size_bytes));
    page.line("file", &path.display().to_string());
    let (name, path) = (options.name.as_str(), path.display().to_string());
    let line = json!({ "attachment": name, "size_bytes": size_bytes, "file": path });
    ctx.output.summary(&page.0, &line)
}

pub(crate) fn diff(ctx: &Context, args: &DiffArgs) -> Result<()> {
    if args.files {
        return super::files::diff(ctx, args);
    }
    let repository = repository::open(ctx)?;
    let changes = mover_engine::ops::diff::diff(
        ctx.runtime()?,
        &repository,
        (&args.a, &args.b),
        &ctx.cancel,
    )?;
    ctx.output.result_stream(|out| changes.write_json(out))
}
