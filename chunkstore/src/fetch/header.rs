//! Headers of packs, held against what they must say by those who read entries.
//!
//! A read that begins close behind the header of a pack begins with the header instead: some bytes
//! more, and no further request. So a header is looked at once for each pack, where that costs
//! nothing.
//!
//! What is read is proved by the ids of chunks and pages, and by tags that are bound to the pack's
//! name. A header proves nothing, and nothing but the hash of the whole pack proves it. So a wrong
//! one is told, and the entries of its pack still count. One of a later version is refused, if the
//! hash says that it is as it was stored.

use super::directory::expect_hash_of;
use super::plan::RangeRead;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::pack_key;
use crate::ids::PackId;
use crate::limits::PACK_HEADER_BYTES;
use crate::pack::{PackKind, decode_pack_header};
use crate::repository::Repository;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Packs that are known to be looked at, 33 bytes each; some are looked at again beyond.
const SEEN_MAX: usize = 1 << 16;
/// Wrong headers that are kept; more are counted.
const KEPT_MAX: usize = 64;

/// The headers that one run looks at.
#[derive(Debug, Default)]
pub struct HeaderCheck(Mutex<Looked>);

#[derive(Debug, Default)]
struct Looked {
    planned: HashSet<PackId>,
    wrong: Vec<String>,
    count: u64,
}

impl HeaderCheck {
    /// Lets reads that begin at most `gap_bytes` behind a header begin with it, for packs whose
    /// header was not asked for before. No read becomes longer than `read_bytes_max`.
    pub fn reach<'r>(
        &self,
        reads: impl IntoIterator<Item = &'r mut RangeRead>,
        gap_bytes: u32,
        read_bytes_max: u32,
    ) {
        let mut looked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for read in reads {
            let near = read.start <= gap_bytes.saturating_add(PACK_HEADER_BYTES);
            let len = read.start.saturating_add(read.len);
            if !near || len > read_bytes_max || looked.planned.contains(&read.pack) {
                continue;
            }
            if looked.planned.len() >= SEEN_MAX {
                looked.planned.clear();
            }
            looked.planned.insert(read.pack);
            (read.start, read.len) = (0, len);
        }
    }

    /// Looks at the header, if the read has brought it. A wrong one is noted. An error is that a
    /// later version has written the pack, or what the store says.
    pub async fn look(
        &self,
        repo: &Repository,
        kind: PackKind,
        read: &RangeRead,
        data: &[u8],
    ) -> Result<()> {
        if read.start > 0 || fits(repo, kind, &read.pack, data).is_ok() {
            return Ok(());
        }
        // one bad answer is no damage
        let key = pack_key(&read.pack);
        let header = match repo.store().get_range(&key, 0..u64::from(PACK_HEADER_BYTES)).await {
            Ok(header) => header,
            // a collection was faster: what was read of it counts
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        let wrong = match fits(repo, kind, &read.pack, &header) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() != ErrorKind::Unsupported => e,
            Err(e) => match expect_hash_of(repo, &read.pack).await {
                Ok(()) => return Err(e.within(format!("read {key} in {}", repo.store().url()))),
                Err(why) if why.kind() == ErrorKind::Corrupt => e,
                Err(why) => return Err(why),
            },
        };
        let mut looked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looked.count += 1;
        if looked.wrong.len() < KEPT_MAX {
            looked.wrong.push(format!("the header of {key} is damaged: {wrong}"));
        }
        Ok(())
    }

    /// What was wrong, the first ones, and how many headers were.
    pub fn wrong(&self) -> (Vec<String>, u64) {
        let looked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (looked.wrong.clone(), looked.count)
    }
}

fn fits(repo: &Repository, kind: PackKind, pack: &PackId, header: &[u8]) -> Result<()> {
    let header = decode_pack_header(header)?;
    header.check(repo.keys(), repo.id(), pack)?;
    if header.kind == kind {
        return Ok(());
    }
    let what = "its kind is not that of its entries";
    Err(Error::new(ErrorKind::Corrupt, format!("pack {pack}"), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pack: u8, start: u32, len: u32) -> RangeRead {
        RangeRead { pack: PackId::from_bytes([pack; 32]), start, len, entries: Vec::new() }
    }

    #[test]
    fn a_near_read_begins_with_the_header_once_for_each_pack() {
        let headers = HeaderCheck::default();
        let mut reads = [read(1, 64, 100), read(1, 300, 50), read(2, 1000, 10), read(3, 165, 900)];
        headers.reach(&mut reads, 100, 1000);
        let ranges = reads.map(|r| (r.start, r.len));
        assert_eq!(ranges, [(0, 164), (300, 50), (1000, 10), (165, 900)]);
        let mut again = [read(1, 64, 100), read(3, 164, 800)];
        headers.reach(&mut again, 100, 1000);
        assert_eq!(again.map(|r| (r.start, r.len)), [(64, 100), (0, 964)]);
    }
}
