//! Forgotten records: this backup no longer exists. `docs/format.md`, section 12.

use super::json::{self, Head};
use super::names::{AttemptName, parse_forgotten_key};
use super::record::{RecordKind, metadata_record};
use super::{bug, corrupt};
use crate::error::Result;
use crate::limits::{MAGIC_FORGOTTEN, SMALL_RECORD_BYTES_MAX};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

const TYPE: &str = "forgotten";

/// A manifest with such a record counts as absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// What no longer exists.
    pub name: AttemptName,
    /// Since when.
    pub time: DateTime<Utc>,
    /// Program that did it.
    pub tool: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    volume: String,
    backup_id: String,
    attempt: u32,
    time: DateTime<Utc>,
    tool: String,
}

impl Forgotten {
    const KIND: RecordKind = RecordKind {
        name: "forgotten record",
        magic: MAGIC_FORGOTTEN,
        body_bytes_max: SMALL_RECORD_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        if self.name.forgotten_key() != object_key {
            return Err(bug(object_key, "a forgotten record of another key"));
        }
        let body = Body {
            volume: self.name.volume.as_str().into(),
            backup_id: self.name.backup_id.as_str().into(),
            attempt: self.name.attempt,
            time: self.time,
            tool: self.tool.clone(),
        };
        json::write(object_key, TYPE, &body)
    }

    fn from_body(object_key: &str, json: &[u8]) -> Result<Self> {
        let what = format!("forgotten record {object_key}");
        let name = parse_forgotten_key(object_key)?;
        Head::expect(&what, json, TYPE)?;
        let body: Body = json::parse(&what, json)?;
        if (body.volume.as_str(), body.backup_id.as_str(), body.attempt)
            != (name.volume.as_str(), name.backup_id.as_str(), name.attempt)
        {
            return Err(corrupt(&what, "it is of another backup than its object key says"));
        }
        Ok(Self { name, time: body.time, tool: body.tool })
    }
}

metadata_record!(Forgotten);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::test_kit::{REPOSITORY, exercise, time};
    use crate::ids::{BackupId, VolumeName};

    fn forgotten() -> Forgotten {
        let name = AttemptName {
            volume: VolumeName::new("a/b").unwrap(),
            backup_id: BackupId::new("b1").unwrap(),
            attempt: 3,
        };
        Forgotten { name, time: time(1_700_000_000), tool: "mover 1".into() }
    }

    #[test]
    fn forgotten_records_round_trip_and_damage_is_found() {
        let key = forgotten().name.forgotten_key();
        exercise(
            &forgotten(),
            &key,
            |keys| forgotten().encode(keys, &REPOSITORY, &key),
            Forgotten::decode,
        );
    }

    #[test]
    fn a_record_of_another_backup_is_refused() {
        let key = forgotten().name.forgotten_key();
        let json = forgotten().to_body(&key).unwrap();
        assert!(Forgotten::from_body(&key, &json).is_ok());
        assert!(Forgotten::from_body("forgotten/a=2Fb/b1/4", &json).is_err());
        assert!(Forgotten::from_body("backups/a=2Fb/b1/3", &json).is_err());
        assert!(forgotten().to_body("forgotten/a=2Fb/b1/4").is_err());
    }
}
