//! What a garbage collection writes: condemned list, blockers, verdict. `docs/format.md`, section
//! 12.
//!
//! Lists are written ascending and without repetitions, whatever order the caller has them in, and
//! read only so: then two sweepers that decide the same write the same body.

use super::fields::{Fields, PutFields};
use super::names::{AttemptName, GcObject, parse_gc_key, parse_manifest_key};
use super::record::{RecordKind, metadata_record};
use super::stub::Stub;
use super::{bug, corrupt};
use crate::error::Result;
use crate::ids::{LeaseId, PackId};
use crate::limits::{GC_BYTES_MAX, MAGIC_BLOCKERS, MAGIC_CONDEMNED, MAGIC_VERDICT};

/// What a collection means to delete, or a fence in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condemned {
    /// This collection can never condemn anything.
    Fence,
    /// What it means to delete.
    List(CondemnedList),
}

/// What a collection means to delete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CondemnedList {
    /// Packs without anything live.
    pub dead: Vec<PackId>,
    /// Packs whose live parts were copied, and where to.
    pub rewritten: Vec<Stub>,
    /// The backups that counted as absent.
    pub forgotten: Vec<AttemptName>,
}

/// Leases that a collection must wait for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blockers {
    /// Ascending by lease when read.
    pub leases: Vec<Blocker>,
}

/// One lease to wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blocker {
    /// The lease.
    pub lease_id: LeaseId,
    /// Key of the manifest or of the condemned list that it may still create. `None`: a reader,
    /// which creates nothing.
    pub fence_key: Option<String>,
}

/// What was decided: permanent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Packs that die.
    pub dead: Vec<PackId>,
}

fn check_key(what: &str, object_key: &str, object: GcObject) -> Result<()> {
    match parse_gc_key(object_key)? {
        (_, found) if found == object => Ok(()),
        _ => Err(corrupt(what, "its object key is that of another object")),
    }
}

fn put_count(out: &mut Vec<u8>, what: &str, count: usize) -> Result<()> {
    out.put_u32(u32::try_from(count).map_err(|_| bug(what, "it is too long"))?);
    Ok(())
}

fn put_text(out: &mut Vec<u8>, what: &str, text: &str) -> Result<()> {
    out.put_u16(u16::try_from(text.len()).map_err(|_| bug(what, "a name is too long"))?);
    out.put(text.as_bytes());
    Ok(())
}

fn read_text<'a>(what: &str, fields: &mut Fields<'a, '_>) -> Result<&'a str> {
    let len = fields.u16()?;
    std::str::from_utf8(fields.take(usize::from(len))?)
        .map_err(|_| corrupt(what, "a name is not UTF-8"))
}

fn put_packs(out: &mut Vec<u8>, what: &str, packs: &[PackId]) -> Result<()> {
    let mut packs = packs.to_vec();
    packs.sort_unstable();
    packs.dedup();
    put_count(out, what, packs.len())?;
    packs.iter().for_each(|pack| out.put(pack.as_bytes()));
    Ok(())
}

fn read_packs(what: &str, fields: &mut Fields<'_, '_>) -> Result<Vec<PackId>> {
    let count = fields.count(PackId::LEN)?;
    let mut packs = Vec::with_capacity(count);
    for _ in 0..count {
        packs.push(PackId::from_bytes(fields.array()?));
    }
    ascending(what, &packs, |pack| pack)?;
    Ok(packs)
}

fn ascending<T, K: Ord + ?Sized>(what: &str, items: &[T], key: impl Fn(&T) -> &K) -> Result<()> {
    if items.is_sorted_by(|a, b| key(a) < key(b)) {
        return Ok(());
    }
    Err(corrupt(what, "a list in it is not ascending"))
}

const FENCE: u8 = 0;
const LIST: u8 = 1;

impl Condemned {
    const KIND: RecordKind = RecordKind {
        name: "condemned list",
        magic: MAGIC_CONDEMNED,
        body_bytes_max: GC_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        check_key(object_key, object_key, GcObject::Condemned)?;
        let CondemnedList { dead, rewritten, forgotten } = match self {
            Self::Fence => return Ok(vec![FENCE]),
            Self::List(list) => list,
        };
        let mut out = vec![LIST];
        put_packs(&mut out, object_key, dead)?;
        let mut stubs: Vec<&Stub> = rewritten.iter().collect();
        stubs.sort_unstable_by_key(|stub| *stub.pack());
        if stubs.windows(2).any(|w| w[0].pack() == w[1].pack()) {
            return Err(bug(object_key, "a pack was rewritten twice"));
        }
        put_count(&mut out, object_key, stubs.len())?;
        stubs.iter().try_for_each(|stub| stub.write(&mut out))?;
        let mut paths: Vec<String> = forgotten.iter().map(AttemptName::to_path).collect();
        paths.sort_unstable();
        paths.dedup();
        put_count(&mut out, object_key, paths.len())?;
        paths.iter().try_for_each(|path| put_text(&mut out, object_key, path))?;
        Ok(out)
    }

    fn from_body(object_key: &str, body: &[u8]) -> Result<Self> {
        let what = format!("condemned list {object_key}");
        check_key(&what, object_key, GcObject::Condemned)?;
        let mut fields = Fields::new(body, &what);
        match fields.u8()? {
            FENCE => {
                fields.finish()?;
                return Ok(Self::Fence);
            }
            LIST => (),
            other => return Err(corrupt(&what, format!("its kind is {other}"))),
        }
        let dead = read_packs(&what, &mut fields)?;
        let stub_count = fields.count(PackId::LEN + 8)?;
        let mut rewritten = Vec::with_capacity(stub_count);
        for _ in 0..stub_count {
            rewritten.push(Stub::read(&what, &mut fields)?);
        }
        ascending(&what, &rewritten, Stub::pack)?;
        let forgotten_count = fields.count(2)?;
        let mut paths = Vec::with_capacity(forgotten_count);
        for _ in 0..forgotten_count {
            paths.push(read_text(&what, &mut fields)?);
        }
        ascending(&what, &paths, |path| *path)?;
        fields.finish()?;
        let forgotten = paths.into_iter().map(AttemptName::from_path).collect::<Result<Vec<_>>>();
        let forgotten = forgotten.map_err(|e| e.within(format!("read {what}")))?;
        Ok(Self::List(CondemnedList { dead, rewritten, forgotten }))
    }
}

metadata_record!(Condemned);

/// What a blocker may create: nothing else may ever be fenced on its behalf.
fn is_fence_key(key: &str) -> bool {
    parse_manifest_key(key).is_ok()
        || parse_gc_key(key).is_ok_and(|(_, object)| object == GcObject::Condemned)
}

impl Blockers {
    const KIND: RecordKind = RecordKind {
        name: "blockers",
        magic: MAGIC_BLOCKERS,
        body_bytes_max: GC_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        check_key(object_key, object_key, GcObject::Blockers)?;
        let mut leases: Vec<&Blocker> = self.leases.iter().collect();
        leases.sort_unstable();
        leases.dedup();
        if leases.windows(2).any(|w| w[0].lease_id == w[1].lease_id) {
            return Err(bug(object_key, "a lease stands in it twice"));
        }
        let mut out = Vec::new();
        put_count(&mut out, object_key, leases.len())?;
        for Blocker { lease_id, fence_key } in leases {
            if fence_key.as_deref().is_some_and(|key| !is_fence_key(key)) {
                return Err(bug(object_key, "a key that cannot be fenced"));
            }
            out.put(lease_id.as_bytes());
            put_text(&mut out, object_key, fence_key.as_deref().unwrap_or(""))?;
        }
        Ok(out)
    }

    fn from_body(object_key: &str, body: &[u8]) -> Result<Self> {
        let what = format!("blockers {object_key}");
        check_key(&what, object_key, GcObject::Blockers)?;
        let mut fields = Fields::new(body, &what);
        let count = fields.count(LeaseId::LEN + 2)?;
        let mut leases = Vec::with_capacity(count);
        for _ in 0..count {
            let lease_id = LeaseId::from_bytes(fields.array()?);
            let key = read_text(&what, &mut fields)?;
            if !key.is_empty() && !is_fence_key(key) {
                return Err(corrupt(&what, format!("{key:?} is not a key that can be fenced")));
            }
            let fence_key = (!key.is_empty()).then(|| key.to_owned());
            leases.push(Blocker { lease_id, fence_key });
        }
        ascending(&what, &leases, |blocker| &blocker.lease_id)?;
        fields.finish()?;
        Ok(Self { leases })
    }
}

metadata_record!(Blockers);

impl Verdict {
    const KIND: RecordKind = RecordKind {
        name: "verdict",
        magic: MAGIC_VERDICT,
        body_bytes_max: GC_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        check_key(object_key, object_key, GcObject::Verdict)?;
        let mut out = Vec::with_capacity(4 + self.dead.len() * PackId::LEN);
        put_packs(&mut out, object_key, &self.dead)?;
        Ok(out)
    }

    fn from_body(object_key: &str, body: &[u8]) -> Result<Self> {
        let what = format!("verdict {object_key}");
        check_key(&what, object_key, GcObject::Verdict)?;
        let mut fields = Fields::new(body, &what);
        let dead = read_packs(&what, &mut fields)?;
        fields.finish()?;
        Ok(Self { dead })
    }
}

metadata_record!(Verdict);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::names::{blockers_key, condemned_key, verdict_key};
    use crate::format::stub::tests::stub;
    use crate::format::test_kit::{REPOSITORY, exercise, flips_are_refused_or_canonical};
    use crate::ids::{BackupId, GenerationId, VolumeName};

    const GENERATION: GenerationId = GenerationId::from_bytes([6; 16]);

    fn name(volume: &str, attempt: u32) -> AttemptName {
        AttemptName {
            volume: VolumeName::new(volume).unwrap(),
            backup_id: BackupId::new("b").unwrap(),
            attempt,
        }
    }

    fn pack(b: u8) -> PackId {
        PackId::from_bytes([b; 32])
    }

    fn list() -> CondemnedList {
        // by text, attempt 10 comes before attempt 2
        CondemnedList {
            dead: vec![pack(1), pack(2), pack(9)],
            rewritten: vec![stub(3), stub(4)],
            forgotten: vec![name("a", 10), name("a", 2), name("b/c", 0)],
        }
    }

    fn blockers() -> Blockers {
        let lease = |b| LeaseId::from_bytes([b; 16]);
        let keys = [Some(name("a", 1).manifest_key()), None, Some(condemned_key(&GENERATION))];
        let leases = keys.into_iter().zip(1..);
        Blockers {
            leases: leases
                .map(|(fence_key, b)| Blocker { lease_id: lease(b), fence_key })
                .collect(),
        }
    }

    #[test]
    fn all_round_trip_and_damage_is_found() {
        let key = condemned_key(&GENERATION);
        for value in
            [Condemned::Fence, Condemned::List(CondemnedList::default()), Condemned::List(list())]
        {
            exercise(&value, &key, |keys| value.encode(keys, &REPOSITORY, &key), Condemned::decode);
        }
        let key = blockers_key(&GENERATION);
        for value in [Blockers::default(), blockers()] {
            exercise(&value, &key, |keys| value.encode(keys, &REPOSITORY, &key), Blockers::decode);
        }
        let key = verdict_key(&GENERATION);
        for value in [Verdict::default(), Verdict { dead: list().dead }] {
            exercise(&value, &key, |keys| value.encode(keys, &REPOSITORY, &key), Verdict::decode);
        }
    }

    #[test]
    fn the_order_of_the_caller_does_not_matter() {
        let key = condemned_key(&GENERATION);
        let mut mixed = list();
        mixed.dead = vec![pack(9), pack(1), pack(2), pack(1)];
        mixed.rewritten.reverse();
        mixed.forgotten.reverse();
        let body = Condemned::List(mixed).to_body(&key).unwrap();
        assert_eq!(body, Condemned::List(list()).to_body(&key).unwrap());
        assert_eq!(Condemned::from_body(&key, &body).unwrap(), Condemned::List(list()));
        let twice = CondemnedList { rewritten: vec![stub(3), stub(3)], ..list() };
        assert!(Condemned::List(twice).to_body(&key).is_err());
    }

    #[test]
    fn there_is_one_encoding_of_each() {
        let key = condemned_key(&GENERATION);
        flips_are_refused_or_canonical(
            &Condemned::List(list()).to_body(&key).unwrap(),
            |bytes| Condemned::from_body(&key, bytes),
            |value| value.to_body(&key),
        );
        let key = blockers_key(&GENERATION);
        flips_are_refused_or_canonical(
            &blockers().to_body(&key).unwrap(),
            |bytes| Blockers::from_body(&key, bytes),
            |value| value.to_body(&key),
        );
        let key = verdict_key(&GENERATION);
        flips_are_refused_or_canonical(
            &Verdict { dead: list().dead }.to_body(&key).unwrap(),
            |bytes| Verdict::from_body(&key, bytes),
            |value| value.to_body(&key),
        );
    }

    #[test]
    fn only_manifests_and_condemned_lists_can_be_fenced() {
        let key = blockers_key(&GENERATION);
        let lease_id = LeaseId::from_bytes([1; 16]);
        for bad in ["format", "packs/aa", "gc/x/condemned", verdict_key(&GENERATION).as_str()] {
            let blocker = Blocker { lease_id, fence_key: Some(bad.into()) };
            assert!(Blockers { leases: vec![blocker] }.to_body(&key).is_err(), "{bad}");
            let mut body = vec![1, 0, 0, 0];
            body.put(lease_id.as_bytes());
            put_text(&mut body, "", bad).unwrap();
            assert!(Blockers::from_body(&key, &body).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_object_of_one_kind_is_not_one_of_another() {
        let verdict = Verdict { dead: vec![] };
        assert!(verdict.to_body(&condemned_key(&GENERATION)).is_err());
        assert!(Verdict::from_body(&blockers_key(&GENERATION), &[0; 4]).is_err());
        assert!(Condemned::from_body(&verdict_key(&GENERATION), &[0]).is_err());
        assert!(Condemned::from_body(&condemned_key(&GENERATION), &[2]).is_err());
        assert!(Condemned::from_body(&condemned_key(&GENERATION), &[0, 0]).is_err());
        assert!(Condemned::from_body(&condemned_key(&GENERATION), &[]).is_err());
        let endless = [&[1][..], &u32::MAX.to_le_bytes(), &[0; 64]].concat();
        assert!(Condemned::from_body(&condemned_key(&GENERATION), &endless).is_err());
    }
}
