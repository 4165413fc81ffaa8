//! Checking a repository: whether every backup in it can be restored, and putting right what can
//! be.
//!
//! What has to be looked at, and what it means, is `chunkstore::Check`'s to know. Here the packs
//! are spread over threads: each has some loops that wait for the store by turns, and opens, hashes
//! and compares what came.
//!
//! Cannot deadlock: loops take packs off one counter and wait for nobody but the store. The first
//! error, or a request to stop, ends every loop at its next request.
//!
//! Memory: beside what `chunkstore::Check` states, three reads of 2 MiB and two entries for each
//! loop that reads data; the number of threads is such that this fits into `--memory`.

mod options;

pub use options::{CheckOptions, ReadData};

use crate::reading::Reading;
use crate::run::failure::Failure;
use crate::run::threads::{cores, spawn};
use crate::run::{Cancel, Phase, Progress, RunContext};
use chunkstore::{
    Advice, Check, Error, ErrorKind, PackId, Reader, Repository, Result, Setting,
    check::{CheckFigures, Finding, FindingKind, LostBackup, PackChecker, PackReport, Repaired},
    map::ReadLimits,
    random_bytes,
    store::RequestCounts,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;

/// Packs that a thread has under way when only their directories are read: it mostly waits.
const LOOPS_DIRECTORY: usize = 8;
/// The same when all of them is read: one computes while the other waits.
const LOOPS_DATA: usize = 2;
/// Reads of one loop.
const LOOP_READ_BYTES: u64 = 6 << 20;
/// What a check takes whatever it looks at: the process, reads of maps.
const BASE_BYTES: u64 = 64 << 20;
/// A repair may make more readable, in which more is found to repair: pages below pages.
const REPAIRS_MAX: usize = 16;

/// What a check found and did.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// How much there is.
    pub figures: CheckFigures,
    /// Packs of which every byte was read, and their bytes.
    pub read_packs: u64,
    /// See [`read_packs`](Self::read_packs).
    pub read_bytes: u64,
    /// What is wrong: the first ones.
    pub findings: Vec<Finding>,
    /// How many there are.
    pub findings_count: u64,
    /// Which bytes of which backups are lost, after the repair if there was one.
    pub lost: Vec<LostBackup>,
    /// Backups that lost nothing, as all that is damaged of them stands elsewhere too.
    pub elsewhere: Vec<LostBackup>,
    /// What was put right.
    pub repaired: Repaired,
    /// Why the repair did not come to its end.
    pub unrepaired: Option<Arc<Error>>,
    /// What is odd, without harm.
    pub warnings: Vec<String>,
    /// All of it.
    pub elapsed_seconds: f64,
    /// Requests to the store so far.
    pub requests: RequestCounts,
    /// Whether it was to put right what can be.
    pub repairs: bool,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings_count == 0 && self.lost.is_empty() && self.elsewhere.is_empty()
    }

    /// One error for all that was found; `Ok` if nothing was.
    pub fn to_result(&self, repo: &Repository) -> Result<()> {
        if let Some(e) = &self.unrepaired {
            let kind = if self.is_clean() { e.kind() } else { ErrorKind::Corrupt };
            let context = format!("check and repair {}", repo.store().url());
            let detail = format!(
                "{} findings, {} backups lost data, and the repair stopped: {e}",
                self.findings_count,
                self.lost.len()
            );
            let hint = e.hint_text().unwrap_or(Advice::RepairAgain.words());
            return Err(Error::new(kind, context, detail).hint(hint));
        }
        if self.is_clean() {
            return Ok(());
        }
        let objects = if self.findings_count == 1 { "thing is" } else { "things are" };
        let detail = match self.lost.len() {
            0 => {
                format!("{} {objects} not as it must be; no backup lost data", self.findings_count)
            }
            n => format!(
                "{} {objects} not as it must be; {n} backups lost data",
                self.findings_count
            ),
        };
        let error = Error::new(ErrorKind::Corrupt, format!("check {}", repo.store().url()), detail);
        let waits = self.lost.iter().any(|lost| lost.all_elsewhere_bytes() > 0);
        if !self.repairs && (waits || !self.elsewhere.is_empty()) {
            let words = Advice::MakeWhole.words();
            return Err(error.hint(format!("some of it is stored elsewhere: {words}")));
        }
        Err(match (self.lost.is_empty(), self.repaired == Repaired::default()) {
            (true, true) if self.repairs => error.hint(format!(
                "what can be put right was; a pack that is named goes with the backups that use it: {}",
                Advice::ReplaceBackups.words()
            )),
            (true, true) => error.hint(Advice::Repair.words()),
            (false, true) => {
                let salvage = Advice::RepairAndSalvage.words();
                let of_manifest = |f: &Finding| f.kind == FindingKind::Manifest;
                error.hint(if self.findings.iter().any(of_manifest) {
                    format!("{}; {salvage}", Advice::FindRoots.words())
                } else {
                    salvage.to_owned()
                })
            }
            (_, false) => error.hint("what could be put right was: run the check again to see"),
        })
    }
}

/// Checks a repository. The calling thread drives it and must not be one of the runtime's.
///
/// Damage is in the report; errors are that the store does not allow to find out.
pub fn check(
    rt: &Handle,
    repo: &Arc<Repository>,
    options: &CheckOptions,
    progress: &Arc<Progress>,
    cancel: &Arc<Cancel>,
) -> Result<CheckReport> {
    let begun = Instant::now();
    progress.set_phase(Phase::Planning);
    let run = RunContext { rt, cancel, progress };
    let reading = Reading::begin_for_all(run, repo, options.lease.clone())?;
    let threads = threads(repo, options);
    let checked = CheckRun { run, repo, options, reader: reading.reader(), threads }.all();
    let warnings = reading.finish(run);
    let mut report = checked?;
    report.warnings.extend(warnings);
    report.elapsed_seconds = begun.elapsed().as_secs_f64();
    report.requests = repo.store().counts();
    Ok(report)
}

fn threads(repo: &Repository, options: &CheckOptions) -> usize {
    let params = repo.params();
    let entry = u64::from(params.chunk.bytes()) * u64::from(params.entry_chunks);
    let of_thread = LOOPS_DATA as u64 * (LOOP_READ_BYTES + 2 * entry);
    let fits = options.memory.total_bytes.saturating_sub(BASE_BYTES) / of_thread;
    let wanted = options.threads.unwrap_or_else(cores).max(1);
    usize::try_from(fits).unwrap_or(usize::MAX).clamp(1, wanted)
}

struct CheckRun<'a> {
    run: RunContext<'a>,
    repo: &'a Arc<Repository>,
    options: &'a CheckOptions,
    reader: &'a Reader,
    threads: usize,
}

impl CheckRun<'_> {
    fn all(&self) -> Result<CheckReport> {
        let limits = ReadLimits::default();
        if self.options.repair {
            // before hours of reading
            self.wait(self.repo.refuse_unknown_to_write("check and repair"))?;
        }
        let mut check = self.wait(Box::pin(Check::begin(self.repo, limits)))?;
        let selected = self.select(&check)?;
        self.run.progress.set_phase(Phase::Verifying);
        let todo = check.packs(|pack| selected.contains(pack));
        let of_selected = todo.iter().filter(|(pack, _)| selected.contains(pack));
        self.run.progress.total_bytes.set(of_selected.map(|(_, bytes)| bytes).sum());
        self.packs(&mut check, todo, &selected)?;
        let read_bytes = self.run.progress.read_bytes.get();
        let read_packs = selected.len() as u64;
        self.run.progress.set_phase(Phase::Finishing);
        let (mut repaired, mut unrepaired) = (Repaired::default(), None);
        let (found, found_count) = (check.findings().0.to_vec(), check.findings().1);
        let notes = check.notes().to_vec();
        let mut lost = self.wait(Box::pin(check.lost()))?;
        if self.options.repair {
            // what was found is worth more than what could be done about it
            match self.repair(&mut check, &selected, &mut repaired) {
                Err(e) if e.kind() == ErrorKind::Cancelled => return Err(e),
                done => unrepaired = done.err().map(Arc::new),
            }
            match self.wait(Box::pin(check.lost())) {
                Err(e) if e.kind() == ErrorKind::Cancelled => return Err(e),
                Err(e) => unrepaired = unrepaired.or(Some(Arc::new(e))),
                Ok(left) => lost = left,
            }
        }
        let (elsewhere, lost) = lost.into_iter().partition(LostBackup::lost_nothing);
        Ok(CheckReport {
            figures: check.figures(),
            read_packs,
            read_bytes,
            findings: found,
            findings_count: found_count,
            lost,
            elsewhere,
            repaired,
            unrepaired,
            warnings: notes,
            elapsed_seconds: 0.0,
            requests: RequestCounts::default(),
            repairs: self.options.repair,
        })
    }

    /// `read`: packs that were read whole.
    fn repair(
        &self,
        check: &mut Check,
        read: &HashSet<PackId>,
        repaired: &mut Repaired,
    ) -> Result<()> {
        // what it finds missing may only have been collected, and what it finds may be so any moment
        self.wait(self.reader.check_held())?;
        self.wait(check.repair_base(repaired))?;
        for _ in 0..REPAIRS_MAX {
            if !self.wait(Box::pin(check.repair_stubs(repaired)))? {
                break;
            }
            self.wait(Box::pin(check.again()))?;
            let todo = check.packs(|_| false);
            self.packs(check, todo, &HashSet::new())?;
        }
        // what stops this must not keep the damage from being recorded
        let made_whole = match &self.options.lease {
            Some(lease) => self.wait(Box::pin(check.make_whole(lease, repaired))),
            None => Ok(false),
        };
        let stopped = match made_whole {
            Ok(false) => None,
            Ok(true) => {
                self.wait(Box::pin(check.again()))?;
                let todo = check.packs(|_| false);
                self.packs(check, todo, &HashSet::new())?;
                None
            }
            Err(e) if e.kind() == ErrorKind::Cancelled => return Err(e),
            Err(e) => Some(e),
        };
        self.wait(self.reader.check_held())?;
        self.wait(Box::pin(check.repair_segments(repaired)))?;
        self.wait(check.record_damage(repaired))?;
        self.wait(check.clear_records(read, repaired))?;
        stopped.map_or(Ok(()), Err)
    }

    /// Which packs are read whole.
    fn select(&self, check: &Check) -> Result<HashSet<PackId>> {
        let all = check.packs(|_| true);
        let count = match self.options.read_data {
            ReadData::Nothing => 0,
            ReadData::All => all.len(),
            ReadData::Percent(percent) => share(all.len(), percent)?,
        };
        let seed: [u8; 32] = random_bytes();
        let rank = |pack: &PackId| *blake3::keyed_hash(&seed, pack.as_bytes()).as_bytes();
        let mut packs: Vec<PackId> = all.into_iter().map(|(pack, _)| pack).collect();
        if count < packs.len() {
            packs.sort_by_cached_key(rank);
            packs.truncate(count);
        }
        Ok(packs.into_iter().collect())
    }

    /// Checks packs until nothing leads to more of them.
    fn packs(
        &self,
        check: &mut Check,
        mut todo: Vec<(PackId, u64)>,
        selected: &HashSet<PackId>,
    ) -> Result<()> {
        let mut data = true;
        while !todo.is_empty() || data {
            let (whole, frames): (Vec<_>, Vec<_>) =
                todo.into_iter().partition(|(pack, _)| data && selected.contains(pack));
            let reports = self.spread(check, &frames, LOOPS_DIRECTORY, false)?;
            let of_whole = self.spread(check, &whole, LOOPS_DATA, true)?;
            check.absorb(reports);
            check.absorb(of_whole);
            // what is looked at again has been read
            data = false;
            todo = self.wait(Box::pin(check.settle()))?;
        }
        Ok(())
    }

    fn spread(
        &self,
        check: &Check,
        packs: &[(PackId, u64)],
        loops: usize,
        data: bool,
    ) -> Result<Vec<PackReport>> {
        let threads = self.threads.min(packs.len());
        let (failure, next) = (Failure::default(), AtomicUsize::new(0));
        let reports = Mutex::new(Vec::new());
        let work =
            Work { run: self.run, packs, data, next: &next, failure: &failure, reports: &reports };
        std::thread::scope(|scope| {
            let start = |_| {
                let checkers = failure.note(check.checkers(loops))?;
                let work = &work;
                spawn(scope, &failure, "check", move || {
                    self.run.rt.block_on(futures::future::join_all(
                        checkers.into_iter().map(|checker| work.turns(checker)),
                    ));
                })
            };
            let threads: Vec<_> = (0..threads).filter_map(start).collect();
            for thread in threads {
                failure.join("check", Some(thread));
            }
        });
        failure.into_result()?;
        Ok(reports.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a request, or for the wish to stop.
    fn wait<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.run.wait(request)
    }
}

/// What the threads share.
struct Work<'a> {
    run: RunContext<'a>,
    packs: &'a [(PackId, u64)],
    data: bool,
    next: &'a AtomicUsize,
    failure: &'a Failure,
    reports: &'a Mutex<Vec<PackReport>>,
}

impl Work<'_> {
    /// One pack after another.
    async fn turns(&self, mut checker: PackChecker<'_>) {
        let read = |bytes: u64| {
            self.run.progress.read_bytes.add(bytes);
            self.run.progress.done_bytes.add(bytes);
        };
        while !self.failure.failed() {
            let Some((pack, bytes)) = self.packs.get(self.next.fetch_add(1, Ordering::Relaxed))
            else {
                return;
            };
            let check = checker.check(pack, *bytes, self.data, &read);
            let checked = self.run.cancel.unless_requested(check).await;
            if let Some(Some(report)) = self.failure.note(checked) {
                self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
            }
        }
    }
}

/// So many of a hundred, one at least.
fn share(count: usize, percent: f64) -> Result<usize> {
    if !(percent > 0.0 && percent <= 100.0) {
        let what = format!("{percent}% of the packs cannot be read");
        return Err(Error::new(
            ErrorKind::Usage,
            format!("use {read_data}", read_data = Setting("read-data")),
            what,
        )
        .hint("give `all`, or a share such as 5%"));
    }
    // in millionths, so that no rounding of large counts matters
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 100 000 000
    let millionths = (percent * 1e6).round() as u128;
    let wanted = (count as u128 * millionths).div_ceil(100_000_000);
    Ok(usize::try_from(wanted).unwrap_or(count).min(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_nothing() {
        assert_eq!(share(1000, 5.0).unwrap(), 50);
        assert_eq!(share(1000, 0.001).unwrap(), 1);
        assert_eq!(share(1001, 100.0).unwrap(), 1001);
        assert_eq!(share(0, 5.0).unwrap(), 0);
        for wrong in [0.0, -1.0, 100.1, f64::NAN, f64::INFINITY] {
            assert_eq!(share(10, wrong).unwrap_err().kind(), ErrorKind::Usage, "{wrong}");
        }
    }
}
