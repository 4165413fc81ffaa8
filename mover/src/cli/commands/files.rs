//! `ls`, `cat`, `cp`: files of a backup.

use super::super::args::{CatArgs, CpArgs, DiffArgs, FilesArgs, LsArgs};
use super::super::context::Context;
use super::super::metrics::Reads;
use super::super::repository;
use super::super::settings::Resources;
use super::super::summary::files_text;
use super::super::watch::Watch;
use super::restore::lease;
use chrono::{DateTime, Utc};
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::ops::files::{
    FileChange, FileId, FileKind, FileNode, FilesCopyOptions, FilesFigures, FilesOptions,
    FilesSummary, Found, LeftOut, OpenFiles, copy_files, diff_files, in_two_places, resolve,
    with_files, write_tar,
};
use mover_engine::run::Progress;
use serde::Serialize;
use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names whose nodes are fetched together.
const BATCH: usize = 256;

/// Opens the files of a backup, and tells what the user should know in the end.
fn on_files<T>(
    ctx: &Context,
    backup: &str,
    args: &FilesArgs,
    work: impl FnOnce(&OpenFiles<'_>) -> Result<T>,
) -> Result<(T, FilesFigures)> {
    let repository = repository::open(ctx)?;
    let manifest = ctx.block_on(repository.find_backup(backup))?;
    let Resources { memory, threads, .. } = ctx.settings.resources;
    let lease = lease(&args.reading);
    let options = FilesOptions { lease, memory, threads, location: args.location.location() };
    let progress = Progress::new();
    let watch = Watch::start(ctx, &progress, Reads::Store, repository.store());
    let rt = ctx.runtime()?;
    let done = with_files(rt, &repository, &manifest, &options, (&progress, &ctx.cancel), work);
    drop(watch);
    let (done, figures) = done?;
    for warning in &figures.warnings {
        ctx.output.warn(warning);
    }
    Ok((done, figures))
}

/// Where paths lead. One that leads through something that cannot be read is left out.
fn found(open: &OpenFiles<'_>, paths: &[PathBuf]) -> Result<(Vec<Found>, LeftOut)> {
    let (mut all, mut left_out) = (Vec::new(), LeftOut::default());
    for path in paths {
        match resolve(open, path.as_os_str().as_bytes(), false) {
            Ok(found) => all.push(found),
            Err(e) => left_out.add(path.display(), e)?,
        }
    }
    Ok((all, left_out))
}

/// A line for each file that could not be read, as far as they are named.
fn named(left_out: &LeftOut) -> Vec<String> {
    let mut lines = left_out.damaged.clone();
    let more = left_out.damaged_files.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!("{more} more files could not be read"));
    }
    lines
}

/// The end of a command that has done all else.
fn ended(action: &str, left_out: &LeftOut) -> Result<()> {
    match left_out.damaged_files {
        0 => Ok(()),
        count => {
            let what = format!("{count} files could not be read, and are left out");
            Err(Error::new(ErrorKind::Corrupt, action, what).hint(
                "another backup of the volume may have them; `mover check` says what is damaged",
            ))
        }
    }
}

/// The end of a list of files: it says nothing of one that is whole.
fn list_ended(ctx: &Context, action: &str, left_out: &LeftOut) -> Result<()> {
    for line in named(left_out) {
        ctx.output.warn(&line);
    }
    if ctx.settings.output.json && left_out.damaged_files > 0 {
        ctx.output.summary("", left_out)?;
    }
    ended(action, left_out)
}

/// A file that changed, as JSON has it.
#[derive(Serialize)]
struct ChangeLine<'a> {
    r#type: &'static str,
    change: FileChange,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: &'static str,
    size_bytes: u64,
}

pub(super) fn diff(ctx: &Context, args: &DiffArgs) -> Result<()> {
    let repository = repository::open(ctx)?;
    let find = |spec: &str| ctx.block_on(repository.find_backup(spec));
    let (a, b) = (find(&args.a)?, find(&args.b)?);
    let Resources { memory, threads, .. } = ctx.settings.resources;
    let lease = lease(&args.place.reading);
    let location = args.place.location.location();
    let options = FilesOptions { lease, memory, threads, location };
    let progress = Progress::new();
    let rt = ctx.runtime()?;
    let json = ctx.settings.output.json;
    let (mut warnings, mut left_out) = (Vec::new(), LeftOut::default());
    ctx.output.result_stream(|out| {
        let mut told = |change: FileChange, path: &[u8], node: &FileNode| {
            let text = String::from_utf8_lossy(path);
            let written = if json {
                let line = ChangeLine {
                    r#type: "file",
                    change,
                    path: &text,
                    path_hex: std::str::from_utf8(path).is_err().then(|| hex::encode(path)),
                    kind: kind(node.kind),
                    size_bytes: node.size_bytes,
                };
                let line = serde_json::to_string(&line).map_err(io::Error::other);
                line.and_then(|line| writeln!(out, "{line}"))
            } else {
                let sign = match change {
                    FileChange::Added => '+',
                    FileChange::Removed => '-',
                    FileChange::Changed => 'M',
                    FileChange::Described => 'U',
                };
                let end = if node.kind == FileKind::Directory { "/" } else { "" };
                writeln!(out, "{sign} {}{end}", shown(&text))
            };
            written.map_err(|e| Error::caused(ErrorKind::Device, "write the list", e))
        };
        let seen = (&progress, &ctx.cancel);
        let done = diff_files(rt, &repository, (&a, &b), &options, seen, &mut told);
        let (figures, unread) = done.map_err(io::Error::other)?;
        (warnings, left_out) = (figures.warnings, unread);
        Ok(())
    })?;
    for warning in &warnings {
        ctx.output.warn(warning);
    }
    list_ended(ctx, "compare files", &left_out)
}

/// A file as JSON has it.
#[derive(Serialize)]
struct FileLine<'a> {
    r#type: &'static str,
    path: &'a str,
    /// Where the path is no text: its bytes in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: &'static str,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    size_bytes: u64,
    modified: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

pub(crate) fn ls(ctx: &Context, args: &LsArgs) -> Result<()> {
    let root = [PathBuf::from("/")];
    let paths = if args.paths.is_empty() { &root[..] } else { &args.paths };
    let listing = |open: &OpenFiles<'_>| {
        let (found, unfound) = found(open, paths)?;
        let mut left_out = LeftOut::default();
        ctx.output.result_stream(|out| {
            let json = ctx.settings.output.json;
            let mut lister = Lister { open, out, long: args.long, json, left_out: unfound };
            for one in &found {
                // a directory that is named by itself is listed, not shown
                let written = match one.node.kind {
                    FileKind::Directory => lister.below(&one.path, one.node.id, args.recursive),
                    _ => lister.line(&one.path, &one.node),
                };
                written.map_err(io::Error::other)?;
            }
            left_out = lister.left_out;
            Ok(())
        })?;
        Ok(left_out)
    };
    let (left_out, _) = on_files(ctx, &args.backup, &args.files, listing)?;
    list_ended(ctx, "list files", &left_out)
}

struct Lister<'a, 'b> {
    open: &'a OpenFiles<'a>,
    out: &'b mut dyn Write,
    long: bool,
    json: bool,
    left_out: LeftOut,
}

impl Lister<'_, '_> {
    fn below(&mut self, path: &[u8], directory: FileId, deep: bool) -> Result<()> {
        let mut left = vec![(path.to_vec(), directory)];
        let mut been = HashSet::new();
        while let Some((path, directory)) = left.pop() {
            let names = match been.insert(directory) {
                true => self.open.names(directory),
                false => Err(in_two_places()),
            };
            let names = match names {
                Ok(names) => names,
                Err(e) => {
                    self.leave_out(&path, e)?;
                    continue;
                }
            };
            let mut directories = Vec::new();
            for names in names.chunks(BATCH) {
                let ids: Vec<FileId> = names.iter().map(|entry| entry.id).collect();
                self.open.expect(&ids);
                for entry in names {
                    let path =
                        [path.strip_suffix(b"/").unwrap_or(&path), b"/", &entry.name].concat();
                    match self.open.node(entry.id) {
                        Ok(node) => {
                            self.line(&path, &node)?;
                            if deep && node.kind == FileKind::Directory {
                                directories.push((path, entry.id));
                            }
                        }
                        Err(e) => self.leave_out(&path, e)?,
                    }
                }
            }
            // deepest first, in the order of their names
            left.extend(directories.into_iter().rev());
        }
        Ok(())
    }

    fn leave_out(&mut self, path: &[u8], e: Error) -> Result<()> {
        self.left_out.add(String::from_utf8_lossy(path), e)
    }

    fn line(&mut self, path: &[u8], node: &FileNode) -> Result<()> {
        let text = String::from_utf8_lossy(path);
        let target = match node.kind {
            FileKind::Symlink if self.json || self.long => match self.open.target(node.id) {
                Ok(target) => Some(String::from_utf8_lossy(&target).into_owned()),
                Err(e) => return self.leave_out(path, e),
            },
            _ => None,
        };
        let modified =
            DateTime::<Utc>::from_timestamp(node.modified.seconds, node.modified.nanoseconds);
        let modified = modified.unwrap_or_default();
        let written = if self.json {
            let line = FileLine {
                r#type: "file",
                path: &text,
                path_hex: std::str::from_utf8(path).is_err().then(|| hex::encode(path)),
                kind: kind(node.kind),
                mode: node.mode,
                uid: node.uid,
                gid: node.gid,
                links: node.links,
                size_bytes: node.size_bytes,
                modified: modified.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true),
                target,
            };
            serde_json::to_string(&line)
                .map_err(io::Error::other)
                .and_then(|line| writeln!(self.out, "{line}"))
        } else if self.long {
            let (mode, time) = (permissions(node), modified.format("%Y-%m-%d %H:%M:%S"));
            let FileNode { links, uid, gid, size_bytes, .. } = node;
            let target = target.map(|target| format!(" -> {}", shown(&target))).unwrap_or_default();
            let name = shown(&text);
            writeln!(
                self.out,
                "{mode} {links:>3} {uid:>6} {gid:>6} {size_bytes:>12} {time} {name}{target}"
            )
        } else {
            let end = if node.kind == FileKind::Directory { "/" } else { "" };
            writeln!(self.out, "{}{end}", shown(&text))
        };
        written.map_err(|e| Error::caused(ErrorKind::Device, "write the list", e))
    }
}

/// A name that moves no cursor.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::Characters(..) => "character_device",
        FileKind::Blocks(..) => "block_device",
    }
}

/// As `ls -l` has them.
fn permissions(node: &FileNode) -> String {
    let first = match node.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::Characters(..) => 'c',
        FileKind::Blocks(..) => 'b',
    };
    let mut text = String::from(first);
    for (shift, special, set, bare) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = node.mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (node.mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => set,
            (true, false) => bare,
        });
    }
    text
}

pub(crate) fn cat(ctx: &Context, args: &CatArgs) -> Result<()> {
    ctx.output.reserve_stdout();
    let writing = |open: &OpenFiles<'_>| {
        let follow = |path: &PathBuf| resolve(open, path.as_os_str().as_bytes(), true);
        let found = args.paths.iter().map(follow).collect::<Result<Vec<_>>>()?;
        for one in &found {
            if one.node.kind != FileKind::File {
                let path = String::from_utf8_lossy(&one.path).into_owned();
                let what = format!("it is a {}", kind(one.node.kind).replace('_', " "));
                return Err(Error::new(ErrorKind::Usage, format!("write {path}"), what));
            }
        }
        ctx.output.result_stream(|out| {
            for one in &found {
                open.write_to(one.node.id, out).map_err(io::Error::other)?;
            }
            Ok(())
        })
    };
    on_files(ctx, &args.backup, &args.files, writing).map(drop)
}

/// What was copied, and what that took.
#[derive(Serialize)]
struct Copied<'a> {
    target: String,
    #[serde(flatten)]
    copied: &'a FilesSummary,
    #[serde(flatten)]
    figures: &'a FilesFigures,
}

pub(crate) fn cp(ctx: &Context, args: &CpArgs) -> Result<()> {
    let (sources, target) = match (args.tar, args.paths.split_last()) {
        (false, Some((target, sources))) if !sources.is_empty() => {
            (sources, Some(target.as_path()))
        }
        (true, _) => (&args.paths[..], None),
        (false, _) => {
            let what = "one path is given, and the last one is where files go";
            return Err(Error::new(ErrorKind::Usage, "copy files", what)
                .hint("mover cp BACKUP PATH TARGET, or --tar to write an archive to stdout"));
        }
    };
    if target.is_none() {
        if ctx.settings.output.stdout_is_terminal {
            let what = "stdout is a terminal";
            return Err(Error::new(ErrorKind::Usage, "write an archive", what)
                .hint("send it into a pipe or a file: > files.tar"));
        }
        ctx.output.reserve_stdout();
    }
    let owners = rustix::process::geteuid().is_root();
    let options = FilesCopyOptions { force: args.force, privileged: args.privileged, owners };
    let copying = |open: &OpenFiles<'_>| {
        let (found, mut left_out) = found(open, sources)?;
        let mut copied = match target {
            Some(target) => copy_files(open, &found, target, options),
            None => archived(ctx, open, &found, options),
        }?;
        left_out.extend(copied.left_out);
        copied.left_out = left_out;
        Ok(copied)
    };
    let (copied, figures) = on_files(ctx, &args.backup, &args.files, copying)?;
    for line in told(&copied) {
        ctx.output.warn(&line);
    }
    let shown = target.unwrap_or(Path::new("-")).display().to_string();
    let line = Copied { target: shown.clone(), copied: &copied, figures: &figures };
    ctx.output.summary(&files_text(&shown, &copied, &figures), &line)?;
    ended("copy files", &copied.left_out)
}

fn archived(
    ctx: &Context,
    open: &OpenFiles<'_>,
    found: &[Found],
    options: FilesCopyOptions,
) -> Result<FilesSummary> {
    let mut done = None;
    ctx.output.result_stream(|out| {
        done = Some(write_tar(open, found, out, options).map_err(io::Error::other)?);
        Ok(())
    })?;
    done.ok_or_else(|| Error::new(ErrorKind::Bug, "write an archive", "nothing was written"))
}

/// What is not as it was.
fn told(copied: &FilesSummary) -> Vec<String> {
    let mut lines = named(&copied.left_out);
    let mut tell = |count: u64, what: &str| {
        if count > 0 {
            lines.push(format!("{count} {what}"));
        }
    };
    tell(copied.devices_left_out, "devices are left out: --privileged makes them");
    tell(
        copied.set_ids_left_out,
        "files have lost their set-id bits: --privileged, as root, keeps them",
    );
    tell(copied.owners_left_out, "files belong to this user now: root gives them to their owners");
    tell(copied.attributes_left_out, "attributes are left out: the target does not take them");
    lines
}
