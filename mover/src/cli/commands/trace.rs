//! `--record`: what clients read, written to a file at the end, as a list that `--fetch-first` takes.

use super::super::args::TraceArgs;
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::ops::trace::ReadTrace;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A trace, and the file that it goes to.
pub(super) struct Record {
    trace: Arc<ReadTrace>,
    path: PathBuf,
}

impl Record {
    /// Finds out whether the file can be made, so that whoever waits for the end has not waited in
    /// vain. A kill before the end leaves none.
    pub(super) fn begin(
        args: &TraceArgs,
        size_bytes: u64,
        chunk_bytes: u32,
    ) -> Result<Option<Self>> {
        let given = args.record.as_deref().filter(|path| !path.as_os_str().is_empty());
        let Some(path) = given else { return Ok(None) };
        let made = make(path).and_then(|_| std::fs::remove_file(path));
        made.map_err(|e| failed(path, e))?;
        let trace = Arc::new(ReadTrace::new(size_bytes, chunk_bytes));
        Ok(Some(Self { trace, path: path.to_owned() }))
    }

    /// The same for a command that is run again to go on: what its first run has recorded stays,
    /// and is no reason to stop.
    pub(super) fn begin_or_go_on(
        args: &TraceArgs,
        size_bytes: u64,
        chunk_bytes: u32,
    ) -> Result<Option<Self>> {
        let there = args.record.as_deref().filter(|path| path.exists());
        if let Some(path) = there {
            tracing::warn!("{} is there and stays: reads are not recorded", path.display());
            return Ok(None);
        }
        Self::begin(args, size_bytes, chunk_bytes)
    }

    pub(super) fn trace(&self) -> &Arc<ReadTrace> {
        &self.trace
    }

    /// Writes what was read, if anything was.
    pub(super) fn end(self) -> Result<()> {
        if self.trace.ranges().is_empty() {
            return Ok(());
        }
        let file = make(&self.path).map_err(|e| failed(&self.path, e))?;
        write(&file, &self.trace).map_err(|e| {
            // what was not written in full is no list
            let _ = std::fs::remove_file(&self.path);
            failed(&self.path, e)
        })
    }
}

fn make(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn write(file: &File, trace: &ReadTrace) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write!(out, "{{\"volume_size\": {}, \"kind\": \"delta\", \"extents\": [", trace.size_bytes())?;
    for (nth, range) in trace.ranges().iter().enumerate() {
        let separator = if nth == 0 { "" } else { "," };
        let len = range.end - range.start;
        write!(out, "{separator}\n{{\"offset\": {}, \"len\": {len}}}", range.start)?;
    }
    out.write_all(b"]}\n")?;
    out.flush()?;
    file.sync_all()
}

fn failed(path: &Path, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::AlreadyExists => ErrorKind::Usage,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    };
    let error = Error::caused(kind, format!("record reads in {}", path.display()), e);
    match kind {
        ErrorKind::Usage => error.hint("name a file that is not there"),
        _ => error,
    }
}
