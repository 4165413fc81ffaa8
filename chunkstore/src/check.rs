//! Checking a repository: whether every reference of every backup leads to what it names, and
//! putting right what can be.
//!
//! | file | |
//! |---|---|
//! | `inventory` | what there is: manifests, packs, segments, and every small record opened |
//! | `refs` | some bits for each chunk that is referred to, and sums that compare references with directories |
//! | `mark` | a walk over all maps, each page once |
//! | `stubs` | what packs that are gone were moved to, and whether that is what was referred to |
//! | `pack` | one pack: its directory against the references; its bytes by hash, tag and id |
//! | `unreadable` | packs with unreadable directories: read by the references instead |
//! | `damage`, `trace` | what is lost, and which bytes of which backups that is |
//! | `repair` | stubs and segments built anew, damage recorded |
//! | `whole` | backups made whole of what is damaged and stands elsewhere |
//!
//! Order: a reader's lease; then manifests, then packs, so that what a manifest refers to is in the
//! list of packs or gone for good; then everything else. What seems damaged is looked at a second
//! time before it is said. Nothing that any backup needs is deleted under the lease; what a
//! collection has rewritten may still go, and is then found through its stub. Damage is found,
//! never guessed: that an object is absent counts when asking for it just now said so.
//!
//! The work on packs is the caller's to spread over threads: [`Check::checkers`] gives one checker
//! each, and their reports come back with [`Check::absorb`].
//!
//! Memory: what `refs` and `map::reach` state, about 100 bytes for each pack that is stored, the
//! manifests of all backups (some KiB each); for a checker the directory of a pack, the longest
//! entry twice and three reads of 2 MiB.

mod damage;
mod inventory;
mod mark;
mod pack;
mod refs;
mod repair;
mod stubs;
mod trace;
mod unreadable;
mod whole;

use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::format::names::pack_key;
use crate::ids::PackId;
use crate::map::ReadLimits;
use crate::repository::Repository;
use damage::Damage;
use inventory::Inventory;
pub use pack::{PackChecker, PackReport};
use refs::Refs;
pub use repair::Repaired;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
pub use trace::{LostAttachment, LostBackup};

/// Findings that are kept; more are counted.
const FINDINGS_MAX: usize = 4096;
/// Notes that are kept.
const NOTES_MAX: usize = 64;

/// What kind of object is not right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// A manifest: its backup cannot be read at all.
    Manifest,
    /// A pack, an entry of one, or a reference into one.
    Pack,
    /// A forwarding stub.
    Stub,
    /// A dedup segment: it only saves work.
    Segment,
    /// Any other record: a key, a lease, a list of a collection.
    Record,
}

impl FindingKind {
    /// One word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Pack => "pack",
            Self::Stub => "stub",
            Self::Segment => "segment",
            Self::Record => "record",
        }
    }
}

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// Key of the object in the repository.
    pub object: String,
    /// What is wrong with it.
    pub detail: String,
}

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckFigures {
    /// Backups that count.
    pub backups: u64,
    /// Packs in the store.
    pub packs: u64,
    /// Their bytes.
    pub pack_bytes: u64,
    /// Chunks and pages that are referred to.
    pub chunks: u64,
    /// Map pages that were read.
    pub pages: u64,
    /// Dedup segments, and forwarding stubs.
    pub segments: u64,
    /// See [`segments`](Self::segments).
    pub stubs: u64,
    /// Other records that were opened.
    pub records: u64,
    /// Memory of what is known of the references.
    pub mark_bytes: u64,
}

/// What was found, in the order in which it was.
#[derive(Debug, Default)]
struct Findings {
    kept: Vec<Finding>,
    count: u64,
    notes: Vec<String>,
}

impl Findings {
    fn add(&mut self, kind: FindingKind, object: impl Into<String>, detail: impl Into<String>) {
        self.count += 1;
        if self.kept.len() < FINDINGS_MAX {
            self.kept.push(Finding { kind, object: object.into(), detail: detail.into() });
        }
    }

    /// Something odd that is no damage.
    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(text);
        }
    }
}

/// Whether an error says that stored data cannot be had, and not that the store could not be asked.
/// What a newer version has written is not among it: it is whole, and who cannot read it can say
/// nothing of it, and must not put anything in its place. That ends a check.
fn is_damage(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
}

/// Looks again at what seems damaged, from the start: one bad answer is no damage.
async fn twice<T, F: Future<Output = Result<T>>>(look: impl Fn() -> F) -> Result<T> {
    match look().await {
        Err(e) if is_damage(&e) => look().await,
        seen => seen,
    }
}

/// A check under way. See the module.
#[derive(Debug)]
pub struct Check {
    repo: Arc<Repository>,
    limits: ReadLimits,
    inventory: Inventory,
    refs: Refs,
    damage: Damage,
    findings: Findings,
    /// Packs whose header, directory or trailer is bad. What maps refer to in them is looked at one
    /// by one; what else segments may lead to nobody can tell.
    bad_frames: BTreeSet<PackId>,
    /// Packs that are gone and something refers to: their stubs are still to be looked up.
    gone: BTreeSet<PackId>,
    /// Packs that are gone and have a stub that leads somewhere.
    rewritten: BTreeSet<PackId>,
    /// Packs that are gone, and what is referred to in them is lost, all of it or in part.
    lost: BTreeSet<PackId>,
    /// Packs that something refers to and whose directories are unreadable or do not list it.
    unreadable_directories: BTreeSet<PackId>,
    /// Places in stubs changed since the pack was checked.
    again: HashSet<PackId>,
    /// Packs that were bad at a first look only: nobody knows what the next one gives.
    unsteady: BTreeSet<PackId>,
    /// Keys of the records of damage that there were before anything was read.
    recorded_before: HashSet<String>,
    pages: u64,
    /// Backups have attachments, and the repository has not got that feature.
    lacks_attachments: bool,
}

impl Check {
    /// Lists everything, opens every small record and every segment, and walks all maps. The caller
    /// holds a lease, see [`Reader::begin_for_all`](crate::Reader::begin_for_all).
    ///
    /// What is damaged becomes a finding; an error is that the store, or the caller's rights, do
    /// not allow to find out.
    pub async fn begin(repo: &Arc<Repository>, limits: ReadLimits) -> Result<Self> {
        let mut findings = Findings::default();
        let inventory = Inventory::take(repo, &mut findings).await?;
        let mut check = Self {
            repo: Arc::clone(repo),
            limits,
            refs: Refs::new(repo.params().entry_chunks, repo.params().chunk.bytes()),
            inventory,
            damage: Damage::default(),
            findings,
            gone: BTreeSet::new(),
            rewritten: BTreeSet::new(),
            lost: BTreeSet::new(),
            unreadable_directories: BTreeSet::new(),
            bad_frames: BTreeSet::new(),
            again: HashSet::new(),
            unsteady: BTreeSet::new(),
            recorded_before: HashSet::new(),
            pages: 0,
            lacks_attachments: false,
        };
        let records = check.inventory.damage_records.iter();
        check.recorded_before = records.map(|record| record.key.clone()).collect();
        check.mark().await?;
        check.look_for_features().await?;
        let absent = |pack: &&PackId| !check.inventory.packs.contains_key(*pack);
        check.gone = check.refs.packs().filter(absent).copied().collect();
        check.follow_stubs().await?;
        Ok(check)
    }

    /// Packs in the store with their sizes: those that something refers to, and those that `also`
    /// says.
    pub fn packs(&self, also: impl Fn(&PackId) -> bool) -> Vec<(PackId, u64)> {
        let stored = self.inventory.packs.iter().map(|(pack, size)| (*pack, *size));
        let mut packs: Vec<_> = stored.filter(|(p, _)| self.refs.has(p) || also(p)).collect();
        packs.sort_unstable();
        packs
    }

    /// Takes the reports of all packs over.
    pub fn absorb(&mut self, reports: Vec<PackReport>) {
        for report in reports {
            self.absorb_one(report);
        }
    }

    /// What the reports lead to: packs that were gone are looked for, those with unreadable
    /// directories are read by the references. Gives packs that have to be checked (again), with
    /// their sizes; to be repeated until there are none.
    pub async fn settle(&mut self) -> Result<Vec<(PackId, u64)>> {
        self.follow_stubs().await?;
        let again: Vec<PackId> = self.again.drain().collect();
        let sized = |pack: PackId| Some((pack, *self.inventory.packs.get(&pack)?));
        let todo: Vec<_> = again.into_iter().filter_map(sized).collect();
        if todo.is_empty() {
            self.check_behind_stubs().await?;
            self.read_by_references().await?;
            self.carry_back().await?;
        }
        Ok(todo)
    }

    /// What was looked at.
    pub fn figures(&self) -> CheckFigures {
        let i = &self.inventory;
        CheckFigures {
            backups: i.backups.len() as u64,
            packs: i.packs.len() as u64,
            pack_bytes: i.packs.values().sum(),
            chunks: self.refs.chunks(),
            pages: self.pages,
            segments: i.segments,
            stubs: i.stubs.len() as u64,
            records: i.records,
            mark_bytes: self.refs.memory_bytes(),
        }
    }

    /// What was found, and how much; some thousand findings are kept.
    pub fn findings(&self) -> (&[Finding], u64) {
        (&self.findings.kept, self.findings.count)
    }

    /// What is odd and no damage.
    pub fn notes(&self) -> &[String] {
        &self.findings.notes
    }

    /// The backups that were looked at.
    pub fn backups(&self) -> &[Manifest] {
        &self.inventory.backups
    }

    /// Forgets what was found in the structure, and finds it anew: after a repair, which makes more
    /// of it readable. Keeps what the reading of data has found.
    pub async fn again(&mut self) -> Result<()> {
        let mut next = Self::begin(&self.repo, self.limits).await?;
        let (damage, findings) =
            (std::mem::take(&mut self.damage), std::mem::take(&mut self.findings));
        let packs = &next.inventory.packs;
        next.damage.inherit(damage, |pack| packs.contains_key(pack));
        for finding in findings.kept {
            if finding.kind == FindingKind::Pack && !next.findings.kept.contains(&finding) {
                next.findings.add(finding.kind, finding.object, finding.detail);
            }
        }
        next.unsteady = std::mem::take(&mut self.unsteady);
        next.recorded_before = std::mem::take(&mut self.recorded_before);
        *self = next;
        Ok(())
    }

    /// An entry of a pack is bad. Said once.
    fn lose_entry(&mut self, pack: PackId, entry: u32, why: &Error) {
        if self.damage.entries.contains(&pack, entry) {
            return;
        }
        self.damage.entries.insert(pack, Some(entry));
        // a page that the mark could not read was named by then
        if !self.damage.pages.contains(&(pack, entry)) {
            self.findings.add(FindingKind::Pack, pack_key(&pack), format!("entry {entry}: {why}"));
        }
    }
}
