//! Leases: who is at work, and how far. `docs/format.md`, section 12.
//!
//! The only objects that are replaced, by their owner alone. Whether a lease is alive is not in it:
//! that is the age of the object by the store's own clock.

use super::json::{self, Head, RefBody, int63};
use super::manifest::{ParentBody, ParentRef};
use super::names::{AttemptName, parse_lease_key};
use super::record::{RecordKind, metadata_record};
use super::{bug, corrupt};
use crate::error::Result;
use crate::ids::{GenerationId, LeaseId, PackId, PlanDigest, VolumeName};
use crate::limits::{LEASE_BYTES_MAX, MAGIC_LEASE, MAP_DEPTH_MAX};
use crate::units::{ChunkNo, PageRef};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

const TYPE: &str = "lease";

/// Who is at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Names it.
    pub lease_id: LeaseId,
    /// At what.
    pub role: LeaseRole,
    /// Since when.
    pub started: DateTime<Utc>,
    /// Grows with every heartbeat.
    pub beat: u64,
    /// The owner counts as dead when the object is older.
    pub lease_seconds: u32,
    /// Program and version.
    pub tool: String,
    /// Where it runs.
    pub host: String,
    /// How far a writer is.
    pub checkpoint: Option<Checkpoint>,
}

/// What the owner of a lease does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseRole {
    /// Makes a backup.
    Writer {
        /// The manifest it will create.
        name: AttemptName,
        /// The backup it inherits from.
        parent: Option<ParentRef>,
    },
    /// Reads a backup.
    Reader {
        /// The backup.
        name: AttemptName,
    },
    /// Collects garbage.
    Collector {
        /// Its generation.
        generation: GenerationId,
    },
}

impl LeaseRole {
    /// As in the lease.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Writer { .. } => "writer",
            Self::Reader { .. } => "reader",
            Self::Collector { .. } => "collector",
        }
    }
}

/// How far a writer is: everything before is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// All chunks below it are stored.
    pub next_chunk: ChunkNo,
    /// The finished subtrees to the left of it, left to right.
    pub frontier: Vec<FrontierPage>,
    /// Packs that the subtrees refer to, those of the parent apart, and perhaps more that the run
    /// stored; [`CHECKPOINT_PACKS_MAX`] at most. A list of that length counts as incomplete.
    ///
    /// [`CHECKPOINT_PACKS_MAX`]: crate::limits::CHECKPOINT_PACKS_MAX
    pub packs: Vec<PackId>,
    /// What the run was asked to make. A run that is asked for something else must not go on from
    /// here; nor may any run from a checkpoint that does not say.
    pub plan: Option<PlanDigest>,
    /// When.
    pub time: DateTime<Utc>,
}

/// A finished subtree of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontierPage {
    /// Level of its root.
    pub level: u8,
    /// Number of its root in that level.
    pub page: u64,
    /// Its root; `None`: all Zero.
    pub root: Option<PageRef>,
}

/// One body for all roles: what a role has no use for is absent.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    lease_id: LeaseId,
    role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backup_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(default)]
    parent: Option<ParentBody>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<GenerationId>,
    started: DateTime<Utc>,
    #[serde(deserialize_with = "int63")]
    beat: u64,
    lease_seconds: u32,
    tool: String,
    host: String,
    checkpoint: Option<CheckpointBody>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CheckpointBody {
    #[serde(deserialize_with = "int63")]
    next_chunk: u64,
    frontier: Vec<FrontierBody>,
    packs: Vec<PackId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plan: Option<PlanDigest>,
    time: DateTime<Utc>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FrontierBody {
    level: u8,
    #[serde(deserialize_with = "int63")]
    page: u64,
    #[serde(rename = "ref")]
    root: Option<RefBody>,
}

impl Checkpoint {
    fn body(&self) -> CheckpointBody {
        let frontier = self.frontier.iter().map(|f| FrontierBody {
            level: f.level,
            page: f.page,
            root: f.root.as_ref().map(RefBody::of),
        });
        CheckpointBody {
            next_chunk: self.next_chunk.0,
            frontier: frontier.collect(),
            packs: self.packs.clone(),
            plan: self.plan,
            time: self.time,
        }
    }
}

impl CheckpointBody {
    fn checkpoint(self, what: &str) -> Result<Checkpoint> {
        let frontier = self.frontier.into_iter().map(|f| {
            if f.level >= MAP_DEPTH_MAX {
                return Err(corrupt(what, format!("a map has no level {}", f.level)));
            }
            let root = f.root.map(|r| r.page_ref(what)).transpose()?;
            Ok(FrontierPage { level: f.level, page: f.page, root })
        });
        Ok(Checkpoint {
            next_chunk: ChunkNo(self.next_chunk),
            frontier: frontier.collect::<Result<_>>()?,
            packs: self.packs,
            plan: self.plan,
            time: self.time,
        })
    }
}

/// The attempt that a body names.
fn attempt_name(what: &str, body: &Body) -> Result<AttemptName> {
    let (Some(volume), Some(backup_id), Some(attempt)) =
        (&body.volume, &body.backup_id, body.attempt)
    else {
        return Err(corrupt(what, "it does not name a backup"));
    };
    Ok(AttemptName {
        volume: VolumeName::new(volume.as_str())
            .map_err(|_| corrupt(what, format!("{volume:?} is not a volume name")))?,
        backup_id: json::backup_id(what, backup_id)?,
        attempt,
    })
}

impl Lease {
    const KIND: RecordKind = RecordKind {
        name: "lease",
        magic: MAGIC_LEASE,
        body_bytes_max: LEASE_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        if parse_lease_key(object_key).ok() != Some(self.lease_id) {
            return Err(bug(object_key, "a lease of another key"));
        }
        let (name, parent, generation) = match &self.role {
            LeaseRole::Writer { name, parent } => (Some(name), parent.as_ref(), None),
            LeaseRole::Reader { name } => (Some(name), None, None),
            LeaseRole::Collector { generation } => (None, None, Some(*generation)),
        };
        let body = Body {
            lease_id: self.lease_id,
            role: self.role.as_str().into(),
            volume: name.map(|n| n.volume.as_str().into()),
            backup_id: name.map(|n| n.backup_id.as_str().into()),
            attempt: name.map(|n| n.attempt),
            parent: parent.map(ParentRef::to_body),
            generation,
            started: self.started,
            beat: self.beat,
            lease_seconds: self.lease_seconds,
            tool: self.tool.clone(),
            host: self.host.clone(),
            checkpoint: self.checkpoint.as_ref().map(Checkpoint::body),
        };
        json::write(object_key, TYPE, &body)
    }

    fn from_body(object_key: &str, json: &[u8]) -> Result<Self> {
        let what = format!("lease {object_key}");
        let lease_id = parse_lease_key(object_key)?;
        Head::expect(&what, json, TYPE)?;
        let body: Body = json::parse(&what, json)?;
        if body.lease_id != lease_id {
            return Err(corrupt(&what, "it is another lease than its object key says"));
        }
        let role = match body.role.as_str() {
            "writer" => LeaseRole::Writer {
                name: attempt_name(&what, &body)?,
                parent: body.parent.as_ref().map(|p| p.parent_ref(&what)).transpose()?,
            },
            "reader" => LeaseRole::Reader { name: attempt_name(&what, &body)? },
            "collector" => LeaseRole::Collector {
                generation: body
                    .generation
                    .ok_or_else(|| corrupt(&what, "it does not name its generation"))?,
            },
            other => return Err(corrupt(&what, format!("its role is {other:?}"))),
        };
        Ok(Self {
            lease_id,
            role,
            started: body.started,
            beat: body.beat,
            lease_seconds: body.lease_seconds,
            tool: body.tool,
            host: body.host,
            checkpoint: body.checkpoint.map(|c| c.checkpoint(&what)).transpose()?,
        })
    }
}

metadata_record!(Lease);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::names::lease_key;
    use crate::format::test_kit::{REPOSITORY, both, exercise, time};
    use crate::ids::{BackupId, PageId};
    use crate::units::Location;

    fn writer() -> Lease {
        let name = AttemptName {
            volume: VolumeName::new("a/b").unwrap(),
            backup_id: BackupId::new("b1").unwrap(),
            attempt: 3,
        };
        let pack = PackId::from_bytes([3; 32]);
        let location = Location { pack, entry: 2, offset: 640, stored_len: 1000, index: 0 };
        let root = Some(PageRef { id: PageId::from_bytes([4; 32]), location });
        Lease {
            lease_id: LeaseId::from_bytes([8; 16]),
            role: LeaseRole::Writer {
                name,
                parent: Some(ParentRef { backup_id: BackupId::new("b0").unwrap(), attempt: 0 }),
            },
            started: time(1_700_000_000),
            beat: 17,
            lease_seconds: 300,
            tool: "mover 1".into(),
            host: "pod-1".into(),
            checkpoint: Some(Checkpoint {
                next_chunk: ChunkNo(1 << 30),
                frontier: vec![
                    FrontierPage { level: 2, page: 0, root },
                    FrontierPage { level: 0, page: 1 << 23, root: None },
                ],
                packs: vec![pack, PackId::from_bytes([4; 32])],
                plan: Some(PlanDigest::from_bytes([6; 32])),
                time: time(1_700_000_100),
            }),
        }
    }

    #[test]
    fn leases_of_all_roles_round_trip_and_damage_is_found() {
        let LeaseRole::Writer { name, .. } = writer().role else { panic!("a writer") };
        let generation = GenerationId::from_bytes([7; 16]);
        for role in [
            writer().role,
            LeaseRole::Writer { name: name.clone(), parent: None },
            LeaseRole::Reader { name },
            LeaseRole::Collector { generation },
        ] {
            let checkpoint = writer().checkpoint.filter(|_| role.as_str() == "writer");
            let lease = Lease { role, checkpoint, ..writer() };
            let key = lease_key(&lease.lease_id);
            exercise(&lease, &key, |keys| lease.encode(keys, &REPOSITORY, &key), Lease::decode);
        }
    }

    #[test]
    fn strange_bodies_are_refused() {
        let key = lease_key(&writer().lease_id);
        let json = String::from_utf8(writer().to_body(&key).unwrap()).unwrap();
        let with = |from: &str, to: &str| {
            assert!(json.contains(from), "{from} not in {json}");
            Lease::from_body(&key, json.replacen(from, to, 1).as_bytes()).is_ok()
        };
        assert!(with(r#""beat":17"#, r#""beat":17,"later":0"#));
        assert!(with(r#""plan":"06"#, r#""later":"06"#));
        assert!(!with(r#""plan":"06"#, r#""plan":"6"#));
        assert!(!with(r#""role":"writer""#, r#""role":"king""#));
        assert!(!with(r#""role":"writer""#, r#""role":"collector""#));
        assert!(!with(r#""volume":"a/b","#, ""));
        assert!(!with(r#""attempt":3,"#, ""));
        assert!(!with(r#""volume":"a/b""#, r#""volume":"""#));
        assert!(!with(r#""type":"lease""#, r#""type":"backup""#));
        assert!(!with(r#""level":2"#, r#""level":13"#));
        assert!(!with(r#""beat":17"#, r#""beat":-1"#));
        assert!(!with("0808", "0809"));
        let other = lease_key(&LeaseId::from_bytes([9; 16]));
        assert!(writer().to_body(&other).is_err());
        for (_, keys) in both() {
            assert!(writer().encode(&keys, &REPOSITORY, &other).is_err());
        }
    }
}
