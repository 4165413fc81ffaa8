//! What a live restore holds: a target and its journal on this machine, a hold and a lease in the
//! repository.

use super::LiveOptions;
use super::journal::LiveJournal;
use crate::reading::Reading;
use crate::run::RunContext;
use crate::volume::device::{Source, SourceOptions, Target, TargetOptions};
use chunkstore::{Advice, Error, ErrorKind, LeaseId, Manifest, Repository, Result, TakenHold};
use mover_nbd::is_nbd;
use std::io;
use std::sync::Arc;

/// A target and its journal.
pub(super) struct Opened {
    pub(super) target: Arc<Target>,
    pub(super) journal: LiveJournal,
}

impl Opened {
    pub(super) fn open(
        repo: &Repository,
        below: Option<&Manifest>,
        journal: Option<LiveJournal>,
        options: &LiveOptions,
    ) -> Result<Self> {
        let path = &options.target;
        if is_nbd(path) {
            let context = format!("restore to {} while it is served", path.display());
            let what = "a live restore needs a block device or a file of this machine";
            return Err(Error::new(ErrorKind::Usage, context, what));
        }
        let wanted = TargetOptions {
            size_bytes: 0,
            force: options.force,
            direct: options.direct,
            must_exist: journal.is_some(),
            source_paths: options.source_paths_to_refuse.clone(),
        };
        let chunk_bytes = repo.params().chunk.bytes();
        if let Some(journal) = journal {
            journal.check_repository(&repo.params().repository_id)?;
            if let Some(manifest) = below {
                journal.check_backup(manifest, chunk_bytes)?;
            }
            if !path.exists() {
                let context = format!("go on with journal {}", journal.path().display());
                let what = format!("its target {} is not there", path.display());
                return Err(Error::new(ErrorKind::NotFound, context, what)
                    .hint(format!("bring it back; or {}", Advice::EndHold.words())));
            }
            // what clients have made there is no reason to refuse it
            let wanted = TargetOptions { size_bytes: journal.size_bytes(), force: true, ..wanted };
            let target = Target::open(path, &wanted)?;
            journal.check_target(&target, options.same_target)?;
            return Ok(Self { target: Arc::new(target), journal });
        }
        let Some(manifest) = below else {
            return Err(Error::new(ErrorKind::Bug, "begin a live restore", "it has no backup"));
        };
        let size_bytes = size_of(options, manifest)?;
        let target = Arc::new(Target::open(path, &TargetOptions { size_bytes, ..wanted })?);
        let of = (&repo.params().repository_id, manifest, chunk_bytes);
        // its name and its length last before there is a journal that says so
        match target.flush().and_then(|()| LiveJournal::create(&options.journal, of, &target)) {
            Ok(journal) => Ok(Self { target, journal }),
            Err(e) => {
                remove_made(&target);
                Err(e)
            }
        }
    }

    /// Nothing was written yet: takes away what this run has made.
    pub(super) fn remove(self) -> Vec<String> {
        remove_made(&self.target);
        let path = self.journal.path();
        let removed = std::fs::remove_file(path);
        let failed = removed.err().filter(|e| e.kind() != io::ErrorKind::NotFound);
        failed
            .map(|e| format!("journal {} stays behind: {e}", path.display()))
            .into_iter()
            .collect()
    }
}

/// A file that this run has created, and that has nothing.
fn remove_made(target: &Target) {
    if target.created()
        && let Err(e) = std::fs::remove_file(target.path())
    {
        tracing::warn!("{} stays behind, empty: {e}", target.path().display());
    }
}

fn size_of(options: &LiveOptions, manifest: &Manifest) -> Result<u64> {
    if !options.whole_target {
        return Ok(manifest.size_bytes);
    }
    let there = Source::open(&options.target, SourceOptions { direct: options.direct })?;
    let size_bytes = there.size_bytes();
    if size_bytes < manifest.size_bytes {
        let context = format!("write to {}", options.target.display());
        let what = format!("it has {size_bytes} bytes, the volume has {}", manifest.size_bytes);
        return Err(Error::new(ErrorKind::Usage, context, what).hint("choose a larger target"));
    }
    Ok(size_bytes)
}

/// The hold, which stays between runs, and the lease of this one.
#[derive(Default)]
pub(super) struct Held {
    hold: Option<LeaseId>,
    reading: Option<Reading>,
}

impl Held {
    /// Takes both, the hold first: what is confirmed under the lease is confirmed for the hold.
    pub(super) fn take(
        &mut self,
        run: RunContext<'_>,
        repo: &Arc<Repository>,
        journal: &LiveJournal,
        below: Option<&Manifest>,
        options: &LiveOptions,
    ) -> Result<()> {
        let Some(manifest) = below.filter(|_| !journal.is_complete()) else { return Ok(()) };
        let mut taken = TakenHold::Now;
        if let Some(lease) = &options.lease {
            let who = (lease.tool.clone(), lease.host.clone());
            let name = manifest.name();
            // that it is there is known to nobody who does not wait for the answer
            self.hold = Some(*journal.hold());
            taken = run.wait_to_begin(repo.take_hold(*journal.hold(), &name, who))?;
        }
        let begin = match taken {
            TakenHold::Now => Reading::begin,
            TakenHold::Before => Reading::begin_held,
        };
        self.reading = Some(begin(run, repo, manifest, options.lease.clone())?);
        Ok(())
    }

    /// Why something failed, if it is that the backup is gone.
    pub(super) fn explain(&self, run: RunContext<'_>, e: Error) -> Error {
        match &self.reading {
            Some(reading) => reading.explain(run, e),
            None => e,
        }
    }

    /// Gives back the lease, and the hold if nothing of the backup is needed any more. Gives what
    /// stays behind.
    pub(super) fn end(
        &mut self,
        run: RunContext<'_>,
        repo: &Arc<Repository>,
        needed_no_more: bool,
    ) -> Vec<String> {
        let mut warnings = self.reading.take().map_or_else(Vec::new, |reading| reading.finish(run));
        if let Some(hold) = self.hold.filter(|_| needed_no_more) {
            let release = async {
                match repo.release_hold(&hold).await {
                    Ok(()) => Vec::new(),
                    Err(e) => vec![format!(
                        "hold {hold} stays, and keeps the backup: {e}; {}",
                        Advice::EndHold.words()
                    )],
                }
            };
            warnings.extend(run.give_back(release));
            self.hold = None;
        }
        warnings
    }
}
