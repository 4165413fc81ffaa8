//! The output in order: one thread writes pieces as they become next.
//!
//! It owns the pieces that came too early. Their memory is bounded by permits that the planner
//! takes batch by batch, in order, before anything of a batch is fetched; so the batch that is next
//! always has its memory, and this thread never waits for a piece that waits for memory.

use super::open::OpenedPiece;
use crate::run::failure::Failure;
use crate::run::{Cancel, Progress};
use chunkstore::{Error, ErrorKind, Result};
use crossbeam_channel::Receiver;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Zeros are written in pieces of this.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// What the stage did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Streamed {
    pub(crate) bytes: u64,
    pub(crate) zero_bytes: u64,
    pub(crate) waited_for_output: Duration,
}

/// What the stage knows.
#[derive(Debug)]
pub(crate) struct StreamContext<'a> {
    pub(crate) want: Range<u64>,
    pub(crate) failure: &'a Failure,
    pub(crate) cancel: &'a Cancel,
    pub(crate) progress: &'a Progress,
}

/// Runs until the inbox is closed.
pub(crate) fn run(
    out: &mut dyn Write,
    inbox: &Receiver<OpenedPiece>,
    ctx: &StreamContext<'_>,
) -> Streamed {
    let mut done = Streamed::default();
    let mut early: BTreeMap<u64, OpenedPiece> = BTreeMap::new();
    let mut next = ctx.want.start;
    for piece in inbox {
        if ctx.failure.failed() {
            early.clear();
            continue;
        }
        let start = match &piece {
            OpenedPiece::Data { offset, .. } => *offset,
            OpenedPiece::Zero(range) => range.start,
        };
        early.insert(start, piece);
        while let Some(piece) = early.remove(&next) {
            let begun = Instant::now();
            let written = write(out, piece, ctx, &mut done);
            done.waited_for_output += begun.elapsed();
            match ctx.failure.note(written) {
                Some(len) => next += len,
                None => break,
            }
        }
    }
    if !ctx.failure.failed() {
        let flushed = out.flush().map_err(|e| {
            Error::caused(kind(&e), "flush standard output", e)
                .hint("what was written may be lost: restore again")
        });
        ctx.failure.note(flushed);
        if next != ctx.want.end {
            let detail = format!("the plan left a gap at offset {next}");
            ctx.failure.set(Error::new(ErrorKind::Bug, "write the volume in order", detail));
        }
    }
    done
}

fn write(
    out: &mut dyn Write,
    piece: OpenedPiece,
    ctx: &StreamContext<'_>,
    done: &mut Streamed,
) -> Result<u64> {
    match piece {
        OpenedPiece::Data { offset, bytes, memory } => {
            for (at, part) in (offset..).step_by(ZEROS.len()).zip(bytes.chunks(ZEROS.len())) {
                ctx.cancel.check()?;
                out.write_all(part).map_err(|e| output_error(ctx, at, e))?;
            }
            drop(memory);
            let len = bytes.len() as u64;
            done.bytes += len;
            ctx.progress.written_bytes.add(len);
            Ok(len)
        }
        OpenedPiece::Zero(range) => {
            let mut at = range.start;
            while at < range.end {
                ctx.cancel.check()?;
                let len = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(ZEROS.len());
                out.write_all(&ZEROS[..len]).map_err(|e| output_error(ctx, at, e))?;
                let len = len as u64;
                at += len;
                done.zero_bytes += len;
                ctx.progress.zero_bytes.add(len);
                ctx.progress.done_bytes.add(len);
                ctx.progress.written_bytes.add(len);
            }
            Ok(range.end - range.start)
        }
    }
}

fn output_error(ctx: &StreamContext<'_>, at: u64, e: io::Error) -> Error {
    if ctx.cancel.cancelled() {
        return Cancel::error();
    }
    let context = format!("write the volume to standard output at volume offset {at}");
    Error::caused(kind(&e), context, e)
}

fn kind(e: &io::Error) -> ErrorKind {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    }
}
