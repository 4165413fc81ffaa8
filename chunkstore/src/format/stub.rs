//! Forwarding stubs: where the live chunks or pages of a rewritten pack went. `docs/format.md`,
//! section 10.

use super::fields::{Fields, PutFields};
use super::location::check_location;
use super::names::parse_stub_key;
use super::record::{RecordKind, metadata_record};
use super::{bug, corrupt};
use crate::error::Result;
use crate::ids::PackId;
use crate::limits::{ENTRY_CHUNKS_MAX, GC_BYTES_MAX, MAGIC_STUB, PACK_ENTRIES_MAX};
use crate::units::Location;

/// Old entry number and index in it.
pub type OldPlace = (u32, u16);

const RELOCATION_BYTES: usize = 24;

/// The relocations of one pack: in a condemned list until the verdict, an object of its own after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    pack: PackId,
    relocations: Vec<(OldPlace, Location)>,
}

impl Stub {
    /// Of `pack`, in any order. One old place with two new ones is a mistake of the caller.
    pub fn new(pack: PackId, mut relocations: Vec<(OldPlace, Location)>) -> Result<Self> {
        relocations.sort_unstable_by_key(|(old, _)| *old);
        if relocations.windows(2).any(|w| w[0].0 == w[1].0) {
            return Err(bug(format!("stub of pack {pack}"), "a chunk went to two places"));
        }
        Ok(Self { pack, relocations })
    }

    /// The pack that is gone.
    pub fn pack(&self) -> &PackId {
        &self.pack
    }

    /// Ascending by old place.
    pub fn relocations(&self) -> &[(OldPlace, Location)] {
        &self.relocations
    }

    /// Where chunk `index` of `entry` is now. `None`: it was not live when the pack was rewritten.
    pub fn find(&self, entry: u32, index: u16) -> Option<&Location> {
        let at = self.relocations.binary_search_by_key(&(entry, index), |(old, _)| *old).ok()?;
        Some(&self.relocations[at].1)
    }

    const KIND: RecordKind = RecordKind {
        name: "forwarding stub",
        magic: MAGIC_STUB,
        body_bytes_max: GC_BYTES_MAX,
        clear: false,
    };

    fn to_body(&self, object_key: &str) -> Result<Vec<u8>> {
        if parse_stub_key(object_key).ok() != Some(self.pack) {
            return Err(bug(object_key, "a stub of another key"));
        }
        let mut out = Vec::new();
        self.write(&mut out)?;
        Ok(out)
    }

    fn from_body(object_key: &str, body: &[u8]) -> Result<Self> {
        let what = format!("forwarding stub {object_key}");
        let pack = parse_stub_key(object_key)?;
        let mut fields = Fields::new(body, &what);
        let stub = Self::read(&what, &mut fields)?;
        fields.finish()?;
        if stub.pack == pack {
            return Ok(stub);
        }
        Err(corrupt(&what, "it is of another pack than its object key says"))
    }

    /// Appends the body of a stub: alone, and inside a condemned list.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        let what = || format!("stub of pack {}", self.pack);
        let too_many = |_| bug(what(), "too many relocations");
        let mut targets: Vec<PackId> = self.relocations.iter().map(|(_, to)| to.pack).collect();
        targets.sort_unstable();
        targets.dedup();
        out.put(self.pack.as_bytes());
        out.put_u32(u32::try_from(targets.len()).map_err(too_many)?);
        targets.iter().for_each(|pack| out.put(pack.as_bytes()));
        out.put_u32(u32::try_from(self.relocations.len()).map_err(too_many)?);
        out.reserve(self.relocations.len() * RELOCATION_BYTES);
        for ((entry, index), to) in &self.relocations {
            check_location(&what(), to).map_err(|e| bug(what(), "a location").caused_by(e))?;
            let target = targets.partition_point(|pack| *pack < to.pack);
            out.put_u32(*entry);
            out.put_u16(*index);
            out.put_u32(u32::try_from(target).map_err(too_many)?);
            out.put_u32(to.entry);
            out.put_u32(to.offset);
            out.put_u32(to.stored_len);
            out.put_u16(to.index);
        }
        Ok(())
    }

    /// Reads what [`Self::write`] wrote; refuses any other order.
    pub(super) fn read(what: &str, fields: &mut Fields<'_, '_>) -> Result<Self> {
        let pack = PackId::from_bytes(fields.array()?);
        let target_count = fields.count(PackId::LEN)?;
        let mut targets = Vec::with_capacity(target_count);
        for _ in 0..target_count {
            targets.push(PackId::from_bytes(fields.array()?));
        }
        if !targets.is_sorted_by(|a, b| a < b) {
            return Err(corrupt(what, "its packs are not ascending"));
        }
        let count = fields.count(RELOCATION_BYTES)?;
        let mut relocations: Vec<(OldPlace, Location)> = Vec::with_capacity(count);
        let mut used = vec![false; targets.len()];
        for _ in 0..count {
            let old = (fields.u32()?, fields.u16()?);
            let target = fields.u32()? as usize;
            let pack = *targets
                .get(target)
                .ok_or_else(|| corrupt(what, "it names a pack that it does not list"))?;
            used[target] = true;
            let location = Location {
                pack,
                entry: fields.u32()?,
                offset: fields.u32()?,
                stored_len: fields.u32()?,
                index: fields.u16()?,
            };
            check_location(what, &location)?;
            let follows = relocations.last().is_none_or(|(last, _)| *last < old);
            if !follows || old.0 >= PACK_ENTRIES_MAX || old.1 >= ENTRY_CHUNKS_MAX {
                return Err(corrupt(what, "its relocations are not ascending or not possible"));
            }
            relocations.push((old, location));
        }
        if used.contains(&false) {
            return Err(corrupt(what, "it lists a pack without using it"));
        }
        Ok(Self { pack, relocations })
    }
}

metadata_record!(Stub);

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::format::names::stub_key;
    use crate::format::test_kit::{REPOSITORY, exercise, flips_are_refused_or_canonical};
    use proptest::prelude::*;

    pub(in crate::format) fn location(pack: u8, entry: u32, index: u16) -> Location {
        let pack = PackId::from_bytes([pack; 32]);
        Location { pack, entry, offset: 64 + entry, stored_len: 100, index }
    }

    pub(in crate::format) fn stub(pack: u8) -> Stub {
        let relocations = vec![
            ((9, 0), location(2, 1, 1)),
            ((0, 3), location(7, 0, 0)),
            ((0, 1), location(2, 1, 0)),
        ];
        Stub::new(PackId::from_bytes([pack; 32]), relocations).unwrap()
    }

    #[test]
    fn stubs_round_trip_and_damage_is_found() {
        let key = stub_key(stub(1).pack());
        exercise(&stub(1), &key, |keys| stub(1).encode(keys, &REPOSITORY, &key), Stub::decode);
    }

    #[test]
    fn old_places_are_found() {
        assert_eq!(stub(1).find(9, 0), Some(&location(2, 1, 1)));
        assert_eq!(stub(1).find(0, 1), Some(&location(2, 1, 0)));
        assert_eq!(stub(1).find(0, 3), Some(&location(7, 0, 0)));
        assert_eq!(stub(1).find(0, 0), None);
        assert_eq!(stub(1).find(10, 0), None);
        let twice = vec![((1, 1), location(2, 1, 1)), ((1, 1), location(3, 1, 1))];
        assert!(Stub::new(PackId::from_bytes([1; 32]), twice).is_err());
    }

    #[test]
    fn there_is_one_encoding_of_each_stub() {
        let key = stub_key(stub(1).pack());
        let body = stub(1).to_body(&key).unwrap();
        assert_eq!(body.len(), 32 + 4 + 64 + 4 + 3 * RELOCATION_BYTES);
        flips_are_refused_or_canonical(
            &body,
            |bytes| Stub::from_body(&key, bytes),
            |stub| stub.to_body(&key),
        );
    }

    #[test]
    fn counts_beyond_the_bytes_are_refused() {
        let key = stub_key(stub(1).pack());
        let endless = [&[1; 32][..], &u32::MAX.to_le_bytes(), &[0; 64]].concat();
        assert!(Stub::from_body(&key, &endless).is_err());
        let endless = [&[1; 32][..], &[0; 4], &u32::MAX.to_le_bytes(), &[0; 64]].concat();
        assert!(Stub::from_body(&key, &endless).is_err());
    }

    proptest! {
        #[test]
        fn stubs_of_any_kind_round_trip(
            places in proptest::collection::btree_map(
                (0u32..50, 0u16..1024), (0u8..5, 0u32..50, 0u16..1024), 0..100),
        ) {
            let relocations =
                places.into_iter().map(|(old, (p, e, i))| (old, location(p, e, i))).rev().collect();
            let stub = Stub::new(PackId::from_bytes([1; 32]), relocations).unwrap();
            let key = stub_key(stub.pack());
            let body = stub.to_body(&key).unwrap();
            prop_assert_eq!(Stub::from_body(&key, &body).unwrap(), stub);
        }
    }
}
