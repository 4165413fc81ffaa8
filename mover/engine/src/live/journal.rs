//! The journal of a copy-on-write volume: which chunks are durably on the target. Pure functions
//! over bytes; `file` has the file.
//!
//! ```text
//! base    8  "mvrcowj\0"        record   4  "cowr"
//!         4  version, 1                  4  number of runs
//!         4  bytes of a chunk            8  number of the record
//!         8  bytes of the volume         16 for each run: first chunk, number of chunks
//!         16 token                       16 check: keyed BLAKE3 of all before, cut
//!         8  number of the last record that it has in it
//!         4  length of the identity, then the identity
//!         .. one bit a chunk
//!         32 BLAKE3 of all before
//! ```
//!
//! All integers are little-endian. A record is synced before the next one is appended, so no more
//! than the last can be torn, and a torn one is cut. A record that does not check and has a whole
//! one behind it is damage: what was acknowledged may stand there, so nothing is guessed. The key of
//! records is the token's: what another journal left in the blocks of a file is never one of ours.
//!
//! The base is written anew, beside, and put in place by a rename, so it is never torn.

pub(super) mod file;

use super::bits::ChunkBits;
use std::fmt;
use std::ops::Range;

const MAGIC: &[u8; 8] = b"mvrcowj\0";
const RECORD_MAGIC: &[u8; 4] = b"cowr";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 52;
const BASE_CHECK_BYTES: usize = 32;
const RECORD_HEAD_BYTES: usize = 16;
const RUN_BYTES: usize = 16;
const CHECK_BYTES: usize = 16;
/// Of an identity.
const IDENTITY_BYTES_MAX: usize = 1 << 16;
/// A volume has no more chunks: 64 PiB of the smallest ones are far more than anybody serves.
const CHUNKS_MAX: u64 = 1 << 36;

/// What a journal belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalTerms {
    /// Bytes of a chunk, a power of two.
    pub chunk_bytes: u32,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Random; no other journal has it.
    pub token: [u8; 16],
    /// What the owner wrote down of source and target. Not looked at here.
    pub identity: Vec<u8>,
}

impl JournalTerms {
    /// Chunks of the volume.
    pub fn chunks(&self) -> u64 {
        self.size_bytes.div_ceil(u64::from(self.chunk_bytes.max(1)))
    }

    fn record_key(&self) -> [u8; 32] {
        blake3::derive_key("mover 2026 records of a copy-on-write journal", &self.token)
    }
}

/// Why bytes are no journal that can be gone on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalFault {
    /// It begins with something else.
    NoJournal,
    /// Of a newer program.
    Version(u32),
    /// Some of it is not as it was written.
    Damaged(String),
}

impl fmt::Display for JournalFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoJournal => write!(f, "it is no journal"),
            Self::Version(version) => write!(f, "it has version {version}, this program knows 1"),
            Self::Damaged(what) => write!(f, "it is damaged: {what}"),
        }
    }
}

impl std::error::Error for JournalFault {}

fn damaged<T>(what: impl Into<String>) -> Result<T, JournalFault> {
    Err(JournalFault::Damaged(what.into()))
}

/// A journal as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// What it belongs to.
    pub terms: JournalTerms,
    /// The chunks that are durably done.
    pub done: ChunkBits,
    /// Number of the last record.
    pub number: u64,
    /// Bytes of the base.
    pub base_bytes: u64,
    /// Bytes up to the end of the last whole record.
    pub end: u64,
    /// Bytes behind that: a torn record.
    pub torn_bytes: u64,
}

/// The base: everything up to a record's number.
pub fn encode_base(terms: &JournalTerms, done: &ChunkBits, number: u64) -> Vec<u8> {
    assert!(terms.identity.len() <= IDENTITY_BYTES_MAX, "a long identity");
    assert_eq!(terms.chunks(), done.chunks(), "a bitmap of another volume");
    let identity_len = u32::try_from(terms.identity.len()).unwrap_or(u32::MAX);
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&terms.chunk_bytes.to_le_bytes());
    out.extend_from_slice(&terms.size_bytes.to_le_bytes());
    out.extend_from_slice(&terms.token);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&identity_len.to_le_bytes());
    out.extend_from_slice(&terms.identity);
    out.extend_from_slice(&done.to_bytes());
    let check = blake3::hash(&out);
    out.extend_from_slice(check.as_bytes());
    out
}

/// One record: runs of chunks, ascending and apart, that became durable together.
pub fn encode_record(terms: &JournalTerms, number: u64, runs: &[Range<u64>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_HEAD_BYTES + runs.len() * RUN_BYTES + CHECK_BYTES);
    out.extend_from_slice(RECORD_MAGIC);
    out.extend_from_slice(&u32::try_from(runs.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    for run in runs {
        out.extend_from_slice(&run.start.to_le_bytes());
        out.extend_from_slice(&(run.end - run.start).to_le_bytes());
    }
    let check = check_of(&terms.record_key(), &out);
    out.extend_from_slice(&check);
    out
}

fn check_of(key: &[u8; 32], bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&blake3::keyed_hash(key, bytes).as_bytes()[..CHECK_BYTES]);
    check
}

/// Reads a whole journal.
pub fn replay(bytes: &[u8]) -> Result<Replayed, JournalFault> {
    let (terms, mut done, base_number, base_bytes) = decode_base(bytes)?;
    let key = terms.record_key();
    let (mut at, mut number) = (base_bytes, base_number);
    while at < bytes.len() {
        let Some((of, runs, len)) = decode_record(&key, &bytes[at..]) else { break };
        if of != number + 1 {
            return damaged(format!("record {of} follows record {number}"));
        }
        check_runs(&runs, done.chunks(), of)?;
        runs.into_iter().for_each(|run| done.insert(run));
        (at, number) = (at + len, of);
    }
    let torn = &bytes[at..];
    let whole_behind = torn
        .windows(RECORD_MAGIC.len())
        .enumerate()
        .filter(|(_, four)| four == RECORD_MAGIC)
        .find_map(|(skip, _)| decode_record(&key, &torn[skip..]));
    if let Some((of, ..)) = whole_behind {
        return damaged(format!("record {} does not check, and record {of} does", number + 1));
    }
    let (end, torn_bytes) = (at as u64, torn.len() as u64);
    Ok(Replayed { terms, done, number, base_bytes: base_bytes as u64, end, torn_bytes })
}

fn check_runs(runs: &[Range<u64>], chunks: u64, of: u64) -> Result<(), JournalFault> {
    let within = runs.iter().all(|run| run.start < run.end && run.end <= chunks);
    if !within || !runs.windows(2).all(|two| two[0].end < two[1].start) {
        return damaged(format!("record {of} names chunks that are not the volume's, or twice"));
    }
    Ok(())
}

type Base = (JournalTerms, ChunkBits, u64, usize);

fn decode_base(bytes: &[u8]) -> Result<Base, JournalFault> {
    if bytes.get(..8) != Some(MAGIC.as_slice()) {
        return Err(JournalFault::NoJournal);
    }
    let short = || JournalFault::Damaged("it ends within its base".into());
    let version = u32_at(bytes, 8).ok_or_else(short)?;
    if version != VERSION {
        return Err(JournalFault::Version(version));
    }
    let fixed = bytes.get(..FIXED_BYTES).ok_or_else(short)?;
    let chunk_bytes = u32_at(fixed, 12).ok_or_else(short)?;
    let size_bytes = u64_at(fixed, 16).ok_or_else(short)?;
    let mut token = [0; 16];
    token.copy_from_slice(&fixed[24..40]);
    let number = u64_at(fixed, 40).ok_or_else(short)?;
    let identity_len = u32_at(fixed, 48).ok_or_else(short)? as usize;
    if !chunk_bytes.is_power_of_two() || identity_len > IDENTITY_BYTES_MAX {
        return damaged("its base has numbers that cannot be");
    }
    let identity = bytes.get(FIXED_BYTES..FIXED_BYTES + identity_len).ok_or_else(short)?.to_vec();
    let terms = JournalTerms { chunk_bytes, size_bytes, token, identity };
    let chunks = terms.chunks();
    if chunks > CHUNKS_MAX || number == u64::MAX {
        return damaged("its base has numbers that cannot be");
    }
    let bits_at = FIXED_BYTES + identity_len;
    let bits_len = usize::try_from(ChunkBits::bytes_for(chunks)).unwrap_or(usize::MAX);
    let bits_end = bits_at.checked_add(bits_len).ok_or_else(short)?;
    let bits = bytes.get(bits_at..bits_end).ok_or_else(short)?;
    let end = bits_end.checked_add(BASE_CHECK_BYTES).ok_or_else(short)?;
    let check = bytes.get(bits_end..end).ok_or_else(short)?;
    if blake3::hash(&bytes[..bits_end]).as_bytes() != check {
        return damaged("its base does not check");
    }
    let Some(done) = ChunkBits::from_bytes(chunks, bits) else {
        return damaged("its base has chunks behind the volume's end");
    };
    Ok((terms, done, number, end))
}

/// The record that bytes begin with: its number, its runs, its length. None if there is none that
/// checks.
fn decode_record(key: &[u8; 32], bytes: &[u8]) -> Option<(u64, Vec<Range<u64>>, usize)> {
    if bytes.get(..4)? != RECORD_MAGIC {
        return None;
    }
    let runs = u32_at(bytes, 4)? as usize;
    let number = u64_at(bytes, 8)?;
    let checked = RECORD_HEAD_BYTES.checked_add(runs.checked_mul(RUN_BYTES)?)?;
    let len = checked.checked_add(CHECK_BYTES)?;
    let check = bytes.get(checked..len)?;
    if check_of(key, &bytes[..checked]) != check {
        return None;
    }
    let mut found = Vec::with_capacity(runs);
    for run in bytes[RECORD_HEAD_BYTES..checked].chunks_exact(RUN_BYTES) {
        let start = u64_at(run, 0)?;
        // what cannot be is found by whoever looks at the runs
        found.push(start..start.saturating_add(u64_at(run, 8)?));
    }
    Some((number, found, len))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges, of one too
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn terms() -> JournalTerms {
        JournalTerms {
            chunk_bytes: 4096,
            size_bytes: 100 * 4096 - 5,
            token: [7; 16],
            identity: b"of a test".to_vec(),
        }
    }

    fn journal(records: &[&[Range<u64>]]) -> Vec<u8> {
        let mut bytes = encode_base(&terms(), &ChunkBits::none(100), 4);
        for (n, runs) in records.iter().enumerate() {
            bytes.extend(encode_record(&terms(), 5 + n as u64, runs));
        }
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = journal(&[&[0..3, 7..9], &[50..100]]);
        let read = replay(&bytes).unwrap();
        assert_eq!((read.terms, read.number, read.torn_bytes), (terms(), 6, 0));
        assert_eq!(read.end, bytes.len() as u64);
        let runs: Vec<_> =
            read.done.runs(0..100).filter(|(_, done)| *done).map(|(run, _)| run).collect();
        assert_eq!(runs, [0..3, 7..9, 50..100]);
    }

    #[test]
    fn a_torn_tail_is_cut_wherever_it_ends() {
        let (one, two) = (journal(&[&[0..3]]), journal(&[&[0..3], &[5..6, 9..20]]));
        for end in one.len()..two.len() {
            let read = replay(&two[..end]).unwrap();
            assert_eq!((read.number, read.end), (5, one.len() as u64));
            assert_eq!(read.torn_bytes, (end - one.len()) as u64);
        }
        for end in 0..journal(&[]).len() {
            replay(&one[..end]).unwrap_err();
        }
    }

    #[test]
    fn damage_before_the_last_record_is_no_torn_tail() {
        let (base, bytes) = (journal(&[]).len(), journal(&[&[0..3], &[5..6]]));
        let first = journal(&[&[0..3]]).len();
        for at in 0..first {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            let fault = replay(&bad).unwrap_err();
            let named = matches!(&fault, JournalFault::Damaged(_));
            assert!(named || at < 12, "byte {at}: {fault}");
            assert!(at < base || fault.to_string().contains("record 5"), "byte {at}: {fault}");
        }
    }

    #[test]
    fn records_of_other_journals_and_numbers_are_not_taken() {
        let mut bytes = journal(&[&[0..3]]);
        let end = bytes.len() as u64;
        let others = JournalTerms { token: [8; 16], ..terms() };
        bytes.extend(encode_record(&others, 6, &[4..5]));
        assert_eq!(replay(&bytes).unwrap().end, end);
        let mut bytes = journal(&[&[0..3]]);
        bytes.extend(encode_record(&terms(), 5, &[4..5]));
        assert!(replay(&bytes).unwrap_err().to_string().contains("record 5 follows record 5"));
        for runs in [[4..4, 6..7], [5..6, 6..7], [7..8, 2..3], [98..99, 100..101]] {
            let mut bytes = journal(&[]);
            bytes.extend(encode_record(&terms(), 5, &runs));
            assert!(replay(&bytes).is_err(), "{runs:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            cut in 0usize..400, noise in prop::collection::vec(any::<(u16, u8)>(), 0..6)
        ) {
            let mut bytes = journal(&[&[0..3, 7..9], &[20..21], &[50..100]]);
            bytes.truncate(bytes.len().saturating_sub(cut % 100));
            let len = bytes.len();
            for (at, value) in noise {
                bytes[usize::from(at) % len] = value;
            }
            if let Ok(read) = replay(&bytes) {
                prop_assert!(read.done.ones() <= 100 && read.end <= len as u64);
            }
        }
    }
}
