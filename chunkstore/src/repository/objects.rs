//! Putting packs and segments. Both have random names, so writing one twice writes the same.

use super::Repository;
use crate::error::Result;
use crate::format::names::segment_key;
use crate::format::segment::{SegmentRecord, encode_segment};
use crate::ids::{SegmentId, random_bytes};
use crate::pack::FinishedPack;
use bytes::Bytes;
use object_store::PutPayload;

impl Repository {
    /// Stores a finished pack. Its parts are sent as they are, never copied together.
    pub async fn put_pack(&self, pack: &FinishedPack) -> Result<()> {
        let payload: PutPayload = pack.parts.iter().cloned().collect();
        self.store.put_in_turn(&pack.object_key(), payload).await
    }

    /// Stores a dedup segment of these records: at least one, and of packs that the caller has stored itself.
    /// Gives its id and its size in bytes.
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
}
