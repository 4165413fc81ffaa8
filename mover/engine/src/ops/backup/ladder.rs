//! Which changed-block list a run works with, and the one place that goes down when there is none.
//!
//! The ladder has three rungs: *delta* (what is not listed is the parent's), *allocated* (what is
//! not listed is zero, nothing is inherited), *whole*. The run takes the highest rung that a source
//! gives it. A source that was asked and failed costs one rung at most: a server that knows no
//! delta is still asked for the allocated blocks, so that a tracker's trouble never turns a small
//! backup into a read of the whole device at once. Every step is said: in the log when it is taken,
//! and in the manifest and in the summary, where it marks the backup as degraded. `--require` is a
//! floor: instead of going below it the run ends with the error that would have been the reason.
//!
//! No step down is taken for a mistake of the user (a URL that is none, a file that cannot be read)
//! and none for a list that was given, not asked for: it is used as it is, or refused.
//!
//! A delta is asked for only when its parent is known: the backup of exactly the snapshot that the
//! delta starts from, of the same volume. So a base that nobody backed up is one step down as well.

use super::parent::{self, Known};
use super::{BackupOptions, HEAD_BYTES, stdin};
use crate::ingest::bounds::ranges_max;
use crate::run::{Cancel, MemoryBudget, RunContext};
use crate::volume::device::Source;
use chunkstore::{
    ChunkSize, Error, ErrorKind, Repository, Result, Setting, VolumeName, format::ChangeKind,
    is_zero,
};
use mover_changes::{
    ChangeRequest, ChangeSource, ChangedBlocks, ListRequest, Movement, ParseOptions, check_floor,
    descend, parse_changed_blocks,
};
use std::fs::File;
use std::sync::Arc;

/// What a run works with.
pub(super) struct Choice {
    /// `None`: the whole volume is read.
    pub(super) list: Option<ChangedBlocks>,
    pub(super) volume: VolumeName,
    pub(super) known: Known,
    /// Each step down, and why.
    pub(super) steps: Vec<String>,
}

impl Choice {
    pub(super) fn kind(&self) -> ChangeKind {
        self.list.as_ref().map_or(ChangeKind::Whole, |list| list.kind)
    }
}

/// What is needed to ask.
pub(super) struct Ladder<'a> {
    pub(super) run: RunContext<'a>,
    pub(super) repo: &'a Arc<Repository>,
    pub(super) options: &'a BackupOptions,
    pub(super) source: &'a Source,
    pub(super) chunk: ChunkSize,
}

impl Ladder<'_> {
    /// Goes down from the top until there is something to work with.
    pub(super) fn choose(&self) -> Result<Choice> {
        let choice = self.go_down()?;
        check_floor(choice.kind(), self.options.changes.require)?;
        Ok(choice)
    }

    fn go_down(&self) -> Result<Choice> {
        let ChangeRequest { sources, require } = &self.options.changes;
        if let Some(given) = sources.iter().find(|source| source.is_given()) {
            let mut list =
                read_given(given, self.source.size_bytes(), self.options.memory, self.run.cancel)?;
            check_empty(&list, self.source)?;
            self.note_base(&mut list);
            return self.with_parents(Some(list), Vec::new());
        }
        let down = descend(sources, *require, |kind, source| self.attempt(kind, source))?;
        match down.found {
            Some(choice) => Ok(Choice { steps: down.steps, ..choice }),
            None => self.with_parents(None, down.steps),
        }
    }

    /// One rung: the parent first, since a list without one would be drained in vain.
    fn attempt(&self, kind: ChangeKind, source: &ChangeSource) -> Result<Choice> {
        let volume = self.volume(kind)?;
        let known = self.known(&volume, kind)?;
        let base = known.parents.first().filter(|_| kind == ChangeKind::Delta);
        let movement: Arc<dyn Movement> = self.run.progress.clone();
        let request = ListRequest {
            kind,
            volume_bytes: self.source.size_bytes(),
            ranges_max: ranges_max(self.options.memory),
            granule_bytes: u64::from(self.chunk.bytes()),
            base: base.map(|manifest| &manifest.snapshot),
            device: Some(self.source),
            movement: Some(&movement),
        };
        let list = self.run.wait(source.fetch(&request))?;
        check_empty(&list, self.source)?;
        Ok(Choice { list: Some(list), volume, known, steps: Vec::new() })
    }

    /// A list that was given is what it is: one of allocated blocks knows nothing of a base.
    fn note_base(&self, list: &mut ChangedBlocks) {
        if let Some(base) = &self.options.base_snapshot
            && list.kind == ChangeKind::Allocated
        {
            list.notes.push(format!(
                "the list is of allocated blocks: nothing is taken over from base snapshot {base:?}"
            ));
        }
    }

    fn with_parents(&self, list: Option<ChangedBlocks>, steps: Vec<String>) -> Result<Choice> {
        let kind = list.as_ref().map_or(ChangeKind::Whole, |list| list.kind);
        let volume = self.volume(kind)?;
        let known = self.known(&volume, kind)?;
        Ok(Choice { list, volume, known, steps })
    }

    fn known(&self, volume: &VolumeName, kind: ChangeKind) -> Result<Known> {
        let delta = kind == ChangeKind::Delta;
        parent::known(self.run, self.repo, self.options, volume, delta)
    }

    fn volume(&self, kind: ChangeKind) -> Result<VolumeName> {
        match &self.options.volume {
            Some(volume) => Ok(volume.clone()),
            None if kind == ChangeKind::Delta => {
                Err(Error::new(ErrorKind::Usage, "use a delta list", "no volume is named").hint(
                    format!(
                        "name the volume with {volume}, as for the backup that the delta builds on",
                        volume = Setting("volume")
                    ),
                ))
            }
            None => self.source.default_volume_name(),
        }
    }
}

/// Reads a list from a file, or from standard input.
pub fn read_given(
    given: &ChangeSource,
    volume_bytes: u64,
    memory: MemoryBudget,
    cancel: &Arc<Cancel>,
) -> Result<ChangedBlocks> {
    let name = given.name();
    let context = || format!("read changed-block list {name}");
    let (path, kind_override) = match given {
        ChangeSource::File(path, kind) => (Some(path), *kind),
        ChangeSource::Stdin(kind) => (None, *kind),
        ChangeSource::Rest(_)
        | ChangeSource::Snapshot(_)
        | ChangeSource::FileSystem(_)
        | ChangeSource::Nbd(_) => {
            return Err(Error::new(ErrorKind::Bug, context(), "it is a server, not a list"));
        }
    };
    let parse = ParseOptions {
        kind_override,
        ranges_max: ranges_max(memory),
        ..ParseOptions::new(name.as_str(), volume_bytes)
    };
    let unread = |e| Error::caused(ErrorKind::Usage, context(), e);
    let Some(path) = path else {
        let input = stdin::Waiting::stdin(cancel).map_err(unread)?;
        let list = parse_changed_blocks(input, &parse);
        cancel.check()?;
        return list;
    };
    parse_changed_blocks(File::open(path).map_err(unread)?, &parse)
}

/// Some drivers answer with an empty list of allocated blocks where they mean an error. A device
/// whose first bytes are not zero is not empty.
fn check_empty(list: &ChangedBlocks, source: &Source) -> Result<()> {
    if list.kind != ChangeKind::Allocated || !list.data.is_empty() {
        return Ok(());
    }
    let head = usize::try_from(source.size_bytes().min(HEAD_BYTES)).unwrap_or(0);
    let mut bytes = vec![0; head];
    source.read_exact_at(&mut bytes, 0)?;
    if is_zero(&bytes) {
        return Ok(());
    }
    let what = format!("use the changed-block list for {}", source.path().display());
    Err(Error::new(
        ErrorKind::Corrupt,
        what,
        "it says that nothing is allocated, but the volume starts with data",
    )
    .hint("take the list again, or run the backup without it"))
}
