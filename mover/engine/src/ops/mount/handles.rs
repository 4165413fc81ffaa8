//! What is open, and what a failure is to whoever asked.

use super::backup::Pieces;
use super::shelf::Held;
use crate::ops::files::FileId;
use chunkstore::secrets::redact;
use chunkstore::{Error, ErrorKind};
use mover_fuse::{Answer, DirectoryEntry, Errno, Handle, Inode};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Failures that are told once: the kernel asks again for each page.
const TOLD_MAX: usize = 4096;

/// Something that is open.
#[derive(Debug)]
pub(super) enum Thing {
    /// The volume's bytes.
    Image(Held),
    /// A file of its file system.
    File { held: Held, inode: Inode, pieces: Pieces, size_bytes: u64 },
    /// A text of ours.
    Note(String),
    /// A directory of ours.
    List(Vec<DirectoryEntry>),
    /// A directory of a file system, and the numbers of its files.
    Directory { held: Held, id: FileId, range: Range<Inode> },
}

/// All that is open.
#[derive(Debug, Default)]
pub(super) struct Handles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Handle,
    open: HashMap<Handle, Arc<Thing>>,
    ended: bool,
}

impl Handles {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add(&self, thing: Thing) -> Answer<Handle> {
        self.with(|state| {
            if state.ended {
                return Err(Errno::IO);
            }
            state.last += 1;
            state.open.insert(state.last, Arc::new(thing));
            Ok(state.last)
        })
    }

    pub(super) fn get(&self, handle: Handle) -> Answer<Arc<Thing>> {
        self.with(|state| state.open.get(&handle).cloned()).ok_or(Errno::BADF)
    }

    pub(super) fn close(&self, handle: Handle) {
        // it goes outside of the lock
        let _thing = self.with(|state| state.open.remove(&handle));
    }

    /// Closes all; nothing is opened any more.
    pub(super) fn end(&self) {
        let _things = self.with(|state| {
            state.ended = true;
            std::mem::take(&mut state.open)
        });
    }
}

/// Failures, told in the log, and as numbers to whoever asked.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashSet<u64>>);

impl Failures {
    /// `place`: what was done to what.
    pub(super) fn told(&self, place: &str, e: &Error) -> Errno {
        let errno = match e.kind() {
            ErrorKind::Cancelled => return Errno::INTR,
            ErrorKind::NotFound => return Errno::NOENT,
            ErrorKind::Forgotten => Errno::STALE,
            ErrorKind::Limit => Errno::NFILE,
            ErrorKind::Denied => Errno::ACCESS,
            _ => Errno::IO,
        };
        let line = format!("{place}: {e}");
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        let is_new = {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() >= TOLD_MAX {
                told.clear();
            }
            told.insert(hasher.finish())
        };
        if is_new {
            tracing::warn!("{}", redact(&line));
        }
        errno
    }
}
