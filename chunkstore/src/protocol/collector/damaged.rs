//! Damage records that nobody needs any more.
//!
//! A record keeps writers from building on what it names. It may go when nobody can come to build
//! on that: its packs are gone, and of the entries in it nothing is live. A pack that is gone never
//! comes back, and one that is reached through a segment is looked up before it is relied upon; so
//! what is left is to inherit it from a backup.
//!
//! A first mark does not tell that. A writer that began before the record was written, and whose
//! parent is forgotten by now, may still commit a backup that refers to what is lost; the children
//! of that one need the record. So records go where packs do: after the second mark of a
//! generation. By then everybody who was at work when its list came to be has ended, and what they
//! committed was marked; and whoever began later builds on what was marked, or on backups of others
//! who began later.
//!
//! Records are read before that mark and packs are listed after it: a pack that a record names was
//! stored, or lost, before the record was written. A record goes as a whole, so one that went away
//! names nothing that counts. One that cannot be read stays.
//!
//! Where there is no other garbage, records alone make a generation: one whose list is empty.

use crate::error::Result;
use crate::ids::PackId;
use crate::map::LiveSet;
use crate::repository::Repository;
use crate::repository::condemned::DamageRecord;
use std::collections::HashSet;

/// Which of these records name nothing that counts: their keys.
pub(super) fn plan_outdated(
    records: &[DamageRecord],
    packs: &[(PackId, u64)],
    live: &LiveSet,
) -> Vec<String> {
    if records.is_empty() {
        return Vec::new();
    }
    let stored: HashSet<&PackId> = packs.iter().map(|(pack, _)| pack).collect();
    let counts = |(pack, entry): &(PackId, Option<u32>)| {
        let needed = match (live.pack(pack), entry) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(of_pack), Some(entry)) => of_pack.has_entry(*entry),
        };
        needed || stored.contains(pack)
    };
    let outdated = records.iter().filter(|record| !record.entries.iter().any(counts));
    outdated.map(|record| record.key.clone()).collect()
}

/// Deletes those of `records`, read before the second mark of a generation, that name nothing which
/// is `live` by it. Gives how many.
pub(super) async fn delete_outdated(
    repo: &Repository,
    records: &[DamageRecord],
    live: &LiveSet,
) -> Result<u64> {
    if records.is_empty() {
        return Ok(0);
    }
    let keys = plan_outdated(records, &repo.list_packs(|_, _| ()).await?, live);
    let count = keys.len() as u64;
    repo.store().delete_all(keys).await?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Location;

    fn pack(n: u8) -> PackId {
        PackId::from_bytes([n; 32])
    }

    #[test]
    fn a_record_goes_only_when_none_of_it_is_stored_or_live() {
        let mut live = LiveSet::new(16);
        // entry 3 of pack 1, which is stored; entry 2 of pack 5, which is gone, lost or moved
        for (n, entry) in [(1, 3), (5, 2)] {
            let (offset, index) = (64 + entry * 1000, 1);
            let at = Location { pack: pack(n), entry, offset, stored_len: 900, index };
            live.insert(&at).unwrap();
        }
        let packs = [(pack(1), 10), (pack(2), 10)];
        for (entries, goes) in [
            (vec![], true),
            // stored, live or not: a segment may lead there
            (vec![(pack(1), Some(3))], false),
            (vec![(pack(1), Some(4))], false),
            (vec![(pack(2), None)], false),
            (vec![(pack(4), None)], true),
            (vec![(pack(4), Some(7))], true),
            (vec![(pack(5), None)], false),
            (vec![(pack(5), Some(2))], false),
            (vec![(pack(5), Some(1))], true),
            (vec![(pack(5), Some(9))], true),
            (vec![(pack(4), None), (pack(5), Some(1))], true),
            (vec![(pack(4), None), (pack(5), Some(2))], false),
        ] {
            let record = DamageRecord { key: "k".into(), entries };
            let gone = plan_outdated(std::slice::from_ref(&record), &packs, &live);
            assert_eq!(gone == ["k"], goes, "{record:?}");
        }
    }
}
