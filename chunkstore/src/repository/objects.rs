//! Putting packs, segments and damage records. All have random names, so writing one twice harms
//! nobody. And what a collection, a check and a repair must know of the objects of others.

use super::Repository;
use super::condemned::{DamagedSet, read_condemned, read_damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::format::damaged::Damaged;
use crate::format::names::{
    DEDUP_PREFIX, PACKS_PREFIX, damaged_key, parse_pack_key, parse_segment_key, segment_key,
    stub_key,
};
use crate::format::segment::{SegmentRecord, encode_segment};
use crate::format::stub::Stub;
use crate::ids::{DamageId, PackId, SegmentId, random_bytes};
use crate::limits::GC_BYTES_MAX;
use crate::pack::FinishedPack;
use crate::repository::RECORD_OVERHEAD;
use crate::store::Created;
use bytes::Bytes;
use chrono::Utc;
use object_store::PutPayload;
use std::collections::HashSet;

/// A listed dedup segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its name.
    pub id: SegmentId,
    /// Size of the object.
    pub size_bytes: u64,
}

/// What all packs of a repository come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackTotals {
    /// How many there are.
    pub packs: u64,
    /// Their sizes.
    pub bytes: u64,
}

impl Repository {
    /// How many packs there are, and their size, by one listing.
    pub async fn pack_totals(&self) -> Result<PackTotals> {
        let mut totals = PackTotals::default();
        for object in self.store.list(PACKS_PREFIX).await? {
            if parse_pack_key(&object.key).is_ok() {
                totals.packs += 1;
                totals.bytes += object.size_bytes;
            }
        }
        Ok(totals)
    }

    /// Stores a finished pack. Its parts are sent as they are, never copied together.
    pub async fn put_pack(&self, pack: &FinishedPack) -> Result<()> {
        let payload: PutPayload = pack.parts.iter().cloned().collect();
        self.store.put_in_turn(&pack.object_key(), payload).await
    }

    /// Stores a dedup segment of these records: at least one, and of packs that the caller has
    /// stored itself. Gives its id and its size in bytes.
    pub async fn put_segment(&self, mut records: Vec<SegmentRecord>) -> Result<(SegmentId, u64)> {
        let id = SegmentId::random();
        let seed = u64::from_le_bytes(random_bytes());
        let seal = self.keys.encryption();
        let bytes = encode_segment(&self.keys, seal, self.id(), &id, seed, &mut records)?;
        drop(records);
        let size_bytes = bytes.len() as u64;
        self.store.put_in_turn(&segment_key(&id), Bytes::from(bytes)).await?;
        Ok((id, size_bytes))
    }

    /// Records entries as damaged, so that writers store their chunks again. Gives the number of
    /// records.
    pub async fn put_damage(&self, damaged: &DamagedSet) -> Result<u64> {
        let mut all: Vec<_> = damaged.iter().collect();
        all.sort_unstable();
        let mut records = 0;
        for entries in all.chunks(Damaged::ENTRIES_MAX) {
            let key = damaged_key(&DamageId::random());
            let record = Damaged { time: Utc::now(), entries: entries.to_vec() };
            let bytes = record.encode(&self.keys, self.id(), &key)?;
            self.store.put(&key, Bytes::from(bytes)).await?;
            records += 1;
        }
        Ok(records)
    }

    /// What is recorded as damaged, and a warning for each record that cannot be read.
    pub async fn read_damage(&self) -> Result<(DamagedSet, Vec<String>)> {
        read_damaged(self).await
    }

    /// All packs and their sizes. An object below their prefix that is none goes to `foreign`, with
    /// its key.
    pub(crate) async fn list_packs(
        &self,
        mut foreign: impl FnMut(&str, &Error),
    ) -> Result<Vec<(PackId, u64)>> {
        let listed = self.store.list(PACKS_PREFIX).await?;
        let mut packs = Vec::with_capacity(listed.len());
        for object in listed {
            match parse_pack_key(&object.key) {
                Ok(pack) => packs.push((pack, object.size_bytes)),
                Err(e) => foreign(&object.key, &e),
            }
        }
        Ok(packs)
    }

    /// All dedup segments. An object below their prefix that is none goes to `foreign`, with its key.
    pub async fn list_segments(
        &self,
        mut foreign: impl FnMut(&str, &Error),
    ) -> Result<Vec<SegmentInfo>> {
        let listed = self.store.list(DEDUP_PREFIX).await?;
        let mut segments = Vec::with_capacity(listed.len());
        for object in listed {
            match parse_segment_key(&object.key) {
                Ok(id) => segments.push(SegmentInfo { id, size_bytes: object.size_bytes }),
                Err(e) => foreign(&object.key, &e),
            }
        }
        Ok(segments)
    }

    /// Packs that a collection means to delete or has rewritten: nothing new may rely on them.
    pub async fn condemned_packs(&self) -> Result<HashSet<PackId>> {
        read_condemned(self).await
    }

    /// The forwarding stub of a pack, if there is one.
    pub async fn read_stub(&self, pack: &PackId) -> Result<Option<Stub>> {
        let key = stub_key(pack);
        let bytes_max = u64::from(GC_BYTES_MAX) + RECORD_OVERHEAD;
        let open = |bytes: &Bytes| Stub::decode(&self.keys, self.id(), &key, bytes);
        let within = |e: Error| e.within(format!("read {key} in {}", self.store.url()));
        self.store.open_opt(&key, bytes_max, open).await.map_err(within)
    }

    /// Writes the forwarding stub of a pack that is gone, in the place of one that says less or
    /// cannot be read. Only for a pack that was looked for and is not there: a stub beside its pack
    /// would outlive it unnoticed.
    pub async fn put_stub(&self, stub: &Stub) -> Result<()> {
        let (key, bytes) = self.stub_object(stub).await?;
        self.store.put(&key, bytes).await
    }

    /// As [`put_stub`](Self::put_stub), where there is none. False: there is one now.
    pub async fn create_stub(&self, stub: &Stub) -> Result<bool> {
        let (key, bytes) = self.stub_object(stub).await?;
        Ok(!matches!(self.store.create(&key, bytes).await?, Created::Taken(_)))
    }

    async fn stub_object(&self, stub: &Stub) -> Result<(String, Bytes)> {
        let pack = crate::format::names::pack_key(stub.pack());
        if self.store.head(&pack).await?.is_some() {
            let context = format!("write the forwarding stub of {pack}");
            return Err(Error::new(ErrorKind::Bug, context, "the pack exists"));
        }
        let key = stub_key(stub.pack());
        let bytes = stub.encode(&self.keys, self.id(), &key)?;
        Ok((key, Bytes::from(bytes)))
    }
}
