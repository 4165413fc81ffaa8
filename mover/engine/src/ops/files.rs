//! Files of a backup, before or instead of a restore of its volume.
//!
//! | file | |
//! |---|---|
//! | `volume` | the backup as the volume that the file system is read from |
//! | `location` | where in the volume the file system is |
//! | `paths` | a path, as the volume's own kernel would follow it |
//! | `copy` | files written below a directory of this machine |
//! | `archive` | the same, as a stream |
//! | `changes` | which files changed from one backup to another |
//! | `damage` | what cannot be read: left out, named, counted |
//! | `place` | one file that is made: beneath an open directory, whole before it has its name |
//! | `dress` | owner, attributes, permissions and times of it |
//!
//! Only what is asked for is fetched: pages of the map, directories, inodes, content; each chunk is
//! checked against its id. What is damaged is an error of the file that has it.
//!
//! Takes a lease on the backup for as long as it reads. Cannot deadlock: the one thread that reads
//! the file system waits for the view's tasks, which wait for nobody of here.

mod archive;
mod changes;
mod copy;
mod damage;
mod dress;
mod location;
mod paths;
mod place;
#[cfg(test)]
mod tests;
mod volume;

pub use archive::write_tar;
pub use changes::{FileChange, TellChange};
pub use copy::{FilesCopyOptions, FilesSummary, copy_files};
pub use damage::{LeftOut, in_two_places};
pub use location::FilesLocation;
pub use mover_fsmap::files::{Attribute, FileId, FileKind, FileName, FileNode, FileTime};
pub use paths::{Found, resolve};

use crate::reading::Reading;
use crate::reading::view::{BackupView, ViewCounts, ViewLimits, ViewNeeds, ViewPool, ViewUse};
use crate::run::threads::cores;
use crate::run::{Cancel, MemoryBudget, Phase, Progress, RunContext};
use changes::Side;
use chunkstore::map::delta_of;
use chunkstore::store::RequestCounts;
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Repository, Result};
use mover_fsmap::files::{Files, Piece, read_content};
use mover_fsmap::{LaidOut, Layout, ReadAt, Refusal};
use serde::Serialize;
use std::sync::Arc;
use tokio::runtime::Handle;
use volume::ViewVolume;

/// Fetched at once, as most file systems have there what is read first: superblock, descriptors,
/// the root's inode, a partition table.
const HEAD_BYTES: u64 = 4 << 20;
const HEAD_STEP: usize = 1 << 20;

/// How to read, and from where.
#[derive(Debug, Clone)]
pub struct FilesOptions {
    /// The lease to take; without it, nobody may forget this backup meanwhile.
    pub lease: Option<LeaseOptions>,
    /// Bound on memory.
    pub memory: MemoryBudget,
    /// Opener threads; by default one a core.
    pub threads: Option<usize>,
    /// Where the file system is.
    pub location: FilesLocation,
}

/// What was read for it.
#[derive(Debug, Clone, Serialize)]
pub struct FilesFigures {
    /// Name of the file system.
    pub filesystem: String,
    /// Range reads of packs.
    pub reads: u64,
    /// Bytes of them.
    pub fetched_bytes: u64,
    /// To the store.
    pub requests: RequestCounts,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// The files of a backup, open.
pub struct OpenFiles<'a> {
    files: Box<dyn Files + 'a>,
    volume: &'a dyn ReadAt,
    /// Where the file system is in the backup's volume.
    layout: &'a Layout,
    run: RunContext<'a>,
}

impl std::fmt::Debug for OpenFiles<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFiles").field("kind", &self.files.kind()).finish_non_exhaustive()
    }
}

impl OpenFiles<'_> {
    /// The directory that all others are below.
    pub fn root(&self) -> FileId {
        self.files.root()
    }

    /// What is said of a file.
    pub fn node(&self, id: FileId) -> Result<FileNode> {
        self.asked(self.files.node(id))
    }

    /// Names in a directory, by their bytes.
    pub fn names(&self, directory: FileId) -> Result<Vec<FileName>> {
        let mut names = self.asked(self.files.names(directory))?;
        names.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(names)
    }

    /// These will be asked for. Who asks for one of them hears of what is wrong with it.
    pub fn expect(&self, ids: &[FileId]) {
        self.files.expect(ids);
    }

    /// The path that a link says.
    pub fn target(&self, link: FileId) -> Result<Vec<u8>> {
        self.asked(self.files.target(link))
    }

    /// Attributes of a file.
    pub fn attributes(&self, file: FileId) -> Result<Vec<Attribute>> {
        self.asked(self.files.attributes(file))
    }

    /// Name of the file system.
    pub(crate) fn kind(&self) -> &'static str {
        self.files.kind()
    }

    /// What someone should know of the file system.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.files.warnings()
    }

    /// Where the file system is in the backup's volume.
    pub(crate) fn layout(&self) -> &Layout {
        self.layout
    }

    fn find(&self, directory: FileId, name: &[u8]) -> Result<Option<FileId>> {
        self.asked(self.files.find(directory, name))
    }

    /// The stretches of a file's content.
    pub(crate) fn content(&self, file: FileId) -> Result<Vec<Piece>> {
        self.asked(self.files.content(file))
    }

    fn fill(&self, pieces: &[Piece], offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.asked(read_content(self.volume, pieces, offset, buffer))
    }

    /// Writes a file's content, all of it, to somebody.
    pub fn write_to(&self, file: FileId, out: &mut dyn std::io::Write) -> Result<()> {
        const AT_ONCE: u64 = 1 << 20;
        let node = self.node(file)?;
        let pieces = self.content(file)?;
        let mut buffer = vec![0; usize::try_from(node.size_bytes.min(AT_ONCE)).unwrap_or(0)];
        let mut at = 0;
        while at < node.size_bytes {
            let len = (node.size_bytes - at).min(AT_ONCE);
            let part = &mut buffer[..usize::try_from(len).unwrap_or(0)];
            self.fill(&pieces, at, part)?;
            out.write_all(part)
                .map_err(|e| Error::caused(ErrorKind::Device, "write a file of the backup", e))?;
            at += len;
        }
        Ok(())
    }

    fn asked<T>(&self, answer: Result<T, Refusal>) -> Result<T> {
        self.run.cancel.check()?;
        answer.map_err(failure)
    }
}

/// Opens the files of a backup for as long as `work` goes on.
pub fn with_files<T>(
    rt: &Handle,
    repo: &Arc<Repository>,
    manifest: &Manifest,
    options: &FilesOptions,
    (progress, cancel): (&Arc<Progress>, &Arc<Cancel>),
    work: impl FnOnce(&OpenFiles<'_>) -> Result<T>,
) -> Result<(T, FilesFigures)> {
    let run = RunContext { rt, cancel, progress };
    progress.set_phase(Phase::Planning);
    let threads = options.threads.unwrap_or_else(cores);
    let needs = ViewNeeds { maps: 1, use_of: ViewUse::Reading, threads, disk_cache: false };
    let limits = ViewLimits::plan(options.memory, repo.params(), needs)?;
    let pool = ViewPool::start(rt, repo, limits, None)?;
    let opening = BackupView::begin(&pool, manifest)?;
    let reading = Reading::begin(run, repo, manifest, options.lease.clone())?;
    let worked = (|| {
        let view = run.wait(opening.opened())?;
        let named = |e: Error| e.within(format!("read files of backup {}", manifest.name()));
        let done = files_of(run, view, &options.location, |open| {
            progress.set_phase(Phase::Moving);
            work(open).map(|done| (done, open.kind().to_owned(), open.warnings()))
        });
        let (done, filesystem, mut warnings) = done.map_err(named)?;
        let ViewCounts { reads, read_bytes, .. } = pool.counts();
        warnings.extend(pool.salvaged().1);
        let requests = RequestCounts::default();
        Ok((
            done,
            FilesFigures { filesystem, reads, fetched_bytes: read_bytes, requests, warnings },
        ))
    })();
    let worked = worked.map_err(|e| reading.explain(run, e));
    let warnings = reading.finish(run);
    let (done, mut figures) = worked?;
    figures.warnings.extend(warnings);
    figures.requests = repo.store().counts();
    Ok((done, figures))
}

/// Opens the files of a backup that is open itself, for as long as `work` goes on.
pub(crate) fn files_of<T>(
    run: RunContext<'_>,
    view: Arc<BackupView>,
    location: &FilesLocation,
    work: impl FnOnce(&OpenFiles<'_>) -> Result<T>,
) -> Result<T> {
    let size = view.size_bytes();
    // what says where all else is; the first of it need not wait for the others
    for start in (0..size.min(HEAD_BYTES)).step_by(HEAD_STEP) {
        view.prefetch(start..size.min(start + HEAD_STEP as u64));
    }
    let whole = ViewVolume::new(run, view);
    let layout = location.find(&whole, size)?;
    let volume = LaidOut::new(&whole, &layout);
    let files = mover_fsmap::files::open(&volume, layout.bytes())
        .map_err(|why| location.hinted(why, &whole, size))?;
    work(&OpenFiles { files, volume: &volume, layout: &layout, run })
}

/// Tells which files changed from backup `a` of a volume to `b`, in the order of their directories.
/// What both share is not read. What cannot be read of either is left out.
pub fn diff_files(
    rt: &Handle,
    repo: &Arc<Repository>,
    (a, b): (&Manifest, &Manifest),
    options: &FilesOptions,
    (progress, cancel): (&Arc<Progress>, &Arc<Cancel>),
    told: TellChange<'_>,
) -> Result<(FilesFigures, LeftOut)> {
    if a.volume != b.volume {
        let detail = format!("the first is of volume {}, the second of {}", a.volume, b.volume);
        let context = format!("compare backups {} and {}", a.backup_id, b.backup_id);
        return Err(
            Error::new(ErrorKind::Usage, context, detail).hint("give two backups of one volume")
        );
    }
    // two are open at a time
    let memory = MemoryBudget { total_bytes: options.memory.total_bytes / 2 };
    let half = FilesOptions { memory, ..options.clone() };
    let run = RunContext { rt, cancel, progress };
    let delta = run.wait(Box::pin(delta_of(repo, a, b)))?;
    let delta = delta.data.union(&delta.zero);
    let seen = (progress, cancel);
    let names = (a.name().to_string(), b.name().to_string());
    let of_first = |before: &OpenFiles<'_>| {
        let before = Side { open: before, backup: &names.0 };
        let of_second = |after: &OpenFiles<'_>| {
            let after = Side { open: after, backup: &names.1 };
            changes::changed_files((before, after), &delta, told)
        };
        with_files(rt, repo, b, &half, seen, of_second)
    };
    let ((left_out, mut figures), of_a) = with_files(rt, repo, a, &half, seen, of_first)?;
    figures.reads += of_a.reads;
    figures.fetched_bytes += of_a.fetched_bytes;
    figures.requests = of_a.requests;
    figures.warnings.extend(of_a.warnings);
    Ok((figures, left_out))
}

/// A refusal as our own error: one of the repository is what it was.
fn failure(why: Refusal) -> Error {
    match why {
        Refusal::Io { offset, error } => match error.downcast::<Error>() {
            Ok(e) => e,
            Err(e) => Error::caused(
                ErrorKind::Corrupt,
                format!("read at byte {offset} of the file system"),
                e,
            ),
        },
        Refusal::Unknown => Error::new(
            ErrorKind::Unsupported,
            "find a file system",
            "the volume begins with none that is known",
        ),
        Refusal::Unusable { .. } => {
            Error::new(ErrorKind::Unsupported, "read the file system", why.to_string())
        }
    }
}
