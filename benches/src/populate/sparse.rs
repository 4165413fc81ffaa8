//! Packs whose entries are holes: header, directory and trailer are real, so that a pack can be
//! listed, looked at, checked by its hash, and its directory read; no chunk of it can be opened.

use crate::failed;
use benches::made_up_id;
use chunkstore::testkit::{fuzzing, pack_end};
use chunkstore::{
    ChunkId, Keys, Location, PackId, PackKind, RepositoryId, Result,
    pack::{DirectoryEntry, PackHasher, PackHeader},
};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// As the default of a repository: 1 MiB of 64 KiB chunks.
const ENTRY_CHUNKS: u64 = 16;
/// A quarter of that: as well compressed as a volume of programs and a database.
const ENTRY_STORED_BYTES: u32 = 256 << 10;
const PACK_ENTRIES: u64 = 128;
/// 32 MiB.
pub(super) const PACK_CHUNKS: u64 = ENTRY_CHUNKS * PACK_ENTRIES;
/// What all entries hold.
static ZEROS: [u8; ENTRY_STORED_BYTES as usize] = [0; ENTRY_STORED_BYTES as usize];

/// Which chunk is where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Tells the ids of one repository from those of another.
    pub(super) seed: u64,
}

impl Layout {
    pub(super) fn chunk_id(self, number: u64) -> ChunkId {
        ChunkId::from_bytes(made_up_id(self.seed, number))
    }

    pub(super) fn pack_id(self, number: u64) -> PackId {
        PackId::from_bytes(made_up_id(!self.seed, number))
    }

    pub(super) fn location(self, number: u64) -> Location {
        let in_pack = number % PACK_CHUNKS;
        // both below PACK_CHUNKS
        let entry = u32::try_from(in_pack / ENTRY_CHUNKS).unwrap_or(u32::MAX);
        let index = u16::try_from(in_pack % ENTRY_CHUNKS).unwrap_or(u16::MAX);
        Location {
            pack: self.pack_id(number / PACK_CHUNKS),
            entry,
            offset: chunkstore::limits::PACK_HEADER_BYTES + entry * ENTRY_STORED_BYTES,
            stored_len: ENTRY_STORED_BYTES,
            index,
        }
    }

    /// What the directory of a pack with these chunks says.
    fn directory(self, chunks: &Range<u64>) -> Vec<DirectoryEntry> {
        let firsts = chunks.clone().step_by(usize::try_from(ENTRY_CHUNKS).unwrap_or(1));
        firsts
            .map(|first| {
                let ids = first..(first + ENTRY_CHUNKS).min(chunks.end);
                let Location { offset, stored_len, .. } = self.location(first);
                let ids = ids.map(|n| made_up_id(self.seed, n)).collect();
                DirectoryEntry { offset, stored_len, ids }
            })
            .collect()
    }
}

/// Writes sparse packs.
#[derive(Debug)]
pub(super) struct PackWriter<'a> {
    pub(super) keys: &'a Keys,
    pub(super) repository: RepositoryId,
    pub(super) layout: Layout,
}

impl<'a> PackWriter<'a> {
    pub(super) fn new(keys: &'a Keys, repository: RepositoryId, layout: Layout) -> Self {
        Self { keys, repository, layout }
    }

    /// The pack that holds these chunks: at most a pack's, from its first one on.
    pub(super) fn write(&self, packs: &Path, chunks: &Range<u64>) -> Result<PackId> {
        let pack = self.layout.pack_id(chunks.start / PACK_CHUNKS);
        let header = PackHeader {
            pack,
            kind: PackKind::Chunks,
            encryption: self.keys.encryption(),
            repository_id: self.repository,
        };
        let head = fuzzing::encode_pack_header(&header);
        let entries = self.layout.directory(chunks);
        let end = entries.last().map_or(0, |last| last.offset + last.stored_len);
        let (directory, trailer, _) = pack_end(self.keys, &pack, end, &entries)?;
        let mut tail = directory.to_vec();
        tail.extend_from_slice(&trailer);
        let mut hasher = PackHasher::new();
        hasher.update(&head);
        entries.iter().for_each(|entry| hasher.update(&ZEROS[..entry.stored_len as usize]));
        hasher.update(&tail);
        tail.extend_from_slice(&hasher.pack_end());
        let name = pack.to_hex();
        let directory = packs.join(&name[..2]);
        let path = directory.join(&name);
        let write = || {
            std::fs::create_dir_all(&directory)?;
            let file = File::create_new(&path)?;
            file.write_all_at(&head, 0)?;
            file.write_all_at(&tail, end.into())
        };
        write().map_err(|e| failed(format!("write {}", path.display()), e))?;
        Ok(pack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::{
        Encryption, Opener,
        keys::MasterKey,
        pack::{EntryKind, check_pack, decode_directory},
    };
    use std::sync::Arc;

    #[test]
    fn a_sparse_pack_is_a_pack_with_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::derive(&MasterKey::from_bytes([1; 32]), Encryption::Aes256Gcm);
        let repository = RepositoryId::from_bytes([2; 16]);
        let layout = Layout { seed: 9 };
        let writer = PackWriter::new(&keys, repository, layout);
        // the last is short
        for chunks in [0..PACK_CHUNKS, PACK_CHUNKS..2 * PACK_CHUNKS, 2 * PACK_CHUNKS..4100] {
            let pack = writer.write(dir.path(), &chunks).unwrap();
            let name = pack.to_hex();
            let path = dir.path().join(&name[..2]).join(&name);
            let bytes = std::fs::read(&path).unwrap();
            let found = check_pack(&bytes).unwrap();
            found.header.check(&keys, &repository, &pack).unwrap();
            let (start, len) = (found.trailer.directory_offset, found.trailer.directory_len);
            let stored = &bytes[start as usize..(start + len) as usize];
            let mut opener = Opener::new(Arc::new(Keys::derive(
                &MasterKey::from_bytes([1; 32]),
                Encryption::Aes256Gcm,
            )))
            .unwrap();
            let mut plain = Vec::new();
            opener.open_entry(EntryKind::Directory, &pack, start, stored, &mut plain).unwrap();
            let entries = decode_directory(&plain, PackKind::Chunks, &found.trailer).unwrap();
            for number in chunks {
                let at = layout.location(number);
                let entry = &entries[at.entry as usize];
                assert_eq!((entry.offset, entry.stored_len), (at.offset, at.stored_len));
                assert_eq!(entry.ids[usize::from(at.index)], *layout.chunk_id(number).as_bytes());
            }
        }
    }
}
