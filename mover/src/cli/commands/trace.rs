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
    file: File,
    written: bool,
}

impl Record {
    /// Makes the file, so that whoever waits for the end has not waited in vain.
    pub(super) fn begin(
        args: &TraceArgs,
        size_bytes: u64,
        chunk_bytes: u32,
    ) -> Result<Option<Self>> {
        let given = args.record.as_deref().filter(|path| !path.as_os_str().is_empty());
        let Some(path) = given else { return Ok(None) };
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = made.map_err(|e| {
            let error = failed(path, e);
            match error.kind() {
                ErrorKind::Usage => error.hint("name a file that is not there"),
                _ => error,
            }
        })?;
        let trace = Arc::new(ReadTrace::new(size_bytes, chunk_bytes));
        Ok(Some(Self { trace, path: path.to_owned(), file, written: false }))
    }

    pub(super) fn trace(&self) -> &Arc<ReadTrace> {
        &self.trace
    }

    /// Writes what was read.
    pub(super) fn end(mut self) -> Result<()> {
        let written = write(&self.file, &self.trace);
        self.written = written.is_ok();
        written.map_err(|e| failed(&self.path, e))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.written {
            // a file that was not written in full would look like a short one
            let _ = std::fs::remove_file(&self.path);
        }
    }
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
    Error::caused(kind, format!("record reads in {}", path.display()), e)
}
