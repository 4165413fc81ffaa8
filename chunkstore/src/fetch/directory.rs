//! What a pack says of itself: its header, its trailer, and the directory that lists its entries.

use crate::error::{ErrorKind, Result};
use crate::format::corrupt;
use crate::format::names::pack_key;
use crate::ids::PackId;
use crate::limits::{PACK_HEADER_BYTES, PACK_TRAILER_BYTES};
use crate::pack::{
    DirectoryEntry, PACK_END_BYTES, PackHasher, PackHeader, PackTrailer, decode_pack_header,
    decode_pack_trailer,
};
use crate::repository::Repository;
use crate::seal::Opener;
use crate::store::Store;

/// What is read of a pack's end at first: most directories are in it.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of a read where all of a pack is read.
const STEP_BYTES: u64 = 2 << 20;

/// All of a pack but its entries.
#[derive(Debug)]
pub(crate) struct PackFrame {
    pub(crate) header: PackHeader,
    pub(crate) trailer: PackTrailer,
    pub(crate) directory: Vec<DirectoryEntry>,
}

/// Reads it: two requests, three for a large directory. `NotFound` if there is no such pack;
/// `size_bytes` is what a listing says of it.
pub(crate) async fn read_frame(
    repo: &Repository,
    opener: &mut Opener,
    pack: &PackId,
    size_bytes: u64,
) -> Result<PackFrame> {
    let (store, key) = (repo.store(), pack_key(pack));
    let tail_at = size_bytes.saturating_sub(TAIL_BYTES);
    let head = store.get_range(&key, 0..u64::from(PACK_HEADER_BYTES));
    let tail = store.get_range(&key, tail_at..size_bytes);
    let (head, tail) = futures::try_join!(head, tail)?;
    let header = match decode_pack_header(&head) {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            expect_hash(store, &key, size_bytes, &tail).await?;
            return Err(e);
        }
        header => header?,
    };
    header.check(repo.keys(), repo.id(), pack)?;
    if tail.len() < PACK_TRAILER_BYTES as usize {
        return Err(corrupt(format!("pack {pack}"), "it is too short"));
    }
    let trailer = decode_pack_trailer(&tail)?;
    if u64::from(trailer.pack_len) != size_bytes {
        return Err(corrupt(format!("pack {pack}"), "it has another length than it says"));
    }
    let at = u64::from(trailer.directory_offset);
    let end = at + u64::from(trailer.directory_len);
    let in_tail = at.checked_sub(tail_at).and_then(|from| usize::try_from(from).ok());
    let stored = match in_tail {
        Some(from) => tail.slice(from..from + trailer.directory_len as usize),
        None => store.get_range(&key, at..end).await?,
    };
    let directory = opener.open_directory(&header, &trailer, &stored)?;
    Ok(PackFrame { header, trailer, directory })
}

/// Refuses a pack whose bytes are not those that were stored, whatever its header says.
pub(super) async fn expect_hash_of(repo: &Repository, pack: &PackId) -> Result<()> {
    let (store, key) = (repo.store(), pack_key(pack));
    let size_bytes = store.head(&key).await?.map_or(0, |meta| meta.size);
    if size_bytes < u64::from(PACK_HEADER_BYTES + PACK_TRAILER_BYTES) {
        return Err(corrupt(key, "it is too short"));
    }
    let tail_at = size_bytes - u64::from(PACK_TRAILER_BYTES);
    let tail = store.get_range(&key, tail_at..size_bytes).await?;
    expect_hash(store, &key, size_bytes, &tail).await
}

/// Refuses a pack whose bytes are not those that were stored: no tag covers its header.
async fn expect_hash(store: &Store, key: &str, size_bytes: u64, tail: &[u8]) -> Result<()> {
    let trailer = decode_pack_trailer(tail)?;
    let end = size_bytes.saturating_sub(PACK_END_BYTES as u64);
    let mut hasher = PackHasher::new();
    let mut at = 0;
    while at < end {
        let next = (at + STEP_BYTES).min(end);
        hasher.update(&store.get_range(key, at..next).await?);
        at = next;
    }
    if u64::from(trailer.pack_len) == size_bytes && hasher.finish() == trailer.hash {
        return Ok(());
    }
    Err(corrupt(key, "its hash is not that of its content"))
}
