//! Names: an index, of which each block that is in use is read, in whichever order. So its tree is
//! not followed, and cannot lead round.

use super::super::record::mend;
use super::super::{attribute, file};
use super::{File, NtfsFiles, OF_DOS, id, reference, wrong};
use crate::files::{FileName, read_content};
use crate::{Refusal, le16, le32, le64, utf16};

/// `$I30`.
const INDEX_NAME: &[u8] = b"$\0I\x003\x000\0";
/// Where entries are told in the root of an index, and in a block.
const IN_ROOT: usize = 16;
const IN_BLOCK: usize = 24;
/// Of an entry, before its key; of a key, before its name.
const ENTRY: usize = 16;
const KEY: usize = 66;
const LAST: u16 = 2;
const BLOCK_BYTES_MAX: u64 = 64 << 10;
/// Of names alone: 40 million of the shortest.
const DIRECTORY_BYTES_MAX: u64 = 4 << 30;
/// The unit that blocks are counted in which are shorter than a cluster.
const SECTOR: u64 = 512;

impl NtfsFiles<'_> {
    pub(super) fn directory(&self, file: &File) -> Result<Vec<FileName>, Refusal> {
        let nonsense = || wrong(file.number, "its names make no sense");
        let root = self.stream(file, attribute::INDEX_ROOT, INDEX_NAME)?.ok_or_else(nonsense)?;
        let root = self.bytes_of(&root, BLOCK_BYTES_MAX)?;
        if le32(&root, 0) != attribute::NAME {
            return Err(nonsense());
        }
        let mut names = Vec::new();
        entries(&root, IN_ROOT, file.number, &mut names).ok_or_else(nonsense)?;
        let Some(blocks) = self.stream(file, attribute::INDEX, INDEX_NAME)? else {
            return Ok(names);
        };
        let block_bytes = u64::from(le32(&root, 8));
        let bits = self.stream(file, attribute::BITMAP, INDEX_NAME)?.ok_or_else(nonsense)?;
        let fits = block_bytes.is_power_of_two()
            && (SECTOR..=BLOCK_BYTES_MAX).contains(&block_bytes)
            && blocks.bytes <= DIRECTORY_BYTES_MAX
            // or it has the same clusters more than once
            && blocks.bytes.div_ceil(self.fs.boot.cluster_bytes) <= self.fs.boot.clusters;
        if !fits {
            return Err(nonsense());
        }
        let bits = self.bytes_of(&bits, (DIRECTORY_BYTES_MAX / SECTOR).div_ceil(8))?;
        let pieces = blocks.pieces(&self.fs.boot)?;
        let places = pieces.iter().filter_map(|piece| match piece.place {
            crate::files::Place::Volume(at) => Some(at..at + (piece.range.end - piece.range.start)),
            _ => None,
        });
        self.fs.volume.expect(&places.collect::<Vec<_>>());
        let unit = match self.fs.boot.cluster_bytes {
            cluster if cluster <= block_bytes => cluster,
            _ => SECTOR,
        };
        let mut block = vec![0; usize::try_from(block_bytes).unwrap_or(0)];
        for number in 0..blocks.bytes / block_bytes {
            let byte = usize::try_from(number / 8).ok().and_then(|at| bits.get(at));
            if byte.is_none_or(|byte| byte >> (number % 8) & 1 == 0) {
                continue;
            }
            let at = number * block_bytes;
            read_content(self.fs.volume, &pieces, at, &mut block)?;
            let whole = block.starts_with(b"INDX") && mend(&mut block).is_some();
            if !whole || le64(&block, 16) != at / unit {
                return Err(wrong(file.number, "a block of its names is broken"));
            }
            entries(&block, IN_BLOCK, file.number, &mut names).ok_or_else(nonsense)?;
        }
        Ok(names)
    }
}

/// Entries of a block, whose head is at a place of it.
fn entries(block: &[u8], head: usize, number: u64, names: &mut Vec<FileName>) -> Option<()> {
    let (from, used) = (le32(block, head) as usize, le32(block, head + 4) as usize);
    let mut rest = block.get(head..)?.get(..used)?.get(from..)?;
    loop {
        let (len, key) = (usize::from(le16(rest, 8)), usize::from(le16(rest, 10)));
        let flags = le16(rest, 12);
        if rest.len() < ENTRY {
            return None;
        }
        if flags & LAST != 0 {
            return Some(());
        }
        if len < ENTRY + key || !len.is_multiple_of(8) {
            return None;
        }
        let (entry, behind) = rest.split_at_checked(len)?;
        let key = entry.get(ENTRY..ENTRY + key)?;
        let letters = key.get(KEY..)?.get(..2 * usize::from(key[64]))?;
        let (parent, _) = reference(le64(key, 0));
        let (record, sequence) = reference(le64(entry, 0));
        if parent != number || u32::try_from(record).is_err() {
            return None;
        }
        // those of the file system itself are no files
        if key[65] != OF_DOS && record >= file::FIRST {
            let name = utf16::name(letters.chunks_exact(2).map(|unit| le16(unit, 0)));
            names.push(FileName { name, id: id(record, sequence) });
        }
        rest = behind;
    }
}
