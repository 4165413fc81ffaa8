//! What there is in a repository: manifests, packs, segments, stubs. Every record is opened; what
//! does not open is a finding.

use super::{FindingKind, Findings, is_damage, twice};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::corrupt;
use crate::format::damaged::Damaged;
use crate::format::feature::{Feature, FeatureName};
use crate::format::forgotten::Forgotten;
use crate::format::gc::{Blockers, Condemned, Verdict};
use crate::format::key::read_key_info;
use crate::format::lease::Lease;
use crate::format::manifest::{Manifest, ManifestRecord};
use crate::format::names::{
    AttemptName, BACKUPS_PREFIX, DAMAGED_PREFIX, FEATURES_PREFIX, FORGOTTEN_PREFIX, GC_PREFIX,
    GcObject, KEYS_PREFIX, LEASES_PREFIX, README_KEY, STUBS_PREFIX, parse_damaged_key,
    parse_forgotten_key, parse_gc_key, parse_key_key, parse_lease_key, parse_manifest_key,
    parse_stub_key, segment_key,
};
use crate::format::stub::Stub;
use crate::ids::PackId;
use crate::limits::{GC_BYTES_MAX, LEASE_BYTES_MAX, SMALL_RECORD_BYTES_MAX};
use crate::repository::condemned::{DamageRecord, DamagedSet};
use crate::repository::{BaseProblem, RECORD_OVERHEAD, Repository, SegmentInfo, keep_highest};
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Small records read at a time.
const IN_FLIGHT: usize = 16;
/// Lists and stubs of collections, each of which may be large, read at a time.
const LARGE_IN_FLIGHT: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// That count, with readable manifests.
    pub(super) backups: Vec<Manifest>,
    /// Attempts in whose place another one of the same backup stands.
    pub(super) superseded: Vec<AttemptName>,
    /// That count, and whose manifests cannot be read.
    pub(super) unreadable: Vec<AttemptName>,
    /// With their sizes.
    pub(super) packs: HashMap<PackId, u64>,
    /// Packs that there is a stub of, readable or not.
    pub(super) stubs: HashSet<PackId>,
    pub(super) broken_stubs: HashSet<PackId>,
    /// Segments that can be read.
    pub(super) segments: u64,
    /// Keys of segments that cannot.
    pub(super) broken_segments: Vec<String>,
    /// Packs that readable segments name.
    pub(super) in_segments: HashSet<PackId>,
    /// What is recorded as damaged, and by which records.
    pub(super) recorded: DamagedSet,
    pub(super) damage_records: Vec<DamageRecord>,
    /// Other records that were opened.
    pub(super) records: u64,
}

impl Inventory {
    pub(super) async fn take(repo: &Arc<Repository>, findings: &mut Findings) -> Result<Self> {
        let mut inventory = Self::default();
        for BaseProblem { key, detail } in repo.check_base().await? {
            // the text for people is missed by no restore
            if key != README_KEY {
                findings.add(FindingKind::Record, key.to_owned(), detail);
            }
        }
        inventory.read_manifests(repo, findings).await?;
        // after the manifests: what they refer to was stored before them
        let packs = repo.list_packs(|key, e| foreign(findings, key, e)).await?;
        inventory.packs.extend(packs);
        inventory.read_segments(repo, findings).await?;
        inventory.read_records(repo, findings).await?;
        Ok(inventory)
    }

    async fn read_manifests(
        &mut self,
        repo: &Arc<Repository>,
        findings: &mut Findings,
    ) -> Result<()> {
        // in this order: an attempt is forgotten after the one in its place was committed
        let forgotten = repo.store().list(FORGOTTEN_PREFIX).await?;
        let attempts = repo.store().list(BACKUPS_PREFIX).await?;
        let forgotten: HashSet<AttemptName> =
            forgotten.iter().filter_map(|l| parse_forgotten_key(&l.key).ok()).collect();
        let mut names = Vec::new();
        for listed in attempts {
            match parse_manifest_key(&listed.key) {
                Ok(name) => names.push(name),
                Err(e) => foreign(findings, &listed.key, &e),
            }
        }
        names.retain(|name| !forgotten.contains(name));
        let mut records = stream::iter(names)
            .map(|name| async move {
                let record = match twice(|| repo.read_manifest(&name)).await {
                    // it was listed just now
                    Ok(None) => repo.read_manifest(&name).await,
                    seen => seen,
                };
                (name, record)
            })
            .buffered(IN_FLIGHT);
        while let Some((name, record)) = records.next().await {
            match record {
                Ok(Some(ManifestRecord::Backup(manifest))) => self.backups.push(*manifest),
                // a fence; or a collection has removed it, as it was forgotten
                Ok(Some(ManifestRecord::Fence { .. }) | None) => {}
                Err(e) if is_damage(&e) => {
                    findings.add(FindingKind::Manifest, name.manifest_key(), e.to_string());
                    self.unreadable.push(name);
                }
                Err(e) => return Err(e),
            }
        }
        drop(records);
        let replaced = keep_highest(&mut self.backups, |manifest| manifest.name());
        self.superseded = replaced.iter().map(Manifest::name).collect();
        // nothing is lost with one beside which another attempt can be read
        let alone = |name: &mut AttemptName| !self.backups.iter().any(|b| name.is_of(&b.name()));
        let beside: Vec<AttemptName> = {
            let mut unreadable = std::mem::take(&mut self.unreadable);
            self.unreadable = unreadable.extract_if(.., alone).collect();
            unreadable
        };
        self.superseded.extend(beside);
        for name in &self.superseded {
            findings.note(format!(
                "attempt {name} is left over, another one of that backup has taken its place: {}",
                Advice::Repair.words()
            ));
        }
        Ok(())
    }

    /// Leases, keys, records of collections, of forgotten backups and of damage; stubs.
    async fn read_records(
        &mut self,
        repo: &Arc<Repository>,
        findings: &mut Findings,
    ) -> Result<()> {
        let small = u64::from(SMALL_RECORD_BYTES_MAX) + RECORD_OVERHEAD;
        let large = u64::from(GC_BYTES_MAX) + RECORD_OVERHEAD;
        let (keys, id) = (Arc::clone(repo.keys()), *repo.id());
        // without its credential nobody can tell a newer one from a damaged one
        let unknown = |key: &str, e: Error| match e.kind() {
            ErrorKind::Unsupported => corrupt(key, e.to_string()),
            _ => e,
        };
        let open = |key: &str, bytes: &[u8]| {
            read_key_info(key, bytes).map(drop).map_err(|e| unknown(key, e))
        };
        self.open_all(repo, findings, KEYS_PREFIX, &parses(parse_key_key), small, open).await?;
        let open = |key: &str, bytes: &[u8]| Lease::decode(&keys, &id, key, bytes).map(drop);
        let bytes_max = u64::from(LEASE_BYTES_MAX) + RECORD_OVERHEAD;
        self.open_all(repo, findings, LEASES_PREFIX, &parses(parse_lease_key), bytes_max, open)
            .await?;
        let open = |key: &str, bytes: &[u8]| Forgotten::decode(&keys, &id, key, bytes).map(drop);
        let parse = parses(parse_forgotten_key);
        self.open_all(repo, findings, FORGOTTEN_PREFIX, &parse, small, open).await?;
        let parse = |key: &str| FeatureName::parse_key(key).map(drop);
        let open = |key: &str, bytes: &[u8]| Feature::decode(&keys, &id, key, bytes).map(drop);
        self.open_all(repo, findings, FEATURES_PREFIX, &parse, small, open).await?;
        let mut records = Vec::new();
        let open = |key: &str, bytes: &[u8]| {
            let entries = Damaged::decode(&keys, &id, key, bytes)?.entries;
            records.push(DamageRecord { key: key.to_owned(), entries });
            Ok(())
        };
        self.open_all(repo, findings, DAMAGED_PREFIX, &parses(parse_damaged_key), small, open)
            .await?;
        for (pack, entry) in records.iter().flat_map(|record| &record.entries) {
            self.recorded.insert(*pack, *entry);
        }
        self.damage_records = records;
        let open = |key: &str, bytes: &[u8]| match parse_gc_key(key)?.1 {
            GcObject::Condemned => Condemned::decode(&keys, &id, key, bytes).map(drop),
            GcObject::Blockers => Blockers::decode(&keys, &id, key, bytes).map(drop),
            GcObject::Verdict => Verdict::decode(&keys, &id, key, bytes).map(drop),
        };
        self.open_all(repo, findings, GC_PREFIX, &parses(parse_gc_key), large, open).await?;
        self.read_stubs(repo, findings, large).await
    }

    async fn read_stubs(
        &mut self,
        repo: &Arc<Repository>,
        findings: &mut Findings,
        bytes_max: u64,
    ) -> Result<()> {
        let mut broken = HashSet::new();
        let mut stubs = HashSet::new();
        let open = |key: &str, bytes: &[u8]| {
            let pack = parse_stub_key(key)?;
            stubs.insert(pack);
            let stub = Stub::decode(repo.keys(), repo.id(), key, bytes);
            if stub.is_err() {
                broken.insert(pack);
            } else {
                // at the second look
                broken.remove(&pack);
            }
            stub.map(drop)
        };
        let before = self.records;
        self.open_all(repo, findings, STUBS_PREFIX, &parses(parse_stub_key), bytes_max, open)
            .await?;
        self.records = before;
        (self.stubs, self.broken_stubs) = (stubs, broken);
        Ok(())
    }

    /// Opens all objects of a kind. What went away meanwhile is nobody's loss: nothing else than a
    /// collection or its owner removes such objects.
    async fn open_all(
        &mut self,
        repo: &Arc<Repository>,
        findings: &mut Findings,
        prefix: &str,
        parse: &(dyn Fn(&str) -> Result<()> + Sync),
        bytes_max: u64,
        mut open: impl FnMut(&str, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let large = bytes_max > u64::from(SMALL_RECORD_BYTES_MAX) + RECORD_OVERHEAD;
        let kind = if prefix == STUBS_PREFIX { FindingKind::Stub } else { FindingKind::Record };
        let mut keys = Vec::new();
        for listed in repo.store().list(prefix).await? {
            match parse(&listed.key) {
                Ok(()) => keys.push(listed.key),
                Err(e) => foreign(findings, &listed.key, &e),
            }
        }
        let mut objects = stream::iter(keys)
            .map(|key| async move {
                let bytes = repo.store().get_opt_at_most(&key, bytes_max).await;
                (key, bytes)
            })
            .buffered(if large { LARGE_IN_FLIGHT } else { IN_FLIGHT });
        // one that is too long to be read is broken as one is that does not open
        let mut opened = |key: &str, bytes: Result<Option<Bytes>>| match bytes {
            Ok(None) => Ok(false),
            Ok(Some(bytes)) => open(key, &bytes).map(|()| true),
            Err(e) if is_damage(&e) => open(key, &Bytes::new()).and(Err(e)),
            Err(e) => Err(e),
        };
        while let Some((key, bytes)) = objects.next().await {
            let seen = match opened(&key, bytes) {
                Err(e) if is_damage(&e) => {
                    opened(&key, repo.store().get_opt_at_most(&key, bytes_max).await)
                }
                seen => seen,
            };
            match seen {
                Ok(there) => self.records += u64::from(there),
                Err(e) if is_damage(&e) => {
                    findings.add(kind, key, e.to_string());
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn read_segments(
        &mut self,
        repo: &Arc<Repository>,
        findings: &mut Findings,
    ) -> Result<()> {
        let listed = repo.list_segments(|key, e| foreign(findings, key, e)).await?;
        for SegmentInfo { id, size_bytes } in listed {
            match twice(|| super::repair::read_segment(repo, &id, size_bytes)).await {
                Ok(Some(packs)) => {
                    self.segments += 1;
                    self.in_segments.extend(packs);
                }
                // a collection has replaced it
                Ok(None) => {}
                Err(e) if is_damage(&e) => {
                    let key = segment_key(&id);
                    findings.add(FindingKind::Segment, key.as_str(), e.to_string());
                    self.broken_segments.push(key);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn parses<T>(parse: impl Fn(&str) -> Result<T>) -> impl Fn(&str) -> Result<()> {
    move |key| parse(key).map(drop)
}

/// An object whose name is not one of ours: no damage, but nobody will ever look at it or remove
/// it.
fn foreign(findings: &mut Findings, key: &str, e: &Error) {
    findings.note(format!("{key} is no object of this repository: {e}"));
}
