//! Damage records: entries that were found damaged, so that writers store such chunks again.
//! `docs/format.md`, section 12.

use super::corrupt;
use super::json::{self, Head};
use super::names::parse_damaged_key;
use super::record::{RecordKind, metadata_record};
use crate::error::Result;
use crate::ids::PackId;
use crate::limits::{MAGIC_DAMAGED, PACK_ENTRIES_MAX, SMALL_RECORD_BYTES_MAX};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

const TYPE: &str = "damaged";

/// What was found damaged. A long list is written as several records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// When.
    pub time: DateTime<Utc>,
    /// Pack and entry number; `None`: the whole pack.
    pub entries: Vec<(PackId, Option<u32>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    time: DateTime<Utc>,
    entries: Vec<EntryBody>,
}

#[derive(Debug, Serialize, Deserialize)]
struct EntryBody {
    pack: PackId,
    entry: Option<u32>,
}

impl Damaged {
    /// Entries that surely fit in one record.
    pub const ENTRIES_MAX: usize = 8192;

    const KIND: RecordKind = RecordKind {
        name: "damage record",
        magic: MAGIC_DAMAGED,
        body_bytes_max: SMALL_RECORD_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        let entries =
            self.entries.iter().map(|(pack, entry)| EntryBody { pack: *pack, entry: *entry });
        json::write(object_key, TYPE, &Body { time: self.time, entries: entries.collect() })
    }

    fn from_body(object_key: &str, json: &[u8]) -> Result<Self> {
        let what = format!("damage record {object_key}");
        parse_damaged_key(object_key)?;
        Head::expect(&what, json, TYPE)?;
        let body: Body = json::parse(&what, json)?;
        if body.entries.iter().filter_map(|e| e.entry).any(|e| e >= PACK_ENTRIES_MAX) {
            return Err(corrupt(&what, "no pack has an entry of such a number"));
        }
        let entries = body.entries.into_iter().map(|e| (e.pack, e.entry)).collect();
        Ok(Self { time: body.time, entries })
    }
}

metadata_record!(Damaged);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::names::damaged_key;
    use crate::format::test_kit::{REPOSITORY, exercise, time};
    use crate::ids::DamageId;

    #[test]
    fn damage_records_round_trip_and_damage_is_found() {
        let key = damaged_key(&DamageId::from_bytes([1; 16]));
        let pack = PackId::from_bytes([2; 32]);
        let damaged = Damaged { time: time(1), entries: vec![(pack, None), (pack, Some(7))] };
        exercise(&damaged, &key, |keys| damaged.encode(keys, &REPOSITORY, &key), Damaged::decode);
    }

    #[test]
    fn the_longest_list_fits() {
        let key = damaged_key(&DamageId::from_bytes([1; 16]));
        let entry = (PackId::from_bytes([2; 32]), Some(PACK_ENTRIES_MAX - 1));
        let damaged = Damaged { time: time(1), entries: vec![entry; Damaged::ENTRIES_MAX] };
        let body = damaged.to_body(&key).unwrap();
        assert!(body.len() <= SMALL_RECORD_BYTES_MAX as usize, "{}", body.len());
        assert_eq!(Damaged::from_body(&key, &body).unwrap(), damaged);
        let beyond = Damaged { entries: vec![(entry.0, Some(PACK_ENTRIES_MAX))], ..damaged };
        assert!(Damaged::from_body(&key, &beyond.to_body(&key).unwrap()).is_err());
    }
}
