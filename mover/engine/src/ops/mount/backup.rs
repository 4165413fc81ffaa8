//! One backup that is open: its lease, its bytes, and a thread of its own that reads its file system.
//!
//! The thread takes the lease before it reads a byte, and gives it back when nobody has the backup
//! open any more. File systems are read by one thread at a time. So what is asked of directories and
//! inodes goes to it as a job; bytes of files are read by whoever wants them, many at a time. A job
//! whose asker has left is passed over.
//!
//! Cannot deadlock: the thread waits for the view's tasks, which wait for nobody of here.

use super::limits::{NAMES_BYTES, PIECES_MAX};
use crate::ops::files::{FileId, FileName, FilesLocation, OpenFiles, files_of};
use crate::reading::Reading;
use crate::reading::view::{BackupView, ViewPool};
use crate::run::{Cancel, Progress, RunContext};
use chunkstore::format::names::AttemptName;
use chunkstore::{Error, ErrorKind, LeaseOptions, Manifest, Repository, Result};
use mover_fsmap::Layout;
use mover_fsmap::files::{Piece, is_plain};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Of a name in memory, beside its bytes.
const NAME_BYTES: usize = 40;

/// What each backup is read with.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) rt: Handle,
    pub(super) repo: Arc<Repository>,
    pub(super) pool: Arc<ViewPool>,
    pub(super) lease: Option<LeaseOptions>,
    pub(super) location: FilesLocation,
    pub(super) progress: Arc<Progress>,
    /// The wish of the user.
    pub(super) cancel: Arc<Cancel>,
    /// Nobody reads any more. Leases are given back all the same.
    pub(super) over: Arc<Cancel>,
}

/// The files of a backup, where they can be read.
#[derive(Debug, Clone)]
pub(super) struct Filesystem {
    pub(super) root: FileId,
    /// Where it is in the volume.
    pub(super) layout: Layout,
    pub(super) kind: &'static str,
}

/// For a backup's thread.
pub(super) enum Wish {
    Question(Box<dyn FnOnce(&mut FileReader<'_>) + Send>),
    End,
}

/// The one who asks a backup's thread; it ends with this.
struct Asker(mpsc::Sender<Wish>);

impl Drop for Asker {
    fn drop(&mut self) {
        // it may have ended
        let _ = self.0.send(Wish::End);
    }
}

/// A backup's thread.
pub(super) struct BackupThread {
    thread: JoinHandle<Vec<String>>,
    wishes: mpsc::Sender<Wish>,
}

impl std::fmt::Debug for BackupThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupThread").finish_non_exhaustive()
    }
}

impl BackupThread {
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it, whoever uses the backup; gives what the user should know.
    pub(super) fn end(self) -> Vec<String> {
        // it may have ended
        let _ = self.wishes.send(Wish::End);
        // a panic has ended the process
        self.thread.join().unwrap_or_default()
    }
}

/// A backup that is open. Dropping it ends its thread, and its lease.
pub(super) struct OpenBackup {
    pub(super) name: AttemptName,
    pub(super) view: Arc<BackupView>,
    /// Or why there are none.
    pub(super) files: Result<Filesystem, String>,
    asker: Asker,
    pieces: Arc<AtomicU64>,
}

impl std::fmt::Debug for OpenBackup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenBackup").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a backup's thread has said when it was ready.
type Opened = Result<(AttemptName, Arc<BackupView>, Result<Filesystem, String>)>;

/// Which backup.
#[derive(Debug)]
pub(super) enum Wanted {
    Found(Box<Manifest>),
    Named(AttemptName),
}

impl OpenBackup {
    /// Opens a backup by a thread of its own, which keeps `place` as long as it reads. Gives the
    /// thread, and what it will say.
    pub(super) fn begin(
        means: &Arc<Means>,
        wanted: Wanted,
        place: OwnedSemaphorePermit,
    ) -> Result<(BackupThread, Opening)> {
        let (tell, told) = oneshot::channel();
        let (wish, wishes) = mpsc::channel();
        let means = Arc::clone(means);
        let thread = std::thread::Builder::new()
            .name("files".into())
            .spawn(move || {
                let warnings = keep(&means, &wanted, tell, &wishes);
                drop(place);
                warnings
            })
            .map_err(|e| Error::caused(ErrorKind::Unavailable, "start a thread", e))?;
        let asker = Asker(wish.clone());
        Ok((BackupThread { thread, wishes: wish }, Opening { told, asker }))
    }

    /// Asks the file system something.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut FileReader<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel::<Result<T>>();
        let question = Box::new(move |reader: &mut FileReader<'_>| {
            if !tell.is_closed() {
                // the asker may have left meanwhile
                let _ = tell.send(question(reader));
            }
        });
        self.asker.0.send(Wish::Question(question)).map_err(|_| Cancel::error())?;
        told.await.unwrap_or_else(|_| Err(Cancel::error()))
    }

    /// The stretches of a file, for as long as it is open. `None`: too many are open.
    pub(super) async fn pieces(&self, file: FileId) -> Result<Option<Pieces>> {
        let pieces = self.ask(move |reader| reader.open.content(file)).await?;
        let count = pieces.len() as u64;
        let all = Arc::clone(&self.pieces);
        let taken = all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            // one file is opened however it lies
            (now == 0 || now + count <= PIECES_MAX).then_some(now + count)
        });
        Ok(taken.is_ok().then_some(Pieces { pieces, all }))
    }
}

/// A backup that is being opened. Dropping it ends that.
pub(super) struct Opening {
    told: oneshot::Receiver<Opened>,
    asker: Asker,
}

impl Opening {
    pub(super) async fn done(self) -> Result<OpenBackup> {
        let (name, view, files) = self.told.await.unwrap_or_else(|_| Err(Cancel::error()))?;
        Ok(OpenBackup { name, view, files, asker: self.asker, pieces: Arc::default() })
    }
}

/// Where a file's bytes are.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) pieces: Vec<Piece>,
    all: Arc<AtomicU64>,
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.all.fetch_sub(self.pieces.len() as u64, Ordering::Relaxed);
    }
}

/// The life of a backup's thread; gives what the user should know.
fn keep(
    means: &Means,
    wanted: &Wanted,
    tell: oneshot::Sender<Opened>,
    wishes: &mpsc::Receiver<Wish>,
) -> Vec<String> {
    let Means { rt, repo, pool, lease, progress, cancel, over, location } = means;
    let run = RunContext { rt, cancel: over, progress };
    // whatever ends the reading, a lease is given back as the user's wish has it
    let giving_back = RunContext { rt, cancel, progress };
    let begun = manifest(run, repo, wanted).and_then(|manifest| {
        let opening = BackupView::begin(pool, &manifest)?;
        let reading = Reading::begin(run, repo, &manifest, lease.clone())?;
        Ok((manifest, opening, reading))
    });
    let (manifest, opening, reading) = match begun {
        Ok(begun) => begun,
        Err(e) => {
            // who asked may have left
            let _ = tell.send(Err(e));
            return Vec::new();
        }
    };
    let mut warnings = Vec::new();
    match run.wait(opening.opened()) {
        Err(e) => {
            let _ = tell.send(Err(reading.explain(run, e)));
        }
        Ok(view) => {
            let named = (manifest.name(), location);
            answer((run, &reading), named, &view, (tell, &mut warnings), wishes);
        }
    }
    warnings.extend(reading.finish(giving_back));
    warnings
}

fn manifest(run: RunContext<'_>, repo: &Repository, wanted: &Wanted) -> Result<Manifest> {
    let name = match wanted {
        Wanted::Found(manifest) => return Ok((**manifest).clone()),
        Wanted::Named(name) => name,
    };
    let found = run.wait(repo.backup_named(&name.volume, &name.backup_id))?;
    // another attempt has other bytes, and would be another directory
    found.filter(|manifest| manifest.name() == *name).ok_or_else(|| {
        Error::new(ErrorKind::Forgotten, format!("open backup {name}"), "it was forgotten")
    })
}

/// Answers whoever asks, until nobody can any more. What the user should know is added.
fn answer(
    (run, reading): (RunContext<'_>, &Reading),
    (name, location): (AttemptName, &FilesLocation),
    view: &Arc<BackupView>,
    (tell, warnings): (oneshot::Sender<Opened>, &mut Vec<String>),
    wishes: &mpsc::Receiver<Wish>,
) {
    let mut tell = Some(tell);
    let mut ready = |files: Result<Result<Filesystem, String>>| {
        if let Some(tell) = tell.take() {
            let opened = files.map(|files| (name.clone(), Arc::clone(view), files));
            // who asked may have left; then nobody wishes anything either
            let _ = tell.send(opened);
        }
    };
    let shown = name.to_string();
    let opened = files_of(run, Arc::clone(view), location, |open| {
        let (root, layout, kind) = (open.root(), open.layout().clone(), open.kind());
        // what is not a directory is no root
        let mut reader = FileReader { open, shown, names: HashMap::new(), bytes: 0 };
        reader.open.node(root)?;
        for warning in open.warnings() {
            let warning = format!("{}: {warning}", reader.shown);
            tracing::warn!("{warning}");
            warnings.push(warning);
        }
        ready(Ok(Ok(Filesystem { root, layout, kind })));
        while let Ok(Wish::Question(question)) = wishes.recv() {
            question(&mut reader);
        }
        Ok(())
    });
    let Err(e) = opened else { return };
    ready(match e.kind() {
        // it is not these bytes' fault
        ErrorKind::Unavailable
        | ErrorKind::Cancelled
        | ErrorKind::Denied
        | ErrorKind::Forgotten => Err(reading.explain(run, e)),
        _ => Ok(Err(e.to_string())),
    });
    // without files nobody has a question
    while let Ok(Wish::Question(_)) = wishes.recv() {}
}

/// A file system, with names of directories that were looked at.
pub(super) struct FileReader<'a> {
    pub(super) open: &'a OpenFiles<'a>,
    /// Of the backup.
    shown: String,
    names: HashMap<FileId, Rc<Vec<FileName>>>,
    bytes: usize,
}

impl FileReader<'_> {
    /// Names in a directory that a file may have, by their bytes.
    pub(super) fn names(&mut self, directory: FileId) -> Result<Rc<Vec<FileName>>> {
        if let Some(names) = self.names.get(&directory) {
            return Ok(Rc::clone(names));
        }
        let mut names = self.open.names(directory)?;
        let all = names.len();
        names.retain(|entry| is_plain(&entry.name));
        if names.len() < all {
            let (left, id) = (all - names.len(), directory.0);
            tracing::warn!(
                "{}: directory {id}: {left} names are left out, as no file may have them",
                self.shown
            );
        }
        let bytes = names.iter().map(|entry| entry.name.len() + NAME_BYTES).sum();
        if self.bytes.saturating_add(bytes) > NAMES_BYTES {
            self.names.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        let names = Rc::new(names);
        self.names.insert(directory, Rc::clone(&names));
        Ok(names)
    }

    /// Whose name it is.
    pub(super) fn find(&mut self, directory: FileId, name: &[u8]) -> Result<Option<FileId>> {
        let names = self.names(directory)?;
        let at = names.binary_search_by(|entry| entry.name.as_slice().cmp(name));
        Ok(at.ok().map(|at| names[at].id))
    }
}
