//! One attachment of a backup, written out.
//!
//! It is read as a volume is, by the same stages: every chunk is checked against its id, and what is
//! damaged is looked for elsewhere in the repository. Damage of the volume does not matter here, nor
//! does damage of other attachments.
//!
//! A file appears under its name only when all of it is there: until then it has another one beside
//! it. What is no regular file, such as a pipe, is written to directly.

use crate::reading::limits::{Limits, OutputKind};
use crate::reading::pipeline::Run;
use crate::reading::stdout::Stdout;
use crate::reading::{Reading, map_reader, salvage, scope_of_map};
use crate::run::threads::cores;
use crate::run::{Cancel, MemoryBudget, Phase, Progress, RunContext};
use chunkstore::format::Attachment;
use chunkstore::salvage::Salvage;
use chunkstore::{
    Advice, AttachmentName, Error, ErrorKind, LeaseOptions, Manifest, Repository, Result,
    VolumeMap, random_bytes,
};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Where an attachment goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachmentTarget {
    /// Into a file, in the place of one that is there.
    File(PathBuf),
    /// Standard output.
    Stdout,
}

/// What to read, and with what.
#[derive(Debug, Clone)]
pub struct AttachmentOptions {
    /// Its name in the backup.
    pub name: AttachmentName,
    /// Where to.
    pub target: AttachmentTarget,
    /// The reader's lease to take; without one, nobody may forget this backup meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Opener threads; by default one a core.
    pub threads: Option<usize>,
}

/// Writes an attachment of a backup; gives what the user should know. Errors: `NotFound` if there is
/// none of that name; of a damaged one, which may have been written in part, `Corrupt` or `Missing`.
pub fn write_attachment(
    rt: &Handle,
    repo: &Arc<Repository>,
    manifest: &Manifest,
    options: &AttachmentOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<Vec<String>> {
    let run = RunContext { rt, cancel, progress };
    progress.set_phase(Phase::Planning);
    let name = &options.name;
    let Some(attachment) = manifest.attachment(name) else {
        return Err(absent(manifest, name));
    };
    let written = match &options.target {
        AttachmentTarget::Stdout => {
            let mut out = Stdout::open("write an attachment", Arc::clone(cancel))?;
            write_to(run, repo, manifest, attachment, options, &mut out)
        }
        AttachmentTarget::File(path) => {
            let mut out = Output::create(path)?;
            let written = write_to(run, repo, manifest, attachment, options, &mut out);
            let written = written.map_err(|e| out.explain(e));
            written.and_then(|warnings| out.complete().map(|()| warnings))
        }
    };
    written.map_err(|e| {
        let lost = matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing);
        let e = e.within(format!("read attachment {name} of backup {}", manifest.name()));
        if lost { e.hint(Advice::FindDamage.words()) } else { e }
    })
}

fn absent(manifest: &Manifest, name: &AttachmentName) -> Error {
    let names: Vec<&str> = manifest.attachments.iter().map(|a| a.name.as_str()).collect();
    let context = format!("read attachment {name} of backup {}", manifest.name());
    let e = Error::new(ErrorKind::NotFound, context, "it has none of that name");
    e.hint(match names.is_empty() {
        true => "it has no attachments at all".to_owned(),
        false => format!("it has {}", names.join(", ")),
    })
}

fn write_to(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    manifest: &Manifest,
    attachment: &Attachment,
    options: &AttachmentOptions,
    out: &mut (dyn Write + Send),
) -> Result<Vec<String>> {
    let Some(map) = VolumeMap::of_attachment(repo, manifest, attachment)? else {
        return Ok(Vec::new());
    };
    let threads = options.threads.unwrap_or_else(cores);
    let limits = Limits::plan(options.memory, repo.params(), OutputKind::Ordered, threads)?;
    let scope = scope_of_map(repo, &map, &limits);
    let salvage = Arc::new(Salvage::new(repo));
    let reading = Reading::begin(run, repo, manifest, options.lease.clone())?;
    run.progress.total_bytes.set(attachment.size_bytes);
    run.progress.set_phase(Phase::Moving);
    let reader = |damage| map_reader(run, repo, map.clone(), &limits, &scope, &salvage, damage);
    let of = Run { context: run, repo, scope: &scope, limits: &limits, salvage: &salvage };
    let written = salvage::out_in_order(of, reader, out, None);
    let written = written.map_err(|e| reading.explain(run, e));
    let warnings = reading.finish(run);
    written?;
    let (_, found) = salvage::outcome(&salvage);
    Ok(found.into_iter().chain(warnings).collect())
}

/// A file that is being written.
struct Output {
    file: File,
    path: PathBuf,
    /// Its name until it is complete; `None` where it is written to directly.
    partial: Option<PathBuf>,
    failed: Option<io::Error>,
}

impl Output {
    fn create(path: &Path) -> Result<Self> {
        let opened = match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => {
                OpenOptions::new().write(true).open(path).map(|file| (file, None))
            }
            _ => {
                let mut name = path.file_name().unwrap_or_default().to_owned();
                name.push(format!(".{}.partial", hex(random_bytes())));
                let partial = path.with_file_name(name);
                let file = OpenOptions::new().write(true).create_new(true).open(&partial);
                file.map(|file| (file, Some(partial)))
            }
        };
        let (file, partial) = opened.map_err(|e| failure("create", path, &e))?;
        Ok(Self { file, path: path.to_owned(), partial, failed: None })
    }

    /// The reason of a failure, if it was the file.
    fn explain(&mut self, e: Error) -> Error {
        self.failed.take().map_or(e, |failed| failure("write", &self.path, &failed))
    }

    /// Makes it durable, and gives it its name.
    fn complete(mut self) -> Result<()> {
        let Some(partial) = self.partial.take() else { return Ok(()) };
        let named = self.file.sync_all().and_then(|()| std::fs::rename(&partial, &self.path));
        named.map_err(|e| {
            // of a name that nobody knows nothing is missed
            let _ = std::fs::remove_file(&partial);
            failure("write", &self.path, &e)
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let _ = std::fs::remove_file(partial);
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|e| {
            self.failed = Some(io::Error::from(e.kind()));
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn hex(bytes: [u8; 8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn failure(doing: &str, path: &Path, e: &io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    };
    Error::new(kind, format!("{doing} {}", path.display()), e.to_string())
}
