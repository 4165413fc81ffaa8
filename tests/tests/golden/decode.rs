//! Decodes any object of a repository, as thoroughly as it can be done without the others.

use chunkstore::testkit::golden;
use chunkstore::{
    ChunkId, Encryption, Error, ErrorKind, Keys, Opener, PackKind, Repository, Result,
    format::{
        Blockers, Condemned, Damaged, Feature, Forgotten, Lease, ManifestRecord, Page,
        RepositoryParams, SegmentIndex, SegmentOpener, Stub, Verdict, names, unwrap_master_key,
    },
    pack::{Codec, EntryKind, check_pack},
};
use std::sync::Arc;
use tests::Golden;

/// What kind an object key is of, in words of its own for what shares a prefix.
pub(crate) fn kind_of(key: &str) -> &str {
    if key.starts_with(names::GC_PREFIX) {
        return key.rsplit('/').next().unwrap_or(key);
    }
    key.split('/').next().unwrap_or(key)
}

/// An opened repository: its objects can be decoded from anywhere.
pub(crate) struct Decoder<'a> {
    golden: &'a Golden,
    repo: Arc<Repository>,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(golden: &'a Golden, repo: Arc<Repository>) -> Self {
        Self { golden, repo }
    }

    fn keys(&self) -> &Keys {
        self.repo.keys()
    }

    /// Reads these bytes as the object of this key. Gives what else is worth counting.
    pub(crate) fn decode(&self, key: &str, bytes: &[u8]) -> Result<Vec<String>> {
        let (keys, id) = (self.keys(), self.repo.id());
        let mut seen = Vec::new();
        match kind_of(key) {
            "format" | "format-copy" => {
                RepositoryParams::decode(bytes)?.verify(keys)?;
            }
            "keys" => self.key(key, bytes)?,
            "packs" => seen = self.pack(key, bytes)?,
            "dedup" => self.segment(key, bytes)?,
            "backups" => {
                seen.push(match ManifestRecord::decode(keys, id, key, bytes)? {
                    ManifestRecord::Backup(_) => "backup".into(),
                    ManifestRecord::Fence { .. } => "fence".into(),
                });
            }
            "leases" => {
                let lease = Lease::decode(keys, id, key, bytes)?;
                seen.push(lease.role.as_str().into());
                seen.extend(lease.checkpoint.map(|_| "checkpoint".into()));
            }
            "forgotten" => drop(Forgotten::decode(keys, id, key, bytes)?),
            "features" => drop(Feature::decode(keys, id, key, bytes)?),
            "damaged" => drop(Damaged::decode(keys, id, key, bytes)?),
            "moved" => drop(Stub::decode(keys, id, key, bytes)?),
            "condemned" => {
                seen.push(match Condemned::decode(keys, id, key, bytes)? {
                    Condemned::Fence => "condemned fence".into(),
                    Condemned::List(_) => "condemned list".into(),
                });
            }
            "blockers" => drop(Blockers::decode(keys, id, key, bytes)?),
            "verdict" => drop(Verdict::decode(keys, id, key, bytes)?),
            other => panic!("{key}: no kind {other} is known"),
        }
        Ok(seen)
    }

    /// One of our credentials must open it.
    fn key(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let mut last = None;
        for credential in self.golden.credentials() {
            match unwrap_master_key(&credential, self.repo.id(), key, bytes) {
                Ok(master) => {
                    let found = Keys::derive(&master, Encryption::Aes256Gcm).chunk_id(b"x");
                    assert_eq!(found, self.keys().chunk_id(b"x"), "{key} gives another key");
                    return Ok(());
                }
                // the other credential may still be the one it is for, which may say more
                Err(e) if last.is_none() || e.kind() != ErrorKind::WrongKey => last = Some(e),
                Err(_) => {}
            }
        }
        Err(last.expect("there are credentials"))
    }

    fn pack(&self, key: &str, bytes: &[u8]) -> Result<Vec<String>> {
        let pack = names::parse_pack_key(key)?;
        let summary = check_pack(bytes)?;
        summary.header.check(self.keys(), self.repo.id(), &pack)?;
        let mut opener = Opener::new(Arc::clone(self.repo.keys()))?;
        let at = |offset: u32, len: u32| &bytes[offset as usize..][..len as usize];
        let trailer = &summary.trailer;
        let stored = at(trailer.directory_offset, trailer.directory_len);
        let entries = opener.open_directory(&summary.header, trailer, stored)?;
        let kind = summary.header.kind.entries();
        let mut seen = vec![format!("{kind:?}")];
        let mut plain = Vec::new();
        for entry in entries {
            let stored = at(entry.offset, entry.stored_len);
            let header = opener.open_entry(kind, &pack, entry.offset, stored, &mut plain)?;
            assert_eq!(usize::from(header.count), entry.ids.len(), "{key}");
            seen.push(if header.codec == Codec::Raw { "raw".into() } else { "zstd".into() });
            self.check_ids(kind, &plain, &entry.ids)?;
        }
        assert_eq!(summary.header.kind == PackKind::Pages, kind == EntryKind::Page);
        Ok(seen)
    }

    fn check_ids(&self, kind: EntryKind, plain: &[u8], ids: &[[u8; 32]]) -> Result<()> {
        let params = self.repo.params();
        let found: Vec<ChunkId> = if kind == EntryKind::Page {
            let page = Page::decode(plain, params.page_fanout)?;
            vec![ChunkId::from_bytes(*page.id(self.keys()).as_bytes())]
        } else {
            let chunks = plain.chunks(params.chunk.bytes() as usize);
            chunks.map(|chunk| self.keys().chunk_id(chunk)).collect()
        };
        let wanted: Vec<ChunkId> = ids.iter().map(|id| ChunkId::from_bytes(*id)).collect();
        assert_eq!(found, wanted, "ids in a directory");
        Ok(())
    }

    fn segment(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let id = names::parse_segment_key(key)?;
        let opener = SegmentOpener::new(self.keys(), self.keys().encryption(), &id);
        let layout = opener.check_whole(bytes)?;
        opener.check_header(bytes, self.repo.id())?;
        let at = |range: std::ops::Range<u64>| {
            let start = usize::try_from(range.start).expect("small");
            &bytes[start..usize::try_from(range.end).expect("small")]
        };
        let plain = opener.open_index(&layout, at(layout.index()))?;
        let index = SegmentIndex::decode(opener.what(), &layout, &plain)?;
        index.check_order(opener.what())?;
        let mut records = 0;
        for block in 0..layout.blocks() {
            let plain = opener.open_block(&layout, block, at(layout.block(block)))?;
            for record in index.records(opener.what(), &plain)? {
                assert!(index.may_hold(&record.id), "the filter has every id");
                let found = index.find(opener.what(), &plain, &record.id)?;
                assert_eq!(found, Some(record.location));
                records += 1;
            }
        }
        assert_eq!(records, layout.records);
        Ok(())
    }

    /// Seals any body for the place of a manifest.
    pub(crate) fn manifest_of_body(&self, key: &str, body: &[u8]) -> Vec<u8> {
        golden::manifest_of_body(body, self.keys(), self.repo.id(), key, &[9; 32])
            .expect("seal a body")
    }
}

/// Kinds of failure by which an object that is not what it must be may be refused.
pub(crate) fn is_refusal(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Missing, Unsupported, WrongKey};
    matches!(error.kind(), Corrupt | Missing | Unsupported | WrongKey)
}
