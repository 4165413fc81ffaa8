//! `check --find-roots`: trees that no manifest leads to, and backups made of them.

use super::super::args::CheckArgs;
use super::super::context::Context;
use super::super::repository;
use super::super::table::Page;
use super::restore::lease;
use chrono::SecondsFormat;
use chunkstore::roots::FoundRoot;
use chunkstore::{BackupId, Error, ErrorKind, Result, VolumeName};
use mover_engine::ops::roots::{AdoptOptions, Adopted, SizeFrom, adopt_root, find_roots};
use mover_engine::run::Progress;
use mover_engine::sizes::{counted, parse_size, show_bytes};
use serde_json::{Value, json};

/// Characters of an id that are shown.
const SHORT: usize = 12;

pub(super) fn roots(ctx: &Context, args: &CheckArgs) -> Result<()> {
    if args.adopt.is_some() && args.reading.no_lease {
        let what = "a backup is written to the repository";
        return Err(Error::new(ErrorKind::Usage, "use --adopt with --no-lease", what)
            .hint("leave one of them out; MOVER_ADOPT and MOVER_NO_LEASE count too"));
    }
    if args.repair || args.read_data.as_deref().is_some_and(|text| !text.is_empty()) {
        let what = "it looks for roots and checks nothing else";
        return Err(Error::new(ErrorKind::Usage, "use --find-roots", what).hint(
            "leave --repair and --read-data out; MOVER_REPAIR and MOVER_READ_DATA count too",
        ));
    }
    let repository = repository::open(ctx)?;
    let (progress, rt) = (Progress::new(), ctx.runtime()?);
    let (found, warnings) =
        find_roots(rt, &repository, lease(&args.reading), &progress, &ctx.cancel)?;
    warnings.iter().for_each(|warning| ctx.output.warn(warning));
    let Some(root) = args.adopt.clone() else {
        for root in &found {
            if ctx.settings.output.json {
                ctx.output.result_json(&root_json(root))?;
            } else {
                ctx.output.result(&root_text(root))?;
            }
        }
        let mut page = Page::default();
        page.line("found", &counted(found.len() as u64, "roots"));
        return ctx.output.summary(&page.0, &json!({ "found_roots": found.len() }));
    };
    let (volume, backup_id) = match args.adopt_as.as_deref() {
        None => (None, None),
        Some(name) => named(name)?,
    };
    let size_bytes = args.size.as_deref().map(parse_size).transpose()?;
    let options = AdoptOptions { root, volume, backup_id, size_bytes };
    let Some(lease) = lease(&args.reading) else {
        return Err(Error::new(ErrorKind::Bug, "make a backup of a root", "there is no lease"));
    };
    let adopted = adopt_root(rt, &repository, &found, options, lease, &progress, &ctx.cancel)?;
    show(ctx, &adopted)
}

fn named(name: &str) -> Result<(Option<VolumeName>, Option<BackupId>)> {
    Ok(match name.rsplit_once('@') {
        Some((volume, id)) => (Some(VolumeName::new(volume)?), Some(BackupId::new(id)?)),
        None => (Some(VolumeName::new(name)?), None),
    })
}

fn show(ctx: &Context, adopted: &Adopted) -> Result<()> {
    let Adopted { manifest: m, size_from, is_newest, warnings } = adopted;
    warnings.iter().for_each(|warning| ctx.output.warn(warning));
    if *is_newest {
        ctx.output.warn(&format!(
            "it is the newest backup of volume {} now: `{}@latest` means it, and forgets go by it",
            m.volume, m.volume
        ));
    }
    let from = match size_from {
        SizeFrom::Asked => "as asked for".to_owned(),
        SizeFrom::Certain => "as its last chunk says".to_owned(),
        SizeFrom::Volume(volume) => format!("as the newest backup of volume {volume} has"),
        SizeFrom::Least => "the least that it can be; give --size if you know it".to_owned(),
    };
    let mut page = Page::default();
    page.line("made", &format!("{}@{}", m.volume, m.backup_id));
    page.line("size", &format!("{}, {from}", show_bytes(m.size_bytes)));
    page.line("next", &format!("mover verify {}@{}", m.volume, m.backup_id));
    let summary = json!({
        "volume": m.volume.as_str(),
        "backup_id": m.backup_id.as_str(),
        "size_bytes": m.size_bytes,
        "size_from": from,
        "is_newest": is_newest,
        "warnings": warnings,
    });
    ctx.output.summary(&page.0, &summary)
}

fn root_json(root: &FoundRoot) -> Value {
    let volumes = root.volumes.iter();
    let volumes: Vec<_> = volumes
        .map(|(volume, pages)| json!({ "volume": volume.as_str(), "pages": pages }))
        .collect();
    json!({
        "type": "root",
        "root": root.page.id.to_hex(),
        "level": root.level,
        "chunks": root.chunks,
        "least_bytes": root.size_bytes[0],
        "most_bytes": root.size_bytes[1],
        "volumes": volumes,
        "stored": root.stored.to_rfc3339_opts(SecondsFormat::Millis, true),
        "missing": root.missing,
    })
}

fn root_text(root: &FoundRoot) -> String {
    let id = root.page.id.to_hex();
    let like: Vec<&str> = root.volumes.iter().map(|(volume, _)| volume.as_str()).collect();
    let like = if like.is_empty() { "no volume".to_owned() } else { like.join(", ") };
    let whole = match root.missing {
        0 => "whole".to_owned(),
        missing => format!("{missing} pages or packs missing"),
    };
    format!(
        "root      {}: level {}, {} chunks, {} or more, stored {}, like {like}, {whole}\n",
        &id[..SHORT.min(id.len())],
        root.level,
        root.chunks,
        show_bytes(root.size_bytes[0]),
        root.stored.format("%Y-%m-%d %H:%M:%S"),
    )
}
