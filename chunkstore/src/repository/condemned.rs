//! What writers must not build on: packs that a collection has condemned, and entries found
//! damaged.

use super::{RECORD_OVERHEAD, Repository};
use crate::error::{Error, ErrorKind, Result};
use crate::format::damaged::Damaged;
use crate::format::gc::{Condemned, CondemnedList};
use crate::format::names::{DAMAGED_PREFIX, GC_PREFIX, GcObject, parse_damaged_key, parse_gc_key};
use crate::ids::PackId;
use crate::limits::{GC_BYTES_MAX, SMALL_RECORD_BYTES_MAX};
use crate::units::Location;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};

/// Condemned lists read at a time: each may be large.
const LISTS_IN_FLIGHT: usize = 2;
/// Damage records read at a time.
const DAMAGED_IN_FLIGHT: usize = 16;

/// Packs in any condemned list that is in the store now: dead ones, and those whose live chunks are
/// being moved away.
///
/// A list that goes away while this reads was of a collection that has ended: what it condemned is
/// deleted or was rescued, and the look-up of every reused pack before the commit finds out which.
/// A list that cannot be read is an error: it may name anything.
pub(crate) async fn read_condemned(repo: &Repository) -> Result<HashSet<PackId>> {
    let listed = repo.store().list(GC_PREFIX).await?;
    let keys = listed
        .into_iter()
        .map(|l| l.key)
        .filter(|key| matches!(parse_gc_key(key), Ok((_, GcObject::Condemned))));
    let read = |key: String| async move {
        let bytes_max = u64::from(GC_BYTES_MAX) + RECORD_OVERHEAD;
        let open = |bytes: &Bytes| Condemned::decode(repo.keys(), repo.id(), &key, bytes);
        let list = repo.store().open_opt(&key, bytes_max, open).await;
        Ok::<_, Error>(match list.map_err(|e| unreadable_list(e, repo, &key))? {
            None | Some(Condemned::Fence) => Vec::new(),
            Some(Condemned::List(CondemnedList { mut dead, rewritten, .. })) => {
                dead.extend(rewritten.iter().map(|stub| *stub.pack()));
                dead
            }
        })
    };
    stream::iter(keys)
        .map(read)
        .buffer_unordered(LISTS_IN_FLIGHT)
        .try_fold(HashSet::new(), |mut all, packs| async move {
            all.extend(packs);
            Ok(all)
        })
        .await
}

/// A condemned list that says nothing any more. Once nobody is at work it protects nobody: what it
/// named is found again.
pub(crate) fn unreadable_list(e: Error, repo: &Repository, key: &str) -> Error {
    let damaged = e.kind() == ErrorKind::Corrupt;
    let e = e.within(format!("read {key} in {}", repo.store().url()));
    if !damaged {
        return e;
    }
    e.hint(format!(
        "it is not known what that collection has condemned: delete {key} once no backup, restore or collection is running, \
         and the next collection finds it again"
    ))
}

/// Entries found damaged: chunks in them are stored again when they are met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DamagedSet {
    /// `None`: the whole pack.
    packs: HashMap<PackId, Option<HashSet<u32>>>,
}

impl DamagedSet {
    /// Whether an entry is damaged.
    pub fn contains(&self, pack: &PackId, entry: u32) -> bool {
        self.says(pack, Some(entry))
    }

    /// Whether the entry at a location is damaged.
    pub fn covers(&self, at: &Location) -> bool {
        self.contains(&at.pack, at.entry)
    }

    /// Whether anything in a pack is damaged.
    pub fn names(&self, pack: &PackId) -> bool {
        self.packs.contains_key(pack)
    }

    /// Whether it says so of an entry, or with `None` of the whole pack.
    pub(crate) fn says(&self, pack: &PackId, entry: Option<u32>) -> bool {
        match (self.packs.get(pack), entry) {
            (None, _) | (Some(Some(_)), None) => false,
            (Some(None), _) => true,
            (Some(Some(entries)), Some(entry)) => entries.contains(&entry),
        }
    }

    /// Whether nothing is known to be damaged.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }

    /// Everything in it, in no certain order; `None` is the whole pack.
    pub fn iter(&self) -> impl Iterator<Item = (PackId, Option<u32>)> + '_ {
        self.packs.iter().flat_map(|(pack, entries)| {
            let whole = entries.is_none().then_some((*pack, None));
            let each = entries.iter().flatten().map(|entry| (*pack, Some(*entry)));
            whole.into_iter().chain(each)
        })
    }

    /// Adds an entry, or with `None` the whole pack.
    pub fn insert(&mut self, pack: PackId, entry: Option<u32>) {
        let entries = self.packs.entry(pack).or_insert_with(|| Some(HashSet::new()));
        match (entry, entries.as_mut()) {
            (None, _) => *entries = None,
            (Some(entry), Some(entries)) => {
                entries.insert(entry);
            }
            (Some(_), None) => {}
        }
    }
}

/// A damage record that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DamageRecord {
    pub(crate) key: String,
    /// Pack and entry number; `None`: the whole pack.
    pub(crate) entries: Vec<(PackId, Option<u32>)>,
}

/// All damage records. One that cannot be read is a warning: what it names is found damaged again
/// when it is read.
pub async fn read_damaged(repo: &Repository) -> Result<(DamagedSet, Vec<String>)> {
    let (records, warnings) = damage_records(repo).await?;
    let mut all = DamagedSet::default();
    let entries = records.into_iter().flat_map(|record| record.entries);
    entries.for_each(|(pack, entry)| all.insert(pack, entry));
    Ok((all, warnings))
}

/// The same, one by one. One that goes away meanwhile names nothing that anybody can come to rely
/// on (`collector/damaged.rs`).
pub(crate) async fn damage_records(repo: &Repository) -> Result<(Vec<DamageRecord>, Vec<String>)> {
    let listed = repo.store().list(DAMAGED_PREFIX).await?;
    let keys = listed.into_iter().map(|l| l.key).filter(|key| parse_damaged_key(key).is_ok());
    let read = |key: String| async move {
        let bytes_max = u64::from(SMALL_RECORD_BYTES_MAX) + RECORD_OVERHEAD;
        let open = |bytes: &Bytes| Damaged::decode(repo.keys(), repo.id(), &key, bytes);
        let record = repo.store().open_opt(&key, bytes_max, open).await?;
        Ok::<_, Error>(record.map(|Damaged { entries, .. }| DamageRecord { key, entries }))
    };
    let mut results = stream::iter(keys).map(read).buffer_unordered(DAMAGED_IN_FLIGHT);
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    while let Some(result) = results.next().await {
        match result {
            Ok(record) => all.extend(record),
            // one of a newer version is no such thing: what it names must not be built on
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                warnings.push(format!("a record of damaged entries was passed over: {e}"));
            }
            Err(e) => return Err(e),
        }
    }
    Ok((all, warnings))
}
