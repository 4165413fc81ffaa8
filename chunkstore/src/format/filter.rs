//! The filter of a dedup segment: a split block Bloom filter as Apache Parquet specifies it
//! ("Parquet Bloom Filter"), over the first 8 bytes of chunk ids, which are keyed hashes already. A
//! filter says "surely not" or "perhaps".

use super::fields::{Fields, PutFields};
use crate::error::Result;
use crate::ids::ChunkId;

/// Kind of filter, as stored.
const KIND_SPLIT_BLOCK: u8 = 1;
/// One block: 8 words of 32 bits.
const BLOCK_BYTES: usize = 32;
/// Ids for each block of 256 bits: about 0.4% of absent ids are taken for present.
const IDS_PER_BLOCK: usize = 20;
/// Salts of the 8 words, from the Parquet specification.
const SALTS: [u32; 8] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// Which block, and the bit of each of its words.
fn place(id: &ChunkId, seed: u64, blocks: usize) -> (usize, [u32; 8]) {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    let hash = u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ seed;
    // the product of two 32-bit numbers, shifted back: below `blocks`
    #[allow(clippy::cast_possible_truncation)]
    let block = (((hash >> 32) * blocks as u64) >> 32) as usize;
    #[allow(clippy::cast_possible_truncation)]
    let low = hash as u32;
    (block, SALTS.map(|salt| 1 << (low.wrapping_mul(salt) >> 27)))
}

/// Appends a filter over `ids`, as it stands in the index section.
pub(crate) fn put_filter<'a>(
    out: &mut Vec<u8>,
    seed: u64,
    count: usize,
    ids: impl Iterator<Item = &'a ChunkId>,
) {
    let blocks = count.div_ceil(IDS_PER_BLOCK).max(1);
    let mut words = vec![[0_u32; 8]; blocks];
    for id in ids {
        let (block, bits) = place(id, seed, blocks);
        for (word, bit) in words[block].iter_mut().zip(bits) {
            *word |= bit;
        }
    }
    out.put(&[KIND_SPLIT_BLOCK, 0, 0, 0, 0, 0, 0, 0]);
    out.put_u64(seed);
    // a segment has at most 2^26 records
    out.put_u32(u32::try_from(blocks).unwrap_or(u32::MAX));
    words.iter().flatten().for_each(|word| out.put_u32(*word));
}

/// A filter in its stored form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter<'a> {
    seed: u64,
    words: &'a [u8],
}

impl<'a> Filter<'a> {
    pub(crate) fn decode(fields: &mut Fields<'a, '_>) -> Result<Self> {
        let kind = fields.array::<8>()?;
        if kind != [KIND_SPLIT_BLOCK, 0, 0, 0, 0, 0, 0, 0] {
            return Err(fields.corrupt("its filter is of an unknown kind"));
        }
        let seed = fields.u64()?;
        let blocks = fields.count(BLOCK_BYTES)?;
        if blocks == 0 {
            return Err(fields.corrupt("its filter is empty"));
        }
        Ok(Self { seed, words: fields.take(blocks * BLOCK_BYTES)? })
    }

    /// Blocks of 256 bits.
    pub(crate) fn blocks(&self) -> usize {
        self.words.len() / BLOCK_BYTES
    }

    /// False: the id is not in the segment.
    pub(crate) fn may_hold(&self, id: &ChunkId) -> bool {
        let (block, bits) = place(id, self.seed, self.blocks());
        let words = self.words[block * BLOCK_BYTES..][..BLOCK_BYTES].chunks_exact(4);
        words.zip(bits).all(|(word, bit)| {
            let word = word.try_into().map_or(0, u32::from_le_bytes);
            word & bit != 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::random_bytes;

    #[test]
    fn it_holds_all_that_was_put_in_and_little_else() {
        let ids: Vec<_> = (0..20_000).map(|_| ChunkId::from_bytes(random_bytes())).collect();
        let mut bytes = Vec::new();
        put_filter(&mut bytes, 99, ids.len(), ids.iter());
        let mut fields = Fields::new(&bytes, "filter");
        let filter = Filter::decode(&mut fields).unwrap();
        fields.finish().unwrap();
        assert!(ids.iter().all(|id| filter.may_hold(id)));
        let wrong =
            (0..100_000).filter(|_| filter.may_hold(&ChunkId::from_bytes(random_bytes()))).count();
        assert!(wrong < 1000, "{wrong} of 100000 absent ids pass");
    }

    /// Computed by hand from the specification, for other implementations.
    #[test]
    fn bits_are_where_the_specification_puts_them() {
        let mut id = [0; 32];
        id[0] = 1; // hash 1: block 0, and bit salt >> 27 of each word
        let (block, bits) = place(&ChunkId::from_bytes(id), 0, 3);
        assert_eq!((block, bits.map(u32::trailing_zeros)), (0, [8, 8, 17, 20, 14, 5, 19, 11]));
        id[7] = 0xff; // the upper half chooses the block
        assert_eq!(place(&ChunkId::from_bytes(id), 0, 3), (2, bits));
        assert_eq!(place(&ChunkId::from_bytes(id), 1, 3), (2, [1; 8]));
    }

    #[test]
    fn a_cut_or_strange_filter_is_refused() {
        let mut bytes = Vec::new();
        put_filter(&mut bytes, 1, 3, [].iter());
        for cut in 0..bytes.len() {
            assert!(Filter::decode(&mut Fields::new(&bytes[..cut], "filter")).is_err(), "{cut}");
        }
        bytes[0] = 2;
        assert!(Filter::decode(&mut Fields::new(&bytes, "filter")).is_err());
    }
}
